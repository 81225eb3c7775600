"""What sites say before round 0, read with the care that bytes from elsewhere need, and how they may differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.federation.data.inputs import Input
from fedconcord.federation.data.preprocess import CATEGORIES, Sums
from fedconcord.federation.data.tables import known_texts, no_value
from fedconcord_sites.bounds import SAMPLES, WORDS
from fedconcord_sites.form import Form, without
from fedconcord_sites.site import PROTOCOL, versions

SHOWN = 8  # columns in a sentence


class DifferError(Exception):
    """Server and sites are not of one mind."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(sentences[0])
        self.sentences = list(sentences)


# -- what sites say, read with the care that bytes from elsewhere need ---------------------------------------------


class Ready(NamedTuple):
    """What a site made of the setup."""

    facts: dict[str, str]  # `form.facts`
    samples: list[int]  # trained on and tested on
    counts: list[int] | None  # how much they count, where it is their tokens


def read_ready(site: str, frame: Frame) -> Ready:
    """The answer to a setup.

    Raises:
        DifferError: it cannot be used; as the next ones.
    """
    try:
        trained, tested = (codec.whole(count, SAMPLES) for count in frame.fields["samples"])
        counts = frame.fields.get("counts")
        counts = None if counts is None else [codec.whole(one, SAMPLES) for one in counts]
        if counts is not None and (len(counts) != 2 or counts[0] < 1):
            raise ValueError(f"tokens {counts} to train and to test on")
        return Ready({str(k): str(v) for k, v in frame.fields["facts"].items()}, [trained, tested], counts)
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise _useless(site, broken) from broken


def read_here(site: str, frame: Frame) -> dict[str, Any]:
    """The answer to a hello: versions, and what there is."""
    try:
        fields = frame.fields
        answer: dict[str, Any] = {"own": bool(fields["own"]), "protocol": int(fields["protocol"])}
        answer["versions"] = {"fedconcord": str(fields["versions"]["fedconcord"])}
        if "keys" in fields:
            answer["keys"] = {str(name): str(key) for name, key in fields["keys"].items()}
        if not answer["own"]:
            form = Form(**fields["form"])
            for count in (*form.shape, form.outputs, form.token or 0):
                codec.whole(count)
            samples = codec.whole(fields["samples"], SAMPLES)
            return {**answer, "named": str(fields["named"]), "form": form._asdict(), "samples": samples}
        data = fields["data"]
        labels = [
            {
                "name": str(one["name"]),
                "numbers": bool(one["numbers"]),
                "values": None if one["values"] is None else [str(value) for value in one["values"]],
            }
            for one in data["labels"]
        ]
        columns = {
            str(name): {"number": "number", "text": "text", "empty": "empty"}[k] for name, k in data["columns"].items()
        }
        shape = [codec.whole(one) for one in data["shape"]]
        kind = {"numbers": "numbers", "bytes": "bytes", "symbols": "symbols"}[data["inputs"]]
        rows = codec.whole(data["rows"], SAMPLES)
        tokens = data.get("tokens") and {
            key: None if data["tokens"][key] is None else codec.whole(data["tokens"][key])
            for key in ("classes", "largest", "pad")
        }
        if tokens and max(tokens["classes"], tokens["largest"]) > WORDS:
            raise ValueError(f"more than {WORDS} classes of tokens")
        about = {"rows": rows, "columns": columns, "shape": shape, "inputs": kind, "labels": labels, "tokens": tokens}
        return {**answer, "data": about}
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise _useless(site, broken) from broken


def read_texts(site: str, frame: Frame, words: Sequence[str]) -> dict[str, list[str]]:
    """The texts of each column of texts."""
    try:
        return {name: [str(text) for text in frame.fields["texts"][name]] for name in words}
    except (KeyError, TypeError, AttributeError) as broken:
        raise _useless(site, broken) from broken


def _useless(site: str, broken: Exception) -> DifferError:
    return DifferError([f"site {site}: its answer cannot be used ({type(broken).__name__}: {broken})"])


# -- what is compared ------------------------------------------------------------------------------------------------


def versions_differ(sites: Sequence[str], here: Sequence[Mapping[str, Any]]) -> list[str]:
    """Versions of the package and the protocol that are not the server's."""
    mine = {"the protocol": PROTOCOL, "fedconcord": versions()["fedconcord"]}
    sentences = []
    for name, one in zip(sites, here, strict=True):
        theirs = {"the protocol": one["protocol"], "fedconcord": one["versions"]["fedconcord"]}
        sentences += [
            f"site {name}: {what} is of version {theirs[what]} there and {value} here; install the same"
            for what, value in mine.items()
            if theirs[what] != value
        ]
    return sentences


def keys_differ(sites: Sequence[str], here: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> list[str]:
    """Sites that lack a key of one of all sites, or have another one than these; what has another job says so later."""
    sentences = []
    for name, one in zip(sites, here, strict=True):
        lacking = [site for site in keys if site not in one.get("keys", keys)]
        sentences += [f"site {name}: {without(name, lacking)}"] if lacking else []
        sentences += [
            f"site {name} has another key of site {site} than {'the others have' if site == name else site}; compare "
            "fingerprints (`fedconcord flower keys show`) by another way than the server"
            for site in keys
            if site not in lacking and one.get("keys", keys)[site] != keys[site]
        ]
    return sentences


def facts_differ(site: str, there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What a site made of the job otherwise than the server."""
    return [
        f"site {site}: {what} is {there.get(what)} there and {value} here; give both the same job"
        for what, value in here.items()
        if there.get(what) != value
    ]


def parts_differ(
    sites: Sequence[str], answers: Sequence[Mapping[str, Any]], keys: Sequence[str], what: str
) -> list[str]:
    """Sentences on sites that differ from the first."""
    return [
        f"site {name}: {what} differ from site {sites[0]}'s: {_short(one[key])} there, {_short(answers[0][key])} at "
        f"{sites[0]}; give both the same"
        for name, one in zip(sites, answers, strict=True)
        for key in keys
        if json.dumps(one[key], sort_keys=True) != json.dumps(answers[0][key], sort_keys=True)
    ]


def columns_differ(sites: Sequence[str], data: Sequence[Mapping[str, Any]], reading: Input) -> list[str]:
    """Columns that more than half of the sites lack or that some have under another name, and such as hold numbers here
    and texts there. Other columns a site may lack: they have no value there."""
    differences = parts_differ(sites, data, ("inputs", "shape"), "the samples")
    every = columns_of_all(data)
    having = {column: {k for k, one in enumerate(data) if column in one["columns"]} for column in every}
    for k, one in enumerate(data):
        # every site has either this column or that one: the same column twice named, as far as can be seen
        twins = {
            column: absent
            for absent in every
            if k not in having[absent]
            for column in one["columns"]
            if (-len(having[column]), k) > (-len(having[absent]), min(having[absent]))
            if having[column] | having[absent] == {*range(len(data))} and not having[column] & having[absent]
        }
        rare = [column for column in one["columns"] if 2 * len(having[column]) < len(data) and column not in twins]
        if twins:
            other = sites[min(having[next(iter(twins.values()))])]
            differences.append(
                f"site {sites[k]} lacks {_columns(dict.fromkeys(twins.values()))}, which site {other} has, and has "
                f"{_columns(twins)} in its place; name columns alike at all sites, or leave out both (input.ignore)"
            )
        if rare:
            other = next(name for j, name in enumerate(sites) if j not in having[rare[0]])
            differences.append(
                f"site {sites[k]} has {_columns(rare)}, which site {other} lacks, as do most sites; leave out with "
                "input.ignore what most sites lack"
            )
    for column in every if not differences else ():
        if column in reading.categories:
            continue
        kinds = {
            kind: name
            for name, one in zip(sites, data, strict=True)
            if (kind := one["columns"].get(column, "empty")) != "empty"
        }
        if len(kinds) > 1:
            differences.append(
                f"column {column!r} holds numbers at site {kinds['number']} and texts at site {kinds['text']}; repair "
                "one, or name it in input.categories"
            )
    return differences


def columns_of_all(data: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The columns that any site has, in the order in which they are first met, and what they hold."""
    kinds = dict[str, str]()
    for one in data:
        for column, kind in one["columns"].items():
            kinds[column] = kind if kinds.get(column, "empty") == "empty" else kinds[column]
    return kinds


def columns_lacking(sites: Sequence[str], data: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is said of sites that lack columns and begin all the same."""
    every = columns_of_all(data)
    return [
        f"site {name} lacks {_columns(absent)}, without a value in all of its rows"
        for name, one in zip(sites, data, strict=True)
        if (absent := [column for column in every if column not in one["columns"]])
    ]


def _columns(names: Collection[str]) -> str:
    """ "the columns 'a', 'b'"; of many the first."""
    listed = ", ".join(map(repr, islice(names, SHOWN))) + (", ..." if len(names) > SHOWN else "")
    return f"the column{'s' * (len(names) > 1)} {listed}"


def labels_differ(sites: Sequence[str], data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Label columns that are others than the first site's, or numbers here and texts there."""
    base = data[0]["labels"]
    sentences = []
    for name, one in zip(sites, data, strict=True):
        mine = [label["name"] for label in one["labels"]]
        if mine != [label["name"] for label in base]:
            sentences.append(
                f"site {name} learns {', '.join(mine)}, and site {sites[0]} others; give both the same job"
            )
            continue
        for label, first in zip(one["labels"], base, strict=True):
            if label["numbers"] != first["numbers"]:
                kind, other = ("numbers", "texts") if label["numbers"] else ("texts", "numbers")
                sentences.append(
                    f"label column {label['name']!r} holds {kind} at site {name} and {other} at site {sites[0]}; write "
                    "it alike at both"
                )
    return sentences


def tokens_wrong(sites: Sequence[str], ready: Mapping[int, Ready], length: int) -> list[str]:
    """Numbers of tokens with a class that a site does not say, or that its rows of this length cannot have."""
    sentences = []
    for i, one in ready.items():
        most = [rows * length for rows in one.samples]
        if one.counts is None or any(number > limit for number, limit in zip(one.counts, most, strict=True)):
            sentences.append(f"site {sites[i]} says that {one.counts} of its {most} tokens have a class; leave it out")
    return sentences


def without_value(digits: Sequence[str], sums: Sums, texts_of: Mapping[str, set[str]]) -> list[str]:
    """Columns without a value anywhere, and texts of too many kinds."""
    sentences = [
        f"column {name!r} has more than {CATEGORIES} different texts over all sites; repair it, or leave it out with "
        f"input.ignore={name}"
        for name, texts in texts_of.items()
        if len(known_texts(texts)) > CATEGORIES
    ]
    none = no_value(digits, sums, texts_of)
    return sentences + (
        [f"no site has a value in column {none!r} of its training samples; leave it out with input.ignore={none}"]
        if none is not None
        else []
    )


def raise_any(sentences: Sequence[str]) -> None:
    """Stop where there is something to say.

    Raises:
        DifferError: with these sentences.
    """
    if sentences:
        raise DifferError(sentences)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
