"""Differential privacy of samples: what a client's message, and all that it ever sends, tells of any one of its rows.

The unit of protection is a sample, as a patient in a hospital's table, and nobody beside its client is trusted: not
the server, nor other clients. A client meets its samples in the gradients of its local steps alone, and each of these
is that of DP-SGD (Abadi et al., CCS 2016, Algorithm 1) or, without coins, has the correlated noise of a tree (Kairouz
et al., ICML 2021); `step.noise` has both. All that it makes of them, messages, rows that it keeps, control variates and
dual variables, is made of noisy gradients and of what it was sent, and spends no more.

Two runs are neighbours if they differ in one sample of one client, whose gradients are there in one and count as zeros
in the other. How many samples a client has is public. Where the objective's samples are persons with several rows each
(`objectives.persons`), the unit is a person with all its rows. A method whose clients look at their samples in any
other way, by full gradients, losses, tables or second gradients of a step, is refused (`job.refusals`), as computed
from what it says that it needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedconcord.method.contract import Algorithm, Population, rng
from fedconcord.method.contract.facts import StepNoise
from fedconcord.method.contract.grid import too_little
from fedconcord.method.contract.identity import definition
from fedconcord.support.parameters import Count, Fraction, NotNegative, Positive, about


@definition()
def with_sample_privacy(
    algorithm: Algorithm,
    clip: Annotated[Positive, about("C, the largest l2 norm of a sample's gradient")],
    noise: Annotated[NotNegative, about("z, the standard deviation of the noise over C")],
    probability: Annotated[Fraction, about("q, the share of the samples in the batch of a step, on average")],
    leaves: Annotated[Count, about("steps below one tree of noise, in which each sample is once; 1: coins")] = 1,
) -> Algorithm:
    """The same method with each step's gradient clipped sample by sample, and noise on it."""

    def refuse(population: Population, cohort: int) -> str | None:
        return too_little(noise) or algorithm.refuse(population, cohort)

    step = algorithm.step._replace(noise=StepNoise(clip, noise, probability, rng.noise, leaves))
    return replace(algorithm, step=step, refuse=refuse)
