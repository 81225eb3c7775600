"""What a secure sum costs a site: `python benchmarks/secure.py`. Bytes and messages of one round of FedAvg, with and
without, with differential privacy too, and of one evaluation, counted from the frames; and the seconds of a site's
answers. Server and sites are in this process."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedconcord.execution.messages import codec
from fedconcord_flower.keys import write_site
from fedconcord_sites.gate import JUDGING
from fedconcord_sites.serve import serve
from fedconcord_sites.site import NAMED, Site

JOB = """
method = "fedavg"
data = "digits"
partition = "iid"
model = "{model}"
rounds = 1
cohort = {sites}
[local]
steps = 1
{tables}
"""
PRIVATE = "[privacy]\nclip = 1\nnoise = 1\n"
KINDS = {
    "plain": "",
    "secure, 24 bits": "[secure]\nclip = 8\n",
    "secure, 48 bits": "[secure]\nclip = 8\nbits = 48\n",
    "private": PRIVATE,
    "private and secure": PRIVATE + "[secure]\nclip = 8\n",
    "private, local noise": PRIVATE + 'kind = "local"\n',
}
ROUND = ("orders", "keys", "deal", "agree", "open")  # its messages
EVALUATED = {"an evaluation, plain": KINDS["plain"], "an evaluation, secure": KINDS["secure, 24 bits"]}


def measure(model: str, count: int, tables: str, kinds: Sequence[str], times: int) -> tuple[int, int, int, float]:
    """(messages, bytes to a site, bytes from it, seconds of its answers) in messages of these kinds of one round of so
    many sites, which has so many of them."""
    job, names = JOB.format(model=model, sites=count, tables=tables), [f"s{k}" for k in range(count)]
    seen = {"messages": 0, "down": 0, "up": 0}
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            write_site(Path(folder) / "keys", name)
        sites = {name: Site(job, NAMED, Path(folder) / name, name, keys=Path(folder) / "keys") for name in names}

        def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
            nonlocal spent
            answers = {}
            for name, data in messages.items():
                began = time.perf_counter()
                answers[name] = sites[name].answer(data)
                if codec.read(data).kind in kinds:
                    spent += time.perf_counter() - began
                    seen["messages"] += 1
                    seen["down"] += len(data)
                    seen["up"] += len(answers[name])
            return answers

        done = serve(job, names, exchange, Path(folder) / "run", None, 60.0, False)
        assert json.loads((done.folder / "run.json").read_text())["rounds_void"] == 0
    each = count * times
    return seen["messages"] // each, seen["down"] // each, seen["up"] // each, spent / each


def main() -> None:
    """The table of docs/secure.md."""
    print("| model | sites | sums | messages | bytes to a site | bytes from it | seconds of its answers |")
    print("|---|---|---|---|---|---|---|")
    counts = [int(one) for one in sys.argv[1:]] or [3, 10, 30]
    for model in ("logreg", "2nn"):
        for count in counts:
            for sums, tables in (KINDS | EVALUATED).items():
                of = (JUDGING, 2) if sums in EVALUATED else (ROUND, 1)  # before the round and after it
                messages, down, up, seconds = measure(model, count, tables, *of)
                print(f"| {model} | {count} | {sums} | {messages} | {down:,} | {up:,} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
