"""Whether federation is worth it, in numbers: every client under the federated models, alone, and under the pooled one.

A unit is a client of one seed, judged on its own held-out samples by the final models of that seed's runs, in the
metric that ranks. Intervals are percentiles of a hierarchical bootstrap: seeds are drawn with replacement and of each
its clients, a mean over the clients of a seed and then over the seeds; with one seed clients alone are drawn, and with
fewer than five units there is no interval. Few clients that have names are sites, and no draw of others:
their interval is Student's over the seeds' means, and a site that is judged on few samples is named and left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedconcord.study.statistics.format import listing, value
from fedconcord.study.statistics.load import Array, Run
from fedconcord.study.statistics.metric import Metric, metric_of
from fedconcord.study.statistics.stats import LEVEL, Interval, interval
from fedconcord.study.statistics.summary import Summary
from fedconcord.support.readers import columns
from fedconcord.support.spread import spread

DRAWS = 2000  # of the bootstrap
MANY = 2000  # clients of a seed, beyond which a mean of resampled clients is drawn as a normal number
FEWEST = 5  # units that an interval is of
SITES = 20  # clients with names, up to which they are sites
NO_FIGURES = ("client", "name", "split", "samples", "hostile", "refused")  # columns of clients.csv
ROWS = 10  # samples that a site is judged on, at least


class Model(NamedTuple):
    """What one of the models does for the clients of every seed."""

    name: str
    by_seed: Mapping[int, Array]  # seed -> [N] a client's figure; NaN: without samples, or it never took part
    mean: float  # over clients that took part, then seeds
    samples: float  # over all held-out samples of these, then seeds
    worst_decile: float  # mean over seeds
    tested: float  # the ranking metric on the test set, last evaluated, mean over seeds


class Gain(NamedTuple):
    """What clients have from a federated model, against being alone."""

    more: int  # units that gain
    same: int
    less: int
    share: Interval  # of units that gain
    mean: Interval  # over units, positive where the federated model is better

    @property
    def units(self) -> int:
        return self.more + self.same + self.less


class Named(NamedTuple):
    """A client that has a name, over all seeds."""

    name: str
    samples: float  # that it is judged on
    figures: tuple[float, ...]  # of `Worth.models`


class Figures(NamedTuple):
    """Another metric of the clients, as `by_name` and the models have them."""

    metric: Metric
    means: tuple[float, ...]  # of `Worth.models`: over clients, then seeds
    each: tuple[Array, ...]  # of `Worth.models`: [N], mean over seeds


class Worth(NamedTuple):
    """Everything that the section says."""

    metric: Metric
    split: str  # what clients are judged on: validation or train
    seeds: tuple[int, ...]  # that all have
    samples: Mapping[int, Array]  # seed -> [N] that a client is judged on
    names: tuple[str, ...]  # [N] of the clients, '' where they have none
    alone: Model | None  # the best of several
    pooled: Model | None
    methods: tuple[Model, ...]  # as the table of results has them: the one that ranks first, first
    gains: tuple[Gain, ...]  # a method each; none without `alone`
    sites: bool  # the clients are few and have names
    few: tuple[str, ...]  # sites with too few samples, which means and gains leave out
    more: tuple[Figures, ...]  # every metric of the clients, the one above first
    majority: tuple[str, float] | None  # the commonest class and its share, where the metric is an accuracy

    @property
    def rows(self) -> Array:
        """[N] samples that a client is judged on, mean over seeds."""
        return np.asarray(np.mean([*self.samples.values()], 0))

    @property
    def models(self) -> tuple[Model, ...]:
        return (*((self.alone,) if self.alone else ()), *self.methods, *((self.pooled,) if self.pooled else ()))


def worth(s: Summary) -> Worth | None:
    """The numbers, or None without baselines or finished runs of one seed that are judged alike."""
    judged = [r for m in s.methods for r in m.finished if r.head.clients_judged is not None]
    beside = [r for r in s.baselines if r.head.clients_judged is not None and r.head.status == "complete"]
    splits = {(r.head.clients_judged or {})["split"] for r in (*judged, *beside)}
    if not judged or not beside or len(splits) != 1:
        return None
    groups = {row.name: [r for r in judged if r.name == row.name] for row in s.rows}
    groups = {name: runs for name, runs in groups.items() if runs}
    others = {name: [r for r in beside if r.name == name] for name in dict.fromkeys(r.name for r in beside)}
    every = groups | others
    seeds = tuple(sorted(set.intersection(*({r.head.seed for r in runs} for runs in every.values()))))
    if not seeds:
        return None
    runs_of = {name: [r for r in runs if r.head.seed in seeds] for name, runs in every.items()}
    tables_of = {name: {r.head.seed: columns(r.folder / "clients.csv") for r in runs} for name, runs in runs_of.items()}
    tables = [table for by_seed in tables_of.values() for table in by_seed.values()]
    if len({len(table["client"]) for table in tables}) != 1:
        return None
    common = [name for name in tables[0] if all(name in table for table in tables)]
    figures = [name for name in common if name not in NO_FIGURES and not name.endswith("_personalised")]
    column = s.primary.column.removeprefix("test_").removeprefix("validation_")
    if column not in figures:  # a loss, which every client has, of methods that are ranked by what no client has
        column = (judged[0].head.clients_judged or {})["metric"]
    higher_of = {str(entry["column"]).removeprefix("test_"): bool(entry["higher"]) for entry in judged[0].head.ranking}

    def read(name: str) -> Metric:
        """As the run says of a metric of one's own, whose name does not tell whether more is better."""
        return replace(metric_of(name), higher=higher_of.get(name, metric_of(name).higher))

    metric, first = read(column), tables_of[next(iter(groups))]
    samples = {seed: _column(first[seed], "samples") for seed in seeds}
    names = tuple(first[seeds[0]]["name"])
    sites = any(names) and len(names) <= SITES
    counted = np.mean([*samples.values()], 0) >= (ROWS if sites else 0)
    local = [tables_of[name] for name, runs in others.items() if runs[0].head.baseline == "local"]
    members = {seed: counted & _members([of[seed] for of in local], column, len(names)) for seed in seeds}
    models = {name: _model(name, runs, tables_of[name], metric, s.primary, members) for name, runs in runs_of.items()}
    sign = 1 if metric.higher else -1
    alone, pooled = (
        max(
            (models[name] for name, runs in others.items() if runs[0].head.baseline == kind),
            key=lambda m: sign * m.mean,
            default=None,
        )
        for kind in ("local", "pooled")
    )
    methods = tuple(models[name] for name in groups)
    w = Worth(
        metric,
        splits.pop(),
        seeds,
        samples,
        names,
        alone,
        pooled,
        methods,
        () if alone is None else tuple(_gain(m, alone, sign, counted, sites) for m in methods),
        sites,
        tuple(name for name, enough in zip(names, counted, strict=True) if not enough),
        (),
        judged[0].head.majority if metric.column == "accuracy" else None,
    )
    order = [column, *(name for name in figures if name != column)]
    by_model = [tables_of[m.name] for m in w.models]
    return w._replace(more=tuple(_figures(read(name), by_model, members) for name in order))


Table = Mapping[str, Sequence[str]]
"""Column -> cells of clients.csv."""


def _members(local: Sequence[Table], column: str, clients: int) -> Array:
    """Whose figures means are of: who took part, so that it is known alone; all where that is nobody."""
    members = np.all([np.ones(clients, bool), *(~np.isnan(_column(table, column)) for table in local)], axis=0)
    return np.asarray(members if members.any() else ~members)


def _figures(metric: Metric, by_model: Sequence[Mapping[int, Table]], members: Mapping[int, Array]) -> Figures:
    values = [{seed: _column(table, metric.column) for seed, table in tables.items()} for tables in by_model]
    means = tuple(float(np.mean([mean_of(v[members[seed]]) for seed, v in one.items()])) for one in values)
    each = tuple(np.array([mean_of(v) for v in np.stack([*one.values()]).T]) for one in values)
    return Figures(metric, means, each)


def _column(table: Table, name: str) -> Array:
    return np.array([float(cell) if cell else math.nan for cell in table[name]], dtype=np.float64)


def _model(
    name: str,
    runs: Sequence[Run],
    tables: Mapping[int, Table],
    metric: Metric,
    primary: Metric,
    counted: Mapping[int, Array],
) -> Model:
    by_seed = {seed: _column(table, metric.column) for seed, table in tables.items()}
    weights = {seed: _column(table, "samples") for seed, table in tables.items()}
    weighted = [
        float(np.average(v[known], weights=weights[seed][known]))
        if (known := counted[seed] & ~np.isnan(v)).any()
        else math.nan
        for seed, v in by_seed.items()
    ]
    return Model(
        name,
        by_seed,
        float(np.mean([mean_of(v[counted[seed]]) for seed, v in by_seed.items()])),
        float(np.mean(weighted)),
        float(np.mean([spread(v[counted[seed]], metric.higher).worst_decile for seed, v in by_seed.items()])),
        float(np.mean([r.metrics[primary.column][-1] if primary.column in r.metrics else math.nan for r in runs])),
    )


def mean_of(values: Array) -> float:
    """The mean of what is known; NaN of nothing."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if numbers.size else math.nan


def _gain(method: Model, alone: Model, sign: int, counted: Array, sites: bool) -> Gain:
    each = [sign * (method.by_seed[seed] - alone.by_seed[seed])[counted] for seed in sorted(method.by_seed)]
    each = [values[~np.isnan(values)] for values in each]
    every = np.concatenate(each)
    more, less = int((every > 0).sum()), int((every < 0).sum())
    shares = [(values > 0).astype(np.float64) for values in each]
    how = over_seeds if sites else bootstrap
    return Gain(more, len(every) - more - less, less, how(shares), how(each))


def over_seeds(groups: Sequence[Array]) -> Interval:
    """The mean over groups of each one's mean, and its t interval, of the same clients in every seed."""
    mean = interval([float(values.mean()) for values in groups if values.size])
    return mean if mean.n >= FEWEST else mean._replace(low=math.nan, high=math.nan)


def bootstrap(groups: Sequence[Array]) -> Interval:
    """The mean over groups of each one's mean, and its 95 % interval as above; keyed, so always the same."""
    groups = [values for values in groups if values.size]
    if not groups:
        return Interval(math.nan, math.nan, math.nan, ())
    mean, every = float(np.mean([values.mean() for values in groups])), tuple(np.concatenate(groups).tolist())
    if len(every) < FEWEST:
        return Interval(mean, math.nan, math.nan, every)
    draw = np.random.Generator(np.random.Philox(0))
    group_of = draw.integers(len(groups), size=(DRAWS, len(groups)))
    means = np.zeros(group_of.shape)
    for k, values in enumerate(groups):
        where = group_of == k
        means[where] = _resampled(draw, values, int(where.sum()))
    low, high = np.quantile(means.mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(mean, float(low), float(high), every)


def _resampled(draw: np.random.Generator, values: Array, times: int) -> Array:
    """Means [times] of as many values drawn with replacement."""
    n = values.size
    if n > MANY:
        return draw.normal(values.mean(), values.std() / math.sqrt(n), times)
    return np.asarray(values[draw.integers(n, size=(times, n))].mean(1))


# -- words ---------------------------------------------------------------------------------------------------------


def sentences(w: Worth) -> tuple[str, ...]:
    """The verdict, for the method that ranks first: chosen by the clients' figures, its own would be too good."""
    m = w.methods[0]
    if why := _unsaid(w):
        return (f"Whether federation is worth it is not said: {why}.",)
    levels = [("alone", w.alone), (f"under {m.name}", m), ("pooled", w.pooled)]

    def levels_text(figure: str) -> str:
        return ", ".join(f"{what} {value(w.metric, getattr(one, figure))}" for what, one in levels if one is not None)

    samples = (
        "" if levels_text("samples") == levels_text("mean") else f"; over all their samples: {levels_text('samples')}"
    )
    always = f"; always answering {w.majority[0]} {100 * w.majority[1]:.1f} %" if w.majority else ""
    absent = w.alone is not None and any(
        (np.isnan(v) & ~np.isnan(m.by_seed[seed])).any() for seed, v in w.alone.by_seed.items()
    )
    means = f"Mean {w.metric.title} over {_who(w)}{' that took part' * absent}: {levels_text('mean')}{samples}{always}."
    if w.alone is None:
        return (means,)
    g = w.gains[0]
    lines = [f"{_verdict(w, g)} {means}", _gains(w, m, g)]
    if w.pooled is not None and g.mean.low > 0:
        sign = 1 if w.metric.higher else -1
        share = sign * (m.mean - w.alone.mean) / (sign * (w.pooled.mean - w.alone.mean) or math.inf)
        if 0 < share < 1:
            lines.append(f"Of what pooling all samples gains over being alone, federation gets {100 * share:.0f} %.")
        else:
            lines.append(f"One model on all samples in one place serves the {_who(w)} no better than {m.name}.")
    if w.sites and math.isfinite(g.mean.low):
        lines.append(
            f"The interval is over {len(w.seeds)} seeds, each with its own split of the same sites' samples; it says "
            "nothing of other sites."
        )
    if w.few:
        few = listing([f"{name} ({w.rows[w.names.index(name)]:.3g})" for name in w.few])
        lines.append(f"Left out, as fewer than {ROWS} samples are set apart there: {few}.")
    return tuple(lines)


def _who(w: Worth) -> str:
    return "sites" if w.sites else "clients"


def _unsaid(w: Worth) -> str:
    """Why there is no verdict, if there is none."""
    if w.split != "validation":
        return (
            "clients set no samples apart, and on samples that it trained on a client alone looks too good; set "
            "validation, as in validation=0.2"
        )
    if w.few and len(w.few) == len(w.names):
        return f"no site sets {ROWS} samples or more apart; set validation higher, or add samples"
    if math.isnan(w.methods[0].mean):
        return f"{w.metric.title} is not defined on any client's samples"
    return ""


def _verdict(w: Worth, g: Gain) -> str:
    if not math.isfinite(g.mean.low):
        clients = f"clients for an interval ({g.units})"
        return f"There are too few {f'seeds for an interval over seeds ({len(w.seeds)})' if w.sites else clients}."
    here = "at these sites" if w.sites else "here"
    if g.mean.low > 0:
        return f"Federation is worth it {here}."
    return f"Federation is not worth it {here}." if g.mean.high < 0 else "Whether federation is worth it is open."


def _gains(w: Worth, m: Model, g: Gain) -> str:
    same = f", {g.same} {'are' if g.same != 1 else 'is'} as well off" if g.same else ""
    clients = _who(w) if len(w.seeds) == 1 else f"{_who(w)} of {len(w.seeds)} seeds"
    low, high = 100 * max(g.share.low, 0), 100 * min(g.share.high, 1)
    share = f"{100 * g.share.mean:.0f} %" + (f", {low:.0f} to {high:.0f} %" if math.isfinite(g.share.low) else "")
    return (
        f"{g.more} of {g.units} {clients} ({share}) fare better under {m.name} than alone{same}, {g.less} "
        f"{'fare' if g.less != 1 else 'fares'} worse; the mean gain is {lead(w.metric, g.mean)}."
    )


def lead(metric: Metric, i: Interval) -> str:
    scale, unit = (100.0, " points") if metric.percent else (1.0, "")
    around = f" ({scale * i.low:.3g} to {scale * i.high:.3g})" if math.isfinite(i.low) else ""
    return f"{scale * i.mean:.3g}{unit}{around}"


def by_name(w: Worth) -> tuple[Named, ...]:
    """The clients that have names, those that gain most first; none where they have none."""
    if not any(w.names):
        return ()
    means = w.more[0].each
    gain = means[w.models.index(w.methods[0])] - (means[0] if w.alone is not None else 0)
    order = np.argsort(-gain if w.metric.higher else gain, kind="stable").tolist()
    return tuple(Named(w.names[i], float(w.rows[i]), tuple(float(v[i]) for v in means)) for i in order)


def client_sentences(w: Worth) -> tuple[str, ...]:
    """One a client that has a name and enough samples: alone, under the best method, pooled; none without a verdict."""
    models, best = w.models, w.methods[0]
    words = {id(w.alone): "alone", id(best): f"under {best.name}", id(w.pooled): "pooled"}
    wordings = [(words[id(m)], k) for k, m in enumerate(models) if id(m) in words]
    return tuple(
        f"{c.name}: {', '.join(f'{what} {value(w.metric, c.figures[k])}' for what, k in wordings)}"
        for c in (() if _unsaid(w) else by_name(w))
        if c.name not in w.few
    )
