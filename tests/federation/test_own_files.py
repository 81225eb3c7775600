"""Files of one's own that change on disk while a process lives: the next run reads them again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedconcord
from fedconcord.federation.objectives import Supervised
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested


def read(data: Path, **given: Any) -> Supervised:
    settings = {"data": str(data), "model": "logreg", "input": given, "partition": "iid", "clients": 2, "cohort": 2}
    found = problem_of(resolve_run(from_nested(settings, "test")))
    assert isinstance(found, Supervised)
    return found


def table(path: Path, flip: int = 0) -> Path:
    path.write_text("a,y\n" + "".join(f"{k},{(k + flip) % 2}\n" for k in range(20)))
    return path


def test_flipped_labels_give_other_metrics(tmp_path: Path) -> None:
    """Of the same size, and with the time of writing kept, as a copy may."""
    data = table(tmp_path / "t.csv")
    keep = tmp_path / "old.csv"
    shutil.copy2(data, keep)

    def run(out: str) -> dict[str, float]:
        ask = {"label_column": "y", "partition": "iid", "clients": 2, "cohort": 2, "model": "logreg", "lr": 1.0}
        return fedconcord.run(data=data, rounds=1, out=tmp_path / out, **ask).metrics  # type: ignore[arg-type]

    before = run("a")
    table(data, flip=1)
    shutil.copystat(keep, data)
    assert run("b") != before
    assert read(data, label=["y"]) is read(data, label=["y"])  # the methods of a comparison share one


@pytest.mark.parametrize("key", ["test", "statistics"])
def test_the_files_beside_it_are_read_again(tmp_path: Path, key: str) -> None:
    def statistics(path: Path, mean: int) -> Path:
        path.write_text(json.dumps({"columns": [{"name": "a", "kind": "number", "mean": mean, "scale": 1.0}]}))
        return path

    write: Callable[[Path, int], Path] = {"test": table, "statistics": statistics}[key]
    data, beside = table(tmp_path / "t.csv"), write(tmp_path / f"{key}.{'csv' if key == 'test' else 'json'}", 0)
    first = read(data, label=["y"], **{key: str(beside)})
    write(beside, 1)
    second = read(data, label=["y"], **{key: str(beside)})
    if key == "test":
        assert (first.test_y != second.test_y).all()
    else:
        assert (first.x[:] - 1 == second.x[:]).all()


def test_an_image_below_a_folder_is_read_again(tmp_path: Path) -> None:
    for k in range(8):
        path = tmp_path / "images" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 2), k, np.uint8)).save(path)
    before = read(tmp_path / "images")
    Image.fromarray(np.full((2, 2), 200, np.uint8)).save(path)
    after = read(tmp_path / "images")
    assert float(torch.cat([before.x[:], before.test_x[:]]).max()) < 0.1
    assert float(torch.cat([after.x[:], after.test_x[:]]).max()) > 0.7
