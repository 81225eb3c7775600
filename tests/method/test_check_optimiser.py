"""The conformance checks on every local optimiser, and on broken ones, each failing the check that is about it."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from torch import Tensor

from fedconcord.method.contract.identity import definition
from fedconcord.method.contract.pieces import At, Place, Traits
from fedconcord.method.wrappers.optimisers import OPTIMISERS, LocalOptimiser
from fedconcord.testing import CheckFailedError, check_optimiser, optimiser_checks


def cases() -> Iterator[Any]:
    for name, factory in OPTIMISERS.items():
        for check, call in optimiser_checks(factory):
            if check.startswith(("fedavg ", "scaffold ", "feddyn ")) and name != "muon":
                continue  # in whole for one; the exactness of the others is test_optimisers'
            yield pytest.param(call, id=f"{name} {check}", marks=() if name == "muon" else pytest.mark.slow)


@pytest.mark.parametrize("check", [*cases()])
def test_every_local_optimiser_passes(check: Callable[[], None]) -> None:
    check()


class Drift(NamedTuple):
    """D plus a number that nothing asked for."""

    shift: float

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.add_(self.shift)


class Coupled(NamedTuple):
    """D over a norm over all clients."""

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.div_(v.norm().clamp(min=1e-12))


class RawSign(NamedTuple):
    """The sign of the raw gradient, which corrections do not reach: what `after T` comes to."""

    @property
    def traits(self) -> Traits:
        return Traits(Place.MEASURE)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v.sign_()


class Plain(NamedTuple):
    """D itself."""

    @property
    def traits(self) -> Traits:
        return Traits(Place.TRANSFORM)

    def apply(self, v: Tensor, at: At) -> Tensor:
        return v


def of(*pieces: Any) -> Callable[[], LocalOptimiser]:
    @definition()
    def broken() -> LocalOptimiser:
        return LocalOptimiser(lambda x, matrices: pieces, 0.01)

    return broken


@pytest.mark.parametrize(
    ("pieces", "check"),
    [
        ((Plain(), Plain()), "contract"),
        ((Drift(0.1),), "rest"),
        ((Coupled(),), "rows"),
        pytest.param((RawSign(), Plain()), "exact", marks=pytest.mark.slow),
    ],
)
def test_a_broken_one_fails_the_check_that_is_about_it(pieces: tuple[Any, ...], check: str) -> None:
    with pytest.raises(CheckFailedError, match=f"check '{check}'"):
        check_optimiser(of(*pieces))


def test_one_without_a_name_is_refused() -> None:
    with pytest.raises(CheckFailedError, match="without a name"):
        check_optimiser(lambda: LocalOptimiser(lambda x, matrices: (Plain(),), 0.01))


def test_plain_steps_pass() -> None:
    """The checks are of what an optimiser must be, not of what these are."""
    for name, check in optimiser_checks(of(Plain())):
        if not name.startswith(("fedavg ", "scaffold ", "feddyn ")) and name != "exact":
            check()
