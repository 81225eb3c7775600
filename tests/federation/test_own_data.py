"""Data of one's own: what each kind of file becomes, the transform from sums of the clients, and broken files."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedconcord.federation.data.inputs import Input
from fedconcord.federation.data.own import checked, read_own
from fedconcord.federation.data.preprocess import Number, apply, mean_of, scale_of, squares, sums
from fedconcord.support.errors import UserError
from new_tables import read_features

ASK = Input(label=("y",), client="site")
TABLE = {
    "age": [50.0, 60.5, None, 41.0, 33.0, 70.0, 52.0, 44.0, 61.0, 38.0],
    "sex": ["m", "f", "m", None, "f", "m", "x", "f", "m", "f"],
    "y": [1, 0, 1, 0, 1, 0, 1, 0, 1, 0],
    "site": ["b", "a", "b", "a", "b", "a", "b", "a", "b", "b"],
}


def table() -> pa.Table:
    return pa.table(TABLE)


def write_csv(folder: Path) -> Path:
    pcsv.write_csv(table(), folder / "t.csv")
    return folder / "t.csv"


def write_tsv(folder: Path) -> Path:
    pcsv.write_csv(table(), folder / "t.tsv", pcsv.WriteOptions(delimiter="\t"))
    return folder / "t.tsv"


def write_parquet(folder: Path) -> Path:
    pq.write_table(table().set_column(1, "sex", table()["sex"].dictionary_encode()), folder / "t.parquet")
    return folder / "t.parquet"


def write_arrow(folder: Path) -> Path:
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=3)
    return folder / "t.arrow"


def saved(folder: Path, content: pa.Table, features: dict[str, Any]) -> Path:
    """As `datasets.Dataset.save_to_disk` writes it (checked against version 5.2.0): two streams and two JSON files."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = len(content) // 2
    for name, part in zip(names, (content.slice(0, half), content.slice(half)), strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def write_saved(folder: Path) -> Path:
    return saved(folder / "t", table(), {"y": {"names": ["no", "yes"], "_type": "ClassLabel"}})


@pytest.mark.parametrize("write", [write_csv, write_tsv, write_parquet, write_arrow, write_saved])
def test_every_kind_of_table_is_the_same_federation(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    data = read_own(write(tmp_path), ASK)
    assert data.preprocessing is not None
    assert data.preprocessing["inputs"] == ["age", "age missing", "sex=f", "sex=m", "sex=x", "sex other"]
    assert (data.classes, data.target, data.client_names) == (2, "class", ["a", "b"])
    assert data.output_names == (["no", "yes"] if write is write_saved else ["0", "1"])
    assert data.natural is not None
    assert [len(part) for part in data.natural] == [3, 5]  # a fifth of 4 and of 6 is tested
    assert (data.train_x.dtype, data.train_y.dtype, len(data.test_y)) == (np.float32, np.int64, 2)
    rows = np.concatenate([data.train_x, data.test_x])
    assert set(rows[:, 2:].sum(1)) == {1.0}
    ages = data.train_x[data.train_x[:, 1] == 0, 0]
    np.testing.assert_allclose([ages.mean(), ages.std()], [0, 1], atol=1e-6)
    again = read_features(
        write(tmp_path / "new") if (tmp_path / "new").mkdir() is None else tmp_path, data.preprocessing
    )
    assert len(again) == 10
    assert {tuple(row) for row in again} == {tuple(row) for row in rows}
    json.dumps(data.preprocessing)


def test_statistics_from_sums_of_clients_are_those_of_the_pool() -> None:
    gen = np.random.default_rng(1)
    values = gen.normal(1e6, 1.0, (5000, 3)) * [1, 1e-6, 1e6]  # squares of sums would lose all digits of the deviation
    values[gen.random(values.shape) < 0.2] = np.nan
    owner = gen.integers(0, 40, 5000)
    first = sums(values, owner, 40)
    mean = mean_of(first)
    second = squares(values, owner, 40, mean)
    np.testing.assert_allclose(mean, np.nanmean(values, 0), rtol=1e-14)
    np.testing.assert_allclose(scale_of(second, mean), np.nanstd(values, 0), rtol=1e-12)
    # a client's message is made of its own rows alone, and has no more numbers however many these are
    for i in (0, 39):
        alone = sums(values[owner == i], np.zeros((owner == i).sum(), int), 1)
        np.testing.assert_allclose(alone.total[0], first.total[i], rtol=1e-14)
        assert [part.shape for part in alone] == [(1, 3), (1, 3)]


def test_the_transform_is_fitted_on_training_rows_only(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    test = tmp_path / "test.csv"
    test.write_text("age,sex,y\n1000,new,1\n,m,1\n")
    data = read_own(path, ASK._replace(test=str(test)))
    known = [age for age in TABLE["age"] if age is not None]
    assert data.preprocessing is not None
    number = data.preprocessing["columns"][0]
    assert number["mean"] == pytest.approx(np.mean(known), rel=1e-14)
    assert number["scale"] == pytest.approx(np.std(known), rel=1e-14)
    np.testing.assert_allclose(data.test_x[0, 0], (1000 - np.mean(known)) / np.std(known), rtol=1e-6)
    assert data.test_x[0, 2:].tolist() == [0, 0, 0, 1]  # a text that no client has
    assert data.test_x[1].tolist() == [0, 1, 0, 1, 0, 0]  # filled with the mean, and marked
    assert (len(data.train_y), data.test_y.tolist()) == (10, [1, 1])


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_a_text_among_numbers_is_missing_or_makes_them_names(
    tmp_path: Path, write: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two ways out of the refusal; a new table is read as the training table was."""
    ages = [None if age is None else f"{age:g}" for age in TABLE["age"]]  # type: ignore[str-bytes-safe]
    with_unk = [*ages[:-1], "unk"]
    monkeypatch.setitem(TABLE, "age", with_unk)
    path = write(tmp_path)
    with pytest.raises(UserError, match=r"'age' is numbers but for 1 text \('unk'\), row 10 below the header; if it"):
        read_own(path, ASK)
    named = read_own(path, ASK._replace(categories=("age",))).preprocessing
    assert named is not None
    assert len([name for name in named["inputs"] if name.startswith("age=")]) > 4
    blank = read_own(path, ASK._replace(missing=("unk",)))
    assert blank.preprocessing is not None
    assert blank.preprocessing["inputs"][:2] == ["age", "age missing"]
    x = read_features(path, blank.preprocessing)
    assert x[-1, :2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("ending", [".json", ".toml"])
def test_given_statistics_are_used_as_they_are(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"s{ending}"
    if ending == ".json":
        path.write_text('{"columns": [{"name": "age", "kind": "number", "mean": 40.0, "scale": 10.0}]}')
    else:
        path.write_text('[[columns]]\nname = "age"\nkind = "number"\nmean = 40.0\nscale = 10.0\n')
    data = read_own(write_csv(tmp_path), ASK._replace(statistics=str(path)))
    assert data.preprocessing is not None
    assert data.preprocessing["statistics"] == "given"
    assert data.preprocessing["sent_by_each_client"] == []
    assert set(np.concatenate([data.train_x, data.test_x])[:, 0].round(5)) <= {
        np.float32(round((age - 40) / 10, 5)) if age is not None else 0 for age in TABLE["age"]
    }


def test_targets_are_guessed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{k},{k * 0.7},{k % 2},{(k // 2) % 2},{'no' if k % 3 else 'yes'}" for k in range(30)]
    path.write_text("x,number,one,two,three\n" + "\n".join(rows))
    number = read_own(path, Input(label=("number",), ignore=("one", "two", "three")))
    assert (number.target, number.classes, number.train_y.shape) == ("number", 1, (24, 1))
    assert number.unit is not None
    train = np.array([k * 0.7 for k in range(30)])
    back = np.concatenate([number.train_y, number.test_y])[:, 0] * number.unit[1][0] + number.unit[0][0]
    np.testing.assert_allclose(np.sort(back), train, atol=1e-5)
    labels = read_own(path, Input(label=("one", "two", "three"), ignore=("number",)))
    assert (labels.target, labels.classes, labels.output_names) == ("labels", 3, ["one", "two", "three"])
    assert set(labels.train_y.ravel()) == {0.0, 1.0}
    assert labels.preprocessing is not None
    assert labels.preprocessing["said"] == [
        "one, two, three: 3 columns of 0 and 1, taken as labels that may hold together; --target-kind says otherwise"
    ]
    several = read_own(path, Input(label=("number", "x"), ignore=("one", "two")))
    assert (several.target, several.classes) == ("number", 2)
    asked = read_own(path, Input(label=("one",), target="number"))
    assert asked.target == "number"
    assert asked.preprocessing is not None
    assert asked.preprocessing["said"] == []


def test_the_split_is_a_share_of_every_client_and_of_no_seed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    sizes = {"big": 100, "small": 7, "single": 1}
    rows = [f"{k}.5,{k % 2},{site}" for site, size in sizes.items() for k in range(size)]
    path.write_text("x,y,site\n" + "\n".join(rows))
    data = read_own(path, ASK)
    assert data.natural is not None
    assert dict(zip(data.client_names or [], map(len, data.natural), strict=True)) == {
        "big": 80,
        "single": 1,
        "small": 6,
    }
    assert len(data.test_y) == 21
    assert data.preprocessing is not None
    assert data.preprocessing["said"][1] == "1 of 3 clients have one row, which is trained on and not tested"
    assert np.array_equal(data.train_x, read_own(path, ASK).train_x)


# -- other kinds -------------------------------------------------------------------------------------------------


def test_npz(tmp_path: Path) -> None:
    x = np.arange(40 * 4, dtype=np.uint8).reshape(40, 1, 2, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["cat", "dog"] * 20), client=np.arange(40) // 10)
    data = read_own(tmp_path / "a.npz", Input())
    assert (data.shape, data.classes, data.output_names) == ((1, 2, 2), 2, ["cat", "dog"])
    assert data.client_names == ["0", "1", "2", "3"]
    assert (data.train_x.dtype, data.test_x.dtype) == (np.uint8, np.uint8)
    assert np.array_equal(np.sort(data.scaled().train_x, None), np.sort(data.train_x, None).astype(np.float32) / 255)
    np.savez(
        tmp_path / "b.npz", x=x.astype(np.int32)[:, 0, 0], y=np.linspace(0, 1, 40), test_x=x[:3, 0, 0], test_y=[0, 1, 2]
    )
    data = read_own(tmp_path / "b.npz", Input())
    assert (data.target, data.train_x.dtype, data.natural) == ("number", np.int64, None)
    assert data.test_y.shape == (3, 1)


def picture(colour: int, mode: str = "L", size: tuple[int, int] = (4, 6)) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, colour if mode == "L" else (colour, 0, 0)).save(out, "PNG")
    return out.getvalue()


def folders(root: Path, *levels: str, images: int = 5, mode: str = "L") -> Path:
    for level in levels:
        (root / level).mkdir(parents=True)
        for k in range(images):
            (root / level / f"{k}.png").write_bytes(picture(20 * k + 5, mode))
    return root


def test_folders_of_images(tmp_path: Path) -> None:
    data = read_own(folders(tmp_path / "flat", "cat", "dog", mode="RGB"), Input()).scaled()
    assert (data.shape, data.output_names, data.natural) == ((3, 6, 4), ["cat", "dog"], None)
    assert np.concatenate([data.train_x, data.test_x])[:, 0].max() == pytest.approx(85 / 255)
    data = read_own(folders(tmp_path / "deep", "a/cat", "a/dog", "b/cat"), Input())
    assert (data.shape, data.client_names) == ((1, 6, 4), ["a", "b"])
    data = read_own(folders(tmp_path / "both", "train/cat", "train/dog", "test/dog"), Input(image_size=3))
    assert (data.shape, len(data.train_y), data.test_y.tolist()) == ((1, 3, 3), 10, [1] * 5)


def test_a_saved_data_set_of_images(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": picture(9 * k), "path": None} for k in range(20)], kind)
    content = pa.table({"image": images, "label": [k % 2 for k in range(20)], "who": ["u", "v"] * 10})
    features = {"image": {"_type": "Image"}, "label": {"names": ["even", "odd"], "_type": "ClassLabel"}}
    folder = tmp_path / "whole"
    saved(folder / "train", content, features)
    saved(folder / "test", content.slice(0, 4), features)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = read_own(folder, Input(client="who"))
    assert (data.shape, data.output_names, data.client_names) == ((1, 6, 4), ["even", "odd"], ["u", "v"])
    assert (len(data.train_y), len(data.test_y)) == (20, 4)
    assert data.train_x[:, 0, 0, 0].tolist() == [9 * k for k in range(20)]


# -- broken files ------------------------------------------------------------------------------------------------

HEAD = "age,sex,y,site\n"
FULL = HEAD + "1,m,0,a\n2,f,1,a\n3,m,0,b\n4,f,1,b\n5,f,1,b\n"


def repeated(text: str) -> str:
    return HEAD + "".join(text.replace("#", str(k)) for k in range(400))


@pytest.mark.parametrize(
    ("content", "ask", "said"),
    [
        (FULL, Input(), "t.csv has the columns age, sex, y, site; say which is learnt: --label-column NAME"),
        (FULL, ASK._replace(label=("outcome",)), "t.csv has no column 'outcome' (--label-column); its columns: age"),
        (FULL, ASK._replace(client="sit"), "t.csv has no column 'sit' (--client-column) (did you mean 'site'?); its"),
        (FULL, ASK._replace(ignore=("agee",)), "t.csv has no column 'agee' (input.ignore) (did you"),
        (FULL, ASK._replace(client="y"), "column 'y' is both label and client; give two columns"),
        (FULL, ASK._replace(label=("y", "y")), "--label-column names 'y' twice; name it once"),
        (FULL, ASK._replace(ignore=("age", "sex")), "t.csv has no column left to learn from beside age, sex, site, y"),
        ("", ASK, "is empty; a table has a header and at least two rows"),
        (HEAD, ASK, "t.csv has a header and no rows; at least two are needed"),
        ("age,sex,age,site\n1,m,0,a\n", ASK, "t.csv has the column 'age' twice in its header; rename one of them"),
        ("age,,y,site\n1,m,0,a\n", ASK, "t.csv: column 2 has no name; give it one in the header"),
        (FULL + "6,m,0\n", ASK, "cannot read t.csv: Row #7: Expected 4 columns, got 3: 6,m,0; every row needs as many"),
        (FULL.encode() + b"6,\xff\xfe,1,b\n", ASK, "cannot read t.csv: it is not UTF-8; save it as UTF-8"),
        (FULL.replace(",0,", ",1,"), ASK, "t.csv: label column 'y' has one class only, '1'; there is nothing to tell"),
        (FULL + '6,m,"1,b\n7,m,0,b\n8,m,1",b\n9,m,1,b\n', ASK, "label column 'y' has a text of several lines, "),
        (FULL + "6,m,,b\n", ASK, "t.csv: 1 of 6 rows have no value in 'y', row 6 first; drop these rows"),
        (FULL + "6,m,1,\n", ASK, "t.csv: 1 of 6 rows have no value in 'site', row 6 first; drop these rows"),
        (FULL + "inf,m,1,b\n", ASK, "t.csv: row 6, column 'age' is infinite; write a number, or nothing where unknown"),
        (
            HEAD + "".join(f",m,{k % 2},a\n" for k in range(9)),
            ASK,
            "t.csv: no training sample has a value in 'age'; leave it out: --set input.ignore=age",
        ),
        (
            repeated("name#,m,0,a\nname#,m,1,b\n"),
            ASK,
            "t.csv: column 'age' has more than 256 different texts (row 1: 'name0' is no number); repair it, or",
        ),
        (
            FULL + "unk,m,1,a\n6,f,0,b\nunk,f,0,a\nn k,f,0,a\n",
            ASK,
            "t.csv: column 'age' is numbers but for 3 texts ('unk', 'n k'), rows 6, 8, 9 below the header; if they "
            "stand for no value, give --set 'input.missing=unk,n k', or repair the file",
        ),
        (FULL, ASK._replace(label=("sex",), target="number"), "t.csv: label column 'sex' has 'm', which is no number"),
        (FULL, ASK._replace(label=("y", "age"), target="labels"), "label column 'age' has '2'; labels are 0 or 1"),
        (FULL, ASK._replace(label=("y", "age"), target="class"), "classes come from one label column, given 2; use"),
        (FULL, ASK._replace(test_share=0.01), "input.test_share 0.01 leaves no test sample of 5 samples at 2 clients"),
        (FULL, ASK._replace(memory=1e-8), "t.csv, 5 rows of 4 inputs, needs 6.15e-07 GiB in memory and"),
        (FULL, ASK._replace(statistics="gone.json"), "cannot read the statistics gone.json: No such file or directory"),
        (FULL, ASK._replace(test="gone.csv"), "there is no file gone.csv; give the path of a table, or a name that"),
    ],
)  # fmt: skip
def test_a_broken_csv_is_one_sentence(tmp_path: Path, content: str | bytes, ask: Input, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError) as error:
        read_own(path, ask)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_data_to_train_on_are_no_test_data(tmp_path: Path) -> None:
    path = write_csv(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"the test data are .*t\.csv, the data to train on; name others, or none"):
        read_own(path, ASK._replace(test=str(tmp_path / "folder" / ".." / "t.csv")))


def one_array(path: Path) -> None:
    np.savez(path, y=np.zeros(4))


def misnamed(path: Path) -> None:
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(4) % 2, clients=np.arange(4))


def nobody(path: Path) -> None:
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(4) % 2, client=np.array([0.0, np.nan, 1.0, 1.0]))


def broken_test(path: Path) -> None:
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(4) % 2, test_x=np.full((2, 2), np.nan), test_y=np.arange(2))


def pickled(path: Path) -> None:
    np.savez(path, x=np.array([{}, {}], dtype=object), y=np.zeros(2))


def shapes(path: Path) -> None:
    np.savez(path, x=np.zeros((4, 2)), y=np.zeros(3))


def words(path: Path) -> None:
    np.savez(path, x=np.full((4, 2), "a"), y=[0, 1, 0, 1])


def broken_image(path: Path) -> None:
    folders(path, "cat", "dog")
    (path / "dog" / "2.png").write_bytes(picture(1)[:40])


def deep_images(path: Path) -> None:
    folders(path, "cat", "dog")
    Image.new("I;16", (4, 6), 1000).save(path / "dog" / "3.png")


def float_images(path: Path) -> None:
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True)
        Image.new("F", (4, 6), 0.5).save(path / name / "1.tif")


def one_class(path: Path) -> None:
    folders(path, "cat")


def two_sizes(path: Path) -> None:
    folders(path, "cat", "dog")
    (path / "cat" / "9.png").write_bytes(picture(1, size=(5, 5)))


def loose(path: Path) -> None:
    folders(path, "cat")
    (path / "x.png").write_bytes(picture(1))


def truncated(path: Path) -> None:
    path.write_bytes(write_parquet(path.parent).read_bytes()[:-20])


def dates(path: Path) -> None:
    pq.write_table(pa.table({"when": pa.array([1, 2, 3], pa.timestamp("s")), "y": [0, 1, 0], "site": ["a"] * 3}), path)


def no_files(path: Path) -> None:
    (write_saved(path.parent) / "data-00001-of-00002.arrow").unlink()
    (path.parent / "t").rename(path)


def chosen_rows(path: Path) -> None:
    write_saved(path.parent).rename(path)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("t.sav", lambda path: path.write_text("x"), "from the ending '.sav'; tables end in .csv, .tsv, .par"),
        ("gone.csv", lambda path: None, "gone.csv; give the path of a table, or a name that `fed"),
        ("x.parquet", lambda path: path.write_bytes(b"PAR1" + bytes(99)), "cannot read x.parquet: "),
        ("x.parquet", truncated, "cannot read x.parquet: "),
        ("x.parquet", dates, "x.parquet: column 'when' is of type timestamp[ms], which is neither a number"),
        ("x.arrow", lambda path: path.write_bytes(bytes(99)), "cannot read x.arrow: "),
        ("a.npz", lambda path: path.write_bytes(b"PK" + bytes(50)), "cannot read a.npz: "),
        ("a.npz", one_array, "a.npz has no array 'x'; it has y, needed are x [n, ...] and y [n] or [n, outputs]"),
        ("a.npz", misnamed, "unknown array in a.npz 'clients' (did you mean 'client'?); known: client, test_x, test_y"),
        ("a.npz", nobody, "a.npz: 1 of 4 rows have no value in 'client', row 2 first; drop these rows"),
        ("a.npz", broken_test, "a.npz: test_x holds NaN or infinite numbers; drop or fill such samples"),
        ("a.npz", pickled, "a.npz holds pickled objects, which could run anything and are never read"),
        ("a.npz", shapes, "a.npz: x has shape (4, 2) and y (3,); needed are x [n, ...]"),
        ("a.npz", words, "a.npz: x is of type <U1, and numbers are needed"),
        ("d", broken_image, "dog/2.png: "),
        ("d", deep_images, "dog/3.png has over 8 bits a pixel; save it with 8, or give numbers as an .npz"),
        ("d", float_images, "cat/1.tif has over 8 bits a pixel; save it with 8, or give numbers as an .npz"),
        ("d", one_class, "d has images of one class only, 'cat'; there is nothing to tell apart"),
        ("d", two_sizes, "4 x 6 pixels, "),
        ("d", loose, "d has images at 2 depths; put them at class/image or client/class/image"),
        ("d", lambda path: path.mkdir(), "d holds no data set: neither folders of images by class"),
        ("d", no_files, "lacks data-00001-of-00002.arrow; save it again"),
        ("d", chosen_rows, "is a selection of rows; save it again after flatten_indices()"),
    ],
)  # fmt: skip
def test_other_broken_files_are_one_sentence(
    tmp_path: Path, name: str, write: Callable[[Path], object], said: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(UserError) as error:
        read_own(tmp_path / name, ASK._replace(client=None))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (3, "data m:f returned int; return a fedconcord.Dataset or a dict of arrays"),
        ({"x": np.zeros((4, 2))}, "m:f has no array 'y'; it has x, needed are"),
        ({"x": np.zeros((4, 2)), "y": [0, 1, 0, 1], "client": [1, 2]}, "m:f: client has shape (2,), and one value a"),
        ({"x": np.zeros((4, 2)), "y": [0, 1, 0, 1], "test_x": np.zeros((1, 3)), "test_y": [0]}, "test_x has"),
    ],
)  # fmt: skip
def test_what_a_factory_of_ones_own_returns_is_checked(found: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        checked(found, Input(), "m:f")
    assert said in str(error.value)


def test_a_new_table_must_have_the_columns_of_the_model(tmp_path: Path) -> None:
    preprocessing = read_own(write_csv(tmp_path), ASK).preprocessing
    assert preprocessing is not None
    new = tmp_path / "new.csv"
    for content, said in [
        ("age,sx\n1,m\n", "new.csv has no column 'sex' (the model's preprocessing) (did you mean 'sx'?)"),
        ("age,sex\n1,m\nold,f\n", "new.csv: row 2, column 'age': 'old' is not a number"),
    ]:
        new.write_text(content)
        with pytest.raises(UserError) as error:
            read_features(new, preprocessing)
        assert said in str(error.value)


def test_numbers_that_no_model_can_take_are_said() -> None:
    """Beyond float32 after scaling, or beyond float64 by it."""
    columns = [Number(name="age", mean=1.0, scale=1e-3, indicator=False)]
    for large in (1e37, -1e307):
        out = np.zeros((2, 1), np.float32)
        with pytest.raises(UserError, match=r"in\.csv: row 8, column 'age' is too large to be scaled"):
            apply(columns, {"age": pa.array([2.0, large])}, out, "in.csv", np.array([3, 7]))


@pytest.mark.slow
def test_a_large_file_is_streamed_in_the_memory_that_is_said(tmp_path: Path) -> None:
    """300,000 rows, 60 MB of text: the peak above the imports stays far below the file's size."""
    path = tmp_path / "large.csv"
    gen = np.random.default_rng(0)
    lines = [",".join(f"{value:.15f}" for value in row) for row in gen.random((1000, 11))]
    block = "".join(f"{line},{k % 2},s{k % 7}\n" for k, line in enumerate(lines))
    path.write_text(",".join(f"x{k}" for k in range(11)) + ",y,site\n" + block * 300)
    assert path.stat().st_size > 55e6
    program = (
        "import resource, sys; from pathlib import Path; from fedconcord.federation.data.inputs import Input;"
        "from fedconcord.federation.data.own import read_own;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "data = read_own(Path(sys.argv[1]), Input(label=('y',), client='site', memory=0.06));"
        "print(len(data.train_y), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, env=os.environ.copy()
    )
    rows, kib = map(int, done.stdout.split())
    assert rows == 240_000
    arrays = 300_000 * 11 * 4
    assert kib * 1024 < arrays + 50e6, f"peak {kib / 1024:.0f} MiB for arrays of {arrays / 2**20:.0f} MiB"
    with pytest.raises(
        UserError, match=r"large\.csv, 300000 rows of 11 inputs, needs 0\.0525 GiB in memory and input\.memory"
    ):
        read_own(path, ASK._replace(memory=0.01))
