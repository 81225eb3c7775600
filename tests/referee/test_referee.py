"""The referee: its problem and reference against NumPy, its verdicts on programs, functions and files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import ELSEWHERE, PLANTED, answers_of

from fedconcord.support.errors import UserError
from fedconcord_referee import adapters, child, reference, spec, trajectory, verdict
from fedconcord_referee.command import app
from mutations import MUTATIONS
from pages import ROOT, steps
from tiers import tiers

PAGE = ROOT / "docs" / "referee.md"
PARAMETERS = {"norm_clip": "radius=0.3", "centred_clip": "radius=0.3"}
REFUSED = ("fedpaq", "ditto", "apfl", "pfedme")
JUDGED = [f"{name}({PARAMETERS.get(name, '')})" for name in spec.JUDGED if name not in REFUSED]


def walked(one: spec.Spec, change: Any = lambda setting: setting) -> trajectory.Trajectory:
    """The trajectory of our own code, perhaps changed."""
    path = reference.walk(change(reference.setting_of(one)))
    return trajectory.Trajectory(np.stack([after.x for after in path]))


def program(name: str) -> str:
    """A file of the page."""
    return next(step.text for step in steps(PAGE) if step.file == name)


def called(*arguments: str) -> int:
    """The command's exit code."""
    return app(args=list(arguments), standalone_mode=False) or 0


# -- the problem and the reference -------------------------------------------------------------------------------------


def gradient(one: spec.Spec, client: int, x: np.ndarray) -> np.ndarray:
    """grad f_i(x) [d] by the formulas that the spec states, as functions under judgement get it."""
    value: np.ndarray = child.gradient_of(spec.plain(one), client)(x)
    return value


@pytest.mark.parametrize("kind", spec.KINDS)
def test_the_problem_is_what_the_spec_states(kind: spec.Kind) -> None:
    one = spec.make("scaffold", kind)
    objective = spec.problem_of(one).objective
    ids = np.arange(len(one.data))
    import torch

    from fedconcord.method.step.samples import full_gradient

    ours = full_gradient(objective, torch.as_tensor(one.x0).expand(len(ids), -1), ids).numpy()
    np.testing.assert_allclose(ours, [gradient(one, i, one.x0) for i in ids], rtol=1e-12, atol=1e-14)
    at = spec.minimiser(one)
    assert np.abs(sum(p * gradient(one, i, at) for i, p in enumerate(one.p))).max() < 1e-12
    assert len({*one.sizes}) > 4
    assert len({k for r in one.rounds for k in r.steps}) > 3
    assert np.abs(one.x0).min() > 0.01


@pytest.mark.parametrize("kind", spec.KINDS)
def test_fedavg_is_the_papers_loop(kind: spec.Kind) -> None:
    one = spec.make("fedavg(weights=size)", kind)
    x = one.x0
    for r, after in zip(one.rounds, reference.reference(one), strict=True):
        ends = []
        for i, k in zip(r.clients, r.steps, strict=True):
            y = x
            for _ in range(k):
                y = y - r.lr * gradient(one, i, y)
            np.testing.assert_allclose(after.local[i], y, rtol=1e-12)
            ends.append(y)
        x = np.average(ends, axis=0, weights=one.sizes[list(r.clients)])
        np.testing.assert_allclose(after.x, x, rtol=1e-12)


@pytest.mark.parametrize("name", tiers(JUDGED, quick=("scaffold()", "afedpd()", "losac()", "median()")))
def test_every_method_is_equal_to_itself_and_its_spec_survives_a_file(name: str, tmp_path: Path) -> None:
    for kind in spec.KINDS:
        one = spec.make(name, kind, rounds=6)
        spec.write(one, tmp_path / "spec.json")
        again = spec.read(tmp_path / "spec.json")
        assert spec.plain(again) == spec.plain(one)
        judged = verdict.judge(again, walked(one))
        assert judged.kind == "equal"
        assert judged.largest < 1e-13


def test_methods_that_draw_are_refused() -> None:
    with pytest.raises(UserError, match="fedpaq rounds at random"):
        spec.make("fedpaq")
    with pytest.raises(UserError, match="ditto answers with a model a client"):
        spec.make("ditto")
    with pytest.raises(UserError, match="losac draws blocks at random"):
        spec.make("losac(blocks=3)")


# -- what it says ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    tiers(
        ["scaffold", "feddyn", "fedadmm", "fednova", "fedavgm", "fedadam", "multi_krum", "median"], quick=("feddyn",)
    ),
)
def test_every_explanation_is_found_again(name: str) -> None:
    """Each change that does something is named, or one that computes the same: no explanation hides another."""
    one = spec.make(name)
    setting, expected = reference.setting_of(one), reference.reference(one)
    tried = 0
    for known in list(verdict.explanations(setting)):
        try:
            changed = known.change(setting)
            got = None if changed is None else walked(one, lambda s, changed=changed: changed)
        except Exception:  # as `departure_of`: a change that has no meaning for this method
            continue
        if got is None or not np.isfinite(got.x).all() or verdict.compare(expected, got, one, 1e-7) is None:
            continue
        tried += 1
        if tried % (40 if name == "feddyn" else 4):  # each takes all of the others to judge
            continue
        judged = verdict.judge(one, got)
        assert known.name in (judged.name, *judged.also), known.name
    assert tried > 8


def named(names: Sequence[str], folder: Path) -> None:
    for name, (one, got) in answers_of(names, folder).items():
        judged = verdict.judge(one, got)
        assert judged.kind != "equal", name
        assert judged.name in PLANTED[name].names, (name, judged.name, judged.also)
        assert judged.agrees < 1e-12 < 1e-6 < judged.largest, name


def test_planted_errors_are_named(tmp_path: Path) -> None:
    """Three, each in a method of its own, in one copy of the package."""
    errors = ("scaffold: mean over the cohort, not over all", "fedprox: pushes away", "feddyn: sign flipped")
    named(errors, tmp_path)


def test_errors_that_touch_a_methods_equations_are_all_planted() -> None:
    rooms = ("method/algorithms/", "method/wrappers/")
    of_methods = {n for n, one in MUTATIONS.items() if any(edit.file.startswith(rooms) for edit in one.edits)}
    assert of_methods <= PLANTED.keys() | ELSEWHERE.keys()
    assert not PLANTED.keys() & ELSEWHERE.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_error_is_named(name: str, tmp_path: Path) -> None:
    named([name], tmp_path)


def test_what_nothing_explains_says_where_and_whom() -> None:
    one = spec.make("fedavg")
    path = reference.reference(one)
    x, local = np.stack([after.x for after in path]), [dict(after.local) for after in path]
    x[3:] += 1e-5  # so little that no two changes are looked for
    judged = verdict.judge(one, trajectory.Trajectory(x))
    assert (judged.kind, judged.departure.round if judged.departure else 0) == ("different", 4)
    late = one.rounds[5].clients[1]
    local[5][late] = local[5][late] + 1
    departure = verdict.compare(path, trajectory.Trajectory(np.stack([a.x for a in path]), tuple(local)), one)
    assert departure is not None
    assert (departure.round, departure.clients) == (6, (late,))


TWO = """
def client(server, own, task):
    y = server["x"].copy()
    for _ in range(task.steps):
        y -= task.lr * task.gradient(y)
    return {"x": y, "steps": task.steps}, own


def by_steps(server, messages, task):  # 3. weights by steps; and 4. momentum of another form
    x, steps = server["x"], sum(m["steps"] for m in messages)
    move = sum(m["steps"] * (m["x"] - x) for m in messages) / steps
    momentum = 0.9 * server.get("momentum", 0) + 0.1 * move
    return {"x": x + momentum, "momentum": momentum}


def once(server, messages, task):  # 1. terms that carry no gradient, in the client; and 2. x subtracted once
    x, alpha = server["x"], task.parameters["alpha"]
    h = server.get("h", 0 * x) - alpha / task.n * (sum(m["x"] for m in messages) - x)
    return {"x": sum(m["x"] for m in messages) / len(messages) - h / alpha, "h": h}


def twice(server, messages, task):  # 5. the second moment starts at 0; and 6. the server's step size is taken twice
    x, p = server["x"], task.parameters
    move = p["server_lr"] * (sum(m["x"] for m in messages) / len(messages) - x)
    m = p["beta1"] * server.get("m", 0 * x) + (1 - p["beta1"]) * move
    v = p["beta2"] * server.get("v", 0 * x) + (1 - p["beta2"]) * move**2
    return {"x": x + p["server_lr"] * m / (v**0.5 + p["tau"]), "m": m, "v": v}
"""


@pytest.mark.parametrize(
    ("method", "server", "name"),
    [
        ("fedavgm", "by_steps", "averaged momentum + weights by steps"),
        pytest.param(
            "feddyn", "once", "the server's model subtracted once + neither correction nor pull", marks=pytest.mark.slow
        ),
        pytest.param(
            "fedadam", "twice", "second moment from zero + the server's step size twice", marks=pytest.mark.slow
        ),
    ],
)
def test_two_mistakes_at_once_are_named(method: str, server: str, name: str, tmp_path: Path) -> None:
    """As packages have them: FedLab 1.3.0 the second pair, fluke 0.8.1 the third."""
    (tmp_path / "mine.py").write_text(TWO)
    one = spec.make(method)
    told: list[str] = []
    got = adapters.functions(f"{tmp_path / 'mine.py'}:client,{server}")(one)
    judged = verdict.judge(one, got, tell=told.append)
    assert (judged.kind, judged.name) == ("mistake", name)
    assert judged.agrees < 1e-12 < 1e-3 < judged.largest
    assert re.fullmatch(r"no single change explains it; looking at \d,\d{3} pairs of changes", told[0])
    assert "our reference with these changes agrees" in " ".join(verdict.sentences(one, judged))


def test_single_precision_is_told_apart() -> None:
    one = spec.make("scaffold")
    got = trajectory.Trajectory(walked(one).x.astype(np.float32).astype(np.float64))
    judged = verdict.judge(one, got)
    assert judged.kind == "different"
    assert "give --tolerance 1e-4" in " ".join(verdict.sentences(one, judged))
    assert verdict.judge(one, got, 1e-4).kind == "equal"


# -- programs, functions, files ----------------------------------------------------------------------------------------


def say(text: str) -> str:
    """A program that writes this."""
    return f"{sys.executable} -c " + json.dumps(f"import sys, time, json; spec = json.load(sys.stdin); {text}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 / 0", "failed with exit code 1 before it answered a round: ZeroDivisionError"),
        ("print(json.dumps({'x': spec['x0']}), flush=True); 1 / 0", "failed with exit code 1 in round 2 of 12"),
        ("print('hello')", "answered no JSON; .* it wrote 'hello'"),
        ("print(json.dumps({'x': [spec['x0']] * 3}))", "x has 3 rows and the spec 12 rounds"),
        ("print(json.dumps({'x': [[1, 2]] * 12}))", "x after round 1 has 2 numbers and the problem 5"),
        ("print(json.dumps({'x': [spec['x0']] * 4 + [[float('nan')] * 5] * 8}))", "x after round 5 has NaN"),
        ("print(json.dumps({'x': [['a'] * 5] * 12}))", "x after round 1 is no vector of numbers"),
        ("print(json.dumps({'y': 1}))", 'has no "x"'),
    ],
)
def test_a_broken_program_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        adapters.command(say(text))(spec.make("fedavg"))


def test_a_program_that_hangs_is_stopped() -> None:
    with pytest.raises(UserError, match=r"was stopped after 0.4 s before it answered a round"):
        adapters.command(say("time.sleep(60)"), 0.4)(spec.make("fedavg"))


@pytest.mark.slow
def test_a_program_that_hangs_leaves_no_process(tmp_path: Path) -> None:
    """It is stopped with the round, and what it started ends with it."""
    inner = f"import time, pathlib; time.sleep(2.5); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    lines = ["import json, subprocess, sys, time", "x = json.load(sys.stdin)['x0']"]
    lines += [f"subprocess.Popen([sys.executable, '-c', {inner!r}])", "print(json.dumps({'x': x}), flush=True)"]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "time.sleep(60)"]))
    with pytest.raises(UserError, match=r"mine.py was stopped after 2 s in round 2 of 12"):
        adapters.command(f"{sys.executable} {tmp_path / 'mine.py'}", 2.0)(spec.make("fedavg"))
    time.sleep(1.0)
    assert not (tmp_path / "late").exists()


def test_functions_are_judged_in_a_process_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(program("mine.py") + "\nprint('seen')\nimport sys; sys.modules['mark'] = sys\n")
    one = spec.make("scaffold")
    got = adapters.functions(f"{tmp_path / 'mine.py'}:client,server")(one)
    judged = verdict.judge(one, got)
    assert judged.name == "memory averaged over the cohort"
    assert judged.departure is not None
    assert judged.departure.clients
    assert "mark" not in sys.modules
    with pytest.raises(UserError, match="AttributeError: module 'judged' has no attribute 'servant'"):
        adapters.functions(f"{tmp_path / 'mine.py'}:client,servant")(one)
    with pytest.raises(UserError, match="there is no file"):
        adapters.functions(f"{tmp_path / 'yours.py'}:client,server")


def test_a_method_of_one_s_own_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "from fedconcord import METHODS\n\n\ndef mine(alpha: float = 0.5):\n    return METHODS['feddyn'](2 * alpha)\n"
    )
    (tmp_path / "doubling.py").write_text(text + "\n\ndef broken(a: int = 1):\n    return 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    one = spec.make("feddyn")
    judged = verdict.judge(one, adapters.own("doubling:mine")(one))
    assert (judged.kind, judged.name) == ("mistake", "alpha times 2")
    assert judged.departure is not None
    assert judged.departure.clients == one.rounds[0].clients
    assert verdict.judge(one, adapters.own("doubling:mine(alpha=0.25)")(one)).kind == "equal"
    with pytest.raises(UserError, match="ZeroDivisionError"):
        adapters.own("doubling:broken")


@pytest.mark.parametrize(
    ("rule", "text", "name"),
    [
        ("median", "np.median(rows, 0)", ""),
        ("median", "np.sort(rows, 0)[(len(rows) - 1) // 2]", "the lower middle"),
        ("norm_clip(radius=0.3)", "np.mean([r * min(1, 0.3 / np.linalg.norm(r)) for r in rows], 0)", ""),
        ("norm_clip(radius=0.3)", "np.mean([r * 0.3 / np.linalg.norm(r) for r in rows], 0)", "all of one length"),
        ("trimmed_mean", "np.sort(rows, 0)[2:-2].mean(0)", "rounded up"),
    ],
)
def test_a_rule_alone_is_judged(rule: str, text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"import numpy as np\n\n\ndef mine(rows):\n    return {text}\n")
    one = spec.make(rule)
    judged = verdict.judge(one, adapters.aggregator(f"{tmp_path / 'mine.py'}:mine")(one))
    assert (judged.name, judged.kind == "equal") == (name, name == "")


def test_a_recorded_trajectory_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, mine = str(tmp_path / "spec.json"), tmp_path / "mine.npz"
    assert called("scaffold", "--write-spec", file) == 0
    one = spec.read(Path(file))
    np.savez(mine, x=np.vstack([one.x0, walked(one).x]))  # the start before the first round may stand there
    capsys.readouterr()
    assert called("scaffold", "--spec", file, "--trajectory", str(mine), "--json") == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["badge"]["message"].startswith("equal to")
    np.savez(mine, x=walked(spec.make("fedavg")).x)
    assert called("scaffold", "--trajectory", str(mine)) == 1
    assert "computes what fedavg does" in capsys.readouterr().out
    with pytest.raises(UserError, match="is a spec of scaffold"):
        called("feddyn", "--spec", file, "--trajectory", str(mine))
    (tmp_path / "broken.json").write_text("[")
    with pytest.raises(UserError, match="cannot read the trajectory"):
        called("scaffold", "--trajectory", str(tmp_path / "broken.json"))
    with pytest.raises(UserError, match="is no spec of the referee"):
        called("scaffold", "--spec", str(tmp_path / "broken.json"), "--trajectory", str(mine))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="is no spec of the referee: it lacks 'format'"):
        called("scaffold", "--spec", str(tmp_path / "other.json"), "--trajectory", str(mine))
    with pytest.raises(
        UserError, match=r"cannot write .*nowhere.*: No such file or directory; give a file in a folder"
    ):
        called("scaffold", "--write-spec", str(tmp_path / "nowhere" / "spec.json"))


def test_the_page_has_the_words_and_a_figure(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=walked(spec.make("fedavg")).x)
    words = ("scaffold", "--trajectory", str(tmp_path / "mine.npz"), "--page")
    assert called(*words, str(tmp_path / "page.html")) == 1
    text = (tmp_path / "page.html").read_text()
    assert "it computes what fedavg does" in text
    assert "referee: scaffold | fedavg" in text
    assert text.count("<circle") == text.count("<tr><td>") == 12
    assert "http" not in text  # nothing is loaded
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', text)]
    assert heights[0] > 190  # equal in the first round, where nothing is remembered
    assert max(heights[3:]) < 60
    with pytest.raises(UserError, match=r"cannot write .*page.html: No such file"):
        called(*words, str(tmp_path / "nowhere" / "page.html"))


def test_the_command_asks_for_one_way() -> None:
    with pytest.raises(UserError, match=r"give one of --command, .* given none"):
        called("scaffold")
    with pytest.raises(UserError, match="given --command and --trajectory"):
        called("scaffold", "--command", "x", "--trajectory", "y")
    with pytest.raises(UserError, match="--tolerance must be a number > 0"):
        called("scaffold", "--command", "x", "--tolerance", "-1")


@pytest.mark.slow
def test_the_page_is_what_the_commands_say(tmp_path: Path) -> None:
    """The tutorial finds its mistake, and agrees where there is none."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    compared = 0
    for step in steps(PAGE):
        if step.file is not None:
            (tmp_path / step.file).write_text(step.text + "\n")
            continue
        code = "import sys; from fedconcord_referee.command import app; sys.exit(app(standalone_mode=False) or 0)"
        words = step.text.split(maxsplit=2)[2]
        line = f"{sys.executable} -c {json.dumps(code)} {words}"
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == (0 if "right" in words else 1), done.stderr
        numbers = re.compile(r"\d[\d.]*e[-+]\d+")
        assert numbers.sub("#", done.stdout.strip()) == numbers.sub("#", step.said or ""), step.text
        compared += 1
    assert compared == 8
