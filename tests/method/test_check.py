"""The conformance checks on the whole registry, and on broken methods, each failing the check that is about it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import quadratics
from fedconcord.federation.participation.sampling import with_replacement
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import (
    Algorithm,
    Client,
    Cohort,
    Constant,
    Done,
    Local,
    Needs,
    Population,
    Pull,
    Sender,
    Tree,
)
from fedconcord.method.wrappers.server import adam, extrapolation, momentum, with_server
from fedconcord.method.wrappers.uploads import quantise, topk, with_uploads
from fedconcord.support.errors import UserError
from fedconcord.testing import CheckFailedError, algorithm_checks, check_algorithm

Factory = Callable[[], Algorithm]

VARIANTS: dict[str, Factory] = {
    "fedavg unbiased": partial(METHODS["fedavg"], weights="unbiased"),
    "scaffold option 1": partial(METHODS["scaffold"], option=1),
    "scaffold size": partial(METHODS["scaffold"], weights="size"),
    "fednova proximal": partial(METHODS["fednova"], mu=0.5, tau_eff="tau"),
    "fedadmm paper": partial(METHODS["fedadmm"], form="paper", server_lr=[(0, 1.0), (2, 0.5)]),
    "fedadmm from theta": partial(METHODS["fedadmm"], form="paper_from_theta", server_lr="participation"),
    "fedadmm rising": partial(METHODS["fedadmm"], rho=[(0, 0.1), (2, 0.5)]),
    "fedadmm rising, paper": partial(METHODS["fedadmm"], rho=[(0, 0.1), (2, 0.5)], form="paper"),
    "fedpd skipping": partial(METHODS["fedpd"], p_skip=0.5),
    "fedvra per client": partial(METHODS["fedvra"], gamma=[0.1 * k for k in range(7)], d="fednova"),
    "losac gradient tables": partial(METHODS["losac"], blocks=4, init="gradient", block_scale="mean"),
    "losac printed": partial(METHODS["losac"], scaling="paper"),
    "served scaffold": lambda: with_server(METHODS["scaffold"](), adam()),
    "served losac": lambda: with_server(METHODS["losac"](init="gradient"), momentum()),
    "extrapolated scaffold": lambda: with_server(METHODS["scaffold"](), extrapolation()),
    "quantised feddyn": lambda: with_uploads(METHODS["feddyn"](), quantise(7)),
    "sparse scaffold": lambda: with_uploads(METHODS["scaffold"](), topk(0.5)),
}


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{name}-{what}")
        for name, factory in (METHODS | VARIANTS).items()
        for what, check in algorithm_checks(factory)
    ],
)
def test_registry(check: Callable[[], None]) -> None:
    check()


# -- a good method to break ----------------------------------------------------------------------------------------


class Server(NamedTuple):
    x: Tensor  # [d]
    h: Tensor  # [d] mean of the duals


class Row(NamedTuple):
    dual: Tensor  # [d]


class Message(NamedTuple):
    move: Tensor  # [d], rounded at random
    scale: Tensor  # [] largest entry


def good() -> Algorithm:
    """A dual method with randomly rounded messages, so that states, scalars and noise are all there."""

    def finish(x: Tensor, row: Row, done: Done, client: Client) -> tuple[Message, Row]:
        move = done.x - x
        scale = move.abs().amax(-1, keepdim=True).clamp(min=1e-30)
        levels = torch.floor(move / scale * 64 + client.noise(move.shape[-1]))
        return Message(levels, scale if scale.ndim > 1 else scale[0]), Row(row.dual + 0.1 * move)

    def contribute(up: Message, sender: Sender, cohort: Cohort) -> Server:
        move = up.move * up.scale / 64
        return Server(sender.w * move, 0.1 * sender.p * move)

    return Algorithm(
        init=lambda x, population: Server(x, torch.zeros_like(x)),
        init_client=lambda x: Row(torch.zeros_like(x)),
        start=lambda x, row, client: Local(x, Constant(row.dual), Pull(0.1, x)),
        finish=finish,
        contribute=contribute,
        update=lambda server, total, cohort: Server(server.x + total.x, server.h + total.h),
    )


def changed(**parts: Any) -> Factory:
    return lambda: replace(good(), **parts)


def kept(row: Callable[[Tensor, Row, Done, Client], Row]) -> Factory:
    """The good method with another row."""
    finish = good().finish
    return changed(finish=lambda x, old, done, client: (finish(x, old, done, client)[0], row(x, old, done, client)))


# -- broken ones ---------------------------------------------------------------------------------------------------


def adds_in_place(x: Tensor, row: Row, done: Done, client: Client) -> Row:
    row.dual.add_(0.1 * (done.x - x))
    return row


def one_dual_for_all(x: Tensor, row: Row, done: Done, client: Client) -> Row:
    dual = row.dual + 0.1 * (done.x - x)
    return Row(dual.reshape(-1, x.shape[-1]).mean(0).expand_as(dual))


def one_dual_in_a_closure() -> Algorithm:
    held: list[Tensor] = []

    def row(x: Tensor, old: Row, done: Done, client: Client) -> Row:
        held.append((held[-1] if held else 0.0) + 0.1 * (done.x - x))
        return Row(held[-1])

    return kept(row)()


class WithCount(NamedTuple):
    x: Tensor
    h: Tensor
    rounds: float


def counts_in_a_float() -> Algorithm:
    return replace(
        good(),
        init=lambda x, population: WithCount(x, torch.zeros_like(x), 0.0),
        update=lambda server, total, cohort: WithCount(server.x + total.x, server.h, server.rounds + 1.0),
    )


def forgets_a_float() -> Algorithm:
    """A decay that lives in the function and not in the state: gone after a restart."""
    decay = {-1: 1.0}

    def update(server: Server, total: Server, cohort: Cohort) -> Server:
        decay[cohort.round] = 0.9 * decay.get(cohort.round - 1, 1.0)
        return Server(server.x + decay[cohort.round] * total.x, server.h + total.h)

    return replace(good(), update=update)


MADE: list[int] = []


def global_state() -> Algorithm:
    """Every method made starts a little further off: each is pure on its own."""
    MADE.append(len(MADE))
    offset = 1e-3 * len(MADE)
    return changed(init=lambda x, population: Server(x + offset, torch.zeros_like(x)))()


def by_position(up: Message, sender: Sender, cohort: Cohort) -> Server:
    rank = torch.arange(len(sender.w))[:, None] if sender.w.ndim else 0
    return good().contribute(up._replace(scale=up.scale * (1 + rank)), sender, cohort)


def by_cohort(up: Message, sender: Sender, cohort: Cohort) -> Server:
    """Divides by what is the cohort's total in one engine and the client's own weight in the other."""
    return good().contribute(up._replace(scale=up.scale / sender.w.sum()), sender, cohort)


def one_scalar(x: Tensor, row: Row, done: Done, client: Client) -> Row:
    return Row(row.dual + 0.1 / float(client.steps) * (done.x - x))


def whole_norm(x: Tensor, row: Row, done: Done, client: Client) -> Row:
    return Row((done.x - x) / (1 + (done.x - x).norm()))


def forgets_the_dtype(x: Tensor, population: Population) -> Server:
    return Server(x, population.p[0] * torch.ones(len(x), dtype=population.p.dtype))


def through_numpy(server: Server, total: Server, cohort: Cohort) -> Server:
    return Server(server.x + torch.from_numpy(np.clip(total.x.numpy(), -1, 1)), server.h)


def looks(server: Server, total: Server, cohort: Cohort) -> Server:
    return Server(server.x + (total.x if float(total.x.norm()) < 10 else 0.1 * total.x), server.h)


def averages_models() -> Algorithm:
    """FedNova's known error: weights that do not sum to 1, on models and not on moves."""
    return replace(
        METHODS["fedavg"](weights="unbiased"),
        finish=lambda x, row, done, client: (done.x, row),
        update=lambda server, models, cohort: server._replace(x=models),
    )


BROKEN: dict[str, tuple[Factory, str, str]] = {
    "no algorithm": (lambda: 3, "contract", "int"),  # type: ignore[dict-item, return-value]
    "refuses all": (changed(refuse=lambda population, cohort: "never"), "contract", "never"),
    "no x": (changed(init=lambda x, population: (x, x)), "state", "server.x as torch.float64"),
    "a float in the state": (counts_in_a_float, "state", "server.rounds is float 0.0"),
    "a row that grows": (kept(lambda x, row, done, client: Row(row.dual[None])), "state", "[1, 4]"),
    "diverges": (changed(update=lambda server, total, cohort: Server(server.x / 0, server.h)), "state", "inf or nan"),
    "a first row of x^0": (changed(init_client=lambda x: Row(0.1 * x)), "needs", "row.dual changed by"),
    "asks for x^0 in vain": (changed(needs=Needs(x0=True)), "needs", "the same first row"),
    "weighs itself": (
        kept(lambda x, row, done, client: Row(row.dual + 0.1 * client.p * (done.x - x))),
        "needs",
        "client.p in finish",
    ),
    "asks for p in vain": (changed(needs=Needs(weight=True)), "needs", "no use of it"),
    "draws": (kept(lambda x, row, done, client: Row(row.dual + torch.rand(()))), "purity", "finish"),
    "one dual in a closure": (one_dual_in_a_closure, "purity", "same output of finish"),
    "global state": (global_state, "purity", "the same job run twice"),
    "adds in place": (kept(adds_in_place), "mutation", "inputs of finish"),
    "updates in place": (
        changed(update=lambda server, total, cohort: Server(server.x.add_(total.x), server.h)),
        "mutation",
        "inputs of update",
    ),
    "one scalar": (kept(one_scalar), "broadcasting", "functions that take a stacked cohort"),
    "one dual for all": (kept(one_dual_for_all), "isolation", "other clients' data"),
    "norm over the cohort": (kept(whole_norm), "isolation", "other clients' data"),
    "by position": (changed(contribute=by_position), "order", "server.x off by"),
    "by cohort": (changed(contribute=by_cohort), "engines", "stacked (chunk None) = serial"),
    "forgets a float": (forgets_a_float, "resume", "server.x changed by"),
    "sends nothing": (
        changed(
            finish=lambda x, row, done, client: ((good().finish(x, row, done, client)[0], None), row),
            contribute=lambda up, sender, cohort: good().contribute(up[0], sender, cohort),
        ),
        "messages",
        "1 is NoneType",
    ),
    "float64 in float32": (changed(init=forgets_the_dtype), "dtype", "init.h is torch.float64"),
    "through numpy": (changed(update=through_numpy), "device", "update to run on tensors of any device"),
    "looks at a value": (changed(update=looks), "device", "read no value back to the host"),
    "averages models": (averages_models, "origin", "move with the origin"),
}


def test_the_good_method_passes() -> None:
    check_algorithm(good)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_method_fails_the_right_check(name: str) -> None:
    factory, check, said = BROKEN[name]
    with pytest.raises(CheckFailedError) as failed:
        check_algorithm(factory)
    assert failed.value.check == check, failed.value
    assert said in str(failed.value)
    assert f"check '{check}': expected " in str(failed.value)


def test_what_goes_down_may_hold_numbers() -> None:
    class Down(NamedTuple):
        x: Tensor
        pull: float

    def factory() -> Algorithm:
        return replace(
            METHODS["fedavg"](),
            broadcast=lambda server: Down(server.x, 0.5),
            start=lambda down, row, client: Local(down.x, Pull(down.pull, down.x)),
            finish=lambda down, row, done, client: (done.x - down.x, row),
        )

    check_algorithm(factory)


@pytest.mark.parametrize("engine", [Serial(), Stacked(None), Stacked(2)], ids=["serial", "stacked", "chunks"])
def test_engines_tell_each_client_its_own_plan(engine: Engine) -> None:
    """Steps, weights and the step size of this round, by client, though they change from round to round."""
    problem = quadratics(0, 9, torch.float64, torch.device("cpu"), dim=3)
    schedule = Schedule(3, 4, 0.1, uniform(1, 5), "steps", lr_decay=0.9, sampler=with_replacement())
    algorithm = METHODS["scaffold"](weights="size")
    heard: dict[int, list[float]] = {}

    def finish(down: Any, row: Any, done: Done, client: Client) -> Any:
        assert bool(client.p.isnan().all())  # it is the server's
        for k, i in enumerate(client.id.reshape(-1).tolist()):
            heard[i] = [float(column.reshape(-1)[k]) for column in (client.steps, done.steps)] + [client.lr]
        return algorithm.finish(down, row, done, client)

    def contribute(up: Any, sender: Sender, cohort: Cohort) -> Any:
        columns = [sender.steps, sender.w, sender.p, sender.inclusion]
        for k, i in enumerate(sender.id.reshape(-1).tolist()):
            sent[i] = [float(column.reshape(-1)[k]) for column in columns] + [sender.lr]
        return algorithm.contribute(up, sender, cohort)

    sent: dict[int, list[float]] = {}
    job = Job(problem, replace(algorithm, finish=finish, contribute=contribute), schedule, engine=engine)
    state = start(job)
    for t in range(5):
        plan = schedule.plan(t, algorithm, problem.roster)
        heard.clear()
        sent.clear()
        state = advance(job, state)
        rates = [plan.lr] * len(plan.ids)
        for found, told in (
            (heard, zip(plan.steps, plan.steps, rates, strict=True)),
            (sent, zip(plan.steps, plan.w, plan.p, plan.inclusion, rates, strict=True)),
        ):
            assert found == {int(i): [float(value) for value in row] for i, row in zip(plan.ids, told, strict=True)}
        assert plan.lr == pytest.approx(0.1 * 0.9**t, rel=1e-15)


def test_an_absent_client_that_shares_memory_with_the_server_is_noticed() -> None:
    """A method that keeps x^0 for both sides and moves it in place moves the absent clients' models."""

    def broken() -> Algorithm:
        algorithm, kept = METHODS["fedadmm"](form="paper"), {}

        def init_client(x: Tensor) -> Tree:
            return algorithm.init_client(kept.setdefault("x", x))

        return replace(
            algorithm,
            init=lambda x, population: algorithm.init(kept.setdefault("x", x), population),
            init_client=init_client,
            update=lambda server, change, cohort: server._replace(x=server.x.add_(change)),
        )

    with pytest.raises(CheckFailedError, match="rows of absent clients as they were"):
        dict(algorithm_checks(broken))["absent"]()


def test_every_check_can_fail() -> None:
    assert {check for _, check, _ in BROKEN.values()} | {"absent"} == {name for name, _ in algorithm_checks(good)}


def test_checks_can_be_left_out() -> None:
    names = [name for name, _ in algorithm_checks(good, skip=["origin", "device"])]
    assert len(names) == len(list(algorithm_checks(good))) - 2
    check_algorithm(averages_models, skip=["origin"])
    with pytest.raises(UserError, match=r"unknown check 'orign' \(did you mean 'origin'\?\)"):
        list(algorithm_checks(good, skip=["orign"]))


def test_a_cohort_that_is_refused_is_named() -> None:
    with pytest.raises(
        CheckFailedError,
        match=r"check 'contract': .*vrlsgd needs all 7 clients in every round, and a cohort of 2 may",
    ):
        check_algorithm(METHODS["vrlsgd"], cohort=2)
