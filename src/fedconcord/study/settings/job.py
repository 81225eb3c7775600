"""From settings to a job."""

from __future__ import annotations

import warnings
from typing import Literal

from fedconcord.execution.engines import Engine, Serial, Stacked, Wire, distributed
from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.job import Job
from fedconcord.execution.messages.link import Faults
from fedconcord.execution.rows import Storage
from fedconcord.federation.objectives import Regularised, Supervised
from fedconcord.federation.objectives.judging import supervised
from fedconcord.federation.objectives.parts import PrivateParts, with_private
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import epoch_steps, scaled
from fedconcord.method.algorithms import family
from fedconcord.method.algorithms.alone import BASELINES
from fedconcord.method.contract import Algorithm, Oracle, Problem
from fedconcord.method.step.graphs import Graphs
from fedconcord.method.step.sizes import ByStep
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.code import with_code
from fedconcord.method.wrappers.factors import FactorRule, with_factors
from fedconcord.method.wrappers.hostile import chosen, with_hostile
from fedconcord.method.wrappers.late import with_late_replies
from fedconcord.method.wrappers.optimisers import with_optimiser
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.method.wrappers.robust import Rule, with_aggregate
from fedconcord.method.wrappers.server import with_server
from fedconcord.method.wrappers.tables import with_table
from fedconcord.method.wrappers.terms import feature_form, with_term
from fedconcord.method.wrappers.uploads import with_uploads
from fedconcord.study.settings.methods import baseline
from fedconcord.study.settings.parts import PARTS, batch_of, method_of, most_work, part, work_of
from fedconcord.study.settings.privacy import of_persons, protected, refuse_data, rows_note
from fedconcord.study.settings.problem import device_of, problem_of
from fedconcord.study.settings.settings import Config
from fedconcord.support import grammar
from fedconcord.support.errors import UserError


def algorithm_of(config: Config) -> Algorithm:
    """The method with its parameters, before anything is put around it."""
    return method_of(config.method or "fedavg", config.algorithm)


def with_parts(
    algorithm: Algorithm, method: str, label: str | None, rule: Rule | None, upload: str | None, server: str | None
) -> Algorithm:
    """The method with a robust rule, compressed uploads and a server optimiser, in this order.

    Raises:
        UserError: it has a server optimiser already, or a part is wrong.
    """
    algorithm = algorithm if rule is None else with_aggregate(algorithm, rule)
    algorithm = algorithm if upload is None else with_uploads(algorithm, part("upload", upload))
    if server is None:
        return algorithm
    if algorithm.facts.server_optimiser:
        raise UserError(
            f"{label}: the method has a server optimiser of its own, given server {server} as well; leave it out, or "
            f"write {method}(server=none)"
        )
    return with_server(algorithm, part("server", server))


def build(config: Config) -> Job:
    """The job of one run's settings, as `resolve_run` or `Config.runs` gives them."""
    local, factors = config.local, config.local.step_schedule
    unit: Literal["epochs", "steps", "seconds"] = (
        "steps" if local.steps is not None else "seconds" if local.seconds is not None else "epochs"
    )
    work = getattr(local, unit)
    algorithm = algorithm_of(config)
    oracle: Oracle = part("local.oracle", local.oracle)
    if oracle.kind == "saga":
        algorithm, oracle = with_table(algorithm, oracle.blocks), Oracle()
    if oracle.kind == "lesam":
        algorithm, oracle = with_estimated_ascent(algorithm, oracle.radius), Oracle()
    if algorithm.step.size is not None and local.lr is not None:
        raise UserError(
            f"{config.label}: the method finds its own step sizes, given local.lr {grammar.text(local.lr)}; leave it "
            "out, or write it behind the methods that take one, as in fedavg(local.lr=0.3)"
        )
    problem: Problem = problem_of(config)
    if config.local.private is not None:
        problem = _with_private_parts(problem, config)
    if config.privacy.unit == "person":
        problem = of_persons(problem)
    if local.optimiser is not None:
        algorithm = with_optimiser(algorithm, part("local.optimiser", local.optimiser), problem.objective.matrices)
    if local.code is not None:
        if local.optimiser is not None:
            raise UserError(f"{local.code} moves the model itself; leave local.optimiser out, or local.code")
        algorithm = with_code(algorithm, part("local.code", local.code))
    if local.term is not None:
        term = part("local.term", local.term)
        algorithm = with_term(algorithm, term, feature_form(problem.objective, term))
    algorithm = protected(algorithm, config)  # inside the uploads: only what is clipped and noisy is compressed
    rule = None if config.aggregate is None else part("aggregate", config.aggregate)
    of_updates = None if isinstance(rule, FactorRule) else rule
    algorithm = with_parts(algorithm, config.method or "", config.label, of_updates, config.upload, config.server)
    if config.late == "keep":
        algorithm = with_late_replies(algorithm)
    attackers: tuple[int, ...] = ()
    if config.hostile is not None:
        attack, seed, n = part("hostile", config.hostile), config.seed or 0, problem.roster.n
        algorithm, attackers = with_hostile(algorithm, attack, seed, n), chosen(attack, seed, n)
    if isinstance(rule, FactorRule) and local.private is not None:
        raise UserError(
            f"aggregate {config.aggregate} combines the factors of a model that all clients share, given local.private "
            f"{local.private!r}; leave one of them out"
        )
    if isinstance(rule, FactorRule):  # around all: it looks at what the others made of messages
        algorithm = with_factors(algorithm, problem.objective.pairs, problem.objective.dim, rule)
    if config.regulariser is not None:
        problem = Regularised(problem, part("regulariser", config.regulariser))
    lr = local.lr if isinstance(local.lr, float) else 1.0  # a factor on what a rule finds
    job = Job(
        problem=problem,
        algorithm=algorithm,
        schedule=Schedule(
            seed=config.seed or 0,
            cohort=config.cohort,
            lr=scaled(lr, part("lr_schedule", config.lr_schedule)),
            work=work_of(1 if work is None else work),
            unit=unit,
            batch_size=batch_of(local.batch_size),
            lr_decay=local.lr_decay,
            lr_drops=tuple(local.lr_drops),
            sampler=part("sampling", config.sampling),
            availability=None if config.availability is None else part("availability", config.availability),
            dropout=None if config.dropout is None else part("dropout", str(config.dropout)),
            tree=None if config.tree is None else part("tree", config.tree),
            devices=None if config.devices is None else part("devices", config.devices),
            deadline=config.deadline,
            late=config.late,
            clock=None if config.clock is None else part("clock", config.clock),
        ),
        solver=Solver(  # what is no thing of a registry has one name in both
            **{name: value for name, value in local if name in Solver._fields and f"local.{name}" not in PARTS},
            oracle=oracle,
            kind=local.solver,
            pace=part("local.lr", local.lr) if isinstance(local.lr, str) else None,
            step_schedule=None if factors is None else ByStep(factors, part("local.step_schedule", factors)),
        ),
        engine=engine_of(config),
        storage=Storage(config.engine.store, config.engine.rows),
        hostile=attackers,
    )
    return job if config.method not in BASELINES else baseline(job, config.method)


def _with_private_parts(problem: Problem, config: Config) -> PrivateParts:
    """The problem in what clients share.

    Raises:
        UserError: there is no model of labelled samples in memory, or something keeps what is shared alone.
    """
    local = config.local
    if not isinstance(problem, Supervised):
        raise UserError(
            f"local.private {local.private!r} is for models of labelled samples in memory, and these data or this task "
            "have none; leave it out"
        )
    if local.optimiser is not None and (state := part("local.optimiser", local.optimiser).state) != "reset":
        raise UserError(
            f"private parameters start every round without moments, and a local optimiser with state={state} would "
            "keep those of the shared ones alone; use state=reset"
        )
    assert local.private is not None
    before = local.private_steps if isinstance(local.private_steps, int) else None
    return with_private(problem, local.private, config.seed or 0, before, local.private_steps == "frozen")


def engine_of(config: Config) -> Engine:
    """The engine of a run."""
    if config.engine.name == "wire":
        wire = config.wire
        faults = Faults(wire.loss, wire.duplicate, wire.delay, wire.corrupt, wire.restart, wire.server_restart)
        return Wire(faults, wire.tries, config.seed or 0)
    if config.engine.name == "serial":
        return Serial()
    choices = config.engine.chunk, config.engine.workers, team_of(config), config.engine.kernel
    return Stacked(*choices, graphs_of(config))


def team_of(config: Config) -> Team:
    """The processes that share the run."""
    if config.engine.name != "distributed":
        return ALONE
    return distributed.join(config.engine.timeout, device_of(config).type == "cuda")


def graphs_of(config: Config) -> Graphs | None:
    """Where the run's local steps are recorded.

    Raises:
        UserError: the run is not on a GPU.
    """
    if not config.engine.graphs:
        return None
    if device_of(config).type != "cuda":
        raise UserError("engine.graphs records CUDA graphs, and this run is on the CPU; leave it out, or use cuda")
    return Graphs()


def advise(config: Config) -> None:
    """Warn of early stopping on test data, of a model that is made to be adapted and is not, of persons whose rows are
    protected one by one, and of step sizes outside FedVRA's sufficient condition (18).

    The condition is checked with the numbers of the longest round, and only for plain `fedvra` with numbers for d: the
    rules choose d by themselves.
    """
    watch = config.eval.watch or ("validation_loss" if config.validation is not None else "test_loss")
    if config.eval.patience is not None and watch.startswith("test_"):
        warnings.warn(
            f"eval.patience watches {watch}: a model chosen on test data makes its test figures too good; set "
            "validation, as in 0.1",
            stacklevel=2,
        )
    parameters = config.algorithm
    adapted = algorithm_of(config).facts.adapted
    if adapted is not None and config.eval.personalise is None:
        warnings.warn(
            f"{config.label}: its model is made to be adapted by each client, and is judged as it is; "
            f"set it with --set eval.personalise='{adapted}'",
            stacklevel=2,
        )
    inner = supervised(problem_of(config)) if config.privacy.unit == "sample" else None
    if inner is not None and (why := rows_note(config, inner.data.persons)) is not None:
        warnings.warn(why, stacklevel=2)
    if config.method != "fedvra" or isinstance(parameters["d"], str):
        return
    local, problem = config.local, problem_of(config)
    if local.seconds is not None or not isinstance(local.lr, float):
        return
    work = local.epochs if local.steps is None else local.steps
    most = int(most_work(work or 1, config.clients))
    if local.steps is None:
        most *= epoch_steps(int(problem.roster.samples.max()), batch_of(local.batch_size))
    share, of = config.cohort / config.clients, [parameters[key] for key in ("a", "d", "gamma")]
    n = max(len(values) if isinstance(values, list) else 1 for values in of)  # 1 where no parameter is by client
    every = zip(*(values if isinstance(values, list) else [values] * n for values in of), strict=False)
    by_client = [family.conditions(share, a, d, gamma, local.lr, most) for a, d, gamma in every]
    family.check([max(one, key=lambda condition: condition.left) for one in zip(*by_client, strict=True)])


def refuse(job: Job, config: Config) -> None:
    """What a round would refuse of the settings, said before the first one; of the job itself, `job.refusals` does.

    Raises:
        UserError: lists of settings do not fit the job's clients.
    """
    refuse_data(config, job.problem)
    n, local = job.problem.roster.n, config.local
    if local.private_steps is not None and local.private is None:
        raise UserError(
            f"local.private_steps {local.private_steps} is of private parameters, and there are none; set "
            "local.private, as in head.*, or leave local.private_steps out"
        )
    for key, value in (("dropout", config.dropout), ("local work", local.epochs or local.steps or local.seconds)):
        call = grammar.parse(value, key) if isinstance(value, str) else None
        listed = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, list)] if call else []
        if call is not None and call.name == "per_client" and listed and len(listed[0]) != n:
            raise UserError(f"{key} per_client lists {len(listed[0])} values for {n} clients; give one for each")
