"""Advice as lines for people, as plain values, and the command to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedconcord.insight.advice.choice import NO_WISHES, OF_METHODS, Advice, Named, Wishes, advise, name_of
from fedconcord.insight.advice.facts import FederationFacts
from fedconcord.study.options.table import OPTIONS
from fedconcord.study.settings.contents import kind_of
from fedconcord.study.settings.settings import DEFAULT_MODEL, LR, NATURAL, Config
from fedconcord.study.statistics.format import size
from fedconcord.support import grammar
from fedconcord.support.yardstick import YARDSTICK

FAR = 10  # times the smallest client, from where on it matters whether clients count alike
UNSAID = {*OF_METHODS, "seed", "seeds", "out", "checkpoint"}  # settings that the next command does not repeat


def lines(config: Config, wishes: Wishes = NO_WISHES) -> list[str]:
    """What `advise` finds for the federation of a run's settings, as lines for people.

    Raises:
        UserError: as `advise` does.
    """
    return lines_of(advise(config, wishes))


class File(NamedTuple):
    """A file of settings, which the command to type next may name again."""

    path: str
    config: Config  # of the federation that it describes by itself


def lines_of(advice: Advice, file: File | None = None) -> list[str]:
    """Advice as lines for people; the command last."""
    text = ["what is seen", *(f"  {line}" for line in fact_lines(advice.facts))]
    if advice.config.clock is not None:
        text.append("  clock: what was measured is of rounds that wait; docs/asynchronous.md knows others")
    where = None
    for place, one in enumerate(advice.named, 1):
        if one.where != where:
            where = one.where
            text.append(f"{'then' if place > 1 else 'tune first'}, for {where} ({one.source})")
        tuned = "; ".join(f"{key} {range}" for key, range in one.tune.items())
        text += [f"  {place}. {one.method}: {one.why}", f"     {_costs(one)}", f"     tune {tuned}"]
    if advice.config.upload is not None:
        text.append(f"  uploads compressed by {advice.config.upload}")
    if advice.against:
        text += ["rather not", *(f"  {name}: {why}" for name, why in advice.against.items())]
    return [*text, "next", f"  {command(advice, file)}"]


def fact_lines(facts: FederationFacts) -> list[str]:
    """What is seen, a line each."""

    def spread(low: float, mean: float, high: float) -> str:
        return f"{low:,}" if low == high else f"{low:,} to {high:,}, mean {mean:,.1f}"

    lost = f"; {facts.lost:.0%} of those asked are lost" if facts.lost else ""
    sentences = [
        f"{facts.clients:,} clients, {facts.cohort:,.3g} a round ({facts.share:.1%}); a client comes "
        f"{facts.visits:.3g} times in {facts.rounds} rounds{lost}",
        f"samples a client: {spread(*facts.samples)}; local steps in a round: {spread(*facts.steps)}",
        f"the model: {size(facts.model_bytes)}",
    ]
    least, _, most = facts.samples
    if most > FAR * least:
        sentences.append(
            "sizes: every client counts alike in what is minimised, the smallest as much as one "
            f"{most / least:,.0f} times its size; --objective samples counts every sample alike"
            if facts.objective == "clients"
            else f"sizes: every sample counts alike in what is minimised, so that the largest client counts "
            f"{most / least:,.0f} times the smallest; --objective clients counts every client alike"
        )
    if facts.labels is not None:
        sentences.append(
            f"labels: a client's mix is {facts.labels:.2f} from that of all (0 to 2; {facts.chance:.2f} by chance)"
        )
    if facts.features is not None:
        sentences.append(f"features: {facts.features:.0%} of their variance lies between clients, labels apart")
    return sentences


def as_json(advice: Advice, file: File | None = None) -> dict[str, Any]:
    """The advice as plain values."""
    facts = advice.facts
    more = {"share": facts.share, "visits": facts.visits, "label_skew": facts.label_skew}
    return {
        "facts": {**facts._asdict(), **more},
        "named": [one._asdict() for one in advice.named],
        "against": advice.against,
        "upload": advice.config.upload,
        "command": command(advice, file),
    }


def command(advice: Advice, file: File | None = None) -> str:
    """What to type next: the methods and FedAvg, tuned alike on this federation."""
    names = [name_of(one.method) for one in advice.named]
    listed = names if YARDSTICK in names else [*names, YARDSTICK]
    words = ["fedconcord", "tune", "--methods", ",".join(listed), *_arguments(advice.config, file)]
    return shlex.join([*words, "--budget", "16", "--seeds", "0,1", "--jobs", "2", "--out", "runs/tuned"])


def _costs(one: Named) -> str:
    kept = f"keeps {size(one.kept)}" if one.kept else "keeps nothing"
    messages = f"a client sends {size(one.up)} a round, gets {size(one.down)} and {kept}"
    if one.gradients != 1:
        messages += f"; {one.gradients:.3g} gradients a local step"
    return messages if one.slower is None else f"{messages}; a round takes {_factor(*one.slower)} FedAvg's time"


def _factor(low: float, high: float) -> str:
    return f"{low:.1f} to {high:.1f} times" if f"{low:.1f}" != f"{high:.1f}" else f"{low:.1f} times"


def _arguments(config: Config, file: File | None) -> list[str]:
    """The settings of a federation that are neither the defaults nor the file's, as options of the command."""
    flags = {option.key: f"--{option.name.replace('_', '-')}" for option in OPTIONS}
    if file is None:
        usual, words = _flat(Config().model_dump(mode="json")) | {"model": DEFAULT_MODEL}, list[str]()
    else:
        usual, words = _flat(file.config.as_dict()), ["--config", file.path]
    usual["local.lr"] = usual["local.lr"] or LR
    for key, value in _flat(config.as_dict()).items():
        is_stated = (key in ("data", "rounds") and file is None) or usual.get(key) != value
        if not is_stated or key.partition(".")[0] in UNSAID or (key == "clients" and config.partition == NATURAL):
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        if key == "data" and kind_of(value) == "file":
            text = str(Path(value).relative_to(Path.cwd())) if Path(value).is_relative_to(Path.cwd()) else value
        text = text if isinstance(text, str) else grammar.text(text)
        words += [flags[key], text] if key in flags else ["--set", f"{key}={text}"]
    return words


def _flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict[str, Any]()
    for head, part in nested.items():
        flat |= {f"{head}.{tail}": value for tail, value in part.items()} if isinstance(part, dict) else {head: part}
    return flat
