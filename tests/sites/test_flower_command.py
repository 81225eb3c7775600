"""`fedconcord flower`: keys, app and refusals without processes; trials with a real SuperLink and real SuperNodes."""

from __future__ import annotations

import base64
import csv
import datetime
import importlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from safetensors.numpy import load_file

from fedconcord.execution.run.interrupts import heeded
from fedconcord.interface.cli.main import call
from fedconcord.support.errors import UserError
from fedconcord_flower import app, commands, keys
from fedconcord_flower.processes import Processes, environment, free_port, last_lines
from fedconcord_sites import ring
from hostile import kill

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
COMMAND = [sys.executable, "-m", "fedconcord", "flower"]
JOB = """
method = "scaffold"
model = "logreg"
rounds = 2
clients = 2
engine.dtype = "float64"
local.lr = 0.05
input.label = "ill"
"""
LIMIT = 540  # seconds, less than pytest gives a test, so that what processes said is printed


@pytest.fixture
def alone() -> Iterator[None]:
    """One trial at a time on a machine: each has six processes."""
    with kill.alone():
        yield


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with job.toml and the files of two sites."""
    draw = np.random.default_rng(0)
    for name, shift in (("basel", 0.0), ("bern", 0.7)):
        x = draw.normal(shift, 1, (60, 2))
        ill = (x @ [1.0, -1.0] > 0).astype(int)
        lines = [f"{a:.4f},{b:.4f},{c}" for (a, b), c in zip(x, ill, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def flower(*arguments: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | changes
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )


Refused = Callable[..., str]


@pytest.fixture
def refused(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Calls the command in the job's folder, and gives the one sentence of its refusal."""
    monkeypatch.chdir(job)

    def of(*arguments: str) -> str:
        assert call(["flower", *arguments]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    return of


def said(out: Path) -> str:
    """All that a trial's processes said."""
    logs = sorted(out.with_name(f"{out.name}.flower").glob("logs/*.log"))
    return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-6000:]}" for log in logs)


# -- keys and certificates -----------------------------------------------------------------------------------------


def test_keys_are_made_once_and_for_their_owner_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = keys.write_server(tmp_path, ["localhost", "127.0.0.1"])
    keys.check_server(files)
    site = keys.write_site(tmp_path, "basel")
    assert keys.public_of(site) == keys.public_key(site.with_suffix(".pub"))
    known = serialization.ssh_key_fingerprint(ring.public_key(site.with_suffix(".pub")), hashes.SHA256())
    mark = f"SHA256:{base64.b64encode(known).decode().rstrip('=')}"
    assert keys.fingerprints(tmp_path) == {"basel": mark}
    assert call(["flower", "keys", "show", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"basel {mark}\n"
    assert call(["flower", "keys", "show", "--out", str(tmp_path / "empty")]) == 2
    assert "empty has no site's public key" in capsys.readouterr().err
    for secret in (files.key, site):
        assert secret.stat().st_mode & 0o077 == 0
    with pytest.raises(UserError, match="has a server's keys already"):
        keys.write_server(tmp_path, ["localhost"])
    with pytest.raises(UserError, match="is there already"):
        keys.write_site(tmp_path, "basel")


def test_wrong_files_are_named(tmp_path: Path) -> None:
    one, two = (keys.write_server(tmp_path / name, ["localhost"]) for name in "ab")
    keys.write_site(tmp_path, "basel")
    with pytest.raises(UserError, match="was not issued by"):
        keys.check_server(one._replace(authority=two.authority))
    with pytest.raises(UserError, match="is not the key of"):
        keys.check_server(one._replace(key=two.key))
    with pytest.raises(UserError, match="no site's key"):
        keys.public_of(tmp_path / "basel.pub")
    with pytest.raises(UserError, match="no site's public key"):
        keys.public_key(tmp_path / "basel.key")
    with pytest.raises(UserError, match="cannot be read"):
        keys.public_of(tmp_path / "bern.key")
    old = keys.write_server(tmp_path / "old", ["localhost"], days=0)
    time.sleep(1.1)  # a certificate's times are whole seconds
    with pytest.raises(UserError, match="expired on"):
        keys.check_server(old)


@pytest.mark.parametrize("names", [["a b"], ["../x"], ["basel", "basel"], []])
def test_names_that_sites_cannot_have(names: list[str]) -> None:
    with pytest.raises(UserError, match="site"):
        keys.check_names(names)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A TLS server's address and the folder of its keys."""
    files = keys.write_server(tmp_path / "keys", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as plain:
        plain.settimeout(0.1)

        def serve() -> None:
            while not over.is_set():
                try:
                    accepted, _ = plain.accept()
                    accepted.settimeout(5)
                    context.wrap_socket(accepted, server_side=True).close()
                except OSError:
                    continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{plain.getsockname()[1]}", tmp_path / "keys"
        over.set()
        thread.join()


def test_a_site_says_why_it_does_not_trust_or_reach_the_server(listening: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = listening
    keys.check_reachable(address, folder / "ca.crt")
    other = keys.write_server(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(UserError, match="is refused"):
        keys.check_reachable(address, other.authority)
    with pytest.raises(UserError, match="is refused"):  # the certificate is for an address, not for this name
        keys.check_reachable(address.replace("127.0.0.1", "localhost"), folder / "ca.crt")
    with pytest.raises(UserError, match="no server answers at 127"):
        keys.check_reachable(f"127.0.0.1:{free_port()}", folder / "ca.crt")
    with pytest.raises(UserError, match="host:port"):
        keys.check_reachable("server", folder / "ca.crt")


def test_the_command_of_a_site_ends_in_a_sentence(job: Path, listening: tuple[str, Path], refused: Refused) -> None:
    address, folder = listening
    start = ("site", "basel", "--server", address, "--keys", str(folder), "--data")
    assert "basel.key cannot be read" in refused(*start, "basel.csv")
    keys.write_site(folder, "basel")
    assert "there is no file chur.csv" in refused(*start, "chur.csv")
    (folder / "ca.crt").write_bytes(keys.write_server(job / "old", ["127.0.0.1"], days=0).authority.read_bytes())
    time.sleep(1.1)
    assert "ca.crt expired on" in refused(*start, "basel.csv")


def test_without_flower_a_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fedconcord_flower.grid", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(UserError, match=r"pip install 'fedconcord\[flower\]'"):
        importlib.import_module("fedconcord_flower.grid")


# -- the app -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of the package that Flower bundles with
def test_an_app_is_one_that_flower_takes(job: Path, refused: Refused) -> None:
    """Its bundle has every file, and both halves load."""
    from flwr.cli.build import build_fab_from_disk  # what `flwr run` and `flwr build` call
    from flwr.clientapp import ClientApp
    from flwr.common.config import validate_config
    from flwr.serverapp import ServerApp
    from flwr.supercore.object_ref import load_app

    assert call(["flower", "new", "team", "--config", "job.toml", "--sites", "basel,bern", "--rounds", "7"]) == 0
    folder = job / "team"
    config = tomllib.loads((folder / "pyproject.toml").read_text())
    assert validate_config(config, check_module=True, project_dir=folder)[:2] == (True, [])
    assert config["tool"]["flwr"]["app"]["config"]["sites"] == "basel,bern"
    assert tomllib.loads((folder / app.PACKAGE / "job.toml").read_text())["rounds"] == 7
    parts = config["tool"]["flwr"]["app"]["components"]
    for half, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        assert isinstance(load_app(parts[half], RuntimeError, folder), kind)
    bundle = build_fab_from_disk(folder)
    for name in ("job.toml", "server_app.py", "client_app.py", "__init__.py"):
        assert f"{app.PACKAGE}/{name}".encode() in bundle
    assert "flwr run" in (folder / "README.md").read_text()
    assert "is there already" in refused("new", "team", "--config", "job.toml", "--sites", "basel")


def test_what_cannot_be_tried_is_refused_before_anything_starts(job: Path, refused: Refused) -> None:
    base = ("try", "--config", "job.toml")
    assert "there is no file chur.csv" in refused(*base, "--sites", "basel.csv,chur.csv")
    assert "exclude each other" in refused(*base, "--sites", "basel.csv", "--clients", "2")
    assert "no trial to continue" in refused("try", "--resume", "run", "--sites", "basel.csv")
    assert "dropout is for simulations" in refused(*base, "--sites", "basel.csv", "--set", "dropout=0.1")
    assert {path.name for path in job.iterdir()} == {"basel.csv", "bern.csv", "job.toml"}


def test_a_trial_removes_what_a_killed_one_left_half_written(tmp_path: Path) -> None:
    from fedconcord_flower import trial

    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    left, own = (tmp_path / "run.flower" / "1" / f".job.toml.{number}.tmp" for number in (killed.pid, os.getpid()))
    left.parent.mkdir(parents=True)
    for path in (left, own):
        path.write_text("half")
    gone = trial.Member("basel", tmp_path / "basel.csv", later=True)
    with pytest.raises(UserError, match=r"basel\.csv"):
        trial.run(trial.Trial(JOB, [gone], tmp_path / "run", tmp_path / "run.flower", 1, 1, False), lambda event: None)
    assert not left.exists()
    assert own.exists()  # of a process that lives


def test_check_names_the_site_and_the_difference(
    job: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ("check", "--config", "job.toml", "--sites", "basel.csv,bern.csv")
    assert call(["flower", *base]) == 0
    assert capsys.readouterr().out.endswith("\n2 sites can begin this job\n")
    text = (job / "bern.csv").read_text()
    (job / "bern.csv").write_text(text.replace("dose", "Dose", 1))
    assert call(["flower", *base]) == 2
    assert "site bern lacks the column 'dose'" in capsys.readouterr().err


def test_a_supernode_forgets_old_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own state would keep each with its logs for ever, and look through all of them for every message."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    from fedconcord_flower import grid

    monkeypatch.setattr(InMemoryNodeState, "finish_task", grid.forgetting(InMemoryNodeState.finish_task))
    state = InMemoryNodeState(InMemoryObjectStore())
    state.set_node_id(1)
    for _ in range(3 * grid.TASKS):
        task = state.create_task(TaskType.CLIENT_APP, 7, "00")
        assert task is not None
        assert state.finish_task(task, "failed", "")
        assert [one.task_id for one in state.get_tasks(task_ids=[task])] == [task]
    assert len(state.task_store) == grid.TASKS


@pytest.mark.slow
def test_a_place_that_does_not_answer_keeps_no_other_waiting(tmp_path: Path) -> None:
    """A SuperNode that hangs has the question of its worker open; the others' tasks are fetched all the same."""
    times: list[float] = []

    class Heard(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            times.append(time.monotonic())
            self.send_error(503)

        def log_message(self, *said: object) -> None:
            pass

    with socket.create_server(("127.0.0.1", 0)) as hangs, HTTPServer(("127.0.0.1", 0), Heard) as answers:
        threading.Thread(target=answers.serve_forever, daemon=True).start()
        ports = [hangs.getsockname()[1], answers.server_port]
        commands.write_runtimes(tmp_path / "runtimes.json", None, ports)
        with Processes(tmp_path / "logs", environment(tmp_path)) as processes:
            processes.start("worker", commands.worker_command(tmp_path / "runtimes.json"))
            end = time.monotonic() + 120
            while len(times) < 4:
                assert time.monotonic() < end, processes.states()
                time.sleep(0.05)
            commands.write_runtimes(tmp_path / "runtimes.json", None, ports[:1])
            while times[-1] > time.monotonic() - 3:  # nobody asks any more where nothing is
                assert time.monotonic() < end
                time.sleep(0.05)
        answers.shutdown()


# -- processes -----------------------------------------------------------------------------------------------------


def test_processes_end_with_their_starter_even_by_kill(tmp_path: Path) -> None:
    """A child and its own child, after kill -9 of who started them."""
    inner = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    )
    inner += "print(p.pid, flush=True); time.sleep(600)"
    outer = (
        "import sys, time; from pathlib import Path; from fedconcord_flower.processes import *\n"
        f"with Processes(Path({str(tmp_path)!r}), environment(Path('home'))) as processes:\n"
        f"    processes.start('one', [sys.executable, '-c', {inner!r}])\n"
        "    print(processes.started['one'].process.pid, flush=True); time.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    while not (lines := last_lines(tmp_path / "one.log")):
        time.sleep(0.05)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    for pid in (child, int(lines[0])):
        end = time.monotonic() + 60
        while alive(pid):
            assert time.monotonic() < end, f"{pid} is still there"
            time.sleep(0.05)
    starter.stdout.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_ends_early_is_known_with_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path, environment(tmp_path)) as processes:
        processes.start("one", [sys.executable, "-c", "print('no port'); raise SystemExit(3)"])
        while not (ended := processes.ended()):
            time.sleep(0.02)
        assert (ended[0].name, ended[0].code, list(ended[0].lines)) == ("one", 3, ["no port"])
        assert ended[0].log.stat().st_mode & 0o077 == 0
        assert "one ended with exit code 3, last line 'no port'" in processes.states()


@pytest.mark.skipif(
    subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode != 0 if which("unshare") else True,
    reason="a process without a network takes root, and unshare",
)
def test_a_machine_that_cannot_reach_itself_is_said() -> None:
    script = "from fedconcord_flower.processes import check_loopback; check_loopback()"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    done = subprocess.run(["unshare", "-n", sys.executable, "-c", script], capture_output=True, text=True)
    assert "cannot reach each other at 127.0.0.1 (Network is unreachable), as a trial needs" in done.stderr


def test_environment_leads_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "FLWR_HOME", "FLWR_DATABASE", "SSL_CERT_FILE", "PYTHONWARNINGS"):
        monkeypatch.setenv(name, "elsewhere")
    found = environment(tmp_path)
    assert "elsewhere" not in found.values()
    assert found["FLWR_HOME"] == str(tmp_path)
    assert found["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)


# -- the example ---------------------------------------------------------------------------------------------------


def test_the_composed_example_fits_together() -> None:
    import yaml

    composed = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    services = composed["services"]
    sites = [name for name in services if name not in ("keys", "server", "run")]
    assert sites == ["basel", "bern", "chur"]
    for name in sites:
        command = services[name]["command"]
        assert command[:3] == ["flower", "site", name]
        assert command[command.index("--server") + 1] == "server:8443"
        assert "ports" not in services[name]
    assert "server" in services["keys"]["command"][-1]
    assert services["run"]["network_mode"] == "service:server"  # where the server lets it submit
    build = (EXAMPLE / "Dockerfile").read_text()
    assert "fedconcord[flower]" in build
    assert tomllib.loads((EXAMPLE / "job.toml").read_text())["input"]["label"]


# -- trials --------------------------------------------------------------------------------------------------------


@pytest.mark.flower
def test_a_trial_from_end_to_end(job: Path, alone: None) -> None:
    """With all that may lead processes astray: proxies, no home, another's authorities, no letters but ASCII, a long
    path, a folder that has a blank."""
    place = job / ("long " + "x" * 100)
    place.mkdir()
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    start = ("try", "--config", "job.toml", "--sites", "basel.csv,bern.csv", "--rounds", "1")
    out = place / "run"
    done = flower(
        *(*start, "--out", str(out), "--limit", str(LIMIT / 2)),
        cwd=job,
        **proxies,
        HOME="/nonexistent",
        SSL_CERT_FILE="/nonexistent",
        PYTHONIOENCODING="ascii",
        TMPDIR=str(place),
        CI="true",
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{said(out)}"
    assert json.loads((out / "run.json").read_text())["status"] == "complete"
    with open(out / "metrics.csv", newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "1"]
    names = [site["name"] for site in json.loads((out / "run.json").read_text())["sites"]]
    assert names == ["basel", "bern"]
    assert "site basel: online" in done.stdout
    assert not running(out)


def running(out: Path) -> list[str]:
    """Command lines of a trial's processes that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(out.with_name(f"{out.name}.flower")) in line and alive(int(path.parent.name)):
            found.append(line)
    return found


class Trial:
    """A running `flower try`, whose lines are read as they come."""

    def __init__(
        self, job: Path, out: Path, *more: str, sites: tuple[str, ...] = ("--sites", "basel.csv,bern.csv")
    ) -> None:
        self.out = out
        arguments = ["try", *sites, "--wait", "60", *more]
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], cwd=job, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        if any(error):  # also one that took too long
            print("".join(self.lines), said(self.out))
        self.process.kill()
        self.end()

    def until(self, text: str) -> str:
        """The line that has a text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no line has {text!r}:\n{''.join(self.lines)}\n{said(self.out)}")

    def end(self) -> int:
        """The exit code; nothing is left."""
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            self.lines += list(self.process.stdout)
            self.process.stdout.close()
        code = self.process.wait(LIMIT)
        end = time.monotonic() + 60
        while running(self.out):
            assert time.monotonic() < end, running(self.out)
            time.sleep(0.1)
        return code

    def kill(self, part: str, how: signal.Signals = signal.SIGKILL) -> None:
        """A signal to the process whose command line has this part."""
        end = time.monotonic() + LIMIT
        while not (found := [line for line in running(self.out) if part in line]):
            assert time.monotonic() < end, running(self.out)
            time.sleep(0.1)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes().replace(b"\0", b" ").decode() == found[0]:
                    os.kill(int(path.parent.name), how)
                    return
            except OSError:
                continue


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.flower
def test_nothing_is_left_of_a_trial_that_is_stopped_and_it_goes_on(job: Path, alone: None, how: signal.Signals) -> None:
    with Trial(job, job / "run", "--config", "job.toml", "--out", "run", "--rounds", "500") as trial:
        trial.until("round 2 of")
        assert len(running(trial.out)) >= 4
        trial.process.send_signal(how)
        assert trial.end() == (130 if how != signal.SIGKILL else -9), "".join(trial.lines)
    before = json.loads((job / "run" / "run.json").read_text())["rounds_done"]
    with Trial(job, job / "run", "--resume", "run", "--rounds", str(before + 3)) as again:
        again.until("results: run")
        assert again.end() == 0
    assert json.loads((job / "run" / "run.json").read_text())["rounds_done"] == before + 3


@pytest.mark.flower
def test_sites_and_the_superlink_come_and_go(job: Path, alone: None) -> None:
    """A site that comes after round 1; its SuperNode killed; the SuperLink killed, and again before the next round."""
    more = ("--config", "job.toml", "--out", "run", "--rounds", "5000", "--set", "eval.every=50")
    with Trial(job, job / "run", *more, sites=("--sites", "basel.csv", "--later", "bern.csv")) as trial:
        trial.until("round 1 of")
        trial.until("site bern joins")
        trial.kill("bern.key")
        assert "SIGKILL" in trial.until("the SuperNode of bern")
        trial.until("site bern: offline")
        trial.until("site bern: online")
        trial.until("site bern answers again")
        trial.kill("grid superlink")
        assert "superlink was killed by SIGKILL; its last lines in" in trial.until(
            "the run goes on from its last round"
        )
        trial.kill("grid superlink")
        assert trial.end() == 1
        assert "error: the process superlink was killed by SIGKILL; its last lines in" in trial.lines[-1]
    before = rounds_done(job / "run")
    with Trial(job, job / "run", "--resume", "run", "--rounds", str(before + 2)) as again:
        again.until("results: run")
        assert again.end() == 0
    assert rounds_done(job / "run") == before + 2
    assert [site["left_out"] for site in json.loads((job / "run" / "run.json").read_text())["sites"]] == [None, None]


@pytest.mark.flower
def test_nobody_waits_for_a_slow_site(job: Path, alone: None) -> None:
    """Its SuperNode stands still in mid-run: updates go on without it, and with it again."""
    more = ("--config", "job.toml", "--out", "run", "--rounds", "24", "--set", "clock=asynchronous(2)", "--cohort", "1")
    with Trial(job, job / "run", *more) as trial:
        trial.until("round 2 of")
        trial.kill("bern.key", signal.SIGSTOP)
        began = time.monotonic()
        trial.until("round 12 of")
        assert time.monotonic() - began < 130  # an exchange would have waited 60 s in each of ten rounds
        trial.kill("bern.key", signal.SIGCONT)
        trial.until("results: run")
        assert trial.end() == 0
    said_of = json.loads((job / "run" / "run.json").read_text())
    basel, bern = said_of["sites"]
    assert (said_of["status"], said_of["rounds_done"]) == ("complete", 24)
    assert (basel["missed"], bern["missed"] <= 1, bern["refused"]) == (0, True, {})  # idle, it is asked to judge
    assert basel["asked"] > bern["asked"] + 10 > 20


def rounds_done(folder: Path) -> int:
    return int(json.loads((folder / "run.json").read_text())["rounds_done"])


SHORT = ("--data", "digits", "--clients", "3", "--model", "logreg", "--method", "fedavg", "--rounds", "1")
SHORT += ("--lr", "0.1", "--batch-size", "full", "--steps", "1", "--set", "engine.dtype=float64")


@pytest.mark.flower
def test_a_private_trial(tmp_path: Path, alone: None) -> None:
    """Noise of the system's generator, as large as epsilon asks for, and said so."""
    private = ("--dp-clip", "0.1", "--epsilon", "8", "--delta", "1e-5")
    done = flower("try", *SHORT, *private, "--out", "run", "--limit", str(LIMIT / 2), cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{said(tmp_path / 'run')}"
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert done.stdout.splitlines()[-1] == "report: run/report.html"
    assert "logreg" in (tmp_path / "run" / "report.html").read_text()
    assert "operating system's generator" in about["privacy"]["generator"]
    assert about["privacy"]["epsilon"] < 8
    noise = model_of(tmp_path / "run") - simulated(tmp_path, "--dp-clip", "0.1", "--dp-noise", "0")
    expected = 0.1 * about["config"]["privacy"]["noise"] / 3  # of a mean over three sites
    assert 0.9 < noise.std() / expected < 1.1


@pytest.mark.flower
def test_a_secure_trial(tmp_path: Path, alone: None) -> None:
    """Masked sums over real processes: the model of the simulation, to what rounding may add."""
    secure = ("--set", "secure.clip=4")
    done = flower("try", *SHORT, *secure, "--out", "run", "--limit", str(LIMIT / 2), cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{said(tmp_path / 'run')}"
    sent = (tmp_path / "run.flower" / "sites" / "site-1" / "ledger.txt").read_text()
    for kind in ("keys", "dealt", "reply", "shares"):
        assert f'"answer": "{kind}"' in sent
    far = np.abs(model_of(tmp_path / "run") - simulated(tmp_path)).max()
    assert 0 < far < 3 * 4 / 2**16


@pytest.mark.flower
def test_a_trial_of_sites_with_a_policy(job: Path, alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the app is run at a site, and its ledger names the server; another job is refused on both sides."""
    options = ("--sites", "basel.csv,bern.csv", "--policy", "site.toml")
    made = flower("policy", "site.toml", "--config", "job.toml", cwd=job)
    assert made.returncode == 0, made.stderr
    done = flower("try", "--config", "job.toml", *options, "--out", "run", "--limit", str(LIMIT / 2), cwd=job)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{said(job / 'run')}"
    place = job / "run.flower" / "sites" / "bern"
    assert call(["flower", "ledger", str(place)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"{len(lines)} lines, none changed")
    assert all(" 127.0.0.1:" in line for line in lines)
    assert "-> judged" in lines[-1]
    other = flower("try", "--config", "job.toml", *options, "--lr", "0.1", "--out", "other", cwd=job)
    assert other.returncode == 2
    assert "site basel: the site refused what it was sent: the site's policy does not approve job" in other.stderr


def model_of(folder: Path) -> np.ndarray:
    return np.concatenate([leaf.ravel() for _, leaf in sorted(load_file(folder / "model.safetensors").items())])


def simulated(folder: Path, *more: str) -> np.ndarray:
    """The model of the same job on this machine alone."""
    assert call(["run", *SHORT, *more, "--set", "validation=none", "--out", str(folder / "simulated")]) == 0
    return model_of(folder / "simulated")


@pytest.mark.flower
def test_a_team_runs_server_and_sites_by_hand(job: Path, alone: None, refused: Refused) -> None:
    """keys, server, site, and `flwr run` of what `new` wrote; a site that the server does not know is told so."""
    port = str(free_port())
    home = job / "flower-home"
    for made in (("keys", "server", "--host", "127.0.0.1"), ("keys", "site", "basel"), ("keys", "site", "bern")):
        assert flower(*made, cwd=job).returncode == 0
    (job / "keys" / "bern.pub").rename(job / "bern.pub")
    (home).mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "team"\n\n[superlink.team]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = {json.dumps(str(job / "keys" / "ca.crt"))}\n'
    )
    made = flower("new", "app", "--config", "job.toml", "--sites", "basel,bern", "--out", str(job / "run"), cwd=job)
    assert made.returncode == 0, made.stderr
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([*COMMAND, *arguments], cwd=job, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    def site(name: str) -> tuple[str, ...]:
        return ("site", name, "--server", f"127.0.0.1:{port}", "--data", f"{name}.csv")

    try:
        server = start("server", "--host", "127.0.0.1", "--port", port)
        assert server.stdout is not None
        for line in server.stdout:
            if "site basel may come" in line:
                break
        else:
            pytest.fail("the server did not start")
        assert "does not know" in refused(*site("bern"))
        (job / "bern.pub").rename(job / "keys" / "bern.pub")
        for line in server.stdout:
            if "site bern may come" in line:
                break
        sites = [start(*site(name)) for name in ("basel", "bern")]
        env = environment(home) | {"FLWR_HOME": str(home)}

        def submit(*more: str) -> None:
            submitted = subprocess.run(
                [sys.executable, "-c", "from flwr.cli.app import app; app()", "run", "app", "team", *more],
                cwd=job, env=env, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert submitted.returncode == 0, submitted.stdout + submitted.stderr

        end = time.monotonic() + LIMIT
        submit("--run-config", "check=true")
        while '{"differences": []}' not in (job / "keys" / "server" / "logs" / "worker.log").read_text():
            assert time.monotonic() < end
            assert all(process.poll() is None for process in (server, *sites))
            time.sleep(0.5)
        assert not (job / "run").exists()  # nothing was trained
        submit()
        end = time.monotonic() + LIMIT
        while not finished(job / "run") and time.monotonic() < end:
            assert all(process.poll() is None for process in (server, *sites))
            time.sleep(0.5)
        logs = [*job.glob("keys/server/logs/*"), *job.glob("site-*/logs/*")]
        assert finished(job / "run"), "\n".join(f"{log}\n{log.read_text(errors='replace')[-4000:]}" for log in logs)
    finally:
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
            process.communicate(timeout=LIMIT)


def finished(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "run.json").read_text())["status"] == "complete")
    except OSError:
        return False


def test_certificates_are_valid_for_the_days_that_are_asked_for(tmp_path: Path) -> None:
    from cryptography import x509

    files = keys.write_server(tmp_path, ["localhost"], days=30)
    for path in (files.authority, files.certificate):
        end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        assert abs(end - datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)) < datetime.timedelta(
            hours=1
        )


def test_ctrl_c_is_heeded_where_a_shell_has_it_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), heeded():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_workers_load_before_their_first_task_is_there() -> None:
    """Only a fork of a real SuperNode does it, where an error is a job that never begins."""
    text = Path(app.__file__).with_name("grid.py").read_text()
    names = re.findall(r'(?:from |")(fedconcord[a-z_.]*)(?: import keys|")', text)
    assert names == ["fedconcord_sites.serve", "fedconcord_sites.site", "fedconcord.study.settings.sources"]
    assert [importlib.import_module(name) for name in names][-1].keys()
