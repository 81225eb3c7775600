"""Private parts of a model in a client's round: its local steps move u = [x | y], and the method is told of x alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedconcord.method.contract import Done, Drawn, Local, Objective, Orders, Parts
from fedconcord.method.contract.pairs import Window
from fedconcord.method.contract.wide import HasWide


class Joint(NamedTuple):
    """Some clients' private parts; `SHARED` where all of the model is shared, and then nothing here changes anything.

    Of one client by itself vectors are those of a cohort of one.
    """

    parts: Parts | None = None
    d: int = 0  # of x
    y: Tensor | None = None  # [S, e]

    def point(self, x: Tensor) -> Tensor:
        """u [S, d + e] of the clients at x [d] or [S, d]; x as it is where all is shared."""
        return x if self.y is None else torch.cat([x.expand(len(self.y), -1), self.y], -1)

    def one(self, x: Tensor) -> Tensor:
        """u [d + e] of one client by itself at x [d]."""
        return x if self.y is None else self.point(x)[0]

    @property
    def width(self) -> int | None:
        """d, where there is a private part."""
        return None if self.y is None else self.d

    def shared(self, v: Tensor) -> Tensor:
        """The first d entries of [..., d + e], or of [..., d]."""
        return v if self.y is None else v[..., : self.d]

    def orders(self, orders: Orders) -> Orders:
        """With the steps on y alone, whose samples are drawn behind those of the others."""
        return orders if self.parts is None else orders._replace(steps=orders.steps + self.before(orders.steps))

    def before(self, steps: int) -> int:
        """How many steps on y alone a client takes that takes steps at all."""
        return 0 if self.parts is None or not steps else self.parts.before or 0

    def local(self, local: Local) -> Local:
        """The method's local problem, of u."""
        if self.parts is None or self.y is None:
            return local
        pieces: list[Any] = [p.wide(self.y.shape[-1]) if isinstance(p, HasWide) else p for p in local.pieces]
        if self.parts.frozen or self.parts.before:
            pieces.append(self.window(True))
        x = local.x if local.x.ndim > 1 else local.x[None]
        y = self.y if len(self.y) == len(x) or len(x) == 1 else self.y.expand(len(x), -1)
        u = torch.cat([x.expand(len(y), -1), y], -1)
        return Local(u, *pieces, lr_scale=local.lr_scale, first=local.first)

    def opening(self, local: Local) -> Local | None:
        """Of the problem in u, the steps on y alone that come before the others; None where there are none."""
        if self.parts is None or not self.parts.before:
            return None
        return Local(local.x, *(piece for piece in local.pieces if isinstance(piece, HasWide)), self.window(False))

    def window(self, shared: bool) -> Window:
        """What lets x alone move, or y alone."""
        assert self.y is not None
        e = self.y.shape[-1]
        return Window(torch.cat([self.y.new_full((self.d,), shared), self.y.new_full((e,), not shared)]))

    def cut(self, end: Done, private: Tensor | None) -> tuple[Done, Tensor | None]:
        """What the method is told, and what private blocks [S, ...] become."""
        if self.y is None:
            return end, private
        y = end.x[..., self.d :].clone()
        return end._replace(x=end.x[..., : self.d].contiguous()), y.view_as(self.y)


SHARED = Joint()


def joint_of(objective: Objective, private: Tensor | None) -> Joint:
    """Of the clients with these private blocks [S, ...], as their rows hold them."""
    parts = objective.private
    return Joint(parts, objective.dim, private) if isinstance(parts, Parts) else SHARED


def apart(draw: Drawn, steps: int) -> tuple[Drawn, Drawn]:
    """What was drawn for the first so many steps, and for those behind them."""
    both = (slice(None, steps), slice(steps, None))
    first, rest = (Drawn(*(None if one is None else one[part] for one in draw)) for part in both)
    return first, rest
