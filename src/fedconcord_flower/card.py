"""MODEL_CARD.md of a deployment's results: what a person who gets the model has to know, from the run's own files."""

from __future__ import annotations

import json
from pathlib import Path

from fedconcord.execution.run.folder import read_description
from fedconcord.execution.run.tables import rows_of
from fedconcord.support.errors import UserError
from fedconcord.support.files import write_text
from fedconcord_sites import handshake

NAME = "MODEL_CARD.md"
TEXT = Path(__file__).with_name("model_card.md")
SOURCE = """
Source: `metrics.csv`, round {}. Each site computed sums over its own held-out samples; the figures are those of all
together. Figures by site are in `clients.csv`. They have no noise, and nobody but the sites has seen the samples.
"""


def write_card(folder: Path, job: str) -> Path:
    """Write the card of a run at sites into its folder.

    Args:
        job: the digest of its settings.

    Raises:
        UserError: the folder is no deployment's, or has a card, which somebody may have added to.
    """
    path, about = folder / NAME, read_description(folder)
    if path.exists():
        raise UserError(f"{path} is there already; change it by hand, or delete it to have it written anew")
    if "sites" not in about:
        raise UserError(f"{folder} has no run at sites; a card is of what `fedconcord flower` ran")
    agreed, config = handshake.read(folder), about["config"]
    preprocessing = agreed.form.preprocessing or {}
    target = preprocessing.get("target") or {"kind": agreed.form.target, "columns": []}
    rows = [row for row in rows_of(folder / "metrics.csv") if row.get("train_loss")]  # those that were judged
    last = rows[-1] if rows else {"round": 0}
    figures = [f"| {name} | {float(value):.6g} |" for name, value in last.items() if name.startswith("test_") and value]
    privacy, secure = about.get("privacy"), config.get("secure") or {}
    limits = [f"* Site {one['name']} was left out: {one['left_out']}" for one in about["sites"] if one["left_out"]]
    limits += [f"* Site {one['name']} missed {one['missed']} answers." for one in about["sites"] if one["missed"]]
    if about["status"] != "complete":
        limits.append(f"* The run did not end as planned: {about['rounds_done']} of {about['rounds']} rounds.")
    text = TEXT.read_text(encoding="utf-8").format(
        label=about["label"],
        method=f"{about['method']}, {json.dumps(config['algorithm'])}",
        model=about["model"],
        dim=about["dim"],
        target=f"{target['kind']} {', '.join(target['columns'])}".strip(),
        inputs=", ".join(map(str, preprocessing.get("inputs", ()))) or "arrays",
        job=job,
        version=about["versions"]["fedconcord"],
        rounds=about["rounds_done"],
        run=agreed.run,
        status=about["status"],
        sites="\n".join(
            ["| site | trains on | tested on |", "|---|--:|--:|"]
            + [f"| {one['name']} | {one['samples']} | {one['tested_on']} |" for one in about["sites"]]
        ),
        samples=sum(one["samples"] for one in about["sites"]),
        tested=sum(one["tested_on"] for one in about["sites"]),
        metrics="\n".join(["| metric | value |", "|---|--:|", *figures, SOURCE.format(last["round"])])
        if figures
        else "No model was judged.\n",
        privacy="Epsilon: none. No noise was added: the model may tell of single samples."
        if privacy is None
        else "Of one {}: {}.{}".format(
            {"client": "site"}.get(privacy["unit"], privacy["unit"]),
            privacy["said"],
            " Figures have no noise." if figures else "",
        ),
        sums="Messages and figures were added under masks: the server saw sums of all sites alone."
        if secure.get("clip") is not None
        else f"The server saw each site's messages{' and figures' if figures else ''}."
        if not about.get("edges")
        else "Edge servers saw the messages of their sites, and the root their totals and each site's figures.",
        settings=json.dumps(config, indent=1),
        limits="\n".join(limits) or "* No site was left out, and none missed an answer.",
    )
    write_text(path, text)
    return path
