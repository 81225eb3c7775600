"""The methods. To add one: a file with a factory, which is imported and listed here."""

from collections.abc import Callable

from fedconcord.method.algorithms.afedpd import afedpd, afedpd_share, afedpdsam
from fedconcord.method.algorithms.auto import auto
from fedconcord.method.algorithms.ca2fl import ca2fl
from fedconcord.method.algorithms.fairness import afl, qffl
from fedconcord.method.algorithms.fedadmm import fedadmm
from fedconcord.method.algorithms.fedadmm_inexact import fedadmm_inexact
from fedconcord.method.algorithms.fedasync import fedasync
from fedconcord.method.algorithms.fedavg import fedavg, fedpaq, fedprox, fedsam, fedsgd
from fedconcord.method.algorithms.fedcm import fedcm, mfl, mofedsam
from fedconcord.method.algorithms.feddyn import feddyn, fedspeed
from fedconcord.method.algorithms.fedhybrid import fedhybrid
from fedconcord.method.algorithms.fednova import fednova, fednova_vr
from fedconcord.method.algorithms.fedopt import fedadagrad, fedadam, fedavgm, fedexp, fedyogi
from fedconcord.method.algorithms.fedpd import fedpd
from fedconcord.method.algorithms.fedsmoo import fedsmoo
from fedconcord.method.algorithms.fedvra import fedvra
from fedconcord.method.algorithms.losac import fedsaga, losac
from fedconcord.method.algorithms.mimesvrg import mimesvrg
from fedconcord.method.algorithms.personal import apfl, ditto, perfedavg, pfedme
from fedconcord.method.algorithms.scaffold import fedgamma, scaffold
from fedconcord.method.algorithms.vrlsgd import vrlsgd
from fedconcord.method.contract import Algorithm
from fedconcord.support.factories import by_name

METHODS: dict[str, Callable[..., Algorithm]] = by_name(
    *(auto, fedsgd, fedavg, fedavgm, fedadam, fedyogi, fedadagrad, fedexp, fedpaq, fedprox, fedsam, fedcm, mofedsam),
    *(mfl, fednova, fednova_vr, scaffold, vrlsgd, fedgamma, mimesvrg, fedsaga, losac, feddyn, fedspeed, fedsmoo),
    *(fedpd, fedadmm, fedadmm_inexact, fedhybrid, fedvra, afedpd, afedpdsam, afedpd_share, qffl, afl, ditto, pfedme),
    *(perfedavg, apfl, fedasync, ca2fl),
)
"""The methods: name -> factory of an `Algorithm`, whose parameters are the method's."""
