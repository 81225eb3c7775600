"""The server's problem: how many samples each site has, and sums in place of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import FrameError
from fedconcord.execution.messages.server import NOT_FINITE
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.method.contract import Objective, UnmeasuredError, roster_of, tree_sum
from fedconcord.study.runs.events import Event
from fedconcord.support.errors import UserError
from fedconcord_sites.judging import Figures, form_of, of_site, pooled
from fedconcord_sites.site_link import SiteLink

if TYPE_CHECKING:
    from fedconcord_sites.jury import Jury

TRIES = 3  # exchanges of an evaluation until somebody answers


class Deployed:
    """f_i and all its samples are at site i; a model is judged there, and by sums.

    Args:
        shell: the model, the loss and the metrics.
        samples: [N, 2] trained on and tested on, at each site.
        counts: [N, 2] how much they count, where it is their tokens.

    Attributes:
        jury: asks for figures where only their sum is to be seen; none is known by site then.
        is_judged: whether sites send figures.
    """

    jury: Jury | None = None
    is_judged = True

    def __init__(
        self,
        shell: Supervised,
        samples: Sequence[Sequence[int]],
        link: SiteLink,
        counts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.shell, self.link = shell, link
        self.samples = np.array(samples, np.int64)
        self.counts = self.samples if counts is None else np.array(counts, np.int64)
        offsets = np.concatenate([[0], np.cumsum(self.samples[:, 0])]).astype(np.int64)
        self.objective = _nowhere(shell.objective, offsets)
        self.roster = roster_of(offsets, self.counts[:, 0].astype(np.float64))
        self.evaluator = self
        self.last: dict[int, Figures] = {}  # of the last evaluation, by site

    def init(self, seed: int) -> Tensor:
        """The starting point x^0 [d]."""
        return self.shell.init(seed)

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        """The model x [d] as named tensors."""
        return self.shell.export(x)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`test_<metric>`, `test_loss` and `train_loss` over all samples of the sites that answer; NaN where the model
        is not finite, or no site has finite figures of it; none where sites send none.

        Raises:
            UserError: no site answers.
            UnmeasuredError: too few answer for a sum, or no idle one while others are at work.
        """
        self.last = {}
        like, model = form_of(self.shell), codec.pack("x", x)
        if not bool(torch.isfinite(x).all()):
            return self._nothing()
        if not self.is_judged:
            return {}
        for _ in range(TRIES):
            if self.jury is not None:
                total = self._total(self.jury, model, like)
                if total is not None:
                    return total
                continue
            missing = [i for i in range(self.roster.n) if i not in self.last and self.link.records[i].left_out is None]
            missing = [i for i in missing if i not in self.link.busy] or missing  # nobody waits for who is at work
            none: dict[int, dict[str, Any]] = {i: {} for i in missing}
            for i, frame in self.link.frames("judge", "judged", none, model).items():
                try:
                    one: Figures = codec.unpack("figures", frame, like, torch.device("cpu"))
                    if one.counts.tolist() != self.counts[i, ::-1].tolist():
                        raise FrameError("figures of another number of samples")
                except FrameError as wrong:
                    self.link.refuse(i, str(wrong), "judge")
                else:
                    self.link.accept(i, "judge")
                    self.last[i] = one
            if self.last:
                return pooled(self.shell, tree_sum([*self.last.values()]))
            if missing and all(self.link.why.get(i) == NOT_FINITE for i in missing):
                return self._nothing()
            if self.link.busy:  # the others are at work, and updates go on without who does not answer
                self.link.see(Event("void", "the model was not judged: no idle site answered"))
                raise UnmeasuredError
        raise UserError(
            f"no site judged the model within {TRIES} times {self.link.wait:g} s; go on with the run (resume) when "
            "sites are there again"
        )

    def _total(self, jury: Jury, model: Mapping[str, Tensor], like: Figures) -> dict[str, float] | None:
        """What `evaluate` returns or raises where sites' figures are seen in sum alone; None where nobody answered."""
        link = self.link
        sites = [i for i in range(self.roster.n) if link.records[i].left_out is None]
        answer = jury.ask(link.later(), sites, model, like)
        if not isinstance(answer, str):
            ids, total = answer
            if total.counts.tolist() == self.counts[ids, ::-1].sum(0).tolist():
                return pooled(self.shell, total)
            answer = "the sum of the sites' figures is not of their samples"
        there = [i for i in sites if link.records[i].there]
        if there and all(NOT_FINITE in link.why.get(i, "") for i in there):
            return self._nothing()
        if not there:
            return None
        link.see(Event("void", f"the model was not judged: {answer}"))
        raise UnmeasuredError

    def scores(self) -> Scores:
        """Every site's figures in the last evaluation; NaN for one that sent none."""
        each = [of_site(self.shell, self.last[i]) if i in self.last else None for i in range(self.roster.n)]
        names = ["loss", *(metric.name for metric in self.shell.metrics)]
        values = {name: np.array([math.nan if one is None else one[name] for one in each]) for name in names}
        last = {} if not self.last else pooled(self.shell, tree_sum([*self.last.values()]))
        main = names[1] if len(names) > 1 else "loss"
        overall = {name: last[f"test_{name}"] for name in names[1:] if name != main and f"test_{name}" in last}
        return Scores("test", self.samples[:, 1], values, overall)

    def _nothing(self) -> dict[str, float]:
        names = [f"test_{metric.name}" for metric in self.shell.metrics]
        return dict.fromkeys([*names, "test_loss", "train_loss"], math.nan)


def _nowhere(objective: Objective, offsets: np.ndarray) -> Objective:
    """The form of the sites' objectives without a sample: whatever asks one fails."""

    def absent(name: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            raise AssertionError(f"the server has no samples, and was asked for {name}")

        return ask

    return replace(
        objective,
        offsets=offsets,
        gradient=absent("a gradient"),
        gradients=absent("gradients"),
        loss=lambda x, samples: x.new_zeros(()),  # of a plan that is looked at before round 0: no site is asked then
        each=None,
        alone=absent("a client"),
        hessian=objective.hessian,  # of the shell's zeros: whether it has one that fits is looked at before round 0
        accumulate=None,
        network=None,
    )
