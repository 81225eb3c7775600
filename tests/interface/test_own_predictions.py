"""Data of one's own, trained on and predicted for: what predict says of the test file is what the run measured."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedconcord
from fedconcord.federation.data import labels
from fedconcord.insight.report import load_runs
from fedconcord.interface import cli
from fedconcord.study.statistics.summary import summarise
from fedconcord.support.errors import UserError
from new_tables import read_features


def write(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


HEADER = ["age", "ward", "sick", "score"]


def patients(n: int, seed: int) -> list[list[object]]:
    """A number with gaps, a category, a class and a number to be learnt."""
    rng = np.random.default_rng(seed)
    rows: list[list[object]] = []
    for _ in range(n):
        age, ward = rng.normal(50, 10), str(rng.choice(["north", "south", "west"]))
        score = 100 + 3 * (age - 50) + 40 * (ward == "west") + rng.normal()
        sick = "yes" if score > 110 else "no"
        rows.append(["" if rng.random() < 0.1 else f"{age:.3f}", ward, sick, f"{score:.4f}"])
    return rows


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "train.csv", HEADER, patients(300, 0))
    write(tmp_path / "test.csv", HEADER, patients(100, 1))
    return tmp_path


def run(files: Path, label: str, ignore: str, out: str) -> Path:
    settings = {"input.label": [label], "input.ignore": [ignore], "input.test": str(files / "test.csv")}
    settings |= {"validation": 0.2, "eval.personalise": "finetune(steps=3)", "local.lr": 0.05}
    done = fedconcord.run(
        "fedavg", data=str(files / "train.csv"), model="logreg", clients=4, cohort=4, rounds=15, out=files / out,
        partition="iid", settings=settings,
    )  # fmt: skip
    assert done.status == "complete"
    return done.folder


def test_classes_of_a_table(files: Path) -> None:
    folder = run(files, "sick", "score", "run")
    rows = table(fedconcord.predict(folder, files / "test.csv", files / "out.csv"))
    truth = [row[2] for row in patients(100, 1)]
    assert {row["label"] for row in rows} == {"yes", "no"}
    accuracy = float(table(folder / "metrics.csv")[-1]["test_accuracy"])
    assert np.mean([row["label"] == y for row, y in zip(rows, truth, strict=True)]) == pytest.approx(accuracy)
    assert accuracy > 0.8
    assert "accuracy_personalised" in table(folder / "clients.csv")[0]


def test_the_report_ranks_the_model_that_predict_has(files: Path) -> None:
    settings = {"input.label": ["sick"], "input.ignore": ["score"], "input.test": str(files / "test.csv")}
    for method in ("fedavg", "afedpd"):
        fedconcord.run(
            method, data=str(files / "train.csv"), model="logreg", clients=6, cohort=2, rounds=3, lr=0.5,
            partition="dirichlet(0.3)", settings=settings, out=files / "both" / method,
        )  # fmt: skip
    s = summarise(load_runs([files / "both"]))
    ranked, beside = (next(row for row in rows if row.name == "afedpd") for rows in (s.rows, s.second))
    assert (ranked.model, beside.model) == ("mean", "server")
    said = table(fedconcord.predict(files / "both" / "afedpd", files / "test.csv", files / "out.csv"))
    truth = [one[2] for one in patients(100, 1)]
    right = np.mean([one["label"] == y for one, y in zip(said, truth, strict=True)])
    assert right == pytest.approx(ranked.last.mean)
    assert right != pytest.approx(beside.last.mean)


def test_numbers_of_a_table_in_their_own_unit(files: Path) -> None:
    """Also through the program, whose inputs are the columns after their transform."""
    folder = run(files, "score", "sick", "run")
    rows = table(fedconcord.predict(folder, files / "test.csv", files / "out.csv"))
    truth = np.array([float(row[3]) for row in patients(100, 1)])
    given = np.array([float(row["score"]) for row in rows])
    last = table(folder / "metrics.csv")[-1]
    assert math.sqrt(np.mean((given - truth) ** 2)) == pytest.approx(float(last["test_rmse"]), rel=1e-4)
    assert "squared_error" in table(folder / "clients.csv")[0]
    from fedconcord.interface.trained.program import load

    x = read_features(files / "test.csv", load(folder).card["preprocessing"])
    program = torch.export.load(fedconcord.export(folder, out=files / "m.pt2")).module()
    assert program(torch.from_numpy(x)).detach().numpy()[:, 0] == pytest.approx(given, rel=1e-5)


def test_large_numbers_that_vary_little_are_told_apart(tmp_path: Path) -> None:
    """Targets near 1.7e9, where float32 has steps of 128: in metrics, in predict and in an exported program."""
    rng = np.random.default_rng(0)
    ages = rng.normal(50, 10, 400)
    ends = 1.7e9 + 3 * (ages - 50) + rng.normal(0, 4, 400)
    rows = [[f"{age:.4f}", f"{end:.3f}"] for age, end in zip(ages, ends, strict=True)]
    write(tmp_path / "train.csv", ["age", "end"], rows[:300])
    test = write(tmp_path / "test.csv", ["age", "end"], rows[300:])
    folder = fedconcord.run(
        "fedavg", data=str(tmp_path / "train.csv"), model="logreg", clients=4, cohort=4, rounds=15, partition="iid",
        out=tmp_path / "run",
        settings={"input.label": ["end"], "input.test": str(test), "local.lr": 0.05, "input.target": "number"},
    ).folder  # fmt: skip
    told = np.array([float(row["end"]) for row in table(fedconcord.predict(folder, test, tmp_path / "out.csv"))])
    error = math.sqrt(np.mean((told - ends[300:]) ** 2))
    assert error < 5
    assert len(set(told)) == 100
    assert float(table(folder / "metrics.csv")[-1]["test_rmse"]) == pytest.approx(error, rel=1e-4)
    from fedconcord.interface.trained.program import load

    x = read_features(test, load(folder).card["preprocessing"])
    program = torch.export.load(fedconcord.export(folder, out=tmp_path / "m.pt2")).module()
    assert np.abs(program(torch.from_numpy(x)).detach().numpy()[:, 0] - told).max() < 1e-3


@pytest.mark.parametrize("constant", [0.1, 1e9 / 3, -7.3e-5])
def test_a_column_that_never_varies_says_nothing_of_other_values(constant: float, tmp_path: Path) -> None:
    """The mean of 300 equal numbers misses them by rounding, by which nothing may be divided."""
    rows = [[row[0], f"{constant!r}", row[2]] for row in patients(300, 0)]
    write(tmp_path / "train.csv", ["age", "dose", "sick"], rows)
    folder = fedconcord.run(
        "fedavg", data=str(tmp_path / "train.csv"), model="logreg", clients=4, cohort=4, rounds=3, partition="iid",
        out=tmp_path / "run", settings={"input.label": ["sick"], "input.ignore": ["age"]},
    ).folder  # fmt: skip
    other = write(tmp_path / "new.csv", ["age", "dose"], [["50", repr(constant)], ["50", repr(constant + 1)]])
    same, moved = (float(row["p_yes"]) for row in table(fedconcord.predict(folder, other, tmp_path / "out.csv")))
    assert abs(moved - same) < 0.5
    assert 0.1 < same < 0.9


@pytest.mark.parametrize("constant", [0.1, 1e9 / 3, -7.3e-5])
def test_a_target_that_never_varies_is_its_mean(constant: float) -> None:
    """As of a column: the rounding of a mean is no deviation that anything may be scaled by."""
    target = labels.Targets("number", np.full((300, 1), constant), ["y"], None)
    inputs = np.zeros((300, 1)), np.zeros((0, 1))
    data = labels.federation(
        "d",
        inputs,
        target=target,
        columns=["y"],
        owner=np.zeros(300, int),
        who=None,
        tested=np.zeros(300, bool),
        preprocessing={},
    )
    assert data.unit is not None
    mean, scale = data.unit
    assert scale == [1.0]
    assert mean == pytest.approx([constant], rel=1e-12)
    assert np.abs(data.train_y).max() <= 1e-12 * abs(constant)


def test_a_text_that_no_training_row_had_shifts_no_answer(files: Path) -> None:
    """Whatever the seed drew for the weights of an input that no training row has; and predict names such rows."""
    for seed in (0, 1):
        settings = {"input.label": ["sick"], "input.ignore": ["score"], "local.lr": 0.05}
        folder = fedconcord.run(
            "fedavg", data=str(files / "train.csv"), model="2nn", clients=4, cohort=4, rounds=1, partition="iid",
            seed=seed, out=files / f"run-{seed}", settings=settings,
        ).folder  # fmt: skip
        new = write(files / "new.csv", ["patient", "age", "ward"], [["CH-7", 50, "east"], ["=1+1", 50, "west"]])
        with pytest.warns(UserWarning, match=r"1 rows hold texts that no training row had.*row 0: ward=east"):
            east, west = table(fedconcord.predict(folder, new, files / "out.csv"))
        assert (east["unseen"], west["unseen"]) == ("ward=east", "")
        assert east["patient"] == "CH-7"
        from fedconcord.interface.trained.program import load

        trained = load(folder)
        x = read_features(new, trained.card["preprocessing"])
        inputs = trained.card["preprocessing"]["inputs"]
        assert x[0, inputs.index("ward other")] == 0
        assert not x[0, [inputs.index(f"ward={name}") for name in ("north", "south", "west")]].any()


def test_the_probability_of_each_class_and_a_threshold(files: Path) -> None:
    folder = run(files, "sick", "score", "run")
    rows = table(fedconcord.predict(folder, files / "test.csv", files / "out.csv"))
    assert list(rows[0]) == ["row", "score", "label", "p_no", "p_yes", "unseen"]
    assert all(float(row["p_no"]) + float(row["p_yes"]) == pytest.approx(1, abs=1e-6) for row in rows)
    assert all((row["label"] == "yes") == (float(row["p_yes"]) > 0.5) for row in rows)
    strict = table(fedconcord.predict(folder, files / "test.csv", files / "out.csv", threshold=0.2))
    assert all((row["label"] == "yes") == (float(row["p_yes"]) >= 0.2) for row in strict)
    command = ["predict", str(folder), str(files / "test.csv"), "--threshold", "0.2", "--out", str(files / "same.csv")]
    assert cli.call(command) == 0
    assert table(files / "same.csv") == strict
    assert sum(row["label"] == "yes" for row in strict) > sum(row["label"] == "yes" for row in rows)
    for wrong in (0.0, 1.5):
        with pytest.raises(UserError, match="probability between 0 and 1"):
            fedconcord.predict(folder, files / "test.csv", files / "out.csv", threshold=wrong)
    numbers = run(files, "score", "sick", "numbers")
    with pytest.raises(UserError, match="this model answers numbers"):
        fedconcord.predict(numbers, files / "test.csv", files / "out.csv", threshold=0.3)


def test_a_table_that_lacks_a_column_is_a_sentence(files: Path) -> None:
    folder = run(files, "sick", "score", "run")
    write(files / "less.csv", ["age"], [["51.0"]])
    with pytest.raises(UserError, match="'ward'"):
        fedconcord.predict(folder, files / "less.csv", files / "out.csv")
    write(files / "none.csv", HEADER, [])
    with pytest.raises(UserError, match="nothing to predict"):
        fedconcord.predict(folder, files / "none.csv", files / "out.csv")
    write(files / "bad.csv", HEADER, [["old", "north", "", ""]])
    with pytest.raises(UserError, match="'old' is not a number"):
        fedconcord.predict(folder, files / "bad.csv", files / "out.csv")


def test_images_of_any_size_where_training_resized_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for shade, name in ((40, "dark"), (200, "light")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(30):
            size = (12, 12) if k % 2 else (17, 9)
            pixels = rng.integers(shade - 30, shade + 30, size).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{k}.png")
    done = fedconcord.run(
        "fedavg", data=str(tmp_path / "images"), model="logreg", clients=3, cohort=3, rounds=10, out=tmp_path / "run",
        partition="iid", settings={"input.image_size": 8},
    )  # fmt: skip
    rows = table(fedconcord.predict(done.folder, tmp_path / "images" / "dark", tmp_path / "out.csv"))
    assert len(rows) == 30
    assert np.mean([row["label"] == "dark" for row in rows]) > 0.9
