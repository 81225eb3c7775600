"""Targets of tokens: what a client's loss is, its gradients on every engine, how models are judged, what is refused."""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from test_engines import assert_same, run
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.execution.job import Job
from fedconcord.federation.data.dataset import IGNORED, Dataset, Streams
from fedconcord.federation.data.inputs import Input
from fedconcord.federation.data.own import checked, from_arrays
from fedconcord.federation.data.sequences import next_tokens
from fedconcord.federation.models import MODELS
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.judging import evaluate_own, pooled
from fedconcord.federation.objectives.losses import LOSSES
from fedconcord.federation.objectives.streamed import Streamed
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.transformers import BUCKET
from fedconcord.method.contract import Conditions, Problem
from fedconcord.method.wrappers.terms import TERMS
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from table import make

LENGTH, WORDS, CLASSES = 24, 20, 3
PARTS = [np.arange(0, 4), np.arange(4, 9), np.arange(9, 16)]


class Tagger(nn.Module):
    """Each token's class from its embedding and those of the tokens before it; it has no kernel."""

    pad = 0

    def __init__(self, outputs: int = CLASSES, normalises: bool = False) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(WORDS, 4), nn.Linear(4, outputs)
        self.norm = nn.BatchNorm1d(4) if normalises else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.norm(self.embedding(tokens).cumsum(1).tanh().transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.last(features)
        return out


def tagged(longest: int = LENGTH, n: int = 16, test: int = 7) -> Dataset:
    """Rows of unequal lengths, most tokens of which have a class."""
    draw = np.random.default_rng(4)
    x = np.zeros((n, LENGTH), np.int64)
    for row, length in zip(x, draw.integers(3, longest + 1, n), strict=True):
        row[:length] = draw.integers(1, WORDS, length)
    y = np.where((x > 0) & (draw.random(x.shape) < 0.8), (x + x.cumsum(1)) % CLASSES, IGNORED)
    y[:, 0] = x[:, 0] % CLASSES
    return Dataset("tagged", x, y, x[-test:], y[-test:], CLASSES, target="tokens")


def problem(data: Dataset | None = None, parts: list[np.ndarray] = PARTS, **options: object) -> Supervised:
    return Supervised(Tagger, data or tagged(), parts, dtype=torch.float64, **options)  # type: ignore[arg-type]


def token_losses(of: Supervised, x: Tensor, samples: np.ndarray, data: Dataset) -> list[Tensor]:
    """Of every token with a class, one by one, by torch on unshortened samples."""
    losses = []
    for k in samples:
        out = of.logits(x, torch.tensor(data.train_x[k : k + 1]))[0].log_softmax(-1)
        losses += [-out[t, c] for t, c in enumerate(data.train_y[k].tolist()) if c != IGNORED]
    return losses


def all_of(of: Supervised, client: int) -> Tensor:
    return torch.arange(*of.offsets[client : client + 2].tolist())


def test_a_clients_loss_is_the_mean_over_its_tokens_and_clients_weigh_by_them() -> None:
    data = tagged()
    of = problem(data)
    x = of.init(0)
    each = [token_losses(of, x, part, data) for part in PARTS]
    assert of.sizes.tolist() == [float(len(one)) for one in each]
    assert len({len(one) / len(part) for one, part in zip(each, PARTS, strict=True)}) == 3  # unequal
    for i, one in enumerate(each):
        assert abs(float(of.objective.loss(x, all_of(of, i)) - sum(one) / len(one))) < 1e-12
        alone = of.objective.alone(i)
        assert abs(float(alone.loss(x, torch.arange(len(PARTS[i]))) - sum(one) / len(one))) < 1e-12
    # which makes the clients' weighted gradients that of all tokens in one place, computed without any of this
    at = x.clone().requires_grad_()
    together = [loss for part in PARTS for loss in token_losses(of, at, part, data)]
    (wanted,) = torch.autograd.grad(sum(together) / len(together), at)
    p = of.roster.sizes / of.roster.sizes.sum()
    gradients = [of.objective.gradient(x, all_of(of, i)) for i in range(3)]
    torch.testing.assert_close(sum(w * g for w, g in zip(p, gradients, strict=True)), wanted, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(pooled(of).objective.gradient(x, torch.arange(16)), wanted, rtol=1e-12, atol=1e-14)


def test_one_round_of_full_gradients_is_a_step_on_all_tokens() -> None:
    of = problem()
    schedule = Schedule(seed=5, cohort=3, lr=0.5, batch_size=None)
    state = run(Job(of, make("fedsgd", weights="size"), schedule, engine=Serial()), 1)
    x = of.init(5)
    step = x - 0.5 * pooled(of).objective.gradient(x, torch.arange(16))
    torch.testing.assert_close(state.server.x, step, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_batches_have_the_clients_gradient_without_bias(size: int) -> None:
    of = problem()
    x = of.init(0)
    batches = [torch.tensor(batch) for batch in combinations(all_of(of, 1).tolist(), size)]
    mean = torch.stack([of.objective.gradient(x, batch) for batch in batches]).mean(0)
    torch.testing.assert_close(mean, of.objective.gradient(x, all_of(of, 1)), rtol=1e-12, atol=1e-14)


def test_padding_changes_neither_loss_nor_gradient() -> None:
    of = problem(tagged(longest=10))
    x, samples = of.init(0), torch.arange(4, 9)
    assert [part.shape for part in of.samples(samples)] == [(5, BUCKET), (5, BUCKET)]
    loss, gradient = of.objective.loss(x, samples), of.objective.gradient(x, samples)
    of.pad = None  # which is the whole length
    assert of.samples(samples)[1].shape == (5, LENGTH)
    assert abs(float(loss - of.objective.loss(x, samples))) < 1e-12
    torch.testing.assert_close(gradient, of.objective.gradient(x, samples), rtol=1e-12, atol=1e-14)


class Counts(Tagger):
    """It answers padding with how much there is."""

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == self.pad
        return super().forward(tokens) + (padding * padding.sum(1, keepdim=True))[..., None]


def test_what_padding_answers_is_nobodys() -> None:
    data = tagged(longest=10)
    of, plain = (Supervised(build, data, PARTS, dtype=torch.float64) for build in (Counts, Tagger))
    x, samples = of.init(0), torch.arange(4, 9)
    assert torch.equal(of.objective.gradient(x, samples), plain.objective.gradient(x, samples))


def test_clients_side_by_side_have_the_gradients_that_each_has_alone() -> None:
    of = problem()
    x, samples = of.init(0), torch.tensor([[0, 1], [4, 5], [9, 15]])
    together = of.objective.gradients(x.expand(3, -1), samples, None)
    alone = torch.stack([of.objective.gradient(x, mine) for mine in samples])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    # a batch of one that is filled up, and another mean
    weight = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
    weighed = of.objective.gradients(x.expand(3, -1), samples, weight)
    torch.testing.assert_close(weighed[0], of.objective.gradient(x, samples[0, :1]), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(weighed[1], alone[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mimesvrg", "losac"])
def test_methods_train_alike_on_both_engines(method: str) -> None:
    of = problem()
    schedule = Schedule(seed=5, cohort=3, lr=0.2, batch_size=2)
    serial = run(Job(of, make(method), schedule, engine=Serial()), 3)
    assert_same(run(Job(of, make(method), schedule, engine=Stacked(2)), 3), serial)
    assert of.evaluate(serial.server.x)["train_loss"] < of.evaluate(of.init(5))["train_loss"]


def test_batch_norm_has_the_statistics_of_the_batch_whatever_its_tokens_count() -> None:
    data = tagged(longest=12)
    of = Supervised(lambda: Tagger(normalises=True), data, PARTS, dtype=torch.float64)
    x, samples = of.init(0), torch.tensor([5, 7])
    plain = Tagger(normalises=True).double()
    plain.load_state_dict(of.layout.views(x), strict=False)
    inputs, targets = of.samples(samples)
    loss = F.cross_entropy(plain(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    wanted = float(loss.detach()) / 2 * 5 / of.sizes[1]
    assert abs(float(of.objective.loss(x, samples)) - wanted) < 1e-12


def test_by_sequence_every_sample_counts_alike() -> None:
    data = tagged()
    of = problem(data, loss=LOSSES["token_cross_entropy"](per="sequence"))
    x = of.init(0)
    means = [torch.stack(token_losses(of, x, np.array([k]), data)).mean() for k in PARTS[1]]
    assert abs(float(of.objective.loss(x, all_of(of, 1)) - torch.stack(means).mean())) < 1e-12
    assert of.sizes.tolist() == [4.0, 5.0, 7.0]
    values, tokens = of.evaluate(x), problem(data).evaluate(x)
    assert values["test_perplexity"] == pytest.approx(tokens["test_perplexity"], rel=1e-14)
    assert values["test_loss"] != pytest.approx(tokens["test_loss"], rel=1e-4)


# -- how models are judged -----------------------------------------------------------------------------------------


def test_perplexity_and_accuracy_are_of_all_tokens_in_whatever_batches() -> None:
    data = tagged()
    held = [part[-1:] for part in PARTS]
    of = problem(data, [part[:-1] for part in PARTS], held=held)
    x = of.init(0)
    of.forward.batch = 3  # samples
    values, scores = of.evaluate(x), of.client_scores(x)
    tested = np.arange(9, 16)
    losses = torch.stack(token_losses(of, x, tested, data))
    assert values["test_loss"] == pytest.approx(float(losses.mean()), abs=1e-12)
    assert values["test_perplexity"] == pytest.approx(math.exp(float(losses.mean())), abs=1e-12)
    guess = of.logits(x, torch.tensor(data.train_x[tested])).argmax(-1).numpy()
    known = data.train_y[tested] != IGNORED
    assert values["test_token_accuracy"] == pytest.approx((guess == data.train_y[tested])[known].mean(), abs=1e-12)
    trained = torch.stack(token_losses(of, x, np.concatenate([part[:-1] for part in PARTS]), data))
    assert values["train_loss"] == pytest.approx(float(trained.mean()), abs=1e-12)
    each = [torch.stack(token_losses(of, x, part, data)) for part in held]
    assert scores.values["loss"] == pytest.approx([float(one.mean()) for one in each], abs=1e-12)
    assert values["validation_loss"] == pytest.approx(float(torch.cat(each).mean()), abs=1e-12)
    assert values["validation_perplexity"] == pytest.approx(math.exp(values["validation_loss"]), abs=1e-12)
    own = evaluate_own(of, lambda i: x)  # every client the same model
    assert {name: own[name] for name in own if name in values} == pytest.approx(values, abs=1e-12)


# -- transformers --------------------------------------------------------------------------------------------------


def saved(folder: Path) -> Path:
    """A two-layer GPT-2 of width 8, in a folder."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=8, n_layer=2, n_head=2, n_positions=LENGTH, pad_token_id=0, bos_token_id=1
    )
    torch.manual_seed(3)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def counting(n: int = 16) -> Dataset:
    """Rows that count on from some number, which a language model can learn."""
    draw = np.random.default_rng(2)
    x = np.zeros((n, LENGTH), np.int64)
    for row, length in zip(x, draw.integers(4, LENGTH + 1, n), strict=True):
        row[:length] = 1 + (draw.integers(0, 17) + np.arange(length)) % 17
    y = next_tokens(x)
    return Dataset("counting", x, y, x[:5], y[:5], 18, target="tokens")


def test_a_language_model_of_a_folder_learns_on_both_engines(tmp_path: Path) -> None:
    folder = str(saved(tmp_path))
    of = Supervised(
        lambda: MODELS["hf"]((LENGTH,), 18, path=folder, head="next"), counting(), PARTS, dtype=torch.float64
    )
    tokens = torch.tensor(counting().test_x)
    x = of.init(5)
    views = of.layout.views(x)
    assert len({name for name in views if "wte" in name or "lm_head" in name}) == 1  # tied, as in the folder
    before = of.logits(x, tokens)
    tokens[:, 6] = 9
    torch.testing.assert_close(of.logits(x, tokens)[:, :6], before[:, :6], rtol=0, atol=0)  # it sees nothing ahead
    schedule = Schedule(seed=5, cohort=3, lr=0.5, batch_size=4)
    serial = run(Job(of, make("fedavg"), schedule, engine=Serial()), 4)
    assert_same(run(Job(of, make("fedavg"), schedule, engine=Stacked(2)), 4), serial, 1e-10)
    first, last = (of.evaluate(x)["test_perplexity"] for x in (of.init(5), serial.server.x))
    assert 17 < first < 23
    assert last < 0.8 * first


def test_a_folders_model_tags_tokens(tmp_path: Path) -> None:
    folder = str(saved(tmp_path))
    of = Supervised(lambda: MODELS["hf"]((LENGTH,), CLASSES, path=folder, head="token"), tagged(), PARTS)
    assert of.logits(of.init(0), torch.tensor(tagged().test_x)).shape == (7, LENGTH, CLASSES)
    with pytest.raises(UserError, match=r"the data have tokens up to 29; the model in .* knows 20"):
        MODELS["hf"]((LENGTH,), 30, path=folder, head="next")
    with pytest.raises(UserError, match=r"the model answers 2 samples with \(2, 3\), and the data need \(2, 24, 3\)"):
        Supervised(lambda: MODELS["hf"]((LENGTH,), CLASSES, path=folder), tagged(), PARTS)


# -- what is refused -----------------------------------------------------------------------------------------------


def changed(row: int | slice, column: int | slice, value: int) -> Dataset:
    data = tagged(longest=10)
    y = data.train_y.copy()
    y[row, column] = value
    return data._replace(train_y=y)


WRONG = [
    (
        changed(slice(4, 9), slice(None), IGNORED),
        r"client 1 has no token with a class among those of its train samples",
    ),
    (changed(5, 0, CLASSES), r"client 1 has the label 3, outside 0 to 2; .* and to -100 where there is none"),
    (changed(9, 20, 1), r"client 2 has the label 1, where its sample is filled up \(token 0\); write -100 there"),
    (
        tagged()._replace(train_y=tagged().train_y[:, :-1]),
        r"the model answers 2 samples with \(2, 24, 3\), and the data need \(2, 23, 3\): one row a token",
    ),
]


@pytest.mark.parametrize(("data", "said"), WRONG)
def test_wrong_targets_are_one_sentence(data: Dataset, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Supervised(Tagger, data, PARTS, dtype=torch.float64)


def test_what_does_not_fit_tokens_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loss cross_entropy is not for a target of kind tokens; use token_cross_ent"):
        problem(loss=LOSSES["cross_entropy"]())
    with pytest.raises(UserError, match=r"term logit_calibration is for targets of kind class, and these are of kind"):
        problem().under(Conditions(term=TERMS["logit_calibration"]()))
    with pytest.raises(
        UserError, match=r"metric accuracy is not for a target of kind tokens; use token_accuracy, perp"
    ):
        resolved(tmp_path, metrics=["accuracy"])
    with pytest.raises(
        UserError, match=r"partition shards\(2\) goes by class, and the target is tokens; use natural, iid"
    ):
        resolved(tmp_path, partition="shards(2)")
    with pytest.raises(UserError, match=r"clients count with their tokens, and the samples of these are drawn as they"):
        Streamed(problem(), Streams(np.array([0, 4, 9, 16]), lambda i: (tagged().train_x, tagged().train_y)))


# -- data of one's own ---------------------------------------------------------------------------------------------


def resolved(folder: Path, **settings: object) -> Problem:
    data = tagged(n=30)
    np.savez(folder / "tags.npz", x=data.train_x, y=data.train_y, client=np.arange(30) % 3)
    return problem_of(resolve_run(from_nested({"data": str(folder / "tags.npz"), **settings}, "test")))


def test_arrays_of_one_shape_are_tokens_and_next_tokens_need_no_targets() -> None:
    data = tagged()
    arrays = {"x": data.train_x, "y": data.train_y, "client": np.arange(16) % 3}
    read = from_arrays("tags", arrays, Input(), "tags.npz")
    assert (read.target, read.classes, read.train_y.dtype) == ("tokens", CLASSES, np.int64)
    assert read.preprocessing is not None
    assert "taken as a class a token; --target-kind says otherwise" in read.preprocessing["said"][0]
    following = from_arrays("texts", {"x": data.train_x}, Input(target="tokens"), "texts.npz")
    assert following.classes == WORDS
    assert np.array_equal(following.train_y, next_tokens(following.train_x))
    rows = np.array([[5, 6, 7, 0], [8, 0, 0, 0], [0, 0, 5, 6]])  # padding may also lie before
    assert next_tokens(rows).tolist() == [[6, 7, -100, -100], [-100] * 4, [-100, -100, 6, -100]]
    assert checked(data, Input(), "mine:data") is data
    # others of two axes are what they were
    for x, y in ((data.train_x, data.train_y[:, :2]), (data.train_x.astype(np.float32), data.train_y)):
        assert from_arrays("numbers", {"x": x, "y": y}, Input(), "numbers.npz").target == "number"


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"y": tagged().train_y[:, :-1]}, r"tokens need rows of whole numbers and as long targets, given x \(16, 24\)"),
        ({"y": np.where(tagged().train_y < 0, -7, 0)}, r"y has the class -7; write 0, 1, ..., and -100 where there is"),
        ({"x": np.zeros((16, 24))}, r"mine.npz has no array 'y'"),
    ],
)
def test_wrong_arrays_are_one_sentence(arrays: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_arrays("mine", {"x": tagged().train_x, **arrays}, Input(target="tokens"), "mine.npz")
