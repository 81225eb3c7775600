"""The server's whole run over an exchange: handshake, rounds, evaluation, checkpoints and the folder of any run."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedconcord.execution.job import Job, Row, State, has_own_models
from fedconcord.execution.messages.store import RemoteStore
from fedconcord.execution.messages.sums import PLAIN, Sums
from fedconcord.execution.messages.terms import Plans, Terms
from fedconcord.execution.run import readme
from fedconcord.execution.run.clock import Clock
from fedconcord.execution.run.final_model import RunOptions
from fedconcord.execution.run.folder import read_description, refuse_taken
from fedconcord.execution.run.observers import Observer
from fedconcord.execution.run.trace import Trace
from fedconcord.federation.objectives import Regularised, fairness
from fedconcord.federation.objectives.card import card
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.method.contract import Roster
from fedconcord.method.contract.rng import SYSTEM, Chance
from fedconcord.method.contract.weights import minimised
from fedconcord.study.runs import training
from fedconcord.study.runs.events import Event, Finished
from fedconcord.study.runs.records import finished
from fedconcord.study.runs.training import prepare_job, threads
from fedconcord.study.settings.privacy import privacy_note
from fedconcord.study.settings.settings import DEFAULT_MODEL, Config
from fedconcord.study.settings.sources import Source
from fedconcord.support.errors import UserError
from fedconcord_sites import handshake, private, weighing
from fedconcord_sites.asynchronous import Asynchronous, at_once
from fedconcord_sites.differences import DifferError
from fedconcord_sites.edges import EdgeExchange, EdgeSums
from fedconcord_sites.engine import Sites
from fedconcord_sites.exchange import Exchange, Flow
from fedconcord_sites.form import UNJUDGED, by_edge, has_own_noise, model_of, shell, source_of, terms_of
from fedconcord_sites.gate import PREFIX
from fedconcord_sites.handshake import Agreed
from fedconcord_sites.late import Newcomers
from fedconcord_sites.problem import Deployed
from fedconcord_sites.site_link import SiteLink

if TYPE_CHECKING:
    from fedconcord.execution.messages.secure import Secure
    from fedconcord_sites.jury import Jury

NONE: Mapping[str, int] = MappingProxyType({})
NO_EDGES: Mapping[str, Sequence[str]] = MappingProxyType({})


def check(
    settings: str,
    sites: Sequence[str],
    exchange: Exchange,
    wait: float,
    later: Mapping[str, int] = NONE,
    edges: Mapping[str, Sequence[str]] = NO_EDGES,
) -> list[str]:
    """All that keeps these sites from this job, a sentence each; none if they can begin. Nothing is trained.

    Args:
        later: see `serve`; those are not asked.
        wait: seconds for the answers of one exchange.
        edges: see `serve`.

    Raises:
        UserError: the job's settings are wrong, or cannot be deployed.
    """
    source = source_of(settings)
    through = EdgeExchange(edges, sites, exchange, source, lambda event: None) if edges else None
    homes = _homes(source, through, sites)
    link = SiteLink(_names(sites), secrets.token_hex(8), through or exchange, wait, None)
    try:
        agreement = handshake.agreed(settings, link, False, later, homes)
    except DifferError as differ:
        return differ.sentences
    if through is not None:
        through.nested(shell(source, agreement.form, len(agreement.sites))[1], agreement.sites)
    return []


def serve(
    settings: str,
    sites: Sequence[str],
    exchange: Exchange,
    folder: Path,
    see: Callable[[Event], None] | None,
    wait: float,
    resume: bool,
    chance: Chance = SYSTEM,
    later: Mapping[str, int] = NONE,
    flow: Flow | None = None,
    edges: Mapping[str, Sequence[str]] = NO_EDGES,
) -> Finished:
    """Train at these sites, and return what came of it; everything is in the folder, as of any run.

    Ctrl-C finishes the round and writes everything. A server that was killed goes on with `resume` from its last
    round, to the bits that it would have come to with the same sites answering.

    Args:
        settings: the job's, as TOML text; the sites have the same.
        sites: their names; a site's number is its place, as that of a client in a simulation.
        see: is told of every event.
        wait: seconds for the answers of one exchange; who has not answered by then is out of it.
        chance: of central noise and of Poisson coins.
        later: which of the sites may come after round 0, and how many rows their files have; a run that is resumed
            knows them.
        flow: takes answers as they come, for a job with a clock; without, those of one exchange are awaited.
        edges: edge server -> the sites and edge servers right below it; `exchange` is then with those that are below
            none. A run that is resumed may have others.

    Raises:
        UserError: the job cannot run, or not with edge servers, sites and server differ, nobody answers, a method that
            needs all sites misses one, or the folder is taken.
    """
    clock, tell = Clock(), see or (lambda event: None)
    source = source_of(settings)
    through = EdgeExchange(edges, sites, exchange, source, tell) if edges else None
    is_resumed = resume and (folder / handshake.NAME).exists()
    if not resume:
        refuse_taken(folder)
    agreement = handshake.read(folder) if is_resumed else None
    if agreement is not None and sorted(agreement.sites) != sorted(_names(sites)):
        raise UserError(
            f"{folder} has the sites {', '.join(agreement.sites)}, given {', '.join(sites)}; resume it with the same"
        )
    homes = _homes(source, through, sites if agreement is None else agreement.sites)
    if agreement is not None and agreement.homes != homes:
        raise UserError(f"{folder} has sums below other edge servers (secure.group); resume it with the same --tree")
    run = secrets.token_hex(8) if agreement is None else agreement.run
    link = SiteLink(_names(sites) if agreement is None else agreement.sites, run, through or exchange, wait, tell)
    if agreement is None:
        try:
            agreement = handshake.agreed(settings, link, True, later, homes)
        except DifferError as differ:
            more = len(differ.sentences) - 1
            raise UserError(differ.sentences[0] + (f" (and {more} more)" if more else "")) from None
        folder.mkdir(parents=True, exist_ok=True)
        handshake.save(folder, agreement)
    trained, tested = (sum(one[k] for one in agreement.samples) for k in (0, 1))
    tell(Event("ready", f"{len(agreement.sites)} sites with {trained} samples to train on and {tested} to test on"))
    config, job = shell(source, agreement.form, len(agreement.sites))
    if config.clock is not None and config.cohort == len(agreement.sites):
        tell(Event("ready", "every update waits for the replies of all sites; set a smaller cohort to wait for nobody"))
    link.await_(agreement.later, Newcomers(source, config, job, agreement))
    job = private.at_server(job, chance, folder)
    if through is not None:
        job = through.nested(job, agreement.sites)
    with threads(config.engine.threads):
        goes_on = is_resumed and resume
        flow = flow or at_once(exchange)
        result = _served(source, config, job, agreement, link, through, flow, folder, tell, goes_on, clock)
    if through is not None:
        through.end()
    return result


def _served(
    source: Source,
    config: Config,
    job: Job,
    agreement: Agreed,
    link: SiteLink,
    through: EdgeExchange | None,
    flow: Flow,
    folder: Path,
    tell: Callable[[Event], None],
    resume: bool,
    clock: Clock,
) -> Finished:
    inner, has_own = model_of(job), has_own_models(job)
    deployed = Deployed(job, agreement.samples, link, agreement.counts)
    has_parts = job.problem.objective.private is not None  # without which the model here answers nothing
    if has_own:  # of which a server has none; each site judges the one that goes with the first of its models
        offers = job.algorithm.models
        first = replace(job.algorithm, client_model=None, models=lambda server: dict([*offers(server).items()][:1]))
        job = replace(job, algorithm=first)
    problem = Regularised(deployed, job.problem.regulariser) if isinstance(job.problem, Regularised) else deployed
    observers: list[Observer] = [SitesSeen(deployed, agreement, link, folder, through)]
    terms = terms_of(config, deployed.roster, agreement.homes)
    of_edges = None if through is None else EdgeSums(through, link, agreement.form)
    sums: Sums = of_edges or PLAIN
    if terms is not None:
        sums = _secure(terms, agreement, weighing.plans(job, deployed.roster), of_edges)
    if has_own_noise(source):
        deployed.is_judged = False
        tell(Event("ready", f"no model is judged: {UNJUDGED}; judge the last one on public data (fedconcord predict)"))
    if terms is not None:
        deployed.jury = _jury(terms, agreement, deployed.roster, RemoteStore(link, job.algorithm, problem, ()))
    if isinstance(job.schedule, Schedule) and job.schedule.clock is not None:
        observers.append(trace := Trace(folder, math.inf))
        sums = Asynchronous(link, flow, job.schedule, config.rounds, trace)
    job = replace(job, problem=problem, engine=Sites(link, deployed, sums))
    prepared = prepare_job(job, folder, config.rounds)
    if (note := privacy_note(config, private.GENERATOR)) is not None:
        tell(Event("private", note))
    link.most = 4 * job.cost.up + inner.dim * 8  # under masks numbers of 4 bytes have 8, and some are sent twice
    every = config.eval.every or 1
    settings = {**config.as_dict(), "data": "sites"}
    info: dict[str, Any] = {
        "method": config.method,
        "label": config.label,
        "seed": config.seed,
        "models": list(job.algorithm.models(prepared.state.server)),
        "clients": config.clients,
        "cohort": config.cohort,
        "data": f"{len(agreement.sites)} sites",
        "model": config.model or DEFAULT_MODEL,
        "partition": "natural",
        "objective": minimised(job.algorithm.weights),
        "target": config.eval.target,
        "ranking": [{"column": f"test_{metric.name}", "higher": metric.higher} for metric in inner.metrics],
        "config": settings,
        "evaluation": {
            "every": every,
            "train_samples": sum(trained for trained, _ in agreement.samples),
            "clients": terms is None,
            "validation": None,
        },
        "baseline": None,
    }

    def on_row(row: Row) -> None:
        """A line a round."""
        metrics = "" if row.metrics is None else ", ".join(f"{name} {value:.4g}" for name, value in row.metrics.items())
        tell(Event("row", f"round {row.round}: {metrics or 'not evaluated'}", row=row))

    # a checkpoint a round: sites move on with every round, and cannot go back
    spends = private.budget(config)
    rounds = config.rounds if spends is None else spends.rounds
    # sites judge a noisy model: it may not come anew with other noise once they have it; sums are not opened twice
    saves_first = job.algorithm.facts.protection is not None or terms is not None
    length = training.RunLength(rounds, every, 0.0, resume and (folder / "run.json").exists(), saves_first)
    about = None if has_parts else card(inner, config.model or DEFAULT_MODEL)
    options = RunOptions(card=about, budget=spends, readme=readme.of_sites(about is not None))
    training.train(prepared, folder, length, info, on_row, options, clock, observers)
    return finished(folder)


def _homes(source: Source, through: EdgeExchange | None, sites: Sequence[str]) -> list[int] | None:
    """The number of each site's edge server, where secure sums are made below these.

    Raises:
        UserError: there are none.
    """
    if not by_edge(source):
        return None
    if through is None:
        raise UserError("secure.group is edge, and there are no edge servers; name them by --tree, or leave it out")
    return through.numbers_of(sites)


def _jury(terms: Terms, agreement: Agreed, roster: Roster, store: RemoteStore) -> Jury:
    from fedconcord_sites import jury  # which needs a package for its cryptography

    plans = weighing.plans_of_figures(roster)
    return jury.Jury(_secure(jury.terms_of_figures(terms), agreement, plans, None, PREFIX), store)


def _secure(terms: Terms, agreement: Agreed, plans: Plans, of_edges: EdgeSums | None, prefix: str = "") -> Secure:
    from fedconcord.execution.messages.masks import Peer
    from fedconcord.execution.messages.secure import Secure, one_by_one
    from fedconcord_sites import ring  # which need a package for their cryptography

    try:
        keys = {name: ring.of_text((agreement.keys or {})[name]) for name in agreement.sites}
    except (KeyError, ValueError):
        raise UserError(f"{handshake.NAME} has no keys of the sites, which secure sums need; begin a new run") from None
    peers = {i: Peer(f"site {name}", keys[name]) for i, name in enumerate(agreement.sites)}
    return Secure(terms, peers, prefix, plans, one_by_one if of_edges is None else of_edges.collect)


class SitesSeen(Observer):
    """What run.json and clients.csv say of the sites."""

    def __init__(
        self, problem: Deployed, agreement: Agreed, link: SiteLink, folder: Path, edges: EdgeExchange | None
    ) -> None:
        self.problem, self.found, self.link, self.folder, self.edges = problem, agreement, link, folder, edges
        before = read_description(folder) if (folder / "run.json").exists() else {}
        self.judged: dict[str, Any] | None = before.get("clients_judged")

    def end(self, state: State) -> None:
        """Every site's figures of the last model."""
        if not self.problem.last:  # of a run that was over, or of sites whose figures are seen in sum alone
            return
        scores = self.problem.scores()
        fairness.write(self.folder / "clients.csv", scores, None, self.found.sites)
        self.judged = fairness.description(state.round, scores, None)

    def about(self) -> dict[str, Any]:
        """What became of each site."""
        sites = [
            {
                "name": name,
                "samples": trained,
                "tested_on": tested,
                "asked": record.asked,
                "missed": record.missed,
                "stale": record.stale,
                "refused": record.refused,
                "left_out": record.left_out,
                "far": {"messages": record.far, "times": record.farthest} if record.far else None,
                "bytes_sent": record.bytes_in,
                "bytes_got": record.bytes_out,
            }
            for name, (trained, tested), record in zip(
                self.found.sites, self.found.samples, self.link.records, strict=True
            )
        ]
        about: dict[str, Any] = {"sites": sites, "sites_sent_first": self.found.sent, "rounds_void": self.link.voids}
        about |= {} if self.edges is None else {"edges": self.edges.said()}
        return about if self.judged is None else about | {"clients_judged": self.judged}


def _names(sites: Sequence[str]) -> list[str]:
    """The names, each given once.

    Raises:
        UserError: there is none, or one is given twice.
    """
    if not sites:
        raise UserError("a deployment needs sites; name one at least")
    for name in sites:
        if list(sites).count(name) > 1:
            raise UserError(f"site {name} is named twice; give every site its own name")
    return list(sites)
