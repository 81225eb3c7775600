"""Job F on a GPU, all of it in one call of under ten minutes; prints tables in Markdown.

    benchmarks/gpu.sh                        on this machine's GPU
    benchmarks/gpu.sh --quick --device cpu   a fraction of the work on a CPU: tries the plumbing, measures nothing

What the machine can do; job F with both models by the plain loop, the serial engine and the stacked one with chunks of
every size, with the memory that they take; precisions and CUDA graphs with the accuracy after as many rounds; as many
processes as there are devices; and pfl-research and FedJAX where this Python has them. A row that the time does not
suffice for says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import plain
import torch
from jobs import job_of, parser, processor
from networks import pfl_cnn
from problems import federation, problem_of
from settings import QUICK, SETTINGS, Setting, save
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from turns import peak_rss

from fedconcord import METHODS, MODELS, Engine, Serial, Stacked, Supervised, UserError, advance, start
from fedconcord.execution.engines import distributed
from fedconcord.federation.objectives import precision
from fedconcord.method.step.graphs import Graphs

HERE = Path(__file__).parent
MODELS_OF_F = ("pfl", "resnet18")
PRECISIONS: tuple[precision.Precision, ...] = ("full", "tf32", "bf16")
COLUMNS = (
    *("", "s a round", "client steps a s", "Tflop/s", "of peak", "GB/s", "of copies", "GPU busy", "memory, MB"),
    *("accuracy", "rounds"),
)


class Machine(NamedTuple):
    """What the device can do."""

    device: torch.device
    peak: dict[str, float]  # Tflop/s of a large product, by precision
    copies: float  # GB/s


class Case:
    """Job F with one model; its problem is made once for each precision."""

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        self.setting: Setting = (QUICK if args.quick else SETTINGS)[f"F-{model}"]
        self.args = parser().parse_args(["F", "--device", args.device, *(["--quick"] if args.quick else [])])
        self._problems = dict[str, Supervised]()
        problem = self.problem()
        self.dim = problem.dim
        counter = FlopCounterMode(display=False)
        with counter:
            problem.gradient(problem.init(0), problem.objective.samples(0)[: self.setting.batch])
        self.flop = float(counter.get_total_flops()) * self.setting.client_steps  # of a round

    def problem(self, numbers: precision.Precision = "full") -> Supervised:
        if numbers not in self._problems:
            found = problem_of(self.setting, argparse.Namespace(**{**vars(self.args), "precision": numbers}))
            assert isinstance(found, Supervised)
            self._problems[numbers] = found
        return self._problems[numbers]

    @torch.no_grad()
    def accuracy(self, x: torch.Tensor) -> float:
        """On the test set, in full precision; quick: on a few of it."""
        problem = self.problem()
        few = 100 if self.args.quick else len(problem.test_y)
        parts = zip(problem.test_x[:few].split(1000), problem.test_y[:few].split(1000), strict=True)
        return float(sum((problem.logits(x, a).argmax(1) == y).sum() for a, y in parts)) / few


class Clock:
    """The time of the whole call."""

    def __init__(self, minutes: float) -> None:
        self.end = time.perf_counter() + 60 * minutes

    @property
    def left(self) -> float:
        return self.end - time.perf_counter()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device, turns: int = 10) -> float:
    """The least of some turns, after three that warm up."""
    took = []
    for _ in range(turns + 3):
        wait(device)
        begun = time.perf_counter()
        work()
        wait(device)
        took.append(time.perf_counter() - begun)
    return min(took[3:])


def ceilings(device: torch.device, quick: bool) -> Machine:
    """Large products in every precision that the device has, and copies."""
    n, bytes_ = (512, 2**24) if quick else (8192, 2**30)
    peak = {}
    for numbers in PRECISIONS:
        try:
            precision.check(numbers, torch.float32, device)
        except UserError:
            continue
        a = torch.randn(n, n, device=device, dtype=torch.bfloat16 if numbers == "bf16" else torch.float32)
        with precision.products(numbers, device):
            peak[numbers] = 2 * n**3 / seconds(lambda a=a: a @ a, device) / 1e12
    source = torch.zeros(bytes_, dtype=torch.uint8, device=device)
    there = torch.empty_like(source)
    return Machine(device, peak, 2 * bytes_ / seconds(lambda: there.copy_(source), device) / 1e9)


class Busy:
    """The share of time in which kernels ran, as nvidia-smi samples it; None where there is no nvidia-smi."""

    def __init__(self, device: torch.device) -> None:
        self.process = None
        command = ["nvidia-smi", f"--id={device.index or 0}", "--query-gpu=utilization.gpu", "-lms", "100"]
        if device.type == "cuda" and shutil.which(command[0]):
            self.process = subprocess.Popen(
                [*command, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True
            )

    def end(self) -> float | None:
        if self.process is None:
            return None
        self.process.terminate()
        found = [float(line) for line in self.process.communicate()[0].split() if line.replace(".", "").isdigit()]
        return statistics.mean(found) if found else None


class Row(NamedTuple):
    """What was measured of one way to do a job."""

    seconds: float
    memory: float  # bytes at most
    busy: float | None  # %
    accuracy: float
    rounds: int


Rounds = Iterator[Callable[[], float]]
"""Does a round at every step, and gives what says the accuracy after it."""


def measured(rounds: Rounds, args: argparse.Namespace) -> Row:
    """Rounds until there are enough, or for --seconds: the median of all but the first ones."""
    device, warmup = torch.device(args.device), 1 if args.quick else 3
    took, accuracy = list[float](), None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    busy, begun = Busy(device), time.perf_counter()
    while len(took) <= warmup or (len(took) < args.rounds + warmup and time.perf_counter() - begun < args.seconds):
        at = time.perf_counter()
        accuracy = next(rounds)
        wait(device)
        took.append(time.perf_counter() - at)
    share = busy.end()
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_rss()
    assert accuracy is not None
    return Row(statistics.median(took[warmup:]), memory, share, accuracy(), len(took))


class Table:
    """A model's rows, printed as they come."""

    def __init__(self, case: Case, machine: Machine, clock: Clock, args: argparse.Namespace) -> None:
        self.case, self.machine, self.clock, self.args = case, machine, clock, args
        self.rows = dict[str, Row]()
        print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")

    def row(self, name: str, rounds: Rounds, numbers: str = "full") -> None:
        """Measure and print; a way that fails stops no other."""
        cells = [f"left out: the {self.args.minutes:g} minutes are over"]
        if self.clock.left > 0:
            try:
                self.rows[name] = found = measured(rounds, self.args)
            except (UserError, RuntimeError) as error:
                cells = [f"failed: {str(error).splitlines()[0][:200]}"]
            else:
                cells = self.cells(found, numbers)
        cells += [""] * (len(COLUMNS) - 1 - len(cells))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)

    def cells(self, row: Row, numbers: str) -> list[str]:
        """Floating-point operations as counted, and three passes over a model a step."""
        steps, peak = self.case.setting.client_steps, self.machine.peak.get(numbers)
        rate = self.case.flop / row.seconds / 1e12
        traffic = 12 * self.case.dim * steps / row.seconds / 1e9
        return [
            *(f"{row.seconds:.4f}", f"{steps / row.seconds:.0f}", f"{rate:.3g}"),
            *(f"{rate / peak:.1%}" if peak else "-", f"{traffic:.3g}", f"{traffic / self.machine.copies:.1%}"),
            *("-" if row.busy is None else f"{row.busy:.0f} %", f"{row.memory / 1e6:.0f}"),
            *(f"{row.accuracy:.4f}", f"{row.rounds}"),
        ]


def engine_rounds(case: Case, engine: Engine, numbers: precision.Precision = "full") -> Rounds:
    """Rounds of FedAvg by an engine of the library."""
    job = replace(job_of(case.setting, case.problem(numbers), METHODS["fedavg"](), case.args), engine=engine)
    state = start(job)
    while True:
        state = advance(job, state)
        yield lambda state=state: case.accuracy(state.server.x)


def plain_rounds(case: Case, numbers: precision.Precision = "full") -> Rounds:
    """Rounds of the loop that a careful user writes: data on the device, one model, channels last, autocast."""
    problem, setting = case.problem(), case.setting
    device = problem.device
    x = problem.x[:].contiguous(memory_format=torch.channels_last)
    cuts = problem.offsets[1:-1].tolist()
    clients = list(zip(x.tensor_split(cuts), problem.y.tensor_split(cuts), strict=True))
    torch.manual_seed(0)
    made = pfl_cnn() if setting.model == "pfl_cnn" else MODELS[setting.model](tuple(x.shape[1:]), 10)
    assert isinstance(made, nn.Sequential)
    made = made.to(device, memory_format=torch.channels_last)
    loop = plain.Loop(setting, clients, made, torch.optim.SGD(made.parameters(), setting.lr))
    known = federation(setting, case.args.seed, case.args.quick)
    rng = np.random.default_rng(0)
    begin = [p.detach().clone() for p in made.parameters()]

    def accuracy() -> float:
        torch._foreach_copy_([p.data for p in made.parameters()], begin)
        return case.accuracy(problem.layout.flatten(made))

    while True:
        total = [torch.zeros_like(p) for p in begin]
        drawn = plain.draw(setting, known, rng)
        work = [(i, [order.to(device) for order in passes if order is not None]) for i, passes in drawn]
        with precision.products(numbers, device), precision.forward(numbers, device):
            plain.train(loop, begin, total, work)
        begin = total
        yield accuracy


def tables(args: argparse.Namespace, machine: Machine, clock: Clock) -> None:
    """Every model, every way."""
    for model in args.models:
        case = Case(model, args)
        s, size = case.setting, case.setting.cohort
        print(
            f"\n### {s.model}: {size} of {s.clients} clients, {s.client_steps} client steps of batch {s.batch} a round"
        )
        print(f"\n{case.dim:,} parameters, {case.flop / 1e12:.3g} Tflop a round")
        table = Table(case, machine, clock, args)
        table.row("plain loop", plain_rounds(case))
        table.row("serial", engine_rounds(case, Serial()))
        widths = [*(w for w in (1, 2, 5, 10, 25) if w < size), size]
        for width in widths:
            table.row(f"chunk {width}", engine_rounds(case, Stacked(width, 1)))
        table.row("the rule's chunk", engine_rounds(case, Stacked()))
        stacked = {width: table.rows[f"chunk {width}"] for width in widths if f"chunk {width}" in table.rows}
        best = min(stacked, key=lambda width: stacked[width].seconds, default=size)
        for numbers in machine.peak:
            if numbers != "full":
                table.row(f"plain loop, {numbers}", plain_rounds(case, numbers), numbers)
                table.row(f"chunk {best}, {numbers}", engine_rounds(case, Stacked(best, 1), numbers), numbers)
            if machine.device.type == "cuda":
                graphs = Graphs()
                engine, whole = Stacked(best, 1, graphs=graphs), Stacked(size, 1, graphs=graphs)
                table.row(f"chunk {best}, {numbers}, graphs", engine_rounds(case, engine, numbers), numbers)
                table.row(f"chunk {size}, {numbers}, graphs", engine_rounds(case, whole, numbers), numbers)
        if len(stacked) > 1:
            low, high = min(stacked), max(stacked)
            each = (stacked[high].memory - stacked[low].memory) / (high - low) / 1e6
            print(
                f"\nA client more in a chunk takes {each:.1f} MB; "
                "`execution/engines/chunk.py` bounds a chunk by ON_GPU."
            )


def processes(args: argparse.Namespace, machine: Machine, clock: Clock) -> None:
    """As many processes as devices share each round; on a CPU two, by gloo."""
    count = torch.cuda.device_count() if machine.device.type == "cuda" else 2
    by = "NCCL" if machine.device.type == "cuda" else "gloo"
    print(f"\n### {count} process{'es' if count > 1 else ''}, sums by {by}\n")
    if count == 1:
        print("One device, so one process: it shows that the way through NCCL works, and no gain.\n")
    for model in args.models:
        if clock.left < 30:
            print(f"* {model}: left out, the {args.minutes:g} minutes are over")
            continue
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command += [str(HERE / "gpu.py"), "--member", model, "--device", args.device, "--rounds", str(args.rounds)]
        command += ["--quick"] if args.quick else []
        print(f"* {model}: {said(command, clock.left)}", flush=True)


def member(args: argparse.Namespace) -> None:
    """One of several processes; rank 0 prints seconds a round and the accuracy."""
    cuda = args.device.startswith("cuda")
    rank = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(rank)
        args.device = f"cuda:{rank}"
    team = distributed.join(120, cuda)
    args.seconds = float("inf")  # all of them do as many rounds
    row = measured(engine_rounds(Case(args.member, args), Stacked(team=team)), args)
    if team.rank == 0:
        print(f"{row.seconds:.4f} s a round, accuracy {row.accuracy:.4f}")


def peers(args: argparse.Namespace, clock: Clock) -> None:
    """pfl-research and FedJAX on the small CNN, in this Python."""
    print("\n### Peers on pfl_cnn\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "F.npz"
        save(path, federation((QUICK if args.quick else SETTINGS)["F-pfl"], 0, args.quick))
        for name, title in (("pfl", "pfl-research"), ("fedjax", "FedJAX")):
            if importlib.util.find_spec(name) is None:
                print(f"* {title}: not installed here (`benchmarks/peers.py` says how)")
                continue
            command = [sys.executable, str(HERE / "peers" / f"{name}_job.py"), "F-pfl", "--federation", str(path)]
            command += ["--rounds", str(args.rounds), "--warmup", "3", *(["--quick"] if args.quick else [])]
            print(f"* {title}: {said(command, clock.left)}", flush=True)


def said(command: list[str], most: float) -> str:
    """The last line that a program prints, or why there is none."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=max(1.0, most))
    except subprocess.TimeoutExpired:
        return "left out, it takes longer than the time that is left"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    last = lines[-1] if lines else f"exit status {done.returncode}"
    try:
        record = json.loads(last)
    except ValueError:
        return f"failed: {last[:200]}" if done.returncode else last
    return f"{record['seconds_per_round']['median']:.4f} s a round, accuracy {record['accuracy']:.4f}"


def main() -> None:
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--device", default="cuda", help="cuda or cpu")
    out.add_argument("--rounds", type=int, default=20, help="measured rounds of a row, after three")
    out.add_argument("--seconds", type=float, default=12.0, help="no round of a row begins after so many")
    out.add_argument("--minutes", type=float, default=9.0, help="after these no row begins")
    out.add_argument("--quick", action="store_true", help="a fraction of the work, to try the plumbing")
    out.add_argument("--models", nargs="+", choices=MODELS_OF_F, default=MODELS_OF_F)
    out.add_argument("--member", choices=MODELS_OF_F, help=argparse.SUPPRESS)
    args = out.parse_args()
    if args.member:
        member(args)
        return
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here; --quick --device cpu tries the plumbing")
    clock, machine = Clock(args.minutes), ceilings(device, args.quick)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    products = ", ".join(f"{numbers} {peak:.3g}" for numbers, peak in machine.peak.items())
    print(f"{name}; torch {torch.__version__}; products {products} Tflop/s; copies {machine.copies:.0f} GB/s")
    tables(args, machine, clock)
    processes(args, machine, clock)
    peers(args, clock)


if __name__ == "__main__":
    main()
