"""Everything that a run needs to go on as if it had never stopped, in one safetensors file.

The clients' rows are in it, or only where they lie in their own file (`rows.disk`), which then belongs to it.
Randomness is keyed, so there is no generator state to keep: the server's state, the clients' rows and counters are all.
With them goes what makes the job (`facts`), so that another job does not go on from it by mistake.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from fedconcord.execution.job import Job, State, blank
from fedconcord.execution.rows import exported, tensors
from fedconcord.method.contract import Parts, Tree, tree_leaves, tree_unflatten
from fedconcord.method.contract.identity import UNNAMED, Identity
from fedconcord.support.errors import UserError

FORMAT = 2


def save(job: Job, state: State, path: str | Path) -> None:
    """Write a state with its clients' rows to a file, in one piece or not at all, and what it is the state of.

    Rows that the job keeps on disk stay in their own file, which then belongs to this one. Of several processes all
    call this, and rank 0 writes the rows of all.
    """
    team = job.engine.team
    rows = exported(state.store) if team.size == 1 else team.collect(state.store.export())
    team.tell(lambda: _write(Path(path), state, job, rows))
    state.store.commit()  # only now: until the file is in its place, the one before it is the run


def _write(path: Path, state: State, job: Job, rows: Mapping[str, torch.Tensor | tensors.Picked]) -> str:
    tensors_by_name: dict[str, torch.Tensor | tensors.Picked] = {
        f"server.{name}": leaf for name, leaf in tree_leaves(state.server).items()
    }
    tensors_by_name |= {f"rows.{name}": leaf for name, leaf in rows.items()}
    for version, down in state.versions.items():
        tensors_by_name |= {f"versions.{version}.{name}": leaf for name, leaf in tree_leaves(down).items()}
    counters = {
        "format": FORMAT,
        "round": state.round,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "gradient_steps": state.gradient_steps,
        "simulated_seconds": state.simulated_seconds,
        "refused": list(state.refused.items()),
        "versions": list(state.versions),
        "between": list(state.between),
    }
    about = {"state": json.dumps(counters), "job": json.dumps(facts(job, state.store.template))}
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors.write(path, tensors_by_name, about)
    return ""


def load(job: Job, path: str | Path, fresh: State | None = None) -> State:
    """The state that `save` wrote, for the same job: rounds go on from it to the same bits, whatever happened since.

    Args:
        fresh: a blank state of the job, whose store takes the rows; made where it is not given.

    Raises:
        UserError: the file is not there or damaged, of another version, or belongs to another job.
    """
    path = Path(path)
    try:
        stored, about = tensors.read(path)
        counters = dict(json.loads(about.get("state", "{}")))
        identity = dict(json.loads(about.get("job", "{}")))
    except FileNotFoundError as absent:
        raise UserError(
            f"there is no checkpoint {path}; write one with fedconcord.save, or give another path"
        ) from absent
    except (tensors.DamagedError, OSError, ValueError, TypeError, RecursionError) as broken:
        raise UserError(f"cannot read the checkpoint {path} ({broken}); delete it to start this run again") from broken
    if counters.get("format") != FORMAT:
        raise UserError(
            f"{path} is not a checkpoint of this version (format {counters.get('format')}, not {FORMAT}); delete it to "
            "start this run again, or resume with the version that wrote it"
        )
    fresh = blank(job) if fresh is None else fresh
    _refuse_another(path, identity, facts(job, fresh.store.template))
    server = _read(path, stored, "server", fresh.server)
    rows = {k.removeprefix("rows."): v for k, v in stored.items() if k.startswith("rows.")}
    if not (_are_counters(counters) and _are_rows(rows, job.problem.roster.n)):
        raise UserError(f"{path} holds what no checkpoint of this job holds; delete it to start this run again")
    team = job.engine.team
    if team.size > 1:  # whoever wrote them, they go to their owners
        mine = torch.as_tensor(team.owns(rows["ids"].numpy()))
        rows = {name: leaf[mine] for name, leaf in rows.items()}
    fresh.store.restore({name: _to(leaf, job) for name, leaf in rows.items()})
    down = job.algorithm.broadcast(fresh.server)
    versions = {k: _read(path, stored, f"versions.{k}", down) for k in counters.get("versions", ())}
    return State(
        round=counters["round"],
        server=server,
        store=fresh.store,
        bytes_up=counters["bytes_up"],
        bytes_down=counters["bytes_down"],
        gradient_steps=counters["gradient_steps"],
        simulated_seconds=counters["simulated_seconds"],
        refused=dict(counters.get("refused", ())),
        versions=versions,
        between=tuple(counters.get("between", ())),
    )


def _read(path: Path, stored: Mapping[str, torch.Tensor], prefix: str, like: Tree) -> Tree:
    """A tree of the server's, of the form of one that the job has.

    Raises:
        UserError: the file holds another one.
    """
    leaves = {}
    for name, leaf in tree_leaves(like).items():
        got = stored.get(f"{prefix}.{name}")
        if got is None or got.shape != leaf.shape or got.dtype != leaf.dtype:
            what = "nothing" if got is None else f"{got.dtype} {tuple(got.shape)}"
            raise UserError(
                f"{path} holds {what} for the server's {name!r} where this job has {leaf.dtype} {tuple(leaf.shape)}; "
                "resume with the configuration that wrote it"
            )
        leaves[name] = got.to(leaf.device)
    return tree_unflatten(like, leaves)


def _are_counters(counters: Mapping[str, Any]) -> bool:
    """Whether they are what `_write` writes; a checksum says only that nothing was changed by accident."""
    whole = [counters.get(name) for name in ("round", "bytes_up", "bytes_down", "gradient_steps")]
    refused, seconds = counters.get("refused", []), counters.get("simulated_seconds")
    pairs = isinstance(refused, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in refused)
    whole += [number for pair in refused for number in pair] if pairs else []
    for name in ("versions", "between"):
        whole += counters.get(name, []) if isinstance(counters.get(name, []), list) else [None]
    return pairs and all(type(number) is int and number >= 0 for number in whole) and type(seconds) in (int, float)


def _are_rows(rows: Mapping[str, torch.Tensor], clients: int) -> bool:
    """Whether they are of distinct clients, in order, and all of as many; an engine's own bytes verify themselves."""
    rows = {name: leaf for name, leaf in rows.items() if leaf.dtype != torch.uint8}
    if not rows:
        return True
    ids = rows.get("ids", torch.zeros(0))
    if ids.dtype != torch.int64 or ids.dim() != 1 or any(leaf.shape[:1] != ids.shape for leaf in rows.values()):
        return False
    return not len(ids) or bool((ids.diff() > 0).all() and ids[0] >= 0 and ids[-1] < clients)


def facts(job: Job, row: Tree) -> dict[str, Any]:
    """What decides the trajectory, as far as it can be written down, by dotted name; `row`: a client's first.

    A part made by hand says what it can: its plain fields. Engines are left out, which change no result.
    """
    objective, roster = job.problem.objective, job.problem.roster
    parts = objective.private if isinstance(objective.private, Parts) else None
    about = {
        "dim": objective.dim,
        "dtype": str(objective.dtype).removeprefix("torch."),
        "precision": objective.precision,
        "clients": roster.n,
        "samples": zlib.crc32(roster.samples.tobytes()),  # of each client
        "weights": zlib.crc32(roster.sizes.tobytes()),
        "regulariser": None if objective.regulariser is None else objective.regulariser.name,
        "frozen": objective.frozen,
    }
    if parts is not None:
        about |= {"private": zlib.crc32(parts.first.cpu().numpy().tobytes())}
        about |= {"private_steps": "frozen" if parts.frozen else parts.before}
    return {
        **dict(_plain("method", job.algorithm.identity)),
        **dict(_plain("solver", job.solver)),
        **dict(_plain("schedule", job.schedule)),
        **{f"problem.{name}": value for name, value in about.items()},
        **{f"row.{name}": f"{leaf.dtype} {list(leaf.shape)}" for name, leaf in tree_leaves(row).items()},
        "engine.rows": job.storage.rows,
        **({"hostile": zlib.crc32(json.dumps(job.hostile).encode())} if job.hostile else {}),
    }


def _plain(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The plain values within a value, by dotted name; functions, arrays and the like are passed over."""
    identity = getattr(value, "identity", None)
    if isinstance(identity, Identity) and identity != UNNAMED:
        value = identity
    if value is None or isinstance(value, bool | int | float | str):
        yield name, value
    elif isinstance(value, Identity):
        yield name, f"{value.name} (version {value.version})" if value != UNNAMED else "made by hand"
        for key, part in value.parameters:
            yield from _plain(f"{name}.{key}", part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.compare:
                yield from _plain(f"{name}.{field.name}", getattr(value, field.name))
    elif isinstance(value, list | tuple):
        keys = getattr(value, "_fields", range(len(value)))
        if not hasattr(value, "_fields"):
            yield f"{name}.length", len(value)
        for key, part in zip(keys, value, strict=True):
            yield from _plain(f"{name}.{key}", part)


def _refuse_another(path: Path, before: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    for name in [*before, *(name for name in job if name not in before)]:
        was, now = (json.dumps(one.get(name)) for one in (before, job))
        if was != now and before.get(name) != job.get(name):  # 1 and 1.0 are one number, and NaN is itself
            raise UserError(
                f"{path} belongs to another job, whose {name} is {was} where this one's is {now}; resume with the "
                "configuration that wrote it, or start again in another folder"
            )


def _to(tensor: torch.Tensor, job: Job) -> torch.Tensor:
    return tensor if tensor.dtype == torch.int64 else tensor.to(job.problem.objective.device)
