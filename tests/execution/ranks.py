"""Jobs that test_distributed.py runs in its own process and, as this script, in several that share them."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from test_engines import SCHEDULE, run, small
from test_two_block import small as semi

from fedconcord.execution.engines import Stacked, distributed
from fedconcord.execution.engines.team import ALONE, Team
from fedconcord.execution.job import Job, State
from fedconcord.federation.participation.work import fixed
from fedconcord.method.contract import Oracle, tree_leaves
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.hostile import nan, with_hostile
from fedconcord.method.wrappers.uploads import topk, with_uploads
from fedconcord.support.errors import UserError
from table import batches_of, make

FEW = replace(SCHEDULE, cohort=2)  # rounds in which some process has no client


def jobs() -> dict[str, Job]:
    """A job a mechanism that processes could get wrong."""
    problem = small()
    found = {
        name: Job(problem, make(name), schedule)
        for name in ("fedavg", "fednova", "scaffold", "feddyn", "fedadmm", "fedvra", "afedpd", "mimesvrg")
        for schedule in [FEW if name in ("scaffold", "afedpd", "mimesvrg") else SCHEDULE]
    }
    everyone = replace(SCHEDULE, cohort=8)
    return found | {
        "fedpd": Job(problem, make("fedpd", p_skip=0.6), everyone),  # most rounds without messages
        "losac": Job(problem, make("losac", init="gradient"), FEW),  # all clients once before round 0
        "vrlsgd": Job(problem, make("vrlsgd"), everyone),
        "topk": Job(problem, with_uploads(make("scaffold"), topk(0.2)), FEW),
        "tolerance": Job(problem, make("fedprox"), FEW, Solver(tolerance=0.05)),  # counts that only the owner knows
        "lbfgs": Job(problem, make("fedprox"), replace(FEW, work=fixed(2)), Solver(kind="lbfgs")),
        "svrg": Job(problem, make("fedavg"), FEW, Solver(oracle=Oracle("svrg"))),
        "two-block": Job(semi(), make("fedvra"), FEW),
        "kernel": Job(small("convolution"), make("fedadmm"), SCHEDULE),
        "broken": Job(problem, with_hostile(make("scaffold"), nan(0.3), 5, 8), SCHEDULE),  # replies that are refused
        "broken, prelude": Job(problem, with_hostile(make("mimesvrg"), nan(0.3), 5, 8), SCHEDULE),
        "float32": Job(small(dtype=torch.float32), make("scaffold"), FEW),
    }


def facts(state: State, team: Team = ALONE) -> dict[str, torch.Tensor]:
    """Everything that a state holds, by name."""
    found = {f"server.{name}": leaf for name, leaf in tree_leaves(state.server).items()}
    found |= {f"rows.{name}": leaf for name, leaf in team.collect(state.store.export()).items()}
    found["refused"] = torch.tensor(sorted(state.refused.items()))
    return found | {"counts": torch.tensor([state.bytes_up, state.bytes_down, state.gradient_steps])}


def drawn(job: Job) -> list[bytes]:
    """Ids and batches of a round, bit by bit."""
    plan = job.schedule.plan(3, job.algorithm, job.problem.roster)
    batches = [batch for batch in batches_of(job, plan) if batch is not None]
    assert len(batches) == len(plan.ids)
    return [plan.ids.tobytes(), plan.steps.tobytes(), *(batch.tobytes() for batch in batches)]


def _refuse(rank: int) -> str:
    raise UserError(f"rank {rank} refuses")


def all_reduces() -> list[int]:
    """How many sums over processes there are from now on; the one number of the list."""
    counted, original = [0], dist.all_reduce

    def counting(*args: object) -> object:
        counted[0] += 1
        return original(*args)

    dist.all_reduce = counting
    return counted


def main(out: Path) -> None:
    """Run the jobs; every process writes what it ended with, rank 0 with the rows of all."""
    team = distributed.join(60)
    counted = all_reduces()
    found, sums, plans = {}, {}, {}
    for name, job in [*jobs().items(), ("again", jobs()["float32"])]:
        counted[0] = 0
        job = replace(job, engine=Stacked(2, team=team))
        state = run(job)
        sums[name] = counted[0]
        ids = state.store.ids()
        assert team.owns(ids).all(), "a row of another rank's client"
        distributed.PIECE = 24  # many messages
        found[name] = facts(state, team)
        plans[name] = drawn(job)
    try:
        team.tell(lambda: _refuse(team.rank))
    except UserError as error:
        sums["refused"] = str(error)
    torch.save((found, sums, plans), out / f"{team.size}-{team.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
