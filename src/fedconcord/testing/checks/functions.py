"""The bundle's functions, call by call: pure, on stacked cohorts, in any precision, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedconcord.execution.engines import Serial, Stacked
from fedconcord.testing.bench import Bench, all_rows, observed, run
from fedconcord.testing.compare import MismatchError, clone, fail, first_difference, leaves


def purity(bench: Bench) -> None:
    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        again = clone(args)
        result = f(*args)
        copy = clone(result)
        difference = first_difference(copy, f(*again), name)
        if difference is not None:
            fail(f"the same output of {name} for the same inputs", difference)
        return result

    run(observed(bench.job(), watch), 3)
    one, two = bench.job(), bench.job()
    first, second = run(one, 3), run(two, 3)
    difference = first_difference(first.server, second.server, "server") or first_difference(
        all_rows(one, first), all_rows(two, second), "row"
    )
    if difference is not None:
        fail("the same bits from the same job run twice", difference)


def mutation(bench: Bench) -> None:
    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        before = clone(args)
        result = f(*args)
        difference = first_difference(before, args, f"{name}.arguments")
        if difference is not None:
            fail(f"inputs of {name} as they were given", difference)
        return result

    run(observed(bench.job(), watch), 3)


def broadcasting(bench: Bench) -> None:
    shapes: dict[str, dict[str, list[int]]] = {}

    def record(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name in ("finish", "contribute"):
            shapes[name] = {path: list(v.shape) for path, v in leaves(result, name) if isinstance(v, Tensor)}
        return result

    def compare(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        if name in ("finish", "contribute"):
            size = len(args[3 if name == "finish" else 1].id)
            for path, leaf in leaves(result, name):
                want = [size, *(shapes[name].get(path) or [1])]
                if isinstance(leaf, Tensor) and list(leaf.shape) != want:
                    fail(f"{path} {want} for a stacked cohort of {size}", f"{list(leaf.shape)}")
        return result

    run(observed(bench.job(), record), 2)
    try:
        run(observed(bench.job(Stacked(None)), compare), 2)
    except MismatchError:
        raise
    except Exception as error:
        raise MismatchError(
            "functions that take a stacked cohort, vectors [S, d] and scalars [S, 1]",
            f"{type(error).__name__}: {error}",
        ) from error


def dtype(bench: Bench) -> None:
    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        for path, leaf in leaves(result, name):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float32:
                fail("float32 throughout a float32 job", f"{path} is {leaf.dtype}")
        return result

    for engine in (Serial(), Stacked(None)):
        run(observed(bench.job(engine, bench.quadratics(torch.float32)), watch), 3)


def device(bench: Bench) -> None:
    """Replays recorded calls on tensors without values ('meta'): they cannot be read, and do not mix with others."""
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {}

    def watch(name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = f(*args)
        calls[name] = (f, args, result)
        return result

    run(observed(bench.job(Stacked(None)), watch), 2)
    for name, (f, args, result) in calls.items():
        if name in ("refuse", "communicates"):  # outside the round, or of plain numbers
            continue
        try:
            got = f(*_without_values(args))
        except Exception as error:
            if name == "init":  # before round 0 a method may look at the weights
                continue
            raise MismatchError(
                f"{name} to run on tensors of any device and to read no value back to the host",
                f"{type(error).__name__}: {error}",
            ) from error
        for (path, leaf), (_, real) in zip(leaves(got, name), leaves(result, name), strict=True):
            if isinstance(leaf, Tensor) and (leaf.device.type != "meta" or leaf.shape != real.shape):
                fail(f"{path} {list(real.shape)} on the device of the inputs", f"{list(leaf.shape)} on {leaf.device}")


def _without_values(args: tuple[Any, ...]) -> Any:
    def noise(draw: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
        return lambda n: draw(n).to("meta")

    moved = clone(args, lambda leaf: leaf.to("meta"))
    return tuple(part._replace(noise=noise(part.noise)) if hasattr(part, "noise") else part for part in moved)
