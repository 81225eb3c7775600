"""Differential privacy of persons with several rows: what a person moves, what one row a person is, who is refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_sample_privacy import CLIP, NOISE, SEED, SIZES, Q, stepped
from torch import nn

import fedconcord
from fedconcord.execution.engines import Serial, Stacked, Wire
from fedconcord.execution.job import Job, advance, plan_of, start
from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.inputs import numbered, together
from fedconcord.federation.objectives import Supervised
from fedconcord.federation.objectives.persons import Persons
from fedconcord.federation.participation.schedule import Schedule
from fedconcord.federation.participation.work import poisson, uniform
from fedconcord.method.algorithms import METHODS
from fedconcord.method.contract import Orders, rng
from fedconcord.method.contract.discrete import SIGMA
from fedconcord.method.step.assignment import with_conditions
from fedconcord.method.step.solver import Solver
from fedconcord.method.wrappers.samples import with_sample_privacy
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import Source
from fedconcord.support.errors import UserError
from fedconcord.testing.bench import run

OWNERS = [[7, 7, 3, 1, 3, 7, 7, 2, 1], [4, 4, 4, 4], [*"abacabadabaca"], [0]]  # who has each row, client by client
PERSONS = np.concatenate([np.unique(one, return_inverse=True)[1] for one in OWNERS])
MANY = (4, 1, 4, 1)  # persons


def rows_of(keep: np.ndarray | None = None) -> Supervised:
    """Four clients' rows, those that are kept of the first client, and all of the others."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(sum(SIZES), 5)), draw.integers(0, 3, sum(SIZES))
    x[:, 0] *= 3  # rows of which some gradients are long
    data, ends = Dataset("some", x, y, x[:6], y[:6], 3), np.cumsum((0, *SIZES))
    parts = [np.arange(a, b) for a, b in pairwise(ends)]
    if keep is not None:
        parts[0] = parts[0][keep]
    return Supervised(
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), data, parts, dtype=torch.float64
    )


def job(problem: Any, engine: Any = None, noise: float = NOISE, q: float = Q, steps: Any = None) -> Job:
    schedule = Schedule(SEED, len(SIZES), 0.1, steps or uniform(1, 4), "steps", poisson(q))
    private = with_sample_privacy(METHODS["fedavg"](weights="uniform"), CLIP, noise, q)
    return Job(problem, private, schedule, Solver(), engine or Serial())


def gradient_of(problem: Any, x: torch.Tensor, persons: torch.Tensor, noise: float = 0.0, client: int = 0) -> Any:
    """The private gradient of a step of a client whose batch has these persons."""
    one = job(problem, noise=noise)
    of = with_conditions(
        problem.objective, one.algorithm, x, (), np.array([client]), [Orders(0, client, 3, 0.1, SEED)]
    ).taking(slice(None), 0)
    return of.gradient(x, persons)


@pytest.mark.parametrize("noise", [NOISE, 0.0])
@pytest.mark.parametrize("engine", [Serial(), Stacked(), Stacked(chunk=2), Wire()])
def test_local_steps_are_the_papers_equation(engine: Any, noise: float) -> None:
    """Coins for persons, the mean gradient of all rows of each, clipped, the keyed noise, over q times the persons."""
    rows = rows_of()
    one = job(Persons(rows, PERSONS), engine, noise)
    x0 = one.problem.init(SEED)
    plan, ends = plan_of(one, start(one)), []
    for client, steps in zip(plan.ids.tolist(), plan.steps.tolist(), strict=True):
        x, first = x0.clone(), sum(SIZES[:client])
        order = list(dict.fromkeys(PERSONS[first : first + SIZES[client]].tolist()))
        many = len(order)
        tosses = rng.generator(SEED, rng.Purpose.BATCH, 0, client).random(steps * many).reshape(steps, many)
        for k in range(steps):
            batch = []
            for p in np.flatnonzero(tosses[k] < Q):
                mine = first + np.flatnonzero(PERSONS[first : first + SIZES[client]] == order[p])
                batch.append(torch.stack([rows.objective.gradient(x, torch.tensor([j])) for j in mine]).mean(0))
            x = stepped(x, batch, many, noise, client, k)
        ends.append(x)
    state = advance(one, start(one))
    torch.testing.assert_close(state.server.x, torch.stack(ends).mean(0), rtol=0, atol=1e-6 if noise else 1e-12)


def test_one_row_a_person_is_privacy_of_samples_to_the_bits() -> None:
    alone = np.random.default_rng(2).permutation(sum(SIZES))  # numbers that say nothing
    for engine in (Serial(), Stacked(), Wire()):
        plain, persons = (run(job(p, engine), 3).server.x for p in (rows_of(), Persons(rows_of(), alone)))
        assert torch.equal(plain, persons)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_removing_a_person_moves_a_sum_by_the_bound_and_no_more(scale: float) -> None:
    """By brute force: each person of the first client in turn, with all rows, at small and at large gradients."""
    problem = Persons(rows_of(), PERSONS)
    x = problem.init(SEED) * scale + 0.1
    everyone = torch.arange(MANY[0])
    whole, moved = gradient_of(problem, x, everyone) * Q * MANY[0], []
    for person in range(MANY[0]):
        moved.append(float((whole - gradient_of(problem, x, everyone[everyone != person]) * Q * MANY[0]).norm()))
    assert max(moved) <= CLIP * (1 + 1e-12)
    assert max(moved) > CLIP * 0.999 or scale == 0.0  # the bound is met, or the test could not fail


def test_training_without_a_person_is_training_in_which_its_gradients_are_zeros() -> None:
    """Two data sets, one without any row of a person, and a local step of each: they differ by C / (q P) at most."""
    first = PERSONS[: SIZES[0]]
    whole = Persons(rows_of(), PERSONS)
    x = whole.init(SEED) * 20 + 0.1
    for person in np.unique(first):
        keep = first != person
        others = Persons(rows_of(keep), np.concatenate([first[keep], PERSONS[SIZES[0] :]]))
        assert others.roster.samples.tolist() == [MANY[0] - 1, *MANY[1:]]
        ends = [
            x - 0.1 * gradient_of(problem, x, torch.arange(n)) * Q * n / (Q * MANY[0])
            for problem, n in ((whole, MANY[0]), (others, MANY[0] - 1))
        ]
        assert float((ends[0] - ends[1]).norm()) <= 0.1 * CLIP / (Q * MANY[0]) * (1 + 1e-12)


def test_by_rows_a_person_moves_a_sum_by_more_than_the_bound() -> None:
    """What is wrong with accounting persons and clipping rows: the error that the tests above are to notice."""
    rows, moved = rows_of(), []
    for scale in (1.0, 3.0, 30.0):
        x = rows.init(SEED) * scale + 0.1
        for person in np.unique(PERSONS[:9]):
            others = torch.as_tensor(np.flatnonzero(PERSONS[:9] != person))
            moved.append(float((gradient_of(rows, x, torch.arange(9)) - gradient_of(rows, x, others)).norm() * Q * 9))
    assert max(moved) > 1.5 * CLIP


def test_noise_is_of_whole_numbers_and_what_is_not_finite_counts_as_zeros() -> None:
    problem = Persons(rows_of(), PERSONS)
    x = problem.init(SEED)
    steps = gradient_of(problem, x, torch.arange(4), NOISE) * (Q * 4) / (NOISE * CLIP / SIGMA)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
    assert not gradient_of(problem, torch.full_like(x, torch.inf), torch.arange(4)).any()


def test_the_objective_is_a_mean_over_persons() -> None:
    problem = Persons(rows_of(), PERSONS)
    x, of, rows = problem.init(SEED), problem.objective, problem.rows.objective
    mine = [torch.tensor([0, 1, 5, 6]), torch.tensor([2, 4]), torch.tensor([3, 8]), torch.tensor([7])]  # as they come
    for samples in ([0, 1, 2, 3], [2], [3, 3]):
        chosen = [mine[k] for k in samples]
        want = torch.stack([rows.gradient(x, one) for one in chosen]).mean(0)
        torch.testing.assert_close(of.gradient(x, torch.tensor(samples)), want, rtol=0, atol=1e-14)
        loss = torch.stack([rows.loss(x, one) for one in chosen]).mean()
        torch.testing.assert_close(of.loss(x, torch.tensor(samples)), loss, rtol=0, atol=1e-14)
    alone = of.alone(2)
    assert alone.offsets.tolist() == [0, 4]
    torch.testing.assert_close(alone.gradient(x, torch.arange(4)), of.gradient(x, torch.arange(5, 9)))
    assert of.offsets.tolist() == [0, 4, 5, 9, 10]
    assert of.hessian is not None
    assert of.hessian(x, torch.arange(4)).shape == (len(x), len(x))
    assert numbered(np.array([3, 1, 3, 2])).tolist() == [0, 1, 0, 2]
    parts = together(np.array([0, 1, 0, 2, 1]), [np.array([0, 4]), np.array([1, 2, 3])])
    assert [part.tolist() for part in parts] == [[0, 2], [1, 3, 4]]


# -- from settings -----------------------------------------------------------------------------------------------------


def table(path: Path, alone: bool = False) -> Path:
    """Three clients of 60 rows, two a person or one, and a number beside each that a model could learn persons by."""
    draw = np.random.default_rng(4)
    lines = ["patient,u,v,site,label"]
    for k in range(180):
        u = draw.normal(size=2)
        lines.append(f"p{k if alone else k // 2},{u[0]:.4f},{u[1]:.4f},{'abc'[k // 60]},{int(u.sum() > 0)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(path: Path, **more: Any) -> dict[str, Any]:
    public = path.with_suffix(".toml")
    public.write_text(
        "".join(f'[[columns]]\nname = "{name}"\nkind = "number"\nmean = 0.0\nscale = 1.0\n' for name in "uv")
    )
    given = {"data": str(path), "model": "logreg", "rounds": 2, "seed": 1, "cohort": 3, "local.lr": 0.5}
    given |= {"input.label": ["label"], "input.client": "site", "input.person": "patient", "validation": None}
    given |= {"input.statistics": str(public), "local.batch_size": "poisson(0.5)"}
    return {**given, "privacy.unit": "person", "privacy.clip": 1.0, "privacy.noise": 1.1, **more}


def said(out: Path) -> Any:
    return json.loads((out / "run.json").read_text())


def test_a_table_of_persons_is_accounted_by_person(tmp_path: Path) -> None:
    of = table(tmp_path / "t.csv")
    fedconcord.run(settings=settings(of), out=tmp_path / "run")
    privacy = said(tmp_path / "run")["privacy"]
    assert privacy["unit"] == "person"
    assert "gradients of persons clipped to 1" in privacy["said"]
    assert "each person in each with probability 0.5" in privacy["said"]
    inputs = load_file(tmp_path / "run" / "model.safetensors")
    assert {leaf.shape[-1] for leaf in inputs.values() if leaf.ndim == 2} == {2}  # the column of persons is no feature


def test_one_row_a_person_gives_the_bits_of_privacy_of_samples(tmp_path: Path) -> None:
    of, models = table(tmp_path / "t.csv", alone=True), []
    for unit in ("person", "sample"):
        for partition in ("natural", "iid"):
            more: dict[str, Any] = {} if partition == "natural" else {"input.client": None, "clients": 3}
            more |= {} if partition == "natural" else {"input.ignore": ["site"]}
            out = tmp_path / f"{unit}-{partition}"
            fedconcord.run(settings=settings(of, partition=partition, **{"privacy.unit": unit}, **more), out=out)
            models.append((load_file(out / "model.safetensors"), said(out)["privacy"]["epsilon"]))
    for persons, samples in zip(models[:2], models[2:], strict=True):
        assert persons[1] == samples[1]
        assert all(torch.equal(persons[0][name], samples[0][name]) for name in persons[0])


def test_a_partition_leaves_a_persons_rows_together(tmp_path: Path) -> None:
    more = {"partition": "iid", "clients": 4, "input.client": None, "input.ignore": ["site"]}
    by_rows = settings(table(tmp_path / "t.csv"), **more, **{"privacy.unit": "sample"})
    with pytest.warns(UserWarning, match=r"epsilon is of a row, and \d+ persons have several rows") as raised:
        fedconcord.run(settings=by_rows, out=tmp_path / "run")
    assert len(raised) == 1
    given = settings(table(tmp_path / "t.csv"), **more)
    rows = problem_of(resolve_run(Source(given, dict.fromkeys(given, "here"))))
    assert isinstance(rows, Supervised)
    persons = rows.data.persons
    assert persons is not None
    owner = np.repeat(np.arange(4), np.diff(rows.offsets))
    assert len(np.unique(np.stack([owner, persons]), axis=1)[0]) == len(np.unique(persons))


def test_arrays_and_python_data_may_say_whose_a_row_is(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y, who = draw.normal(size=(60, 3)), np.arange(60) % 2, np.repeat(np.arange(20), 3)
    np.savez(tmp_path / "a.npz", x=x, y=y, patient=who)
    given = settings(tmp_path / "a.npz", partition="iid", clients=2, cohort=2)
    for key in ("input.label", "input.client", "input.statistics"):
        given.pop(key)
    fedconcord.run(settings=given, out=tmp_path / "file")
    data = Dataset("some", x.astype(np.float32), y, x[:6].astype(np.float32), y[:6], 2, persons=who)
    given.pop("input.person")
    fedconcord.run(settings={**given, "data": data}, out=tmp_path / "python")
    assert said(tmp_path / "file")["privacy"]["unit"] == said(tmp_path / "python")["privacy"]["unit"] == "person"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"input.person": None, "input.ignore": ["patient"]}, "give input.person"),
        ({"input.person": "label"}, "is that of persons and another one"),
        ({"input.person": "patiend"}, "patient"),
        ({"local.private": "1.*"}, "leave local.private out"),
        ({"local.batch_size": 10}, "--dp-unit person --batch-size"),
        ({"privacy.delta": 0.2}, "persons be published whole"),
        ({"privacy.kind": "local"}, "leave it out"),
    ],
)
def test_what_cannot_be_of_persons_is_one_sentence(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        fedconcord.run(settings=settings(table(tmp_path / "t.csv"), **more), out=tmp_path / "run")
    assert why in str(raised.value)
