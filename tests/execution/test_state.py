"""Stores: the same rows and results wherever they live; a run that is killed goes on to the same bits."""

import ctypes
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.execution.job import Job, State, advance, checkpoint, start, state_bytes
from fedconcord.execution.rows import DiskStore, MemoryStore, Storage, Store, exported, memory, path_of
from fedconcord.execution.rows import file as files
from fedconcord.execution.rows import tensors as sealed
from fedconcord.execution.rows.file import create, stride_of
from fedconcord.execution.rows.memory import Fields
from fedconcord.execution.run.clock import Clock
from fedconcord.execution.run.saving import Saving
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation import sampling
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import fixed, uniform
from fedconcord.interface import cli
from fedconcord.interface.cli import progress
from fedconcord.method.contract import tree_leaves
from fedconcord.study.runs import plan
from fedconcord.study.runs.training import placed
from fedconcord.support.errors import UserError
from table import make
from training import execute, execute_all


class Row(NamedTuple):
    dual: Tensor  # [d]
    table: Tensor  # [M, d]
    count: Tensor  # [] int64
    rate: Tensor  # []


TEMPLATE = Row(torch.arange(3.0), torch.zeros(2, 3), torch.tensor(7), torch.tensor(0.5))


def rows(draw: np.random.Generator, count: int) -> Row:
    def random(*shape: int) -> Tensor:
        return torch.as_tensor(draw.standard_normal((count, *shape)), dtype=torch.float32)

    return Row(random(3), random(2, 3), torch.as_tensor(draw.integers(9, size=(count, 1))), random(1))


def assert_rows(store: Store, model: dict[int, Row], half: torch.dtype | None = None) -> None:
    assert store.ids().tolist() == sorted(model)
    assert len(store) == len(model)
    got = store.gather(np.arange(40))
    for i in range(40):
        for name, leaf in tree_leaves(model.get(i, TEMPLATE)).items():
            wanted = leaf.to(half).to(leaf) if half and leaf.is_floating_point() and i in model else leaf
            assert torch.equal(getattr(got, name)[i].reshape(wanted.shape), wanted), (i, name)


@pytest.mark.parametrize("half", [None, torch.bfloat16, torch.float16], ids=["full", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_a_store_is_a_dictionary_that_survives_crashes(
    kind: str, seed: int, half: torch.dtype | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random writes, checkpoints, and crashes at any point of a checkpoint, against a dictionary."""
    draw = np.random.default_rng(seed)
    if seed:  # arrays in memory that grow by copies
        monkeypatch.setattr(memory, "UNTOUCHED", 0)
    path = tmp_path / "rows.bin"

    def opened() -> Store:
        clients = 40 if seed == 2 else 0  # arrays for as many, or for nobody knows how many
        return MemoryStore(TEMPLATE, half, None, clients) if kind == "memory" else DiskStore(TEMPLATE, path, half)

    store, model = opened(), dict[int, Row]()
    saved, safe = store.export(), dict[int, Row]()
    store.commit()
    crashes = 0
    for _ in range(120):
        event = draw.random()
        if event < 0.7:
            ids = np.sort(draw.choice(40, draw.integers(1, 9), replace=False))
            new = rows(draw, len(ids))
            store.scatter(ids, new)
            model |= {int(i): Row(*(leaf[k] for leaf in new)) for k, i in enumerate(ids)}
        elif event < 0.85:
            exported = {name: leaf.clone() for name, leaf in store.export().items()}
            if draw.random() < 0.8:  # else the run dies with the checkpoint half written: the old one counts
                saved, safe = exported, dict(model)
                if draw.random() < 0.8:  # else it dies with the checkpoint in place and the store not told
                    store.commit()
                    assert_rows(store, model, half)
                    continue
            store, model = opened(), dict(safe)
            store.restore({name: leaf.clone() for name, leaf in saved.items()})
        else:
            crashes += 1
            store, model = opened(), dict(safe)
            store.restore({name: leaf.clone() for name, leaf in saved.items()})
        assert_rows(store, model, half)
    assert crashes > 5
    if kind == "disk":  # a slot a client, and one more for what changed between two checkpoints
        assert path.stat().st_size <= 4096 + 2 * 40 * store._row  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_what_a_method_must_not_scatter(kind: str) -> None:
    store, good = Storage(kind).open(TEMPLATE), rows(np.random.default_rng(0), 2)  # type: ignore[arg-type]
    ids = np.array([3, 5])
    for bad, said in (
        (good._replace(dual=good.dual.double()), r"'dual' came as torch.float64 \[2, 3\] where torch.float32"),
        (good._replace(dual=good.dual[:1]), r"\[1, 3\] where torch.float32 \[2, 3\] is kept"),
        (good._replace(table=good.table[:, :1]), r"'table' came as torch.float32 \[2, 1, 3\]"),
        (good._replace(count=good.rate), r"'count' came as torch.float32"),
        (good.dual, r"has the fields \[''\] where its first row has \['dual', 'table', 'count', 'rate'\]"),
    ):
        with pytest.raises(UserError, match=said):
            store.scatter(ids, bad)
    assert len(store) == 0
    store.scatter(ids, good._replace(rate=good.rate[:, 0]))  # a scalar may come as [S]
    assert store.gather(ids).rate.tolist() == good.rate.tolist()


def test_gathered_rows_are_copies() -> None:
    for kind in ("memory", "disk"):
        store = Storage(kind).open(TEMPLATE)  # type: ignore[arg-type]
        for ids in (np.array([1]), np.array([1, 2])):  # never written, written, both
            store.gather(ids).dual.zero_()
            assert store.gather(ids).dual.tolist() == [[0, 1, 2]] * len(ids)
            store.scatter(np.array([1]), Row(torch.arange(3.0)[None], torch.zeros(1, 2, 3), torch.ones(1, 1).long(),
                                             torch.ones(1, 1)))  # fmt: skip


def test_a_file_that_is_not_the_checkpoints_is_refused(tmp_path: Path) -> None:
    path, draw = tmp_path / "rows.bin", np.random.default_rng(0)
    store = DiskStore(TEMPLATE, path)
    store.scatter(np.arange(5), rows(draw, 5))
    first = store.export()
    store.commit()
    store.scatter(np.arange(5), rows(draw, 5))
    second = store.export()
    store.commit()
    copy = path.read_bytes()
    DiskStore(TEMPLATE, path).restore(second)

    def refused(tensors: dict[str, Tensor], said: str) -> None:
        with pytest.raises(UserError, match=said):
            DiskStore(TEMPLATE, path).restore(tensors)

    refused(first, "belongs to another or a later checkpoint")
    path.write_bytes(copy[:-8])
    refused(second, "shorter than the checkpoint says")
    path.unlink()
    refused(second, "No such file")
    DiskStore(TEMPLATE, path).scatter(np.arange(30), rows(draw, 30))
    refused(second, "belongs to another or a later checkpoint")
    refused(MemoryStore(TEMPLATE).export(), r"resume with engine\.store=memory")
    with pytest.raises(UserError, match=r"resume with engine\.store=disk"):
        MemoryStore(TEMPLATE).restore(second)
    held = MemoryStore(TEMPLATE)
    held.scatter(np.arange(2), rows(draw, 2))
    with pytest.raises(UserError, match=r"holds torch.float32 .* where this job keeps torch.float16"):
        MemoryStore(TEMPLATE, torch.float16).restore(held.export())


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_several_processes_survive_crashes_and_another_number_of_them(seed: int, tmp_path: Path) -> None:
    """As with one store, with one a process: the checkpoint is the tables together, and each is told of it or dies."""
    draw, everyone = np.random.default_rng(seed), np.arange(40)

    def begun(size: int) -> list[Store]:
        found = []
        for rank in range(size):
            mine = everyone[rank::size]
            store = DiskStore(TEMPLATE, path_of(tmp_path, rank, size))
            owned = torch.as_tensor(np.isin(saved["ids"].numpy(), mine))
            store.restore({name: leaf[owned].clone() for name, leaf in saved.items()})
            found.append(store)
        return found

    saved, safe, sizes = DiskStore(TEMPLATE, tmp_path / "rows.bin").export(), dict[int, Row](), []
    stores, model = begun(1), dict[int, Row]()
    for _ in range(150):
        event = draw.random()
        if event < 0.6:
            ids = np.sort(draw.choice(40, draw.integers(1, 9), replace=False))
            new = rows(draw, len(ids))
            for rank, store in enumerate(stores):
                mine = ids % len(stores) == rank
                if mine.any():
                    store.scatter(ids[mine], Row(*(leaf[torch.as_tensor(mine)] for leaf in new)))
            model |= {int(i): Row(*(leaf[k] for leaf in new)) for k, i in enumerate(ids)}
        elif event < 0.8:
            tables = [store.export() for store in stores]
            if draw.random() < 0.2:  # the checkpoint is not written, and all die
                stores, model = begun(len(stores)), dict(safe)
            else:
                saved, safe = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}, dict(model)
                told = draw.random(len(stores)) < 0.8
                for store, hears in zip(stores, told, strict=True):
                    if hears:
                        store.commit()
                if not told.all():
                    stores = begun(len(stores))
                elif len(model) > 9:
                    left = {path.name for path in tmp_path.glob("rows*.bin")}
                    assert left == {path_of(tmp_path, rank, len(stores)).name for rank in range(len(stores))}
        else:  # killed; another number of them goes on, and may be killed before its first checkpoint
            stores, model = begun(int(draw.integers(1, 4))), dict(safe)
            sizes.append(len(stores))
        for rank, store in enumerate(stores):
            mine = everyone[rank :: len(stores)]
            assert store.ids().tolist() == [i for i in mine if i in model]
            wanted = [model.get(int(i), TEMPLATE) for i in mine]
            for name, leaf in tree_leaves(store.gather(mine)).items():
                assert torch.equal(leaf, torch.stack([getattr(row, name).reshape(leaf[0].shape) for row in wanted]))
    assert set(sizes) == {1, 2, 3}


def test_taking_over_that_fails_leaves_what_there_was(tmp_path: Path) -> None:
    draw, ids = np.random.default_rng(0), np.arange(20)
    store = DiskStore(TEMPLATE, tmp_path / "rows.bin")
    first = rows(draw, 20)
    store.scatter(ids, first)
    saved = store.export()
    store.commit()
    (tmp_path / "rows-1-of-2.bin").write_bytes(b"of a run that was killed before its first checkpoint")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + 100, before[1]))
        with pytest.raises(UserError, match=r"rows cannot be kept in .*rows-0-of-2.bin .*; free space"):
            DiskStore(TEMPLATE, tmp_path / "rows-0-of-2.bin").restore(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows-1-of-2.bin", "rows.bin"]
    again = DiskStore(TEMPLATE, tmp_path / "rows.bin")
    again.restore(saved)
    assert_rows(again, {i: Row(*(leaf[i] for leaf in first)) for i in range(20)})
    (tmp_path / "rows.bin").rename(tmp_path / "away.bin")
    with pytest.raises(UserError, match=r"cannot read the clients' rows \(.*rows-1-of-2.bin: it is shorter"):
        DiskStore(TEMPLATE, tmp_path / "rows.bin").restore(saved)


def test_taking_over_that_fails_beside_rows_of_its_own_leaves_both(tmp_path: Path) -> None:
    """Rows of another number of processes do not fit into the store's own file, or are damaged."""
    draw, mine, ours = np.random.default_rng(0), tmp_path / "rows.bin", tmp_path / "rows-0-of-2.bin"
    first, tables = rows(draw, 40), []
    for path, ids in ((mine, np.arange(20)), (ours, np.arange(20, 40))):
        store = DiskStore(TEMPLATE, path)
        store.scatter(ids, Row(*(leaf[ids] for leaf in first)))
        tables.append(store.export())
    both = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (mine.stat().st_size, before[1]))
        with pytest.raises(UserError, match=r"rows cannot be kept in .*rows.bin .*; free space"):
            DiskStore(TEMPLATE, mine).restore(both)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert set(tmp_path.iterdir()) == {mine, ours}
    whole = ours.read_bytes()
    ours.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for path, saved in ((mine, both), (tmp_path / "rows-0-of-3.bin", tables[1])):
        with pytest.raises(UserError, match=r"rows-0-of-2\.bin"):
            DiskStore(TEMPLATE, path).restore(saved)
        assert set(tmp_path.iterdir()) == {mine, ours}
    ours.write_bytes(whole)
    again = DiskStore(TEMPLATE, mine)
    again.restore(both)
    assert_rows(again, {i: Row(*(leaf[i] for leaf in first)) for i in range(40)})


def cached(path: Path) -> float:
    """The part of a file's pages behind the first that is in the system's cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        held = (ctypes.c_ubyte * -(-len(mapped) // 4096))()
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), len(mapped), held)
        del first  # or the mapping cannot be closed
    assert not failed
    return sum(page & 1 for page in held[1:]) / len(held[1:])


@pytest.mark.skipif(sys.platform != "linux", reason="the system caches as it likes")
@pytest.mark.parametrize("floats", [300, 3000])
def test_a_file_that_outgrows_the_memory_is_not_cached(floats: int, tmp_path: Path, monkeypatch) -> None:
    """Rows that were written and read are on the disk alone; of a file that fits they are left to the system."""
    template, draw = torch.zeros(floats), np.random.default_rng(0)
    monkeypatch.setattr(files, "WRITTEN", 4 * floats * 30)
    with (tmp_path / "probe").open("wb") as probe:
        probe.write(bytes(3 * 4096))
        probe.flush()
        os.fsync(probe.fileno())
        os.posix_fadvise(probe.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached(tmp_path / "probe"):
            pytest.skip("a file system in memory")
    for clients, part in ((100, 1.0), (100_000_000, 0.0)):
        path, model = tmp_path / f"{clients}.bin", {}
        store = DiskStore(template, path, clients=clients)
        for _ in range(6):
            ids = np.sort(draw.choice(100, 20, replace=False))
            new = torch.as_tensor(draw.standard_normal((20, floats)), dtype=torch.float32)
            store.scatter(ids, new)
            store.export()  # on the disk
            model |= dict(zip(ids.tolist(), new, strict=True))
        known = np.array(sorted(model))
        assert torch.equal(store.gather(known), torch.stack([model[i] for i in known]))
        assert cached(path) == part


def test_a_full_disk_is_a_sentence_and_leaves_the_checkpoint_whole(tmp_path: Path) -> None:
    path, draw = tmp_path / "rows.bin", np.random.default_rng(0)
    store = DiskStore(TEMPLATE, path)
    first = rows(draw, 20)
    store.scatter(np.arange(20), first)
    saved = store.export()
    store.commit()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, before[1]))
        with pytest.raises(UserError, match=r"rows cannot be kept in .*rows.bin .*; free space"):
            store.scatter(np.arange(20), rows(draw, 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    again = DiskStore(TEMPLATE, path)
    again.restore(saved)
    assert_rows(again, {i: Row(*(leaf[i] for leaf in first)) for i in range(20)})


# -- runs ----------------------------------------------------------------------------------------------------------


def job(
    name: str, storage: Storage, engine: Engine | None = None, dtype: torch.dtype = torch.float32, **o: object
) -> Job:
    problem = quadratics(0, 12, dtype, torch.device("cpu"), dim=5)
    schedule = Schedule(4, 3, 0.1, uniform(1, 4), batch_size=1)
    return Job(problem, make(name, **o), schedule, engine=engine or Stacked(2), storage=storage)


WITH_ROWS = [("scaffold", {}), ("fedadmm", {}), ("fedvra", {}), ("afedpd", {}), ("losac", {"init": "gradient"})]


def train(this: Job, rounds: int = 12) -> State:
    state = start(this)
    for _ in range(rounds):
        state = advance(this, state)
    return state


@pytest.mark.parametrize("kept", ["full", "float16"])
@pytest.mark.parametrize("engine", [Serial(), Stacked(2)], ids=["serial", "stacked"])
@pytest.mark.parametrize(("name", "options"), WITH_ROWS)
def test_results_do_not_depend_on_where_rows_live(name: str, options: dict[str, str], engine: Engine, kept) -> None:
    memory, disk = (train(job(name, Storage(kind, kept), engine, **options)) for kind in ("memory", "disk"))
    everyone = np.arange(12)
    for a, b in ((memory.server, disk.server), (memory.store.gather(everyone), disk.store.gather(everyone))):
        assert all(map(torch.equal, tree_leaves(a).values(), tree_leaves(b).values()))
    assert memory[3:] == disk[3:]


@pytest.mark.parametrize("kept", ["bfloat16", "float16"])
@pytest.mark.parametrize(("name", "options"), WITH_ROWS)
def test_engines_agree_with_half_rows(name: str, options: dict[str, str], kept) -> None:
    serial, stacked = (
        train(job(name, Storage(rows=kept), engine, torch.float64, **options)) for engine in (Serial(), Stacked(2))
    )
    for a, b in zip(tree_leaves(serial.server).values(), tree_leaves(stacked.server).values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedvra", "losac"])
def test_half_rows_cost_exactness_and_no_more(name: str) -> None:
    """Exact methods reach the optimum with full rows; rounded ones stop at a distance that the rounding bounds."""
    problem = quadratics(0, 12, torch.float64, torch.device("cpu"), dim=5)
    found, optimum = dict[str, float](), problem.optimum(np.full(12, 1 / 12))
    for kept in ("full", "float16", "bfloat16"):
        this = replace(
            job(name, Storage(rows=kept)),
            problem=problem,
            schedule=Schedule(4, 6, 0.1, fixed(3)),  # type: ignore[arg-type]
        )
        found[kept] = float(torch.linalg.vector_norm(train(this, 700).server.x - optimum))
    size = float(torch.linalg.vector_norm(optimum))
    assert found["full"] < 1e-9 * size
    assert 2**-14 * size < found["float16"] < 2**-5 * size
    assert 2**-11 * size < found["bfloat16"] < 2**-2 * size


@pytest.mark.parametrize(("name", "options"), WITH_ROWS)
def test_resume_with_rows_on_disk(name: str, options: dict[str, str], tmp_path: Path) -> None:
    whole, parts, memory = tmp_path / "whole", tmp_path / "parts", tmp_path / "memory"
    disk = Storage("disk")
    execute(job(name, Storage(), **options), memory, rounds=12, info={})
    execute(job(name, disk, **options), whole, rounds=12, info={}, checkpoint_every=0.0)

    def stop(row: object) -> None:
        if row.round in (4, 9):  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)

    for status in ("interrupted", "interrupted", "complete"):
        this, again = job(name, disk, **options), parts.exists()
        assert execute(this, parts, rounds=12, info={}, resume=again, on_row=stop) == status
    for file in ("metrics.csv", "model.safetensors"):
        assert (whole / file).read_bytes() == (parts / file).read_bytes() == (memory / file).read_bytes(), file
    everyone = np.arange(12)
    a, b, c = (
        checkpoint.load(placed(job(name, kept, **options), folder), folder / "checkpoint.safetensors")
        for folder, kept in ((whole, disk), (parts, disk), (memory, Storage()))
    )
    for name_, leaf in tree_leaves(a.store.gather(everyone)).items():
        for other in (b, c):
            assert torch.equal(leaf, tree_leaves(other.store.gather(everyone))[name_])
    table = [leaf for key, leaf in load_file(whole / "checkpoint.safetensors").items() if key.startswith("rows.")]
    assert sum(leaf.numel() * leaf.element_size() for leaf in table) <= 12 * 32  # not the rows


CHILD = """
import sys
from pathlib import Path
sys.path[:0] = {folders!r}
from test_state import killed_job
folder = Path(sys.argv[1])
from training import execute
execute(killed_job(), folder, rounds=1000, info={{}}, eval_every=50, checkpoint_every=0.03, resume=folder.exists(),
        on_row=lambda row: print(row.round, flush=True))
"""


def killed_job() -> Job:
    problem = quadratics(0, 60, torch.float32, torch.device("cpu"), dim=5)
    return Job(
        problem, make("scaffold"), Schedule(4, 10, 0.05, batch_size=1), engine=Stacked(5), storage=Storage("disk")
    )


@pytest.mark.slow
def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """Rows of the file may be ahead of the checkpoint when the process dies; the run that goes on has the same bits."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    execute(killed_job(), whole, rounds=1000, info={}, eval_every=50)
    for limit in (100, 150):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(folders=[*map(str, Path(__file__).parents[:2])]), str(parts)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout is not None
        for _ in range(limit):
            child.stdout.readline()
        child.kill()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        saved = checkpoint.load(placed(killed_job(), parts), parts / "checkpoint.safetensors")
        assert 0 < saved.round < 1000
    assert execute(killed_job(), parts, rounds=1000, info={}, eval_every=50, resume=True) == "complete"
    for file in ("metrics.csv", "model.safetensors"):
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_what_cannot_fit_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(storage: Storage, *said: str) -> None:
        with pytest.raises(UserError, match="may grow to") as error:
            execute(job("fedadmm", storage), tmp_path / "run", rounds=100, info={})
        for part in said:
            assert part in str(error.value)
        assert not (tmp_path / "run").exists()

    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    refused(
        Storage(),
        "a client) and this machine has 100 B; ",
        "set engine.store=disk, set engine.rows=bfloat16, use a smaller model",
    )
    refused(Storage(rows="float16"), "has 100 B; set engine.store=disk, use a smaller model")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=50))
    refused(Storage("disk"), f"the disk of {tmp_path} has 50 B; set engine.rows=bfloat16, use")
    refused(Storage("disk", "bfloat16"), "has 50 B; use a smaller model, fewer clients or rounds, or a method without")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert execute(job("fedadmm", Storage("disk")), tmp_path / "run", rounds=2, info={}) == "complete"


def test_a_checkpoint_is_a_safetensors_file_of_any_number_type(tmp_path: Path) -> None:
    """Written piece by piece, with two names for one tensor, a scalar, nothing, and what is not contiguous."""
    row = torch.randn(3, 4)
    tensors = {"a": row, "b": row, "t": row.T, "half": row.bfloat16()[:, :3], "scalar": torch.tensor(2.5).double()}
    tensors |= {"none": torch.zeros(0, 5), "odd": torch.tensor([True, False, True]), "ids": torch.arange(3)}
    tensors |= {"f16": row.half(), "i8": torch.arange(5, dtype=torch.int8)}
    sealed.write(tmp_path / "c", tensors, {"state": "{}"})
    found, about = sealed.read(tmp_path / "c")
    assert about["state"] == "{}"
    assert found.keys() == tensors.keys() == load_file(tmp_path / "c").keys()
    for name, leaf in tensors.items():
        assert found[name].dtype == leaf.dtype
        assert torch.equal(found[name], leaf), name


def test_a_checkpoint_takes_rows_as_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few at a time, to the bytes of those that were sorted first."""
    store = MemoryStore(TEMPLATE, clients=9)
    for ids in ([7, 2], [0, 8, 3], [2, 5]):
        store.scatter(np.sort(ids), rows(np.random.default_rng(len(ids)), len(ids)))
    sealed.write(tmp_path / "sorted", store.export())
    for piece in (1, 24, 2**24):
        monkeypatch.setattr(sealed, "PIECE", piece)
        sealed.write(tmp_path / "picked", exported(store))
        assert (tmp_path / "picked").read_bytes() == (tmp_path / "sorted").read_bytes()
    assert all(leaf.rows is store._rows[name] for name, leaf in exported(store).items() if name != "ids")  # type: ignore[union-attr]


def test_rows_in_memory_are_set_aside_for_all_clients_or_as_many_as_there_may_be() -> None:
    few, many = MemoryStore(TEMPLATE, clients=5), MemoryStore(TEMPLATE, clients=10**16)
    draw = np.random.default_rng(0)
    for store in (few, many):
        store.scatter(np.array([3]), rows(draw, 1))
    before = few._rows["table"]
    assert len(before) == 5
    few.scatter(np.array([0, 1, 2, 4]), rows(draw, 4))
    assert few._rows["table"] is before  # no copy
    assert 1 <= len(many._rows["table"]) <= memory.UNTOUCHED  # bytes that no machine has were not asked twice


def test_a_run_whose_state_nobody_keeps_ends_without_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = list[Path](), checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda job, state, path: (saved.append(path), save(job, state, path)))
    settings = {"data": "quadratics(dim=3)", "clients": 6, "cohort": 2, "rounds": 2}
    for keep, writes in (("all", 1), ("model", 0), ("tables", 0)):
        planned = plan.plan_more(tmp_path / keep, 1, settings, ["scaffold"], [0], keep=keep)  # type: ignore[arg-type]
        (result,) = execute_all(planned.entries)
        assert result.status == "complete"
        assert len(saved) == writes
        assert (result.folder / "checkpoint.safetensors").exists() == (writes > 0)
        saved.clear()


def test_checkpoints_take_a_tenth_of_a_run_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But where one was wished for after every round."""
    now = [0.0]

    def save(*of: object) -> None:
        now[0] += 7.0

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoint, "save", save)
    tables: Any = SimpleNamespace(contents=dict)
    for every, pause in ((30.0, 63.0), (100.0, 100.0), (0.0, 0.0)):
        this = job("fedadmm", Storage())
        saving = Saving(this, tmp_path, tables, (), {}, every, Clock())
        saving.save(advance(this, start(this)))
        now[0] += pause
        assert not saving.due()
        now[0] += 0.1
        assert saving.due()


def test_half_rows_take_half_the_bytes() -> None:
    this = job("fedadmm", Storage())
    assert state_bytes(this, 100) == 2 * state_bytes(replace(this, storage=Storage(rows="float16")), 100)


def test_the_command_keeps_rows_on_disk_and_says_how_many_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["run", "--method", "scaffold", "--data", "quadratics(dim=3)", "--clients", "6", "--cohort", "2"]
    options += ["--rounds", "2", "--set", "engine.store=disk", "--set", "engine.rows=bfloat16"]
    assert cli.call([*options, "--out", str(tmp_path / "quiet")]) == 0
    assert "may grow" not in capsys.readouterr().out
    monkeypatch.setattr(progress, "LARGE", 1)
    assert cli.call([*options, "--out", str(tmp_path / "run")]) == 0
    assert "scaffold: the clients' state may grow to 24 B on the disk of the results" in capsys.readouterr().out
    assert (tmp_path / "run" / "rows.bin").stat().st_size == 4096 + len(np.unique(drawn())) * 3 * 2


def drawn() -> list[int]:
    """The clients of that run's two rounds."""
    return [i for round in range(2) for i in sampling.uniform().draw(0, round, 2, np.ones(6), np.zeros_like).ids]


# -- what a file holds ---------------------------------------------------------------------------------------------


def test_where_rows_lie() -> None:
    """Runs of earlier versions go on: a head of 4096 bytes, and rows of a page or longer in whole pages."""
    assert files.PAGE == 4096
    assert [stride_of(row) for row in (8, 4095, 4096, 4097, 9000)] == [8, 4095, 4096, 8192, 12288]


def test_files_do_not_share_a_name() -> None:
    """A checkpoint knows its file by it."""
    names = {create(None, 8, False, 0).name for _ in range(70)}
    assert len(names) == 70


def test_a_row_that_lacks_a_field_or_has_another_is_refused() -> None:
    class Two(NamedTuple):
        a: Tensor
        b: Tensor

    class One(NamedTuple):
        a: Tensor

    class Three(NamedTuple):
        a: Tensor
        b: Tensor
        c: Tensor

    leaf, rows = torch.zeros(3), torch.zeros(2, 3)
    fields = Fields(Two(leaf, leaf))
    assert fields.to_stored(Two(rows, rows), 2).keys() == {"a", "b"}
    for other in (One(rows), Three(rows, rows, rows)):
        with pytest.raises(UserError, match="has the fields"):
            fields.to_stored(other, 2)
