"""How the clients of a supervised problem fare: under one model for all, or each under a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedconcord.federation.objectives import means
from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.federation.objectives.metrics import SCORES, Metric
from fedconcord.federation.objectives.parts import PrivateParts
from fedconcord.federation.objectives.persons import Persons
from fedconcord.federation.objectives.regularisers import Regularised
from fedconcord.federation.objectives.supervised import Supervised
from fedconcord.method.contract import Problem, rng
from fedconcord.support.errors import UserError

Models = Callable[[int], Tensor | None]
"""client -> its own model [d]; None where it never trained one."""

TESTING = 2**35  # multiplications of all clients' own models on the test set
FEWEST = 200  # test samples


def supervised(problem: Problem) -> Supervised | None:
    """The problem whose clients can be judged one by one, or None: two-block tasks and problems without test data."""
    inner = problem.whole if isinstance(problem, PrivateParts) else problem
    inner = inner.smooth if isinstance(inner, Regularised) else inner
    inner = inner.rows if isinstance(inner, Persons) else inner
    return inner if isinstance(inner, Supervised) else None


def pooled(problem: Problem) -> Problem:
    """The same samples, held by one client; those that clients are judged on stay theirs."""
    if isinstance(problem, Regularised):
        return Regularised(pooled(problem.smooth), problem.regulariser)
    if isinstance(problem, PrivateParts):
        return pooled(problem.whole)
    assert isinstance(problem, Supervised)
    whole = copy.copy(problem)
    for name in ("objective", "roster"):
        whole.__dict__.pop(name, None)
    whole.norm = "pooled" if whole.norm == "silo" else whole.norm
    whole.offsets = np.array([0, len(whole.y)], np.int64)
    whole.weigh()
    return whole


# -- one model for all ---------------------------------------------------------------------------------------------


def client_figures(problem: Supervised, x: Tensor) -> Scores:
    """`Supervised.client_scores`, and each of the other metrics by client: NaN where it is not defined."""
    scores = problem.client_scores(x)
    if not problem.others:
        return scores
    _, inputs, targets, offsets = problem.judged
    [(_, outputs)] = problem.answers(x, (inputs, targets))
    outputs, targets = problem.in_units(outputs), problem.in_units(targets)
    pieces = [slice(a, b) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    more = {m.name: np.array([_value(m, outputs[one], targets[one]) for one in pieces]) for m in problem.others}
    return scores._replace(values=scores.values | more)


def _value(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """A metric of one client's samples; NaN where it is not defined on them, as a metric of the user's own may say."""
    if not len(targets):
        return float("nan")
    try:
        return metric.value(outputs, targets)
    except UserError:
        return float("nan")


# -- every client's own --------------------------------------------------------------------------------------------


def at_client(problem: Supervised, client: int) -> Supervised:
    """The problem whose models normalise by statistics of this client's samples under norm silo; else as it is.

    Andreux et al., Siloed federated learning for multi-centric histopathology datasets, MICCAI DART 2020.
    """
    if problem.norm != "silo":
        return problem
    one, (begin, end) = copy.copy(problem), problem.offsets[client : client + 2].tolist()
    one.seen, one._looked = problem.x[begin:end], None
    return one


def own_figures(problem: Supervised, models: Models) -> Scores:
    """What `client_figures` has, every client under its own model; NaN for one that never trained. What is no mean over
    samples is of all their samples together."""
    offsets, names = problem.judged.offsets, figure_names(problem)
    table, parts = np.full((len(offsets) - 1, len(names)), np.nan), []
    for i, (a, b) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        if b > a and (x := models(i)) is not None:
            parts.append(answers(at_client(problem, i), x, slice(a, b)))
            table[i] = figures(problem, *parts[-1])
    whole = [torch.cat(part) for part in zip(*parts, strict=True)][1:]  # outputs and truth, if any
    overall = {m.name: _value(m, *whole) for m in problem.others} if whole else {}
    counts = means.tallies(problem.judged, problem.loss_of, problem.target)
    values, higher = dict(zip(names, table.T.copy(), strict=True)), {m.name: m.higher for m in problem.metrics}
    return Scores(problem.judged.split, np.diff(offsets), values, overall, counts, higher)


def figure_names(problem: Supervised) -> list[str]:
    """What `figures` are: loss, score and the other metrics."""
    return ["loss", SCORES[problem.target].name, *(m.name for m in problem.others)]


def answers(problem: Supervised, x: Tensor, mine: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Losses [m], outputs and truth of a model [d] on some of the samples that clients are judged on."""
    samples, truth = problem.judged.x[mine], problem.judged.y[mine]
    [(loss, outputs)] = problem.answers(x, (samples, truth))
    return loss, problem.in_units(outputs), problem.in_units(truth)


def figures(problem: Supervised, loss: Tensor, outputs: Tensor, truth: Tensor) -> list[float]:
    """Those of `answers`; NaN for no samples."""
    score = SCORES[problem.target]
    each = (loss, problem.loss_of.counts), (score.per_sample(outputs, truth), score.counts)
    averages = [means.mean(values, truth, counts) for values, counts in each]
    return [*averages, *(_value(m, outputs, truth) for m in problem.others)]


def evaluate_own(problem: Supervised, models: Models) -> dict[str, float]:
    """What `Supervised.evaluate` has, of clients' own models: on the test set the mean over the clients, elsewhere
    every sample under its client's model. The clients that never trained are left out.

    The test set is a fixed keyed sample of it where all clients' passes over all of it would cost much.
    """
    n = len(problem.judged.offsets) - 1
    tests = tested(problem)
    test_x, test_y = problem.test_x[tests], problem.test_y[tests]
    owner = np.searchsorted(problem.offsets, problem.probe.cpu().numpy(), side="right") - 1
    truth, counts, rows, losses = problem.in_units(test_y), problem.loss_of.counts, [], []
    for i in range(n):
        if (x := models(i)) is None:
            continue
        trained = problem.probe[torch.as_tensor(owner == i, device=problem.probe.device)]
        samples = problem.x[trained]
        here = at_client(problem, i)
        (test, outputs), (train, _) = here.answers(x, (test_x, test_y), (samples, problem.y[trained]))
        outputs = problem.in_units(outputs)
        rows.append([*(metric.value(outputs, truth) for metric in problem.metrics), means.mean(test, test_y, counts)])
        losses.append((train, problem.y[trained]))
    names = [*(f"test_{metric.name}" for metric in problem.metrics), "test_loss"]
    averages = dict(zip(names, np.mean(rows, 0).tolist(), strict=True))
    train, targets = (torch.cat(part) for part in zip(*losses, strict=True))
    averages["train_loss"] = means.mean(train, targets, counts)
    if problem.judged.split == "validation":
        scores = own_figures(problem, models)
        averages |= means.validation(scores, SCORES[problem.target].name, ~np.isnan(scores.values["loss"]))
        averages |= {f"validation_{name}": value for name, value in scores.overall.items()}
    return averages


def tested(problem: Supervised) -> Tensor:
    """The test samples that clients' own models are judged on, sorted."""
    every, n = len(problem.test_y), len(problem.judged.offsets) - 1
    most = max(FEWEST, TESTING // (n * problem.forward.cost.multiplications))
    keep = rng.generator(0, rng.Purpose.SPLIT, client=3).permutation(every)[:most]
    return torch.as_tensor(np.sort(keep), device=problem.test_y.device)
