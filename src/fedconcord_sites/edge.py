"""An edge server's half: sites are asked what the root asks, and their replies kept and added up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedconcord.execution.job import Job
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.method.contract import (
    PRELUDE,
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
from fedconcord_sites.edges import END, MASKED, TOTAL, bundle, number_like, unbundled
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.form import Form, shell, source_of
from fedconcord_sites.policy import job_digest

STAYS = {"orders": "reply", "train": "reply", "ask": "gradient"}  # question -> the answer whose tensors stay here


def _lengths(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In place of each tensor of a reply its length, [1] float64, or [] of a number; NaN if not all of it is finite."""
    numbers = {}
    for name, tensor in tensors.items():
        length = float(tensor.double().norm()) if bool(finite(tensor, 1)) else math.nan
        numbers[f"lengths/{name.partition('/')[2]}"] = number_like(tensor).fill_(length)
    return numbers


class Edge:
    """Answers the root for the sites below it.

    Args:
        settings: the job's, as TOML text, which are the root's.
        exchange: with its sites.

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
        handlers = {"pass": self._pass, TOTAL: self._total, MASKED: self._masked, END: self._end}
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
        messages = {site: codec.write(one) for site, one in questions.items()}
        answers = self.exchange(messages, float(frame.fields["wait"]))
        most = codec.whole(frame.fields["most"])
        frames = {s: self._upward(s, one, answers[s], most) for s, one in questions.items() if s in answers}
        fields, tensors = bundle(frames)
        return frame._replace(kind="passed", fields=fields, tensors=tensors)

    def _upward(self, site: str, question: Frame, data: bytes, most: int) -> Frame:
        """What goes up of a site's answer."""
        try:
            answer = codec.read(data, most)
        except FrameError as wrong:
            return question._replace(kind="refused", fields={"why": f"its answer is {wrong}"}, tensors={})
        if answer.kind != STAYS.get(question.kind):
            return answer
        self._replies[site] = answer
        return answer._replace(tensors=_lengths(answer.tensors))

    def _total(self, frame: Frame) -> Frame:
        """The total of the replies that count; where one of them is not what it must be, which and why."""
        values: dict[str, Any] = {**frame.fields["plan"], **{k: leaf.numpy() for k, leaf in frame.tensors.items()}}
        plan, job = Plan(**values), self._job(frame.fields["form"], frame.fields["clients"])
        algorithm, space, messages = job.algorithm, space_of(job.problem), forms(job.algorithm, job.problem.init(0))
        name, like, contribute = "up", messages.up, algorithm.contribute
        if frame.fields["phase"] == PRELUDE:
            assert algorithm.phases.prelude is not None
            name, like, contribute = "gradient", messages.x, algorithm.phases.prelude.contribute
        trees, wrong = self._named(frame, plan.round, name, like)
        if wrong:
            return frame._replace(fields={"wrong": wrong}, tensors={})
        places = [k for k, i in enumerate(plan.ids.tolist()) if i in trees]
        cohort = cohort_of(space, plan)
        total = tree_sum(contribute(trees[int(plan.ids[k])], sender_of(space, plan, k), cohort) for k in places)
        return frame._replace(fields={}, tensors=codec.pack(TOTAL, total))

    def _masked(self, frame: Frame) -> Frame:
        """The sum of the replies that count, which are under masks, modulo 2^32 or 2^64; or as `_total`."""
        length, bits = (codec.whole(one) for one in frame.fields["form"])
        like = torch.empty(length, dtype={32: torch.int32, 64: torch.int64}[bits], device="meta")
        trees, wrong = self._named(frame, codec.whole(frame.fields["round"]), "covered", like)
        if wrong:
            return frame._replace(fields={"wrong": wrong}, tensors={})
        if not trees:
            raise FrameError("it names no reply")
        total = torch.stack([*trees.values()]).sum(0, dtype=like.dtype)
        return frame._replace(fields={}, tensors=codec.pack(TOTAL, total))

    def _named(self, frame: Frame, round: int, name: str, like: Tree) -> tuple[dict[int, Any], dict[str, str | None]]:
        """Of the replies that a message names those that are here, by client; and why others are not, by site: the
        reason that is the site's, or none."""
        trees, wrong = dict[int, Any](), dict[str, str | None]()
        for site, (client, mark) in frame.fields["replies"].items():
            reply = self._replies.get(site, frame._replace(round=-1))
            if (reply.method, reply.round, reply.fields.get("fingerprint", 0)) != (frame.method, round, mark):
                wrong[site] = None  # the edge was started anew in between, and the site is not to blame
                continue
            try:
                trees[client] = codec.unpack(name, reply, like, torch.device("cpu"))
            except FrameError as why:
                wrong[site] = str(why)
        return trees, wrong

    def _end(self, frame: Frame) -> Frame:
        self._is_over = True
        return frame._replace(fields={})

    def _job(self, form: Mapping[str, Any], clients: int) -> Job:
        key = json.dumps([form, clients])
        if key not in self._jobs:
            self._jobs = {key: shell(self.source, Form(**form), clients)[1]}
        return self._jobs[key]
