"""FedPAQ: FedAvg whose clients send quantised changes.

Reisizadeh et al., AISTATS 2020, Algorithm 1: periodic averaging, partial participation and the low-precision quantiser
(QSGD's). With s levels,
    x <- x + eta_g sum_A w_i Q(Delta_i),   Q(v)_j = ||v|| sign(v_j) l_j / s,
and l_j is one of the two integers beside s |v_j| / ||v||, at random so that Q is unbiased. A message is the norm and
one integer an entry; entries take whole bytes and no further coding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from fedconcord.algorithms.fedavg import ServerLR, WeightsOption, fedavg
from fedconcord.core import Algorithm, Facts
from fedconcord.core.identity import definition
from fedconcord.transforms.uploads import quantise, with_uploads


@definition()
def fedpaq(
    levels: Annotated[
        int, Field(ge=1, le=32767, description="magnitudes above zero; one byte an entry up to 127, then two")
    ] = 127,
    server_lr: ServerLR = 1.0,
    weights: WeightsOption = "uniform",
) -> Algorithm:
    """FedPAQ: FedAvg with quantised uploads.

    Reisizadeh et al., AISTATS 2020, Algorithm 1.
    """
    return replace(with_uploads(fedavg(server_lr, weights), quantise(levels)), facts=Facts(group="compressed uploads"))
