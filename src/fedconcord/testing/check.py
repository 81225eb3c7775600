"""Conformance checks for methods: `check_algorithm(factory)` for all of them, `algorithm_checks` for one test each.

Every check runs the method on small problems (float64 quadratics and a logistic regression, clients of unequal sizes
and steps, absent clients unless the method refuses them) and fails with a `CheckFailedError` that names the check, what
was expected and what was found.

    contract    the factory gives an Algorithm that accepts the population
    state       the server has x [d]; states hold tensors only, finite, of one structure, shape and dtype in all rounds
    needs       `needs.x0` and `needs.weight` say whether clients use the values of x^0 and their weight
    purity      the same inputs give the same outputs, twice, and the same job the same bits
    mutation    no function writes to its inputs
    broadcasting  given a stacked cohort, per-client results are stacked: [S, ...], scalars [S, 1]
    isolation   what a client sends and keeps does not depend on other clients' data in the same round
    order       the server does not depend on the order of the cohort
    messages    messages and states are tensors (what is broadcast may hold numbers), survive being written, and are
                counted to the byte
    engines     stacked = serial to 1e-12, whatever the chunk, on every problem
    absent      rows of clients that do not take part keep their bits, and none is made
    resume      10 rounds = 5, a checkpoint, a method built anew, and 5 more, bit for bit
    dtype       nothing becomes float64 in a float32 job
    device      functions of a round work on tensors of any device and read no value back to the host
    origin      moving the origin of the parameter space moves the iterates along (left out where the method reads
                losses; skip it for one with its own regulariser; most others that fail average models by weights whose
                sum is not 1)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch

from fedconcord.support.errors import unknown
from fedconcord.testing.bench import Bench, Factory
from fedconcord.testing.checks import contract, functions, messages, rounds
from fedconcord.testing.compare import MismatchError


class CheckFailedError(AssertionError):
    """A method breaks the contract."""

    def __init__(self, check: str, expected: str, found: str) -> None:
        super().__init__(f"check {check!r}: expected {expected}; found {found}")
        self.check, self.expected, self.found = check, expected, found


def check_algorithm(
    factory: Factory,
    *,
    cohort: int | None = None,
    clients: int = 7,
    lr: float = 0.05,
    device: torch.device | str = "cpu",
    skip: Collection[str] = (),
) -> None:
    """Run every check on a method; returns if it passes all.

    Args:
        factory: makes the method; called anew by every check.
        cohort: clients of a round; 3, or all where the method refuses absent clients, if not given.
        clients: clients in all.
        lr: local step size; smaller where the method's penalty makes the default diverge.
        device: where the problems live.
        skip: names of checks to leave out.

    Raises:
        CheckFailedError: at the first check that fails.
        UserError: `skip` names no check.
    """
    for _, check in algorithm_checks(factory, cohort=cohort, clients=clients, lr=lr, device=device, skip=skip):
        check()


def algorithm_checks(
    factory: Factory,
    *,
    cohort: int | None = None,
    clients: int = 7,
    lr: float = 0.05,
    device: torch.device | str = "cpu",
    skip: Collection[str] = (),
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The checks of `check_algorithm`, same arguments, as (name, call) pairs for a parametrised test.

    Raises:
        UserError: `skip` names no check.
    """
    for name in skip:
        if name not in CHECKS:
            raise unknown("check", name, CHECKS)
    bench = Bench(factory, cohort, clients, lr, torch.device(device))
    for name, check in CHECKS.items():
        if name not in skip:
            yield name, partial(run_check, name, check, bench)


def run_check(name: str, check: Callable[[Bench], None], bench: Bench) -> None:
    """Run one check.

    Raises:
        CheckFailedError: it fails, or the method raises in it.
    """
    try:
        check(bench)
    except MismatchError as mismatch:
        raise CheckFailedError(name, *mismatch.args) from None
    except Exception as error:  # whatever the method raises is a finding
        raise CheckFailedError(name, "no error", f"{type(error).__name__}: {error}") from error


CHECKS: dict[str, Callable[[Bench], None]] = {
    "contract": contract.contract,
    "state": contract.state,
    "needs": contract.needs,
    "purity": functions.purity,
    "mutation": functions.mutation,
    "broadcasting": functions.broadcasting,
    "isolation": rounds.isolation,
    "order": rounds.order,
    "messages": messages.messages,
    "engines": rounds.engines,
    "absent": rounds.absent,
    "resume": rounds.resume,
    "dtype": functions.dtype,
    "device": functions.device,
    "origin": rounds.origin,
}
