"""Letters to sites over a post in this process: what is awaited, what is taken as it comes, and who is away."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedconcord.study.settings.sources import from_nested
from fedconcord_flower import carrier
from fedconcord_flower.carrier import Back, Carrier, Letter, Node
from fedconcord_flower.events import nameless, teller
from fedconcord_sites.form import has_secret_cohorts


class Office:
    """A post whose nodes answer after so many looks, or never."""

    def __init__(self, **answers_after: int | None) -> None:
        self.after, self.looks = answers_after, 0
        self.away: set[str] = set()
        self.node = {name: k + 1 for k, name in enumerate(answers_after)}
        self.came = dict.fromkeys(answers_after, "first")
        self.letters: dict[str, tuple[int, Letter]] = {}

    def online(self) -> Mapping[str, Node]:
        return {name: (node, self.came[name]) for name, node in self.node.items() if name not in self.away}

    def send(self, letters: Sequence[Letter]) -> Sequence[str]:
        sent = []
        for letter in letters:
            name = next(name for name, node in self.node.items() if node == letter.node)
            sent.append("" if self.after[name] == 0 else f"{name}{len(self.letters)}")
            if sent[-1]:
                self.letters[sent[-1]] = (self.looks, letter)
        return sent

    def fetch(self, identities: Sequence[str]) -> Sequence[Back]:
        self.looks += 1
        found = []
        for identity in identities:
            since, letter = self.letters[identity]
            after = self.after[identity.rstrip("0123456789")]
            if after is not None and self.looks - since >= after:
                found.append(Back(identity, letter.node, letter.data.upper(), ""))
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "LOOK", 0.02)


def test_a_flow_hands_over_what_comes_and_waits_for_nobody_else() -> None:
    office, events = Office(near=1, far=4), list[Mapping[str, object]]()
    post = Carrier(office, events.append)
    assert post.flow({"near": b"a", "far": b"b"}, 9.0) == {"near": b"A"}
    assert post.flow({"near": b"c"}, 9.0) == {"near": b"C"}
    assert post.flow({}, 9.0) == {"far": b"B"}
    assert post.flow({}, 9.0) == {}
    assert [event["answered"] for event in events] == [["near"], ["near"], ["far"], []]


def test_an_exchange_waits_for_all_that_are_there_and_is_apart_from_the_flow() -> None:
    office = Office(near=1, far=4, gone=1)
    office.away.add("gone")
    post = Carrier(office, lambda event: None)
    assert post.flow({"near": b"x", "far": b"y"}, 9.0) == {"near": b"X"}
    assert post({"near": b"a", "gone": b"b"}, 9.0) == {"near": b"A"}
    assert post({"near": b"a", "far": b"b"}, 9.0) == {"near": b"A", "far": b"B"}
    assert post.flow({}, 9.0) == {"far": b"Y"}


def test_who_does_not_answer_in_time_or_goes_away_is_none() -> None:
    office = Office(never=None, near=2, closed=0)
    post = Carrier(office, lambda event: None)
    assert post.flow({"never": b"a", "near": b"b"}, 0.3) == {"near": b"B"}
    assert post.flow({}, 9.0) == {"never": None}
    assert post.flow({"closed": b"a"}, 0.1) == {"closed": None}
    assert post.flow({"never": b"a", "near": b"b"}, 9.0) == {"near": b"B"}
    office.came["never"] = "second"  # it came anew, and has no letters
    assert post.flow({}, 9.0) == {"never": None}
    assert post({"never": b"a", "near": b"b"}, 0.3) == {"near": b"B"}


def test_who_is_asked_is_not_said_where_coins_are_secret(tmp_path: Path) -> None:
    """As `sampling=poisson` counts on with privacy; numbers alone, in a file that is its owner's."""
    path, office = tmp_path / "events.jsonl", Office(near=1, far=1, gone=None)
    post = Carrier(office, nameless(teller(str(path))))
    assert post({"near": b"a", "gone": b"b"}, 0.2) == {"near": b"A"}
    assert post.flow({"far": b"c"}, 9.0) == {"far": b"C"}
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {"number_asked": 2, "number_answered": 1, "number_failed": 1}
    assert second == {"number_asked": 1, "number_answered": 1, "number_failed": 0}
    assert path.stat().st_mode & 0o077 == 0
    sources = [
        from_nested({"privacy": {"clip": clip}, "sampling": sampling}, "a test")
        for clip, sampling in ((1.0, "poisson"), (1.0, "uniform"), (None, "poisson"))
    ]
    assert [has_secret_cohorts(source) for source in sources] == [True, False, False]


def test_a_site_that_is_away_gets_its_letter_when_it_comes() -> None:
    office = Office(near=1, late=1)
    office.away.add("late")
    post = Carrier(office, lambda event: None)
    assert post.flow({"late": b"a", "near": b"b"}, 9.0) == {"near": b"B"}
    office.away.clear()
    assert post.flow({}, 9.0) == {"late": b"A"}
    office.away.add("late")
    began = time.monotonic()
    assert post.flow({"late": b"a"}, 0.2) == {"late": None}
    assert time.monotonic() - began >= 0.2
    assert post({"late": b"a"}, 0.1) == {}
