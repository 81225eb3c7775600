"""Rounds without waiting that several real processes share: the serial engine's results, and a run that goes on."""

import sys
from pathlib import Path

import pytest
import torch
from ranks import all_reduces, facts
from test_asynchronous_wire import WITHOUT_ROUNDS, after, job
from test_distributed import ends, launch

from fedconcord.execution.engines import Serial, Stacked, distributed
from fedconcord.execution.job.checkpoint import load, save
from fedconcord.execution.job.job import State

UPDATES, CUT = 25, 11  # in all, and where one of the runs is cut
RESUMED = "afedpd_share"


def counts(state: State) -> tuple[object, ...]:
    """Bytes, gradients, simulated seconds, and the versions that jobs in flight began from."""
    return (*state[3:7], sorted(state.versions))


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_together_equal_the_serial_engine(size: int, tmp_path: Path) -> None:
    """Every method that runs without rounds, one all-reduce an update, and the same bits on all processes."""
    for rank, ended in enumerate(ends(launch(size, Path(__file__), tmp_path))):
        assert (ended.code, ended.complained) == (0, ""), f"rank {rank}"
    found, numbers, sums = zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in range(size)), strict=True)
    for name in WITHOUT_ROUNDS:
        one = job(name, Serial())
        state = after(one, UPDATES)
        wanted = facts(state)
        assert found[0][name].keys() == wanted.keys()
        for key, value in wanted.items():
            off = float((found[0][name][key].double() - value.double()).abs().max()) if value.numel() else 0.0
            assert off <= 1e-12 * max(1.0, float(value.double().abs().max()) if value.numel() else 0.0), (name, key)
        prologues = int(one.algorithm.phases.prologue is not None)
        for rank in range(size):
            assert numbers[rank][name] == counts(state), (name, rank)
            assert sums[rank][name] == UPDATES + prologues, (name, rank)
            server = {key: leaf for key, leaf in found[rank][name].items() if key.startswith("server.")}
            assert all(torch.equal(leaf, found[0][name][key]) for key, leaf in server.items()), (name, rank)
    for key, value in found[0]["resumed"].items():
        assert torch.equal(value, found[0][RESUMED][key]), key
    alone = job(RESUMED, Serial())  # what several processes saved
    ours, theirs = facts(after(alone, UPDATES, load(alone, tmp_path / "cut"))), found[0][RESUMED]
    assert max(float((ours[key] - theirs[key]).abs().max()) for key in theirs if theirs[key].numel()) < 1e-12


def main(out: Path) -> None:
    """Run every job; each process writes what it ended with, rank 0 with the rows of all."""
    team = distributed.join(60)
    counted = all_reduces()
    found, numbers, sums = {}, {}, {}
    for name in WITHOUT_ROUNDS:
        counted[0] = 0
        one = job(name, Stacked(2, team=team))
        state = after(one, UPDATES)
        sums[name] = counted[0]
        assert team.owns(state.store.ids()).all(), "a row of another rank's client"
        found[name], numbers[name] = facts(state, team), counts(state)
    first, second = (job(RESUMED, Stacked(2, team=team)) for _ in range(2))
    save(first, after(first, CUT), out / "cut")
    found["resumed"] = facts(after(second, UPDATES, load(second, out / "cut")), team)
    torch.save((found, numbers, sums), out / f"{team.rank}.pt")
    distributed._leave()
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in thread for thread in threads), "a thread that may abort the process as it ends"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
