"""Everything that a run needs to go on as if it had never stopped, in one safetensors file.

The clients' rows are in it, or only where they lie in their own file (`state.disk`), which then belongs to it.
Randomness is keyed, so there is no generator state to keep: the server's state, the clients' rows and counters are all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedconcord import files
from fedconcord.core import tree_leaves, tree_unflatten
from fedconcord.engines.team import ALONE, Team
from fedconcord.errors import UserError
from fedconcord.training import Job, State, blank

FORMAT = 1
NAMES = {  # of number types in the file
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write(path: Path, state: State, team: Team = ALONE) -> None:
    """Write the state atomically; of several processes all call this, and rank 0 writes the rows of all."""
    rows = team.collect(state.store.export())
    if team.rank != 0:
        return
    tensors = {f"server.{name}": leaf.detach().cpu() for name, leaf in tree_leaves(state.server).items()}
    tensors |= {f"rows.{name}": leaf for name, leaf in rows.items()}
    counters = {
        "format": FORMAT,
        "round": state.round,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "gradient_steps": state.gradient_steps,
        "simulated_seconds": state.simulated_seconds,
    }
    files.write_bytes(path, *_safetensors(tensors, {"state": json.dumps(counters)}))
    state.store.commit()  # only now: until the file is in its place, the one before it is the run


def read(path: Path, job: Job) -> State:
    """The state that was written, for the same job.

    Raises:
        UserError: the file is broken, or belongs to another method, model or number type.
    """
    fresh, _ = blank(job)
    try:
        with safe_open(path, framework="pt") as file:
            counters = json.loads((file.metadata() or {}).get("state", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as broken:
        raise UserError(f"cannot read the checkpoint {path} ({broken}); delete it to start this run again") from broken
    if counters.get("format") != FORMAT:
        raise UserError(f"{path} is not a checkpoint of this version (format {counters.get('format')}, not {FORMAT})")
    server = {}
    for name, leaf in tree_leaves(fresh.server).items():
        found = tensors.get(f"server.{name}")
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            got = "nothing" if found is None else f"{found.dtype} {tuple(found.shape)}"
            raise UserError(
                f"{path} holds {got} for the server's {name!r} where this job has {leaf.dtype} {tuple(leaf.shape)}; "
                "resume with the configuration that wrote it"
            )
        server[name] = found.to(leaf.device)
    rows = {k.removeprefix("rows."): v for k, v in tensors.items() if k.startswith("rows.")}
    team = job.engine.team
    if team.size > 1:  # whoever wrote them, they go to their owners
        mine = torch.as_tensor(team.owns(rows["ids"].numpy()))
        rows = {name: leaf[mine] for name, leaf in rows.items()}
    fresh.store.restore({name: _to(leaf, job) for name, leaf in rows.items()})
    return State(
        round=counters["round"],
        server=tree_unflatten(fresh.server, server),
        store=fresh.store,
        bytes_up=counters["bytes_up"],
        bytes_down=counters["bytes_down"],
        gradient_steps=counters["gradient_steps"],
        simulated_seconds=counters.get("simulated_seconds", 0.0),
    )


def _safetensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file by its pieces, the tensors' own memory: `save` holds everything twice more.

    The widest numbers come first, so that all are aligned.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    pieces, end = list[memoryview](), 0
    for name, leaf in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        piece = leaf.contiguous().reshape(-1).view(torch.uint8).numpy().data
        begin, end = end, end + len(piece)
        header[name] = {"dtype": NAMES[leaf.dtype], "shape": list(leaf.shape), "data_offsets": [begin, end]}
        pieces.append(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def _to(tensor: torch.Tensor, job: Job) -> torch.Tensor:
    return tensor if tensor.dtype == torch.int64 else tensor.to(job.problem.objective.device)
