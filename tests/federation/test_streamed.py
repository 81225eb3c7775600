"""Synthetic clients that do not fit in memory: drawn when they take part, with the bits of those that do."""

import re
import shlex
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.offline import synthetic
from fedconcord.federation.models import two_nn
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.interface import cli
from fedconcord.method.algorithms import METHODS
from fedconcord.study.settings.problem import divided, problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError

CLIENTS, SEED = 8, 219  # few samples
MODULE = synthetic.__globals__  # its name in the package is the function's


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory held nothing."""
    monkeypatch.setitem(MODULE, "IN_MEMORY", 0)
    monkeypatch.setitem(MODULE, "JUDGED", 3)


def smooth(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Without a kernel."""
    return nn.Sequential(nn.Linear(shape[0], 5), nn.Tanh(), nn.Linear(5, classes))


def problem(data: Dataset, model: Any) -> Supervised:
    assert data.natural is not None
    return Supervised(lambda: model((60,), 10), data, data.natural, dtype=torch.float64)


@pytest.mark.parametrize(
    ("model", "engine", "kept"), [(two_nn, Stacked(3, 1), 2**28), (smooth, Stacked(3, 1), 1), (smooth, Serial(), 1)]
)
def test_rounds_have_the_bits_of_clients_in_memory(
    small: None, monkeypatch: pytest.MonkeyPatch, model: Any, engine: Any, kept: int
) -> None:
    monkeypatch.setattr("fedconcord.federation.objectives.streamed.KEPT", kept)
    few = synthetic(Path(), SEED, clients=CLIENTS)
    assert few.streams is not None
    monkeypatch.setitem(MODULE, "IN_MEMORY", 2**30)
    whole = problem(synthetic(Path(), SEED, clients=CLIENTS), model)
    streamed = Streamed(problem(few, model), few.streams)
    assert (streamed.offsets.tolist(), streamed.roster.sizes.tolist()) == (whole.offsets.tolist(), whole.sizes.tolist())
    ends = []
    for one in (whole, streamed):
        job = Job(one, METHODS["mimesvrg"](), Schedule(3, 3, 0.05, batch_size=20), engine=engine)
        state = advance(job, advance(job, start(job)))
        ends.append(state.server.x)
    assert torch.equal(*ends)
    samples = torch.tensor([0, int(whole.offsets[3]), int(whole.offsets[-1]) - 1])  # of several clients
    x = whole.init(0)
    assert torch.equal(streamed.objective.gradient(x, samples), whole.gradient(x, samples))
    assert torch.equal(streamed.objective.loss(x, samples), whole.loss(x, samples))
    assert streamed.evaluator.evaluate(x).keys() == whole.evaluate(x).keys()


def test_many_clients_take_bytes_and_no_samples(small: None) -> None:
    many = 20_000
    tracemalloc.start()
    data = synthetic(Path(), 0, clients=many)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data.streams is not None
    assert len(data.streams.offsets) == many + 1
    assert 100 * peak < 4 * 60 * data.streams.offsets[-1]  # the samples' bytes


def test_the_command_of_the_document_runs(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed but for the number of clients."""
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    found = re.search(r"```\w*\nfedconcord (run .*?)\n```", text, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("1000000", "30").replace("--cohort 100", "--cohort 4"))
    monkeypatch.chdir(tmp_path)
    assert cli.call(words) == 0
    assert "complete" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "rows.bin").exists()
    assert (folder / "model.json").exists()


def test_what_needs_all_samples_is_refused(small: None) -> None:
    def settings(**more: Any) -> Any:
        return resolve_run(from_nested({"data": "synthetic", "clients": 5, "cohort": 2, **more}, "test"))

    for more, said in (
        ({"partition": "iid"}, "can be neither divided anew nor skewed; leave partition and skew out, or use fewer"),
        ({"skew": "noise(0.1)"}, "can be neither divided anew nor skewed"),
        ({"validation": 0.1}, "validation 0.1 needs the samples of all clients in memory"),
        ({"task": "clustering(k=2)"}, "clustering.* needs the samples of all clients in memory"),
    ):
        with pytest.raises(UserError, match=said):
            problem_of(settings(**more))
    with pytest.raises(UserError, match="do not fit in memory to be described"):
        divided(settings())
    assert problem_of(settings()).roster.samples.min() > 0
