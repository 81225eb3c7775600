"""The methods. To add one: a file with a factory, which is imported and listed here."""

from collections.abc import Callable

from fedconcord.algorithms.afedpd import afedpd, afedpdsam
from fedconcord.algorithms.auto import auto
from fedconcord.algorithms.fedadmm import fedadmm
from fedconcord.algorithms.fedadmm_inexact import fedadmm_inexact
from fedconcord.algorithms.fedavg import fedavg, fedpaq, fedprox, fedsam, fedsgd
from fedconcord.algorithms.fedcm import fedcm, mfl, mofedsam
from fedconcord.algorithms.feddyn import feddyn, fedspeed
from fedconcord.algorithms.fedhybrid import fedhybrid
from fedconcord.algorithms.fednova import fednova, fednova_vr
from fedconcord.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedexp, fedyogi
from fedconcord.algorithms.fedpd import fedpd
from fedconcord.algorithms.fedsmoo import fedsmoo
from fedconcord.algorithms.fedvra import fedvra
from fedconcord.algorithms.losac import fedsaga, losac
from fedconcord.algorithms.mimesvrg import mimesvrg
from fedconcord.algorithms.scaffold import fedgamma, scaffold
from fedconcord.algorithms.vrlsgd import vrlsgd
from fedconcord.basis.factories import by_name
from fedconcord.core import Algorithm

METHODS: dict[str, Callable[..., Algorithm]] = by_name(
    *(auto, fedsgd, fedavg, fedavgm, fedadam, fedyogi, fedadagrad, fedexp, fedpaq, fedprox, fedsam, fedcm, mofedsam),
    *(mfl, fednova, fednova_vr, scaffold, vrlsgd, fedgamma, mimesvrg, fedsaga, losac, feddyn, fedspeed, fedsmoo),
    *(fedpd, fedadmm, fedadmm_inexact, fedhybrid, fedvra, afedpd, afedpdsam),
)
"""The methods: name -> factory of an `Algorithm`, whose parameters are the method's."""
