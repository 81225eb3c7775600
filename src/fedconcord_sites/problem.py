"""The server's problem: how many samples each site has, and sums in place of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from fedconcord.execution.job import Job, has_own_models
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import FrameError
from fedconcord.execution.messages.server import NOT_FINITE
from fedconcord.federation.layers import Measured
from fedconcord.federation.objectives import Regularised
from fedconcord.federation.objectives.evaluation import Scores
from fedconcord.method.contract import Objective, Parts, UnmeasuredError, roster_of, tree_sum
from fedconcord.study.runs.events import Event
from fedconcord.support.errors import UserError
from fedconcord_sites.form import model_of
from fedconcord_sites.judging import Figures, Sent, check, form_of, forms_of_layers, of_site, pooled, statistics_of
from fedconcord_sites.site_link import SiteLink

if TYPE_CHECKING:
    from fedconcord.execution.messages.store import RemoteStore
    from fedconcord_sites.jury import Jury

Whom = Mapping[int, Mapping[str, Any]]
TRIES = 3  # exchanges of an evaluation until somebody answers


class Deployed:
    """f_i and all its samples are at site i; a model is judged there, and by sums.

    Args:
        job: of samples that are not there; its model, loss and metrics.
        samples: [N, 2] trained on and tested on, at each site.
        counts: [N, 2] how much they count, where it is their tokens.

    Attributes:
        jury: asks for figures where only their sum is to be seen; none is known by site then.
        is_judged: whether sites send figures.
        store: what the server keeps between rounds.
        at: the last model [d] whose layers have statistics of the sites' samples.
    """

    jury: Jury | None = None
    is_judged = True
    at: Tensor | None = None
    store: RemoteStore | None = None

    def __init__(
        self,
        job: Job,
        samples: Sequence[Sequence[int]],
        link: SiteLink,
        counts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.problem = job.problem.smooth if isinstance(job.problem, Regularised) else job.problem
        self.shell, self.has_own, self.link = model_of(job), has_own_models(job), link
        self.samples = np.array(samples, np.int64)
        self.counts = self.samples if counts is None else np.array(counts, np.int64)
        offsets = np.concatenate([[0], np.cumsum(self.samples[:, 0])]).astype(np.int64)
        self.objective = _nowhere(self.problem.objective, offsets)
        self.roster = roster_of(offsets, self.counts[:, 0].astype(np.float64))
        self.evaluator = self
        self.last: dict[int, Figures] = {}  # of the last evaluation, by site

    def init(self, seed: int) -> Tensor:
        """The starting point x^0 [d]."""
        return self.problem.init(seed)

    def export(self, x: Tensor) -> Mapping[str, Tensor]:
        """The model x [d] as named tensors; a private part is that which all sites began with. With layers that
        normalise by sites' samples it is the model that was judged last, with its statistics."""
        if self.shell.replaced.normalises:
            try:
                _ = self.at is not None or self._measured(x)  # of a run that was over
            except UnmeasuredError:
                return self.shell.layout.views(x)  # without statistics, and so nothing that can be loaded
            x = x if self.at is None else self.at
        return self.problem.evaluator.export(x)

    def evaluate(self, x: Tensor) -> dict[str, float]:
        """`test_<metric>`, `test_loss` and `train_loss` over all samples of the sites that answer; NaN where the model
        is not finite, or no site has finite figures of it; none where sites send none. Where sites have models of their
        own, each judges its own that goes with x; those that have none are left out once another has one.

        Raises:
            UserError: no site answers.
            UnmeasuredError: too few answer for a sum, or none that has a model of its own, or no idle one while others
                are at work.
        """
        self.last = {}
        if not self.is_judged:
            return {}
        measured = self._measured(x) if bool(torch.isfinite(x).all()) else None
        total = None if measured is None else self._sum(_model(x, measured), form_of(self.shell), self.counts[:, ::-1])
        if total is None:
            names = [f"test_{metric.name}" for metric in self.shell.metrics]
            return dict.fromkeys([*names, "test_loss", "train_loss"], math.nan)
        return pooled(self.shell, total)

    def _measured(self, x: Tensor) -> dict[str, Measured] | None:
        """What the layers of the model x [d] normalise by, over the training samples of the sites that answer: an
        exchange a layer, as each gets what those before it make; None where no site has finite sums.

        Raises:
            As `evaluate`.
        """
        measured: dict[str, Measured] = {}
        for k, (name, form) in enumerate(forms_of_layers(self.shell).items()):
            total = self._sum(_model(x, measured), form, self.samples[:, :1] * form.counts.numpy(), k)
            if total is None:
                return None
            measured[name] = statistics_of(self.shell, total)
        if measured:
            self.at = x.clone()
            self.shell.forward.take(x, self.shell.x, self.shell.replaced, measured)
        return measured

    def _sum(
        self, model: Mapping[str, Tensor], like: Sent, counts: np.ndarray, layer: int | None = None
    ) -> Sent | None:
        """What sums of this form come to over the sites that answer; None where no site has finite ones.

        Args:
            counts: that each site's have.
            layer: whose sums they are; None: figures.

        Raises:
            As `evaluate`.
        """
        for _ in range(TRIES):
            whom = {i: one if layer is None else {**one, "layer": layer} for i, one in self._whom().items()}
            if self.jury is None:
                total = self._apart(whom, model, like, counts)
            else:
                total = self._together(self.jury, whom, model, like, counts)
            if not isinstance(total, str):
                return total
            if total == NOT_FINITE:
                return None
            if total:
                self.link.see(Event("void", f"the model was not judged: {total}"))
                raise UnmeasuredError
        raise UserError(
            f"no site judged the model within {TRIES} times {self.link.wait:g} s; go on with the run (resume) when "
            "sites are there again"
        )

    def _whom(self) -> dict[int, dict[str, Any]]:
        """The sites that are asked, and what each is told beside the model: its last reply that counted, where its own
        model is what came of it."""
        if not self.has_own or self.store is None:
            return {i: {} for i in self._sites}
        last = self.store.ledger.counted
        return {i: {"counted": last.get(i)} for i in self._sites if i in last or not last}

    @property
    def _sites(self) -> list[int]:
        """Who is not left out."""
        return [i for i in range(self.roster.n) if self.link.records[i].left_out is None]

    def _apart(self, whom: Whom, model: Mapping[str, Tensor], like: Sent, counts: np.ndarray) -> Sent | str:
        """The sum of what each site says, or why there is none; nothing where it may be asked again."""
        link = self.link
        answers: dict[int, Any] = {}
        missing = [i for i in whom if i not in link.busy] or [*whom]  # nobody waits for who is at work
        for i, frame in link.frames("judge", "judged", {i: whom[i] for i in missing}, model).items():
            try:
                one: Sent = codec.unpack("figures", frame, like, torch.device("cpu"))
                if one.counts.tolist() != counts[i].tolist():
                    raise FrameError("figures of another number of samples")
                check(self.shell, one)
            except FrameError as wrong:
                link.refuse(i, str(wrong), "judge")
            else:
                link.accept(i, "judge")
                answers[i] = one
        if answers:
            self.last = answers if isinstance(like, Figures) else {}
            return cast(Sent, tree_sum([*answers.values()]))
        if missing and all(link.why.get(i) == NOT_FINITE for i in missing):
            return NOT_FINITE
        if link.busy:  # the others are at work, and updates go on without who does not answer
            return "no idle site answered"
        return "no site with a model of its own answered" if len(whom) < len(self._sites) else ""

    def _together(
        self, jury: Jury, whom: Whom, model: Mapping[str, Tensor], like: Sent, counts: np.ndarray
    ) -> Sent | str:
        """As `_apart`, where sites' figures are seen in sum alone."""
        link = self.link
        answer = jury.ask(link.later(), whom, model, like)
        if not isinstance(answer, str):
            ids, total = answer
            try:
                if total.counts.tolist() != counts[ids].sum(0).tolist():
                    raise FrameError("the sum of the sites' figures is not of their samples")
                check(self.shell, total)
                return total
            except FrameError as wrong:
                answer = str(wrong)
        there = [i for i in whom if link.records[i].there]
        if there and all(NOT_FINITE in link.why.get(i, "") for i in there):
            return NOT_FINITE
        return answer if there or len(whom) < len(self._sites) else ""

    def scores(self) -> Scores:
        """Every site's figures in the last evaluation; NaN for one that sent none."""
        each = [of_site(self.shell, self.last[i]) if i in self.last else None for i in range(self.roster.n)]
        names = ["loss", *(metric.name for metric in self.shell.metrics)]
        values = {name: np.array([math.nan if one is None else one[name] for one in each]) for name in names}
        last = {} if not self.last else pooled(self.shell, tree_sum([*self.last.values()]))
        main = names[1] if len(names) > 1 else "loss"
        overall = {name: last[f"test_{name}"] for name in names[1:] if name != main and f"test_{name}" in last}
        return Scores("test", self.samples[:, 1], values, overall)


def _model(x: Tensor, measured: Mapping[str, Measured]) -> dict[str, Tensor]:
    """What a site is sent of a model, with what its layers normalise by as far as that is known."""
    return codec.pack("x", x) | codec.pack("x/statistics", tuple(measured.values()))


def _nowhere(objective: Objective, offsets: np.ndarray) -> Objective:
    """The form of the sites' objectives without a sample: whatever asks one fails."""

    def absent(name: str) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            raise AssertionError(f"the server has no samples, and was asked for {name}")

        return ask

    parts = objective.private
    assert parts is None or isinstance(parts, Parts)
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
        private=parts and parts._replace(both=_nowhere(parts.both, offsets)),
    )
