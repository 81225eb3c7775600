"""A server that lies about who is in a secure sum and what each weighs, against honest sites. Each attack is tried with
the check taken out too, where it works: what the server gets otherwise is the check's doing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_deploy_core import SITES, Federation, arriving, files, late, quick_disk
from test_secure import FINE, Party, far, job_with

from fedconcord.execution.messages import codec, member, secure
from fedconcord.execution.messages.codec import Frame
from fedconcord.federation.data.inputs import held_out
from fedconcord.method.contract import Plan, Roster, roster_of, weights
from fedconcord_sites import serve, weighing
from fedconcord_sites.policy import USUAL, Policy
from fedconcord_sites.site import NAMED, Site
from table import make

__all__ = ["files", "quick_disk"]  # fixtures

ROWS = {"basel": 23, "bern": 17, "chur": 31}
TRAINED = [ROWS[name] - len(held_out(i, ROWS[name], 0.2)) for i, name in enumerate(SITES)]


# -- a list of numbers of samples for each site ------------------------------------------------------------------------


def listed(party: Party, lists: Mapping[int, Sequence[int]]) -> None:
    """Tell each of these clients its own list of numbers of samples."""

    def tell(client: int, samples: Sequence[int]) -> None:
        part, job, roster = party.clients[client].member, party.job, roster_of(np.cumsum([0, *samples]))

        def plans(t: int, ids: Sequence[int]) -> Plan:
            drawn = job.schedule.plan(t, job.algorithm, roster)
            return weights.redrawn(drawn, np.isin(drawn.ids, ids), job.algorithm.weights)

        assert part is not None
        part.terms, part.plans = part.terms._replace(samples=tuple(samples)), plans

    for client, samples in lists.items():
        tell(client, samples)


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_list_for_each_site_gives_no_sum(is_bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site is told its own right number; the victim that the others have one sample, the others that the victim
    has 10^12. Were masks not made for the list, the sum would be the victim's message."""
    party = Party(make("fedavg", weights="size"), FINE)
    own, (victim, *others) = party.job.problem.roster.samples.tolist(), party.cohort(0)
    small = [10**12 if j == victim else n for j, n in enumerate(own)]
    large = [n if j == victim else 1 for j, n in enumerate(own)]
    own_weight = large[victim] / sum(large[i] for i in (victim, *others))
    listed(party, {victim: large, **dict.fromkeys(others, small)})
    if not is_bound:
        context = member.context
        for module in (member, secure):
            monkeypatch.setattr(module, "context", lambda *args: context(*args[:-1], args[-1]._replace(samples=())))
    alone = Party(make("fedavg", weights="size"), None)
    alone.round(0)
    x0, moves = party.server.x, {i: frame.tensors["up/"] for i, frame in _replies(alone).items()}
    party.round(0)
    if is_bound:
        assert len(party.voids) == 1
        assert far(party.server.x, x0) == 0
        return
    assert party.voids == []
    got = (party.server.x - x0) / own_weight
    assert float((got - moves[victim]).abs().max()) < 1e-6 * float(moves[victim].abs().max())


def _replies(party: Party) -> dict[int, Frame]:
    return {frame.client: frame for frame in party.log if frame.kind == "reply"}


def test_a_cohort_that_the_job_does_not_draw_is_refused() -> None:
    party, friends = Party(make("fedavg"), FINE), Party(make("fedavg"), FINE)
    others = next(
        seed
        for seed in range(99)
        if replace(party.job.schedule, seed=seed).plan(0, party.job.algorithm, party.job.problem.roster).ids.tolist()
        != party.cohort(0)
    )
    mine = party.job.schedule
    for client in party.clients.values():
        assert client.member is not None
        client.member.plans = friends.plans  # by the honest job
    party.change(schedule=replace(mine, seed=others))
    strange = min({*party.cohort(0)} - {*friends.cohort(0)})
    party.round(0)
    why = f"client {strange} is in this sum, and its job draws others for round 0"
    assert {said for _, said in party.refused} == {why}
    assert {frame.kind for frame in party.log} == {"keys"}
    assert len(party.voids) == 1


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "feddyn", "fedvra", "mimesvrg"])
def test_weights_and_scalars_in_the_servers_words_are_not_read(name: str) -> None:
    plain, party = Party(make(name), None), Party(make(name), FINE)

    def meddle(client: int, frame: Frame) -> Frame:
        if "sum" not in frame.fields:
            return frame
        lie = {"w": float(client == 3), "p": 1e-9, "steps": 1.0, "inclusion": 1.0, "lr": 0.0}
        about = {**frame.fields["sum"], "sender": lie, "cohort": {"mass": 1e9, "mean_steps": 1e9, "size": 1, "n": 1}}
        return frame._replace(fields={**frame.fields, "sum": about})

    party.meddle = meddle
    for t in range(2):
        plain.round(t)
        party.round(t)
    assert far(party.server, plain.server) < 1e-9
    assert party.voids == party.refused == []


# -- a deployment ------------------------------------------------------------------------------------------------------


class Liar:
    """A server that says other numbers of samples to all sites, and reckons with them itself."""

    def __init__(self, here: Federation, numbers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.here, self.numbers = here, numbers
        terms = serve.terms_of
        monkeypatch.setattr(
            serve, "terms_of", lambda config, roster, homes: terms(config, roster_of(np.cumsum([0, *numbers])), homes)
        )

    def exchange(self, messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        changed = dict(messages)
        for name, data in messages.items():
            frame = codec.read(data)
            if frame.kind == "setup":
                fields = {**frame.fields, "samples": self.numbers}
                changed[name] = codec.write(frame._replace(fields=fields))
        return self.here.exchange(changed, wait)


def lenient(here: Federation, share: float = 1.0) -> None:
    """Sites that may weigh so much."""
    rules = Policy(**{**USUAL.model_dump(), "largest_share": share})
    for name in here.names:
        place = here.folder / "sites" / name
        data = here.files / f"{name}.csv"
        here.sites[name] = Site(here.job, data, place, name, policy=rules, keys=here.folder / "keys")


def unchecked(frame: Frame, samples: int, tokens: int | None) -> Roster:
    """A list of which no site looks after its own number."""
    return roster_of(np.cumsum([0, *frame.fields["samples"]]))


JOB = job_with("fedavg", rounds=1)


def test_a_sum_is_not_made_of_one_site_by_its_number_of_samples(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Federation(JOB, files, tmp_path / "honest")
    lenient(here)
    liar = Liar(here, [1, 10**9, 1], monkeypatch)
    said = serve.check(here.job, here.names, liar.exchange, 1.0)
    assert said == [
        f"site {name}: the site refused what it was sent: it has {n} training samples, and {lie} by the server's list"
        for name, n, lie in zip(SITES, TRAINED, liar.numbers, strict=True)
    ]
    assert not list((tmp_path / "honest" / "sites").glob("*/*/setup.frame"))
    monkeypatch.setattr(weighing, "roster", unchecked)
    one, sent = Federation(JOB, files, tmp_path / "open"), dict[str, torch.Tensor]()
    lenient(one)
    Liar(one, liar.numbers, monkeypatch)
    flat = member.flat

    def seen(contribution: Any) -> np.ndarray:
        sent[str(len(sent))] = torch.from_numpy(flat(contribution))
        return flat(contribution)

    monkeypatch.setattr(member, "flat", seen)
    liar.here = one
    assert one.serve(liar.exchange).status == "complete"
    sizes = sorted(float(each.norm()) for each in sent.values())
    assert sizes[1] < 1e-6 * sizes[2]  # the sum is of one site


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        (None, "numbers of training samples that are none of 1 to"),
        ([18, 14], "numbers of training samples that are none of 1 to"),
        ([18, 14, 2**40], "numbers of training samples that are none of 1 to"),
        ([18, 14, 0], "numbers of training samples that are none of 1 to"),
        ([18, 14, 2.5], "a field that is no whole number"),
    ],
)
def test_lists_that_no_sites_have_are_refused(
    numbers: Any, why: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Federation(JOB, files, tmp_path)
    liar = Liar(here, numbers or [], monkeypatch)
    said = serve.check(here.job, here.names, liar.exchange, 1.0)
    assert len(said) == 3
    assert all(why in one for one in said)


def test_a_site_that_would_weigh_too_much_takes_no_part(files: Path, tmp_path: Path) -> None:
    """By all sites before round 0, and by those who are left of a sum in it."""
    here = Federation({**JOB, "secure": {**JOB["secure"], "threshold": 0.6}}, files, tmp_path)
    share = TRAINED[2] / sum(TRAINED)
    lenient(here, share - 0.01)
    assert serve.check(here.job, here.names, here.exchange, 1.0) == [
        f"site chur: the site refused what it was sent: it would weigh {share:.4g} of a secure sum, and the site's "
        f"policy allows {share - 0.01:g} (largest_share); leave the site out, or train with more or larger sites"
    ]
    lenient(here, share + 0.01)

    def lossy(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        answers = dict(here.exchange(messages, wait))
        if codec.read(next(iter(messages.values()))).kind == "deal":
            del answers["basel"]
        return answers

    here.serve(lossy)
    assert here.said()["rounds_void"] == 1
    [chur] = [site["refused"] for site in here.said()["sites"] if site["name"] == "chur"]
    left = TRAINED[2] / (TRAINED[1] + TRAINED[2])
    assert f"it would weigh {left:.4g} of a secure sum, and the site's policy allows" in next(iter(chur))


def test_the_weight_in_the_objective_is_the_jobs(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Federation(job_with("fedvra", rounds=1), files, tmp_path)

    def lie(messages: Mapping[str, bytes], wait: float) -> Mapping[str, bytes]:
        changed = dict(messages)
        for name, data in messages.items():
            frame = codec.read(data)
            if frame.kind == "orders":
                orders = {**frame.fields["orders"], "p": 0.5}
                changed[name] = codec.write(frame._replace(fields={**frame.fields, "orders": orders}))
        return here.exchange(changed, wait)

    here.serve(lie)
    assert here.said()["rounds_void"] == 1
    for site, n in zip(here.said()["sites"], TRAINED, strict=True):
        why = f"p 0.5 in round 0, where the site's own job has {n / sum(TRAINED)}"
        assert [*site["refused"]] == [f"the site refused what it was sent: {why}"]


def test_parts_of_named_data_weigh_what_they_have(tmp_path: Path) -> None:
    job = {
        "data": "digits",
        "partition": "dirichlet(0.5)",
        "model": "logreg",
        "objective": "samples",
        "method": "fedavg",
    }
    job |= {"rounds": 1, "cohort": 3, "local": {"steps": 1}, "secure": {"clip": 8}}
    here = Federation(job, tmp_path, tmp_path)
    for name in SITES:
        here.sites[name] = Site(here.job, NAMED, tmp_path / name, name, keys=tmp_path / "keys")
    assert here.serve().status == "complete"
    assert here.said()["rounds_void"] == 0


@pytest.mark.parametrize(
    "participation",
    [
        *({"sampling": name} for name in ("uniform", "with_replacement", "bernoulli", "cyclic", "poisson")),
        {"sampling": "by_size", "objective": "paper", "method": "fednova(weights=uniform)"},
        {"sampling": "everyone", "cohort": 6},
        {"availability": "coins(0.8)"},
    ],
    ids=str,
)
def test_sites_draw_the_cohorts_of_their_server(participation: dict[str, Any], tmp_path: Path) -> None:
    """Six sites, of which nobody refuses a round; the model is that of plain sums where no sum was too small."""
    names, ends = [f"s{k}" for k in range(6)], list[dict[str, torch.Tensor]]()
    job = {"data": "digits", "partition": "dirichlet(0.5)", "model": "logreg", "objective": "samples", "cohort": 4}
    job |= {"method": "fednova", "rounds": 3, **participation, "local": {"steps": 2}, "engine": {"dtype": "float64"}}
    for secure_sums in ({"secure": {"clip": 64, "bits": 48, "threshold": 0.51}}, {}):
        folder = tmp_path / f"{len(secure_sums)}"
        here = Federation({**job, **secure_sums}, tmp_path, folder, names)
        for name in names:
            here.sites[name] = Site(here.job, NAMED, folder / name, name, keys=folder / "keys")
        here.serve()
        assert [site["refused"] for site in here.said()["sites"]] == [{}] * 6
        ends.append(here.server())
        if here.said()["rounds_void"]:  # cohorts of two
            return
    assert max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0]) < 1e-9


def test_a_site_that_comes_later_weighs_what_was_named(files: Path, tmp_path: Path) -> None:
    job = job_with("fedavg", rounds=6)
    here = Federation({**job, "secure": {**job["secure"], "threshold": 0.6}}, files, tmp_path)
    late(here, arriving(here, "chur", 6), ROWS["chur"])
    assert [event.text for event in here.events if event.kind == "joined"] == ["site chur joins"]
    assert 0 < here.said()["rounds_void"] < 6  # two sites hide nobody
    for name in SITES:
        [setup] = (tmp_path / "sites" / name).glob("*/setup.frame")
        assert codec.read(setup.read_bytes()).fields["samples"] == TRAINED
