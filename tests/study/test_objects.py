"""Objects in place of names, from Python: the same bits, what run.json says, resuming, worker processes, refusals."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fedconcord
from fedconcord.execution.rows import tensors
from fedconcord.federation.data import DATASETS
from fedconcord.federation.models import MODELS
from fedconcord.federation.partitions import PARTITIONS
from fedconcord.interface import cli
from fedconcord.method.algorithms import METHODS
from fedconcord.study.settings.objects import digest_of, named
from fedconcord.support import imports
from fedconcord.support.errors import UserError

JOB: dict[str, Any] = {"clients": 8, "cohort": 3, "rounds": 3, "threads": 1} | {
    "method": "fedprox(mu=0.1)", "data": "digits", "model": "logreg", "partition": "dirichlet(0.1)",
}  # fmt: skip
JOB["settings"] = {"engine.threads": JOB.pop("threads")}
SAMPLES = [np.arange(i, 1437, 8) for i in range(8)]


def run(folder: Path, **more: Any) -> fedconcord.Finished:
    return fedconcord.run(**{**JOB, **more}, out=folder)


def said(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def assert_same(one: Path, other: Path, *names: str) -> None:
    for name in names or ("metrics.csv", "model.safetensors", "partition.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("objects") / "named").folder


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module of the user's into the current folder and returns its name."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str) -> str:
        (folder / "ownthings.py").write_text(source)
        return "ownthings"

    yield write
    sys.modules.pop("ownthings", None)


# -- the same bits -------------------------------------------------------------------------------------------------


def outputs_off(outputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), classes.flatten(), reduction="none").view(classes.shape)


@pytest.mark.parametrize(
    "given",
    [
        {"method": METHODS["fedprox"](mu=0.1)},
        {"method": lambda: METHODS["fedprox"](mu=0.1)},
        {"model": lambda shape, classes: MODELS["logreg"](shape, classes)},
        {"model": MODELS["logreg"]},
        {"data": lambda folder, seed: DATASETS["digits"](folder, seed)},
        {"data": DATASETS["digits"](None, 0)},
        {"partition": lambda labels, n, rng: PARTITIONS["dirichlet"](labels, n, rng, 0.1)},
    ],
    ids=["algorithm", "factory", "model-factory", "registered", "data-factory", "dataset", "partition"],
)
def test_an_object_is_what_its_name_is(tmp_path: Path, by_name: Path, given: dict[str, Any]) -> None:
    assert_same(by_name, run(tmp_path / "r", **given).folder)


def test_samples_of_each_client_are_a_partition(tmp_path: Path) -> None:
    one = run(tmp_path / "a", partition=SAMPLES, clients=None)
    two = run(tmp_path / "b", partition=lambda labels, n, rng: SAMPLES)
    assert said(one.folder)["clients"] == 8
    assert_same(one.folder, two.folder)


def test_a_loss_and_metrics_of_ones_own(tmp_path: Path) -> None:
    def within(outputs: torch.Tensor, classes: torch.Tensor) -> float:
        return float((outputs.argmax(-1) == classes).double().mean())

    usual = run(tmp_path / "a", engine="serial", loss=f"{__name__}:outputs_off")
    found = run(tmp_path / "b", engine="serial", loss=lambda *pair: outputs_off(*pair), metrics=[within, "accuracy"])
    assert found.metrics["test_within"] == found.metrics["test_accuracy"] == usual.metrics["test_accuracy"]
    assert_same(usual.folder, found.folder, "model.safetensors")
    assert said(usual.folder)["config"]["loss"] == f"{__name__}:outputs_off"
    assert "objects" not in said(usual.folder)


def test_a_module_starts_from_its_own_weights_and_keeps_them(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        net[1].weight.zero_(), net[1].bias.zero_()
    rows: list[fedconcord.Row] = []

    class Rows(fedconcord.Callback):
        def row(self, run: fedconcord.Run, row: fedconcord.Row) -> None:
            rows.append(row)

    result = run(tmp_path / "r", model=net, callbacks=[Rows()])
    assert rows[0].metrics is not None
    assert rows[0].metrics["test_loss"] == pytest.approx(np.log(10))
    assert not net[1].weight.any()
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.float32))
    with pytest.raises(UserError, match="given from Python as an object, which this process does not have"):
        fedconcord.predict(result.folder, tmp_path / "x.npy", tmp_path / "p.csv")
    fedconcord.predict(result.folder, tmp_path / "x.npy", tmp_path / "p.csv", model=net)
    weights, _ = tensors.read(result.folder / "model.safetensors")
    bias = next(leaf for name, leaf in weights.items() if name.endswith("bias"))
    told = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    assert [int(cells[1]) for cells in told] == [int(bias.argmax())] * 2


# -- data ----------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.tensor(X[i]), int(Y[i])


def dataset(given: object) -> fedconcord.Dataset:
    text, _held = named("data", given)
    from fedconcord.study.settings.problem import dataset_of
    from fedconcord.study.settings.settings import InputSettings

    return dataset_of(text, None, 0, InputSettings())


@pytest.mark.parametrize(
    "given",
    [(X, Y), {"x": X, "y": Y}, TensorDataset(torch.tensor(X), torch.tensor(Y)), Squares(), (X.tolist(), Y.tolist())],
    ids=["pair", "mapping", "tensors", "map-style", "lists"],
)
def test_forms_of_the_same_data(given: object) -> None:
    usual, found = dataset((X, Y)), dataset(given)
    for one, other in zip(usual[1:5], found[1:5], strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(found.test_y) == 12
    assert found.natural is None


def test_clients_and_test_samples_from_python() -> None:
    found = dataset(({"Bern": (X[:20], Y[:20]), "Aarau": Squares()}, (X[:5], Y[:5])))
    assert found.client_names == ["Aarau", "Bern"]
    assert [len(samples) for samples in found.natural or []] == [60, 20]
    np.testing.assert_array_equal(found.train_x[(found.natural or [])[1]], X[:20])
    np.testing.assert_array_equal(found.test_x, X[:5])


# -- what run.json says, and resuming ------------------------------------------------------------------------------


def net(scale: float) -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        made[1].weight.fill_(scale), made[1].bias.zero_()
    return made


def test_a_run_goes_on_with_the_same_objects_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DATASETS["digits"](None, 0)
    objects: dict[str, Any] = {"method": METHODS["fedprox"](mu=0.2), "model": net(0.1), "data": data}
    whole = run(tmp_path / "whole", **objects, rounds=5)
    parts = run(tmp_path / "parts", **objects).folder
    about = said(parts)["objects"]
    assert about["method"].startswith('Algorithm {"name":"fedprox","parameters":{"mu":0.2')
    assert "650 parameters, which start as they were given; sha256 " in about["model"]
    assert "train_x float32 [1437, 1, 8, 8]" in about["data"]
    with pytest.raises(UserError, match=r"model is object:Sequential_\w+ .* was begun with object:Sequential_"):
        fedconcord.run(resume=parts, rounds=5, **{**objects, "model": net(0.2)})
    with pytest.raises(UserError, match="resume it with the same object"):
        fedconcord.run(resume=parts, rounds=5, **{**objects, "method": METHODS["fedprox"](mu=0.3)})
    with pytest.raises(UserError, match=r"give the same one again, as in fedconcord.run\(resume=..., data=...\)"):
        fedconcord.run(resume=parts, rounds=5)
    assert cli.call(["run", "--resume", str(parts), "--rounds", "5"]) == 2
    assert "was given from Python as an object" in capsys.readouterr().err
    again = {"method": METHODS["fedprox"](mu=0.2), "model": net(0.1), "data": data._replace()}
    assert fedconcord.run(resume=parts, rounds=5, **again).rounds == 5
    assert_same(whole.folder, parts)


def test_what_is_importable_stands_as_its_path(tmp_path: Path) -> None:
    assert named("model", MODELS["logreg"]) == ("logreg", [])
    assert named("loss", outputs_off) == (f"{__name__}:outputs_off", [])
    assert imports.path_of(Squares) == f"{__name__}:Squares"
    for hidden in (lambda: 0, Squares(), 3, Squares().__len__):
        assert imports.path_of(hidden) is None


def make(value: object) -> Callable[[], object]:
    return lambda: value


def scaled(by: float = 1.0) -> Callable[..., float]:
    def scale(x: float, more: float = by) -> float:
        return x * more

    return scale


def test_digests_tell_contents_apart() -> None:
    things: list[Callable[[], object]] = [
        lambda: lambda x: x + 1, lambda: lambda x: x + 2, lambda: lambda x, y: x + 1, lambda: lambda x, y=3: x + 1,
        lambda: make(1), lambda: make(1.0), lambda: make("1"), lambda: make(X), lambda: make(X + 1), lambda: make([X]),
        lambda: scaled(1.0), lambda: scaled(2.0), lambda: net(0.1), lambda: net(0.2), lambda: (X, Y),
        lambda: (X, Y + 1), lambda: METHODS["fedprox"](mu=0.1), lambda: METHODS["fedprox"](mu=0.2),
        lambda: X.astype(np.float64), lambda: X.T.copy(), lambda: torch.tensor(X).bfloat16(), lambda: {"a": X},
    ]  # fmt: skip
    digests = [digest_of(thing()) for thing in things]
    assert digests == [digest_of(thing()) for thing in things]
    assert len(set(digests)) == len(digests)
    itself: list[object] = []
    itself.append(itself)
    assert digest_of(itself) == digest_of(itself)


# -- methods by import path, and worker processes ------------------------------------------------------------------

MINE = '''
from typing import Annotated
from pydantic import Field
from fedconcord.method.algorithms import METHODS

def mine(beta: Annotated[float, Field(ge=0, description="weight")] = 0.1, note=None):
    """FedProx under another name."""
    return METHODS["fedprox"](mu=beta)

def broken(): raise RuntimeError("planted")
def nothing(): return 3
three = 3
'''


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("nowhere:mine", "cannot import the method nowhere:mine: ModuleNotFoundError"),
        ("ownthings:mien", "ownthings has no 'mien' (did you mean 'mine'?)"),
        ("ownthings:three", "method ownthings:three is int, not a function"),
        ("ownthings:nothing", "method ownthings:nothing returned int; return a fedconcord.Algorithm"),
        ("ownthings:broken", "method ownthings:broken failed when it was made: RuntimeError: planted"),
        ("ownthings:mine(beta=-1)", "method ownthings:mine: beta must be a number >= 0, given -1"),
        ("ownthings:mine(gamma=1)", "method ownthings:mine has no parameter 'gamma'; it has beta, note"),
    ],
)
def test_a_wrong_path_is_one_sentence(
    own_module: Callable[[str], str], capsys: pytest.CaptureFixture[str], method: str, sentence: str
) -> None:
    own_module(MINE)
    assert cli.call(["compare", "--methods", f"fedavg,{method}", "--data", "quadratics", "--out", "c"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not Path("c").exists()


@pytest.mark.usefixtures("quick_report")
@pytest.mark.slow
def test_paths_and_objects_reach_worker_processes(tmp_path: Path, own_module: Callable[[str], str]) -> None:
    own_module(MINE)
    shared = {**JOB, "data": (X, Y), "model": nn.Linear(4, 3), "partition": [np.arange(i, 48, 8) for i in range(8)]}
    del shared["method"]
    alone = fedconcord.compare(["fedprox(mu=0.5)", "scaffold"], **shared, out=tmp_path / "alone")
    found = fedconcord.compare(["ownthings:mine(beta=0.5)", METHODS["scaffold"]], **shared, out=tmp_path / "c", jobs=2)
    assert [result.label for result in found.runs] == ["ownthings:mine(beta=0.5)", "scaffold"]
    for one, other in zip(alone.runs, found.runs, strict=True):
        assert (other.status, other.error) == ("complete", None)
        assert_same(one.folder, other.folder)
    assert set(said(found.runs[0].folder)["objects"]) == {"model", "data", "partition"}
    again = {key: shared[key] for key in ("data", "model", "partition")}
    longer = fedconcord.compare(resume=tmp_path / "c", jobs=1, rounds=4, **again)
    assert [result.rounds for result in longer.runs] == [4, 4]


def test_what_cannot_be_sent_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for method in (METHODS["fedprox"](mu=0.1), lambda: METHODS["fedavg"]()):
        with pytest.raises(UserError, match=r"jobs > 1 .* cannot be sent to them \(.*\); use jobs=1"):
            fedconcord.compare(["scaffold", method], data="quadratics", out=tmp_path / "c", jobs=2)
    assert not (tmp_path / "c").exists()


@pytest.mark.usefixtures("quick_report")
def test_the_example_of_the_page_by_path_and_as_an_object(
    own_module: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-method.md").read_text()
    method, *_, use = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^fedconcord (compare .*fedmemory.*)$", page, re.MULTILINE)
    own_module("")
    Path("fedmemory.py").write_text(method)
    assert cli.call(shlex.split(command.replace("--rounds 20", "--rounds 2"))) == 0
    names: dict[str, Any] = {}
    exec(method + use.replace("rounds=20", "rounds=2"), names)
    one, two = (next(Path(out).glob("*fedmemory*/seed-0")) for out in ("memory", "memory-too"))
    assert_same(one, two)
    assert said(two)["label"] == "fedmemory(mu=0.5)"
    assert two.parent.name == "fedmemory-mu=0.5"
    sys.modules.pop("fedmemory")


@pytest.mark.slow
def test_a_search_takes_objects_and_goes_on_with_them(tmp_path: Path) -> None:
    objects: dict[str, Any] = {"data": (np.tile(X, (4, 1)), np.tile(Y, 4)), "model": nn.Linear(4, 3)}
    job: dict[str, Any] = {"clients": 6, "cohort": 3, "rounds": 2, "budget": 2}
    found = fedconcord.tune(["fedavg", "scaffold"], **objects, **job, jobs=2, out=tmp_path / "t")
    assert [result.status for result in found.runs] == ["complete"] * len(found.runs)
    assert fedconcord.tune(resume=tmp_path / "t", **objects) == found
    with pytest.raises(UserError, match="resume it with the same object"):
        fedconcord.tune(resume=tmp_path / "t", **{**objects, "model": net(0.5)})


# -- refusals ------------------------------------------------------------------------------------------------------


class Frame:
    """A table as pandas has it: its items are columns."""

    columns = ("a", "b")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> object:
        raise KeyError(name)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": X}, "model is ndarray; give a torch.nn.Module, or a function"),
        ({"model": lambda shape: nn.Linear(4, 3)}, r"cannot be called with \(shape, classes\)"),
        ({"model": lambda shape, classes: 3}, "returned int; return a torch.nn.Module"),
        ({"data": (X, Y[:5])}, r"x has shape \(60, 4\) and y \(5,\)"),
        ({"data": {}}, "data has no clients"),
        ({"data": {"a": (X, Y), "b": (X[:, :2], Y)}}, r"client 'b' have shape \(2,\) and those of 'a' \(4,\)"),
        ({"data": object()}, "data is object, which is no data set; give "),
        ({"data": Frame()}, "data is Frame, which is no data set; give "),
        ({"data": lambda folder, seed: 1 / 0}, "failed when they were made: ZeroDivisionError"),
        ({"partition": [[0, 1], [1, 2]]}, "gives a sample twice"),
        ({"partition": [[0], [48]]}, "client 1 has sample 48, and there are 0 to 47"),
        ({"partition": [[0], []]}, "leaves client 1 without samples"),
        ({"partition": [[0], [1]], "clients": 3}, "has 2 clients, given clients 3; leave clients out"),
        ({"partition": lambda labels, n, rng: [[0]], "clients": 2}, "has 1 clients, and clients is 2"),
        ({"partition": lambda labels, n, rng: 1 / 0}, "failed for 48 samples and 10 clients: ZeroDivisionError"),
        ({"partition": object()}, "partition is object; give a function"),
        ({"loss": nn.CrossEntropyLoss()}, "one number a sample is needed"),
        ({"method": lambda: 3}, "returned int; return a fedconcord.Algorithm"),
        ({"method": X}, "method is ndarray; give a fedconcord.Algorithm"),
        ({"metrics": [3]}, "metrics must be a list of metrics"),
    ],
)  # fmt: skip
def test_a_wrong_object_is_one_sentence(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    job = {"data": (X, Y), "model": nn.Linear(4, 3), "partition": "iid", "clients": 10, **given}
    if "partition" in given and "clients" not in given and not callable(given["partition"]):
        del job["clients"]
    with pytest.raises(UserError, match=sentence):
        fedconcord.run(**job, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()
