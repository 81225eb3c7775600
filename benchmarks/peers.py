"""fedconcord, the plain loop and other libraries on jobs A, B and C: round by round in turn, one table a job.

    python benchmarks/peers.py --out speed.json                       set up what is missing, run, print Markdown
    python benchmarks/peers.py --jobs A --only fedconcord,plain       without the other libraries

Every library is installed by pip in a virtual environment of its own below --envs. One that cannot be installed or run
stands in the table with the reason. docs/speed.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jobs
from problems import federation as federation_of
from settings import QUICK, SETTINGS, Setting, save
from turns import Contestant, interleave

HERE = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
FLOWER_NEEDS = (  # what flwr 1.42.0 declares, but for a bound on certifi that not every package index can meet
    "certifi 'numpy>=1.26,<3' 'grpcio>=1.70,<2' 'grpcio-health-checking>=1.70,<2' 'protobuf>=5.28,<7' "
    "'cryptography>=50,<51' 'pycryptodome>=3.18,<4' 'iterators>=0.0.2,<0.0.3' 'typer>=0.13,<0.21' 'uv>=0.13.5,<0.14' "
    "'tomli>=2.0.1,<3' 'tomli-w>=1,<2' 'pathspec>=1.0.4,<2' 'prompt-toolkit>=3.0.52,<4' 'rich>=14,<15' "
    "'pyyaml>=6.0.2,<7' 'requests>=2.33,<3' 'httpx>=0.28.1,<1' 'click>=8,<9' 'packaging>=24,<26' "
    "'sqlalchemy[asyncio]>=2.0.45,<3' 'alembic>=1.18.1,<2' 'uvicorn[standard]>=0.49,<0.50' 'fastapi>=0.138,<0.139' "
    "'starlette>=1.3.1,<1.4' ray==2.55.1"
)


class Peer(NamedTuple):
    """A library to compare with."""

    recipes: tuple[tuple[str, ...], ...]  # arguments of successive pip installs; the first recipe that works is taken
    variants: tuple[str, ...] = ("--threads 1", "--threads 2")  # the best one counts


PEERS = {
    "flower": Peer(
        (
            (f"{TORCH} flwr[simulation]==1.42.0",),
            (f"{TORCH} {FLOWER_NEEDS}", "--no-deps flwr==1.42.0"),
        ),
        ("--processes 2",),
    ),
    "pfl": Peer(((f"{TORCH} pfl==0.6.0",),), ("--threads 1", "--threads 2", "--processes 2")),
    "fedlab": Peer(((f"{TORCH} fedlab==1.3.0",),)),
    "fluke": Peer(((f"{TORCH} fluke-fl==0.8.1",),)),
    "flgo": Peer(((f"{TORCH} flgo==0.4.4",),)),
    # FedJAX's last release, of 2023, uses functions that later versions of JAX do not have
    "fedjax": Peer((("fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.13",),)),
}
PLAIN = ("--threads 1", "--threads 2", "--processes 2")


def set_up(name: str, folder: Path) -> str | None:
    """Install a peer once; the reason if it cannot be."""
    peer, home = PEERS[name], folder / name
    done, recipe = home / "installed.json", json.dumps(PEERS[name].recipes)
    if done.is_file() and done.read_text() == recipe:
        return None
    print(f"installing {name} in {home}", file=sys.stderr, flush=True)
    why = ""
    for steps in peer.recipes:
        for command in [
            [sys.executable, "-m", "venv", "--clear", str(home)],
            *([str(home / "bin" / "pip"), "install", "--quiet", *shlex.split(step)] for step in steps),
        ]:
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                errors = [line for line in ran.stderr.splitlines() if "ERROR" in line] or ran.stderr.splitlines()
                why = why or (errors[-1][:200] if errors else f"exit status {ran.returncode}")
                break
        else:
            done.write_text(recipe)
            return None
    return f"cannot be installed: {why}"


def contestants(job: str, args: argparse.Namespace, federation: Path, missing: dict[str, str]) -> list[Contestant]:
    """Who takes part in a job, in every setting that may be its best."""
    common = [job, "--rounds", str(args.rounds), "--warmup", str(args.warmup), "--seed", str(args.seed)]
    common += ["--quick"] if args.quick else []
    found = []

    def add(name: str, python: str, script: Path, variant: str, *more: str) -> None:
        threads = variant.split()[1] if variant.startswith("--threads") else "1"
        path = [str(HERE), str(HERE / "peers")]
        if name == "fedconcord" and os.environ.get("PYTHONPATH"):
            path.append(os.environ["PYTHONPATH"])
        environment = {"OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(path)}
        command = [python, str(script), *common, *shlex.split(variant), *more]
        label = f"{name}, {variant.replace('--', '')}"
        found.append(Contestant(label, command, environment, args.envs / "logs" / f"{job} {label}.log"))

    for variant in args.ours or PLAIN[:2]:
        if "fedconcord" in args.only:
            add("fedconcord", sys.executable, HERE / "jobs.py", variant)
    for variant in PLAIN:
        if "plain" in args.only:
            add("plain", sys.executable, HERE / "plain.py", variant, "--federation", str(federation))
    for name, peer in PEERS.items():
        for variant in peer.variants if name in args.only and name not in missing else ():
            python = args.envs / name / "bin" / "python"
            add(name, str(python), HERE / "peers" / f"{name}_job.py", variant, "--federation", str(federation))
    return found


class Line(NamedTuple):
    """A contestant's result."""

    name: str
    setting: str
    record: dict[str, Any]

    @property
    def seconds(self) -> list[float]:
        return self.record["seconds_per_round"]["all"]


def table(job: str, setting: Setting, lines: list[Line], missing: dict[str, str]) -> str:
    """The result of a job in Markdown: fastest first, then those that did not run."""
    ran = sorted((line for line in lines if "error" not in line.record), key=lambda x: statistics.median(x.seconds))
    ours = next((line for line in ran if line.name == "fedconcord"), None)
    out = [
        f"### Job {job}: {setting.data}, {setting.model}, {setting.cohort} of {setting.clients} clients, "
        f"{setting.client_steps} client steps a round",
        "",
        "| | setting | s a round, median | fastest to slowest | times fedconcord's best | test accuracy | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    best = set()
    for line in ran:
        took, mark = line.seconds, "" if line.name in best else "**"
        best.add(line.name)
        ratio = f"{ratio_to(line, ours):.2f}" if ours else ""
        versions = line.record.get("versions", {})
        package = PACKAGES.get(line.name, line.name)
        named = " ".join([line.name, *([package] if line.name == "plain" else []), versions.get(package, "")])
        memory = line.record["peak_rss_bytes"] / 1e6
        out.append(
            f"| {mark}{named}{mark} | {line.setting} | {mark}{statistics.median(took):.3f}{mark} | "
            f"{min(took):.3f} to {max(took):.3f} | {ratio} | {line.record['accuracy']:.4f} | {memory:.0f} |"
        )
    failed = [(f"{line.name}, {line.setting}", line.record["error"]) for line in lines if "error" in line.record]
    out += [f"| {name} | | did not run: {why} | | | | |" for name, why in [*failed, *missing.items()]]
    return "\n".join(out)


PACKAGES = {"plain": "torch", "flower": "flwr", "fluke": "fluke-fl"}


def ratio_to(line: Line, base: Line) -> float:
    """The median over rounds of the ratio of two contestants' times: what slows a whole turn cancels."""
    return statistics.median(a / b for a, b in zip(line.seconds, base.seconds, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="A,B,C")
    parser.add_argument("--only", default=",".join(["fedconcord", "plain", *PEERS]), help="names, with commas between")
    parser.add_argument("--ours", action="append", help='a setting of fedconcord, as "--threads 2"; may be repeated')
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them that are not measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a start or a round may take")
    parser.add_argument(
        "--envs",
        type=Path,
        default=Path(tempfile.gettempdir()) / "fedconcord-peers",
        help="folder of the peers' environments and logs",
    )
    parser.add_argument("--out", type=Path, help="file for everything that was measured, as JSON")
    parser.add_argument("--quick", action="store_true", help="small forms of the jobs, to try the set-up")
    args = parser.parse_args()
    args.only = args.only.split(",")
    unknown = set(args.only) - {"fedconcord", "plain", *PEERS}
    if unknown:
        sys.exit(f"--only: no contestant {', '.join(sorted(unknown))}; there are fedconcord, plain, {', '.join(PEERS)}")
    args.envs.mkdir(parents=True, exist_ok=True)
    missing = {name: why for name in PEERS if name in args.only and (why := set_up(name, args.envs))}
    result: dict[str, Any] = {
        "processor": jobs.processor(),
        "python": platform.python_version(),
        "rounds": args.rounds,
        "warmup": args.warmup,
        "missing": missing,
        "jobs": {},
    }
    print(f"{result['processor']}, Python {result['python']}; {args.rounds} rounds after {args.warmup}, all in turn\n")
    for job in args.jobs.split(","):
        setting = (QUICK if args.quick else SETTINGS)[job]
        federation = args.envs / f"{job}{'-quick' if args.quick else ''}.npz"
        save(federation, federation_of(setting, args.seed, args.quick))
        taking = contestants(job, args, federation, missing)
        records = interleave(taking, args.warmup + args.rounds, args.timeout, sys.stderr)
        result["jobs"][job] = records
        lines = [Line(*label.split(", ", 1), record) for label, record in records.items()]
        print(table(job, setting, lines, missing), end="\n\n", flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
