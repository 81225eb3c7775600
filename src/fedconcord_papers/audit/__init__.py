"""What a federation leaks: what one client sends in one round, read by the server, and the attack of LoSAC section 5.4.

A self-audit. A job is run to a round, one client's message is taken as it is sent, and an honest-but-curious server,
which follows the protocol and knows it, forms an estimate of the client's mean gradient from it. Two readings:

move        -(x_i+ - x) / (eta K), LoSAC section 5.4: the mean local direction, duals and control variates included;
            of a method with a prelude (Mime) the gradient that it sends.
protocol    the constant gradient that best explains the message. The server plays the client's round itself: with a
            constant gradient g every vector of the message is a + b g with a number b, so g = sum b (v - a) / sum b^2
            over its vectors v. That subtracts whatever is known (c and c_i, duals, tables, momentum, pulls) for any
            method without a rule for each.

The rows c_i, lambda_i, y_ij are known to a server that has followed a client since round 0: they start at zero and
change by what is sent. Where they do not (compressed messages, several blocks drawn in private) the reading is given
more than the server has, so it errs on the side of the attacker.

A protected message, clipped and with local noise noisy, is read as if it were plain: the server plays the round of the
same job without privacy, for it knows neither by what the client clipped nor the noise.

The attack (Deep Leakage from Gradients, Zhu et al., NeurIPS 2019; LoSAC Definition 1) then looks for dummy samples D^
with gradient g^: min ||grad f(x; D^) - g^||^2 by gradient descent or L-BFGS from D^ ~ N(0, 1).
"""

from fedconcord_papers.audit.attack import (
    Attack,
    Audit,
    Curve,
    attacked,
    audit,
    infer_labels,
    permutation,
    reconstruct,
)
from fedconcord_papers.audit.findings import audit_jobs, figure, save_figure, summary, verdict, write
from fedconcord_papers.audit.message import Seen, capture, readings, touched

__all__ = [
    "Attack",
    "Audit",
    "Curve",
    "Seen",
    "attacked",
    "audit",
    "audit_jobs",
    "capture",
    "figure",
    "infer_labels",
    "permutation",
    "readings",
    "reconstruct",
    "save_figure",
    "summary",
    "touched",
    "verdict",
    "write",
]
