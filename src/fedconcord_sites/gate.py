"""What a site refuses before it computes anything: every message passes here, and every answer on its way out.

A question is answered once. Asked again in the same words, it is answered again, which tells nothing new: a server
that was killed does so. The ledger remembers across restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedconcord.execution.job.accountant import Budget
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.terms import STEPS
from fedconcord.federation.data import federated
from fedconcord.federation.data.federated import Agreement, ColumnKind, SiteFile, SiteSums
from fedconcord.federation.data.inputs import Input, is_file
from fedconcord.federation.data.preprocess import Sums
from fedconcord.study.settings.parts import part
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source
from fedconcord_sites import bounds, policy
from fedconcord_sites.form import is_private
from fedconcord_sites.ledger import Ledger, Line, epsilon_of
from fedconcord_sites.policy import Policy

HANDSHAKE = ("hello", "sums", "squares", "setup")
ROUNDS = ("orders", "ask", "train", "prologue", "join", "settle", "keys", "deal", "agree", "open")
PREFIX = "judge-"  # of the messages of a sum of figures, beside that which says what is judged
JUDGING = ("judge", *(f"{PREFIX}{step}" for step in STEPS))
KINDS = {*HANDSHAKE, *ROUNDS, *JUDGING, "loss"}  # of all messages
SPARE = 3  # times that a question of a run may come in other words, as of a server that was killed and resumed
NOISES = ("orders", "train")  # whose answers spend privacy
EMPTY: ColumnKind = "empty"  # of a column that may be taken for either
REFUSALS = 1000  # a day that are written down


class Gate:
    """What passes at one site.

    Args:
        source: the job's settings, as the site has them.
        data: the site's file; None where the job names data.
        rules: the site's policy.
        server: its address, where it is known.
    """

    def __init__(self, source: Source, data: Path | None, ledger: Ledger, rules: Policy, server: str) -> None:
        self.source, self.data, self.ledger, self.rules, self.server = source, data, ledger, rules, server
        self.job = policy.job_digest(source)
        self._file: str | None = None
        self._allowed = False  # what depends on nothing but the job

    @property
    def file(self) -> str:
        """The SHA-256 of the site's file."""
        if self._file is None:
            if self.data is None:
                words = f"{self.source.values.get('data')}, which the job names"
                self._file = hashlib.sha256(words.encode()).hexdigest()
            else:
                with self.data.open("rb") as file:
                    self._file = hashlib.file_digest(file, "sha256").hexdigest()
        return self._file

    # -- before anything is computed -------------------------------------------------------------------------------

    def admit(self, frame: Frame, data: bytes, settings: Input) -> None:
        """Let a message in.

        Args:
            data: its bytes.
            settings: how the job reads the site's file.

        Raises:
            FrameError: it is refused, in a sentence.
            UserError: the ledger or the file cannot be read.
        """
        if frame.kind not in KINDS:
            _refuse("it is of a kind that no server sends")
        bounds.check(frame)
        lines = self.ledger.lines()
        if not self._allowed:
            _refuse(self.rules.refuses(self.source))
            if self.rules.columns != "any" or self.rules.never:
                place = str(self.source.values.get("data") or "")
                if self.data is not None:
                    _refuse(self.rules.refuses_columns(federated.names_read(self.data, settings)))
                elif is_file(place):  # other data by name have no columns
                    _refuse(
                        f"the site's policy says which columns may be read, and the job names {place} itself; start "
                        "the site with its file (--data)"
                    )
            self._allowed = True
        if frame.kind in ("sums", "squares") and is_private(self.source):
            _refuse("sums of samples are not covered by privacy.clip, and its job has that")
        if frame.kind in HANDSHAKE:
            self._handshake(frame, lines)
        elif frame.kind == "loss":
            if not part("sampling", self.source.values.get("sampling", "uniform")).by_loss:
                _refuse("it asks for the loss of a model, and the job's sampling needs none")
            self._models(frame, policy.rounds(self.source) + SPARE, "told the loss of")
        elif frame.kind in ROUNDS:
            self._round(frame, data, lines)

    def _handshake(self, frame: Frame, lines: Sequence[Line]) -> None:
        mine = [line for line in lines if (line["job"], line["file"]) == (self.job, self.file) and "why" not in line]
        number, target, group = self._number(frame), _target(frame), _group(frame)
        for line in mine:
            if number is not None and line.get("number", number) != number:
                _refuse(
                    f"the site is number {line['number']} of this job by its ledger, and {number} now, which would "
                    "hold out other rows; name the sites in the order that they had"
                )
            if target is not None and line.get("target", target) != target:
                _refuse(f"its targets were sums of {line['target']} targets before, and would be of {target} ones now")
            if group is not None and line.get("group", group) != group:
                _refuse(
                    f"its secure sums of this job were with {line['group']} by its ledger, and would be with {group} "
                    "now, so that their difference is of few sites; name edge servers as they were, or give the job "
                    "another seed"
                )
        if frame.kind != "setup" or not frame.fields["begins"]:
            return
        runs, today = {line["run"] for line in mine if line.get("begins")}, _today(lines)
        if frame.method in runs:
            return
        if len(runs) >= self.rules.runs:
            _refuse(f"this job was begun {len(runs)} times here, and the site's policy allows {self.rules.runs} (runs)")
        if len({line["run"] for line in today if line.get("begins")}) >= self.rules.runs_a_day:
            _refuse(f"the site's policy allows {self.rules.runs_a_day} runs a day (runs_a_day); ask again tomorrow")

    def _round(self, frame: Frame, data: bytes, lines: Sequence[Line]) -> None:
        most = policy.rounds(self.source)
        if frame.round >= most:
            _refuse(f"round {frame.round} is none of the job's, which has {most}")
        asked_of = [
            line for line in self._of_run(lines, frame) if (line["kind"], line["round"]) == (frame.kind, frame.round)
        ]
        questions = {line["question"] for line in asked_of if line.get("part") == frame.fields.get("part")}
        if _question(frame, data) not in questions and len(questions) > SPARE:
            _refuse(f"it has answered {frame.kind} of round {frame.round} {len(questions)} times, each in other words")
        rounds_today = {(line["run"], line["round"]) for line in _today(lines) if line["kind"] in ROUNDS}
        if (frame.method, frame.round) not in rounds_today and len(rounds_today) >= self.rules.rounds_a_day:
            _refuse(f"the site's policy allows {self.rules.rounds_a_day} rounds a day (rounds_a_day)")

    def _number(self, frame: Frame) -> str | None:
        """Which rows are held out, or which part of named data this is; None where the answer depends on neither."""
        if self.data is None:
            return f"{frame.client} of {frame.fields['clients']}"
        return None if frame.kind == "hello" else str(frame.client)

    def _of_run(self, lines: Sequence[Line], frame: Frame) -> Iterable[Line]:
        return (line for line in lines if line["run"] == frame.method and "why" not in line)

    # -- of what the site knows once it has made the job -----------------------------------------------------------

    def admit_job(self, config: Config, metrics: Sequence[str], samples: Sequence[int]) -> None:
        """Let the resolved job in; as `admit`."""
        _refuse(self.rules.refuses_job(config, metrics, samples))

    def admit_model(self, frame: Frame, models: int, layers: int) -> None:
        """Let a model in that is to be judged, of a method that offers so many, each with sums for the statistics of so
        many layers before; as `admit`."""
        layer = frame.fields.get("layer")
        if layer is not None and not codec.whole(layer) < layers:
            _refuse(f"it asks what layer {layer} gets, and {layers} layers normalise by statistics of all sites")
        most = models * (policy.evaluations(self.source) + SPARE) * (1 if frame.kind == "judge" else 1 + layers)
        self._models(frame, most, "judged" if layer is None else f"told what layer {layer} gets of")

    def _models(self, frame: Frame, most: int, what: str) -> None:
        lines, layer = self._of_run(self.ledger.lines(), frame), frame.fields.get("layer")
        questions = {line["question"] for line in lines if (line["kind"], line.get("layer")) == (frame.kind, layer)}
        if _question(frame, b"") not in questions and len(questions) >= most:
            _refuse(f"it has {what} {most} models in this run, and its job has no more to ask of")

    def afford(self, run: str, budget: Budget | None, rounds: int) -> None:
        """Whether so many rounds of a run are within what the file may spend over all runs; as `admit`."""
        limit = self.rules.lifetime_epsilon
        if limit == "none" or budget is None:
            return
        others, here = self.spent(run), budget.spending.epsilon(rounds)
        if others + here > limit * (1 + 1e-9):
            _refuse(
                f"{rounds} round{'s' * (rounds != 1)} spend epsilon {here:.4g}, and earlier runs have spent "
                f"{others:.4g} of the {limit:g} that the site's policy allows of its file (lifetime_epsilon)"
            )

    def spent(self, besides: str = "") -> float:
        """Epsilon of all runs of the file, known by its content or its place, but of one."""
        place = str(self.data)
        return epsilon_of(
            line
            for line in self.ledger.lines()
            if line["run"] != besides and (line["file"] == self.file or line["path"] == place)
        )

    def admit_columns(self, file: SiteFile, digits: Sequence[str], words: Sequence[str], settings: Input) -> None:
        """Let a question for sums in that is the one which follows from the site's own columns; as `admit`."""
        texts = {name for name, kind in file.columns.items() if kind == "text" or name in settings.categories}
        numbers = {name for name, kind in file.columns.items() if kind == "number"} - texts
        names = set() if file.source is None else {*file.source.names}
        if ({*digits} | {*words}) & names - {*file.columns}:
            _refuse("it asks for columns that the site's job does not learn from")
        wrong = (numbers & {*words}) or (texts & {*digits})
        if wrong:
            _refuse(f"it asks for column {min(wrong)!r} as {'texts' if wrong & numbers else 'numbers'}")
        if len({*digits, *words}) != len(digits) + len(words):
            _refuse("it asks for a column twice")

    def admit_inputs(self, file: SiteFile, agreement: Agreement, settings: Input) -> None:
        """Let inputs in that are made of columns which the site's job reads, numbers of numbers and texts of texts, but
        where public statistics say what is which; as `admit`."""
        digits = [one.name for one in agreement.columns if one.kind == "number"]
        words = [one.name for one in agreement.columns if one.kind == "category"]
        if settings.statistics is not None:
            file, settings = file._replace(columns=dict.fromkeys(file.columns, EMPTY)), settings._replace(categories=())
        self.admit_columns(file, digits, words, settings)

    def release(self, totals: SiteSums, digits: Sequence[str]) -> None:
        """Let sums out; as `admit`."""
        for sums, names in ((totals.columns, digits), (totals.target, ["the label"])):
            _refuse(_few(sums, names, self.rules.least_rows))

    # -- on the way out --------------------------------------------------------------------------------------------

    def record(self, frame: Frame, data: bytes, answer: bytes, budget: Budget | None) -> None:
        """Put an answer into the ledger, before it leaves."""
        reply = codec.read(answer)
        line: dict[str, Any] = {"run": words(frame.method, 32), "round": frame.round, "kind": words(frame.kind, 32)}
        line |= {"answer": reply.kind, "job": self.job, "file": self.file, "path": str(self.data)}
        line |= {"server": self.server, "bytes": len(answer)}
        if reply.kind == "refused":
            if sum("why" in one for one in _today(self.ledger.lines())) < REFUSALS:
                self.ledger.append({**line, "why": str(reply.fields["why"])})
            return
        line["question"] = _question(frame, data)
        line["tensors"] = [f"{name}{list(leaf.shape)}" for name, leaf in reply.tensors.items()]
        if reply.fields.get("texts"):
            line["texts"] = {name: len(texts) for name, texts in reply.fields["texts"].items()}
        facts = {"part": frame.fields.get("part"), "layer": frame.fields.get("layer"), "target": _target(frame)}
        if frame.kind in HANDSHAKE:
            facts["number"] = self._number(frame)
            facts["group"] = _group(frame)
            facts["begins"] = (frame.kind == "setup" and frame.fields["begins"]) or None
        line |= {name: value for name, value in facts.items() if value is not None}
        if budget is not None and frame.kind in NOISES:
            line["epsilon"] = budget.spending.epsilon(frame.round + 1)
        self.ledger.append(line)


def words(text: str, most: int) -> str:
    """A server's words as they are written down and printed: so many characters at most, and none that is no text."""
    return "".join(one if one.isprintable() else "?" for one in text[:most])


def _refuse(why: str | None) -> None:
    """Stop where there is a reason.

    Raises:
        FrameError: with it.
    """
    if why is not None:
        raise FrameError(why)


def _question(frame: Frame, data: bytes) -> str:
    """What stands for a question: of a model that is judged, the model alone, and under masks each time anew."""
    if frame.kind not in ("loss", *JUDGING):
        return hashlib.sha256(data).hexdigest()[:32]
    number = 0 if frame.kind in ("judge", "loss") else frame.round
    reply = {name: frame.fields[name] for name in ("counted",) if name in frame.fields}  # of which own model it is
    return hashlib.sha256(codec.write(Frame("", "", number, 0, reply, frame.tensors))).hexdigest()[:32]


def _target(frame: Frame) -> str | None:
    """The kind of targets that are summed."""
    return str(frame.fields["told"]["target"]) if frame.kind in ("sums", "squares") else None


def _group(frame: Frame) -> str | None:
    """The sites of this one's secure sums, where these are made below edge servers."""
    homes = frame.fields.get("homes")
    if homes is None:
        return None
    sites = zip(frame.fields["sites"], homes, strict=True)
    return ", ".join(str(site) for site, home in sites if home == homes[frame.client])


def _today(lines: Sequence[Line]) -> list[Line]:
    day = datetime.now(UTC).date().isoformat()
    return [line for line in lines if str(line["time"]).startswith(day)]


def _few(sums: Sums, names: Sequence[str], least: int) -> str | None:
    """Why these sums may not leave, or None."""
    for name, count in zip(names, sums.known[0].tolist(), strict=False):
        if 0 < count < least:
            return (
                f"{name!r} has a value in {count:.0f} training row{'s' * (count != 1)}, and no sum over fewer than "
                f"{least} leaves the site (least_rows of its policy); leave the column out with input.ignore={name}"
            )
    return None
