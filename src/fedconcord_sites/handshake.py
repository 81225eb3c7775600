"""What server and sites agree on before round 0; a difference names the site.

1. `hello`: versions, and what each site's file is: rows, columns, labels' values; or which part of named data it has.
2. `sums` and `squares`, for files: sums over each site's training samples, and of squared deviations from the site's
   own means, of which means, scales, categories and classes come (`data.preprocess`). Only sums over all sites and
   unions of texts are used.
3. `setup`: all of that to each site, which builds its job and says what it built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedconcord.execution.messages.codec import Frame
from fedconcord.federation.data import federated
from fedconcord.federation.data.inputs import Input, number_held_out
from fedconcord.federation.data.own import SCALED
from fedconcord.federation.data.preprocess import SENT, Column, Sums, mean_of, names, read_statistics, scale_of, width
from fedconcord.federation.data.tables import columns_of
from fedconcord.study.settings.sources import Source
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord_sites.differences import (
    DifferError,
    columns_differ,
    columns_lacking,
    columns_of_all,
    facts_differ,
    keys_differ,
    labels_differ,
    parts_differ,
    raise_any,
    read_here,
    read_ready,
    read_texts,
    tokens_wrong,
    versions_differ,
    without_value,
)
from fedconcord_sites.form import Form, facts, input_settings, is_private, is_secure, model_of, shell, source_of
from fedconcord_sites.site_link import SiteLink

TRIES = 3  # exchanges in which each site is asked
NAME = "deployment.json"
LABELS = "the values of its label columns, where they are classes"
TOKENS = "its largest class of a token and the largest token that has one"


class Agreed(NamedTuple):
    """What a deployment goes on from; plain values."""

    run: str  # 16 hexadecimal digits that frames name
    sites: list[str]  # a site's number is its place
    form: Form
    samples: list[list[int]]  # trained on and tested on, at each site
    said: list[str]  # what was guessed
    sent: list[str]  # what each site sent before round 0, in words
    told: dict[str, Any] | None = None  # what sites with files of their own were told of all sites' columns and target
    first: dict[str, Any] | None = None  # what the first of these sites said of its file, with the columns of all
    later: Sequence[str] = ()  # sites that were not there
    keys: Mapping[str, str] | None = None  # of all sites, public, as text; where they know each other
    counts: list[list[int]] | None = None  # how much each site's samples count, where it is their tokens
    homes: Sequence[int] | None = None  # the number of each site's edge server, where secure sums are made below these


def agreed(
    settings: str, link: SiteLink, begins: bool, later: Mapping[str, int], homes: Sequence[int] | None
) -> Agreed:
    """The handshake of the sites that are there.

    Args:
        begins: the run does, so that sites make its folder.
        later: the sites that may come later, and the rows of their files.
        homes: the number of each site's edge server, where secure sums are made below these.

    Raises:
        DifferError: something does not fit, in a sentence each; every site that can be compared was.
        UserError: the job's settings are wrong, or cannot be deployed.
    """
    source = source_of(settings)
    reading = input_settings(source)
    there = [i for i, name in enumerate(link.sites) if name not in later]
    if not there:
        raise UserError("all sites are to come later, and a run begins with one at least; leave one out of --later")
    sites = [link.sites[i] for i in there]
    hello = {i: hello_of(source, link.sites) for i in there}
    here = [read_here(name, one) for name, one in zip(sites, _all(link, "hello", "here", hello), strict=True)]
    raise_any(versions_differ(sites, here))
    have_files = [bool(one["own"]) for one in here]
    if any(have_files) and not all(have_files):
        a, b = sites[have_files.index(True)], sites[have_files.index(False)]
        raise DifferError(
            [f"site {a} has a file of its own and site {b} a part of named data; give all sites the same"]
        )
    overall, messages, guesses = None, ["its number of samples"], list[str]()
    if all(have_files):
        form, overall, messages, guesses = _of_files(link, there, source, reading, [one["data"] for one in here])
    else:
        if later:
            raise UserError("a site that comes later has a file of its own, and these have parts of the job's data")
        raise_any(parts_differ(sites, here, ("named", "form"), "the data"))
        form = Form(**here[0]["form"])
    config, job = shell(source, form, len(link.sites))
    of_tokens = model_of(job).loss_of.counts is not None
    if later and of_tokens:
        raise UserError(
            "a site that comes later weighs with its tokens, which nobody knows before; leave later out, or use loss "
            "token_cross_entropy(per=sequence)"
        )
    keys = _keys(link.sites, sites, here) if is_secure(source) else None
    rows = dict(later) | {name: one["data"]["rows"] for name, one in zip(sites, here, strict=True) if one["own"]}
    tests = {name: number_held_out(count, reading.test_share) for name, count in rows.items()}
    sizes = {name: one["samples"] for name, one in zip(sites, here, strict=True) if not one["own"]}
    sizes |= {name: count - tests[name] for name, count in rows.items()}
    raise_any([f"site {name} has no training sample" for name in link.sites if not sizes[name]])
    tells = keys is not None and of_tokens  # tokens of all sites, which say theirs first
    fields = setup_of(
        source, link.sites, form, overall, begins and not tells, [sizes[name] for name in link.sites], homes
    )
    ready = _all(link, "setup", "ready", dict.fromkeys(there, fields))
    theirs = {i: read_ready(link.sites[i], one) for i, one in zip(there, ready, strict=True)}
    mine = facts(job, config)
    raise_any([text for i, one in theirs.items() for text in facts_differ(link.sites[i], one.facts, mine)])
    samples = [theirs[i].samples if i in theirs else [sizes[name], tests[name]] for i, name in enumerate(link.sites)]
    if not sum(tested for _, tested in samples):
        raise DifferError([f"no site has a test sample; raise input.test_share, which is {reading.test_share:g}"])
    first = {**here[0]["data"], "columns": columns_of_all([one["data"] for one in here])} if all(have_files) else None
    raise_any(tokens_wrong(link.sites, theirs, form.shape[0]) if of_tokens else [])
    counts = [one.counts or [] for one in theirs.values()] if of_tokens else None
    messages += ["its number of tokens with a class"] if of_tokens else []
    if begins and tells:
        fields |= {"begins": True, "counts": [trained for trained, _ in counts or []]}
        _all(link, "setup", "ready", dict.fromkeys(there, fields))
    return Agreed(
        link.run, list(link.sites), form, samples, guesses, messages, overall, first, sorted(later), keys, counts, homes
    )


def _keys(every: Sequence[str], sites: Sequence[str], here: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The public key of each of every site, as it says itself or, before it is there, the others; all have the same.

    Raises:
        DifferError: a site has none of another, or another one.
    """
    answers = {name: [one, *here] for name, one in zip(sites, here, strict=True)}
    keys = {
        name: next((one["keys"][name] for one in answers.get(name, here) if name in one.get("keys", ())), "")
        for name in every
    }
    raise_any(keys_differ(sites, here, keys))
    return keys


def hello_of(source: Source, sites: Sequence[str]) -> dict[str, Any]:
    """The fields of a hello; who the sites are is said where they know each other."""
    return {"clients": len(sites)} | ({"sites": list(sites)} if is_secure(source) else {})


def setup_of(
    source: Source,
    sites: Sequence[str],
    form: Form,
    overall: Mapping[str, Any] | None,
    begins: bool,
    sizes: Sequence[int],
    homes: Sequence[int] | None,
) -> dict[str, Any]:
    """The fields of a setup; how many training samples each site has is said where they weigh each other, and below
    which edge server it is where their sums are made there."""
    samples = {"samples": list(sizes)} if is_secure(source) else {}
    samples |= {} if homes is None else {"homes": list(homes)}
    return hello_of(source, sites) | {"form": form._asdict(), "told": overall, "begins": begins} | samples


def _of_files(
    link: SiteLink, there: Sequence[int], source: Source, reading: Input, data: Sequence[Mapping[str, Any]]
) -> tuple[Form, dict[str, Any], list[str], list[str]]:
    """What the sites' files come to: (form, what sites are told, what they sent, what was guessed)."""
    sites = [link.sites[i] for i in there]
    raise_any(columns_differ(sites, data, reading))
    raise_any(labels_differ(sites, data))
    tokens = [one["tokens"] for one in data if one["tokens"] is not None]
    raise_any(parts_differ(sites, [{"pad": _targets(one)} for one in data], ("pad",), "the targets"))
    try:
        target = (
            federated.agreed_tokens(tokens, reading)
            if tokens
            else federated.agreed_target([one["labels"] for one in data], reading)
        )
    except UserError as wrong:
        raise DifferError([str(wrong)]) from wrong
    kinds = {name: {one["columns"].get(name, "empty") for one in data} - {"empty"} for name in columns_of_all(data)}
    words = [name for name, kind in kinds.items() if "text" in kind or name in reading.categories]
    digits = [name for name in kinds if name not in words]
    overall: dict[str, Any] = {"columns": [], "target": target.kind, "names": target.names, "unit": None}
    fields = {"told": overall, "digits": digits, "words": words}
    statistics = reading.statistics is not None and bool(kinds)
    columns: list[Column] = []
    if (kinds and not statistics) or target.kind == "number":
        if is_private(source):
            raise UserError(
                "privacy.clip does not cover the sums that sites send of their columns and target before round 0; give "
                "input.statistics, a file of public ones, and a target of classes"
            )
        first = _all(link, "sums", "summed", dict.fromkeys(there, fields))
        sums, y = (_sums(sites, first, part, count) for part, count in _counts(digits, target.names, target.kind))
        texts = [read_texts(site, one, words) for site, one in zip(sites, first, strict=True)]
        texts_of = {name: {text for one in texts for text in one[name]} for name in words}
        raise_any(without_value(digits, sums, texts_of) if kinds and not statistics else [])
        second = _all(link, "squares", "summed", dict.fromkeys(there, fields))
        spread, y2 = (
            _about_common(one, _sums(sites, second, part, count))
            for one, (part, count) in zip((sums, y), _counts(digits, target.names, target.kind), strict=True)
        )
        rows = sum(one["rows"] - number_held_out(one["rows"], reading.test_share) for one in data)
        columns = columns_of(list(kinds), digits, sums, texts_of, spread, rows) if kinds else []
        if target.kind == "number":
            overall["unit"] = [mean_of(y).tolist(), scale_of(y2, mean_of(y)).tolist()]
    if statistics:
        columns = read_statistics(Path(str(reading.statistics)).expanduser())
        raise_any(
            [
                f"no site has the column {one.name!r} of input.statistics; take it out of that file"
                for one in columns
                if one.name not in kinds
            ]
        )
    overall["columns"] = [one.model_dump() for one in columns]
    shape = [width(columns)] if kinds else list(data[0]["shape"])
    about: dict[str, Any] = {"kind": "none"} if data[0]["inputs"] != "bytes" else dict(SCALED)
    if tokens and tokens[0]["pad"] is not None:
        about["pad"] = tokens[0]["pad"]
    if kinds:
        about = {
            "kind": "table",
            "statistics": "given" if statistics else "sums over the sites' training rows",
            "sent_by_each_client": [] if statistics else SENT,
            "columns": overall["columns"],
            "inputs": names(columns),
            **({"missing": list(reading.missing)} if reading.missing else {}),
        }
    labels, names_of = [str(one["name"]) for one in data[0]["labels"]], None if tokens else target.names
    unit = {} if overall["unit"] is None else {"mean": overall["unit"][0], "scale": overall["unit"][1]}
    guesses = [*([target.note] if target.note else []), *columns_lacking(sites, data)]
    about |= {"target": {"kind": target.kind, "columns": labels, "names": names_of, **unit}, "said": guesses}
    token = max((one["largest"] for one in tokens), default=None)
    form = Form(shape, data[0]["inputs"], target.kind, len(target.names), names_of, overall["unit"], about, token)
    messages = ["its number of samples", LABELS if token is None else TOKENS]
    messages += [*about.get("sent_by_each_client", []), *(["sums and squares of its labels"] if unit else [])]
    return form, overall, messages, guesses


def _targets(one: Mapping[str, Any]) -> str:
    """What a site says of its targets, in words."""
    if one["tokens"] is None:
        return "a label for each sample"
    pad = one["tokens"]["pad"]
    return "a class for each token" if pad is None else f"the next tokens, {pad} of them padding"


# -- exchanges -------------------------------------------------------------------------------------------------------


def _all(link: SiteLink, kind: str, answer: str, fields: Mapping[int, Mapping[str, Any]]) -> list[Frame]:
    """Every site's answer, in order.

    Raises:
        DifferError: a site does not answer, or refuses.
    """
    answers: dict[int, Frame] = {}
    why: dict[int, str] = {}
    for _ in range(TRIES):
        missing = {i: fields_of for i, fields_of in fields.items() if i not in answers and i not in why}
        if not missing:
            break
        for i, frame in link.frames(kind, answer, missing, {}).items():
            link.accept(i, kind)
            answers[i] = frame
        why |= link.why
    silent = [link.sites[i] for i in fields if i not in answers and i not in why]
    sentences = [f"site {link.sites[i]}: {text}" for i, text in sorted(why.items())]
    if silent:
        sentences.append(
            f"site{'s' * (len(silent) > 1)} {', '.join(silent)} gave no answer in {TRIES} tries, after "
            f"{link.waited:.0f} s of at most {TRIES * link.wait:g}: not connected, or its app failed, see its log; "
            "start them, leave them out, or have them come later (--later)"
        )
    raise_any(sentences)
    return [answers[i] for i in fields]


def _counts(digits: Sequence[str], outputs: Sequence[str], target: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Which sums a message has, and of how many columns."""
    return ("columns", len(digits)), ("target", len(outputs) if target == "number" else 0)


def _sums(sites: Sequence[str], messages: Sequence[Frame], part: str, count: int) -> Sums:
    """Sums [N, count] of all sites.

    Raises:
        DifferError: a site's are of another form.
    """
    like = {name: torch.zeros(1, count, dtype=torch.float64) for name in Sums._fields}
    rows: dict[str, list[np.ndarray]] = {name: [] for name in Sums._fields}
    for site, frame in zip(sites, messages, strict=True):
        for name, form in like.items():
            leaf = frame.tensors.get(f"{part}/{name}")
            if leaf is None or leaf.shape != form.shape or leaf.dtype != form.dtype:
                raise DifferError([f"site {site}: its sums are of another form than {count} columns"])
            rows[name].append(leaf.numpy())
    return Sums(*(np.concatenate(rows[name]) for name in Sums._fields))


def _about_common(first: Sums, second: Sums) -> Sums:
    """Squared deviations [N, C] from the common means, of those from each site's own mean: n (mean_i - mean)^2 more
    (Chan, Golub and LeVeque, 1979)."""
    counts = np.maximum(first.known, 1)
    shift = np.where(first.known > 0, first.total / counts - mean_of(first), 0.0)
    return Sums(second.known, second.total + second.known * shift**2)


# -- kept ------------------------------------------------------------------------------------------------------------


def save(folder: Path, agreement: Agreed) -> None:
    """deployment.json."""
    files.write_json(folder / NAME, {**agreement._asdict(), "form": agreement.form._asdict()})


def read(folder: Path) -> Agreed:
    """The inverse of `save`.

    Raises:
        UserError: it cannot be read.
    """
    path = folder / NAME
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Agreed(**{**saved, "form": Form(**saved["form"])})
    except (OSError, ValueError, TypeError, KeyError) as broken:
        raise UserError(f"cannot read {path} ({broken}); restore it, or start anew in another folder") from broken
