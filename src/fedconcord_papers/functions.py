"""The package's commands as functions: `fedconcord.arena`, `audit` and `reproduce`.

    import fedconcord

    print(fedconcord.audit(["fedavg", "scaffold"], data="digits", batch_size="full").page)

Arguments that are settings are those of `run` and `compare`; each function writes what its command writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from fedconcord.interface.api import listed, sources_of
from fedconcord.method.contract import Algorithm
from fedconcord.study.options.table import OPTIONS, RunOptions
from fedconcord.study.runs.events import Lines, Watch
from fedconcord.study.runs.pool import carry_out
from fedconcord.study.settings import methods
from fedconcord.study.settings.job import build
from fedconcord.study.settings.privacy import privacy_note, unprotected
from fedconcord.study.settings.problem import notes
from fedconcord.study.settings.resolve import resolve_compare
from fedconcord.study.settings.sources import Source, prepare, seed_list
from fedconcord.support import files
from fedconcord.support.errors import UserError
from fedconcord.support.grammar import count

if TYPE_CHECKING:
    from fedconcord_papers.arena.page import Pages
    from fedconcord_papers.arena.plan import ArenaSpec
    from fedconcord_papers.audit import Attack, Audit
    from fedconcord_papers.recipes.evidence import Judged

Say = Callable[[str], None]
OF_A_RUN = tuple(option.name for option in OPTIONS if option.stage == "run")


def quiet(line: str) -> None:
    """Say nothing."""


class Audited(NamedTuple):
    """What came of an audit."""

    page: Path  # audit.md, beside its table and figure
    audits: list[Audit]  # one a method


@listed(RunOptions, without=set(OF_A_RUN) - {"out"})
def audit(
    methods: str | Sequence[str | Algorithm | Callable[..., Algorithm]] | None = None,
    *,
    client: int | None = None,
    round: int = 5,
    iterations: int = 100,
    optimiser: Literal["lbfgs", "gd"] = "lbfgs",
    attack_lr: float | None = None,
    labels: Literal["known", "inferred"] = "known",
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Say = quiet,
    **options: Unpack[RunOptions],
) -> Audited:
    """Attack what a configuration sends, to see what it leaks: one client's message in one round, method by method.

    Args:
        methods: as `compare` takes them.
        client: whose message is attacked; the first of that round's cohort if none.
        round: whose message is attacked, from 1.
        iterations: of the attack.
        optimiser: how dummy samples are fitted.
        attack_lr: step size of gd; searched if none.
        labels: whether the attacker knows the labels.
        config: a TOML file of settings.
        settings: any other key, dotted.
        progress: gets a line a method and reading.
        options: settings with a short name, described in `RunOptions`; `out` is the folder of the findings.

    Raises:
        UserError: a setting is wrong, there is no such client or round, or the message cannot be read.
    """
    from fedconcord_papers.audit import Attack

    listed_ = [methods] if isinstance(methods, str) else methods
    sources = sources_of(audit, config, {"methods": listed_, **options}, settings)
    out = options.get("out")
    attack = Attack(count("iterations", iterations), optimiser, attack_lr, labels)
    return audited(sources, attack, client, count("round", round), None if out is None else str(out), progress)


def audited(
    sources: Sequence[Source], attack: Attack, client: int | None, round: int, out: str | None, say: Say
) -> Audited:
    """The audit of a job's methods, into a folder; the first that is free below runs/ if none is given."""
    from fedconcord_papers.audit import audit_jobs

    resolved = resolve_compare(*sources)
    if resolved.seeds is not None and len(resolved.seeds) > 1:
        raise UserError(f"an audit takes one seed, given {len(resolved.seeds)}; give one")
    runs = methods.runs(resolved)
    for line in filter(None, (*notes(resolved), *map(privacy_note, runs))):
        say(line)
    jobs = {one.label or "": build(one) for one in runs}
    private = [one for one in runs if one.privacy.clip is not None]
    plain = {one.label or "": build(unprotected(one)) for one in private}
    folder = files.free_folder(Path("runs"), "audit", out)
    say(
        f"{len(jobs)} method{'s' * (len(jobs) > 1)} trained to round {round}, whose messages are attacked for "
        f"{attack.iterations} iterations each; into {folder}"
    )
    audits = audit_jobs(jobs, folder, client=client, round=round, attack=attack, plain=plain, say=say)
    return Audited(folder / "audit.md", audits)


def arena(
    methods: Sequence[str] | None = None,
    *,
    federations: Sequence[str] | None = None,
    budget: int | None = None,
    seeds: int | Sequence[int] | None = None,
    jobs: int = 1,
    out: str | Path = "runs/arena",
    quick: bool = False,
    progress: Say = quiet,
) -> Pages:
    """Tune methods with equal budgets on many federations, and write how they stand: `.html`, `.markdown`, `.tables`.

    Called again, it goes on where it was; methods, federations and seeds that are new are added.

    Args:
        methods: with their parameters; FedAvg is always among them, and "controls" are three variants of it. Nine of
            ours and the controls if none. Those of the package's table that are not named stand beside them.
        federations: "all" (needs no extra), "choose", "hold", "natural", "natural_hold", names, TOML files of your own.
        budget: trials of each method in a federation; 8 if none.
        seeds: of the results; 0, 1 and 2 if none.
        jobs: runs at once, each in a process of its own.
        out: the folder.
        quick: a federation of each role, a few rounds; it tests the code.
        progress: gets a line a federation and method.

    Raises:
        UserError: there is no such method or federation, it cannot run, or the folder holds something else.
        KeyboardInterrupt: by Ctrl-C; the same call goes on.
    """
    from fedconcord_papers.arena import plan

    spec = plan.request(
        prepare("methods", methods),
        prepare("methods", federations),
        None if budget is None else count("budget", budget),
        None if seeds is None else seed_list("seeds", seeds),
        count("jobs", jobs),
        Path(out),
        quick,
    )
    return arena_of(spec, Lines(progress))


def arena_of(spec: ArenaSpec, watch: Watch) -> Pages:
    """`arena` for a specification, which `watch` is told of."""
    from fedconcord_papers.arena import page, run

    watch.begin(spec.out)
    return page.write(spec, carry_out(run.arena(spec, watch.say), spec.jobs, watch))


def reproduce(
    recipe: str,
    *,
    size: Literal["quick", "desk", "paper"] = "desk",
    seeds: int | Sequence[int] | None = None,
    cells: Sequence[str] | None = None,
    jobs: int = 1,
    device: str | None = None,
    out: str | Path = "runs/papers",
    values: str | Path | None = None,
    progress: Say = quiet,
) -> Judged:
    """Run a paper's experiment and judge its claims: `.findings`, their `.counts`, and the values, `.at_paper` and
    `.on_stand_ins`; its `.page` is in its folder. Called again, it goes on where it was.

    Args:
        recipe: its name; `fedconcord list recipes` shows them.
        size: about a minute, which tests the code; two cores and 90 minutes at most; or the paper's own.
        seeds: in place of the size's.
        cells: some of its federations, by name.
        jobs: runs at once, each in a process of its own.
        device: where a comparison's runs compute: cpu, cuda or auto.
        out: the folder of all recipes, OUT/RECIPE/SIZE.
        values: a folder with a file RECIPE-SIZE.json of what is known: its runs are not repeated, and it grows.
        progress: gets a line a comparison.

    Raises:
        UserError: there is no such recipe, data are missing, it would not fit, the folder holds something else, or a
            run failed.
        KeyboardInterrupt: by Ctrl-C; the same call goes on.
    """
    from fedconcord_papers.recipes.whole import reproduced, request

    seed_numbers = None if seeds is None else seed_list("seeds", seeds)
    some = prepare("methods", cells)
    folder = None if values is None else Path(values)
    spec = request(recipe, size, Path(out), count("jobs", jobs), seed_numbers, some, device, folder)
    return reproduced(spec, Lines(progress))
