"""What the folders of runs say: how far a run came and what is to be told of it; and whether a job is still the same.

Two questions are asked of a folder that is resumed. Whether its settings are the same is answered here, of text and
numbers alone (`changed`); whether its trajectory can go on, by the checkpoint (`job.checkpoint.refuse_another`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedconcord.execution.run.folder import read_description, versions
from fedconcord.execution.run.tables import COUNTERS, PRIVATE, rows_of
from fedconcord.study.runs.events import Entry, Finished
from fedconcord.study.settings.contents import contents
from fedconcord.study.settings.objects import unchanged
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source, from_nested
from fedconcord.support import files, grammar, sums
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import flatten
from fedconcord.support.readers import read_json

NAMED = 5  # clients that a sentence names

# -- how far runs came ---------------------------------------------------------------------------------------------


def reached(entry: Entry) -> bool:
    """Whether a run needs no more rounds: it has as many or more, or it ended early."""
    if not entry.resume or not (entry.folder / "run.json").exists():
        return False
    saved, rounds = read_description(entry.folder), entry.config.rounds
    rounds_done, is_complete = int(saved["rounds_done"]), saved["status"] == "complete"
    ended_early = saved["status"] == "diverged" or (is_complete and "stopped" in saved)
    if ended_early and rounds_done % (entry.config.eval.every or 1) and rounds_done < rounds:
        return False  # it was judged after that round only because it was its last
    return ended_early or rounds_done > rounds or (is_complete and rounds_done == rounds)


def finished(folder: Path) -> Finished:
    """The outcome of the run of a folder.

    Raises:
        UserError: it holds no run, or a file is damaged.
    """
    saved, path = read_description(folder), folder / "metrics.csv"
    rows = rows_of(path) if path.exists() else []
    skip = ("round", *COUNTERS, *PRIVATE)
    metrics = {name: float(value) for row in rows[-1:] for name, value in row.items() if name not in skip and value}
    return Finished(folder, saved["label"], saved["seed"], saved["status"], saved["rounds_done"], metrics)


def not_done(entry: Entry, status: str, error: str | None = None) -> Finished:
    """The outcome of a run that failed or was interrupted."""
    rounds = rounds_behind(entry)
    return Finished(entry.folder, entry.config.label or "", entry.config.seed or 0, status, rounds, {}, error)


def rounds_behind(entry: Entry) -> int:
    """The rounds that its folder holds."""
    return int(read_description(entry.folder)["rounds_done"]) if (entry.folder / "run.json").exists() else 0


# -- what is told of them ------------------------------------------------------------------------------------------


def why_evaluated(folder: Path) -> str | None:
    """Why counted work decided how a run or a comparison is evaluated; None where it did not."""
    name = "compare.json" if (folder / "compare.json").exists() else "run.json"
    reason: str | None = read_json(folder / name).get("evaluation", {}).get("why")
    return reason


def sentences(folder: Path) -> Iterator[str]:
    """What a person should know of a run that ended: why it stopped, what was refused or lost, and what it spent."""
    saved = read_description(folder)
    if "stopped" in saved:
        yield saved["stopped"]
    if saved["status"] == "diverged":
        yield f"diverged: a metric is no longer finite after round {saved['rounds_done']}; a smaller --lr may help"
    yield from refusals(folder)
    if (wire := saved.get("wire")) is not None:
        payload, framing, again = (
            size(wire[f"{what}_down"] + wire[f"{what}_up"]) for what in ("payload", "framing", "resent")
        )
        yield (
            f"wire: {payload} of payload, {framing} of framing, {again} sent again; {wire['lost']} messages lost, "
            f"{wire['corrupted']} damaged, {wire['duplicated']} doubled, {wire['delayed']} delayed; {wire['refused']} "
            f"refused by the server, {wire['repeated']} it had already; {wire['client_restarts']} restarts of clients, "
            f"{wire['server_restarts']} of the server; {wire['clients_lost']} times a client was left out of a round"
        )
    for height, bytes_of in enumerate(saved.get("tree", ()), 1):
        down, up = (size(bytes_of[f"bytes_{way}"]) for way in ("down", "up"))
        yield f"tree: {down} down to edge servers of tier {height}, {up} up from them, beside what clients got and sent"
    if (privacy := saved.get("privacy")) is not None:
        yield f"privacy of a {privacy['unit']}: {privacy['said']}"


def refusals(folder: Path) -> Iterator[str]:
    """Whose replies the run of a folder left out as not finite; nothing of one that never began."""
    saved = read_description(folder) if (folder / "run.json").exists() else {}
    if (refused := saved.get("refused")) is not None:
        who = list(refused["clients"])
        names = ", ".join(who[:NAMED]) + (f" and {len(who) - NAMED} more" if len(who) > NAMED else "")
        yield (
            f"refused: {refused['replies']} replies with NaN or infinity were left out of their rounds, from "
            f"{len(who)} client{'s' * (len(who) > 1)}: {names}"
        )


def size(count: float) -> str:
    """Bytes as people write them: 1.5 GiB."""
    unit = min(max(int(math.log2(max(count, 1)) // 10), 0), 4)
    return f"{count / 2 ** (10 * unit):.{0 if unit == 0 else 1}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


# -- same or refuse ------------------------------------------------------------------------------------------------

MAY_CHANGE = {  # settings that a resumed study may change, and why it stays the same study
    "rounds": "a longer run goes on to what a run of so many rounds writes",
    "checkpoint.every": "it moves no number",
    "eval.target": "it is compared with what was measured",
    "eval.stop_at_target": "it ends a run and moves no number",
    "track": "trackers only look on",
    "engine.name": "engines agree to rounding",
    "engine.device": "devices agree to rounding",
    "engine.threads": "threads agree to rounding",
    "engine.timeout": "it moves no number",
    "engine.graphs": "graphs agree to rounding",
}
GROWS = ("methods", "seeds", "baselines")  # lists that a resumed comparison may add to
# of a folder that was written before clients set samples apart by themselves, and before data had a say in weights
BEFORE = {"validation": "none", "objective": "paper"}


def changed(request: Mapping[str, Any], stored: Mapping[str, Any]) -> str | None:
    """The first dotted key in which nested settings differ from those that are stored; None: they are the same."""
    new, old = (flatten(json.loads(json.dumps(one))) for one in (request, stored))
    return next((key for key in {**new, **old} if key not in new or key not in old or new[key] != old[key]), None)


def resumed(
    stored: Mapping[str, Any],
    changes: Sequence[Source],
    folder: Path,
    resolve: Callable[..., Config],
    may_change: Collection[str] = MAY_CHANGE,
) -> tuple[Config, Config]:
    """The settings of a folder as they are stored, and with the changes that a user asks for.

    Args:
        resolve: makes settings of sources.

    Raises:
        UserError: a setting is to change that a resumed study has to keep.
    """
    changes = [unchanged(source, stored, folder) for source in changes]
    before = from_nested({**BEFORE, **stored}, str(folder))
    was, config = resolve(before), resolve(before, *changes)
    new, old = flatten(config.as_dict()), flatten(was.as_dict())
    for source in changes:
        for key in source.values:
            if key not in may_change and (key not in old or new.get(key) != old[key]):
                raise UserError(
                    f"{key} ({source.origin[key]}) cannot change when {folder} is resumed, which keeps its settings; "
                    "leave it out, or start anew without --resume"
                )
    return was, config


def refuse_other(entry: Entry) -> None:
    """Refuse fewer rounds than a run has done, and other content of its files than it began with.

    Raises:
        UserError: they are fewer, or a file has changed.
    """
    if not (entry.folder / "run.json").exists():
        return
    saved, rounds = read_description(entry.folder), entry.config.rounds
    if rounds < (rounds_done := int(saved.get("rounds_done", 0))):
        raise UserError(
            f"{entry.folder} has done {rounds_done} rounds already, given rounds {rounds}; give {rounds_done} or more"
        )
    for key, (path, digest) in contents(entry.config).items():
        if saved.get("files", {}).get(key, digest) != digest:
            raise UserError(f"{path} ({key}) has changed since {entry.folder} began; put it back, or start anew")


def versions_of(entry: Entry) -> str | None:
    """What has another version now than when a run that has rounds to do began; None where nothing has."""
    saved = read_description(entry.folder) if (entry.folder / "run.json").exists() else {}
    if saved.get("rounds_done", 0) >= entry.config.rounds:
        return None
    pairs = [(name, saved.get("versions", {}).get(name, now), now) for name, now in versions().items()]
    others = "; ".join(f"{name} {before}, now {now}" for name, before, now in pairs if before != now)
    return f"the run began with {others}: last bits may differ from a run that never stopped" if others else None


def settle(path: Path, request: Mapping[str, Any], way: str) -> None:
    """Write what all of a folder rests on, or see that what is there rests on the same.

    Args:
        way: what to do otherwise, for the end of the sentence that refuses.

    Raises:
        UserError: it rests on something else, or the file is damaged.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        sums.write(path.parent, {path.name: files.as_json(request)})
        return
    stored = read_json(path, way)
    if (key := changed(request, stored)) is not None:
        value = grammar.shown(flatten(stored).get(key))
        raise UserError(f"{path.parent} was done with other settings ({key} was {value}); {way}")
