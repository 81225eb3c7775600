"""An edge server's half: what is below it is asked what the root asks, and replies kept and added up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.sums import form_of_total
from fedconcord.method.contract import (
    PRELUDE,
    Phase,
    Plan,
    Tree,
    cohort_of,
    finite,
    sender_of,
    space_of,
    tree_sum,
)
from fedconcord.method.wrappers.forms import forms
from fedconcord.support.errors import UserError
from fedconcord_sites import mailbox
from fedconcord_sites.bundles import (
    END,
    KINDS,
    MASKED,
    PASS,
    TOTAL,
    Answer,
    Came,
    ask,
    bundle,
    number_like,
    total_of,
    unbundled,
)
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.form import Form, shell, source_of
from fedconcord_sites.policy import job_digest

DEEPEST = 16  # of what a site says: a bundle of such answers can be read by whoever is above
STAYS = {"orders": "reply", "train": "reply", "ask": "gradient"}  # question -> the answer whose tensors stay here


def _lengths(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In place of each tensor of a reply its length, [1] float64, or [] of a number; NaN if not all of it is finite."""
    numbers = {}
    for name, tensor in tensors.items():
        length = float(tensor.double().norm()) if bool(finite(tensor, 1)) else math.nan
        numbers[f"lengths/{name.partition('/')[2]}"] = number_like(tensor).fill_(length)
    return numbers


class Edge:
    """Answers the root, or the edge above it, for the sites and edges below it.

    Args:
        settings: the job's, as TOML text, which are the root's.
        exchange: with what is right below it.

    Raises:
        UserError: the settings are wrong.
    """

    def __init__(self, settings: str, exchange: Exchange) -> None:
        self.source, self.exchange = source_of(settings), exchange
        self._is_over = False  # the root said that the run is
        self._replies: dict[str, Frame] = {}  # of the last phase, by site
        self._jobs: dict[str, Job] = {}  # by the form of the sites' samples

    def attend(self, folder: Path) -> None:
        """Answer what comes into a mailbox until the root says that the run is over."""
        mailbox.attend(folder, self.answer, lambda: self._is_over)

    def answer(self, data: bytes) -> bytes:
        """The answer to a message of the root; one that is damaged or of another job is refused in it."""
        frame = Frame("unreadable", "", 0, 0)
        handlers = {PASS: self._pass, TOTAL: self._total, MASKED: self._masked, END: self._end}
        try:
            frame = codec.read(data)
            if frame.fields.get("job") != job_digest(self.source):
                raise FrameError("it has the app of another job; submit the root's to it")
            answer = handlers[frame.kind](frame)
        except (UserError, KeyError, TypeError, ValueError) as wrong:
            why = str(wrong) if isinstance(wrong, FrameError | UserError) else "its content cannot be used"
            answer = frame._replace(kind="refused", fields={"why": why}, tensors={})
        return codec.write(answer)

    def _pass(self, frame: Frame) -> Frame:
        questions = unbundled(frame)
        if any(one.kind in STAYS for one in questions.values()):
            self._replies = {}
        came, most = self._ask(frame, questions, unbundled), codec.whole(frame.fields["most"])
        frames = {site: self._upward(site, questions[site], data, most) for site, data in came.sites.items()}
        for answers in came.edges.values():
            frames |= answers
        fields, tensors = bundle(frames)
        return frame._replace(kind=KINDS[frame.kind], fields={**fields, "below": came.below}, tensors=tensors)

    def _ask(self, frame: Frame, questions: Mapping[str, Frame], read: Callable[[Frame], Answer]) -> Came[Answer]:
        """What comes of a message from above, in an exchange of as many seconds as it says."""
        head = {name: frame.fields[name] for name in ("job", "most")}
        return ask(self.exchange, questions, frame.round, head, float(frame.fields["wait"]), read)

    def _upward(self, site: str, question: Frame, data: bytes, most: int) -> Frame:
        """What goes up of a site's answer."""
        try:
            answer = codec.read(data, most, DEEPEST)
        except FrameError as wrong:
            return question._replace(kind="refused", fields={"why": f"its answer is {wrong}"}, tensors={})
        if answer.kind != STAYS.get(question.kind):
            return answer
        self._replies[site] = answer
        return answer._replace(tensors=_lengths(answer.tensors))

    def _total(self, frame: Frame) -> Frame:
        """The total of the replies that count, here and below; where one is not what it must be, which and why."""
        values: dict[str, Any] = {**frame.fields["plan"], **{k: leaf.numpy() for k, leaf in frame.tensors.items()}}
        plan, job = Plan(**values), self._job(frame.fields["form"], frame.fields["clients"])
        algorithm, space, messages = job.algorithm, space_of(job.problem), forms(job.algorithm, job.problem.init(0))
        name, like, phase = "up", messages.up, Phase(frame.fields["phase"], (), (), algorithm.contribute)
        if phase.number == PRELUDE:
            assert algorithm.phases.prelude is not None
            name, like, phase = "gradient", messages.x, phase._replace(contribute=algorithm.phases.prelude.contribute)
        cohort = cohort_of(space, plan)
        trees, came, wrong = self._named(frame, plan.round, name, like, form_of_total(phase, messages, cohort))
        if wrong:
            return frame._replace(fields={"wrong": wrong, "below": came.below}, tensors={})
        places = [k for k, i in enumerate(plan.ids.tolist()) if i in trees]
        shares = [phase.contribute(trees[int(plan.ids[k])], sender_of(space, plan, k), cohort) for k in places]
        return frame._replace(
            fields={"below": came.below}, tensors=codec.pack(TOTAL, tree_sum([*shares, *came.edges.values()]))
        )

    def _masked(self, frame: Frame) -> Frame:
        """The sum of the replies that count, which are under masks, modulo 2^32 or 2^64; or as `_total`."""
        length, bits = (codec.whole(one) for one in frame.fields["form"])
        like = torch.empty(length, dtype={32: torch.int32, 64: torch.int64}[bits], device="meta")
        trees, came, wrong = self._named(frame, codec.whole(frame.fields["round"]), "covered", like, like)
        if wrong:
            return frame._replace(fields={"wrong": wrong, "below": came.below}, tensors={})
        if not (summands := [*trees.values(), *came.edges.values()]):
            raise FrameError("it names no reply")
        total = torch.stack(summands).sum(0, dtype=like.dtype)
        return frame._replace(fields={"below": came.below}, tensors=codec.pack(TOTAL, total))

    def _named(
        self, frame: Frame, round: int, name: str, like: Tree, form: Tree
    ) -> tuple[dict[int, Any], Came[Any], dict[str, str | None]]:
        """Of the replies that a message names those that are here, by client, and the totals, of this form, of edges
        below; and why others are not there: by site the reason that is the site's, or none, and by edge none."""
        marks = frame.fields["replies"]
        edges = {edge: below for edge, below in sorted(marks.items()) if isinstance(below, Mapping)}
        questions = {edge: frame._replace(fields={**frame.fields, "replies": below}) for edge, below in edges.items()}
        came = self._ask(frame, questions, partial(total_of, form=form, device=torch.device("cpu")))
        trees, wrong = dict[int, Any](), dict[str, str | None]()
        for edge in edges:
            total = came.edges.get(edge, {})
            wrong |= (total or {edge: None}) if isinstance(total, Mapping) else {}
        for site, (client, mark) in ((site, mark) for site, mark in marks.items() if site not in edges):
            reply = self._replies.get(site, frame._replace(round=-1))
            if (reply.method, reply.round, reply.fields.get("fingerprint", 0)) != (frame.method, round, mark):
                wrong[site] = None  # the edge was started anew in between, and the site is not to blame
                continue
            try:
                trees[client] = codec.unpack(name, reply, like, torch.device("cpu"))
            except FrameError as why:
                wrong[site] = str(why)
        return trees, came, wrong

    def _end(self, frame: Frame) -> Frame:
        self._is_over = True
        return self._pass(frame)

    def _job(self, form: Mapping[str, Any], clients: int) -> Job:
        key = json.dumps([form, clients])
        if key not in self._jobs:
            self._jobs = {key: shell(self.source, Form(**form), clients)[1]}
        return self._jobs[key]
