"""Keys and certificates that are replaced or revoked: files first, then a real SuperLink with real SuperNodes."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509

from fedconcord.interface.cli.main import call
from fedconcord.support.errors import LostError, UserError
from fedconcord_flower import door, keys, rotation
from fedconcord_flower.door import Door, networks
from fedconcord_flower.processes import free_port
from fedconcord_sites import ring
from hostile import kill

LIMIT = 240  # seconds, for what takes some


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A site's folder of keys, and that of the server, which has its public key."""
    keys.write_site(tmp_path / "site", "basel")
    shutil.copytree(tmp_path / "site", tmp_path / "server", ignore=shutil.ignore_patterns("*.key"))
    return tmp_path / "site", tmp_path / "server"


def test_a_site_replaces_its_key_in_three_steps(folders: tuple[Path, Path]) -> None:
    site, server = folders
    old = keys.public_of(site / "basel.key")
    assert call(["flower", "keys", "rotate", "basel", "--out", str(site)]) == 0
    assert keys.public_of(site / "basel.key") == old  # it works on
    assert (site / "basel.key.next").stat().st_mode & 0o077 == 0
    new = keys.public_of(site / "basel.key.next")
    assert {path.name for path in site.iterdir()} == {"basel.key", "basel.pub", "basel.key.next", "basel.pub.next"}
    assert call(["flower", "keys", "accept", str(site / "basel.pub.next"), "--out", str(server)]) == 0
    assert keys.public_key(server / "basel.pub") == new
    assert keys.public_key(server / "before" / "basel.pub") == old  # let in until the new one came
    rotation.take_next(site, "basel")
    assert keys.public_of(site / "basel.key") == keys.public_key(site / "basel.pub") == new
    assert {path.name for path in site.iterdir()} == {"basel.key", "basel.pub"}
    assert (site / "basel.key").stat().st_mode & 0o077 == 0


def test_a_next_key_that_the_present_one_does_not_vouch_for_is_refused(folders: tuple[Path, Path]) -> None:
    site, server = folders
    file = rotation.rotate_site(site, "basel")
    with pytest.raises(UserError, match="is there already"):
        rotation.rotate_site(site, "basel")
    genuine = file.read_text()
    kind, key, mark = genuine.split()
    keys.write_site(site / "other", "eve")
    other = (site / "other" / "eve.pub").read_text().split()[1]
    for words in (f"{kind} {other} {mark}", f"{kind} {key}", f"{kind} {key} {mark[:-8]}AAAAAAA=", f"{kind} {key} ?"):
        file.write_text(words)
        with pytest.raises(UserError, match="is not signed by the key of basel"):
            rotation.accept(server, file)
    keys.write_site(server, "bern")
    (site / "bern.pub.next").write_text(genuine)  # another site's
    with pytest.raises(UserError, match="is not signed by the key of bern"):
        rotation.accept(server, site / "bern.pub.next")
    file.write_text(genuine)
    with pytest.raises(UserError, match=r"chur\.pub"):
        rotation.accept(server, file.rename(site / "chur.pub.next"))
    (site / "chur.pub.next").rename(file)
    rotation.accept(server, file)
    with pytest.raises(UserError, match="is not signed by the key of basel"):  # it vouched once
        rotation.accept(server, file)


def test_a_revoked_key_comes_back_in_no_way(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    site, server = folders
    old, file = keys.public_of(site / "basel.key"), rotation.rotate_site(site, "basel")
    rotation.accept(server, file)
    new = keys.public_key(server / "basel.pub")
    assert call(["flower", "keys", "revoke", "basel", "--out", str(server)]) == 0
    assert capsys.readouterr().out.count("SHA256:") == 2
    assert rotation.revoked(server) == {old, new}
    assert not [*server.glob("*.pub"), *server.glob("before/*.pub")]
    shutil.copy(site / "basel.pub", server / "basel.pub")  # by mistake, or by who stole it
    with pytest.raises(UserError, match="was revoked"):
        rotation.accept(server, file)
    assert ring.known(server, "bern", ["basel"])  # until somebody revokes it again, by its fingerprint
    assert call(["flower", "keys", "revoke", "chur", "--out", str(server)]) == 2


def test_the_servers_certificate_is_replaced_while_sites_trust_both(tmp_path: Path) -> None:
    files = keys.write_server(tmp_path, ["server.example.org"])
    old = keys.certificate(files.certificate)
    assert call(["flower", "keys", "rotate", "--out", str(tmp_path)]) == 0
    keys.check_server(files)
    assert keys.certificate(files.certificate) == old
    assert len(keys.certificates(files.authority)) == 2
    with pytest.raises(UserError, match="has a server's keys already"):
        rotation.rotate_server(tmp_path)
    both = files.authority.read_bytes()
    assert call(["flower", "keys", "switch", "--out", str(tmp_path)]) == 0
    keys.check_server(files)
    assert keys.certificate(files.certificate) != old
    kind = x509.SubjectAlternativeName
    names, same = (
        one.extensions.get_extension_for_class(kind).value for one in (old, keys.certificate(files.certificate))
    )
    assert names == same
    assert [str(name.value) for name in names] == ["server.example.org", "127.0.0.1"]  # its own processes reach it too
    assert files.key.stat().st_mode & 0o077 == 0
    assert len(keys.certificates(files.authority)) == 1
    files.authority.write_bytes(both)  # as sites have it
    keys.check_server(files)
    with pytest.raises(UserError, match=r"ca\.crt cannot be read"):
        rotation.switch_server(tmp_path)


def test_an_authority_that_expired_does_not_hide_the_next_one(tmp_path: Path) -> None:
    old, new = keys.write_server(tmp_path / "old", ["localhost"], days=0), keys.write_server(tmp_path, ["localhost"])
    time.sleep(1.1)
    new.authority.write_bytes(old.authority.read_bytes() + new.authority.read_bytes())
    keys.check_server(new)
    with pytest.raises(UserError, match="expired on"):
        keys.certificates(old.authority)


def test_a_server_without_a_door_does_not_go_on(tmp_path: Path) -> None:
    """As one of a version of Flower that builds its application elsewhere, which would let everybody submit."""
    files = keys.write_server(tmp_path, ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as bare:
        bare.socket = context.wrap_socket(bare.socket, server_side=True)
        threading.Thread(target=bare.handle_request, daemon=True).start()
        with pytest.raises(LostError, match="lets everybody submit runs; install flwr"):
            door.check(f"127.0.0.1:{bare.server_port}", files.authority)


def test_the_door_lets_operators_submit_and_sites_ask() -> None:
    front = Door(nothing, networks("10.0.0.5, 192.0.2.0/24"))
    for path in ("/v1/fleet/pull-messages", "/v1/control/list-nodes", "/health"):
        assert front.lets_in(path, "203.0.113.9")
    for path in ("/v1/control/start-run", "/v1/control/list-nodes/", "/v1/runtime/acquire-task", "/v1/fleet", "/docs",
                 "//v1/fleet/pull-messages", "/V1/fleet/x", ""):  # fmt: skip
        assert not front.lets_in(path, "203.0.113.9")
        assert not front.lets_in(path, "")
        for host in ("127.0.0.1", "::1", "10.0.0.5", "192.0.2.77", "::ffff:192.0.2.77"):
            assert front.lets_in(path, host)
    assert not front.lets_in("/v1/control/start-run", "::ffff:203.0.113.9")
    with pytest.raises(UserError, match="addresses or networks"):
        networks("example.org")


async def nothing(*order: object) -> None:
    """No application."""


# -- with real processes -------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    """One federation at a time on a machine."""
    with kill.alone():
        yield


class Started:
    """Commands that run until they are stopped, and what they say."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        line = [sys.executable, "-m", "fedconcord", "flower", *arguments]
        with open(self.place / f"{name}.out", "ab") as file:
            self.processes[name] = subprocess.Popen(line, cwd=self.place, stdout=file, stderr=subprocess.STDOUT)

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT)

    def text(self, name: str) -> str:
        return (self.place / f"{name}.out").read_text(errors="replace")


def until(true: Callable[[], object], started: Started) -> None:
    end = time.monotonic() + LIMIT
    while True:
        try:
            if true():
                return
        except LostError:
            pass
        if time.monotonic() > end:
            logs = [*started.place.rglob("*.out"), *started.place.rglob("*.log")]
            pytest.fail("\n".join(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs))
        time.sleep(0.5)


@pytest.mark.flower
def test_a_federation_replaces_and_revokes_while_it_stands(tmp_path: Path, alone: None) -> None:
    """A site's key: the old one is let in until the new one came, then refused. A revoked site is refused from its next
    request on. The server's certificate: sites that have both authorities go on."""
    from fedconcord_flower import grid

    port, folder = free_port(), tmp_path / "keys"
    address = f"127.0.0.1:{port}"
    for one in ("basel", "bern"):
        keys.write_site(folder, one)
        (tmp_path / f"{one}.csv").write_text("age,ill\n1,0\n2,1\n")
    keys.write_server(folder, ["127.0.0.1"])
    old, bern = (keys.public_of(folder / f"{one}.key") for one in ("basel", "bern"))
    started = Started(tmp_path)

    def site(name: str) -> None:
        started.start(name, "site", name, "--server", address, "--data", f"{name}.csv")

    def states() -> dict[bytes, str]:
        with closing(grid.Control(address, folder / "ca.crt")) as control:
            return control.states()

    try:
        started.start("server", "server", "--host", "127.0.0.1", "--port", str(port))
        until(lambda: len(states()) == 2, started)
        site("basel")
        site("bern")
        until(lambda: set(states().values()) == {"online"}, started)

        rotation.accept(folder, rotation.rotate_site(folder, "basel"))
        new = keys.public_of(folder / "basel.key.next")
        until(lambda: states().get(new) == "registered", started)
        time.sleep(3)
        assert states()[old] == "online"  # the old one stays
        started.stop("basel")
        site("basel")
        until(lambda: states().get(new) == "online", started)
        until(lambda: old not in states(), started)
        assert "the next key of basel" in started.text("basel")
        assert old in rotation.revoked(folder)

        rotation.revoke(folder, "bern")
        until(lambda: bern not in states(), started)
        until(lambda: "is not known to the server any more" in started.text("bern"), started)
        started.stop("bern")
        site("bern")
        assert started.processes.pop("bern").wait(LIMIT) == 2
        assert "does not know" in started.text("bern")
        assert states()[new] == "online"

        rotation.rotate_server(folder)  # the site's ca.crt is the same file, so it has both
        started.stop("basel")
        until(lambda: states().get(new) == "offline", started)
        site("basel")
        until(lambda: states().get(new) == "online", started)
        both = (folder / "ca.crt").read_bytes()
        rotation.switch_server(folder)
        (folder / "ca.crt").write_bytes(both)
        started.stop("server")
        started.start("server", "server", "--host", "127.0.0.1", "--port", str(port))
        until(lambda: states().get(new) == "online", started)  # the SuperNode that ran came back by itself
        os.kill(started.processes["basel"].pid, 0)
    finally:
        for process in [*started.processes]:
            started.stop(process)
