"""Models of a class for each token, in use: predictions and programs through the real command, against the module."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedconcord.federation.data.dataset import IGNORED
from pages import ROOT, command, steps

PAGE = ROOT / "docs" / "own-data.md"
LOADER = """
import sys, numpy, torch
assert not any(name.startswith(("fedconcord", "transformers")) for name in sys.modules)
program = torch.export.load(sys.argv[1]).module()
numpy.save(sys.argv[3], program(torch.from_numpy(numpy.load(sys.argv[2]))).detach().numpy())
"""
TAGS = """
import numpy as np
import fedconcord

def tagged(folder, seed, length=20, names=None):
    draw = np.random.default_rng(1)
    x = np.zeros((24, length), np.int64)
    for row, count in zip(x, draw.integers(4, 13, 24)):
        row[:count] = draw.integers(1, 20, count)
    y = np.where(x > 0, x % 3, -100)
    y[:, 1] = -100  # which no padding is
    every = [np.arange(0, 10), np.arange(10, 24)]
    names = ["noun", "verb", "rest"]
    return fedconcord.Dataset("tagged", x, y, x[:6], y[:6], 3, every, "tokens", output_names=names)
"""


def told(folder: Path, *arguments: str) -> None:
    done = command(folder, *arguments)
    assert done.returncode == 0, done.stderr


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def answers(program: Path, x: np.ndarray, folder: Path) -> np.ndarray:
    """What an exported program answers where neither this package nor transformers is."""
    np.save(folder / "in.npy", x)
    arguments = [str(program), str(folder / "in.npy"), str(folder / "out.npy")]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-P", "-c", LOADER, *arguments], check=True, env=bare, timeout=120)
    given: np.ndarray = np.load(folder / "out.npy")
    return given


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the page's own module."""
    folder = tmp_path_factory.mktemp("counting")
    [text] = [step.text for step in steps(PAGE) if step.file == "counting.py"]
    (folder / "counting.py").write_text(text + "\n")
    options = ["--data", "counting:texts", "--target-kind", "tokens", "--model", "counting:Reads", "--rounds", "3"]
    told(folder, "run", *options, "--lr", "1", "--out", "counting")
    return folder


def rows_of(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """New texts [2, 72], and the probabilities [2, 72, 28] that the page's module gives with the run's weights."""
    names: dict[str, type[torch.nn.Module]] = {}
    exec((folder / "counting.py").read_text(), names)
    model = names["Reads"]((72,), 28)
    model.load_state_dict(load_file(folder / "counting" / "model.safetensors"))
    x = np.zeros((2, 72), np.int64)
    x[0, :9] = [15, 14, 5, 27, 20, 23, 15, 27, 20]
    x[1, :72] = 1 + np.arange(72) % 27
    with torch.no_grad():
        return x, torch.softmax(model(torch.from_numpy(x)), -1).numpy()


def test_predict_answers_each_token_of_the_page_s_texts(counting: Path, tmp_path: Path) -> None:
    x, wanted = rows_of(counting)
    np.save(counting / "new.npy", x)
    told(counting, "predict", "counting", "new.npy", "--trust", "--out", str(tmp_path / "told.csv"))
    rows = table(tmp_path / "told.csv")
    assert list(rows[0]) == ["row", "position", "token", "label", "p"]
    assert [(int(r["row"]), int(r["position"])) for r in rows] == [
        *((0, t) for t in range(9)),
        *((1, t) for t in range(72)),
    ]
    for r in rows:
        i, t = int(r["row"]), int(r["position"])
        assert int(r["token"]) == x[i, t]
        assert int(r["label"]) == wanted[i, t].argmax()
        assert abs(float(r["p"]) - wanted[i, t].max()) < 1e-6


def test_a_token_without_a_class_in_the_file_is_left_out(counting: Path, tmp_path: Path) -> None:
    x, _ = rows_of(counting)
    y = np.full(x.shape, IGNORED)
    y[0, 2:4], y[1, 70] = 1, 0
    np.savez(tmp_path / "new.npz", x=x, y=y)
    told(counting, "predict", "counting", str(tmp_path / "new.npz"), "--trust", "--out", str(tmp_path / "told.csv"))
    assert [(r["row"], r["position"]) for r in table(tmp_path / "told.csv")] == [("0", "2"), ("0", "3"), ("1", "70")]
    np.savez(tmp_path / "new.npz", x=x, y=y[:, :5])
    done = command(counting, "predict", "counting", str(tmp_path / "new.npz"), "--trust")
    assert done.returncode == 2
    assert "y has shape (2, 5), and x has (2, 72); give a class for each token, or leave y out" in done.stderr
    done = command(counting, "predict", "counting", "new.npy", "--trust", "--threshold", "0.3")
    assert "this model answers a class for each token; leave it out" in done.stderr


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_the_program_answers_each_token_where_the_package_is_not(format: str, counting: Path, tmp_path: Path) -> None:
    x, wanted = rows_of(counting)
    path = tmp_path / "model"
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    told(counting, "export", "counting", "--format", format, "--trust", "--out", str(path))
    if format == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
        (given,) = session.run(["probability"], {"raw": x})
    else:
        given = answers(path, x, tmp_path)
    assert given.shape == (2, 72, 28)
    assert np.abs(given - wanted).max() < 1e-5
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["pad"] == 0
    assert about["input"] == "int64 [batch, 72], raw, filled up with the token 0"
    assert about["output"].startswith("float32 [batch, 72, outputs], the probability of each class at each token")


@pytest.mark.parametrize("head", ["token", "next"])
def test_a_transformer_of_a_folder_masks_its_padding_in_use(head: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=8, n_layer=2, n_head=2, n_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=1
    )
    torch.manual_seed(3)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    (tmp_path / "tags.py").write_text(TAGS)
    options = ["--data", "tags:tagged", "--model", f"hf(path='gpt',head={head})", "--rounds", "1", "--cohort", "2"]
    told(tmp_path, "run", *options, "--partition", "natural", "--out", "ran")
    x = np.zeros((2, 20), np.int64)
    x[0, :6], x[1, :20] = range(7, 13), range(5, 25)
    np.save(tmp_path / "new.npy", x)
    told(tmp_path, "predict", "ran", "new.npy", "--trust", "--out", "told.csv")
    told(tmp_path, "export", "ran", "--trust", "--out", "model.pt2")
    given = answers(tmp_path / "model.pt2", x, tmp_path)
    rows = table(tmp_path / "told.csv")
    names = ["noun", "verb", "rest", *map(str, range(3, 30))]  # a vocabulary has more
    assert [(r["row"], r["position"]) for r in rows] == [
        *(("0", str(t)) for t in range(6)),
        *(("1", str(t)) for t in range(20)),
    ]
    assert [r["label"] for r in rows] == [names[given[int(r["row"]), int(r["position"])].argmax()] for r in rows]
    # the library itself, on the text alone, without any padding
    Auto = transformers.AutoModelForCausalLM if head == "next" else transformers.AutoModelForTokenClassification
    model = Auto.from_pretrained(tmp_path / "gpt", **({} if head == "next" else {"num_labels": 3}))
    weights = load_file(tmp_path / "ran" / "model.safetensors")
    model.load_state_dict({name.removeprefix("body."): value for name, value in weights.items()}, strict=False)
    with torch.no_grad():
        alone = torch.softmax(model.eval()(torch.from_numpy(x[:1, :6])).logits, -1).numpy()
    assert np.abs(given[:1, :6] - alone).max() < 1e-5
