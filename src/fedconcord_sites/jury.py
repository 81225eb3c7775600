"""Figures of a model as one secure sum of all sites: the server learns what they come to, and no site's.

Whole numbers, as counts are, stay what they are. Losses and the other sums are rounded to the nearest multiple of
2^(bit length of the number of sites - 28), and each that a site sends must be below 2^34. Numbers of samples are among
the figures: a total whose counts are not those of its sites is no total, as where they judged two models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.execution.messages.member import PARTS, Member, flat
from fedconcord.execution.messages.secure import Secure, unflat
from fedconcord.execution.messages.server import NOT_FINITE, RemoteServer, Request
from fedconcord.execution.messages.store import RemoteStore
from fedconcord.execution.messages.terms import STEPS, Scale, Terms
from fedconcord.support.errors import UserError
from fedconcord_sites.gate import PREFIX
from fedconcord_sites.judging import Figures, LayerSums, Sent

CLIP = 2.0**34


def terms_of_figures(terms: Terms) -> Terms:
    """The terms of sums of all sites' figures, for a job with these."""
    sites = len(terms.samples)
    return terms._replace(scale=Scale(CLIP, 62 - sites.bit_length()), cohort=sites)


# -- at a site ---------------------------------------------------------------------------------------------------------


def answer(member: Member, frame: Frame, measure: Callable[[], Figures | LayerSums]) -> Frame:
    """A site's answer to a message of such a sum.

    Args:
        measure: what the site has to say of the model in the frame.

    Raises:
        FrameError: the site does not answer it, in a sentence.
    """
    step = frame.kind.removeprefix(PREFIX)
    try:
        if step in STEPS:
            return frame._replace(kind=STEPS[step], fields={}, tensors=member.answer(step, frame))
        measured = measure()
        values = flat(measured)
        if not (np.abs(values) < CLIP).all():
            raise FrameError(f"its figures have {NOT_FINITE}, or is beyond {CLIP:g}")
        whole = unflat(measured, np.round(values / member.terms.scale.step) * member.terms.scale.step)
        return frame._replace(kind="judged", fields={}, tensors=member.cover(frame, lambda sender, cohort: whole))
    except UserError as impossible:
        raise FrameError(str(impossible)) from impossible


# -- at the server -----------------------------------------------------------------------------------------------------


class Jury(NamedTuple):
    """Asks all sites for their figures at once.

    Args:
        secure: of `terms_of_figures`.
        store: of what is kept between rounds, of which nothing changes.
    """

    secure: Secure
    store: RemoteStore

    def ask(
        self, number: int, fields: Mapping[int, Mapping[str, Any]], model: Mapping[str, Tensor], form: Sent
    ) -> tuple[list[int], Sent] | str:
        """Whose figures are in a total and that, or why there is none.

        Args:
            number: of the sum, above those of all before.
            fields: who is asked, and what each is told beside the model.
            model: as the tensors of a message.
            form: of a site's figures.
        """
        half = RemoteServer(self.store, self.store.way.begin(), 0)
        pacts = self.secure.meet(half, number, PARTS["judge"], [*fields], lambda ids, replies: sorted(replies))
        if isinstance(pacts, str):
            return pacts
        frames = {i: half.frame("judge", number, i, fields[i], model) for pact in pacts for i in pact.among}
        requests = {i: Request(frame, "judged", "", ()) for i, frame in frames.items()}
        covered = self.secure.covered(pacts, requests, form)
        rows = {i: one.tree for i, one in half.answers(covered).items()}
        opened = self.secure.opened(half, pacts, covered, sorted(rows), rows)
        if isinstance(opened, str):
            return opened
        return opened.senders, unflat(form, self.secure.terms.scale.numbers(opened.total))
