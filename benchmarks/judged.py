"""Other packages' methods before the referee: method x package x version, and what differs.

    python benchmarks/judged.py --venvs DIR                        set up what is missing, judge all, write judged.json
    python benchmarks/judged.py --venvs DIR --only byzfl,fedlab    these packages alone, beside what the file has
    python benchmarks/judged.py --venvs DIR --cell fluke-fl:FedAVGM    one cell, in the referee's words
    python benchmarks/judged.py --table                            the table of docs/referee.md, from judged.json

Every package is installed by pip in a virtual environment of its own below --venvs. The scripts of `judged/` drive its
own client and server code on the referee's problem with full gradients; nothing of it is imported here. Where a cell
differs, its `repair` runs the same code with the spots changed that the remark names, and must agree.
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_referee import adapters, spec, verdict

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "judged.json"
TORCH = "torch==2.13.0 torchvision"
SINGLE = 1e-4  # tolerance for code that computes in single precision somewhere


class Package(NamedTuple):
    """How a package is installed, and which script drives it."""

    script: str
    installs: tuple[str, ...]  # arguments of successive pip installs


PACKAGES = {
    "byzfl": Package("byzfl_cells.py", (f"{TORCH} byzfl==0.0.11",)),
    "fedlab": Package("fedlab_cells.py", (f"{TORCH} fedlab==1.3.0",)),
    "fluke-fl": Package("fluke_cells.py", (f"{TORCH} fluke-fl==0.8.1",)),
    "flgo": Package("flgo_cells.py", (f"{TORCH} flgo==0.4.4",)),
    "pfl": Package("pfl_cells.py", (f"{TORCH} pfl==0.6.0",)),
    "appfl": Package("appfl_cells.py", (f"{TORCH} appfl==1.12.0",)),
    "nvflare": Package("nvflare_cells.py", (f"{TORCH} nvflare==2.9.0",)),
    "fedjax": Package("fedjax_cells.py", ("torch==2.13.0 fedjax==0.0.17 jax<0.5 jaxlib<0.5",)),
}


class Cell(NamedTuple):
    """One method of one package."""

    package: str
    name: str  # of the cell in the package's script
    method: str  # what is asked of the referee
    remark: str = ""  # what differs, where something does
    repair: str = ""  # the cell of the script with that spot changed
    tolerance: float = verdict.TOLERANCE
    kinds: tuple[spec.Kind, ...] = spec.KINDS  # the problems that it can be judged on


POSITIVE: tuple[spec.Kind, ...] = ("logistic",)  # for powers of f_i: the quadratic ones go below 0
CORRECTED = "torch's Adam: second moment from 0, and bias correction"
TWICE = "takes the server's step size twice, once before the moments see the mean move; second moment from 0"
CELLS = (
    Cell("byzfl", "Average", "fedavg"),
    Cell("byzfl", "Median", "median"),
    Cell("byzfl", "TrMean", "trimmed_mean"),
    Cell("byzfl", "GeometricMedian", "geometric_median(iterations=400)"),
    Cell("byzfl", "Krum", "krum", "n − f − 1 neighbours, where the paper has n − f − 2", "Krum, repaired"),
    Cell("byzfl", "MultiKrum", "multi_krum", "averages n − f vectors"),
    Cell("byzfl", "CenteredClipping", "centred_clip(radius=0.3)"),
    Cell("byzfl", "Clipping", "norm_clip(radius=0.3)"),
    Cell("fedlab", "FedAvg", "fedavg"),
    Cell("fedlab", "FedProx", "fedprox(mu=0.5)"),
    Cell("fedlab", "SCAFFOLD", "scaffold"),
    Cell(
        "fedlab",
        "FedDyn",
        "feddyn(alpha=0.5)",
        "the client's linear and proximal terms have no gradient, as they are taken of `param.data`; the server "
        "subtracts its model once from the sum of the clients', not once a client",
        "FedDyn, repaired",
    ),
    Cell(
        "fedlab",
        "FedNova",
        "fednova(weights=uniform)",
        "multiplies by N/S, with weights that are the cohort's own already",
        "FedNova(option=uniform)",
    ),
    Cell("fedlab", "FedNova(option=uniform)", "fednova(weights=uniform)"),
    Cell(
        "fedlab",
        "qFedAvg",
        "qffl",
        "adds up the losses of all local steps, where the paper has the loss at the server's model",
        "qFedAvg, repaired",
        kinds=POSITIVE,
    ),
    Cell("fluke-fl", "FedAVG", "fedavg"),
    Cell("fluke-fl", "FedAVG(weighted)", "fedavg(weights=size)"),
    Cell(
        "fluke-fl",
        "FedAVGM",
        "fedavgm",
        "the first round's models are thrown away: momentum starts at 0 after that round, not before it",
        "FedAVGM, repaired",
    ),
    Cell("fluke-fl", "FedProx", "fedprox(mu=0.5)"),
    Cell("fluke-fl", "SCAFFOLD", "scaffold"),
    Cell(
        "fluke-fl",
        "FedDyn",
        "feddyn(alpha=0.5,weights=size)",
        "four spots: the client's memory has its sign reversed and is multiplied by α once more, the server adds the "
        "mean of the cohort's memories, not of all clients', and a client starts from another model the first time",
        "FedDyn, repaired",
    ),
    Cell(
        "fluke-fl",
        "FedNova",
        "fednova",
        "weighs models, where the paper weighs moves: the weights do not add up to 1, so the model shrinks or grows",
        "FedNova, repaired",
    ),
    Cell("fluke-fl", "FedOpt(adam)", "fedadam", TWICE, "FedOpt(adam), step repaired"),
    Cell("fluke-fl", "FedOpt(yogi)", "fedyogi", TWICE, "FedOpt(yogi), step repaired"),
    Cell("fluke-fl", "FedOpt(adagrad)", "fedadagrad", TWICE, "FedOpt(adagrad), step repaired"),
    Cell(
        "fluke-fl",
        "FedExP",
        "fedexp(eps=1e-4)",
        "answers with the last model, where the paper has the mean of the last two",
        tolerance=1e-6,
    ),
    Cell(
        "fluke-fl",
        "FedSAM",
        "fedsam(radius=0.1)",
        "gradients are not set to zero between local steps: the ascent direction has the last step's gradient in it",
        "FedSAM, repaired",
        1e-7,
    ),
    Cell(
        "fluke-fl",
        "PerFedAVG",
        "perfedavg",
        "the second step goes on from where the first led, which should only be looked at",
        "PerFedAVG, repaired",
    ),
    Cell("flgo", "fedavg", "fedavg"),
    Cell("flgo", "fedavg(aggregate=other)", "fedavg(weights=size)"),
    Cell(
        "flgo",
        "fedavg(aggregate=weighted_com)",
        "fedavg(weights=unbiased)",
        "a server step of S/N",
    ),
    Cell(
        "flgo",
        "fedavg(aggregate=weighted_scale)",
        "fedavg(weights=unbiased)",
        "averages models, not moves, with weights p_k N/S that add up to 1 in the mean over cohorts only",
        "fedavg(aggregate=weighted_scale), repaired",
    ),
    Cell("flgo", "fedavgm", "fedavgm"),
    Cell("flgo", "fedprox", "fedprox(mu=0.5)"),
    Cell("flgo", "scaffold", "scaffold"),
    Cell("flgo", "feddyn", "feddyn(alpha=0.5)"),
    Cell("flgo", "fednova", "fednova"),
    Cell("flgo", "afl", "afl"),
    Cell(
        "flgo",
        "fedspeed",
        "fedspeed(alpha=0.5)",
        "the linear term and the centre of the pull have their sign reversed; the server adds the mean of the cohort's "
        "offsets, as the paper does, and not of all clients', as its authors' code does",
        "fedspeed, repaired",
        1e-7,
    ),
    Cell("flgo", "qfedavg", "qffl", tolerance=1e-7, kinds=POSITIVE),
    Cell("pfl", "FederatedAveraging", "fedavg", tolerance=SINGLE),
    Cell("pfl", "FederatedAveraging(momentum)", "fedavgm", tolerance=SINGLE),
    Cell("pfl", "FederatedAveraging(Adam)", "fedadam", CORRECTED, tolerance=SINGLE),
    Cell("pfl", "FedProx", "fedprox(mu=0.5)", tolerance=SINGLE),
    Cell("pfl", "SCAFFOLD", "scaffold", "the control variates have their sign reversed", "SCAFFOLD, repaired", SINGLE),
    Cell(
        "pfl",
        "SCAFFOLD(option I)",
        "scaffold(option=1)",
        "the control variates have their sign reversed, and are overwritten by the next client's",
        "SCAFFOLD(option I), repaired",
        SINGLE,
    ),
    Cell("appfl", "FedAvg", "fedavg"),
    Cell("appfl", "FedAvg(client_weights_mode=sample_size)", "fedavg(weights=size)"),
    Cell("appfl", "FedProx", "fedprox(mu=0.5)"),
    Cell("appfl", "FedAvgM", "fedavgm"),
    Cell("appfl", "FedAdam", "fedadam"),
    Cell("appfl", "FedYogi", "fedyogi"),
    Cell("appfl", "FedAdagrad", "fedadagrad"),
    Cell("nvflare", "FedAvg", "fedavg"),
    Cell("nvflare", "FedAvg(num steps)", "fedavg(weights=size)"),
    Cell("nvflare", "FedProx", "fedprox(mu=0.5)"),
    Cell("nvflare", "FedOpt(SGD)", "fedavgm"),
    Cell("nvflare", "FedOpt(Adam)", "fedadam", CORRECTED),
    Cell(
        "nvflare",
        "Scaffold",
        "scaffold",
        "averages changes of control variates over the cohort, where the paper has the mean of all clients",
        "Scaffold, repaired",
    ),
    Cell("fedjax", "fed_avg", "fedavg(weights=size)"),
    Cell("fedjax", "fed_avg(momentum)", "fedavgm(weights=size)"),
    Cell("fedjax", "fed_avg(adam)", "fedadam(weights=size)", "optax's Adam: second moment from 0, and bias correction"),
    Cell("fedjax", "fed_avg(adagrad)", "fedadagrad(weights=size,beta1=0,v0=0,tau=0,eps_root=0.001)"),
    Cell("fedjax", "fed_prox", "fedprox(mu=0.5,weights=size)"),
    Cell("fedjax", "mime", "mimesvrg(weights=size)"),
)


def python_of(venvs: Path, package: str) -> Path:
    return venvs / package / "bin" / "python"


def marker_of(venvs: Path, package: str) -> Path:
    """A file of the recipe, written when all of it is installed."""
    return venvs / package / "installed"


def is_set_up(venvs: Path, package: str) -> bool:
    """Whether today's recipe ran to its end here."""
    marker = marker_of(venvs, package)
    return marker.exists() and marker.read_text() == "\n".join(PACKAGES[package].installs)


def set_up(venvs: Path, package: str) -> bool:
    """Install a package where it is not yet, from an empty folder; False, and a sentence, where that fails."""
    if is_set_up(venvs, package):
        return True
    print(f"installing {package}", file=sys.stderr, flush=True)
    python = python_of(venvs, package)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(python.parents[1])], check=True)
        for install in PACKAGES[package].installs:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *shlex.split(install)], check=True)
    except subprocess.CalledProcessError as error:
        print(f"{package} is left out: {shlex.join(map(str, error.cmd))} failed", file=sys.stderr, flush=True)
        return False
    files.write_text(marker_of(venvs, package), "\n".join(PACKAGES[package].installs))
    return True


@functools.cache
def version(venvs: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python_of(venvs, package), "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def judged(venvs: Path, cell: Cell, name: str) -> list[tuple[spec.Spec, verdict.Verdict]]:
    """What a cell's code, or its repair's, computes on each of its problems."""
    words = [str(python_of(venvs, cell.package)), str(HERE / "judged" / PACKAGES[cell.package].script), name]
    run = adapters.command(shlex.join(words), 120.0)
    problems = [spec.make(cell.method, kind) for kind in cell.kinds]
    return [(one, verdict.judge(one, run(one), cell.tolerance)) for one in problems]


def plain(verdicts: list[tuple[spec.Spec, verdict.Verdict]]) -> dict[str, Any]:
    """What the file keeps: the verdict of both problems, or the first's and, under its problem's name, the second's."""
    (_, first), *others = verdicts
    largest = max(one.largest for _, one in verdicts)
    entry: dict[str, Any] = {"kind": first.kind, "name": first.name, "largest": float(f"{largest:.1e}")}
    for problem, one in others:
        if (one.kind, one.name) != (first.kind, first.name):
            entry[problem.kind] = {"kind": one.kind, "name": one.name}
    return entry


def results(venvs: Path, packages: list[str], old: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All cells in their order: those of the packages judged, the others as they were."""
    for cell in CELLS:
        if cell.package not in packages:
            yield from (one for one in old if (one["package"], one["cell"]) == (cell.package, cell.name))
        else:
            entry = {"package": cell.package, "version": version(venvs, cell.package), "cell": cell.name}
            entry |= {"method": cell.method, **plain(judged(venvs, cell, cell.name))}
            if cell.repair:
                entry["repair"] = {"cell": cell.repair, **plain(judged(venvs, cell, cell.repair))}
            print(json.dumps(entry, ensure_ascii=False), file=sys.stderr, flush=True)
            yield entry


def words(cell: Cell, entry: dict[str, Any]) -> str:
    """A verdict as the table has it."""
    if entry["kind"] == "equal":
        return "equal"
    return f"{'variant' if entry['kind'] == 'variant' else 'differs'}: {cell.remark}"


def table(entries: list[dict[str, Any]]) -> list[str]:
    """The rows of docs/referee.md."""
    rows = ["| package | method there | asked for | verdict |", "|---|---|---|---|"]
    for cell in CELLS:
        for one in entries:
            if (one["package"], one["cell"]) == (cell.package, cell.name):
                place = f"{cell.package} {one['version']}"
                rows.append(f"| {place} | `{cell.name}` | `{cell.method}` | {words(cell, one)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, help="folder of the packages' virtual environments")
    parser.add_argument("--only", default=",".join(PACKAGES), help="packages, separated by commas")
    parser.add_argument("--cell", help="PACKAGE:CELL, judged alone and told in words")
    parser.add_argument("--table", action="store_true", help="print the table of the results that are there")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(json.loads(RESULTS.read_text()))))
        return
    if args.venvs is None:
        parser.error("give --venvs, or --table")
    if args.cell:
        cell = next((one for one in CELLS if f"{one.package}:{one.name}" == args.cell), None)
        if cell is None:
            parser.error(f"there is no cell {args.cell!r}; --table shows all, as in --cell fluke-fl:FedAVGM")
        if not set_up(args.venvs, cell.package):
            sys.exit(1)
        for problem, one in judged(args.venvs, cell, cell.name):
            print("\n".join(verdict.sentences(problem, one, cell.tolerance)))
        return
    packages = args.only.split(",")
    if unknown := set(packages) - set(PACKAGES):
        parser.error(f"unknown package {min(unknown)!r}; known: {', '.join(PACKAGES)}")
    there = [package for package in packages if set_up(args.venvs, package)]
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in results(args.venvs, there, old))
    files.write_text(RESULTS, f"[\n{lines}\n]\n")
    sys.exit(there != packages)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:  # of the referee: a cell's code failed
        sys.exit(f"error: {error}")
