"""What a job would have a site send, shown before anything is sent.

The job's own code asks and answers in this process, through the site's gate and policy, until it has been through one
round. In place of the other sites stand copies of this one, so what is computed of all sites' means, categories and
classes is not what will be; which messages there are, and what of this site is in them, is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fedconcord.execution.messages import codec
from fedconcord.execution.messages.codec import Frame
from fedconcord.study.settings.parts import part
from fedconcord.support.errors import UserError
from fedconcord_flower import keys
from fedconcord_sites import policy
from fedconcord_sites.edge import Edge
from fedconcord_sites.form import by_edge, has_own_noise, is_secure, source_of
from fedconcord_sites.gate import HANDSHAKE, JUDGING, PREFIX, ROUNDS
from fedconcord_sites.policy import USUAL, Policy
from fedconcord_sites.serve import NO_EDGES, serve
from fedconcord_sites.site import Site

SITES = 3  # of a job that does not say how many a round has
TELLS = {  # what can be learnt from an answer, by its kind
    "here": "how many rows there are, names and kinds of columns, every value of a label, of single rows too",
    "summed": "means and spreads over the rows trained on, and each text of a column of texts, of single rows too",
    "ready": "how many rows are trained and tested on",
    "reply": "what these rows do to the model: samples can sometimes be reconstructed (`fedconcord audit` tries)",
    "gradient": "the gradient of these rows: samples can sometimes be reconstructed (`fedconcord audit` tries)",
    "judged": "sums of losses and metrics over all rows, exact, for one model; of few rows they tell each",
    "layer": "means and spreads of what a layer gets of the rows trained on, for one model; of few rows they tell each",
    "loss": "the mean loss of these rows, exact, for one model",
    "share": "the gradient of these rows at the first model: samples can sometimes be reconstructed",
}
NOTHING = "nothing of these rows"
NOISE = "noise by itself; with the other sites' the sum of all, and of few sites that tells much of each"
NOISY = "what these rows do to the model, with noise that this site draws: what epsilon allows"


class Answer(NamedTuple):
    """What leaves in answer to one kind of question."""

    question: str
    kind: str
    most: int  # such answers in a run whose server follows the protocol
    bytes: int  # of the first
    leaves: tuple[str, ...]  # what is in it, in words
    tells: str  # what can be learnt from it


class _SeenError(Exception):
    """A whole round was asked for."""


def preview(settings: str, data: Path, name: str, rules: Policy = USUAL) -> tuple[list[Answer], str | None]:
    """All kinds of answers of a site to a job in the order in which they leave, and why the job would end, if it would.

    Args:
        settings: the job's, as TOML text.
        data: the site's file.
        rules: the site's policy.

    Raises:
        UserError: the settings are wrong, or the file is.
    """
    source = source_of(settings)
    clock = source.values.get("clock")
    at_work = 0 if clock is None else part("clock", str(clock)).concurrency
    count = max(int(source.values.get("cohort") or SITES), at_work)
    names = [name, *(f"copy-{k}-of-{name}" for k in range(1, count))]
    log: list[tuple[Frame, Frame, int]] = []

    def exchange(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        answers = {}
        for site, message in messages.items():
            frame = codec.read(message)
            if frame.kind in ROUNDS and any(q.kind in ROUNDS and q.round < frame.round for q, _, _ in log):
                raise _SeenError
            answers[site] = sites[site].answer(message)
            if site == name:
                log.append((frame, codec.read(answers[site]), len(answers[site])))
        return answers

    edge = Edge(settings, exchange)

    def of_edge(messages: Mapping[str, bytes], wait: float) -> dict[str, bytes]:
        return {name: edge.answer(message) for name, message in messages.items()}

    with TemporaryDirectory() as folder:
        place = Path(folder)
        for site in names if is_secure(source) else ():
            keys.write_site(place / "keys", site)
        sites = {
            one: Site(settings, data, place / one, one, policy=rules if one == name else USUAL, keys=place / "keys")
            for one in names
        }
        why = None
        try:
            edges = {"edge": names} if by_edge(source) else NO_EDGES
            serve(settings, names, of_edge if edges else exchange, place / "run", None, 0.0, False, edges=edges)
        except _SeenError:
            pass
        except UserError as end:
            why = str(end)
    start = next((k for k, (question, _, _) in enumerate(log) if question.kind in ROUNDS), len(log))
    models = sum(question.kind == "judge" and "layer" not in question.fields for question, _, _ in log[:start])
    layers = {question.fields["layer"] for question, _, _ in log if "layer" in question.fields}
    most = dict.fromkeys(ROUNDS, policy.rounds(source)) | dict.fromkeys((*HANDSHAKE, "prologue", "join"), 1)
    most |= dict.fromkeys(JUDGING, models * policy.evaluations(source)) | {"loss": policy.rounds(source)}
    answers = dict[tuple[str, str, bool], Answer]()
    for question, answer, length in log:
        key = (question.kind, answer.kind, "layer" in question.fields)
        if key in answers:
            again = question.kind in (*ROUNDS, *HANDSHAKE)  # two sums a round, or tokens of all that are told
            answers[key] = answers[key]._replace(most=answers[key].most + most[question.kind] * again)
            continue
        leaves = tuple(_leaves(question, answer))
        times = len(layers) if key[2] else 1 + len(layers) * question.kind.startswith(PREFIX)
        tells = TELLS["layer"] if key[2] and answer.kind == "judged" else _tells(answer, has_own_noise(source))
        answers[key] = Answer(*key[:2], most[question.kind] * times, length, leaves, tells)
    return [*answers.values()], why


def _tells(answer: Frame, is_noisy: bool) -> str:
    if any(name.startswith("covered/") for name in answer.tensors):
        return NOISE
    if answer.kind == "reply" and is_noisy:
        return NOISY
    return TELLS.get(answer.kind, NOTHING)


def _leaves(question: Frame, answer: Frame) -> list[str]:
    """What an answer holds, a line each."""
    fields = answer.fields
    if answer.kind == "refused":
        return [f"the reason: {fields['why']}"]
    lines = []
    if answer.kind == "here":
        data = fields["data"]
        samples = "" if data["columns"] else f", each of {_numbers(data['shape'])}"
        lines.append(f"{data['rows']} rows{samples}")
        lines += [f"column {name!r}: its name, and that it holds {kind}s" for name, kind in data["columns"].items()]
        for label in data["labels"]:
            values = label["values"]
            about = "that it holds numbers" if values is None else f"its values {', '.join(map(repr, values))}"
            lines.append(f"label {label['name']!r}: {about}")
        if data["tokens"] is not None:
            lines.append(
                "{classes} classes of tokens, and {largest}, the largest token that has one".format(**data["tokens"])
            )
    elif answer.kind == "summed":
        what = "sum" if question.kind == "sums" else "squared deviations from its mean"
        for part, columns in (("columns", question.fields["digits"]), ("target", ["the label"])):
            counts, totals = (answer.tensors[f"{part}/{one}"].reshape(-1).tolist() for one in ("known", "total"))
            lines += [
                f"{one}: {number:.0f} values, {what} {total:.6g}"
                for one, number, total in zip(columns, counts, totals, strict=False)
            ]
        for column, texts in fields["texts"].items():
            lines.append(f"texts of {column}: {', '.join(map(repr, texts)) or 'none'}")
    elif answer.kind == "ready":
        units = "persons trained on and rows" if "what is protected" in fields["facts"] else "rows trained and"
        lines.append("{} tested on: {}, {}".format(units, *fields["samples"]))
        lines += ["their tokens with a class: {}, {}".format(*fields["counts"])] if "counts" in fields else []
        lines += [f"{what}: {value}" for what, value in fields["facts"].items()]
    else:
        lines += [
            f"{name.rstrip('/')}: {_numbers(leaf.shape)} ({str(leaf.dtype).removeprefix('torch.')})"
            for name, leaf in answer.tensors.items()
        ]
        lines += [f"{name}: {value}" for name, value in fields.items()]
    return lines


def _numbers(shape: Sequence[int]) -> str:
    return "1 number" if math.prod(shape) == 1 else " x ".join(map(str, shape)) + " numbers"
