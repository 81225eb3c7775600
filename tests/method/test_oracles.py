"""Every implemented method against the recorded reference trajectories, on both engines, through the public command."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.federation.objectives.regularisers import nuclear
from fedconcord.method.contract import Regulariser
from fedconcord.testing import lowrank_oracle, oracles

FOLDER = Path(__file__).parents[1] / "oracles"


def process(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "fedconcord.testing.oracles", str(folder), *options]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def command(folder: Path) -> subprocess.CompletedProcess[str]:
    """The same in this process, which need not import everything again."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = oracles.main([str(folder)])
    return subprocess.CompletedProcess([], status, out.getvalue(), err.getvalue())


def written(folder: Path, cases: dict[str, Any], **arrays: dict[str, np.ndarray]) -> Path:
    (folder / "cases.json").write_text(json.dumps(cases))
    for name, held in arrays.items():
        np.savez(folder / f"{name}.npz", **held)
    return folder


@pytest.mark.parametrize("engine", [pytest.param("serial", marks=pytest.mark.slow), "stacked"])
def test_all_cases_match(engine: str) -> None:
    done = process(FOLDER, "--engine", engine)
    assert done.returncode == 0, done.stdout + done.stderr
    cases, arrays = oracles.load(FOLDER)
    errors = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()[:-1]}
    assert max(errors.values()) <= 1e-9
    assert set(cases["quadratic"]) <= set(errors)
    for section in ("lowrank", "semi"):
        recorded = {name.removeprefix("traj/") for name in arrays[section] if name.startswith("traj/")}
        assert recorded <= set(errors)
    assert " 0 failed, 0 not implemented" in done.stdout


def test_a_wrong_trajectory_is_noticed(tmp_path: Path) -> None:
    cases, arrays = oracles.load(FOLDER)
    arrays["quadratic"]["traj/scaffold/ci"] *= 1 + 1e-7
    arrays["lowrank"]["traj/losac_prox"][-1] *= 1 + 1e-7
    some = {"quadratic": {"scaffold": cases["quadratic"]["scaffold"]}, "lowrank": cases["lowrank"]}
    written(tmp_path, some, quadratic=arrays["quadratic"], lowrank=arrays["lowrank"])
    done = command(tmp_path)
    assert done.returncode == 1
    failed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith("FAILED")}
    assert failed == {"scaffold", "losac_prox"}


@pytest.mark.parametrize("section", ["quadratic", "lowrank"])
def test_hyperparameters_come_from_the_file(tmp_path: Path, section: str) -> None:
    """The same arrays under another step size must not match: nothing is remembered from the folder we ship with."""
    cases, _ = oracles.load(FOLDER)
    (tmp_path / f"{section}.npz").write_bytes((FOLDER / f"{section}.npz").read_bytes())
    if section == "quadratic":
        given = {"fedavg": cases["quadratic"]["fedavg"] | {"eta": 0.051}}
    else:
        given = cases["lowrank"] | {"eta": 0.0101, "admm": cases["lowrank"]["admm"] | {"rho": 2.02}}
    done = command(written(tmp_path, {section: given}))
    assert done.returncode == 1
    assert " 0 passed" in done.stdout.splitlines()[-1] or done.stdout.splitlines()[-1].startswith("0 passed")


def test_a_file_that_the_cases_name_and_the_folder_lacks_fails(tmp_path: Path) -> None:
    cases, arrays = oracles.load(FOLDER)
    done = command(written(tmp_path, {k: cases[k] for k in ("lowrank", "semi")}, lowrank=arrays["lowrank"]))
    assert done.returncode == 1
    assert "the folder no semi.npz" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("5 passed, 1 failed")


def test_every_choice_of_fedadmm_that_a_case_may_state(tmp_path: Path) -> None:
    """A start at the server's model with a server step of 1 too, which a run has to write out; the code's message."""
    cases, arrays = oracles.load(FOLDER)
    held = arrays["quadratic"]
    one = cases["quadratic"]["fedadmm_start_server"]
    given = {
        "fedadmm_one": one | {"slr": 1.0},
        "fedadmm_released": one | {"message": "repo", "slr": 1.0},
        "fedadmm_neither": one | {"start": "own", "message": "repo", "slr": 1.0},
    }
    for case in ("fedadmm_one", "fedadmm_released"):
        held[f"traj/{case}/x"] = from_theta(held, one["eta"], one["rho"], 1.0, released=case == "fedadmm_released")
    done = command(written(tmp_path, {"quadratic": given}, quadratic=held))
    assert done.stdout.splitlines()[-1].startswith("2 passed, 0 failed, 1 not implemented"), done.stdout
    assert done.returncode == 0


def from_theta(held: dict[str, np.ndarray], lr: float, rho: float, eta: float, released: bool) -> np.ndarray:
    """FedADMM from the server's model; the paper's message, or the code's."""
    H, b, theta = held["H"].mean(1), held["b"].mean(1), held["x0"]
    w, y, path = np.tile(theta, (len(H), 1)), np.zeros((len(H), len(theta))), [theta]
    for ids, steps in zip(held["part_ids"], held["part_steps"], strict=True):
        change = np.zeros_like(theta)
        for i in ids:
            at, before = theta.copy(), w[i] + y[i] / rho
            for _ in range(steps[i]):
                at -= lr * (H[i] @ at - b[i] + y[i] + rho * (at - theta))
            y[i] += rho * (at - theta)
            w[i] = at
            change += 2 * (at - theta) if released else at + y[i] / rho - before
        theta = theta + eta * change / len(ids)
        path.append(theta)
    return np.stack(path)


def test_a_case_that_the_method_refuses_fails_and_the_others_are_replayed(tmp_path: Path) -> None:
    cases, arrays = oracles.load(FOLDER)
    some = {name: cases["quadratic"][name] for name in ("fedvra", "scaffold")}
    some["fedvra"] = some["fedvra"] | {"a": [1.0, 2.0]}
    done = command(written(tmp_path, {"quadratic": some}, quadratic=arrays["quadratic"]))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("1 passed, 1 failed, 0 not implemented")
    assert "fedvra: " in done.stderr
    assert "a lists 2 values for 12 clients" in done.stderr


def test_what_is_unknown_is_said_and_does_not_fail(tmp_path: Path) -> None:
    done = command(written(tmp_path, {"elsewhere": {}}, elsewhere={"x": np.zeros(1)}))
    assert (done.returncode, done.stdout.splitlines()[0].split()) == (0, ["elsewhere", "not", "implemented"])


def test_an_unusable_folder_is_one_sentence(tmp_path: Path) -> None:
    done = process(tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cases.json" in done.stderr
    (tmp_path / "cases.json").write_text('{"quadratic": {}}')
    (tmp_path / "quadratic.npz").write_bytes(b"PK broken")
    broken = command(tmp_path)
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1)
    (tmp_path / "cases.json").write_text("[]")
    assert (command(tmp_path).returncode, command(tmp_path).stderr.count("\n")) == (2, 1)


# -- other sizes and hyper-parameters, against loops written out here ------------------------------------------------


def prox(psi: Regulariser, x: np.ndarray, eta: float) -> np.ndarray:
    return psi.prox(torch.as_tensor(x.reshape(-1)), eta).numpy().reshape(x.shape)


@pytest.mark.parametrize("engine", [Serial(), Stacked(None)])
def test_lowrank_replayer_is_general(engine: Engine) -> None:
    """Rectangular matrices, blocks of unequal size, a start away from 0 and other constants."""
    draw = np.random.default_rng(3)
    N, n, M, S, K, R, rows, columns = 5, 7, 3, 2, 3, 6, 3, 4
    given = {
        "lam": 0.07, "eta": 0.02, "K": K, "blocks": M,
        "admm": {"rho": 1.5, "eta_l": 0.04, "eta_g": 0.03, "server_steps": 4},
    }  # fmt: skip
    D, y, start = draw.normal(size=(N, n, rows, columns)), draw.normal(size=(N, n)), draw.normal(size=(rows, columns))
    ids = np.stack([np.sort(draw.choice(N, S, replace=False)) for _ in range(R)])
    blocks = draw.integers(M, size=(R, N, K))
    cuts, psi = np.array_split(np.arange(n), M), nuclear(given["lam"], rows)

    def gradient(i: int, block: int, X: np.ndarray) -> np.ndarray:
        at = cuts[block]
        residual = np.einsum("jab,ab->j", D[i, at], X) - y[i, at]
        return 2 * np.einsum("j,jab->ab", residual, D[i, at]) / len(at)

    def fedavg() -> list[np.ndarray]:
        path = [start]
        for t in range(R):
            ends = []
            for i in ids[t]:
                X = path[-1]
                for k in range(K):
                    X = prox(psi, X - given["eta"] * gradient(i, blocks[t, i, k], X), given["eta"])
                ends.append(X)
            path.append(np.mean(ends, 0))
        return path

    def admm(server_steps: int | None) -> list[np.ndarray]:
        rho, eta, eta_g = given["admm"]["rho"], given["admm"]["eta_l"], given["admm"]["eta_g"]
        X, pi, path = np.stack([start] * N), np.zeros((N, rows, columns)), [start]
        for t in range(R):
            Z = path[-1]
            for i in ids[t]:
                for k in range(K):
                    g = gradient(i, blocks[t, i, k], X[i]) / N
                    X[i] = (rho * eta * Z - eta * pi[i] + X[i] - eta * g) / (1 + rho * eta)
                    pi[i] = pi[i] + rho * (X[i] - Z)
            total = (pi + rho * X).sum(0)
            if server_steps is None:
                Z = prox(psi, total / (N * rho), 1 / (N * rho))
            for _ in range(server_steps or 0):
                Z = prox(psi, Z - eta_g * (N * rho * Z - total), eta_g)
            path.append(Z)
        return path

    arrays = {"D": D, "y": y, "XG": np.zeros((rows, columns)), "ids": ids, "blocks": blocks}
    arrays["traj/fedavg_prox"] = np.stack(fedavg())
    arrays["traj/inexact_admm"] = np.stack(admm(4))
    arrays["traj/inexact_admm_exact_server"] = np.stack(admm(None))
    arrays["traj/nothing_we_know"] = np.zeros((R + 1, rows, columns))
    errors = dict(lowrank_oracle.replay(arrays, given, engine))
    assert np.isnan(errors.pop("nothing_we_know"))
    assert len(errors) == 3
    assert max(errors.values()) < 1e-12
