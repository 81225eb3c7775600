"""The benchmark jobs, measured through the library's public path; prints one JSON line. See docs/speed.md.

    python benchmarks/jobs.py A --rounds 20 --warmup 2

A  MNIST, 100 IID clients, 10 a round, FedAvg, 2nn, lr 0.1, 1 epoch of batch 10: 600 client steps a round
B  the same with cnn1 and batch 50: 120 client steps a round
C  10,000 clients of 6 samples, 100 a round, logistic regression, 5 full-batch steps
D  a job's steps (--on, A if not given) with every method in turn: seconds, messages and states over FedAvg's (--method
   for one of them); cost.py makes the table
E  N clients that share a pool of samples: time and memory against N (--clients, --method, --model, --store, --rows,
   --fill); scale.py draws the curves
F  CIFAR-10 on a GPU: pfl-research's CNN job, or --model resnet18 (10 of 100 clients, batch 50)
L  job A with low-rank adapters of rank 8 on a frozen 2nn: 12,752 parameters are trained and sent

Job G, the command itself from the shell to the prompt, is command.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedconcord.support import process

process.settle()  # as the command does, before torch is loaded

import numpy as np
import torch
from problems import problem_of
from settings import QUICK, SETTINGS, Setting
from turns import Turns, in_turn, peak_rss, spread

import fedconcord
from fedconcord import (
    METHODS,
    WORK,
    Algorithm,
    Engine,
    Job,
    Problem,
    Schedule,
    Serial,
    Solver,
    Stacked,
    State,
    UserError,
    advance,
    evaluate,
    start,
)
from fedconcord.execution.job import checkpoint, resolved, row_bytes
from fedconcord.execution.rows import Storage
from fedconcord.insight.advice.planner import Federation, device_of, sizes_of

OPTIONS: Mapping[str, Mapping[str, Any]] = {  # where a default is not for lr 0.1 on these data
    "losac": {"block_scale": "mean"},
    "fedvra": {"a": 1.0, "d": 1.0},
    "mfl": {"momentum": 0.5},
}
LONG = 200  # rounds of a run whose kernel D measures: shorter runs of A compile nothing
PER_METHOD = ("fedsgd",)  # methods whose round is another amount of work by definition, left out of D


def engine_of(args: argparse.Namespace) -> Engine:
    """The engine asked for."""
    if args.engine == "serial":
        return Serial()
    chunk = args.chunk if args.chunk == "auto" else int(args.chunk) or None
    workers = args.workers if args.workers == "auto" else int(args.workers)
    return Stacked(chunk, workers, kernel=args.kernel)


def job_of(setting: Setting, problem: Problem, algorithm: Algorithm, args: argparse.Namespace) -> Job:
    """The run that the library is asked to do."""
    amount = setting.steps if setting.steps is not None else setting.epochs or 1
    schedule = Schedule(
        seed=args.seed,
        cohort=setting.cohort,
        lr=setting.lr,
        work=WORK["fixed"](amount),
        unit="steps" if setting.steps is not None else "epochs",
        batch_size=setting.batch,
    )
    return Job(problem, algorithm, schedule, Solver(), engine_of(args), storage=Storage(args.store, args.rows))


def started(job: Job, args: argparse.Namespace) -> State:
    """The state before round 0, with the clients' rows where they were asked for; --fill gives every client one."""
    state = start(job)
    if args.fill:
        n = job.problem.roster.n
        for ids in np.array_split(np.arange(n), -(-n // 1000)):
            state.store.scatter(ids, state.store.gather(ids))
        if args.store == "disk":
            state.store.export()  # flushes, as the run that made so many rows would have done long ago
    return state


def saved(job: Job, state: State, args: argparse.Namespace) -> dict[str, float]:
    """What a checkpoint costs, where --checkpoint asks for it."""
    if not args.checkpoint:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        begun = time.perf_counter()
        checkpoint.save(job, state, path)
        return {"checkpoint_seconds": time.perf_counter() - begun, "checkpoint_bytes": path.stat().st_size}


def after(job: Job, state: State) -> State:
    """The state one round later, with nothing left to wait for."""
    state = advance(job, state)
    if job.problem.objective.device.type == "cuda":
        torch.cuda.synchronize(job.problem.objective.device)
    return state


def method(name: str, **options: Any) -> Algorithm:
    """A method with the options that these jobs give it."""
    return METHODS[name](**{**OPTIONS.get(name, {}), **options})


def one(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """One method on one job."""
    turns = Turns(args.warmup + args.rounds)
    name = args.method or "fedavg"
    job = job_of(setting, problem_of(setting, args), method(name), args)
    job = resolved(job, rounds=args.warmup + args.rounds)
    base = rss()
    state = started(job, args)
    turns.begin()
    for _ in range(args.warmup + args.rounds):
        state = after(job, state)
        turns.lap()
    resident = rss()
    return turns.finish(
        args.warmup,
        method=name,
        engine=repr(job.engine),
        accuracy=evaluate(job, state).get("test_accuracy"),
        rss_bytes=resident,
        rss_before_bytes=base,
        clients_with_state=len(state.store),
        row_bytes=row_bytes(job),
        gradient_steps_per_round=state.gradient_steps / state.round,
        **saved(job, state, args),
        **common(args.job, setting, args),
    )


def compared(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """Every method, round by round in turn, with ratios to the FedAvg that does the same local steps."""
    blocks = 5
    plain = f"job {args.on}"
    settings = {
        plain: setting,
        "all clients": setting._replace(clients=setting.cohort),  # for methods that refuse absent clients
        "blocks": setting._replace(batch=setting.samples // blocks),  # for methods with a table of gradients
    }
    problems = {plain: problem_of(setting, args)}
    problems["blocks"] = problems[plain]
    problems["all clients"] = problem_of(settings["all clients"], args)
    jobs, refused = dict[str, tuple[str, Job]](), dict[str, str]()
    for name in [args.method] if args.method else [n for n in METHODS if n not in ("fedavg", *PER_METHOD)]:
        algorithm = method(name)
        kind = "all clients" if algorithm.needs.everyone else "blocks" if algorithm.step.blocks is not None else plain
        job = job_of(settings[kind], problems[kind], algorithm, args)
        try:
            after(job, started(job, args))
        except UserError as error:
            refused[name] = str(error)
        else:
            jobs[name] = kind, job
    for kind in dict.fromkeys([plain, *(kind for kind, _ in jobs.values())]):
        jobs[f"fedavg, {kind}"] = kind, job_of(settings[kind], problems[kind], method("fedavg"), args)
    jobs = {name: (kind, resolved(job, rounds=LONG)) for name, (kind, job) in jobs.items()}
    states = {name: started(job, args) for name, (_, job) in jobs.items()}

    def more(name: str) -> None:
        states[name] = after(jobs[name][1], states[name])

    seconds = in_turn({name: partial(more, name) for name in jobs}, args.rounds, args.warmup)
    found = {}
    for name, (kind, job) in jobs.items():
        base = f"fedavg, {kind}"
        took, base_took = (np.array(seconds[key])[:, 1] for key in (name, base))
        found[name] = {
            "seconds_per_round": spread(took.tolist()),
            "ratio": float(np.median(took / base_took)),
            "gradient_ratio": states[name].gradient_steps / states[base].gradient_steps,  # 2: two gradients a step
            "baseline": base,
            **sizes(name.split(",")[0], job),
            "accuracy": evaluate(job, states[name]).get("test_accuracy"),
        }
    base_record = found[f"fedavg, {plain}"]
    return {
        "seconds_per_round": base_record["seconds_per_round"],
        "accuracy": base_record["accuracy"],
        "peak_rss_bytes": peak_rss(),
        "engine": repr(jobs[f"fedavg, {plain}"][1].engine),
        "methods": found,
        "refused": refused,
        **common("D", setting, args),
    }


def sizes(name: str, job: Job) -> dict[str, float]:
    """What a round sends to and from a client, and what clients and the server keep, in models' bytes."""
    model = job.problem.objective.dim * torch.float32.itemsize
    n = job.problem.roster.n
    of = sizes_of(name, job.algorithm, Federation(n, job.schedule.cohort, 1, model, device_of("phone", 0.0)))
    found = {"down": of.cost.down + of.cost.settled, "up": of.cost.up, "row": of.row, "server": of.server}
    return {key: value / model for key, value in found.items()}


def rss() -> int:
    """Resident memory of this process now [bytes]."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_rss()
    return pages * os.sysconf("SC_PAGE_SIZE")


def common(job: str, setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to repeat a measurement."""
    options = {k: v for k, v in vars(args).items() if k != "job" and v is not None}
    return {
        "job": job,
        "setting": {**setting._asdict(), "client_steps": setting.client_steps},
        "options": options,
        "threads": torch.get_num_threads(),
        "versions": {
            "fedconcord": fedconcord.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "processor": processor(),
    }


def processor() -> str:
    """The machine in words, without its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    return f"{model}, {os.cpu_count()} cores"


def chosen(args: argparse.Namespace) -> Setting:
    """The setting of the job with what the options change."""
    key = {"D": args.on, "F": f"F-{args.model or 'pfl'}"}.get(args.job, args.job)
    table = QUICK if args.quick else SETTINGS
    if key not in table:
        sys.exit(f"job F has the models pfl and resnet18, given {args.model!r}")
    setting = table[key]
    changes = {k: getattr(args, k) for k in ("clients", "cohort") if getattr(args, k) is not None}
    if args.model and args.job != "F":
        changes["model"] = args.model
    return setting._replace(**changes)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("job", choices=list("ABCDEFL"))
    out.add_argument("--on", choices=list("ABCL"), default="A", help="of D: the job")
    out.add_argument("--rounds", type=int, default=20, help="measured rounds")
    out.add_argument("--warmup", type=int, default=2, help="rounds before them that are not measured")
    out.add_argument("--method", choices=list(METHODS), help="default: fedavg; of D: all")
    out.add_argument("--model", help="default: the job's; of F: pfl or resnet18")
    out.add_argument("--clients", type=int, help="N in place of the job's")
    out.add_argument("--cohort", type=int, help="S in place of the job's")
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--threads", type=int, help="torch's threads; its default if not given")
    out.add_argument("--engine", choices=["stacked", "serial"], default="stacked")
    out.add_argument("--chunk", default="auto", help="clients trained at once by the stacked engine; 0: all, or auto")
    out.add_argument("--workers", default="auto", help="threads of the stacked engine that train a chunk each, or auto")
    out.add_argument("--kernel", choices=["auto", "torch", "compiled"], default="auto", help="of the local steps")
    out.add_argument("--store", choices=["memory", "disk"], default="memory", help="where the clients' states lie")
    out.add_argument("--rows", choices=["full", "bfloat16", "float16"], default="full", help="their precision there")
    out.add_argument("--fill", action="store_true", help="every client has a state before the first round")
    out.add_argument("--checkpoint", action="store_true", help="write a checkpoint after the last round, and time it")
    out.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    out.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    out.add_argument("--precision", choices=["full", "tf32", "bf16"], default="full", help="of gradients")
    out.add_argument("--quick", action="store_true", help="a small form of the job, for tests")
    return out


def main() -> None:
    args = parser().parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda, and torch finds no CUDA device here; use cpu")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    setting = chosen(args)
    if args.job == "D":
        print(json.dumps(compared(setting, args)))
    else:
        one(setting, args)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
