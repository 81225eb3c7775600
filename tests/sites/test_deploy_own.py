"""Sites with models of their own: parts that never leave them, and models beside the server's. What they come to is
what serial comes to, and nothing of them is in a message."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import BASE, SITES, Federation, Killed, far, files, leaves, quick_disk, same_figures, with_
from test_jury import meddling

from fedconcord import predict
from fedconcord.execution.job import advance, own_models, start
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.rows import tensors
from fedconcord.federation.objectives.judging import supervised
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support.errors import UserError
from fedconcord_flower.preview import preview
from fedconcord_sites.exchange import Exchange
from fedconcord_sites.form import source_of
from fedconcord_sites.judging import figures
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.policy import evaluations

__all__ = ["files", "quick_disk"]  # fixtures
NET = with_(BASE, method="fedavg", model="2nn", rounds=3)
PER = with_(NET, local={"private": "5.*"})
JOBS: dict[str, dict[str, Any]] = {
    "FedPer": PER,
    "FedRep": with_(PER, local={"private_steps": 2}, cohort=3),
    "FedBABU": with_(PER, local={"private_steps": "frozen"}),
    "LG": with_(NET, method="scaffold", local={"private": "1.*|3.*", "momentum": 0.5}),
    "a message after the step": with_(PER, method="afedpd"),
    "two messages": with_(PER, method="mimesvrg"),
    "a prologue": with_(PER, method="losac", algorithm={"blocks": 2}),
    "FedProto": with_(NET, local={"private": "*", "term": "proto"}),
    "Ditto": with_(BASE, method="ditto"),
    "APFL": with_(BASE, method="apfl", cohort=3),
}


def simulation(here: Federation, job: Mapping[str, Any]) -> tuple[Any, list[dict[str, float]], list[Any]]:
    """The same job by engine serial on the table of all: its last state, figures of each round over the rows that each
    site tests on and trains on, under its own model, and the own models in the end, by site."""
    more = {"data": str(here.files / "all.csv"), "validation": "none", "input": {"client": "site"}}
    config = resolve_run(from_nested(with_(job, **more, engine={"name": "serial"}), "here"))
    alone = build(config)
    inner, state, rows = supervised(alone.problem), start(alone), list[dict[str, float]]()
    assert inner is not None
    for round in range(config.rounds + 1):
        state = advance(alone, state) if round else state
        models, each = own_models(alone, state), []
        for i, name in enumerate(SITES):
            x, opened = models(i), here.site(name)._opened
            assert opened is not None
            if x is None and round:
                continue
            first = state.server.x if alone.problem.objective.private is None else alone.problem.joined(state.server.x)  # type: ignore[attr-defined]
            each.append(figures(inner, first if x is None else x, opened.test, opened.train))
        tested, trained = (sum(int(one.counts[k]) for one in each) for k in (0, 1))
        right, test, train = (
            sum(float(numbers[k]) for numbers in column)
            for column, k in (([one.sums[0] for one in each], 0), *(([one.losses for one in each], k) for k in (0, 1)))
        )
        rows.append({"test_accuracy": right / tested, "test_loss": test / tested, "train_loss": train / trained})
    return state, rows, [None if models(i) is None else inner.export(models(i)) for i in range(len(SITES))]  # type: ignore[arg-type]


def kept(here: Federation, name: str) -> dict[str, torch.Tensor] | None:
    """A site's own model in its folder."""
    [*paths] = (here.folder / "sites" / name).glob("*/own/model.safetensors")
    return tensors.read(paths[0])[0] if paths else None


def compare(here: Federation, job: Mapping[str, Any]) -> None:
    """The server's state, every round's figures, and every site's own model, to 1e-12."""
    state, rows, models = simulation(here, job)
    want, got = leaves(state.server), here.server()
    assert max(far(got[leaf], want[leaf]) for leaf in want) < 1e-12
    for mine, theirs in zip(here.metrics(), rows, strict=True):
        assert {name: float(mine[name]) for name in theirs} == pytest.approx(theirs, rel=1e-12, abs=1e-12)
    for name, model in zip(SITES, models, strict=True):
        mine = kept(here, name)
        assert (mine is None) == (model is None)
        assert mine is None or max(far(mine[leaf], model[leaf]) for leaf in model) < 1e-12


@pytest.mark.parametrize("name", JOBS)
def test_sites_come_to_the_own_models_of_serial(name: str, files: Path, tmp_path: Path) -> None:
    here = Federation(JOBS[name], files, tmp_path)
    assert here.serve().status == "complete"
    compare(here, JOBS[name])


def test_a_site_that_never_took_part_is_left_out(files: Path, tmp_path: Path) -> None:
    job = with_(PER, cohort=1, rounds=2)
    here = Federation(job, files, tmp_path)
    here.serve()
    assert sum(kept(here, name) is not None for name in SITES) in (1, 2)
    compare(here, job)


@pytest.mark.parametrize("name", ["FedPer", "a message after the step", "Ditto"])
def test_killed_and_resumed_it_comes_to_the_same(name: str, files: Path, tmp_path: Path) -> None:
    """The server never hears what its sites have done, time and again, and then meets other processes of theirs."""
    job, kills = with_(JOBS[name], cohort=3), 0
    here = Federation(job, files, tmp_path)

    def killed_after(left: int) -> Exchange:
        def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
            nonlocal left
            left -= 1
            answers = here.exchange(messages, wait)
            if left == 0:
                raise Killed
            return answers

        return exchange

    for left in (5, 1, 2, 3, 1, 2, 1, 10**6):  # the first judges before round 0
        try:
            here.serve(killed_after(left), resume=True)
        except Killed:
            kills += 1
            here.sites.clear()
    assert kills == 7
    compare(here, job)


def test_a_reply_that_is_lost_moves_no_own_model(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(PER, cohort=3), files, tmp_path)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers, frame = dict(here.exchange(messages, wait)), codec.read(messages["bern"])
        if frame.kind == "orders" and frame.round == 2:
            del answers["bern"]
        return answers

    here.serve(exchange)
    [path] = (tmp_path / "sites" / "bern").glob("*/row.safetensors")
    rows, mine = tensors.read(path)[0], kept(here, "bern")
    assert mine is not None
    own = torch.cat([mine["5.weight"].flatten(), mine["5.bias"]])
    assert torch.equal(own, rows["row.private"])
    assert not torch.equal(own, rows["pending.private"])


def test_nothing_of_a_private_part_is_in_a_message(files: Path, tmp_path: Path) -> None:
    here, sent = Federation(PER, files, tmp_path), list[bytes]()

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = here.exchange(messages, wait)
        sent.extend([*messages.values(), *answers.values()])
        return answers

    here.serve(exchange)
    shared = sum(leaf.numel() for name, leaf in (kept(here, "basel") or {}).items() if not name.startswith("5."))
    for frame in map(codec.read, sent):
        assert all(leaf.numel() == shared for name, leaf in frame.tensors.items() if name.startswith(("up/", "down/")))
    began, _ = tensors.read(here.folder / "run" / "model.safetensors")
    written = [path.read_bytes() for path in (here.folder / "run").rglob("*") if path.is_file()]
    for name in SITES:
        mine = kept(here, name)
        if mine is None:
            continue
        moved = [mine[part][mine[part] != began[part]].numpy() for part in ("5.weight", "5.bias")]  # some have no slope
        values = {value.tobytes() for part in moved for value in part}
        assert len(values) > 100
        assert not any(value in data for data in [*sent, *written] for value in values)
    lines = Ledger(here.folder / "sites" / "bern" / "ledger.txt").lines()
    assert {" ".join(line["tensors"]) for line in lines if line["answer"] == "reply"} == {f"up/[{shared}]"}
    assert not (here.folder / "run" / "model.json").exists()  # the server's model answers nothing by itself


def test_a_site_predicts_with_its_own_model(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(PER, cohort=3), files, tmp_path)
    here.serve()
    said = []
    for name in ("bern", "chur"):
        [folder] = (tmp_path / "sites" / name).glob("*/own")
        out = predict(folder, files / "bern.csv", tmp_path / f"{name}.csv")
        said.append(np.array([row.split(",")[-3:] for row in out.read_text().splitlines()[1:]]))
        opened = here.site(name)._opened
        assert opened is not None
    assert (said[0] != said[1]).any()
    assert "predict" not in (tmp_path / "run" / "README.txt").read_text()


def test_figures_of_own_models_in_a_secure_sum(files: Path, tmp_path: Path) -> None:
    job = with_(PER, cohort=3)
    plain = Federation(job, files, tmp_path / "plain")
    secure = Federation(with_(job, secure={"clip": 8.0, "bits": 48}), files, tmp_path / "secure")
    assert plain.serve().status == secure.serve().status == "complete"
    same_figures(secure, plain)
    for name in SITES:
        mine, theirs = kept(secure, name), kept(plain, name)
        assert mine is not None
        assert theirs is not None
        assert max(far(mine[leaf], theirs[leaf]) for leaf in mine) < 1e-6


# -- servers that lie --------------------------------------------------------------------------------------------------


def bern(here: Federation, meddle: Callable[[str, Frame], Frame | None]) -> dict[str, Frame]:
    """The last messages of each kind to one site of a run."""
    last: dict[str, Frame] = {}

    def kept_of(name: str, frame: Frame) -> Frame | None:
        if name == "bern":
            last[frame.kind] = frame
        return meddle(name, frame)

    here.serve(meddling(here, kept_of))
    return last


def test_a_server_chooses_neither_the_row_nor_how_often(files: Path, tmp_path: Path) -> None:
    """Another reply than the site's last is none of its own; each reply and model is a question, which counts."""
    here = Federation(with_(PER, cohort=3), files, tmp_path)
    last = bern(here, lambda name, frame: frame)["judge"]
    counted = last.fields["counted"]

    def said(**changes: Any) -> Frame:
        fields, moved = {**last.fields, **changes}, {"x/": last.tensors["x/"] + changes.pop("by", 0.0)}
        fields = {name: value for name, value in fields.items() if name != "by"}
        return codec.read(here.site("bern").answer(codec.write(last._replace(fields=fields, tensors=moved))))

    assert said().kind == "judged"
    for other in ([counted[0], counted[1] + 1], [counted[0] - 2, 0], [counted[0] + 1, 0]):
        answer = said(counted=other)
        assert answer.fields["why"].startswith(f"it says that the reply of round {other[0]} counted, and the site's")
    why = "it says that no reply counted, and the site's last is another one"
    assert said(counted=None).fields["why"] == said(counted=None, by=7.0).fields["why"] == why
    assert said(counted="x").kind == said(counted=[]).kind == "refused"
    most = evaluations(source_of(here.job)) + 3
    kinds = [said(by=float(k + 1)).kind for k in range(20)]
    assert kinds.count("judged") == 3
    assert said(by=50.0).fields["why"] == f"it has judged {most} models in this run, and its job has no more to ask of"
    before = [said(counted=None, by=float(k)).kind for k in range(1, 5)]  # what it began with, in the same count
    assert before == ["refused"] * 4


def test_orders_of_a_whole_model_are_refused(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(PER, cohort=3), files, tmp_path)

    def whole(name: str, frame: Frame) -> Frame:
        more = {leaf: torch.cat([value, torch.zeros(603, dtype=value.dtype)]) for leaf, value in frame.tensors.items()}
        return frame._replace(tensors=more) if frame.kind == "orders" and name == "bern" else frame

    bern(here, whole)
    [site] = [one for one in here.said()["sites"] if one["name"] == "bern"]
    assert list(site["refused"]) == ["the site refused what it was sent: it is out of date, or not for this site"]
    assert kept(here, "bern") is None


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"method": "fedpd", "cohort": 3}, "sites hear of rounds without messages with their next orders"),
        ({"clock": "asynchronous(2)", "cohort": 1}, "asynchronous rounds (clock) are of models that are shared whole"),
        ({"local": {"private": "*"}}, "so that nothing is left to share"),
    ],
)
def test_what_own_models_cannot_have_at_sites_is_one_sentence(
    changes: dict[str, Any], why: str, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        Federation(with_(PER, **changes), files, tmp_path).serve()
    assert why in str(error.value)


def test_parts_that_differ_are_said_before_round_0(files: Path, tmp_path: Path) -> None:
    other = with_(PER, local={"private": "3.*"})
    with pytest.raises(UserError, match=r"site bern: the private part of the model is 3\.\* there and 5\.\* here"):
        Federation(PER, files, tmp_path, bern=other).serve()


def test_a_preview_has_what_is_shared_alone(files: Path) -> None:
    answers, why = preview("\n".join([Federation(PER, files, files).job]), files / "bern.csv", "bern")
    assert why is None
    [reply] = [one for one in answers if one.kind == "reply"]
    assert [line for line in reply.leaves if line.startswith("up")] == ["up: 42000 numbers (float64)"]
