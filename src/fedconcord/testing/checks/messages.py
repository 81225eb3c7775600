"""What travels and what is kept: tensors that survive being written, counted to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedconcord.execution.engines.base import joining
from fedconcord.execution.engines.team import ALONE
from fedconcord.execution.job import advance, start
from fedconcord.method.contract import Tree, cohort_of, space_of, tree_leaves, tree_map, tree_unflatten
from fedconcord.testing.bench import Bench, observed, plan_of
from fedconcord.testing.compare import fail, first_difference, kind, leaves


def messages(bench: Bench) -> None:
    job = bench.job()
    traffic = {"up": 0, "down": 0}
    now: dict[str, int] = {}

    def counted(name: str, tree: Tree) -> int:
        _round_trip(name, tree)
        return sum(leaf.nbytes if isinstance(leaf, Tensor) else 8 for _, leaf in leaves(tree, name))

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name == "finish":
            now["up"] = now.get("up", 0) + counted("message", result[0])
            _round_trip("row", result[1])
        elif name == "broadcast":
            now["down"] = job.schedule.cohort * counted("broadcast", result)
        elif name == "contribute":
            _round_trip("share", result)
        elif name == "prelude.contribute":
            traffic["up"] += args[0].nbytes
        elif name == "prelude.absorb":
            traffic["down"] += job.schedule.cohort * counted("prelude", args[1])
        elif name == "settle.send":
            now["down"] = now.get("down", 0) + job.schedule.cohort * counted("settle", result)
        elif name in ("update", "init"):
            _round_trip("server", result)
        return result

    watched = observed(job, watch)
    state = start(watched)
    for _ in range(4):
        before, now = state, {}
        plan = plan_of(job, state.round)
        communicates = job.algorithm.phases.communicates
        talks = communicates is None or communicates(cohort_of(space_of(job.problem), plan))
        x0 = joining(job.algorithm, state.store, plan, ALONE, talks) * state.server.x.nbytes
        traffic |= {"up": 0, "down": x0}
        state = advance(watched, state)
        want = tuple(traffic[way] + talks * now.get(way, 0) for way in ("up", "down"))
        got = (state.bytes_up - before.bytes_up, state.bytes_down - before.bytes_down)
        if got != want:
            fail(f"(up, down) {want} bytes of the messages' tensors", f"{got}")


def _round_trip(name: str, tree: Tree) -> None:
    """A tree must come back from bytes as it was."""
    leaves = tree_leaves(tree)
    for path, leaf in leaves.items():
        if not isinstance(leaf, Tensor) and not (name == "broadcast" and isinstance(leaf, int | float)):
            fail(f"tensors only in every {name}", f"{path or name} is {kind(leaf)}")
        if isinstance(leaf, Tensor) and (leaf.layout != torch.strided or leaf.requires_grad):
            fail(f"plain dense tensors without gradient in every {name}", f"{path or name} is {leaf.layout}")
    tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}
    # safetensors refuses the empty name of a bare tensor and tensors that share memory
    content = save({f"/{path}": leaf.detach().cpu().contiguous().clone() for path, leaf in tensors.items()})
    read = {path.removeprefix("/"): leaf for path, leaf in load(content).items()}
    back = tree_unflatten(tree, leaves | read)
    difference = first_difference(
        tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, tree), back, name
    )
    if type(back) is not type(tree) or difference is not None:
        fail(f"every {name} as it was after being written and read", difference or type(back).__name__)
