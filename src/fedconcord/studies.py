"""What the command finds out about a federation or about methods, as functions: `advise` and `arena`.

    import fedconcord

    print(fedconcord.advise(data="digits", partition="shards(2)"))

Arguments that are settings are those of `run` and `compare`; each function writes what its command writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fedconcord import settings as settings_module
from fedconcord.api import sources_of
from fedconcord.basis.wanted import count
from fedconcord.options.arguments import listed
from fedconcord.options.table import RunOptions
from fedconcord.runs.events import Lines, Watch
from fedconcord.runs.study import carry_out

if TYPE_CHECKING:
    from fedconcord.advice import Advice
    from fedconcord.arenas.page import Pages
    from fedconcord.arenas.plan import ArenaSpec

Say = Callable[[str], None]


def quiet(line: str) -> None:
    """Say nothing."""


@listed(RunOptions, without=("server", "out"))
def advise(
    *,
    stateless: bool = False,
    private: bool = False,
    uplink: int | Literal["slow"] | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Advice:
    """Name the methods to tune first on a federation, and why; nothing is trained, and nothing written.

    Its text is what the command says; `.named` has the methods with their ranges and costs, best first, `.against` the
    methods that are not advised and why, `.facts` what was seen.

    Args:
        stateless: clients keep nothing between rounds.
        private: the server learns the sum of one update a client, and nothing else.
        uplink: bytes that a client may send in a round; "slow": one model.
        config: a TOML file of settings.
        settings: any other key, dotted.
        options: settings with a short name, described in `RunOptions`.

    Raises:
        UserError: a setting is wrong, data are missing, or no method meets the wishes.
    """
    from fedconcord import advice

    sources = sources_of(advise, config, options, settings)
    return advice.advise(advice.federation_of(*sources), advice.Wishes(stateless, private, uplink))


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
        methods: with their parameters; FedAvg is always among them. Nine of ours if none.
        federations: "all", "choose", "hold", names, or TOML files of your own.
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
    from fedconcord.arenas import plan

    spec = plan.request(
        settings_module.prepare("methods", methods),
        settings_module.prepare("methods", federations),
        None if budget is None else count("budget", budget),
        None if seeds is None else settings_module.seed_list("seeds", seeds),
        count("jobs", jobs),
        Path(out),
        quick,
    )
    return arena_of(spec, Lines(progress))


def arena_of(spec: ArenaSpec, watch: Watch) -> Pages:
    """`arena` for a specification, which `watch` is told of."""
    from fedconcord.arenas import page, run

    watch.begin(spec.out)
    return page.write(spec, carry_out(run.arena(spec, watch.say), spec.jobs, watch))
