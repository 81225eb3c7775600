"""Methods and options against the loops that their authors released, written out here: same start, batches, cohorts."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from chains import response_of
from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.execution.job import Job, advance, start
from fedconcord.federation.objectives import Quadratic, quadratics
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Algorithm, Plan
from fedconcord.method.step.assignment import curvature
from fedconcord.method.step.sizes import ByStep
from fedconcord.method.step.solver import Solver, refuse
from fedconcord.method.wrappers.perturbed import with_estimated_ascent
from fedconcord.method.wrappers.server import momentum, with_server
from fedconcord.support.errors import UserError
from fedconcord.testing import algorithm_checks
from plain_step import falling
from table import batches_of

N, COHORT, D, BLOCKS = 8, 3, 5, 3
ENGINES = [Serial(), Stacked(None)]
PLAIN = Solver()
Step = Callable[[np.ndarray, int, int], np.ndarray]  # (x [d], client, local step) -> gradient [d]


def job(algorithm: Algorithm, solver: Solver = PLAIN, *, everyone: bool = False, decay: float = 1.0) -> Job:
    """Clients of unequal weights and steps, mini-batches of one block, some absent."""
    problem = quadratics(3, N, torch.float64, torch.device("cpu"), dim=D, blocks=BLOCKS, condition=4.0)
    problem.sizes[:] = 1.0 + np.arange(N)
    schedule = Schedule(1, N if everyone else COHORT, 0.05, uniform(2, 6), "steps", 1, lr_decay=decay)
    return Job(problem, algorithm, schedule, solver)


def trajectory(this: Job, engine: Engine, rounds: int = 8) -> np.ndarray:
    """The server's model after every round [rounds, d]."""
    this = replace(this, engine=engine)
    state, path = start(this), []
    for _ in range(rounds):
        state = advance(this, state)
        path.append(state.server.x.numpy().copy())
    return np.stack(path)


def plans(this: Job, rounds: int = 8) -> Iterator[tuple[Plan, Step]]:
    """Each round's plan, and the mini-batch gradients of its clients."""
    p = this.problem
    for t in range(rounds):
        plan = this.schedule.plan(t, this.algorithm, p.roster)
        drawn = {int(i): batch for i, batch in zip(plan.ids, batches_of(this, plan), strict=True) if batch is not None}

        def gradient(x: np.ndarray, i: int, k: int, drawn: dict[int, np.ndarray] = drawn) -> np.ndarray:
            samples = torch.as_tensor(p.offsets[i] + drawn[i][k])
            return p.gradient(torch.as_tensor(x), samples).numpy()

        yield plan, gradient


def close(got: np.ndarray, want: list[np.ndarray], tolerance: float = 1e-13) -> None:
    assert np.abs(got - np.stack(want)).max() < tolerance * max(1.0, np.abs(np.stack(want)).max())
    assert np.abs(np.diff(np.stack(want), axis=0)).max() > 1e-4  # something moved


def origin(this: Job) -> np.ndarray:
    return this.problem.init(this.schedule.seed).numpy() + 0.0


@pytest.mark.parametrize("engine", ENGINES)
def test_fedhybrid_is_its_authors(engine: Engine) -> None:
    """xiaochunniu/FedHybrid: the dual steps use the clients' old models, and each kind of client has its own constant;
    its dual is minus ours."""
    mu, alpha_2, beta_1, beta_2, first = 1.3, 0.9, 0.4, 0.6, 3
    method = METHODS["fedhybrid"](
        rho=mu, newton_share=first / N, newton_lr=alpha_2, gradient_dual_lr=beta_1, newton_dual_lr=beta_2
    )
    this = job(method, everyone=True)
    assert isinstance(this.problem, Quadratic)
    H, b = this.problem.H_mean.numpy(), this.problem.b_mean.numpy()
    alpha_1, x_0 = this.schedule.lr, origin(this)
    x, dual, want = np.tile(x_0, (N, 1)), np.zeros((N, D)), []
    for _ in range(8):
        for i in range(N):
            g = H[i] @ x[i] - b[i]
            if i < first:
                B = H[i] + mu * np.eye(D)
                new = x[i] - alpha_2 * np.linalg.inv(B) @ (g - dual[i] + mu * (x[i] - x_0))
                dual[i] = dual[i] + beta_2 * B @ (x_0 - x[i])
            else:
                new = x[i] - alpha_1 * (g - dual[i] + mu * (x[i] - x_0))
                dual[i] = dual[i] + beta_1 * (x_0 - x[i])
            x[i] = new
        x_0 = x.mean(0) - dual.mean(0) / mu
        want.append(x_0)
    close(trajectory(this, engine), want)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_correction_that_is_added_to_the_loss_as_a_number_is_none(name: str, engine: Engine) -> None:
    """junkangLiu0's FedAdamW (618fc7f:755), FedMuon (f3972e2:1049), FedSWA (f725be9:679) and FedNSAM (c3c9e90:673) add
    `lossh.item()` to the loss, which has no gradient: their SCAFFOLD is FedAvg. With `lossh` it is SCAFFOLD."""
    this = job(METHODS[name]())
    lr, x, c, own, want = this.schedule.lr, origin(this), np.zeros(D), np.zeros((N, D)), []
    for plan, gradient in plans(this):
        moves, changes = [], np.zeros((N, D))
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = torch.tensor(x)
            for k in range(steps):
                p = y.clone().requires_grad_()
                lossh = (p * torch.as_tensor(c - own[i])).sum()
                loss = (p * torch.as_tensor(gradient(y.numpy(), int(i), k))).sum()
                loss = loss + (lossh.item() if name == "fedavg" else lossh)
                y = y - lr * torch.autograd.grad(loss, p)[0]
            moves.append(y.numpy() - x)
            changes[i] = (x - y.numpy()) / (steps * lr) - c
        x, own, c = x + np.mean(moves, 0), own + changes, c + changes.sum(0) / N
        want.append(x)
    assert np.abs(c).max() > 0.1
    close(trajectory(this, engine), want)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
@pytest.mark.parametrize("engine", ENGINES)
def test_fedlesam_climbs_along_what_a_client_missed(name: str, engine: Engine) -> None:
    """FedLESAM, -S and -D: gradients at y + radius (x^s - x^t) / ||x^s - x^t||, s the client's last round."""
    radius, alpha = 0.3, 0.4
    method = METHODS[name](alpha=alpha) if name == "feddyn" else METHODS[name]()
    this = job(with_estimated_ascent(method, radius))
    lr, x, want, lengths = this.schedule.lr, origin(this), [], []
    last, c, own = np.tile(x, (N, 1)), np.zeros(D), np.zeros((N, D))
    for plan, gradient in plans(this):
        models, changes = [], np.zeros((N, D))
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            back, y = last[i] - x, x
            e = radius * back / (np.linalg.norm(back) + 1e-7)
            for k in range(steps):
                g = gradient(y + e, int(i), k)
                y = y - lr * (g + alpha * (own[i] + y - x) if name == "feddyn" else g + c - own[i])
            models.append(y)
            last[i] = x
            changes[i] = y - x if name == "feddyn" else (x - y) / (steps * lr) - c
            lengths.append(np.linalg.norm(e))
        x = np.mean(models, 0)
        if name != "fedavg":
            own, c = own + changes, c + changes.sum(0) / N
        if name == "feddyn":
            x, c = x + own.mean(0), np.zeros(D)
        want.append(x)
    assert lengths.count(0.0) == COHORT  # of round 0
    assert max(lengths) == pytest.approx(radius, rel=1e-5)
    close(trajectory(this, engine), want)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(one, id=name)
        for name, one in algorithm_checks(lambda: with_estimated_ascent(METHODS["scaffold"](), 0.1))
    ],
)
def test_fedlesam_passes_the_checks(check: Callable[[], None]) -> None:
    check()


def test_fedlesam_refuses_a_method_with_a_gradient_of_its_own() -> None:
    with pytest.raises(UserError, match=r"brings its own gradient, sam; leave local.oracle at minibatch"):
        with_estimated_ascent(METHODS["fedsam"](), 0.1)


def test_the_released_fedlesam_climbs_by_one_number_a_tensor() -> None:
    """MediaBrain-SJTU/FedLESAM (d6663cc, optimizer/LESAM.py:26-51) indexes a flat vector by the number of a tensor."""
    draw, sizes, radius = np.random.default_rng(0), (20, 4, 12, 3), 0.1

    def perturbations(flat: torch.Tensor) -> list[torch.Tensor]:
        norm = sum(flat[k].norm(p=2) for k in range(len(sizes)))
        return [torch.zeros(n) - flat[k] * radius / (norm + 1e-7) for k, n in enumerate(sizes)]

    move = torch.as_tensor(draw.standard_normal(sum(sizes)))
    other = torch.cat([move[: len(sizes)], torch.as_tensor(draw.standard_normal(sum(sizes) - len(sizes)))])
    for one, two in zip(perturbations(move), perturbations(other), strict=True):
        assert one.unique().numel() == 1
        assert torch.equal(one, two)
    assert torch.cat(perturbations(move)).norm() > 1.2 * radius


@pytest.mark.parametrize("name", ["fedcm", "mofedsam"])
@pytest.mark.parametrize("engine", ENGINES)
def test_fedcm_divides_by_the_steps_that_were_taken(name: str, engine: Engine) -> None:
    """A tolerance stops clients early: D is the mean direction of the steps that there were."""
    alpha, tolerance, radius = 0.3, 0.8, 0.1
    algorithm = METHODS[name](alpha=alpha) if name == "fedcm" else METHODS[name](alpha=alpha, radius=radius)
    this = job(algorithm, Solver(tolerance=tolerance))
    lr, x, direction, want, early = this.schedule.lr, origin(this), np.zeros(D), [], 0
    for plan, gradient in plans(this):
        moves, directions = [], []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y, taken = x, 0
            while taken < steps:
                g = gradient(y, int(i), taken)
                if name == "mofedsam":
                    g = gradient(y + radius * g / (np.linalg.norm(g) + 1e-7), int(i), taken)
                y = y - lr * (alpha * g + (1 - alpha) * direction)
                taken += 1
                whole = this.problem.gradient(torch.as_tensor(y), torch.arange(BLOCKS * i, BLOCKS * (i + 1))).numpy()
                if np.square(alpha * whole + (1 - alpha) * direction).sum() <= tolerance:
                    early += taken < steps
                    break
            moves.append(y - x)
            directions.append((x - y) / (taken * lr))
        x, direction = x + np.mean(moves, 0), np.mean(directions, 0)
        want.append(x)
    assert early > 3
    close(trajectory(this, engine), want)


@pytest.mark.parametrize(
    "solver",
    [
        Solver(momentum=0.8),
        Solver(momentum=0.8, nesterov=True),
        Solver(step_schedule=falling(0.7)),
        Solver(momentum=0.8, step_schedule=ByStep("up and down", lambda k: 1.0 / (1 + abs(k - 2)))),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_fedcm_divides_by_what_steps_make_of_a_direction(solver: Solver, engine: Engine) -> None:
    """With momentum, or steps whose size falls, a direction that is 1 in every step moves a client by k_i eta, not by
    K_i eta: D is that direction, and not one that grows from round to round."""
    alpha = 0.3
    this = job(METHODS["fedcm"](alpha=alpha), solver)
    lr, x, direction, want = this.schedule.lr, origin(this), np.zeros(D), []
    for plan, gradient in plans(this):
        moves, directions = [], []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y, buffer, one, response = x, np.zeros(D), 0.0, 0.0
            for k in range(steps):
                now = alpha * gradient(y, int(i), k) + (1 - alpha) * direction
                buffer, one = solver.momentum * buffer + now, solver.momentum * one + 1
                ahead = solver.momentum if solver.nesterov else 0.0
                size = 1.0 if solver.step_schedule is None else solver.step_schedule(k)
                y = y - lr * size * (now + ahead * buffer if ahead else buffer)
                response += size * (1 + ahead * one if ahead else one)
            moves.append(y - x)
            directions.append((x - y) / (response * lr))
        x, direction = x + np.mean(moves, 0), np.mean(directions, 0)
        want.append(x)
    close(trajectory(this, engine), want)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["released", "paper", "paper_from_theta"])
@pytest.mark.parametrize("rho", [0.3, [(0, 0.3), (3, 0.9), (5, 0.6)]], ids=["constant", "changing"])
def test_fedadmm_forms(rho: float | list[tuple[int, float]], form: str, engine: Engine) -> None:
    """YonghaiGong/FedADMM: from theta, 2 (w - theta), the step switched in a later round. And Algorithm 1, from w_i and
    from theta.

    Where rho changes (Fig. 9), y_i stays, and y_i / rho is taken away as the client's last message added it.
    """
    switch, late = 4, 0.5
    this = job(METHODS["fedadmm"](rho=rho, server_lr=[(0, 1.0), (switch, late)], form=form))
    lr, theta, want = this.schedule.lr, origin(this), []
    w, y, u = np.tile(theta, (N, 1)), np.zeros((N, D)), np.zeros((N, D))
    for plan, gradient in plans(this):
        sent, now = [], rho if isinstance(rho, float) else (0.3, 0.9, 0.6)[(plan.round >= 3) + (plan.round >= 5)]
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            x = w[i] if form == "paper" else theta
            for k in range(steps):
                x = x - lr * (gradient(x, int(i), k) + y[i] + now * (x - theta))
            dual = y[i] + now * (x - theta)
            sent.append(2 * (x - theta) if form == "released" else (x + dual / now) - (w[i] + u[i]))
            w[i], y[i], u[i] = x, dual, dual / now
        theta = theta + (1.0 if plan.round < switch else late) * np.mean(sent, 0)
        want.append(theta)
    close(trajectory(this, engine), want)


@pytest.mark.parametrize("eta", [0.5, 1.0])
def test_algorithm_1_from_theta_grows_where_the_objective_is_flat(eta: float) -> None:
    """What an absent client missed of theta's moves is added once more: the moves grow by 1 + eta - S/N a round. Not
    with eta = S/N, and not from the clients' own models."""

    def growth(form: str, server_lr: float | list[tuple[int, float]]) -> float:
        this = job(METHODS["fedadmm"](rho=0.01, form=form, server_lr=server_lr))
        assert isinstance(this.problem, Quadratic)
        this.problem.H[:] = 0  # gradients are -b
        x = trajectory(this, Stacked(None), 140)
        moves = np.linalg.norm(np.diff(x, axis=0), axis=1)
        return float((moves[-1] / moves[59]) ** (1 / 80))

    assert growth("paper_from_theta", [(0, eta)]) == pytest.approx(1 + eta - COHORT / N, abs=0.08)
    assert growth("paper_from_theta", COHORT / N) < 1.02
    assert growth("paper", eta) < 1.02


def test_algorithm_1_from_theta_wants_its_server_step_stated() -> None:
    """Where clients are absent, and where nobody is it is Algorithm 1 with a step of 1, which is exact."""
    this = job(METHODS["fedadmm"](form="paper_from_theta"))
    with pytest.raises(UserError, match=r"paper_from_theta and 3 of 8 clients.* write \[\[0,1\]\] where a step of 1"):
        start(this)
    start(job(METHODS["fedadmm"](form="paper_from_theta", server_lr=[(0, 1.0)])))
    start(job(METHODS["fedadmm"](form="paper_from_theta"), everyone=True))
    for form in ("released", "paper"):
        start(job(METHODS["fedadmm"](form=form)))


def served(this: Job, step: Callable[[np.ndarray, int], np.ndarray]) -> list[np.ndarray]:
    """FedAvg's loop with the server's x += step(Delta, round) written by the caller."""
    x, want = origin(this), []
    for plan, gradient in plans(this):
        moves = []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = x
            for k in range(steps):
                y = y - plan.lr * gradient(y, int(i), k)
            moves.append(y - x)
        x = x + step(np.mean(moves, 0), plan.round)
        want.append(x)
    return want


def test_fedadam_of_fl_simulator() -> None:
    """v_0 = 0, no bias correction, eps outside the root."""
    m, v = np.zeros(D), np.zeros(D)

    def step(delta: np.ndarray, t: int) -> np.ndarray:
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        return 0.1 * m / (np.sqrt(v) + 1e-8)

    this = job(METHODS["fedadam"](server_lr=0.1, tau=1e-8, v0=0.0))
    close(trajectory(this, Stacked(None)), served(this, step), 1e-10)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_server_optimisers_of_optax(kind: str) -> None:
    """optax 0.2's adam, yogi and adagrad at their defaults, whose gradient is -Delta (FedJAX)."""
    value = {"adam": 0.0, "yogi": 1e-6, "adagrad": 0.1}[kind]
    m, v, b1, b2 = np.full(D, value), np.full(D, value), 0.9, 0.999

    def step(delta: np.ndarray, t: int) -> np.ndarray:
        nonlocal m, v
        g = -delta
        if kind == "adagrad":
            v = v + g * g
            return -0.05 * g / np.sqrt(v + 1e-7)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g if kind == "adam" else v - (1 - b2) * np.sign(v - g * g) * g * g
        scaled = (m / (1 - b1 ** (t + 1))) / (np.sqrt(v / (1 - b2 ** (t + 1))) + (1e-8 if kind == "adam" else 1e-3))
        return -0.05 * scaled

    options: dict[str, dict[str, float]] = {
        "adam": {"beta2": b2, "tau": 1e-8, "v0": 0.0, "bias_correction": True},
        "yogi": {"beta2": b2, "tau": 1e-3, "v0": 1e-6, "m0": -1e-6, "bias_correction": True},
        "adagrad": {"beta1": 0.0, "tau": 0.0, "v0": 0.1, "eps_root": 1e-7},
    }
    this = job(METHODS[f"fed{kind}"](server_lr=0.05, **options[kind]))
    close(trajectory(this, Stacked(None)), served(this, step), 1e-10)


def test_a_server_that_could_divide_by_0_is_refused() -> None:
    with pytest.raises(UserError, match="tau 0 and eps_root 0 let the server divide by 0"):
        METHODS["fedadam"](tau=0.0)


@pytest.mark.parametrize("units", ["moves", "gradients"])
def test_server_momentum_of_fednova_under_a_decaying_lr(units: str) -> None:
    """JYWa/FedNova: the buffer is aggregate / lr, applied with the lr of the round; in moves, the aggregate itself."""
    this = job(with_server(METHODS["fednova"](), momentum(0.8, units=units)), decay=0.8)
    x, buffer, want = origin(this), np.zeros(D), []
    for plan, gradient in plans(this):
        sums, p = [], plan.p / plan.p.sum()
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = x
            for k in range(steps):
                y = y - plan.lr * gradient(y, int(i), k)
            sums.append(x - y)
        tau = p @ plan.steps
        aggregate = sum(w * tau / k * s for w, k, s in zip(p, plan.steps, sums, strict=True))
        unit = plan.lr if units == "gradients" else 1.0
        buffer = 0.8 * buffer + aggregate / unit
        x = x - unit * buffer
        want.append(x)
    close(trajectory(this, Stacked(None)), want)


@pytest.mark.parametrize("engine", ENGINES)
def test_feddyn_by_size_is_its_authors(engine: Engine) -> None:
    """alpemreacar/FedDyn: alpha_i = alpha / (n_i / mean n), plain means; and the member of FedVRA that it is."""
    alpha, sizes = 0.4, 1.0 + np.arange(N)
    this = job(METHODS["feddyn"](alpha=alpha, weights="size"))
    lr, x, h, want = this.schedule.lr, origin(this), np.zeros((N, D)), []
    for plan, gradient in plans(this):
        models = []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            own, y = alpha / (sizes[i] / sizes.mean()), x
            for k in range(steps):
                y = y - lr * (gradient(y, int(i), k) + own * (h[i] - x) + own * y)
            h[i] += y - x
            models.append(y)
        x = np.mean(models, 0) + h.mean(0)
        want.append(x)
    got = trajectory(this, engine)
    close(got, want)
    gamma = [alpha / (N * p) for p in sizes / sizes.sum()]
    family = METHODS["fedvra"](gamma=gamma, a=1.0, d=N / COHORT, weights="size")
    close(trajectory(replace(this, algorithm=family), engine), list(got), 4e-14)


def clip(g: np.ndarray, limit: float) -> np.ndarray:
    return g * min(1.0, limit / np.linalg.norm(g))


@pytest.mark.parametrize("engine", ENGINES)
def test_feddyn_and_fedsmoo_of_fl_simulator_clip_their_loss(engine: Engine) -> None:
    """woodenchild95/FL-Simulator: clip_grad_norm sees g + alpha (h - x^t); the optimiser adds (wd + alpha) y after.

    FedSMOO's ascent is along g - mu - s, mu += e - s, s = radius * mean mu / (||mean mu|| + 1e-7) over the cohort.
    """
    alpha, radius, limit, decay = 0.4, 0.2, 0.3, 0.05
    for name, options in (("feddyn", {}), ("fedsmoo", {"radius": radius})):
        solver = Solver(weight_decay=decay, clip_direction=limit, clip_form="released")
        this = job(METHODS[name](alpha=alpha, **options), solver)
        lr, x, h, mu, s, want, cut = this.schedule.lr, origin(this), np.zeros((N, D)), np.zeros((N, D)), 0.0, [], 0
        for plan, gradient in plans(this):
            models = []
            for i, steps in zip(plan.ids, plan.steps, strict=True):
                y = x
                for k in range(steps):
                    g = gradient(y, int(i), k)
                    if name == "fedsmoo":
                        v = g - (mu[i] + s)
                        e = v * radius / (np.linalg.norm(v) + 1e-7)
                        mu[i] += e - s
                        g = gradient(y + e, int(i), k)
                    g = g + alpha * (h[i] - x)
                    cut += np.linalg.norm(g) > limit
                    y = y - lr * (clip(g, limit) + (decay + alpha) * y)
                models.append(y)
                h[i] += y - x
            shared = mu[plan.ids].mean(0)
            s = radius * shared / (np.linalg.norm(shared) + 1e-7)
            x = np.mean(models, 0) + h.mean(0)
            want.append(x)
        assert 20 < cut < 90
        close(trajectory(this, engine), want)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_whole_direction_clipped(engine: Engine, momentum: float) -> None:
    """All of what eta multiplies: gradient, weight decay and buffer, dual and proximal parts."""
    alpha, limit, decay = 0.4, 0.3, 0.05
    this = job(METHODS["feddyn"](alpha=alpha), Solver(momentum, decay, clip_direction=limit))
    lr, x, h, want, cut = this.schedule.lr, origin(this), np.zeros((N, D)), [], 0
    for plan, gradient in plans(this):
        models = []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y, buffer = x, np.zeros(D)
            for k in range(steps):
                buffer = momentum * buffer + gradient(y, int(i), k) + decay * y + alpha * h[i]
                step = buffer + alpha * (y - x)
                cut += np.linalg.norm(step) > limit
                y = y - lr * clip(step, limit)
            models.append(y)
            h[i] += y - x
        x = np.mean(models, 0) + h.mean(0)
        want.append(x)
    assert cut > 20
    close(trajectory(this, engine), want)


@pytest.mark.parametrize(("nesterov", "largest", "decay"), [(True, None, 1.0), (False, 0.3, 0.9)])
@pytest.mark.parametrize("engine", ENGINES)
def test_local_sgd_is_torch_s(engine: Engine, nesterov: bool, largest: float | None, decay: float) -> None:
    """torch.optim.SGD itself on every client, fresh each round; gradients clipped and step sizes decayed before."""
    this = job(METHODS["fedavg"](), Solver(0.8, 0.05, nesterov=nesterov, clip=largest, step_schedule=falling(decay)))
    x, want, cut = origin(this), [], 0
    for plan, gradient in plans(this):
        models = []
        for i, steps in zip(plan.ids, plan.steps, strict=True):
            y = torch.tensor(x, requires_grad=True)
            optimiser = torch.optim.SGD([y], plan.lr, 0.8, 0, 0.05, nesterov)
            shorter = torch.optim.lr_scheduler.ExponentialLR(optimiser, decay)
            for k in range(steps):
                g = gradient(y.detach().numpy(), int(i), k)
                if largest is not None:
                    cut += np.linalg.norm(g) > largest
                    g = clip(g, largest)
                y.grad = torch.as_tensor(g)
                optimiser.step()
                shorter.step()
            models.append(y.detach().numpy())
        x = np.mean(models, 0)
        want.append(x)
    assert largest is None or cut > 20
    close(trajectory(this, engine), want)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_nesterov_s_normaliser_is_the_response_to_unit_gradients(mu: float) -> None:
    eta, momentum, decay, tau = 0.02, 0.9, 0.95, 13
    got = response_of(tau, mu, eta, momentum, decay, nesterov=True)
    x = buffer = 0.0
    for k in range(tau):
        buffer = momentum * buffer + 1.0
        x -= eta * decay**k * (1.0 + momentum * buffer + mu * x)
    assert got == pytest.approx(-x / eta, rel=1e-13)


def test_newton_steps_up_a_hill_are_refused() -> None:
    """A negative eigenvalue is refused however small beside 1; one that rounding leaves beside a large one is none."""
    problem = quadratics(0, 1, torch.float64, torch.device("cpu"), dim=2)

    def seen(*eigenvalues: float) -> torch.Tensor:
        hill = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
        return curvature(replace(problem.objective, hessian=lambda x, samples: hill), problem.init(0), 0, 0)

    for low, high in ((-0.1, 4.0), (-1e-5, 4.0), (-1e-5, 0.4), (-3.0, -1.0)):
        with pytest.raises(UserError, match="negative eigenvalue"):
            seen(low, high)
    for rounded in ((0.0, 4.0), (-1e-6, 4.0), (-1e-8, 0.4), (-1e-6, 0.0, 4.0)):
        assert torch.equal(seen(*rounded).diagonal(), torch.tensor(rounded, dtype=torch.float64))


def test_newton_steps_are_not_clipped() -> None:
    reason = refuse(Solver(clip_direction=1.0), METHODS["fedhybrid"]())
    assert reason is not None
    assert "Newton" in reason
