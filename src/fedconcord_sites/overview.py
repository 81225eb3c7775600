"""The sites' files side by side, for who has them all at hand: a rehearsal (`flower check`), and nothing that is sent.

What one site's file cannot show is seen here: a class that only one of them writes so, a column in another unit, a
file that is there twice. Notes, no refusals: what sites cannot begin with, `differences` refuses.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedconcord.federation.data import federated
from fedconcord.federation.data.doubts import doubts
from fedconcord.federation.data.inputs import FEW
from fedconcord.federation.data.sources import numbers, texts

SHOWN = 5  # texts in a cell


class Site(NamedTuple):
    """What is seen of a site's table."""

    rows: int
    labels: Mapping[str, Counter[str]]  # label column -> its values
    numbers: Mapping[str, tuple[float, float]]  # column -> the smallest and largest of its known numbers
    texts: Mapping[str, Counter[str]]  # column -> its texts
    missing: Mapping[str, float]  # column -> share of rows without a value
    digest: int  # the sum of its rows' digests: of all rows, in any order
    doubts: tuple[str, ...]


class Overview(NamedTuple):
    """A table with a line a column and a column a site, and what looks wrong, a sentence each."""

    names: tuple[str, ...]  # of the sites
    rows: tuple[tuple[str, ...], ...]  # what it is of, then a cell a site
    doubts: tuple[str, ...]


def overview(files: Mapping[str, federated.SiteFile]) -> Overview:
    """What the sites' tables hold, by site; nothing of arrays."""
    sites = {name: _site(file) for name, file in files.items() if file.source is not None}
    if not sites:
        return Overview((), (), ())
    columns = list(dict.fromkeys(name for site in sites.values() for name in site.missing))
    rows = [("rows", *(f"{site.rows:,}" for site in sites.values()))]
    for label in next(iter(sites.values())).labels:
        rows.append((f"label {label}", *(_values(site.labels.get(label, Counter())) for site in sites.values())))
    for column in columns:
        rows.append((column, *(_cell(site, column) for site in sites.values())))
    remarks = [f"site {name}: {doubt}" for name, site in sites.items() for doubt in site.doubts]
    return Overview(tuple(sites), tuple(rows), (*remarks, *_classes(sites), *_columns(sites, columns), *_same(sites)))


def _site(file: federated.SiteFile) -> Site:
    assert file.source is not None
    names = sorted(file.columns)
    words = {name: Counter[str]() for name in names if file.columns[name] == "text"}
    ends: dict[str, tuple[float, float]] = {}
    values, total = Counter[str](), 0
    for batch in file.source.batches(names):
        for name in names:
            if name in words:
                words[name].update(one for one in texts(batch[name]).to_pylist() if one is not None)
                values[name] = words[name].total()
            elif (each := numbers(batch[name])) is not None and (each := each[np.isfinite(each)]).size:
                values[name] += each.size
                low, high = ends.get(name, (math.inf, -math.inf))
                ends[name] = min(low, float(each.min())), max(high, float(each.max()))
        for row in zip(*(texts(batch[name]).to_pylist() for name in names), strict=True):
            total += int.from_bytes(hashlib.blake2b(repr(row).encode(), digest_size=16).digest())
    return Site(
        file.rows,
        {one.name: Counter(str(one.values[int(code)]) for code in one.code.tolist()) for one in file.labels},
        ends,
        words,
        {name: 1 - values[name] / max(file.rows, 1) for name in file.columns},
        total,
        tuple(doubts(file.source, list(file.columns), None)),
    )


def _values(counts: Counter[str]) -> str:
    """Classes with their rows; of many different values their number."""
    if len(counts) > FEW:
        return f"{len(counts)} values"
    return ", ".join(f"{value} {count:,}" for value, count in sorted(counts.items()))


def _cell(site: Site, column: str) -> str:
    if column not in site.missing:
        return "not there"
    if site.missing[column] == 1:
        return "empty"
    empty = f", {100 * site.missing[column]:.0f} % missing" if site.missing[column] > 0 else ""
    if column in site.numbers:
        low, high = site.numbers[column]
        return f"{low:.4g} to {high:.4g}{empty}"
    listed = sorted(site.texts[column])
    return ", ".join(listed[:SHOWN]) + (f", ... ({len(listed)})" if len(listed) > SHOWN else "") + empty


def _classes(sites: Mapping[str, Site]) -> list[str]:
    """Classes that one site alone has, or that differ by their writing, and sites with one class."""
    remarks = []
    for label in next(iter(sites.values())).labels:
        of = {name: set(site.labels[label]) for name, site in sites.items() if label in site.labels}
        if any(len(values) > FEW for values in of.values()):
            continue
        for name, values in of.items():
            others = set().union(*(more for other, more in of.items() if other != name)) if len(of) > 1 else values
            for value in sorted(values - others):
                like = sorted(other for other in others if other.strip().casefold() == value.strip().casefold())
                way = f"; others write {like[0]!r}: write it alike" if like else "; is it a class of its own?"
                remarks.append(f"site {name}: no other site has the class {value!r} of {label!r}{way}")
            if len(values) == 1:
                remarks.append(f"site {name}: every row has {label!r} {next(iter(values))!r}; it has no second class")
    return remarks


def _columns(sites: Mapping[str, Site], columns: Sequence[str]) -> list[str]:
    """Columns without values, of two kinds, with texts of one site alone, or with numbers of another size."""
    remarks = []
    for column in columns:
        for name, site in sites.items():
            if column not in site.missing:
                remarks.append(
                    f"site {name}: there is no column {column!r}, which counts as missing in all of its rows"
                )
            elif site.missing[column] == 1:
                remarks.append(f"site {name}: column {column!r} has nothing in it")
        words = {name: set(site.texts[column]) for name, site in sites.items() if column in site.texts}
        digits = {name: site.numbers[column] for name, site in sites.items() if column in site.numbers}
        if words and digits:
            one, other = next(iter(words)), next(iter(digits))
            remarks.append(
                f"column {column!r} has texts at {', '.join(words)} ({', '.join(sorted(words[one])[:SHOWN])}) and "
                f"numbers at {', '.join(digits)} ({digits[other][0]:g} to {digits[other][1]:g}): code it alike"
            )
        for name, values in words.items():
            rest = [more for other, more in words.items() if other != name]
            others = set().union(*rest) if rest else values
            if alone := sorted(values - others):
                listed = ", ".join(map(repr, alone[:SHOWN])) + (", ..." if len(alone) > SHOWN else "")
                remarks.append(f"site {name}: no other site has in column {column!r}: {listed}")
        for name, (least, most) in digits.items():
            elsewhere = [more for other, more in digits.items() if other != name]
            if len(elsewhere) < 2:
                continue
            low, high = min(one[0] for one in elsewhere), max(one[1] for one in elsewhere)
            far = high - low  # neighbours' ranges may well touch; those of two units lie apart
            if least > high + far or most < low - far:
                remarks.append(
                    f"site {name}: column {column!r} is {least:g} to {most:g}, at all others {low:g} to {high:g}; is "
                    "it in another unit?"
                )
    return remarks


def _same(sites: Mapping[str, Site]) -> list[str]:
    first: dict[int, str] = {}
    return [
        f"sites {first[site.digest]} and {name} hold the same rows; is one file there twice?"
        for name, site in sites.items()
        if first.setdefault(site.digest, name) != name
    ]
