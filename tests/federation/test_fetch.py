"""Fetching: from a server on the loopback interface, verified, continued, never outside its folder, then read."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_data import idx

from fedconcord.federation.data import fetch
from fedconcord.federation.data.fetch import PUBLISHED
from fedconcord.federation.data.pixels import fmnist, mnist
from fedconcord.federation.data.published import Download, Published, data_folder, read_numbers
from fedconcord.federation.data.uci import esr, har
from fedconcord.interface.cli.main import call
from fedconcord.study.settings.problem import problem_of
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError


class Server(NamedTuple):
    url: str
    content: dict[str, bytes]
    asked: list[tuple[str, str | None]]  # path and Range of each request
    cut: dict[str, int]  # bytes after which a path's connection ends; once


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    content: dict[str, bytes] = {}
    asked: list[tuple[str, str | None]] = []
    cut: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            asked.append((self.path, wanted))
            data = content.get(self.path)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and "norange" not in self.path else 0
            if data is None:
                self.send_error(404)
            elif start >= len(data) > 0:
                self.send_error(416)
            else:
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                self.wfile.write(data[start : cut.pop(self.path, len(data))])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield Server(f"http://127.0.0.1:{http.server_port}", content, asked, cut)
        http.shutdown()
        thread.join()


def md5(data: bytes) -> str:
    return f"md5:{hashlib.md5(data).hexdigest()}"


def publish(
    monkeypatch: pytest.MonkeyPatch, server: Server, name: str, *given: tuple[str, bytes, dict[str, str]], **more: Any
) -> None:
    """A data set `name` of (path on the server, its bytes, the files made of it)."""
    downloads = []
    for path, data, made in given:
        server.content[path] = data
        downloads.append(Download((server.url + path,), md5(data), made)._replace(**more))
    monkeypatch.setitem(PUBLISHED, name, Published(name, "", name, (), tuple(downloads)))


def archive(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in members.items():
            made.writestr(name, data)
    return out.getvalue()


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# -- what is published ---------------------------------------------------------------------------------------------


def test_every_checksum_has_the_form_of_one_and_every_path_stays_below() -> None:
    lengths = {"md5": 32, "sha256": 64}
    for published in PUBLISHED.values():
        for download in published.downloads:
            if download.checksum is not None:
                kind, _, digits = download.checksum.partition(":")
                assert len(digits) == lengths[kind]
                assert set(digits) <= set("0123456789abcdef")
            for path in download.files:
                assert not Path(path).is_absolute()
                assert ".." not in Path(path).parts
            assert all(url.startswith(("https://", "http://fashion-mnist")) for url in download.urls)


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_land_where_the_data_set_looks(name: str, tmp_path: Path) -> None:
    """The sentence about missing files names the folder and the files that fetch would make."""
    from fedconcord.federation.data import DATASETS

    with pytest.raises(UserError) as error:
        DATASETS[name](tmp_path, 0)
    text = str(error.value)
    assert f"`fedconcord data fetch {name}`" in text
    for download in PUBLISHED[name].downloads:
        for path in download.files:
            inside = Path(path).relative_to(Path(path).parts[0])
            assert str(tmp_path / Path(path).parts[0]) in text
            assert str(inside) in text


# -- fetching ------------------------------------------------------------------------------------------------------


def small_mnist(monkeypatch: pytest.MonkeyPatch, server: Server) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays, given = {}, []
    for split, n in (("train", 5), ("t10k", 3)):
        arrays[f"{split}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 28, 28))
        arrays[f"{split}-labels-idx1-ubyte"] = np.arange(n)
    for name, array in arrays.items():
        given.append((f"/mnist/{name}.gz", gzip.compress(idx(array)), {f"mnist/{name}.gz": ""}))
    publish(monkeypatch, server, "mnist", *given)
    return arrays


def test_mnist_by_the_command(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = small_mnist(monkeypatch, server)
    assert call(["data", "fetch", "mnist", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count(": verified\n") == 4
    assert said.out.endswith(f"mnist: in {tmp_path / 'mnist'}; use it with --data mnist\n")
    assert tree(tmp_path) == {f"mnist/{name}.gz" for name in arrays}  # no .part, no .tmp
    assert mnist(tmp_path, 0).test_y.tolist() == [0, 1, 2]
    asked = len(server.asked)
    assert call(["data", "fetch", "mnist", "--data-dir", str(tmp_path)]) == 0
    assert len(server.asked) == asked  # all there
    assert call(["data", "fetch", "mnist", "--again", "--data-dir", str(tmp_path)]) == 0
    assert len(server.asked) == asked + 4
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert call(["data", "fetch", "mnist", "--data-dir", str(tmp_path)]) == 0
    assert server.asked[asked + 4 :] == [("/mnist/t10k-labels-idx1-ubyte.gz", None)]


def test_wrong_checksum(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    publish(monkeypatch, server, "toy", ("/toy.bin", b"right", {"toy/toy.bin": ""}))
    server.content["/toy.bin"] = b"wrong"
    with pytest.raises(UserError) as error:
        fetch.fetch("toy", tmp_path)
    text = str(error.value)
    assert "\n" not in text
    assert hashlib.md5(b"wrong").hexdigest() in text
    assert hashlib.md5(b"right").hexdigest() in text
    assert tree(tmp_path) == set()
    server.content["/toy.bin"] = b"right"
    assert fetch.fetch("toy", tmp_path)[0].read_bytes() == b"right"


def test_a_wrong_file_never_replaces_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path
) -> None:
    publish(monkeypatch, server, "toy", ("/toy.bin", b"right", {"toy/toy.bin": ""}))
    (path,) = fetch.fetch("toy", tmp_path)
    server.content["/toy.bin"] = b"wrong"
    with pytest.raises(UserError):
        fetch.fetch("toy", tmp_path, again=True)
    assert path.read_bytes() == b"right"


@pytest.mark.parametrize("path", ["/big.bin", "/norange/big.bin"])
def test_an_interrupted_download_is_continued(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path, path: str
) -> None:
    """Where the server can (206) only the rest is asked for; where it cannot (200) all comes again."""
    data = np.random.default_rng(0).bytes(1_000_000)
    publish(monkeypatch, server, "big", (path, data, {"big/big.bin": ""}))
    server.cut[path] = 600_000
    with pytest.raises(UserError, match=r"after 600000 of 1000000 bytes[^\n]*; try again, which continues"):
        fetch.fetch("big", tmp_path)
    assert tree(tmp_path) == {"big/big.bin.part"}
    assert (tmp_path / "big" / "big.bin.part").stat().st_size == 600_000
    seen: list[tuple[str, int, int | None]] = []
    fetch.fetch("big", tmp_path, progress=lambda *what: seen.append(what))
    assert server.asked == [(path, None), (path, "bytes=600000-")]
    assert seen[-1] == ("big.bin", 1_000_000, 1_000_000)
    assert seen[0][1] > (600_000 if path == "/big.bin" else 0)
    assert tree(tmp_path) == {"big/big.bin"}
    assert (tmp_path / "big" / "big.bin").read_bytes() == data


def test_a_whole_part_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    """A stop between the last byte and the checksum: the server has nothing more (416), and the sum decides."""
    publish(monkeypatch, server, "toy", ("/toy.bin", b"right", {"toy/toy.bin": ""}))
    part = tmp_path / "toy" / "toy.bin.part"
    part.parent.mkdir()
    part.write_bytes(b"right")
    assert fetch.fetch("toy", tmp_path)[0].read_bytes() == b"right"
    part.write_bytes(b"wrong")
    with pytest.raises(UserError, match="MD5"):
        fetch.fetch("toy", tmp_path, again=True)
    assert not part.exists()


def test_the_second_url_where_the_first_fails(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    server.content["/b/toy.bin"] = b"right"
    urls = (f"{server.url}/a/toy.bin", f"{server.url}/b/toy.bin")
    download = Download(urls, md5(b"right"), {"toy/toy.bin": ""})
    monkeypatch.setitem(PUBLISHED, "toy", Published("toy", "", "toy", (), (download,)))
    assert fetch.fetch("toy", tmp_path)[0].read_bytes() == b"right"
    del server.content["/b/toy.bin"]
    with pytest.raises(UserError, match=r"^cannot fetch toy.bin \(http[^\n]*/a/toy.bin: HTTP 404; [^\n]*/b/[^\n]*404"):
        fetch.fetch("toy", tmp_path, again=True)


@pytest.mark.parametrize("where", ["server", "folder"])
def test_mirror(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path, where: str) -> None:
    """A copy elsewhere, also in a folder; the checksum stays the publisher's."""
    publish(monkeypatch, server, "toy", ("/gone/toy.bin", b"right", {"toy/toy.bin": ""}))
    server.content["/copy/toy.bin"] = server.content.pop("/gone/toy.bin")
    (tmp_path / "toy.bin").write_bytes(b"right")
    mirror = f"{server.url}/copy/" if where == "server" else tmp_path.as_uri()
    assert fetch.fetch("toy", tmp_path / "data", mirror=mirror)[0].read_bytes() == b"right"


def test_trust_on_first_use(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    publish(monkeypatch, server, "toy", ("/toy.csv", b"first", {"toy/toy.csv": ""}), checksum=None)
    said: list[str] = []
    fetch.fetch("toy", tmp_path, say=said.append)
    sum_ = hashlib.sha256(b"first").hexdigest()
    assert sum_ in said[0]
    assert "trusted" in said[0]
    kept = tmp_path / "toy" / "toy.csv.sha256"
    assert kept.read_text() == f"{sum_}  toy.csv\n"  # as sha256sum writes and checks it
    fetch.fetch("toy", tmp_path, again=True)
    server.content["/toy.csv"] = b"other"
    with pytest.raises(UserError, match=rf"that of the first time, in {kept}, which you may delete, is {sum_}"):
        fetch.fetch("toy", tmp_path, again=True)
    assert (tmp_path / "toy" / "toy.csv").read_bytes() == b"first"
    kept.unlink()
    assert fetch.fetch("toy", tmp_path, again=True)[0].read_bytes() == b"other"


# -- archives ------------------------------------------------------------------------------------------------------


def test_only_named_members_are_written(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    """Members with other names, absolute, above the folder or links, are left where they are."""
    folder = tmp_path / "data"
    evil = {"../evil": b"x", str(tmp_path / "evil"): b"x", "a/../../evil": b"x", "a/extra.bin": b"x"}
    data = archive({**evil, "a/one.bin": b"1", "a/two.bin": b"2"}, {"a/link": "/etc/passwd"})
    publish(monkeypatch, server, "toy", ("/toy.tar.gz", data, {"a/one.bin": "a/one.bin", "a/two.bin": "a/two.bin"}))
    assert [path.read_bytes() for path in fetch.fetch("toy", folder)] == [b"1", b"2"]
    assert tree(tmp_path) == {"data/a/one.bin", "data/a/two.bin"}


def test_a_link_in_place_of_a_member_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path
) -> None:
    data = archive({}, {"a/one.bin": "/etc/passwd"})
    publish(monkeypatch, server, "toy", ("/toy.tar.gz", data, {"a/one.bin": "a/one.bin"}))
    with pytest.raises(UserError, match="is not the archive that was published"):
        fetch.fetch("toy", tmp_path)
    assert tree(tmp_path) == set()


BIG = np.random.default_rng(0).bytes(9999)


@pytest.mark.parametrize(
    "data",
    [b"<html>", archive({"b": b""}), archive({"a/one.bin": BIG})[:5000], zipped({})],
    ids=["no archive", "another", "cut", "empty"],
)
def test_other_archives_are_refused(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path, data: bytes
) -> None:
    publish(monkeypatch, server, "toy", ("/toy.tar.gz", data, {"a/one.bin": "a/one.bin"}))
    with pytest.raises(UserError, match=r"^toy.tar.gz is not the archive that was published: [^\n]*; it is deleted$"):
        fetch.fetch("toy", tmp_path)
    assert tree(tmp_path) == set()


# -- HAR and ESR, in their published forms -------------------------------------------------------------------------


def har_files(train: int = 12, test: int = 5) -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    files = {}
    for split, n in (("train", train), ("test", test)):
        x = rng.uniform(-1, 1, (n, 561))
        rows = "\n".join(" " + " ".join(f"{value: .7e}" for value in row) for row in x)
        files[f"{split}/X_{split}.txt"] = (rows + "\n").encode()
        files[f"{split}/y_{split}.txt"] = "".join(f"{1 + k % 6}\n" for k in range(n)).encode()
        files[f"{split}/subject_{split}.txt"] = "".join(f"{(27, 3, 8)[k % 3]}\n" for k in range(n)).encode()
    return files


def test_har_archive_in_archive(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    members = har_files()
    inner = zipped({f"UCI HAR Dataset/{name}": data for name, data in members.items()})
    data = zipped({"UCI HAR Dataset.names": b"", "UCI HAR Dataset.zip": inner})
    (download,) = PUBLISHED["har"].downloads
    url = f"{server.url}/human+activity.zip"
    server.content["/human+activity.zip"] = data
    sum_ = f"sha256:{hashlib.sha256(data).hexdigest()}"
    download = download._replace(urls=(url,), checksum=sum_)
    monkeypatch.setitem(PUBLISHED, "har", PUBLISHED["har"]._replace(downloads=(download,)))
    fetch.fetch("har", tmp_path)
    got = har(tmp_path, 0)
    assert (got.train_x.shape, got.test_x.shape, got.train_x.dtype) == ((12, 561), (5, 561), np.float32)
    np.testing.assert_allclose(got.train_x, np.random.default_rng(1).uniform(-1, 1, (12, 561)), atol=1e-6)
    assert got.train_y.tolist() == [k % 6 for k in range(12)]
    assert got.client_names == ["person 3", "person 8", "person 27"]
    assert got.natural is not None
    assert [part.tolist() for part in got.natural] == [[1, 4, 7, 10], [2, 5, 8, 11], [0, 3, 6, 9]]


def test_har_persons_are_the_clients_of_a_run(tmp_path: Path) -> None:
    for path, data in har_files().items():
        (tmp_path / "UCI HAR Dataset" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "UCI HAR Dataset" / path).write_bytes(data)
    given = {"data": "har", "data_dir": str(tmp_path), "partition": "natural", "model": "logreg"}
    found = resolve_run(from_nested(given, "here"))
    assert (found.clients, found.cohort) == (3, 3)
    assert problem_of(found).roster.sizes.tolist() == [4, 4, 4]
    with pytest.raises(UserError, match=r"^data har has 3 clients, given clients 5; leave clients out$"):
        resolve_run(from_nested({**given, "clients": 5}, "here"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train/X_train.txt", b"1.0 2.0\n", "2 columns, the published file 561"),
        ("train/X_train.txt", b"", "0 columns"),
        ("train/X_train.txt", b"1.0 two\n", "two"),
        ("train/y_train.txt", b"7\n" * 12, "labels from 7 to 7, the published are 1 to 6"),
        ("test/y_test.txt", b"1\n", "1 labels for 5 samples"),
        ("train/subject_train.txt", b"1\n", "1 lines for 12 samples"),
        ("train/y_train.txt", b"nan\n" * 12, "not finite"),
    ],
)
def test_har_damaged(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    for path, data in {**har_files(), name: content}.items():
        (tmp_path / "UCI HAR Dataset" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "UCI HAR Dataset" / path).write_bytes(data)
    with pytest.raises(UserError) as error:
        har(tmp_path, 0)
    assert str(error.value).startswith(f"cannot read {tmp_path / 'UCI HAR Dataset' / name}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def esr_file(rows: int = 50) -> bytes:
    x = np.random.default_rng(2).integers(-1885, 2048, (rows, 178))
    lines = [",".join(['""', *(f'"X{k}"' for k in range(1, 179)), '"y"'])]
    lines += [",".join([f'"X{i}.V1.791"', *map(str, row), str(1 + i % 5)]) for i, row in enumerate(x)]
    return "\n".join(lines).encode() + b"\n"


def test_esr(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    (download,) = PUBLISHED["esr"].downloads
    server.content["/data.csv"] = esr_file()
    download = download._replace(urls=(f"{server.url}/data.csv",))
    monkeypatch.setitem(PUBLISHED, "esr", PUBLISHED["esr"]._replace(downloads=(download,)))
    fetch.fetch("esr", tmp_path)
    got = esr(tmp_path, 0)
    assert (got.train_x.shape, got.test_x.shape, got.train_x.dtype) == ((40, 178), (10, 178), np.float32)
    np.testing.assert_allclose(got.train_x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(got.train_x.std(axis=0), 1, atol=1e-5)
    raw = np.random.default_rng(2).integers(-1885, 2048, (50, 178))
    assert got.preprocessing is not None
    back = np.concatenate([got.train_x, got.test_x]) * got.preprocessing["std"] + got.preprocessing["mean"]
    order = [int(np.abs(raw - row).sum(axis=1).argmin()) for row in back]
    assert sorted(order) == list(range(50))  # a split
    assert order != list(range(50))  # shuffled
    assert [i % 5 for i in order] == [*got.train_y, *got.test_y]
    assert np.array_equal(esr(tmp_path, 7).test_x, got.test_x)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 columns"),
        (esr_file().replace(b",1\n", b",6\n"), "labels from 2 to 6"),
        (b"a,b\n1,2\n", "column"),
        (esr_file()[:-5], "column"),
        (b"\xff\xfe" * 100, "decode"),
    ],
)
def test_esr_damaged(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "esr").mkdir()
    (tmp_path / "esr" / "data.csv").write_bytes(content)
    with pytest.raises(UserError) as error:
        esr(tmp_path, 0)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_read_numbers_skips(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("h,a,b\nx,1,2\ny,3,4\n")
    assert read_numbers(tmp_path / "t", 2, ",", (1, 1)).tolist() == [[1, 2], [3, 4]]


# -- the command ---------------------------------------------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fedconcord", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_the_command_refuses_what_is_not_as_published(server: Server, tmp_path: Path) -> None:
    """The real entry: the published MD5 is not that of a mirror's other file."""
    server.content["/train-images-idx3-ubyte.gz"] = b"not MNIST"
    code, said, complained = command("data", "fetch", "mnist", "--data-dir", tmp_path, "--mirror", server.url)
    assert (code, said) == (2, "")
    assert complained.startswith(
        f"error: train-images-idx3-ubyte.gz has the MD5 {hashlib.md5(b'not MNIST').hexdigest()}"
    )
    assert "f68b3c2dcbeaaa9fbdd348bbdeb94873" in complained
    assert complained.count("\n") == 1
    assert tree(tmp_path) == set()


def test_the_list(tmp_path: Path) -> None:
    code, said, complained = command("data", "fetch", "--list", "--data-dir", tmp_path)
    assert (code, complained) == (0, "")
    for name in PUBLISHED:
        assert f"{name}: not there, in {tmp_path}\n" in said
    assert "no checksum is known" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["fetch", "cifar"],
            "unknown publisher's data set 'cifar' (did you mean 'cifar10'?); known: cifar10, cifar100",
        ),
        (["fetch"], "data fetch needs a name: mnist, fmnist, cifar10, cifar100, har, esr; --list says more"),
        (["ftch"], "unknown command 'ftch' (did you mean 'fetch'?)"),
        (["fetch", "mnist", "--mirror", "nowhere"], "unknown url type"),
        (["fetch", "mnist", "--mirror", "nowhere"], "or copy it into PLACE/mnist"),
        (["fetch", "cifar10", "--mirror", "nowhere"], "or copy what it unpacks to into PLACE/cifar-10-batches-bin"),
    ],
)
def test_mistakes(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCONCORD_DATA", str(tmp_path))
    assert call(["data", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert says.replace("PLACE", str(tmp_path)) in said.err
    assert said.err.count("\n") == 1


def test_data_alone_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["data"]) == 0
    assert "fetch" in capsys.readouterr().out


def test_files_that_lie_there_are_those_that_were_published_however_packed(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Debian's package has Fashion-MNIST: packed anew, below the system's folder, and looked for there by itself."""
    system, cache = tmp_path / "system", tmp_path / "cache"
    system.mkdir()
    for path in (data_dir / "fmnist").glob("*-ubyte.gz"):
        content = gzip.decompress(path.read_bytes())
        if "images" in path.name:
            (system / path.name.removesuffix(".gz")).write_bytes(content)
        else:
            (system / path.name).write_bytes(gzip.compress(content, 1))
            assert (system / path.name).read_bytes() != path.read_bytes()
    readers = sys.modules["fedconcord.federation.data.pixels"]
    monkeypatch.setattr(readers, "FMNIST", PUBLISHED["fmnist"]._replace(system=system))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("FEDCONCORD_DATA", raising=False)
    assert len(fmnist(data_folder(None), 0).train_y) == 60_000
    with pytest.raises(UserError, match="needs the files"):  # who names a folder means that one
        fmnist(tmp_path / "named", 0)
    (cache / "fedconcord" / "data").mkdir(parents=True)
    (cache / "fedconcord" / "data" / "fmnist").symlink_to(system)
    for path in system.glob("*-images-*"):
        packed = gzip.compress(path.read_bytes(), 1)
        path.unlink()
        path.with_name(f"{path.name}.gz").write_bytes(packed)
    assert call(["data", "fetch", "fmnist"]) == 0  # nothing is fetched: what is there is as published
    labels = system / "t10k-labels-idx1-ubyte.gz"
    wrong = bytearray(gzip.decompress(labels.read_bytes()))
    wrong[100] = (wrong[100] + 1) % 10
    labels.write_bytes(gzip.compress(bytes(wrong)))
    with pytest.raises(UserError, match=r"it unpacks to SHA-256 \w+, the published t10k-labels-idx1-ubyte is 0402a96d"):
        fmnist(data_folder(None), 0)
    capsys.readouterr()
    assert call(["data", "fetch", "fmnist"]) == 2
    assert "delete the file and fetch it again" in capsys.readouterr().err
