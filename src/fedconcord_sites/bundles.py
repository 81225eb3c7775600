"""What passes between an edge and what is above it: frames in bundles, totals, and what became of each question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame, FrameError
from fedconcord.method.contract import Tree
from fedconcord.method.contract.trees import raw
from fedconcord.support.errors import UserError
from fedconcord_sites.exchange import Exchange

SHARE = 0.8  # of the seconds for an edge's answer, those that it waits for what is below it
PASS, TOTAL = "pass", "total"
MASKED = "masked"  # in place of a total, where contributions are under masks
END = "end"  # of the run: what an edge is told last
KINDS = {PASS: "passed", TOTAL: TOTAL, MASKED: MASKED, END: END}  # of what an edge is asked, and of its answer
Answer = TypeVar("Answer")


def pooled(frame: Frame, pool: dict[tuple[str, str, bytes], Tensor]) -> Frame:
    """The frame with the tensors of a pool, to which those are added that it did not have."""
    return frame._replace(tensors={name: pool.setdefault(_content(one), one) for name, one in frame.tensors.items()})


def _content(tensor: Tensor) -> tuple[str, str, bytes]:
    return str(tensor.dtype), str(tensor.shape), hashlib.blake2b(raw(tensor).numpy().data).digest()


def bundle(frames: Mapping[str, Frame]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Frames by site as the fields and tensors of one; equal tensors are one."""
    places, tensors, heads = dict[tuple[str, str, bytes], str](), dict[str, Tensor](), dict[str, Any]()
    for site, frame in frames.items():
        names = {}
        for name, tensor in frame.tensors.items():
            names[name] = places.setdefault(_content(tensor), str(len(places)))
            tensors.setdefault(names[name], tensor)
        heads[site] = [*frame[:4], dict(frame.fields), names]
    return {"frames": heads}, tensors


def unbundled(frame: Frame) -> dict[str, Frame]:
    """The inverse of `bundle`, of a frame with these fields and tensors.

    Raises:
        FrameError: it has none.
    """
    try:
        return {
            str(site): Frame(
                *(str(kind), str(run), int(round), int(client)),
                dict(fields),
                {name: frame.tensors[place] for name, place in names.items()},
            )
            for site, (kind, run, round, client, fields, names) in frame.fields["frames"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise FrameError("no bundle of frames") from broken


def number_like(leaf: Tensor) -> Tensor:
    """Room for one number, [1] float64, or [] of a number."""
    return torch.empty((1,) * bool(leaf.ndim), dtype=torch.float64)


class Passage(NamedTuple):
    """What became of a question to an edge."""

    bytes_got: int  # by it
    bytes_sent: int  # by it
    why: str = ""  # it is lost


class Came(NamedTuple, Generic[Answer]):
    """What came of one exchange of a server, the root or an edge, with what is right below it."""

    sites: Mapping[str, bytes]  # their answers
    edges: Mapping[str, Answer]  # what is read of theirs
    below: Mapping[str, Passage]  # of the edges, and of those below these


def ask(
    exchange: Exchange,
    frames: Mapping[str, Frame],
    number: int,
    head: Mapping[str, Any],
    wait: float,
    read: Callable[[Frame], Answer],
) -> Came[Answer]:
    """One exchange with sites and edges.

    Args:
        frames: for each; those for edges are of `KINDS`.
        number: of the exchange, by which answers of edges are known.
        head: further fields of frames for edges.
        wait: seconds; an edge waits for a `SHARE` of them.

    Raises:
        UserError: an edge refuses, in its words.
    """
    more = {**head, "wait": SHARE * wait}
    edges = {
        name: one._replace(round=number, fields={**one.fields, **more})
        for name, one in frames.items()
        if one.kind in KINDS
    }
    messages = {name: codec.write(one) for name, one in {**frames, **edges}.items()}
    answers, below = dict[str, Answer](), dict[str, Passage]()
    came = exchange(messages, wait) if messages else {}  # where nobody is asked nobody is waited for
    for edge, question in edges.items():
        data, why = came.get(edge), ""
        try:
            if data is None:
                raise FrameError("it did not answer")
            answer = codec.read(data)
            if answer.kind == "refused":
                raise UserError(f"edge server {edge} refuses: {str(answer.fields.get('why'))[:300]}")
            if (answer.kind, answer.round) != (KINDS[question.kind], number):
                raise FrameError("an answer to another question")
            passages = _passages(answer)
            answers[edge] = read(answer)
            below |= passages
        except FrameError as lost:
            why = str(lost)
        below[edge] = Passage(len(messages[edge]), len(data or b""), why)
    return Came({name: data for name, data in came.items() if name in frames and name not in edges}, answers, below)


def _passages(frame: Frame) -> dict[str, Passage]:
    """What an edge says of those below it.

    Raises:
        FrameError: it does not.
    """
    try:
        return {
            str(edge): Passage(codec.whole(got), codec.whole(gave), str(why)[:300])
            for edge, (got, gave, why) in frame.fields["below"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise FrameError("it does not say what passed below it") from broken


def total_of(frame: Frame, form: Tree, device: torch.device) -> Tree | Mapping[str, str | None]:
    """A total, or why there is none: by site, the reason that is the site's, or none; or by edge that is lost, none.

    Raises:
        FrameError: it is of another form.
    """
    wrong = frame.fields.get("wrong")
    return wrong if isinstance(wrong, Mapping) else codec.unpack(TOTAL, frame, form, device)
