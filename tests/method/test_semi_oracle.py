"""FedVRA-U against its recorded trajectory, on both engines; what must be noticed is noticed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedconcord.execution.engines import Engine, Serial, Stacked
from fedconcord.testing.semi_oracle import replay

FOLDER = Path(__file__).parents[1] / "oracles"


def case() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(FOLDER / "semi.npz", allow_pickle=False) as file:
        return dict(file), json.loads((FOLDER / "cases.json").read_text())["semi"]


@pytest.mark.parametrize("engine", [Serial(), Stacked(None), Stacked(2)], ids=["serial", "stacked", "chunks"])
def test_the_trajectory_matches(engine: Engine) -> None:
    errors = dict(replay(*case(), engine))
    assert set(errors) == {"fedvra_u", "nu_final"}
    assert max(errors.values()) <= 1e-9


@pytest.mark.parametrize("name", ["alpha_p", "alpha_r", "eta", "gamma", "a", "d", "y_steps", "x_steps", "eta_y"])
def test_every_parameter_is_read(name: str) -> None:
    arrays, given = case()
    errors = dict(replay(arrays, given | {name: given[name] * 2}, Stacked(None)))
    assert errors["fedvra_u"] > 1e-6


def test_a_wrong_array_is_noticed() -> None:
    arrays, given = case()
    arrays["nu_final"] = arrays["nu_final"] + 1e-7
    errors = dict(replay(arrays, given, Stacked(None)))
    assert errors["fedvra_u"] <= 1e-9 < errors["nu_final"]


def test_other_sizes_are_replayed() -> None:
    """Fewer rounds and features: nothing is remembered from the file we ship with."""
    arrays, given = case()
    arrays["ids"] = arrays["ids"][:5]
    arrays["traj/fedvra_u"] = arrays["traj/fedvra_u"][:6]
    del arrays["nu_final"], arrays["hidden"]
    assert dict(replay(arrays, given, Stacked(None)))["fedvra_u"] <= 1e-9
    for name in ("U", "V"):
        arrays[name] = arrays[name][..., :2]
    arrays["traj/fedvra_u"] = arrays["traj/fedvra_u"][..., :2]
    assert dict(replay(arrays, given, Serial()))["fedvra_u"] > 1e-9
