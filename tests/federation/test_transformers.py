"""Transformers from a folder of HuggingFace's form: one by one and side by side, padding, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedconcord.federation.adapters import ADAPTERS
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.transformers import BUCKET, shortened, tokens
from fedconcord.support.errors import UserError

LENGTH, CLASSES, WORDS = 40, 3, 50


def saved(folder: Path, classes: int = 2, unsafe: bool = False) -> Path:
    """A two-layer BERT of width 8, in a folder."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        num_labels=classes,
    )
    torch.manual_seed(3)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    if unsafe:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


def texts(longest: int = 20, n: int = 40) -> Dataset:
    generator = np.random.default_rng(0)
    x = np.zeros((n, LENGTH), np.int64)
    for row, length in zip(x, generator.integers(3, longest + 1, n), strict=True):
        row[:length] = generator.integers(1, WORDS, length)
    y = generator.integers(0, CLASSES, n)
    return Dataset("texts", x, y, x[:9], y[:9], CLASSES)


def problem(folder: Path, data: Dataset) -> Supervised:
    halves = np.array_split(np.arange(len(data.train_y)), 2)
    return Supervised(lambda: MODELS["hf"]((LENGTH,), CLASSES, path=str(folder)), data, halves, dtype=torch.float64)


def test_clients_side_by_side_have_the_gradients_that_each_has_alone(tmp_path: Path) -> None:
    of = problem(saved(tmp_path), texts())
    x, samples = of.init(0), torch.tensor([[0, 1, 2], [21, 22, 23]])
    together = of.objective.gradients(x.expand(2, -1), samples, None)
    alone = torch.stack([of.objective.gradient(x, mine) for mine in samples])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-15)
    assert float(alone.norm()) > 1e-3


def test_a_step_is_as_long_as_its_longest_sample_and_padding_changes_nothing(tmp_path: Path) -> None:
    of = problem(saved(tmp_path), texts(longest=10))
    x, samples = of.init(0), torch.arange(6)
    assert of.samples(samples)[0].shape == (6, BUCKET)
    short = of.objective.gradient(x, samples)
    of.pad = None  # which is the whole length
    assert of.samples(samples)[0].shape == (6, LENGTH)
    torch.testing.assert_close(short, of.objective.gradient(x, samples), rtol=1e-12, atol=1e-15)


def test_the_weights_are_the_folders_and_the_head_is_the_seeds(tmp_path: Path) -> None:
    of = problem(saved(tmp_path), texts())
    first, again, other = (of.layout.views(of.init(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert [name for name in first if not torch.equal(first[name], other[name])] == ["body.classifier.weight"]


class Looks(nn.Module):
    """It averages padding too."""

    pad = 0

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.embedding(x).mean(-2))
        return out


def test_a_model_that_looks_at_padding_is_refused() -> None:
    with pytest.raises(UserError, match=r"outputs change by .* with the padding of its samples"):
        Supervised(Looks, texts(longest=10), [np.arange(40)])


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs a folder with config.json in path, given 'nowhere'"):
        MODELS["hf"]((LENGTH,), CLASSES, path="nowhere")
    with pytest.raises(UserError, match=r"a row of tokens, given samples of shape"):
        MODELS["hf"]((1, 8, 8), CLASSES, path="nowhere")
    folder = saved(tmp_path / "good")
    with pytest.raises(UserError, match=r"rows of 41 tokens; the model in .* has positions for 40"):
        MODELS["hf"]((LENGTH + 1,), CLASSES, path=str(folder))
    with pytest.raises(UserError, match=r"reads weights in safetensors alone"):
        MODELS["hf"]((LENGTH,), CLASSES, path=str(saved(tmp_path / "unsafe", unsafe=True)))
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"model 'hf' cannot be read"):
        MODELS["hf"]((LENGTH,), CLASSES, path=str(folder))


def test_texts_become_rows_of_one_length() -> None:
    rows = tokens(["ab", "abcde"], lambda text: [ord(c) - 96 for c in text], 4)
    assert rows.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert shortened(torch.tensor([[0, 0], [0, 0]]), 0).shape == (2, 2)


@pytest.mark.parametrize(("classes", "trained"), [(2, ["body.classifier.weight", "body.classifier.bias"]), (3, [])])
def test_a_head_that_starts_at_random_is_trained_beside_adapters(
    classes: int, trained: list[str], tmp_path: Path
) -> None:
    model = MODELS["hf"]((LENGTH,), CLASSES, path=str(saved(tmp_path, classes)))
    adapted = ADAPTERS["lora"](where="query", rank=2).attach(model)
    moving = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert [name for name in moving if "lora_" not in name] == trained
    assert len(moving) == len(trained) + 4


@pytest.mark.parametrize("pad", [0, None])
@pytest.mark.parametrize("head", ["sample", "token"])
def test_a_causal_model_is_what_the_library_has_of_it(head: str, pad: int | None, tmp_path: Path) -> None:
    """GPT-2 sees no token ahead below whatever head, and tells a sample by its last token before the padding."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=8, n_layer=2, n_head=2, n_positions=LENGTH, pad_token_id=pad, eos_token_id=1
    )
    torch.manual_seed(3)
    transformers.GPT2Model(config).save_pretrained(tmp_path)
    ours = MODELS["hf"]((LENGTH,), 2, path=str(tmp_path), head=head).double()
    rows = torch.tensor(texts().train_x)
    body: Any = ours.body
    given = ours(rows)
    for row, mine in zip(rows, given, strict=True):
        alone = row[row != 0][None]
        wanted = body(input_ids=alone, attention_mask=torch.ones_like(alone)).logits[0]
        torch.testing.assert_close(mine if head == "sample" else mine[: alone.shape[1]], wanted, rtol=1e-12, atol=1e-14)
    if head == "sample":
        of = problem(tmp_path, texts())
        x = of.init(5)
        samples = torch.tensor([[0, 1, 2], [21, 22, 23]])
        together = of.objective.gradients(x.expand(2, -1), samples, None)
        alone = torch.stack([of.objective.gradient(x, mine) for mine in samples])
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-15)
