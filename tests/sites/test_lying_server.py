"""Servers that lie to an honest site, by the protocol and in process. Each attack is tried on a site whose gate is
open too, where it works: what it gets otherwise is the gate's doing."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from test_deploy_core import BASE, Federation, quick_disk, text, with_, write

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.federation.data.inputs import held_out
from fedconcord.interface.cli.main import call
from fedconcord.method.contract.rng import SYSTEM
from fedconcord.support import imports
from fedconcord.support.errors import UserError
from fedconcord_flower import grid
from fedconcord_flower.outside import as_data
from fedconcord_sites import bounds, policy
from fedconcord_sites.form import source_of
from fedconcord_sites.gate import Gate
from fedconcord_sites.ledger import Ledger, epsilon_of
from fedconcord_sites.policy import USUAL, Policy, evaluations
from fedconcord_sites.serve import check
from fedconcord_sites.site import Site

__all__ = ["quick_disk"]  # a fixture
SITES, ROWS = ["basel", "bern", "chur"], 60
JOB = with_(BASE, method="fedavg", cohort=3, input={"label": ["label"], "ignore": ["name"]})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table a site: two columns of numbers, one of texts, names that the job leaves out, and labels."""
    folder, draw = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name in SITES:
        x = draw.standard_normal((ROWS, 2))
        rows = [
            [f"{u:.6f}", f"{v:.6f}", "ab"[k % 2], f"person {k}", ["no", "yes"][k % 2]] for k, (u, v) in enumerate(x)
        ]
        write(folder / f"{name}.csv", ["u", "v", "kind", "name", "label"], rows)
    return folder


@pytest.fixture(params=["closed", "open"])
def is_open(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the gate lets everything through, as sites did that had none."""
    if request.param == "open":
        for name in ("admit", "admit_model", "admit_job", "admit_columns", "release", "afford"):
            monkeypatch.setattr(Gate, name, lambda *args: None)
        for name in ("check_form", "check_orders"):
            monkeypatch.setattr(bounds, name, lambda *args: None)
    return bool(request.param == "open")


class Liar:
    """A server of one site, which has its messages to an honest server to begin with."""

    def __init__(self, job: dict[str, Any], files: Path, folder: Path, policy: Policy = USUAL) -> None:
        self.job, self.files, self.folder, self.policy = text(job), files, folder, policy
        self.honest: dict[str, Frame] = {}  # the last of each kind
        here = Federation(job, files, folder)
        here.site = self.site  # type: ignore[method-assign]

        def exchange(messages: Any, wait: float) -> Any:
            for frame in [codec.read(messages["bern"])] if "bern" in messages else []:
                self.honest[frame.kind] = frame
            return here.exchange(messages, wait)

        self.federation, self.exchange = here, exchange

    def site(self, name: str = "bern") -> Site:
        """The site, as a new process each time."""
        return Site(self.job, self.files / f"{name}.csv", self.folder / name, name, SYSTEM, self.policy, "server:1")

    def train(self) -> None:
        assert self.federation.serve(self.exchange).status == "complete"

    def ask(self, kind: str, run: int | None = None, **changes: Any) -> Frame:
        """The honest message of a kind with changes of the frame, its fields or its tensors."""
        frame = self.honest[kind]
        fields = {**frame.fields, **changes.pop("fields", {})}
        changes["kind"] = changes.pop("to", kind)
        if run is not None:
            changes["method"] = f"{run:016x}"
        return codec.read(self.site().answer(codec.write(frame._replace(fields=fields, **changes))))


@pytest.fixture
def liar(files: Path, tmp_path: Path, is_open: bool) -> Liar:
    one = Liar(JOB, files, tmp_path)
    one.train()
    return one


def refusals(answers: list[Frame]) -> list[str]:
    return [str(one.fields["why"]) for one in answers if one.kind == "refused"]


# -- every answer once -------------------------------------------------------------------------------------------------


def test_sums_over_other_rows_do_not_give_the_rows(liar: Liar, is_open: bool) -> None:
    """Attack 1: 240 numbers of the site, each of which holds out other rows, are 240 equations for its 60 rows."""
    answers = [liar.ask("sums", run=k, client=k % 120, fields={"clients": 120}) for k in range(240)]
    equations, totals = [], []
    for k, answer in enumerate(answers):
        if answer.kind == "summed":
            weight = np.ones(ROWS)
            weight[held_out(k % 120, ROWS, 0.2)] = 0
            equations.append(weight)
            totals.append(answer.tensors["columns/total"][0, 0].item())
    rebuilt = np.linalg.lstsq(np.array(equations), np.array(totals), rcond=None)[0]
    u = np.loadtxt(liar.files / "bern.csv", delimiter=",", skiprows=1, usecols=0)
    far = float(np.abs(rebuilt - u).max())
    if is_open:
        assert far < 1e-9
        return
    assert np.linalg.matrix_rank(np.array(equations)) == 1
    assert far > 0.1
    assert len(refusals(answers)) == 238  # its own number comes twice
    assert all("would hold out other rows" in why for why in refusals(answers))


def test_squares_are_about_the_sites_own_means(liar: Liar) -> None:
    """Means that the server chooses would be other questions: the site takes none."""
    first = liar.ask("squares")
    other = liar.ask("squares", tensors={"means/columns": torch.full((2,), 5.0), "means/target": torch.zeros(0)})
    u = np.loadtxt(liar.files / "bern.csv", delimiter=",", skiprows=1, usecols=0)
    mine = np.delete(u, held_out(1, ROWS, 0.2))
    want = ((mine - mine.mean()) ** 2).sum()
    for answer in (first, other):
        assert answer.tensors["columns/total"][0, 0].item() == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    ("digits", "words", "why"),
    [
        (["v"], ["u"], "it asks for column 'u' as texts"),
        (["u", "v"], ["kind", "name"], "it asks for columns that the site's job does not learn from"),
        (["u", "v"], ["kind", "label"], "it asks for columns that the site's job does not learn from"),
        (["u", "u"], ["kind"], "it asks for a column twice"),
    ],
)
def test_columns_are_those_that_the_site_derives(
    digits: list[str], words: list[str], why: str, files: Path, tmp_path: Path
) -> None:
    one = Liar(JOB, files, tmp_path)
    one.train()
    answer = one.ask("sums", fields={"digits": digits, "words": words})
    assert (answer.kind, answer.fields.get("why")) == ("refused", why)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "name"}, "it asks for columns that the site's job does not learn from"),
        ({"name": "label"}, "it asks for columns that the site's job does not learn from"),
        ({"name": "u", "kind": "category", "values": ["0.1"]}, "it asks for column 'u' as texts"),
    ],
)
def test_inputs_are_made_of_the_columns_of_the_job(
    change: dict[str, Any], why: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform that a server makes up, of a column that the job leaves out, or of chosen numbers as categories."""
    one = Liar(JOB, files, tmp_path)
    one.train()
    column = {"kind": "category", "values": ["person 3"], "other": True, **change}
    fields = one.honest["setup"].fields
    told = {**fields["told"], "columns": [column, *fields["told"]["columns"][1:]]}
    form = {**fields["form"], "shape": [fields["form"]["shape"][0] + 1]}
    changed = {"told": told, "form": form}
    assert refusals([one.ask("setup", run=1, fields=changed)]) == [why]
    monkeypatch.setattr(Gate, "admit_inputs", lambda *args: None)
    assert one.ask("setup", run=1, fields=changed).kind == "ready"


def test_judging_chosen_models_does_not_give_the_gradient(liar: Liar, is_open: bool) -> None:
    """Attack 2: the summed loss at x + h e_j for each j, in new runs too."""
    x = liar.honest["judge"].tensors["x/"]
    step, d = 1e-5, x.numel()
    answers = []
    for k in range(-1, d):
        moved = x.clone()
        if k >= 0:
            moved[k] += step
        answers.append(liar.ask("judge", round=1000 + k, tensors={"x/": moved}))
    judged = [one for one in answers if one.kind == "judged"]
    if is_open:
        gradient = [
            (one.tensors["figures/losses"][1] - judged[0].tensors["figures/losses"][1]).item() / step
            for one in judged[1:]
        ]
        assert len(gradient) == d
        assert max(map(abs, gradient)) > 0.1
        return
    most = evaluations(source_of(liar.job)) + 3
    assert len(judged) == most - evaluations(source_of(liar.job)) + 1  # and the last model again
    assert len(judged) < d / 2
    assert set(refusals(answers)) == {f"it has judged {most} models in this run, and its job has no more to ask of"}


def test_a_round_is_answered_in_the_words_of_its_job(liar: Liar, is_open: bool) -> None:
    """Chosen models of one round, rounds beyond the job, and other orders than the site's own job has."""
    name, x = next((name, leaf) for name, leaf in liar.honest["orders"].tensors.items() if name.startswith("down/"))
    last = liar.honest["orders"].round
    answers = [
        liar.ask("orders", tensors={**liar.honest["orders"].tensors, name: x + 0.1 * (k + 1)}) for k in range(20)
    ]
    replies = [one for one in answers if one.kind == "reply"]
    orders = liar.honest["orders"].fields["orders"]
    others = [
        liar.ask("orders", fields={"orders": {**orders, **change}})
        for change in ({"lr": 0.5}, {"lr": float("nan")}, {"seed": 4})
    ]
    beyond = liar.ask("orders", round=last + 1, fields={"orders": {**orders, "round": last + 1}})
    loss = liar.ask("judge", to="loss")
    if is_open:
        assert len(replies) == 20
        assert (beyond.kind, loss.kind, others[0].kind) == ("reply", "loss", "reply")
        return
    assert len(replies) == 3
    assert "4 times, each in other words" in refusals(answers)[0]
    assert refusals([beyond]) == ["round 4 is none of the job's, which has 4"]
    assert refusals([loss]) == ["it asks for the loss of a model, and the job's sampling needs none"]
    assert len(refusals(others)) == 3
    assert refusals(others)[1] == "lr nan is no finite number"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lr": 0.5}, "lr 0.5 in round 3, where the site's own job has 0.05"),
        ({"steps": 10**9}, "steps 1000000000 in round 3, where the site's own job has 3"),
        ({"seed": 4}, "seed 4 in round 3, where the site's own job has 3"),
        ({"round": 9}, "orders of round 9 in a message of round 3"),
        ({"p": 7.0}, "p 7.0 is no share"),
    ],
)
def test_orders_are_the_sites_own(change: dict[str, Any], why: str, files: Path, tmp_path: Path) -> None:
    one = Liar(JOB, files, tmp_path)
    one.train()
    answer = one.ask("orders", fields={"orders": {**one.honest["orders"].fields["orders"], **change}})
    assert refusals([answer]) == [why]


def test_one_row_is_never_summed(files: Path, tmp_path: Path) -> None:
    """Attack 2, its last part: with one row to test on, sums over test rows are that row. So with one value."""
    (tmp_path / "files").mkdir()
    for name in SITES:
        head, *rows = (files / f"{name}.csv").read_text().splitlines()
        few = rows[:7] if name == "bern" else rows
        (tmp_path / "files" / f"{name}.csv").write_text("\n".join([head, *few]) + "\n")
    one = Liar(JOB, tmp_path / "files", tmp_path)
    [why] = check(one.job, SITES, one.exchange, 1.0)
    assert why.startswith(
        "site bern: the site refused what it was sent: it would test on 1 row, and no sum over fewer "
    )
    rows = [line.split(",") for line in (files / "bern.csv").read_text().splitlines()]
    kept = int(np.delete(np.arange(ROWS), held_out(1, ROWS, 0.2))[0])
    blank = [rows[0], *([row[0] if k == kept else "", *row[1:]] for k, row in enumerate(rows[1:]))]
    write(tmp_path / "files" / "bern.csv", blank[0], blank[1:])
    two = Liar(JOB, tmp_path / "files", tmp_path / "two")
    [why] = check(two.job, SITES, two.exchange, 1.0)
    assert "'u' has a value in 1 training row, and no sum over fewer than 2 leaves the site" in why


# -- numbers off the wire ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change", "why"),
    [
        ("hello", {"fields": {"clients": 10**8}}, "client 1 of 100000000, and a deployment has at most 10000 sites"),
        ("setup", {"fields": {"clients": 10**8}}, "client 1 of 100000000, and a deployment has at most 10000 sites"),
        ("setup", {"client": 10**6}, "client 1000000 is none of 0 to 9999"),
        ("setup", {"form": {"outputs": 10**9}}, "outputs 1000000000 is none of 1 to 10000"),
        ("setup", {"form": {"outputs": 100}}, "outputs 100, where the site's samples have another"),
        ("setup", {"form": {"shape": [10**9]}}, "samples of shape [1000000000] are more numbers than a site takes"),
        ("setup", {"form": {"shape": [6]}}, "shape [6], where the site's samples have another"),
        ("setup", {"form": {"target": "labels"}}, "target labels, where the site's samples have another"),
        ("orders", {"round": -1}, f"round -1 is none of 0 to {2**42 - 1}"),
    ],
)
def test_numbers_are_bounded(kind: str, change: dict[str, Any], why: str, files: Path, tmp_path: Path) -> None:
    """Attack 6."""
    one = Liar(JOB, files, tmp_path)
    one.train()
    if "form" in change:
        change = {"fields": {"form": {**one.honest["setup"].fields["form"], **change["form"]}}}
    assert refusals([one.ask(kind, run=None if kind == "orders" else 7, **change)]) == [why]


def test_two_hundred_setups_do_not_make_two_hundred_folders(liar: Liar, is_open: bool) -> None:
    answers = [liar.ask("setup", run=k) for k in range(60)]
    folders = [path for path in (liar.folder / "bern").iterdir() if path.is_dir()]
    if is_open:
        assert len(folders) == 61
        return
    assert len(folders) == USUAL.runs == 20
    assert set(refusals(answers)) == {"this job was begun 20 times here, and the site's policy allows 20 (runs)"}


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_the_ledger_has_all_that_left(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = Liar(JOB, files, tmp_path)
    one.train()
    one.ask("sums", client=5, fields={"clients": 9})
    book = Ledger(tmp_path / "bern" / "ledger.txt")
    lines = book.lines()
    assert [line["kind"] for line in lines[:4]] == ["hello", "sums", "squares", "setup"]
    assert lines[1]["texts"] == {"kind": 2}
    assert lines[1]["tensors"][:2] == ["columns/known[1, 2]", "columns/total[1, 2]"]
    assert {line["server"] for line in lines} == {"server:1"}
    assert "would hold out other rows" in lines[-1]["why"]
    assert (tmp_path / "bern" / "ledger.txt").stat().st_mode & 0o077 == 0
    assert call(["flower", "ledger", str(tmp_path / "bern"), "--contains", book.hashes[3]]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(lines) + 1
    assert "sums -> summed" in out[1]
    assert "2 texts of 'kind'" in out[1]
    assert out[-1] == f"{len(lines)} lines, none changed; the last has the hash {book.head}"
    assert call(["flower", "ledger", str(tmp_path / "bern"), "--contains", "f" * 64]) == 2


def test_what_a_lying_server_calls_things_fills_no_ledger(files: Path, tmp_path: Path) -> None:
    """Kinds, runs and names of fields of any length, and such as no file can hold."""
    one = Liar(JOB, files, tmp_path)
    one.train()
    book, told = tmp_path / "bern" / "ledger.txt", list[str]()
    size, site = book.stat().st_size, one.site()
    site.tell = told.append
    run = one.honest["hello"].method
    for kind, method, fields in (
        ("x" * 10**6, run, {}),
        ("\ud800\x1b[2J\n", run, {}),
        ("hello", "y" * 10**6, {}),
        ("hello", run, {"clients": 3, "k" * 10**6: math.nan}),
    ):
        answer = codec.read(site.answer(codec.write(Frame(kind, method, 0, 0, fields))))
        assert (answer.kind, len(answer.fields["why"]) <= 300) == ("refused", True)
    assert book.stat().st_size - size < 4 * 2000
    assert [line["kind"] for line in Ledger(book).lines()[-4:]] == ["x" * 32, "??[2J?", "hello", "hello"]
    assert told[:2] == [f"refused ({kind}): it is of a kind that no server sends" for kind in ("x" * 32, "??[2J?")]
    assert max(map(len, told)) < 400


def _changed(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[2].replace("server:1", "server:2"), *lines[3:]]


@pytest.mark.parametrize(
    ("change", "number"),
    [(_changed, 3), (lambda lines: lines[:4] + lines[5:], 5), (lambda lines: [lines[1], lines[0], *lines[2:]], 1)],
    ids=["changed", "taken out", "swapped"],
)
def test_a_changed_line_of_the_ledger_is_named(
    change: Callable[[list[str]], list[str]],
    number: int,
    files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = Liar(JOB, files, tmp_path)
    one.train()
    path = tmp_path / "bern" / "ledger.txt"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    assert call(["flower", "ledger", str(tmp_path / "bern")]) == 2
    assert f"line {number} of the ledger {path} was changed" in capsys.readouterr().err
    with pytest.raises(UserError, match=f"line {number} of the ledger"):  # and nothing is answered
        one.ask("hello")


def test_a_ledger_that_a_crash_cut_off_in_mid_line_goes_on(files: Path, tmp_path: Path) -> None:
    one = Liar(JOB, files, tmp_path)
    one.train()
    path = tmp_path / "bern" / "ledger.txt"
    whole = len(Ledger(path).lines())
    with path.open("ab") as file:
        file.write(b'0123 {"time": "2')
    assert one.ask("hello").kind == "here"
    assert len(Ledger(path).lines()) == whole + 1


# -- a policy ----------------------------------------------------------------------------------------------------------


def ruled(**changes: Any) -> Policy:
    return Policy(**{**USUAL.model_dump(), **changes})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"approved": ["0" * 64]}, "the site's policy does not approve job "),
        (
            {"columns": ["u", "kind", "label"]},
            "the site's policy does not list column 'v' among",
        ),
        (
            {"columns": ["u", "v", "kind"]},
            "the site's policy does not list column 'label' am",
        ),
        ({"never": ["u"]}, "the site's policy never lets column 'u' be read; leave it out with input.ignore=u"),
        ({"least_rows": 40}, "it would test on 12 rows, and no sum over fewer than 40 leaves the site"),
        ({"least_rows": 49}, "'u' has a value in 48 training rows, and no sum over fewer than 49 leaves the site"),
        ({"least_sites": 4}, "the site's policy asks for 4 sites a round at least, and the job has cohorts of 3"),
        ({"secure_sums": True}, "the site's policy asks for secure sums, and the job has none; give secure.clip"),
        ({"noise": "central"}, "the site's policy asks for differential privacy, and the job has none"),
        ({"lifetime_epsilon": 8.0}, "the site's policy asks for differential privacy, and the job has none"),
        ({"evaluations": 4}, "the job judges 5 models, and the site's policy allows 4 a run"),
        ({"metrics": ["brier"]}, "the site's policy does not let metric accuracy leave; take it out of metrics"),
    ],
)
def test_what_a_policy_refuses_is_one_sentence_on_both_sides(
    change: dict[str, Any], why: str, files: Path, tmp_path: Path
) -> None:
    one, heard = Liar(JOB, files, tmp_path), list[str]()
    sites = {name: one.site(name) for name in SITES}
    rules = ruled(**change)
    sites["bern"] = Site(one.job, files / "bern.csv", tmp_path / "bern", "bern", SYSTEM, rules, tell=heard.append)

    def exchange(messages: Any, wait: float) -> Any:
        return {name: sites[name].answer(data) for name, data in messages.items()}

    [at_server] = check(one.job, SITES, exchange, 1.0)
    [at_site] = heard
    assert at_server.startswith("site bern: ")
    assert why in at_server
    assert why in at_site
    assert why in Ledger(tmp_path / "bern" / "ledger.txt").lines()[-1]["why"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"least_rows": 600}, " rows, and no sum over fewer than 600 leaves the site (least_rows of its policy)"),
        ({"least_sites": 4}, "the site's policy asks for 4 sites a round at least, and the job has cohorts of 3"),
        ({"metrics": ["brier"]}, "the site's policy does not let metric accuracy leave; take it out of metrics"),
        ({"columns": ["u", "label"]}, "says which columns may be read, and the job names FILE itself; start the site"),
        ({"never": ["v"]}, "says which columns may be read, and the job names FILE itself; start the site with its"),
    ],
)
def test_a_policy_holds_for_data_that_the_job_names(
    change: dict[str, Any], why: str | None, files: Path, tmp_path: Path
) -> None:
    """A site without a file of its own reads what the job names, which may be a file too."""
    is_table = "columns" in change or "never" in change
    path = str(files / "bern.csv") if is_table else "digits"
    job = {key: value for key, value in JOB.items() if key != "input" or is_table}
    here = Federation(with_(job, data=path, partition="iid"), tmp_path, tmp_path, SITES)
    here.site = lambda name: Site(  # type: ignore[method-assign]
        here.job, Path(), tmp_path / "sites" / name, name, policy=ruled(**change) if name == "bern" else USUAL
    )
    said = check(here.job, SITES, here.exchange, 1.0)
    assert (said == []) if why is None else why.replace("FILE", path) in said[0]


def test_a_policy_is_asked_before_the_file_is_read(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Liar(JOB, files, tmp_path, ruled(approved=[]))
    monkeypatch.setattr(Site, "_file", lambda site: pytest.fail("the file was read"))
    hello = codec.write(Frame("hello", "0" * 16, 0, 1, {"clients": 3}))
    assert "does not approve" in codec.read(one.site().answer(hello)).fields["why"]


def test_runs_and_rounds_a_day(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Liar(JOB, files, tmp_path, ruled(runs_a_day=1, rounds_a_day=6))
    one.train()
    assert refusals([one.ask("setup", run=1)]) == [
        "the site's policy allows 1 runs a day (runs_a_day); ask again tomorrow"
    ]
    one.policy = ruled(runs_a_day=9, rounds_a_day=6)
    assert one.ask("setup", run=1).kind == "ready"
    orders = {name: one.honest["orders"].fields["orders"][name] for name in one.honest["orders"].fields["orders"]}
    rounds = [
        one.ask("orders", run=1, round=k, fields={"orders": {**orders, "round": k}, "counted": None}) for k in range(4)
    ]
    assert [answer.kind for answer in rounds] == ["reply", "reply", "refused", "refused"]
    assert set(refusals(rounds)) == {"the site's policy allows 6 rounds a day (rounds_a_day)"}
    monkeypatch.setattr("fedconcord_sites.gate._today", lambda lines: [])  # the next day
    again = one.ask("orders", run=1, round=2, fields={"orders": {**orders, "round": 2}, "counted": None})
    assert again.kind == "reply"


PRIVATE = {
    **{key: value for key, value in JOB.items() if key != "input"},
    "rounds": 2,
    "privacy": {"clip": 0.05, "noise": 20.0, "kind": "local"},
}


@pytest.mark.parametrize("lifetime", ["none", 3.0])
def test_noise_composes_over_runs(lifetime: Any, tmp_path: Path) -> None:
    """Attack 4: a message of one round in 40 runs of one job, whose noise the mean takes away."""
    draw = np.random.default_rng(1)
    for name in SITES:
        np.savez(tmp_path / f"{name}.npz", x=draw.integers(0, 256, (40, 4), np.uint8), y=draw.integers(0, 3, 40))
    one = Liar(PRIVATE, tmp_path, tmp_path / "sites", ruled(lifetime_epsilon=lifetime, runs=1000, runs_a_day=1000))

    def site(name: str = "bern") -> Site:
        place = one.folder / name
        return Site(one.job, tmp_path / f"{name}.npz", place, name, SYSTEM, one.policy)

    one.site = one.federation.site = site  # type: ignore[method-assign]
    one.train()
    orders = {**one.honest["orders"].fields["orders"], "round": 0}
    answers = []
    for k in range(40):
        answers.append(one.ask("setup", run=k))
        answers.append(one.ask("orders", run=k, round=0, fields={"orders": orders, "counted": None}))
    noisy = [next(iter(answer.tensors.values())) for answer in answers if answer.kind == "reply"]
    gate = site().gate
    spent = gate.spent()
    if lifetime == "none":
        assert len(noisy) == 40
        assert spent > 4
        rows = torch.stack(noisy)  # of 40 answers the noise of the mean is 0.16 of one's, and drawn anew each time
        assert float(rows.mean(0).std()) < 0.4 * float(rows.std(0).mean())
        return
    assert spent <= lifetime
    assert 2 <= len(noisy) < 20
    assert (
        "of the 3 that the site's policy allows of its file (lifetime_epsilon)" in refusals(answers)[-2]
    )  # of a setup
    assert epsilon_of(line for line in gate.ledger.lines() if line["run"] == f"{0:016x}") == pytest.approx(
        (spent - epsilon_of(line for line in gate.ledger.lines() if line["run"] == one.honest["setup"].method))
        / len(noisy)
    )
    (tmp_path / "bern.npz").rename(tmp_path / "renamed.npz")  # the same bytes elsewhere have spent the same
    elsewhere = Site(one.job, tmp_path / "renamed.npz", one.folder / "bern", "bern", SYSTEM, one.policy)
    assert elsewhere.gate.spent() == spent


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("least_rows = 3", "approved: field required"),
        ("{all}\nleast_row = 3", "least_row: extra inputs are not permitted"),
        ("{all}", "runs: input should be greater than or equal to 1"),
        ("runs = ", "cannot read the policy"),
    ],
)
def test_a_policy_that_is_wrong_is_one_sentence(lines: str, why: str, tmp_path: Path) -> None:
    policy.write(tmp_path / "good.toml", text(JOB), None)
    good = (tmp_path / "good.toml").read_text()
    changed = good.replace("runs = 3\n", "runs = 0\n") if lines == "{all}" else good
    (tmp_path / "site.toml").write_text(lines.replace("{all}", changed))
    with pytest.raises(UserError, match=why) as error:
        policy.read(tmp_path / "site.toml")
    assert "`fedconcord flower policy` writes one" in str(error.value)


def test_the_policy_that_is_written_allows_its_job_and_no_other(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = {key: value for key, value in JOB.items() if key != "engine"} | {"engine": {"dtype": "float64"}}
    (tmp_path / "job.toml").write_text(text(job))
    assert call(["flower", "policy", "site.toml", "--config", "job.toml", "--site", str(files / "bern.csv")]) == 0
    assert call(["flower", "new", "team", "--config", "job.toml", "--sites", ",".join(SITES)]) == 0
    rules = policy.read(tmp_path / "site.toml")
    assert rules.columns == ["u", "v", "kind", "label"]
    assert rules.never == ["name"]
    submitted = (tmp_path / "team" / "fedconcord_job" / "job.toml").read_text()
    assert rules.approved == [policy.job_digest(source_of(submitted))]
    assert policy.read(tmp_path / "team" / "site.toml").approved == rules.approved
    for other, differs in ((submitted, 0), (submitted.replace("rounds = 4", "rounds = 3"), 3)):
        one = Liar(JOB, files, tmp_path / str(differs), rules)
        one.job = one.federation.job = other
        assert len(check(other, SITES, one.exchange, 1.0)) == differs
    assert call(["flower", "policy", "site.toml", "--config", "job.toml"]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("has_list", [False, True])
def test_a_policy_that_approves_any_job_imports_no_module(
    has_list: bool, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setup makes the job's method, whose module tells that it was imported."""
    (tmp_path / "told.py").write_text(
        "open('imported', 'w').close()\nfrom fedconcord.method.algorithms import METHODS\n"
    )
    honest = Liar(JOB, files, tmp_path / "honest")
    honest.train()
    monkeypatch.setattr(imports, "_NAMED", set())
    monkeypatch.delitem(sys.modules, "told", raising=False)
    monkeypatch.setattr("flwr.app.message.message.TaskIdentity", SimpleNamespace(run_id=1, node_id=1, task_id=1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    job = text(with_(JOB, method="told:METHODS.get"))
    policy.write(tmp_path / "site.toml", job, files / "bern.csv", 3)
    if not has_list:
        lines = (tmp_path / "site.toml").read_text().splitlines()
        lines = ['approved = "any"' if line.startswith("approved") else line for line in lines]
        (tmp_path / "site.toml").write_text("\n".join(lines))
    here = {"name": "bern", "data": str(files / "bern.csv"), "folder": str(tmp_path / "bern"), "policy": "site.toml"}
    message = Message(grid._packed(codec.write(honest.honest["setup"])), 1, grid.KIND)
    vars(message.metadata)["_message_id"] = "1"
    answer = codec.read(grid._unpacked(grid.client(job)(message, Context(1, 1, here, RecordDict(), {}))))
    assert (answer.kind, (tmp_path / "imported").exists()) == ("refused", has_list)
    assert ("told:METHODS.get is named by files that were read" in answer.fields["why"]) == (not has_list)


def test_a_site_with_a_policy_runs_nothing_of_an_app(tmp_path: Path) -> None:
    """Flower's loader is not even called; the job's settings are data."""
    ran = list[str]()
    (tmp_path / "fedconcord_job").mkdir()
    (tmp_path / "fedconcord_job" / "job.toml").write_text("rounds = 3")

    def loader(**settings: Any) -> Any:
        return lambda *app: lambda message, context: ran.append("the app's own code")

    load = as_data(loader, lambda *app: tmp_path, lambda text: lambda message, context: ran.append(text))
    for node_config in ({"policy": "site.toml"}, {}):
        load(default_app_ref="")("a/b", "1", "0")(message=None, context=SimpleNamespace(node_config=node_config))
    assert ran == ["rounds = 3", "the app's own code"]
    (tmp_path / "fedconcord_job" / "job.toml").unlink()
    with pytest.raises(UserError, match="runs nothing else of an app"):
        load()("a/b", "1", "0")(message=None, context=SimpleNamespace(node_config={"policy": "site.toml"}))
