"""A site: its data, its client's rows, and answers to a server's messages.

Nothing but bytes comes in and goes out; what a site holds between two messages lies in its folder, so that each may be
answered by a new process. Every message passes the site's gate before anything is computed (`gate`). In the folder is
ledger.txt, a line an answer: what was asked and what left the site; and a folder a run:

setup.frame        what the server said before round 0: the site's number, columns, means, scales, classes
ready.json         what the site made of it: the job in words, and how many samples it has
row.safetensors    the client's rows, its private part of the model among them; never sent
own                its own model, where it has one: a folder that `predict` takes; never sent
secrets.json       keys, seeds and shares of a secure sum, until it is opened; judging.json of one of figures
once.frame         the last message with noise of the site's own, which is sent again and not made again
asked.frame        the first of two messages of a round, for methods with two (MimeSVRG)
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import fedconcord
from fedconcord.execution.job import Job, has_own_models, population_of
from fedconcord.execution.job.job import template
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.client import RemoteClient
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.federation.data import federated
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.federated import Means, Samples, SiteFile, SiteSums
from fedconcord.federation.data.preprocess import mean_of
from fedconcord.federation.objectives.card import card
from fedconcord.federation.objectives.evaluation import Resident
from fedconcord.federation.objectives.fits import check_fit, check_samples
from fedconcord.federation.objectives.parts import PrivateParts
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Roster, Weights, space_of
from fedconcord.method.contract.rng import SYSTEM, Chance
from fedconcord.method.wrappers.forms import forms
from fedconcord.study.settings.problem import divided
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.settings import DEFAULT_MODEL, Config
from fedconcord.support import files
from fedconcord.support.errors import UserError, sentence
from fedconcord_sites import bounds, private, weighing
from fedconcord_sites.form import (
    UNJUDGED,
    Form,
    by_edge,
    facts,
    form_of,
    has_own_noise,
    input_settings,
    is_secure,
    model_of,
    shell,
    source_of,
    terms_of,
)
from fedconcord_sites.gate import JUDGING, Gate, words
from fedconcord_sites.judging import Figures, LayerSums, count, forms_of_layers, of_question
from fedconcord_sites.ledger import NAME, Ledger
from fedconcord_sites.own import Own
from fedconcord_sites.policy import USUAL, Policy
from fedconcord_sites.private import Once
from fedconcord_sites.shelf import FileShelf

if TYPE_CHECKING:
    from fedconcord.execution.job.accountant import Budget
    from fedconcord.execution.messages.member import Member
    from fedconcord.execution.messages.terms import Plans, Terms

PROTOCOL = 6
LIMIT = 2**31  # bytes of a message
RUN = re.compile(r"[0-9a-f]{16}")
NAMED = Path()  # in place of a file: the site's part of data that the job names


class _Opened(NamedTuple):
    """A run that this site takes part in."""

    run: str
    job: Job
    client: RemoteClient
    test: tuple[Resident, Tensor]
    train: tuple[Resident, Tensor]
    said: Frame  # the answer to the setup
    budget: Budget | None  # of its privacy
    models: int  # that the method offers, each of which is judged
    once: Once | None  # of messages with noise of the site's own
    roster: Roster | None  # of all sites, where they weigh each other
    jury: Member | None  # its part in sums of figures, where those of single sites are not to be seen
    personal: Own | None  # its own model, where the answer is one a client


class Site:
    """One site.

    Args:
        settings: the job's, as TOML text; where a server's job is another one, the handshake says so.
        data: the site's file; `Path()` where the job names data, of which the server says which part.
        folder: where its state is kept; made if it is not there.
        name: what server and reports call it.
        chance: of local noise.
        policy: what the site answers.
        server: its address, for the ledger.
        tell: is told of every refusal, in a sentence.
        keys: folder of its key and the other sites', for secure sums (`ring`).

    Raises:
        UserError: the settings are wrong, or the file is not there.
    """

    def __init__(
        self,
        settings: str,
        data: Path,
        folder: Path,
        name: str,
        chance: Chance = SYSTEM,
        policy: Policy = USUAL,
        server: str = "",
        tell: Callable[[str], None] = lambda sentence: None,
        keys: Path | None = None,
    ) -> None:
        self.chance, self.keys = chance, keys
        self.source, self.data, self.folder, self.name = source_of(settings), data, folder, name
        self.given = input_settings(self.source)
        if data != NAMED and not data.exists():
            raise UserError(f"site {name}: there is no file {data}; give the path of the site's table or .npz")
        self.tell, self.ledger = tell, Ledger(folder / NAME)
        self.gate = Gate(self.source, None if data == NAMED else data.resolve(), self.ledger, policy, server)
        self._opened: _Opened | None = None
        self._held: SiteFile | None = None

    def answer(self, data: bytes) -> bytes:
        """The answer to a message; one that is damaged, out of date or of another job is refused in it.

        Raises:
            UserError: what is wrong is the site's own: its file, its folder.
        """
        frame = Frame("unreadable", "", 0, 0)
        try:
            with self.ledger.alone():
                try:
                    frame = codec.read(data, LIMIT)
                    answer = self._answer(frame, data)
                except FrameError as wrong:
                    self.tell(f"refused ({words(frame.kind, 32)}): {(why := words(str(wrong), 300))}")
                    answer = codec.write(Frame("refused", frame.method, frame.round, 0, {"why": why}))
                budget = self._opened.budget if self._opened is not None and self._opened.run == frame.method else None
                self.gate.record(frame, data, answer, budget)
        except OSError as wrong:
            raise UserError(f"site {self.name}: {sentence(wrong)}") from wrong
        return answer

    def _answer(self, frame: Frame, data: bytes) -> bytes:
        if not RUN.fullmatch(frame.method):
            raise FrameError("it names no run")
        before: Mapping[str, Callable[[Frame], Frame]] = {
            "hello": self._hello,
            "sums": self._sums,
            "squares": self._sums,
        }
        try:
            self.gate.admit(frame, data, self.given)
            if frame.kind in before:
                return codec.write(before[frame.kind](frame))
            if frame.kind == "setup":
                return self._setup(frame, data)
            opened = self._open(frame.method)
            if frame.kind in JUDGING:
                return codec.write(self._judge(opened, frame))
            if frame.kind == "orders" and opened.once is not None:
                return opened.once.answer(frame, data, lambda: self._round(opened, frame, data))
            return self._round(opened, frame, data)
        except (UserError, FrameError, OSError):
            raise
        except Exception as wrong:  # whatever content of another form leads to
            raise FrameError(f"its content cannot be used ({type(wrong).__name__})") from wrong

    # -- before round 0 --------------------------------------------------------------------------------------------

    def _hello(self, frame: Frame) -> Frame:
        """What there is."""
        fields: dict[str, Any] = {"protocol": PROTOCOL, "versions": versions(), "own": self.data != NAMED}
        if self.data != NAMED:
            fields["data"] = federated.description(self._file(), self.given)
        else:
            dataset, mine, about = self._part(frame.client, codec.whole(frame.fields["clients"]))
            fields |= {"form": form_of(dataset)._asdict(), "named": about, "samples": len(mine.train_y)}
        if is_secure(self.source):
            from fedconcord_sites import ring

            fields["keys"] = ring.known(self.keys, self.name, _sites(frame))
        return frame._replace(kind="here", fields=fields, tensors={})

    def _sums(self, frame: Frame) -> Frame:
        """Sums over the site's training samples, or then squared deviations from its own means: from others they would
        be other questions."""
        fields, file = frame.fields, self._file()
        overall, digits, words = bounds.told_of(fields["told"]), list(fields["digits"]), list(fields["words"])
        self.gate.admit_columns(file, digits, words, self.given)

        def sums_of(means: Means | None) -> SiteSums:
            return federated.site_sums(file, frame.client, self.given, overall, digits, words, means)

        totals = sums_of(None)
        self.gate.release(totals, digits)
        if frame.kind == "squares":
            totals = sums_of(Means(*(np.nan_to_num(mean_of(part)) for part in (totals.columns, totals.target))))
        arrays = {"columns": totals.columns, "target": totals.target}
        tensors = {
            f"{name}/{k}": torch.from_numpy(a) for name, pair in arrays.items() for k, a in pair._asdict().items()
        }
        return frame._replace(kind="summed", fields={"texts": dict(totals.texts)}, tensors=tensors)

    def _setup(self, frame: Frame, data: bytes) -> bytes:
        """All that the site is to know; the run has its folder from here on."""
        path = self.folder / frame.method / "setup.frame"
        if path.exists() and path.read_bytes() != data:
            raise FrameError("its folder is set up for this run otherwise; two sites cannot share a folder")
        opened = self._made(frame)
        if frame.fields["begins"]:
            files.private_folder(path.parent)
            files.write_bytes(path.with_name("ready.json"), files.as_json(opened.said.fields), mode=0o600)
            files.write_bytes(path, data, mode=0o600)  # last: with it the run is known
            self._opened = opened
        return codec.write(opened.said)

    def _open(self, run: str) -> _Opened:
        """The run, made again from its folder where this process has not seen it yet."""
        if self._opened is None or self._opened.run != run:
            path = self.folder / run / "setup.frame"
            if not path.exists():
                raise FrameError("the site does not know this run: its folder is another one, or was lost")
            try:
                frame = codec.read(path.read_bytes())
                before = json.loads(path.with_name("ready.json").read_text(encoding="utf-8"))
            except ValueError as broken:
                raise UserError(f"site {self.name}: cannot read {path.parent} ({broken}); restore it") from broken
            opened = self._made(frame)
            if before != opened.said.fields:
                now = opened.said.fields["facts"]
                what = [name for name in now if now[name] != before["facts"].get(name)] or ["the number of samples"]
                raise UserError(
                    f"site {self.name}: {', '.join(what)} changed since run {run} began; give the site the job and the "
                    "file that it had"
                )
            self._opened = opened
        return self._opened

    def _made(self, frame: Frame) -> _Opened:
        clients, fields = codec.whole(frame.fields["clients"]), frame.fields
        form = Form(**fields["form"])
        if self.data == NAMED:
            dataset, mine, _ = self._part(frame.client, clients)
            bounds.check_form(form, form_of(dataset), None)
        else:
            file, overall = self._file(), bounds.told_of(fields["told"])
            self.gate.admit_inputs(file, overall, self.given)
            bounds.check_form(form, file, overall)
            mine = federated.samples(file, frame.client, self.given, overall)
        try:
            config, job = shell(self.source, form, clients)
        except UserError as wrong:  # the job is one for this form of samples, or not
            raise FrameError(str(wrong)) from wrong
        job = private.at_site(job, self.chance)
        inner, budget = model_of(job), private.budget(config)
        self.gate.admit_job(config, [one.name for one in inner.metrics], [len(mine.train_y), len(mine.test_y)])
        self.gate.afford(frame.method, budget, config.rounds if budget is None else budget.rounds)
        scale = inner.data.scale
        train = inner.tensors(mine.train_x, mine.train_y, scale)
        test = inner.tensors(mine.test_x, mine.test_y, scale)
        problem = inner.holding(*train)
        if inner.target == "tokens":
            of = problem.judged._replace(offsets=np.array([0] * (frame.client + 1) + [len(train[1])]))
            check_samples(of, inner.target, inner.classes, inner.pad)
        if inner.pad is not None:  # which the shell's samples have none of
            check_fit(inner.model, inner.loss_of, train[0][:2], train[1][:2], inner.target, inner.classes, inner.pad)
        whole = private.whole(config, job, problem, mine.persons)
        objective = job.problem.of(whole.objective) if isinstance(job.problem, PrivateParts) else whole.objective
        shelf = FileShelf(self.folder / frame.method / "row.safetensors", template(job), objective.device)
        messages = forms(job.algorithm, job.problem.init(0))
        counts = None if inner.loss_of.counts is None else [count(inner, targets) for _, targets in (train, test)]
        tokens = None if counts is None else counts[0]
        roster = weighing.roster(frame, len(mine.train_y), tokens) if is_secure(self.source) else None
        member, jury = (None, None) if roster is None else self._members(frame, config, job, roster)
        client = RemoteClient(frame.client, job.assignment, objective, shelf, messages, frame.method, member)
        about = {"facts": facts(job, config), "samples": [int(whole.roster.samples[0]), len(test[1])]}
        about |= {} if counts is None else {"counts": counts}
        once = None
        if has_own_noise(self.source):
            once = Once(self.folder / frame.method / "once.frame", config.rounds if budget is None else budget.rounds)
        ready = frame._replace(kind="ready", fields=about, tensors={})
        models = len(job.algorithm.models(job.algorithm.init(job.problem.init(0), population_of(job))))
        about_model = card(inner, config.model or DEFAULT_MODEL)
        personal = Own(job, shelf, self.folder / frame.method / "own", about_model) if has_own_models(job) else None
        return _Opened(frame.method, job, client, test, train, ready, budget, models, once, roster, jury, personal)

    def _members(self, frame: Frame, config: Config, job: Job, roster: Roster) -> tuple[Member, Member]:
        """The site's part in secure sums, of rounds and of figures."""
        from fedconcord.execution.messages.member import Member
        from fedconcord_sites import ring  # which need a package for their cryptography
        from fedconcord_sites.jury import terms_of_figures
        from fedconcord_sites.safe import FileSafe

        client, rules = frame.client, self.gate.rules
        keys = ring.ring(self.keys, self.name, client, _sites(frame))
        terms = terms_of(config, roster, weighing.homes(frame, rules) if by_edge(self.source) else None)
        assert terms is not None

        def member(name: str, terms: Terms, kind: Weights, plans: Plans) -> Member:
            safe = FileSafe(self.folder / frame.method / name)
            plans = weighing.within(rules, client, kind, roster.sizes, plans)
            return Member(client, frame.method, terms, safe, space_of(job.problem), keys, plans)

        of_rounds = member("secrets.json", terms, job.algorithm.weights, weighing.plans(job, roster))
        return of_rounds, member("judging.json", terms_of_figures(terms), "size", weighing.plans_of_figures(roster))

    # -- the rounds ------------------------------------------------------------------------------------------------

    def _round(self, opened: _Opened, frame: Frame, data: bytes) -> bytes:
        opened.client.shelf.read()  # what is wrong with it is the site's
        schedule = opened.job.schedule
        assert isinstance(schedule, Schedule)
        is_counted = opened.budget is not None and opened.budget.spending.most is not None
        drawn_of = opened.job.problem.roster.n if is_counted else None
        samples = opened.said.fields["samples"][0]
        bounds.check_orders(frame, schedule, opened.job.algorithm, samples, opened.roster, drawn_of)
        self.gate.afford(frame.method, opened.budget, frame.round + 1)
        ask_path = self.folder / opened.run / "asked.frame"
        if frame.kind == "train" and opened.client.forgets(frame.round) and ask_path.exists():
            opened.client.recall(ask_path.read_bytes())
        try:
            replies = opened.client.receive(data)
        except UserError as impossible:
            raise FrameError(str(impossible)) from impossible
        if not replies:
            raise FrameError("it is out of date, or not for this site")
        if frame.kind == "ask":
            files.write_bytes(ask_path, data, mode=0o600)
        return replies[0]

    def _judge(self, opened: _Opened, frame: Frame) -> Frame:
        if opened.once is not None:
            raise FrameError(UNJUDGED)
        layers = forms_of_layers(model_of(opened.job))
        self.gate.admit_model(frame, opened.models, len(layers))
        if opened.jury is not None:
            from fedconcord_sites import jury

            return jury.answer(opened.jury, frame, lambda: self._figures(opened, frame, layers))
        measured = self._figures(opened, frame, layers)
        return frame._replace(kind="judged", fields={}, tensors=codec.pack("figures", measured))

    def _figures(self, opened: _Opened, frame: Frame, layers: Mapping[str, LayerSums]) -> Figures | LayerSums:
        messages, addition = opened.client.forms, opened.job.algorithm.step.addition
        like = messages.x if addition is None else torch.cat([messages.x, addition(messages.down)])
        x: Tensor = codec.unpack("x", frame, like, opened.client.objective.device)
        x = x if opened.personal is None else opened.personal.judged(frame, x)
        return of_question(model_of(opened.job), frame, x, layers, opened.test, opened.train)

    # -- the site's own --------------------------------------------------------------------------------------------

    def _file(self) -> SiteFile:
        if self._held is None:
            self._held = federated.open_file(self.data, self.given)
        return self._held

    def _part(self, client: int, clients: int) -> tuple[Dataset, Samples, str]:
        """This client's part of data that the job names: of the training samples the partition's, of the test samples
        every `clients`-th."""
        values = {key: value for key, value in self.source.values.items() if key != "cohort"} | {"clients": clients}
        config = resolve_run(replace(self.source, values=values, origin=dict.fromkeys(values, "the job's settings")))
        dataset, parts = divided(config)
        if not 0 <= client < len(parts) == clients:
            raise FrameError(f"client {client} of {clients}, where {config.data} has {len(parts)}")
        test = np.arange(client, len(dataset.test_y), clients)
        mine = parts[client]
        samples = Samples(dataset.train_x[mine], dataset.train_y[mine], dataset.test_x[test], dataset.test_y[test])
        return dataset, samples, f"{config.data}, {config.partition}, seed {config.seed}"


def _sites(frame: Frame) -> list[str]:
    """The sites by number, of which a server tells where they know each other."""
    return [str(name) for name in frame.fields.get("sites", [])]


def versions() -> dict[str, str]:
    """What both ends compare."""
    return {"fedconcord": fedconcord.__version__, "torch": torch.__version__, "python": platform.python_version()}
