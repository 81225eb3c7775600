"""Figures of an evaluation in a secure sum: what the server learns is what all sites' figures come to, exactly, and
nothing of one site; and what a lying server gets."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_core import SITES, SQUARES, Federation, files, least_squares, quick_disk, with_, write
from test_secure import job_with

from fedconcord.execution.messages import codec, member
from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.messages.terms import Scale, Terms
from fedconcord.interface.cli.main import call
from fedconcord.study.statistics.load import load_runs
from fedconcord_sites.form import source_of
from fedconcord_sites.gate import JUDGING
from fedconcord_sites.jury import CLIP, terms_of_figures
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.policy import evaluations

__all__ = ["files", "least_squares", "quick_disk"]  # fixtures

METRICS = ["accuracy", "macro_f1", "brier", "ece", "auroc"]
JOB = job_with("fedavg", rounds=2, metrics=METRICS, eval={"every": 1})
NUMBERS = with_(JOB, input={"label": ["number"], "ignore": ["label"]}, metrics=["r2", "mae", "rmse"])
Change = Callable[[str, Frame], Frame | None]


def plain(job: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key != "secure"}


def meddling(here: Federation, meddle: Change) -> Callable[[Mapping[str, bytes], float], Mapping[str, bytes]]:
    """Messages to sites as `meddle(site, frame)` changes them; None loses one."""

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        changed = {name: meddle(name, codec.read(data)) for name, data in messages.items()}
        return here.exchange({name: codec.write(one) for name, one in changed.items() if one is not None}, wait)

    return exchange


@pytest.mark.parametrize("job", [JOB, NUMBERS], ids=["classes", "numbers"])
def test_figures_in_a_sum_are_those_of_all_samples(job: dict[str, Any], files: Path, tmp_path: Path) -> None:
    """Counts to the last bit, losses to the stated step; the model is another by the rounding of its own sums."""
    secure, open_ = Federation(job, files, tmp_path / "secure"), Federation(plain(job), files, tmp_path / "plain")
    assert secure.serve().status == open_.serve().status == "complete"
    for k, (mine, theirs) in enumerate(zip(secure.metrics(), open_.metrics(), strict=True)):
        for name in theirs:
            if name.startswith(("test_", "train_")):
                error = 1e-7 if k == 0 else 1e-6
                assert float(mine[name]) == pytest.approx(float(theirs[name]), rel=error, abs=error), name
    first, of_plain = secure.metrics()[0], open_.metrics()[0]  # of one model
    counted = [f"test_{name}" for name in METRICS if name not in ("brier", "ece")] if job is JOB else []
    assert [first[name] for name in counted] == [of_plain[name] for name in counted]


def test_nothing_of_one_site_is_there(files: Path, tmp_path: Path) -> None:
    here, answers = Federation(JOB, files, tmp_path), list[Frame]()

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        said = here.exchange(messages, wait)
        answers.extend(codec.read(data) for data in said.values())
        return said

    here.serve(exchange)
    judged = [one for one in answers if one.kind == "judged"]
    assert len(judged) == 3 * 3
    assert all(set(one.tensors) == {"covered/"} for one in judged)
    content = np.concatenate([one.tensors["covered/"].numpy() for one in judged]).view(np.uint8)
    assert abs(np.unpackbits(content).mean() - 0.5) < 5 * 0.5 / np.sqrt(8 * len(content))
    assert not (tmp_path / "run" / "clients.csv").exists()
    assert "clients_judged" not in here.said()
    lines = Ledger(tmp_path / "sites" / "bern" / "ledger.txt").lines()
    assert [" ".join(line["tensors"]) for line in lines if line["kind"] == "judge"] == [
        f"covered/[{len(judged[0].tensors['covered/'])}]"
    ] * 3


def test_a_question_in_clear_is_refused(files: Path, tmp_path: Path) -> None:
    here = Federation(JOB, files, tmp_path)

    def alone(name: str, frame: Frame) -> Frame:
        fields = {key: value for key, value in frame.fields.items() if key != "sum"}
        return frame._replace(fields=fields) if frame.kind == "judge" else frame

    here.serve(meddling(here, alone))
    assert [list(site["refused"]) for site in here.said()["sites"]] == [
        ["the site refused what it was sent: its job has secure sums, and it contributes to no other"]
    ] * 3
    assert here.metrics() == []


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_model_for_each_site_gives_no_sum(is_bound: bool, files: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """A server that knows what two sites say of a model, of all zeros, asks the third one of another: were masks not
    made for the model, the sum would be that site's figures of it."""
    here = Federation(with_(JOB, rounds=1), files, tmp_path)
    if not is_bound:
        monkeypatch.setattr(member, "MODELS", ("down/", "answer/"))

    def other(name: str, frame: Frame) -> Frame:
        if frame.kind != "judge" or name != "chur":
            return frame
        return frame._replace(tensors={**frame.tensors, "x/": frame.tensors["x/"] + 1})

    here.serve(meddling(here, other))
    voids = [event.text for event in here.events if event.kind == "void"]
    if is_bound:
        assert len(voids) == 2
        noise = "what came under masks is beyond what so many contributions can come to"  # nearly always
        rest = "the sum of the sites' figures is not of their samples"
        assert {*voids} <= {f"the model was not judged: {why}" for why in (noise, rest)}
        assert here.metrics() == []
    else:
        assert voids == []
        assert len(here.metrics()) == 2


def test_models_are_judged_as_often_as_the_job_has_evaluations(files: Path, tmp_path: Path) -> None:
    """A server goes on asking, with new numbers and keys each time."""
    here = Federation(JOB, files, tmp_path)
    last: dict[str, Frame] = {}

    def kept(name: str, frame: Frame) -> Frame:
        if name == "bern":
            last[frame.kind] = frame
        return frame

    here.serve(meddling(here, kept))
    most = evaluations(source_of(here.job)) + 3
    why = f"it has judged {most} models in this run, and its job has no more to ask of"
    said = [
        codec.read(here.site("bern").answer(codec.write(last["judge-keys"]._replace(round=last["judge"].round + k))))
        for k in range(1, 20)
    ]
    assert [one.kind for one in said] == ["keys"] * 3 + ["refused"] * 16
    assert {one.fields["why"] for one in said[3:]} == {why}
    old = codec.read(here.site("bern").answer(codec.write(last["judge"])))
    assert str(old.fields["why"]).startswith("its secrets for round")


@pytest.mark.parametrize("kind", JUDGING)
def test_a_site_that_is_lost_in_an_evaluation_voids_it_or_not(kind: str, files: Path, tmp_path: Path) -> None:
    """Threshold 0.6 of three is two: the sum is of two sites' samples, or of three where the third was heard."""
    job = with_(JOB, secure={"threshold": 0.6})
    here, whole = Federation(job, files, tmp_path / "lost"), Federation(job, files, tmp_path / "whole")
    first: list[int] = []

    def lost(name: str, frame: Frame) -> Frame | None:
        if frame.kind in JUDGING and not first:
            first.append(frame.round)
        return None if (name, frame.kind, frame.round) == ("bern", kind, (first or [-1])[0]) else frame

    assert here.serve(meddling(here, lost)).status == whole.serve().status == "complete"
    rows, wanted = here.metrics(), whole.metrics()
    if kind == "judge-keys":  # two would be left, and no sum is of fewer than three
        assert [row["round"] for row in rows] == ["1", "2"]
        assert here.said()["status"] == "complete"
        [void] = [event.text for event in here.events if event.kind == "void"]
        assert void == "the model was not judged: 2 clients answered, and a sum of fewer than 3 hides nobody"
        return
    alike = float(rows[0]["test_loss"]) == float(wanted[0]["test_loss"])
    assert alike == (kind in ("judge-agree", "judge-open"))
    assert rows[1:] == wanted[1:]


def test_a_round_that_was_not_judged_is_left_out_of_tables_and_report(files: Path, tmp_path: Path) -> None:
    """Also the last one; a run that goes on judges it then."""
    here = Federation(with_(JOB, rounds=3), files, tmp_path)
    state = {"away": 2}

    def away(name: str, frame: Frame) -> Frame | None:
        if frame.kind == "judge-keys" and name == "basel":
            state["away"] -= 1
            return frame if state["away"] >= 0 else None
        return frame

    assert here.serve(meddling(here, away)).status == "complete"
    assert [row["round"] for row in here.metrics()] == ["0", "1"]
    assert [run.head.status for run in load_runs([tmp_path / "run"])] == ["complete"]
    assert call(["report", str(tmp_path / "run")]) == 0
    assert here.serve(resume=True).status == "complete"
    assert [row["round"] for row in here.metrics()] == ["0", "1", "3"]


def test_a_server_that_was_killed_asks_again_with_another_number(files: Path, tmp_path: Path) -> None:
    """After its sum was opened and before it was put down: its sites do not open that sum again, and the round that was
    trained before is not lost."""
    here = Federation(JOB, files, tmp_path / "killed")
    whole = Federation(JOB, files, tmp_path / "whole")

    class KilledError(Exception):
        pass

    opened: list[int] = []

    def killed(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = here.exchange(messages, wait)
        frame = codec.read(next(iter(messages.values())))
        if frame.kind == "judge-open":
            opened.append(frame.round)
            if len(opened) in (1, 3):
                raise KilledError
        return answers

    for _ in range(2):
        with pytest.raises(KilledError):
            here.serve(killed, resume=bool(opened))
    assert here.serve(killed, resume=True).status == whole.serve().status == "complete"
    assert here.metrics() == whole.metrics()
    assert sorted(set(opened)) == opened
    assert [site["refused"] for site in here.said()["sites"]] == [{}] * 3


def test_a_model_that_diverges_ends_the_run(least_squares: Path, tmp_path: Path) -> None:
    job = with_(SQUARES, method="fedavg", rounds=300, local={"lr": 10.0}, eval={"every": 1})
    job |= {"secure": {"clip": 1e8, "bits": 48}}
    here = Federation(job, least_squares, tmp_path)
    done = here.serve()
    assert (done.status, done.rounds < 300) == ("diverged", True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda one: one._replace(sums=tuple(-1e6 * (leaf.abs() + 1) for leaf in one.sums)),
            "figures of mae that no 14 samples have",
        ),
        # as of a site that judges a part of its rows, the easy ones
        (
            lambda one: one._replace(counts=one.counts - 1),
            "the sum of the sites' figures is not of their samples",
        ),
    ],
)
def test_a_sum_of_figures_that_the_samples_do_not_have_is_not_judged(
    change: Any, why: str, files: Path, tmp_path: Path
) -> None:
    here = Federation(NUMBERS, files, tmp_path)
    bern = here.site("bern")
    honest = bern._figures
    bern._figures = lambda *order: change(honest(*order))  # type: ignore[method-assign]
    assert here.serve().status == "complete"
    assert [event.text for event in here.events if event.kind == "void"] == [f"the model was not judged: {why}"] * 3


def test_no_site_at_all_is_waited_for_and_said(files: Path, tmp_path: Path) -> None:
    here = Federation(JOB, files, tmp_path)
    with pytest.raises(Exception, match="no site judged the model within 3 times 1 s"):
        here.serve(meddling(here, lambda name, frame: None if frame.kind in JUDGING else frame))


@pytest.mark.parametrize("sites", [3, 7, 8, 100, 10_000])
def test_sums_of_the_largest_figures_fit(sites: int) -> None:
    terms = terms_of_figures(Terms(Scale(1.0, 24), 0.67, 3, (1,) * sites))
    values = np.array([CLIP, -CLIP, 1.0, 0.0, 12345.0])
    one = terms.scale.integers(values, np.full(5, 0.5), sites)
    assert (one * np.uint64(sites)).dtype == np.uint64
    np.testing.assert_array_equal(terms.scale.numbers(one * np.uint64(sites)), sites * values)
    assert terms.cohort == sites


def test_a_site_with_nearly_all_rows_takes_no_part(tmp_path: Path) -> None:
    """Whatever it weighs in rounds, its figures would be nearly those of the sum."""
    folder, draw = tmp_path / "files", np.random.default_rng(0)
    folder.mkdir()
    for name, n in zip(SITES, (400, 8, 8), strict=True):
        write(
            folder / f"{name}.csv",
            ["u", "label"],
            [[f"{u:.4f}", "no" if u < 0 else "yes"] for u in draw.normal(size=n)],
        )
    job = job_with("fedavg", rounds=1, objective="clients", input={"label": ["label"], "ignore": []})
    here = Federation(job, folder, tmp_path)
    with pytest.raises(Exception, match=r"it would weigh 0\.96\d+ of a secure sum, and the site's policy allows 0\.95"):
        here.serve()


def test_signatures_of_a_round_are_not_those_of_an_evaluation() -> None:
    about = [
        member.context("run", 3, part, [0, 1, 2], b"keys", Terms(Scale(1.0, 24), 0.67, 3, (1, 1, 1))) for part in (1, 2)
    ]
    assert about[0] != about[1]
