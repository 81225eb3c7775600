"""Sites with a model that normalises by statistics of all of their samples: what serial makes of them, and what a
server that lies gets."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import BASE, SITES, Federation, far, files, quick_disk, same, same_figures, simulated, text, with_
from test_jury import meddling

from fedconcord import predict
from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.execution.rows import tensors
from fedconcord.federation.objectives.judging import supervised
from fedconcord.study.settings import problem
from fedconcord.study.settings.job import build
from fedconcord.study.settings.resolve import resolve_run
from fedconcord.study.settings.sources import from_nested
from fedconcord.support import imports
from fedconcord.support.errors import UserError
from fedconcord_flower.preview import TELLS, preview
from fedconcord_sites import form
from fedconcord_sites.form import source_of
from fedconcord_sites.ledger import Ledger
from fedconcord_sites.policy import evaluations
from fedconcord_sites.site import Site

__all__ = ["files", "quick_disk"]  # fixtures
MODULE = """
from torch import nn

def dense(shape, classes):
    return nn.Sequential(
        nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.BatchNorm1d(5, eps=1e-3), nn.ReLU(),
        nn.Linear(5, classes),
    )

class Turned(nn.Module):  # whose second layer comes first
    def __init__(self, shape, classes):
        super().__init__()
        self.late, self.early = nn.BatchNorm1d(3, affine=False), nn.BatchNorm2d(2)
        self.conv, self.last = nn.Conv2d(2, 3, 3), nn.Linear(3, classes)
    def forward(self, x):
        return self.last(self.late(self.conv(self.early(x)).amax((2, 3))))
"""
JOB = with_(BASE, method="fedavg", model="normmodule:dense", rounds=3, cohort=3)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "normmodule.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "normmodule", raising=False)
    imports.trust("normmodule:dense, normmodule:Turned")


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site makes a problem of its own, as its own process would, and shares no cache of statistics with others."""

    def shell(*args: Any) -> Any:
        problem.forget_problem()
        alone = form.shell(*args)
        problem.forget_problem()
        return alone

    monkeypatch.setattr("fedconcord_sites.site.shell", shell)


def exported(job: Mapping[str, Any], data: Path, x: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """The model x [d] with the statistics of all clients' samples, by the simulation."""
    more = {"data": str(data), "validation": "none", "input": {"client": "site"}, "engine": {"name": "serial"}}
    inner = supervised(build(resolve_run(from_nested(with_(job, **more), "here"))).problem)
    assert inner is not None
    return inner.export(x)


def has_statistics_of_all(here: Federation, job: Mapping[str, Any], data: Path) -> None:
    state, rows = simulated(job, data)
    same(here, state, rows)
    kept, _ = tensors.read(here.folder / "run" / "model.safetensors")
    want = exported(job, data, state.server.x)
    assert kept.keys() == want.keys()
    assert any(name.endswith("running_var") for name in want)
    assert max(far(kept[name], want[name]) for name in want) < 1e-12


@pytest.mark.parametrize("changes", [{}, {"method": "scaffold", "cohort": 2}], ids=["all", "some"])
def test_statistics_are_those_of_all_samples(changes: Mapping[str, Any], files: Path, tmp_path: Path) -> None:
    job = with_(JOB, **changes)
    here = Federation(job, files, tmp_path)
    here.serve()
    has_statistics_of_all(here, job, files / "all.csv")
    assert predict(tmp_path / "run", files / "bern.csv", tmp_path / "out.csv", trust=True).exists()


def test_layers_are_taken_in_the_order_of_the_pass(tmp_path: Path) -> None:
    draw, every = np.random.default_rng(1), []
    for k, name in enumerate(SITES):
        x, y = draw.integers(20 * k, 256, (20 + k, 2, 5, 5), np.uint8), draw.integers(0, 3, 20 + k)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        every.append((x, y, np.full(20 + k, name)))
    x, y, client = (np.concatenate(part) for part in zip(*every, strict=True))
    np.savez(tmp_path / "all.npz", x=x, y=y, site=client)
    job = with_({**JOB, "input": {}}, model="normmodule:Turned", rounds=2, local={"batch_size": 6})
    here = Federation(job, tmp_path, tmp_path)
    here.site = lambda name: Site(here.job, tmp_path / f"{name}.npz", tmp_path / "sites" / name, name)  # type: ignore[method-assign]
    here.serve()
    has_statistics_of_all(here, job, tmp_path / "all.npz")


def test_an_evaluation_is_an_exchange_a_layer_and_one(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(JOB, eval={"every": 2}), files, tmp_path)
    here.serve()
    lines = Ledger(tmp_path / "sites" / "bern" / "ledger.txt").lines()
    judged = [line for line in lines if line["kind"] == "judge"]
    assert [line.get("layer") for line in judged] == [0, 1, None] * 3  # before round 0, after the second and the last
    assert " ".join(judged[0]["tensors"]) == "figures/counts[1] figures/first[6] figures/second[6]"
    assert here.serve(resume=True).status == "complete"  # of a run that is over: the model keeps its statistics
    kept, _ = tensors.read(tmp_path / "run" / "model.safetensors")
    state, _ = simulated(JOB, files / "all.csv")
    want = exported(JOB, files / "all.csv", state.server.x)
    assert max(far(kept[name], want[name]) for name in want) < 1e-12


def test_statistics_in_a_secure_sum(files: Path, tmp_path: Path) -> None:
    """The model is another by the rounding of its own sums, and so are they."""
    plain = Federation(JOB, files, tmp_path / "plain")
    secure = Federation(with_(JOB, secure={"clip": 16.0, "bits": 48}), files, tmp_path / "secure")
    assert plain.serve().status == secure.serve().status == "complete"
    same_figures(secure, plain)
    models = [tensors.read(here.folder / "run" / "model.safetensors")[0] for here in (secure, plain)]
    assert max(far(models[0][name], models[1][name]) for name in models[1]) < 1e-6
    lines = Ledger(tmp_path / "secure" / "sites" / "bern" / "ledger.txt").lines()
    assert {" ".join(line["tensors"]).partition("[")[0] for line in lines if line["kind"] == "judge"} == {"covered/"}


def test_first_evaluations_that_nobody_could_make_end_nothing(files: Path, tmp_path: Path) -> None:
    here, began = Federation(with_(JOB, secure={"clip": 16.0, "bits": 48}), files, tmp_path), list[str]()

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        kind = codec.read(next(iter(messages.values()))).kind
        if kind == "orders":
            began.append(kind)
        if kind == "orders" and len(began) == 2:
            kept, _ = tensors.read(tmp_path / "run" / "model.safetensors")
            assert "1.running_mean" not in kept
            assert "1.weight" in kept
        is_away = kind == "judge-keys" and len(began) < 2
        return here.exchange({"bern": messages["bern"]} if is_away else messages, wait)

    assert here.serve(exchange).status == "complete"
    assert [row["round"] for row in here.metrics()] == ["2", "3"]
    kept, _ = tensors.read(tmp_path / "run" / "model.safetensors")
    assert "1.running_mean" in kept


# -- servers that lie --------------------------------------------------------------------------------------------------


def last_of(here: Federation, meddle: Callable[[str, Frame], Frame | None] = lambda name, frame: frame) -> list[Frame]:
    """The questions of bern's evaluations."""
    asked: list[Frame] = []

    def kept(name: str, frame: Frame) -> Frame | None:
        if name == "bern" and frame.kind == "judge":
            asked.append(frame)
        return meddle(name, frame)

    here.serve(meddling(here, kept))
    return asked


def test_statistics_are_asked_for_as_often_as_the_job_judges(files: Path, tmp_path: Path) -> None:
    """Other models, other statistics of the layers before, layers that there are not, and those of figures."""
    here = Federation(JOB, files, tmp_path)
    asked = last_of(here)
    most = evaluations(source_of(here.job)) + 3

    def said(frame: Frame, by: float, **fields: Any) -> Frame:
        moved = {name: leaf + by for name, leaf in frame.tensors.items()}
        return codec.read(here.site("bern").answer(codec.write(frame._replace(fields=fields, tensors=moved))))

    first, second, figures = asked[-3:]
    for frame, layer in ((first, {"layer": 0}), (second, {"layer": 1}), (figures, {})):
        assert said(frame, 0.0, **layer).kind == "judged"  # in the same words
        answers = [said(frame, float(k + 1), **layer) for k in range(10)]
        assert [one.kind for one in answers] == ["judged"] * 3 + ["refused"] * 7
        assert f" {most} models in this run, and its job has no more to ask of" in answers[-1].fields["why"]
    for layer in (2, 10**6):
        why = f"it asks what layer {layer} gets, and 2 layers normalise by statistics of all sites"
        assert said(figures, 0.0, layer=layer).fields["why"] == why
    assert said(figures, 0.0, layer=-1).kind == said(figures, 0.0, layer=1.0).kind == "refused"
    assert said(first, 50.0, layer=1).kind == "refused"  # without the statistics of the layer before


def test_a_job_without_such_layers_says_nothing_of_its_activations(files: Path, tmp_path: Path) -> None:
    here = Federation(with_(JOB, model="2nn"), files, tmp_path)
    frame = last_of(here)[-1]
    answer = codec.read(here.site("bern").answer(codec.write(frame._replace(fields={"layer": 0}))))
    assert answer.fields["why"] == "it asks what layer 0 gets, and 0 layers normalise by statistics of all sites"


def test_sums_of_another_number_of_rows_are_refused(files: Path, tmp_path: Path) -> None:
    here = Federation(JOB, files, tmp_path)

    def exchange(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        frame = codec.read(answers["bern"])
        if "figures/first" in frame.tensors:
            more = {**frame.tensors, "figures/counts": frame.tensors["figures/counts"] + 1}
            answers["bern"] = codec.write(frame._replace(tensors=more))
        return answers

    here.serve(exchange)
    [site] = [one for one in here.said()["sites"] if one["name"] == "bern"]
    assert list(site["refused"]) == ["figures of another number of samples"]
    assert site["refused"]["figures of another number of samples"] == 8  # two layers, four evaluations


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"local": {"private": "6.*"}}, "and a site's own model has none; use norm=frozen"),
        ({"method": "ditto"}, "and a site's own model has none; use norm=frozen"),
        ({"norm": "silo"}, "and a site's own model has none; use norm=frozen"),
        ({"clock": "asynchronous(2)", "cohort": 1}, "without rounds (clock) those at work would be missing in them"),
    ],
)
def test_what_statistics_do_not_go_with_is_one_sentence(
    changes: dict[str, Any], why: str, files: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        Federation(with_(JOB, **changes), files, tmp_path).serve()
    assert "layer '1' normalises by statistics of all sites' rows" in str(error.value)
    assert why in str(error.value)


def test_privacy_covers_no_statistics(tmp_path: Path) -> None:
    """Nor would a site say them to a server that has such a job without privacy."""
    draw = np.random.default_rng(0)
    for name in SITES:
        np.savez(tmp_path / f"{name}.npz", x=draw.integers(0, 256, (20, 4), np.uint8), y=np.arange(20) % 3)
    job = {key: value for key, value in JOB.items() if key != "input"}
    private = with_(job, privacy={"clip": 0.1, "noise": 1.0})
    here = Federation(job, tmp_path, tmp_path)
    sites = {name: Site(text(private), tmp_path / f"{name}.npz", tmp_path / "sites" / name, name) for name in SITES}
    here.site = lambda name: sites[name]  # type: ignore[method-assign]
    for one in (here, Federation(private, tmp_path, tmp_path)):
        one.site = here.site  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"and privacy\.clip covers no sums of a site's rows; use norm=frozen"):
            one.serve()


def test_a_preview_shows_sums_and_figures(files: Path, tmp_path: Path) -> None:
    answers, why = preview(Federation(JOB, files, tmp_path).job, files / "bern.csv", "bern")
    assert why is None
    layers, figures = [one for one in answers if one.question == "judge"]
    assert (layers.most, figures.most) == (8, 4)
    assert layers.tells == TELLS["layer"]
    assert [line.partition(":")[0] for line in layers.leaves[:3]] == [
        *("figures/counts", "figures/first", "figures/second")
    ]
    assert figures.tells == TELLS["judged"]
