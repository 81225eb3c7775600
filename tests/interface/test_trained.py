"""A run's folder is enough: the exported programs and the predictions against the model in the run's own terms."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fedconcord
from fedconcord.execution.rows import tensors
from fedconcord.federation.data import DATASETS
from fedconcord.federation.data.pixels import read_idx
from fedconcord.federation.models import MODELS
from fedconcord.interface import cli
from fedconcord.interface.trained.predict import read
from fedconcord.interface.trained.program import Program, load
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError
from tiers import tiers

LOADER = """
import sys, numpy, torch
program = torch.export.load(sys.argv[1]).module()
numpy.save(sys.argv[3], program(torch.from_numpy(numpy.load(sys.argv[2]))).detach().numpy())
"""


def digits_raw() -> np.ndarray:
    """The test images of digits as scikit-learn has them, 0 to 16, [360, 1, 8, 8]."""
    data = DATASETS["digits"](Path(), 0)
    return (data.test_x * 16).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for model in ("2nn", "cnn1"):
        fedconcord.run("fedavg", data="digits", model=model, clients=5, cohort=5, rounds=2, out=root / model)
    fedconcord.run("fedavg", data="synthetic(clients=4)", model="logreg", cohort=4, rounds=1, out=root / "plain")
    return root


def reference(run: Path, model: str) -> np.ndarray:
    """Probabilities of the digits test images, by the network itself on the samples as training sees them."""
    data = DATASETS["digits"](Path(), 0)
    network = MODELS[model](data.shape, 10)
    network.load_state_dict(load_file(run / "model.safetensors"))
    with torch.no_grad():
        return torch.softmax(network(torch.from_numpy(data.test_x)), -1).numpy()


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# -- programs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["2nn", "cnn1"])
def test_the_exported_program_in_a_fresh_process(model: str, runs: Path, tmp_path: Path) -> None:
    """It needs torch alone, takes raw pixels and any number of them."""
    path = fedconcord.export(runs / model, out=tmp_path / "model.pt2")
    raw = digits_raw()
    for count in (1, 7, 360):
        np.save(tmp_path / "in.npy", raw[:count])
        arguments = [str(path), str(tmp_path / "in.npy"), str(tmp_path / "out.npy")]
        bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-P", "-c", LOADER, *arguments], check=True, env=bare, timeout=120)
        given = np.load(tmp_path / "out.npy")
        assert given.dtype == np.float32
        assert np.abs(given - reference(runs / model, model)[:count]).max() < 1e-5
    about = json.loads((tmp_path / "model.pt2.json").read_text())
    assert about["preprocessing"]["divide"] == 16
    assert about["input"] == "float32 [batch, 1, 8, 8], raw"


@pytest.mark.parametrize("model", tiers(["2nn", "cnn1"], quick=("2nn",)))
def test_the_onnx_program_in_onnxruntime(model: str, runs: Path, tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path = fedconcord.export(runs / model, "onnx", tmp_path / "deep" / "model.onnx")
    onnx.checker.check_model(str(path), full_check=True)
    session = runtime.InferenceSession(str(path))
    assert [i.name for i in session.get_inputs()] == ["raw"]
    for count in (1, 360):
        (given,) = session.run(["probability"], {"raw": digits_raw()[:count]})
        assert np.abs(given - reference(runs / model, model)[:count]).max() < 1e-5
    assert {p.name for p in path.parent.iterdir()} == {"model.onnx", "model.onnx.json"}


def test_scaling_is_that_of_the_loader_to_the_bit(data_dir: Path) -> None:
    """MNIST's raw bytes through the program's first part are the training samples."""
    data = DATASETS["mnist"](data_dir, 0).scaled()
    card = {"preprocessing": data.preprocessing, "target": "number", "dtype": "float32", "shape": data.shape}
    card |= {"inputs": "numbers", "unit": None}
    files = sorted((data_dir / "mnist").glob("t10k-images*"))
    raw = torch.from_numpy(read_idx(files[0], 3)[:500].astype(np.float32))[:, None]
    assert torch.equal(Program(torch.nn.Identity(), card)(raw), torch.from_numpy(data.test_x[:500]))


def test_numbers_and_labels() -> None:
    outputs = torch.tensor([[0.0, 2.0], [-1.0, 1.0]])
    plain = {"preprocessing": None, "dtype": "float32", "shape": [2], "inputs": "numbers", "unit": None}
    assert torch.equal(Program(torch.nn.Identity(), plain | {"target": "number"})(outputs), outputs)
    assert torch.equal(Program(torch.nn.Identity(), plain | {"target": "labels"})(outputs), torch.sigmoid(outputs))
    metres = plain | {"target": "number", "unit": ([10.0, 0.0], [2.0, 1.0])}  # mean and scale of each label
    assert torch.equal(Program(torch.nn.Identity(), metres)(outputs), torch.tensor([[10.0, 2.0], [8.0, 1.0]]))


def test_symbols_stay_whole_numbers() -> None:
    card = {"preprocessing": None, "dtype": "float32", "shape": [5], "inputs": "symbols", "unit": None}
    model = torch.nn.Sequential(torch.nn.Embedding(7, 3), torch.nn.Flatten(), torch.nn.Linear(15, 2))
    symbols = torch.randint(7, (4, 5))
    out = Program(model, card | {"target": "class"})(symbols)
    assert torch.equal(out, torch.softmax(model(symbols), -1))


# -- predictions ---------------------------------------------------------------------------------------------------


def test_predictions_are_as_accurate_as_the_run_says(runs: Path, tmp_path: Path) -> None:
    """From the folder alone, copied elsewhere, for every kind of file."""
    folder = tmp_path / "copied"
    shutil.copytree(runs / "2nn", folder)
    truth = DATASETS["digits"](Path(), 0).test_y
    accuracy = float(table(folder / "metrics.csv")[-1]["test_accuracy"])
    raw = digits_raw()
    np.save(tmp_path / "a.npy", raw)
    np.save(tmp_path / "flat.npy", raw.reshape(360, 64).astype(np.uint8))
    np.savez(tmp_path / "b.npz", x=raw[:, 0], y=truth)
    np.savetxt(
        tmp_path / "c.csv", raw.reshape(360, 64), delimiter=",", header=",".join(map(str, range(64))), comments="#"
    )
    (tmp_path / "images").mkdir()
    for k, image in enumerate(raw[:, 0].astype(np.uint8)):
        Image.fromarray(image).save(tmp_path / "images" / f"{k:03}.png")
    (tmp_path / "images" / "notes.txt").write_text("no image")
    expected = reference(folder, "2nn")
    for name in ("a.npy", "flat.npy", "b.npz", "c.csv", "images"):
        rows = table(fedconcord.predict(folder, tmp_path / name, tmp_path / "out" / f"{name}.out.csv"))
        assert len(rows) == 360
        assert np.mean([int(row["label"]) == y for row, y in zip(rows, truth, strict=True)]) == pytest.approx(accuracy)
        given = np.array([[float(row[f"p_{k}"]) for k in range(10)] for row in rows])
        assert np.abs(given - expected).max() < 1e-6
        assert next(iter(rows[0])) == ("file" if name == "images" else "row")
    assert rows[7]["file"] == "007.png"


def test_a_file_that_holds_something_else_is_not_replaced(runs: Path, tmp_path: Path) -> None:
    folder, table_ = runs / "2nn", tmp_path / "in.csv"
    np.savetxt(table_, digits_raw().reshape(360, 64), delimiter=",", header=",".join(map(str, range(64))), comments="#")
    before = table_.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    for out in (table_, folder / "metrics.csv", tmp_path, tmp_path / "pipe"):
        with pytest.raises(UserError, match=r"is there and holds no predictions; give another file"):
            fedconcord.predict(folder, table_, out)
        with pytest.raises(UserError, match=r"is there and was not exported, as it has no .*\.json beside it"):
            fedconcord.export(folder, "torch", out)
    assert table_.read_bytes() == before
    assert (tmp_path / "pipe").is_fifo()
    for _ in range(2):  # predictions replace predictions
        assert len(table(fedconcord.predict(folder, table_, tmp_path / "out.csv"))) == 360


def test_batches_are_bounded(runs: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "many.npy", np.tile(digits_raw(), (6, 1, 1, 1)))
    sizes = [len(batch.raw) for batch in read(load(runs / "2nn").card, tmp_path / "many.npy")]
    assert sizes == [1024, 1024, 112]
    rows = table(fedconcord.predict(runs / "2nn", tmp_path / "many.npy", tmp_path / "out.csv"))
    assert [row["row"] for row in rows] == [str(k) for k in range(2160)]
    assert [row["label"] for row in rows[:360]] == [row["label"] for row in rows[-360:]]


def test_names_of_outputs_are_used(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    shutil.copytree(runs / "plain", folder)
    about = json.loads((folder / "model.json").read_text())
    assert about["preprocessing"] is None
    x = np.random.default_rng(0).normal(size=(3, 60)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    network = MODELS["logreg"]((60,), 10)
    network.load_state_dict(load_file(folder / "model.safetensors"))
    outputs = network(torch.from_numpy(x)).detach()
    names = [f"kind {k}" for k in range(10)]
    for target, header in (
        ("class", ["row", "label", *(f"p_{name}" for name in names)]),
        ("number", ["row", *names]),
        ("labels", ["row", "labels", *(f"p_{name}" for name in names)]),
    ):
        sums.write(folder, {"model.json": files.as_json(about | {"output_names": names, "target": target})})
        rows = table(fedconcord.predict(folder, tmp_path / "x.npy", tmp_path / "out.csv"))
        assert [*rows[0]] == header
        for row, given in zip(rows, outputs, strict=True):
            if target == "class":
                assert row["label"] == names[int(given.argmax())]
            elif target == "number":
                assert [float(row[name]) for name in names] == pytest.approx(given.tolist(), rel=1e-5)
            else:
                assert row["labels"] == ";".join(n for n, v in zip(names, given, strict=True) if v >= 0)


# -- sentences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda p: np.save(p / "x.npy", np.zeros((4, 9, 9))),
            r"has shape \(4, 9, 9\), and the model takes \[n, 1, 8, 8\]",
        ),
        (lambda p: np.save(p / "x.npy", np.full((4, 64), np.nan)), "row 0 holds NaN"),
        (lambda p: np.save(p / "x.npy", np.array([["a"]])), "the model takes numbers"),
        (lambda p: np.save(p / "x.npy", np.zeros((0, 64))), "holds nothing to predict"),
        (lambda p: np.savez(p / "x.npz", a=np.zeros(3), b=np.zeros(3)), "holds the arrays a, b; name the inputs x"),
        (lambda p: (p / "x.npy").write_bytes(b"not numpy"), "cannot read"),
        (lambda p: (p / "x.csv").write_text("1,2,3\n"), "row 0 has 3 columns, and the model takes 64"),
        (lambda p: (p / "x.csv").write_text("0," * 63 + "0\n" + "0," * 63 + "blue\n"), "row 1 holds 'blue'"),
        (
            lambda p: (p / "x.csv").write_text(",".join(map(str, range(64))) + "\n"),
            r"begins with 0,1,...: leave that head",
        ),
        (lambda p: (p / "x.pkl").write_bytes(b""), "is none of .npy"),
        (lambda p: (p / "x").mkdir(), "holds no image"),
        (lambda p: Image.new("L", (9, 8)).save(p / "x.png"), "is 9x8 pixels, and the model takes 8x8"),
        (lambda p: (p / "x.png").write_bytes(b"not an image"), "cannot read the image"),
        (lambda p: Image.new("I;16", (8, 8)).save(p / "x.png"), "has over 8 bits a pixel; save it with 8"),
        (lambda p: None, "there is no file or folder"),
    ],
)
def test_bad_inputs_are_sentences(make: object, says: str, runs: Path, tmp_path: Path) -> None:
    make(tmp_path)  # type: ignore[operator]
    found = next((p for p in tmp_path.iterdir()), tmp_path / "absent.npy")
    with pytest.raises(UserError, match=says):
        fedconcord.predict(runs / "2nn", found, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_folders_without_a_model_are_sentences(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no run \(no run.json\)"):
        fedconcord.export(tmp_path)
    fedconcord.run("fedavg", data="quadratics", rounds=1, out=tmp_path / "q")
    with pytest.raises(UserError, match=r"holds no model to use \(no model.json\)"):
        fedconcord.export(tmp_path / "q")
    shutil.copytree(runs / "2nn", tmp_path / "mixed")
    shutil.copy(runs / "cnn1" / "model.safetensors", tmp_path / "mixed" / "model.safetensors")
    with pytest.raises(UserError, match="are not of the model 2nn"):
        fedconcord.export(tmp_path / "mixed")
    (tmp_path / "mixed" / "model.safetensors").write_bytes(b"\x10garbage")
    with pytest.raises(UserError, match="cannot read the model"):
        fedconcord.export(tmp_path / "mixed")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="images"):
        fedconcord.predict(runs / "plain", tmp_path / "folder", tmp_path / "out.csv")


def test_the_commands(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedconcord.interface.cli import call

    np.save(tmp_path / "x.npy", digits_raw())
    assert call(["predict", str(runs / "2nn"), str(tmp_path / "x.npy"), "--out", str(tmp_path / "p.csv")]) == 0
    assert call(["export", str(runs / "2nn"), "--out", str(tmp_path / "m.pt2")]) == 0
    out = capsys.readouterr().out
    assert f"predictions: {tmp_path / 'p.csv'}" in out
    assert f"model: {tmp_path / 'm.pt2'}" in out
    assert call(["export", str(runs / "2nn"), "--format", "onx"]) == 2
    assert "did you mean 'onnx'?" in capsys.readouterr().err
    assert call(["predict", str(tmp_path), str(tmp_path / "x.npy")]) == 2
    assert "holds no run" in capsys.readouterr().err


# -- what is of no use ---------------------------------------------------------------------------------------------


def test_the_model_of_a_lost_run_needs_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an export nor a prediction of nan without a word; nor with finite weights of a run that diverged."""
    given = {"data": "synthetic(clients=4)", "model": "logreg", "cohort": 4, "rounds": 3}
    run, other = tmp_path / "run", tmp_path / "other"
    assert fedconcord.run("fedavg", **given, lr=1e38, out=run).status == "diverged"  # type: ignore[arg-type]
    np.save(tmp_path / "in.npy", np.zeros((2, 60), np.float32))
    shutil.copytree(run, other)
    about = json.loads((other / "run.json").read_text())
    sums.write(other, {"run.json": files.as_json(about | {"status": "running"})})  # killed before it was noticed
    finite = {name: torch.zeros_like(leaf) for name, leaf in load_file(run / "model.safetensors").items()}
    tensors.write(run / "model.safetensors", finite)
    for folder in (run, other):
        predict = ["predict", str(folder), str(tmp_path / "in.npy"), "--out", str(tmp_path / f"{folder.name}.csv")]
        for command in (predict, ["export", str(folder)]):
            assert cli.call(command) == 2
            assert f"error: {folder} diverged, so its model answers nothing of use" in capsys.readouterr().err
        assert not (tmp_path / f"{folder.name}.csv").exists()
        assert not (folder / "model.pt2").exists()
        assert cli.call([*predict, "--force"]) == 0
        assert len(table(tmp_path / f"{folder.name}.csv")) == 2
    assert fedconcord.export(run, force=True).exists()
