"""What a site answers, whatever a server asks: a file of a dozen lines that its owner reads, changes and signs.

A site without a file has `USUAL`, which bounds what a server may ask again and again and leaves jobs and columns open.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedconcord.federation.data import federated
from fedconcord.federation.data.sources import open_table
from fedconcord.study.settings.settings import Config
from fedconcord.study.settings.sources import Source
from fedconcord.support import files
from fedconcord.support.errors import UserError, reason
from fedconcord_sites.form import input_settings, source_of

Count = Annotated[int, Field(ge=1)]
WRITES = "`fedconcord flower policy` writes one"


class Policy(BaseModel):
    """What a site's owner allows; `TEXT` says what each line means."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    approved: list[str] | Literal["any"]
    columns: list[str] | Literal["any"]
    never: list[str]
    least_rows: Count
    least_sites: Count
    secure_sums: bool
    largest_share: Annotated[float, Field(gt=0, le=1)]
    noise: Literal["none", "central", "local"]
    lifetime_epsilon: Annotated[float, Field(gt=0)] | Literal["none"]
    runs: Count
    runs_a_day: Count
    rounds_a_day: Count
    evaluations: Count
    metrics: list[str] | Literal["any"]

    def refuses(self, source: Source) -> str | None:
        """Why the site takes no part in the job of these settings, in a sentence; None where they allow it."""
        job, values = job_digest(source), source.values
        if self.approved != "any" and job not in self.approved:
            return f"the site's policy does not approve job {job}; its owner can, by adding that to 'approved'"
        if self.secure_sums and values.get("secure.clip") is None:
            return "the site's policy asks for secure sums, and the job has none; give secure.clip"
        if (self.noise != "none" or self.lifetime_epsilon != "none") and not _is_noisy(source):
            return "the site's policy asks for differential privacy, and the job has none; give privacy.clip and noise"
        if self.noise == "local" and values.get("privacy.kind") != "local":
            return "the site's policy asks for noise of the site's own, and the job has none; give privacy.kind local"
        count = evaluations(source)
        if count > self.evaluations:
            return (
                f"the job judges {count} models, and the site's policy allows {self.evaluations} a run; raise "
                "eval.every, or lower rounds"
            )
        return None

    def lists(self, settings: str) -> bool:
        """Whether the job of these settings is approved by its digest: of "any" job nobody has read what it names."""
        return self.approved != "any" and job_digest(source_of(settings)) in self.approved

    def refuses_columns(self, names: Sequence[str]) -> str | None:
        """Why a job may not read these columns of the site's file, labels among them; None where it may."""
        for name in names:
            if name in self.never:
                return f"the site's policy never lets column {name!r} be read; leave it out with input.ignore={name}"
            if self.columns != "any" and name not in self.columns:
                return (
                    f"the site's policy does not list column {name!r} among those that may be read; leave it out with "
                    f"input.ignore={name}"
                )
        return None

    def refuses_weight(self, weights: np.ndarray, place: int) -> str | None:
        """Why the site takes no part in a secure sum of these weights [S], of which its own is at this place; None
        where it does."""
        share = float(weights[place] / weights.sum())
        if share <= self.largest_share:
            return None
        return (
            f"it would weigh {share:.4g} of a secure sum, and the site's policy allows {self.largest_share:g} "
            "(largest_share); leave the site out, or train with more or larger sites"
        )

    def refuses_job(self, config: Config, metrics: Sequence[str], samples: Sequence[int]) -> str | None:
        """Why the site takes no part in a job that is resolved; None where it does.

        Args:
            metrics: their names.
            samples: of the site, that it trains and tests on.
        """
        if config.cohort < self.least_sites:
            return (
                f"the site's policy asks for {self.least_sites} sites a round at least, and the job has cohorts of "
                f"{config.cohort}; raise cohort"
            )
        other = None if self.metrics == "any" else next((name for name in metrics if name not in self.metrics), None)
        if other is not None:
            return f"the site's policy does not let metric {other} leave; take it out of metrics"
        for count, what in zip(samples, ("train", "test"), strict=True):
            if 0 < count < self.least_rows:
                return (
                    f"it would {what} on {count} row{'s' * (count != 1)}, and no sum over fewer than {self.least_rows} "
                    "leaves the site (least_rows of its policy); change input.test_share, or leave the site out"
                )
        return None


USUAL = Policy(
    approved="any",
    columns="any",
    never=[],
    least_rows=2,
    least_sites=1,
    secure_sums=False,
    largest_share=0.95,
    noise="none",
    lifetime_epsilon="none",
    runs=20,
    runs_a_day=50,
    rounds_a_day=100_000,
    evaluations=100_000,
    metrics="any",
)
TEXT = """\
# What this site answers, whatever a server asks: fedconcord flower site ... --policy {name}
# Read it, change it, sign it. Every line must be there. What it refuses is a sentence at the site and at the server,
# and a line of the site's ledger (fedconcord flower ledger), where all that left is written down too.

# Jobs that are approved, by their digest: a change of any setting is another job. "any" approves all that name no
# module of anybody's own: only of a job that is listed here are modules imported.
# {about}
approved = {approved}
# Columns that may be read, labels among them, or "any"; and those that may never be.
columns = {columns}
never = {never}
# No sum over fewer rows leaves: of training or test rows, or of a column's values.
least_rows = 10
# Fewest sites in a round of the job, and below one edge server where these have secure sums of their own.
least_sites = {least_sites}
# true: only jobs with secure sums, where the server learns the sum over sites and no site's part (secure.clip).
secure_sums = {secure_sums}
# Most of the weight of a secure sum that this site may have: a sum that is nearly of one site hides nothing of it.
largest_share = 0.8
# "none"; "central": only jobs with differential privacy; "local": only those whose noise is drawn at this site.
noise = "{noise}"
# What all runs together may spend of this file, by the sum of their epsilons, or "none". A run that is begun again
# spends again.
lifetime_epsilon = {lifetime_epsilon}
# How often one job may be begun here; and of all jobs together, runs and rounds a day (UTC).
runs = 3
runs_a_day = 3
rounds_a_day = {rounds_a_day}
# Most models that a run may have judged here: each tells sums of losses and metrics over this site's rows.
evaluations = {evaluations}
# Metrics that may leave beside the sum of losses, which every evaluation has, or "any".
metrics = {metrics}
"""


def job_digest(source: Source) -> str:
    """What a job is approved by: the SHA-256 of all of its settings."""
    return hashlib.sha256(json.dumps(source.values, sort_keys=True, default=str).encode()).hexdigest()


def evaluations(source: Source) -> int:
    """How many models the rounds of a job have judged: before round 0, every so many rounds, and at the end."""
    return 1 + math.ceil(rounds(source) / (source.values.get("eval.every") or 1))


def rounds(source: Source) -> int:
    """The rounds that a job asks for."""
    return int(source.values.get("rounds", Config.model_fields["rounds"].default))


def read(path: Path) -> Policy:
    """The policy in a file.

    Raises:
        UserError: it is not there, is no TOML, or a line is wrong, missing or unknown.
    """
    try:
        return Policy(**tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        name, what = str(first["loc"][0]) if first["loc"] else "", str(first["msg"]).lower()
        raise UserError(f"{path}: {name}: {what}; {WRITES} that has every line") from None
    except (OSError, ValueError) as broken:
        raise UserError(f"cannot read the policy {path} ({reason(broken)}); {WRITES}") from None


def write(path: Path, settings: str, data: Path | None, sites: int = 1) -> None:
    """A policy for one job, with comments.

    Args:
        settings: the job's, as TOML text.
        data: the site's file, whose columns it then lists.
        sites: of the deployment, where the settings have no cohort.

    Raises:
        UserError: the settings are wrong, or the file cannot be read.
    """
    source = source_of(settings)
    values, reading = source.values, input_settings(source)
    columns, others = None, list[str]()
    if data is not None:
        columns = federated.names_read(data, reading)
        if data.suffix.lower() != ".npz":
            others = [name for name in open_table(data, reading.missing).names if name not in columns]
    private = values.get("privacy.clip") is not None
    label = ", ".join(map(str, values.get("input.label") or ["the label of its data"]))
    about = f"{values.get('method', 'its method')}, model {values.get('model') or 'the usual one'}, {label} is learnt"
    text = TEXT.format(
        name=path.name,
        about=" ".join(about.split()),
        approved=_list([job_digest(source)]),
        columns='"any"' if columns is None else _list(columns),
        never=_list(others),
        least_sites=min(int(values.get("cohort") or sites), 3),
        secure_sums=str(values.get("secure.clip") is not None).lower(),
        noise=values.get("privacy.kind", "central") if private else "none",
        lifetime_epsilon=f"{float(values['privacy.epsilon'])!r}" if values.get("privacy.epsilon") else '"none"',
        rounds_a_day=3 * rounds(source),
        evaluations=evaluations(source),
        metrics='"any"' if not values.get("metrics") else _list([str(one) for one in values["metrics"]]),
    )
    files.write_text(path, text)


def _is_noisy(source: Source) -> bool:
    values = source.values
    return values.get("privacy.clip") is not None and bool(values.get("privacy.epsilon") or values.get("privacy.noise"))


def _list(names: Sequence[Any]) -> str:
    return json.dumps(list(names), ensure_ascii=False)
