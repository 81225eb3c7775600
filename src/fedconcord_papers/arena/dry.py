"""An arena without its runs: every federation resolved, who cannot run there, and the rounds that it would take."""

from __future__ import annotations

from collections.abc import Iterator

from fedconcord.study.search.scores import cost, rungs_of
from fedconcord.study.search.space import space_of
from fedconcord.study.settings.problem import forget_problem
from fedconcord_papers.arena.plan import TUNING_SEEDS, ArenaSpec, able


def rows(spec: ArenaSpec) -> Iterator[dict[str, str]]:
    """A row a federation.

    Raises:
        UserError: a federation or FedAvg in it cannot run.
    """
    for federation in spec.federations:
        methods, refused = able(federation, spec.methods, spec.out)
        config = federation.config([*methods.values()])
        forget_problem()
        every, rounds = config.eval.every or 1, config.rounds
        trials = [space_of(config, method, {}).trials(spec.budget) for method in config.methods or []]
        # the reference is one more method with a search
        budgets = [spec.budget, *(count for count in trials if count > 1 or spec.budget == 1)]
        trial_rounds = sum(cost(rungs_of(count, rounds, every)) for count in budgets) * len(TUNING_SEEDS)
        yield {
            "federation": federation.name,
            "role": federation.role,
            "target": str(federation.target),
            "data": config.data,
            "clients": f"{config.cohort} of {config.clients}",
            "model": config.model or "none",
            "rounds": str(rounds),
            "rounds in all": str(trial_rounds + (len(trials) + 1) * rounds * len(spec.seeds)),
            "cannot run": ", ".join(refused) or "-",
        }
