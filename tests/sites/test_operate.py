"""What administrators start from: services, health checks, logs, containers, proxy, backup."""

from __future__ import annotations

import configparser
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import which

import click
import numpy as np
import pytest
import yaml

from fedconcord.interface.cli.main import call
from fedconcord.support.errors import UserError
from fedconcord_flower import keys
from fedconcord_flower.app import write_operation
from fedconcord_flower.processes import free_port, last_lines
from fedconcord_flower.stamps import Stamped
from fedconcord_sites.serve import serve
from fedconcord_sites.site import Site

PROGRAM = "/opt/fedconcord/bin/fedconcord"
JOB = 'method = "scaffold"\nmodel = "logreg"\nrounds = {}\nclients = 2\nengine.dtype = "float64"\nlocal.lr = 0.05\n'
JOB += 'input.label = "ill"\n'
HARD = ("NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "CapabilityBoundingSet", "RestrictNamespaces")


@pytest.fixture
def operate(tmp_path: Path) -> Path:
    write_operation(tmp_path / "operate", ["basel", "bern"])
    return tmp_path / "operate"


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser


def test_every_file_is_filled_in(operate: Path) -> None:
    names = {path.name for path in operate.iterdir()}
    assert {"fedconcord-server.service", "fedconcord-site@.service", "logrotate.conf", "compose.yaml"} <= names
    for path in operate.iterdir():
        assert "__" not in path.read_text(), path
    assert "sites basel, bern" in (operate / "fedconcord-server.service").read_text()
    assert "site-basel.env" in (operate / "site.env").read_text()


def test_services_start_commands_that_are_there_with_what_their_environments_have(
    operate: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services = sorted(operate.glob("*.service"))
    assert len(services) == 4
    for path in services:
        service = unit(path)["Service"]
        program, *words = service["ExecStart"].split()
        assert program == PROGRAM
        assert words[0] == "flower"
        assert call([*words[:2], "--help"]) == 0
        options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= options, path
        env = (operate / ("server.env" if "server" in path.name else "site.env")).read_text()
        assert set(re.findall(r"\$\{(\w+)\}", service["ExecStart"])) <= set(re.findall(r"(?m)^(\w+)=", env))
        assert service["User"] == "fedconcord"
        assert [name for name in HARD if name not in service] == []
        if "health" in path.name:
            timer = unit(path.with_suffix(".timer"))
            assert timer["Timer"]["OnUnitActiveSec"] == "5min"
        else:
            assert (service["Restart"], service["StateDirectory"]) == ("on-failure", "fedconcord")
            assert unit(path)["Install"]["WantedBy"] == "multi-user.target"


def test_systemd_takes_the_units(operate: Path) -> None:
    if not which("systemd-analyze"):
        pytest.skip("systemd-analyze is not there; the units are parsed by the test above")
    for path in operate.glob("*.service"):  # it looks for programs
        path.write_text(path.read_text().replace(PROGRAM, sys.executable))
    for path in sorted([*operate.glob("*.service"), *operate.glob("*.timer")]):
        where = path.with_name(path.name.replace("@", "@basel"))
        if where != path:
            shutil.copy(path, where)
        done = subprocess.run(["systemd-analyze", "verify", str(where)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert str(operate) not in done.stderr, done.stderr  # warnings name the file


def test_containers_are_described_as_compose_wants_it(operate: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys of the compose specification that are used, and commands that are there; nothing is built here."""
    composed = yaml.safe_load((operate / "compose.yaml").read_text())
    assert set(composed) == {"x-common", "services"}
    known = {"image", "restart", "read_only", "cap_drop", "security_opt", "tmpfs", "logging", "profiles", "command"}
    known |= {"working_dir", "ports", "volumes", "healthcheck"}
    for name, service in composed["services"].items():
        assert set(service) <= known
        assert service["profiles"] == [name]
        assert set(service["healthcheck"]) <= {"test", "interval", "timeout", "start_period", "retries"}
        assert set(service["logging"]) == {"driver", "options"}
        for words in (service["command"], service["healthcheck"]["test"][2:]):
            assert all(isinstance(word, str) for word in words)
            assert call([*words[:2], "--help"]) == 0
            options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            assert {word for word in words if word.startswith("--")} <= options
    assert "ports" not in composed["services"]["site"]


def test_log_lines_begin_with_the_time() -> None:
    text = io.StringIO()
    out = Stamped(text)  # type: ignore[arg-type]
    print("one\ntwo", file=out)  # type: ignore[call-overload]
    out.write("thr")
    out.write("ee\n2026-11-27T05:13:44.032Z INFO of Flower's\n")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    assert re.fullmatch(f"{stamp}one\n{stamp}two\n{stamp}three\n{stamp}INFO of Flower's\n", text.getvalue())


def test_what_flower_prints_by_click_is_text_too() -> None:
    text = io.StringIO()
    click.echo("installed", file=Stamped(text))  # type: ignore[arg-type]
    assert text.getvalue().endswith("Z installed\n")
    with pytest.raises(TypeError):
        Stamped(text).write(b"")  # type: ignore[arg-type]


def test_a_processs_log_has_times_and_its_last_words_have_none(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    with open(log, "wb") as file:
        line = [sys.executable, "-P", "-m", "fedconcord_flower.grid", "superlink", "", "--no-such-option"]
        subprocess.run(line, stdout=file, stderr=subprocess.STDOUT, check=False, cwd=tmp_path)
    lines = log.read_text().splitlines()
    assert lines
    assert all(re.match(r"\d{4}-\d\d-\d\dT\S+Z ", one) for one in lines)
    assert "no-such-option" in last_lines(log)[-1]
    assert "T" not in last_lines(log)[-1].split()[0]


# -- health --------------------------------------------------------------------------------------------------------


def test_health_has_a_line_each_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys.write_server(tmp_path, ["127.0.0.1"], days=30)
    base = ["flower", "health", "--keys", str(tmp_path), "--folder", str(tmp_path)]
    assert call(base) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.match(r"ok ca\.crt: valid for 30 days", first)
    assert re.match(r"ok server\.crt: valid for 30 days", second)
    assert re.match(r"ok disk: [\d.]+ GB free at ", third)
    assert call([*base, "--days", "31", "--json"]) == 1
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["name"], one["ok"]) for one in said] == [("ca.crt", False), ("server.crt", False), ("disk", True)]
    assert call([*base, "--server", f"127.0.0.1:{free_port()}"]) == 1
    assert "FAILED server: no server answers at 127" in capsys.readouterr().out
    (tmp_path / "ca.crt").write_text("")
    assert call(base) == 1
    assert "ca.crt is no certificate" in capsys.readouterr().out


# -- backup --------------------------------------------------------------------------------------------------------


def federation(place: Path, rounds: int, resume: bool) -> None:
    text = JOB.format(rounds)
    sites = {name: Site(text, place / f"{name}.csv", place / "sites" / name, name) for name in ("basel", "bern")}

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        return {name: sites[name].answer(data) for name, data in messages.items()}

    serve(text, [*sites], exchange, place / "run", None, 0.0, resume)


class StopError(Exception):
    """The machine went down."""


def test_what_was_copied_while_all_stood_still_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """As docs/operations.md says: stop, copy, and put back, of server and sites together."""
    draw, here = np.random.default_rng(0), tmp_path / "here"
    here.mkdir()
    for name in ("basel", "bern"):
        lines = [f"{a:.4f},{b:.4f},{int(a > b)}" for a, b in draw.normal(size=(40, 2))]
        (here / f"{name}.csv").write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    text, asked = JOB.format(4), 0
    sites = {name: Site(text, here / f"{name}.csv", here / "sites" / name, name) for name in ("basel", "bern")}

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        nonlocal asked
        asked += 1
        if asked > 9:
            raise StopError
        return {name: sites[name].answer(data) for name, data in messages.items()}

    with pytest.raises(StopError):
        serve(text, [*sites], exchange, here / "run", None, 0.0, False)
    done = json.loads((here / "run" / "run.json").read_text())["rounds_done"]
    assert 0 < done < 4
    shutil.copytree(here, tmp_path / "backup")
    federation(here, 4, True)
    whole = (here / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(here)
    shutil.copytree(tmp_path / "backup", here)
    federation(here, 4, True)
    assert (here / "run" / "model.safetensors").read_bytes() == whole

    shutil.rmtree(here)  # without the sites' folders their part of the server's sums is gone, which they say
    shutil.copytree(tmp_path / "backup", here, ignore=shutil.ignore_patterns("row.safetensors"))
    try:
        federation(here, 4, True)
    except UserError as error:
        refusal = str(error)
    else:
        refusal = json.dumps(json.loads((here / "run" / "run.json").read_text())["sites"])
    assert "refused" in refusal
    assert not (here / "run" / "model.safetensors").exists() or (
        (here / "run" / "model.safetensors").read_bytes() != whole
    )
