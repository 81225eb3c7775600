"""What strangers write and what a site keeps: names that a spreadsheet would compute, a model's description with values
of other types, and files for their owner's eyes.
"""

from __future__ import annotations

import csv
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import fedconcord
from fedconcord.execution.rows import tensors
from fedconcord.support import files, sums
from fedconcord.support.errors import UserError
from fedconcord.support.readers import columns
from fedconcord_flower import keys

NAMES = ("=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "'=quoted", "plain")


def test_cells_that_begin_as_formulas_are_inert_and_come_back(tmp_path: Path) -> None:
    numbers = ["-3.5", "+1e-9", -2.0, 7, "'tis", ""]
    files.write_csv(tmp_path / "t.csv", ["name", "=head"], [*((name, 1) for name in NAMES), *((v, 1) for v in numbers)])
    with open(tmp_path / "t.csv", newline="") as file:
        raw = list(csv.reader(file))
    assert raw[0] == ["name", "'=head"]
    assert not [line for line in raw[: len(NAMES) + 1] if line[0].startswith(("=", "+", "-", "@"))]
    assert [line[0] for line in raw[len(NAMES) + 1 :]] == ["-3.5", "+1e-9", "-2.0", "7", "'tis", ""]
    sums.write(tmp_path, {"t.csv": (tmp_path / "t.csv").read_bytes()})
    assert columns(tmp_path / "t.csv")["name"][: len(NAMES)] == list(NAMES)


def test_names_of_sites_reach_no_spreadsheet_as_formulas(tmp_path: Path) -> None:
    rows = [f"{name},{i % 7 / 7:.3f},{i % 2}" for i, name in enumerate(("=1+1", "@b", "-c") * 20)]
    (tmp_path / "sites.csv").write_text("\n".join(["site,u,y", *rows]) + "\n")
    job: dict[str, Any] = {
        "data": tmp_path / "sites.csv",
        "client_column": "site",
        "label_column": "y",
        "model": "logreg",
    }
    done = fedconcord.compare(["fedavg"], **job, rounds=1, seeds=[0], baselines=["local"], out=tmp_path / "out")
    run = done.folder / "fedavg" / "seed-0"
    made = [*done.folder.rglob("*.csv")]
    assert len(made) > 5
    (tmp_path / "new.csv").write_text("\n".join(["site,u", "=1+1,0.3", "-c,0.1"]) + "\n")
    fedconcord.predict(run, tmp_path / "new.csv", tmp_path / "p.csv")
    for path in (*made, tmp_path / "p.csv"):
        with open(path, newline="") as file:
            cells = [cell for line in csv.reader(file) for cell in line if cell.startswith(("=", "+", "@", "-"))]
        assert [cell for cell in cells if not cell.lstrip("+-")[:1].isdigit()] == [], path
    assert sorted(columns(run / "clients.csv")["name"]) == ["-c", "=1+1", "@b"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    rows = [f"{i % 7 / 7:.3f},{'ab'[i % 2]},{i % 2}" for i in range(60)]
    (place / "t.csv").write_text("\n".join(["u,v,y", *rows]) + "\n")
    made = fedconcord.run("fedavg", data=place / "t.csv", label_column="y", clients=3, rounds=1, out=place / "run")
    (place / "x.csv").write_text("u,v\n0.1,a\n")
    return made.folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 3), ("shape", "two"), ("shape", [0]), ("shape", []), ("inputs", "words"), ("dtype", "int64"),
        ("dtype", "load"), ("target", None), ("outputs", [2]), ("outputs", True), ("output_names", "no"), ("data", {}),
        ("preprocessing", []), ("preprocessing", {"kind": "table", "missing": 3, "columns": []}),
        ("preprocessing", {"kind": "table", "target": "y", "columns": []}),
        ("preprocessing", {"kind": "scale", "divide": "x"}), ("preprocessing", {"kind": "table", "columns": 7}),
        ("unit", 1.5), ("unit", [[1.0]]),
    ],
)  # fmt: skip
def test_a_wrong_value_in_model_json_is_a_sentence(key: str, value: Any, run: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    for name in ("run.json", "model.json", "model.safetensors"):  # without the checksums, as a stranger leaves them
        (place / name).write_bytes((run / name).read_bytes())
    said = json.loads((place / "model.json").read_text())
    (place / "model.json").write_text(json.dumps({**said, key: value}))
    with pytest.raises(UserError) as refused:
        fedconcord.predict(place, run.parent / "x.csv", tmp_path / "p.csv")
    assert "\n" not in str(refused.value)
    assert key in str(refused.value) or "the model's" in str(refused.value)


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_sites_files_are_for_its_owner(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.private_folder(tmp_path / "deep" / "site")
        tensors.write(tmp_path / "deep" / "row.safetensors", {"row": torch.ones(2)}, mode=0o600)
        keys.write_site(tmp_path / "keys", "basel")
        (tmp_path / "there").mkdir()
        files.private_folder(tmp_path / "there")
    finally:
        os.umask(before)

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(tmp_path / "deep" / "site") == 0o700
    assert mode(tmp_path / "deep" / "row.safetensors") == 0o600
    assert (mode(tmp_path / "keys"), mode(tmp_path / "keys" / "basel.key")) == (0o700, 0o600)
    assert mode(tmp_path / "there") == 0o755  # somebody else's folder is left as it is
