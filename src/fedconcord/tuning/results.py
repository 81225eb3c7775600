"""What a search finds of each method, and in words how its trials stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedconcord.basis.errors import UserError
from fedconcord.report.format import value
from fedconcord.settings.methods import canonical_text, read_method
from fedconcord.settings.settings import Config
from fedconcord.tuning.scores import Objective, Score
from fedconcord.tuning.space import Space, Values, text_of


class Trial(NamedTuple):
    """One point of a method's space, as far as it went."""

    number: int
    values: Values
    scores: Mapping[int, Score]  # rounds -> score
    errors: tuple[str, ...]  # of runs that failed

    @property
    def rounds(self) -> int:
        """How far it went."""
        return max(self.scores)

    @property
    def last(self) -> Score:
        """After all its rounds."""
        return self.scores[self.rounds]


class MethodSearch(NamedTuple):
    """The trials of one method."""

    space: Space
    trials: tuple[Trial, ...]
    best: Trial | None  # None where nothing is looked for, or no trial ended well


def shown(objective: Objective, score: Score) -> str:
    """A score in words."""
    metric, target = objective.metric, objective.target
    words = f"{metric.title} {value(metric, score.value)}"
    if target is None or score.broken:
        return words
    if score.reached is None:
        return f"{words}, short of {target:g}"
    return f"{words}, {score.reached:.3g} rounds to {target:g}"


def refuse_none(searches: Sequence[MethodSearch]) -> None:
    """Go no further where nothing was found.

    Raises:
        UserError: methods were tuned, and no trial of any ended well.
    """
    tuned = [search for search in searches if search.trials]
    if tuned and all(search.best is None for search in tuned):
        errors = [error for search in tuned for trial in search.trials for error in trial.errors]
        why = f", the first because: {errors[0]}" if errors else ": all diverged; search smaller step sizes"
        raise UserError(f"no trial of any method ended well{why}")


def winner(config: Config, search: MethodSearch) -> str | None:
    """The text of a method as it goes into the final comparison; None where no trial ended well."""
    if search.space.places:
        return None if search.best is None else text_of(config, search.space.method, search.best.values)
    return search.space.method


def winners(config: Config, searches: Sequence[MethodSearch]) -> dict[str, str]:
    """Method as the user wrote it -> its text in the final comparison, where a trial ended well.

    Reports call a method that was tuned by its bare name, where no other has that: its values are long.
    """
    texts: dict[str, str] = {}
    bare = Counter(read_method(search.space.method)[0].name for search in searches)
    for search in searches:
        text = winner(config, search)
        if text is None or text in texts.values():
            continue
        call, overrides = read_method(text)
        if search.space.places and bare[call.name] == 1:
            text = canonical_text(config, call, {"label": call.name, **overrides})
        texts[search.space.method] = text
    return texts
