"""AUROC, average precision, Brier score and calibration error, against scikit-learn on the same predictions and against
closed forms; and the same by client.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.calibration import calibration_curve
from torch import Tensor

from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.judging import client_figures
from fedconcord.federation.objectives.metrics import (
    BINS,
    METRICS,
    auroc,
    average_precision,
    brier,
    check_metrics,
    ece,
    metric,
    questions,
)
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord_sites.judging import BINS as PLACES
from fedconcord_sites.judging import SUMS, check_summed, summed

EVERY = ("auroc", "average_precision", "brier", "ece")


def drawn(classes: int, n: int = 400) -> tuple[Tensor, Tensor, np.ndarray]:
    """(outputs, classes, probabilities) of a classifier that is right more often than not."""
    generator = torch.Generator().manual_seed(classes)
    outputs = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    truth = torch.multinomial(outputs.softmax(1), 1, generator=generator)[:, 0]
    return outputs, truth, outputs.softmax(1).numpy()


@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_figures_of_two_classes_at_a_threshold(threshold: float) -> None:
    outputs, truth, p = drawn(2)
    y, told = truth.numpy(), p[:, 1] >= threshold
    asked = [metric(f"{name}({threshold})") for name in ("sensitivity", "specificity", "ppv", "npv")]
    scores = (metrics.recall_score, metrics.precision_score)
    want = [score(y, told, pos_label=k) for score in scores for k in (1, 0)]
    assert [one.value(outputs, truth) for one in asked] == pytest.approx(want, rel=1e-12)
    end = "" if threshold == 0.5 else f"_at_{threshold}"
    assert [one.name for one in asked] == [f"{name}{end}" for name in ("sensitivity", "specificity", "ppv", "npv")]
    assert math.isnan(asked[0].value(outputs[truth == 0], truth[truth == 0]))
    assert asked[2].value(-1e3 * torch.eye(2)[[1, 1]], truth[:2]) == 0  # nobody is told so
    parts = [summed(one) for one in asked]  # as sites send it
    halves = (slice(0, 150), slice(150, 400))
    sums = [sum(one.sums(outputs[h], truth[h]) for h in halves) for one in parts if one is not None]
    got = [one.value(total.numpy(), 400, 2) for one, total in zip(parts, sums, strict=True) if one is not None]
    assert got == pytest.approx(want, rel=1e-12)
    with pytest.raises(UserError, match="is of two classes, and the data have 3"):
        check_metrics(asked, truth, 3)
    with pytest.raises(UserError, match="threshold must be a number > 0 and < 1, given 1"):
        metric("sensitivity(1)")


def test_two_classes_as_scikit_learn_has_them() -> None:
    outputs, truth, p = drawn(2)
    y = truth.numpy()
    assert auroc(outputs, truth) == pytest.approx(metrics.roc_auc_score(y, p[:, 1]), rel=1e-12)
    assert average_precision(outputs, truth) == pytest.approx(metrics.average_precision_score(y, p[:, 1]), rel=1e-12)
    assert brier(outputs, truth) == pytest.approx(metrics.brier_score_loss(y, p[:, 1]), rel=1e-12)


AREAS = ("auroc", "average_precision")


@pytest.mark.parametrize("name", AREAS)
@pytest.mark.parametrize(("target", "width"), [("class", 2), ("class", 4), ("labels", 3)])
def test_areas_are_those_of_scores_in_bins(name: str, target: str, width: int) -> None:
    """scikit-learn's, to rounding, where the scores of a bin are equal."""
    draw = torch.Generator().manual_seed(1)
    outputs = 3 * torch.randn(200, width, generator=draw, dtype=torch.float64)
    if target == "class":
        targets = torch.multinomial((outputs / 2).softmax(-1), 1, generator=draw)[:, 0]
    else:
        targets = (torch.rand(200, width, generator=draw, dtype=torch.float64) < outputs.sigmoid()).double()
    parts = [SUMS[name].sums(outputs[a:b], targets[a:b]) for a, b in ((0, 20), (20, 20), (20, 200))]
    value = SUMS[name].value(torch.stack(parts).sum(0).numpy(), 200, width)
    exact = METRICS[name].value(outputs, targets)
    assert value == pytest.approx(exact, abs=0.02)
    assert value != exact
    truth, scores = questions(outputs, targets)
    binned = np.floor((scores / (1 + np.abs(scores)) + 1) * PLACES / 2)
    ours = {"auroc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score}[name]
    each = [ours(truth[:, k], binned[:, k]) for k in range(truth.shape[1])]
    assert value == pytest.approx(float(np.mean(each)), rel=1e-12)
    if name == "auroc":  # pairs of one bin are what is not known of the order
        pairs = [[binned[truth[:, k] == a, k] for a in (0, 1)] for k in range(truth.shape[1])]
        share = [float((no[:, None] == yes).mean()) for no, yes in pairs]
        assert abs(value - exact) <= np.mean(share) / 2


def test_a_metric_of_ones_own_is_no_sum() -> None:
    with pytest.raises(UserError, match=r"metric mine is no function of sums over samples.*use accuracy, "):
        check_summed([METRICS["accuracy"]._replace(name="mine")])


@pytest.mark.parametrize("name", ["auroc", "average_precision", "ece"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_sums_of_outputs_that_are_no_numbers_are_none(name: str, value: float) -> None:
    """They have the form of others, so that the server refuses them as it does such losses, and the site goes on."""
    outputs, truth, _ = drawn(2)
    wrong = outputs.clone()
    wrong[3, 1] = value
    sums = SUMS[name].sums(wrong, truth)
    assert sums.shape == SUMS[name].sums(outputs, truth).shape
    assert sums.isnan().all()
    assert math.isnan(METRICS[name].value(wrong, truth))


def test_an_area_of_one_answer_is_no_number() -> None:
    sums = SUMS["auroc"].sums(torch.zeros(5, 2), torch.ones(5, dtype=torch.int64))
    assert math.isnan(SUMS["auroc"].value(sums.numpy(), 5, 2))


def test_several_classes_as_scikit_learn_has_them() -> None:
    outputs, truth, p = drawn(5)
    y, one_hot = truth.numpy(), np.eye(5)[truth.numpy()]
    wanted = metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert auroc(outputs, truth) == pytest.approx(wanted, rel=1e-12)
    assert average_precision(outputs, truth) == pytest.approx(metrics.average_precision_score(one_hot, p), rel=1e-12)
    assert brier(outputs, truth) == pytest.approx(float(((p - one_hot) ** 2).sum(1).mean()), rel=1e-12)
    some = truth < 3  # what does not occur is not asked for
    fewer = [metrics.roc_auc_score(one_hot[some.numpy(), k], p[some.numpy(), k]) for k in range(3)]
    assert auroc(outputs[some], truth[some]) == pytest.approx(np.mean(fewer), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_outputs_rank_as_they_stand(classes: int, dtype: torch.dtype) -> None:
    """From 37 on a softmax is 1.0 in float64: samples that the outputs keep apart would all tie."""
    outputs = torch.zeros(40, classes, dtype=dtype)
    outputs[:, -1] = torch.arange(40) + 100.0
    truth = torch.where(torch.arange(40) >= 25, classes - 1, 0)
    assert (outputs.double().softmax(-1)[:, -1] == 1).all()
    assert average_precision(outputs, truth) == auroc(outputs, truth) == 1.0
    many = torch.stack([outputs[:, -1], -outputs[:, -1]], 1)
    assert auroc(many, torch.stack([truth > 0, truth == 0], 1).double()) == 1.0


def test_labels_as_scikit_learn_has_them() -> None:
    outputs, _, _ = drawn(3)
    truth = (torch.rand(400, 3, generator=torch.Generator().manual_seed(1)).double() < outputs.sigmoid()).double()
    p, y = outputs.sigmoid().numpy(), truth.numpy()
    assert auroc(outputs, truth) == pytest.approx(metrics.roc_auc_score(y, p), rel=1e-12)
    assert average_precision(outputs, truth) == pytest.approx(metrics.average_precision_score(y, p), rel=1e-12)
    assert brier(outputs, truth) == pytest.approx(float(np.square(p - y).mean()), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_calibration_error_by_the_curve_of_scikit_learn(classes: int) -> None:
    outputs, truth, p = drawn(classes)
    sure, right = p.max(1), p.argmax(1) == truth.numpy()
    reached, said = calibration_curve(right, sure, n_bins=BINS)
    share = np.histogram(sure, np.linspace(0, 1, BINS + 1))[0] / len(sure)
    assert ece(outputs, truth) == pytest.approx(float(np.abs(reached - said) @ share[share > 0]), rel=1e-9)


def test_the_calibration_error_in_closed_form() -> None:
    """A classifier that says 0.7 and is right 7 times in 10 is calibrated; one that says 0.9 and guesses is 0.4 off."""

    def sure(of: float, n: int) -> Tensor:
        return torch.tensor([[math.log(of), math.log(1 - of)]], dtype=torch.float64).expand(n, -1)

    assert ece(sure(0.7, 10), torch.tensor([0] * 7 + [1] * 3)) == pytest.approx(0, abs=1e-12)
    assert ece(sure(0.9, 10), torch.tensor([0, 1] * 5)) == pytest.approx(0.4, rel=1e-12)
    both = torch.cat([sure(0.7, 10), sure(0.9, 30)])
    assert ece(both, torch.tensor([0] * 7 + [1] * 3 + [0, 1] * 15)) == pytest.approx(0.3, rel=1e-12)
    assert brier(sure(0.7, 10), torch.tensor([0] * 7 + [1] * 3)) == pytest.approx(0.7 * 0.3, rel=1e-12)


def test_what_is_not_defined() -> None:
    outputs, _, _ = drawn(3, 6)
    one = torch.ones(6, dtype=torch.int64)
    assert math.isnan(auroc(outputs, one))
    assert math.isnan(average_precision(outputs, one))
    assert math.isfinite(brier(outputs, one))
    assert math.isfinite(ece(outputs, one))
    broken = outputs.clone()
    broken[0, 0] = math.nan
    mixed = torch.tensor([0, 1, 2, 0, 1, 2])
    assert all(math.isnan(METRICS[name].value(broken, mixed)) for name in EVERY)
    assert all(math.isnan(METRICS[name].value(outputs[:0], mixed[:0])) for name in EVERY)


def problem(**changes: Any) -> Supervised:
    given = {"data": "digits", "model": "logreg", "clients": 12, "validation": 0.3, "engine.dtype": "float64"}
    given |= {"metrics": ["accuracy", *EVERY], "partition": "dirichlet(0.1)", **changes}
    found = problem_of(resolve_run(from_nested(given, "test")))
    assert isinstance(found, Supervised)
    return found


def test_by_client_and_over_all_samples() -> None:
    of = problem()
    x = of.init(0) + 0.3
    scores, evaluated = client_figures(of, x), of.evaluate(x)
    _, inputs, targets, offsets = of.judged
    outputs = of.logits(x, inputs[:]).detach()
    for name in EVERY:
        known = METRICS[name]
        assert evaluated[f"test_{name}"] == pytest.approx(known.value(of.logits(x, of.test_x[:]).detach(), of.test_y))
        assert evaluated[f"validation_{name}"] == scores.overall[name] == pytest.approx(known.value(outputs, targets))
        for i in range(12):
            mine = slice(int(offsets[i]), int(offsets[i + 1]))
            wanted = known.value(outputs[mine], targets[mine])
            assert scores.values[name][i] == pytest.approx(wanted, nan_ok=True), (name, i)
    alone = problem(partition="shards(1)", clients=20)  # of which most hold one class
    assert 0 < np.isnan(client_figures(alone, x).values["auroc"]).sum() < 20
    assert not np.isnan(client_figures(alone, x).values["ece"]).any()


def test_a_test_set_of_one_class_is_refused() -> None:
    of = problem()
    one = of.data._replace(
        train_x=of.x[:40].numpy().astype(np.float32), train_y=of.y[:40].numpy(),
        test_x=of.test_x[:5].numpy().astype(np.float32), test_y=np.full(5, 3), preprocessing=None,
    )  # fmt: skip
    with pytest.raises(UserError, match="metric auroc needs test samples of two classes or more"):
        Supervised(of.build, one, [np.arange(40)], metrics=(metric("auroc"),))
