"""Every number of a diagnosis: what it is, its formula, who says so, and what changes it. One record each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

from fedconcord.insight.methods import catalogue
from fedconcord.method.contract import Remedy
from fedconcord_diagnosis.course import Diagnosis
from fedconcord_diagnosis.look import Look
from fedconcord_diagnosis.vectors import rank_correlation


class Measure(NamedTuple):
    """A number of a look."""

    key: str  # in diagnosis.json and rounds.csv
    title: str
    formula: str
    source: str
    change: str  # what changes it, with `methods_for` in braces
    of: Callable[[Diagnosis, Look], float | None]
    absent: str = ""  # why there is none, where there is none
    is_share: bool = False  # shown in percent


def methods_for() -> dict[str, str]:
    """The names of the methods of this installation that are made for each difference between clients.

    A key is a `Remedy` with underscores, so that it can stand in the braces of a text.
    """
    named = {remedy.replace(" ", "_"): list[str]() for remedy in get_args(Remedy)}
    for name, facts in catalogue.stated().items():
        for remedy in facts.remedies:
            named[remedy.replace(" ", "_")].append(name)
    return {remedy: ", ".join(names) for remedy, names in named.items()}


FEDNOVA = "Wang et al. (FedNova), IEEE TSP 2021"
SCAFFOLD = "Karimireddy et al. (SCAFFOLD), ICML 2020"
FEDPROX = "Li et al. (FedProx), MLSys 2020"
FEDVRA = "Wang et al. (FedVRA), AAAI 2023"
AFEDPD = "A-FedPD, NeurIPS 2024"
FEDADMM = "Gong, Li, Freris (FedADMM), ICDE 2022"
NO_MEMORY = "the method's clients keep nothing that stands for their gradient"
CORRECTED = "the method corrects its clients' directions already, or takes no gradient steps"

MEASURES = (
    Measure(
        "surrogate_chi2",
        "weights: chi-square to the true ones, this method",
        "chi^2(p||w) = sum_i (p_i - w_i)^2 / w_i",
        f"{FEDNOVA}, Theorem 2",
        "equal local work, normalised averaging ({unequal_work}), control variates ({drift})",
        lambda diagnosis, look: diagnosis.aim.miss(diagnosis.aim.own),
        "the method's step is no linear function of the clients' gradients",
    ),
    Measure(
        "average_chi2",
        "weights: chi-square, plain average on the same work",
        "w_i = p_i ||a_i||_1 / sum_j p_j ||a_j||_1",
        f"{FEDNOVA}, Theorems 1 and 2",
        "equal local work",
        lambda diagnosis, look: diagnosis.aim.miss(diagnosis.aim.plain),
        "the local solver's steps have no ||a_i||_1",
    ),
    Measure(
        "slowdown",
        "slowdown tau_bar / tau_eff",
        "tau_bar = sum_i p_i tau_i; tau_eff = the server's step along a common gradient, over eta",
        f"{FEDNOVA}, Theorem 1",
        "the server learning rate; a smaller penalty",
        lambda diagnosis, look: diagnosis.aim.slowdown(diagnosis.aim.own),
        "the method's step is no linear function of the clients' gradients",
    ),
    Measure(
        "full_gradient",
        "full gradient ||grad F(x)||",
        "grad F = sum_i p_i grad f_i",
        f"{FEDNOVA}, Theorem 2 bounds its minimum over rounds",
        "more rounds, another step size",
        lambda diagnosis, look: look.gradient.full,
    ),
    Measure(
        "dissimilarity",
        "gradient dissimilarity B^2",
        "sum_i p_i ||grad f_i||^2 / ||grad F||^2",
        f"{FEDPROX}, Definition 3; 1 / B^2 is gradient diversity (Yin et al., AISTATS 2018)",
        "nothing at the server: it is the data's; corrections make it harmless",
        lambda diagnosis, look: look.gradient.dissimilarity,
    ),
    Measure(
        "noise",
        "mini-batch noise over a client's gradient",
        "sqrt(sum_i p_i sigma_i^2 / sum_i p_i ||grad f_i||^2), sigma_i^2 = E ||g_i - grad f_i||^2",
        f"{FEDNOVA}, Assumption 2",
        "larger batches, a smaller or decaying local step size",
        lambda diagnosis, look: look.noise_ratio,
        "local steps use all samples of a client",
    ),
    Measure(
        "smoothness",
        "smoothness L, at least",
        "max of ||grad f_i(x_i^K) - grad f_i(x)|| / ||x_i^K - x|| and the Hessian's largest |eigenvalue|",
        "Lipschitz constant of grad f_i (FedNova, Assumption 1)",
        "the model, the scale of its inputs",
        lambda diagnosis, look: look.smoothness,
    ),
    Measure(
        "step_times_smoothness",
        "local step size times L",
        "eta L; gradient steps on a quadratic are stable below 2",
        f"{FEDVRA}, (18): sqrt(6) eta Q~ L <= 1 is sufficient",
        "the local step size",
        lambda diagnosis, look: look.lr * look.smoothness,
    ),
    Measure(
        "move",
        "client drift: mean distance of local steps",
        "sqrt(sum_i p_i ||x_i^K - x||^2)",
        f"{SCAFFOLD}, Lemma 8",
        "fewer or smaller local steps",
        lambda diagnosis, look: float((look.p @ look.drift.move**2) ** 0.5),
    ),
    Measure(
        "drift",
        "drift apart over common move",
        "sum_i p_i ||Delta_i - Delta||^2 / ||Delta||^2",
        f"{SCAFFOLD}, section 3, as a ratio",
        "control variates, normalised averaging, a proximal pull",
        lambda diagnosis, look: look.drift.ratio,
    ),
    Measure(
        "drift_with_work",
        "drift goes with local steps: rank correlation",
        "Spearman's rho of ||x_i^K - x|| and the client's steps",
        f"{FEDNOVA}, section III",
        "steps by client",
        lambda diagnosis, look: rank_correlation(look.drift.move, look.steps),
    ),
    Measure(
        "equal_work_removes",
        "drift that equal work would remove",
        "1 - D(Delta_i a / a_i) / D(Delta_i), D the drift apart",
        f"{FEDNOVA}, eq. (20)",
        "{unequal_work}, or steps by client",
        lambda diagnosis, look: None if look.remedies is None else look.remedies.equal_work,
        CORRECTED,
        True,
    ),
    Measure(
        "control_removes",
        "drift that control variates would remove",
        "1 - D(same steps with c - c_i added) / D(Delta_i), c_i = -Delta_i / (eta a_i)",
        f"{SCAFFOLD}, Algorithm 1, option II",
        "{drift}",
        lambda diagnosis, look: None if look.remedies is None else look.remedies.control,
        CORRECTED,
        True,
    ),
    Measure(
        "direction_variance",
        "variance of the search direction over that of gradients",
        "sum_i p_i ||D_i - D||^2 / sum_i p_i ||grad f_i - grad F||^2, D_i the first local direction",
        f"{FEDVRA}, section 2.2 (client-variance reduction)",
        "control variates, duals, client momentum",
        lambda diagnosis, look: look.direction,
    ),
    Measure(
        "cohort_noise",
        "deviation of a cohort's direction over its length",
        "sqrt(V (N - S) / (S (N - 1))) / ||D||, V the variance of D_i over clients",
        "sampling S of N without replacement",
        "a larger cohort, corrections, server momentum",
        lambda diagnosis, look: look.cohort,
    ),
    Measure(
        "memory_error",
        "what clients remember, against their gradients",
        "sqrt(sum_i p_i ||m_i - grad f_i||^2 / sum_i p_i ||grad f_i||^2), 1 if nothing is remembered",
        f"dual drift: {AFEDPD}; {SCAFFOLD}",
        "a larger cohort, virtual updates ({stale_memory}), a larger penalty or dual step",
        lambda diagnosis, look: None if look.memory is None else look.memory.relative,
        NO_MEMORY,
    ),
    Measure(
        "sum_error",
        "the server's sum of them, against the full gradient",
        "||c - grad F|| / ||grad F||",
        f"{SCAFFOLD}; {FEDVRA}, Lemma 1",
        "a larger cohort, smaller local steps",
        lambda diagnosis, look: None if look.memory is None else look.memory.total,
        "the server keeps no such sum",
    ),
    Measure(
        "residual",
        "stationarity V^t",
        "||sum_i p_i m_i||^2 + sum_i p_i (||grad f_i(w_i) + m_i||^2 + ||w_i - x||^2), m_i = y_i + rho (w_i - x)",
        f"{FEDADMM}, eq. (7), weighed by p_i",
        "more rounds, the penalty",
        lambda diagnosis, look: None if look.residual is None else look.residual.value,
        "the method has no dual variables",
    ),
)


def changes() -> dict[str, str]:
    """What changes each measure, by its key, with the methods of this installation."""
    methods = methods_for()
    return {one.key: one.change.format(**methods) for one in MEASURES}


def numbers(diagnosis: Diagnosis, look: Look) -> dict[str, float | None]:
    """Every measure of a look by its key."""
    return {one.key: one.of(diagnosis, look) for one in MEASURES}
