"""Passes that make what is noted: torch's own numbers, read and written where clients' rows lie."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedconcord.execution.rows import DiskStore, MemoryStore, look
from fedconcord.method.contract import finite, tree_leaves
from fedconcord.method.step.compiled import formulas
from fedconcord.method.step.compiled.formulas import Formula, compute, note, there

S, D = 5, 2 * formulas.TILE + 7
TYPES = [torch.float32, torch.float64]


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


Operation = Callable[[Tensor, Tensor, Tensor], Tensor]
NOTED: dict[str, Operation] = {
    "sum": lambda x, c, w: x + c,
    "sum of a product": lambda x, c, w: x + w * c,
    "quotient": lambda x, c, w: (x - c) / w,
    "number first": lambda x, c, w: 2 - 0.3 * x,
    "number last": lambda x, c, w: -(x / 3 - 1) * 2,
    "number over a vector": lambda x, c, w: 3 / (x + c),
    "scalars over a vector": lambda x, c, w: w / (x + c),
    "scalar": lambda x, c, w: x * w[0, 0] - c,
    "scalar of another type": lambda x, c, w: x * torch.tensor(0.1, dtype=torch.float64),
    "the same twice": lambda x, c, w: (x - c) * (x - c) + (x - c),
}
COMPUTED: dict[str, Operation] = {  # by torch, of what was noted before
    "root": lambda x, c, w: (x * x).sqrt() + c,
    "clip": lambda x, c, w: (x - c).clamp(max=0.5),
    "norm": lambda x, c, w: x / (x - c).norm(dim=-1, keepdim=True),
    "where": lambda x, c, w: torch.where(w > 0.5, x + c, c),
    "list": lambda x, c, w: torch.stack([x + c, x - c]).mean(0),
    "multiple": lambda x, c, w: torch.add(x, c, alpha=2),
    "reciprocal": lambda x, c, w: 1 / (x + c),
    "part": lambda x, c, w: torch.cat([(x + c)[:, :4], (x * w)[:, 4:]], 1),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", [*NOTED, *COMPUTED])
def test_numbers_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """Bit for bit; those of `NOTED` in a pass."""
    x, c, w = numbers(dtype, S, D), numbers(dtype, D, seed=1), numbers(dtype, S, 1, seed=2).abs()
    operation = (NOTED | COMPUTED)[name]
    made = operation(*note((x, c), D, dtype), w)
    assert name in COMPUTED or (isinstance(made, Formula) and made.value is None)
    assert isinstance(made, Tensor)
    assert (made.shape, made.dtype) == (x.shape, dtype)
    assert torch.equal(there(made), operation(x, c, w))


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_over_clients_and_over_numbers(dtype: torch.dtype) -> None:
    x, c, w = numbers(dtype, S, D), numbers(dtype, D, seed=1), numbers(dtype, S, 1, seed=2)
    x[1, 3], x[4, D - 1] = torch.nan, torch.inf

    def sent(x: Any, c: Any) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        move = x - c
        return (move, w * c, w), (w * move, w * (w * c), w)

    up, each = sent(*note((x, c), D, dtype))
    total, is_finite = compute(each, up, S)
    there_up, there_each = sent(x, c)
    assert is_finite.tolist() == finite(there_up, S).tolist() == [True, False, True, True, False]
    for made, leaf in zip(total, there_each, strict=True):
        torch.testing.assert_close(made, leaf.sum(0), equal_nan=True, rtol=1e-5, atol=1e-5)
    total, is_finite = compute((), (w,), S)
    assert (total, is_finite.tolist()) == ((), [True] * S)


def test_other_numbers_of_clients_or_types_go_to_torch() -> None:
    x = note(numbers(torch.float32, S, D), D, torch.float32)
    for other in (numbers(torch.float32, S + 1, D), numbers(torch.float32, S + 1, 1), numbers(torch.float32, 3)):
        with pytest.raises(RuntimeError, match="must match"):
            _ = x + other
    for other in (numbers(torch.float64, S, 1), numbers(torch.float64, D)):
        assert (x * other).dtype == torch.float64
    assert torch.equal(x[None] + 1, there(x)[None] + 1)


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")  # torch's own
def test_what_is_no_number_is_what_it_is_with_a_tensor() -> None:
    """An array, of which a pass would have read the first number alone, among it."""
    x, array = numbers(torch.float32, S, D), np.arange(float(D))
    noted = note(x, D, torch.float32)
    for operation in (lambda v: v * array, lambda v: array / v, lambda v: v * True, lambda v: v + np.float32(0.5)):
        assert torch.equal(there(operation(noted)), operation(x))
    for operation in (lambda v: v * None, lambda v: "a" - v, lambda v: None / v):
        with pytest.raises(TypeError):
            operation(x)
        with pytest.raises(TypeError):
            operation(noted)


def test_rows_are_read_and_written_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients that have rows and of some that do not; a row may stay, or become another one."""
    monkeypatch.setattr(formulas, "FEWEST", 0)
    template = {"y": torch.zeros(D), "z": torch.ones(D), "n": torch.tensor(0.0), "table": torch.zeros(2, D)}
    rows = tuple(template.values())
    stores = [MemoryStore(rows), MemoryStore(rows)]
    for k, ids in enumerate([[3, 9, 4], [9, 7, 3], [7, 4, 9], [9, 4, 7], [1], [3, 9, 1]]):
        places, x = np.array(ids), numbers(torch.float32, len(ids), D, seed=k)
        for store, seen in zip(stores, (look, lambda store, ids: store.gather(ids)), strict=True):
            y, z, n, table = seen(store, places)
            new = (z, z + y) if k == 3 else (y + 0.5 * (x - z), z if k == 2 else z + y)
            store.scatter(places, (*new, n + 1, table + 1))
    gathered = [tree_leaves(store.gather(np.array([1, 3, 4, 7, 9, 2]))) for store in stores]
    for made, leaf in zip(*(each.values() for each in gathered), strict=True):
        assert torch.equal(made, leaf)


def test_new_rows_are_made_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a copy of their own, which no comparison of numbers would see."""
    monkeypatch.setattr(formulas, "FEWEST", 0)
    store, places = MemoryStore((torch.zeros(D),)), np.array([2, 5])
    store.scatter(places, (torch.ones(2, D),))
    (y,) = look(store, places)
    new = y + 1.0
    store.scatter(places, (new,))
    assert isinstance(new, Formula)
    assert new.value is None
    assert (store.gather(places)[0] == 2).all()


def test_rows_on_a_disk_or_of_half_the_width_are_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(formulas, "FEWEST", 0)
    disk, half = DiskStore((torch.zeros(D),), tmp_path / "rows"), MemoryStore((torch.zeros(D),), torch.float16)
    for store in (disk, half):
        (y,) = look(store, np.array([1, 2]))
        assert not isinstance(y, Formula)
        store.scatter(np.array([1, 2]), (note(y, D, torch.float32) + 1.0,))
        assert store.gather(np.array([2, 5]))[0][:, 0].tolist() == [1.0, 0.0]


def test_few_numbers_are_not_noted() -> None:
    store = MemoryStore((torch.zeros(4),))
    assert not isinstance(look(store, np.array([1]))[0], Formula)
    large = MemoryStore((torch.zeros(formulas.FEWEST // 2),))
    assert isinstance(look(large, np.array([1]))[0], Formula)
