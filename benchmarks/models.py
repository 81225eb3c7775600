"""What today's models and local optimisers cost: local optimisers, batch normalisation, and LoRA beside plain loops.

    python benchmarks/models.py                    all parts: the tables of docs/speed.md
    python benchmarks/models.py --only adapters    one of optimisers, matrices, normalisation, adapters

Contestants of a row train round by round in turn in one process, on weights, photographs and tokens drawn at random.
Ratios are of rounds of the same turn: their median and its 95 % interval, of processor time and of time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from fedconcord.support import imports, process

process.settle()  # as the command does, before torch is loaded

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from turns import in_turn

from fedconcord import Dataset, Job, advance, evaluate, start
from fedconcord.execution.job import resolved
from fedconcord.method.contract.optimisers import newton_schulz
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested

VOCABULARY = 30_522
MINILM = {"vocab_size": VOCABULARY, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
MINILM |= {"intermediate_size": 1536, "max_position_embeddings": 512}  # of all-MiniLM-L6-v2
LONG = 200  # rounds of a run whose kernel is measured: shorter ones compile nothing
Round = Callable[[], object]


def tokens(folder: str, seed: int, clients: int = 8, steps: int = 4, batch: int = 8, length: int = 64) -> Dataset:
    """Rows of tokens without padding, `steps` batches for each client."""
    draw = np.random.default_rng(seed)
    x = draw.integers(1, VOCABULARY, (clients * steps * batch, length))
    y = draw.integers(0, 12, len(x))
    y[:12] = np.arange(12)
    return Dataset("tokens", x, y, x[:8], y[:8], 12)


def photographs(folder: str, seed: int, samples: int = 2_000) -> Dataset:
    """Noise of the shape of CIFAR-10's photographs."""
    draw = np.random.default_rng(seed)
    x, y = draw.standard_normal((samples, 3, 32, 32), dtype=np.float32), draw.integers(0, 10, samples)
    return Dataset("photographs", x, y, x[:100], y[:100], 10)


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.skip = nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.skip(x))


def resnet(shape: tuple[int, ...], classes: int, norm: str = "batch", width: int = 16) -> nn.Module:
    """That of docs/tutorials/cifar.md."""
    kinds: dict[str, Callable[[int], nn.Module]] = {
        "batch": nn.BatchNorm2d,
        "group": lambda width: nn.GroupNorm(width // 8, width),
        "none": lambda width: nn.Identity(),
    }
    of = kinds[norm]
    first = nn.Conv2d(shape[0], width, 3, 2, 1, bias=False)
    blocks = Block(width, 2 * width, 2, of), Block(2 * width, 4 * width, 2, of)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)
    return nn.Sequential(first, of(width), nn.ReLU(), *blocks, *head)


def job(**given: Any) -> Job:
    """A job of these settings with FedAvg."""
    imports.trust(given)
    nested = {"method": "fedavg", "validation": "none", "partition": "iid", **given}
    return resolved(build(resolve_run(from_nested(nested, "models.py"))), rounds=LONG)


def rounds_of(one: Job) -> Round:
    """One more round of a job, every time."""
    states = [start(one)]

    def more() -> None:
        states[0] = advance(one, states[0])

    return more


def judged(one: Job) -> Round:
    """An evaluation of another model, every time."""
    states = [start(one)]

    def more() -> dict[str, float]:
        server = states[0].server
        states[0] = states[0]._replace(server=server._replace(x=server.x * 0.999))
        return evaluate(one, states[0])

    return more


def cell(values: np.ndarray) -> str:
    """Median and the order statistics that hold it in 95 of 100 samples."""
    ordered, n = np.sort(values), len(values)
    low = max(0, int(np.floor(n / 2 - 0.98 * np.sqrt(n))))
    return f"{np.median(values):.2f} [{ordered[low]:.2f}, {ordered[n - 1 - low]:.2f}]"


def show(what: str, contestants: Mapping[str, Round], turns: int) -> None:
    """A row for each contestant: the first one's milliseconds, and the others' ratios to them."""
    taken = {name: np.array(seconds) for name, seconds in in_turn(contestants, turns, warmup=2).items()}
    first, *others = contestants
    base = taken[first]
    print(f"| {what} | {first} | | " + " | ".join(f"{1e3 * t:.0f} ms" for t in np.median(base, axis=0)) + " |")
    for name in others:
        ratios = taken[name] / base
        print(f"| {what} | {name} | {first} | {cell(ratios[:, 0])} | {cell(ratios[:, 1])} |", flush=True)


def optimisers(turns: int, folder: str) -> None:
    """Rounds of each local optimiser over rounds of plain steps."""
    a = {"data": "mnist", "model": "2nn", "clients": 100, "cohort": 10}
    a |= {"local": {"lr": 0.01, "epochs": 1, "batch_size": 10}, "eval": {"train_samples": 100}}
    conv = {"data": "models:photographs", "model": "models:resnet(norm=group)", "clients": 10, "cohort": 10}
    conv |= {"local": {"lr": 0.01, "steps": 5, "batch_size": 20}}
    text = {"data": "models:tokens", "model": f"hf(path='{folder}')", "clients": 8, "cohort": 8}
    text |= {"adapters": "lora(where='query|value')", "local": {"lr": 0.01, "steps": 4, "batch_size": 8}}
    for what, given, kernel in (
        ("A, compiled", a, "auto"),
        ("A, by torch", a, "torch"),
        ("resnet, batches of 20", conv, "auto"),
        ("MiniLM with LoRA, 512 tokens", text, "auto"),
    ):
        contestants = {}
        for name in ("plain", "nesterov", "adamw", "lion", *(["muon"] if "LoRA" not in what else [])):
            extra = {"plain": {}, "nesterov": {"momentum": 0.9, "nesterov": True}}.get(name, {"optimiser": name})
            local = {**given["local"], **extra}
            contestants[name] = rounds_of(job(**{**given, "local": local, "engine": {"kernel": kernel}}))
        show(what, contestants, turns)


def plain_steps(data: Dataset, n: int, model: nn.Module, steps: int, batch: int) -> Round:
    """The same amount of work in a loop of plain torch, n clients one after the other."""
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    trained = [p for p in model.parameters() if p.requires_grad]
    server, each = [p.detach().clone() for p in trained], len(x) // n

    def more() -> None:
        total = [torch.zeros_like(p) for p in trained]
        for client in range(n):
            with torch.no_grad():
                for p, v in zip(trained, server, strict=True):
                    p.copy_(v)
            optimiser = torch.optim.SGD(trained, lr=0.01)
            order = client * each + torch.randperm(each)
            for k in range(steps):
                some = order[k * batch : (k + 1) * batch]
                optimiser.zero_grad()
                out = model(x[some])
                F.cross_entropy(getattr(out, "logits", out), y[some]).backward()
                optimiser.step()
            with torch.no_grad():
                for t, p in zip(total, trained, strict=True):
                    t += p / n
        server[:] = total

    return more


def normalisation(turns: int, folder: str) -> None:
    """A round with BatchNorm beside others and beside a plain loop; then what its exact statistics cost in judging."""
    given = {"data": "models:photographs", "clients": 10, "cohort": 10}
    given |= {"local": {"lr": 0.01, "steps": 5, "batch_size": 20}}
    jobs = {norm: job(**given, model=f"models:resnet(norm={norm})") for norm in ("batch", "group", "none")}
    torch.manual_seed(0)
    loop = plain_steps(photographs("", 0), 10, resnet((3, 32, 32), 10), 5, 20)
    show("resnet, a round", {"plain loop, BatchNorm": loop, "BatchNorm": rounds_of(jobs["batch"])}, turns)
    show("resnet, a round", {"GroupNorm": rounds_of(jobs["group"]), "BatchNorm": rounds_of(jobs["batch"])}, turns)
    show("resnet, a round", {"none": rounds_of(jobs["none"]), "BatchNorm": rounds_of(jobs["batch"])}, turns)
    show("resnet, an evaluation", {"GroupNorm": judged(jobs["group"]), "BatchNorm": judged(jobs["batch"])}, turns)


def adapters(turns: int, folder: str) -> None:
    """LoRA on a transformer of MiniLM's size beside a loop with peft, 8 clients of 4 steps."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    for batch, length in ((8, 64), (2, 16)):
        one = job(
            data=f"models:tokens(batch={batch},length={length})",
            model=f"hf(path='{folder}')",
            adapters="lora(where='query|value')",
            clients=8,
            cohort=8,
            local={"lr": 0.01, "steps": 4, "batch_size": batch},
        )
        theirs = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=12)
        kinds = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], task_type="SEQ_CLS", lora_dropout=0.0)
        theirs = get_peft_model(theirs, kinds).eval()  # as dropout is off here
        loop = plain_steps(tokens("", 0, batch=batch, length=length), 8, theirs, 4, batch)
        show(f"MiniLM with LoRA, {batch * length} tokens", {"plain loop, peft": loop, "fedavg": rounds_of(one)}, turns)


def minilm(folder: str) -> None:
    """A transformer of MiniLM's size with weights drawn at random."""
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    BertModel(BertConfig(**MINILM)).save_pretrained(folder)


def as_printed(x: Tensor) -> Tensor:
    """Newton-Schulz's five steps as Jordan et al. have them."""
    x = x.mT if (is_tall := x.shape[-2] > x.shape[-1]) else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.mT if is_tall else x


def matrices(turns: int, folder: str) -> None:
    """Muon's orthogonal steps of stacked matrices beside the printed loop, ten at a time."""

    def ten(steps: Callable[[Tensor], Tensor], x: Tensor) -> Round:
        return lambda: [steps(x) for _ in range(10)]

    for shape in ((1, 200, 784), (1, 384, 1536), (10, 200, 200), (10, 64, 576), (10, 64, 64), (10, 16, 144)):
        x = torch.randn(shape)
        both = {"as printed": ten(as_printed, x), "muon": ten(newton_schulz, x)}
        show(f"10 times {' x '.join(map(str, shape))}", both, turns)


PARTS = {"optimisers": optimisers, "matrices": matrices, "normalisation": normalisation, "adapters": adapters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), help="one part")
    parser.add_argument("--turns", type=int, default=15, help="measured rounds of each contestant")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.only not in ("normalisation", "matrices"):
            minilm(folder)
        print("| job | contestant | over | processor time | time |\n|---|---|---|--:|--:|")
        for part in [args.only] if args.only else PARTS:
            PARTS[part](args.turns, folder)


if __name__ == "__main__":
    main()
