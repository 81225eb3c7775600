"""The section on settings: what the runs share, where they differ, and the files and commands that give them again."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedconcord.insight.report.page import code_block, details, pairs, terms
from fedconcord.study.statistics.load import UNPAIRED_KEYS, Run, is_chosen, show, varying
from fedconcord.study.statistics.summary import Summary
from fedconcord.support import grammar
from fedconcord.support.grammar import flatten

esc = html.escape


def settings(s: Summary, paths: Sequence[Path], out: Path) -> str:
    """The section as HTML, for a report of `paths` into `out`."""
    runs = [m.runs[0] for m in s.methods]
    flats = [flatten(r.head.config) for m in s.methods for r in m.runs]
    differ = varying(s.runs)
    every = dict.fromkeys(k for f in flats for k in f)
    same = [k for k in every if k not in differ and not UNPAIRED_KEYS & set(k.split("."))]
    command = " ".join(["fedconcord report", *(shlex.quote(str(p)) for p in paths), "--out", shlex.quote(str(out))])
    parts = ["<h2>Settings and how to get this again</h2>"]
    if same:
        values = [(k, show(next(f[k] for f in flats if k in f))) for k in same]
        parts.append(f"<details open><summary>Shared by every run</summary>{terms(values)}</details>")
    if differ:
        names = {k: k.removeprefix("algorithm.") for k in differ if k != "method"}
        rows = [(m.name, ", ".join(_values(names, m.runs))) for m in s.methods]
        parts.append(f"<h3>Where the methods differ</h3>{pairs(rows, ('method', 'settings'))}")
    if any(flats):
        parts.append("<h3>The same runs</h3><p>Save settings below as <code>job.toml</code>, then:</p>")
        job = whole_job(s.runs, s.baselines)
        if job is not None:
            parts.append(code_block("fedconcord compare --config job.toml --out runs/again"))
            parts.append(details("the whole comparison", code_block(to_toml(job))))
        parts.append(code_block("fedconcord run --config job.toml --out runs/again"))
        for r in runs:
            toml = code_block(to_toml(r.head.config))
            parts.append(details(f"{esc(r.name)}, seed {r.head.seed}", toml))
    parts.append(f"<h3>This page, its figures and tables</h3>{code_block(command)}")
    versions = dict.fromkeys(tuple(sorted(r.head.versions.items())) for r in s.runs)
    versions_text = "; ".join(", ".join(f"{k} {v}" for k, v in group) for group in versions if group)
    parts.append(f'<p class="note">Versions: {esc(versions_text or "not recorded")}.</p>')
    return "\n".join(parts)


def _values(names: Mapping[str, str], runs: Sequence[Run]) -> list[str]:
    """`key = value` of the keys that a method's runs have; two where its seeds ran elsewhere or longer."""
    flats = [flatten(r.head.config) for r in runs]
    by_name = {name: dict.fromkeys(show(f[k]) for f in flats if k in f) for k, name in names.items()}
    return [f"{name} = {' or '.join(values)}" for name, values in by_name.items() if values]


def whole_job(runs: Sequence[Run], baselines: Sequence[Run] = ()) -> dict[str, Any] | None:
    """The settings of the comparison that gives all these runs; None if no single comparison does."""
    beside = list(dict.fromkeys(r.head.label for r in baselines))
    seeds = sorted({r.head.seed for r in runs})
    pairs = {(r.head.label, r.head.seed) for r in runs}
    texts = {r.head.label: _text(r, varying(runs)) for r in runs}
    have_own_names = all(r.head.config and r.name == r.head.label for r in runs)
    if not have_own_names or len(pairs) != len(texts) * len(seeds) or len(pairs) == 1:
        return None
    job = json.loads(json.dumps(runs[0].head.config))
    for key in ("method", "label", "seed", "algorithm", "out"):  # a method's text holds what is its own
        job.pop(key, None)
    for key in varying(runs):
        section, _, leaf = key.rpartition(".")
        if key == "method" or section == "algorithm":
            continue
        plain = [r for r in runs if f"{key}=" not in texts[r.head.label]]  # those that took it from the job
        values = {show(flatten(r.head.config).get(key)): flatten(r.head.config).get(key) for r in plain}
        if section != "local" or len(values) > 1:
            return None
        job["local"].pop(leaf, None)
        if values:
            job["local"][leaf] = next(iter(values.values()))
    return {"methods": list(texts.values()), **({"baselines": beside} if beside else {}), "seeds": seeds, **job}


def _text(run: Run, differ: Sequence[str]) -> str:
    """The method of a run as `methods` takes it: its label is that text, unless it was chosen."""
    if not is_chosen(run.head):
        return run.head.label
    flat = flatten({"local": run.head.config.get("local", {})})
    own_settings = {key: value for key, value in flat.items() if key in differ and value is not None}
    parameters = run.head.config.get("algorithm", {})
    return str(grammar.Spec(run.head.method, (), {**parameters, **own_settings, "label": run.head.label}))


def to_toml(config: Mapping[str, Any], prefix: str = "") -> str:
    """A configuration as TOML; keys that are null are left out, for TOML has no null."""

    def key(k: str) -> str:
        return k if re.fullmatch(r"[A-Za-z0-9_-]+", k) else json.dumps(k, ensure_ascii=False)

    def cell(v: Any) -> str:
        if isinstance(v, Mapping):
            return "{" + ", ".join(f"{key(k)} = {cell(x)}" for k, x in v.items() if x is not None) + "}"
        if isinstance(v, list | tuple):
            return "[" + ", ".join(cell(x) for x in v if x is not None) + "]"
        if isinstance(v, float) and not math.isfinite(v):
            return str(v)
        return json.dumps(v, ensure_ascii=False, default=str)

    lines = [f"{key(k)} = {cell(v)}" for k, v in config.items() if v is not None and not isinstance(v, Mapping)]
    for k, v in config.items():
        if isinstance(v, Mapping):
            lines += ["", f"[{prefix}{key(k)}]", to_toml(v, f"{prefix}{key(k)}.")]
    return "\n".join(lines).strip()
