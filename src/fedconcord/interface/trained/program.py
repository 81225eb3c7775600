"""model.json, the model that it describes, and that model as a program: `torch.export` or ONNX; or as an adapter.

A program takes raw inputs [batch, *shape] as the data's files have them (pixels from 0 to 255), float32, or int64 for a
model that embeds symbols. It returns class probabilities [batch, classes], those of each token [batch, L, classes], the
numbers of a regression in the label's own unit, or the probability of each label. Preprocessing that is arithmetic
is inside it; what is not (the columns of a table) is in the JSON file beside it, and `fedconcord predict` does it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedconcord.execution.rows import tensors
from fedconcord.execution.run import folder
from fedconcord.execution.run.final_model import MODEL, MODELS
from fedconcord.federation.models import models
from fedconcord.federation.objectives.card import FORMAT, check
from fedconcord.interface.trained import adapter
from fedconcord.study.settings.objects import named
from fedconcord.support import factories, files, imports, sums
from fedconcord.support.errors import UserError, reason, unknown
from fedconcord.support.readers import columns

DTYPE = {"numbers": torch.float32, "symbols": torch.int64}
FORMATS = ("torch", "onnx", "peft")
SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}
NOISY = "torch.onnx._internal.exporter._registration"  # warns of every optional package that is not installed


class Trained(NamedTuple):
    """A run's model."""

    card: Mapping[str, Any]  # model.json
    program: Program  # raw inputs to probabilities or numbers


class Program(nn.Module):
    """A model between its preprocessing and its probabilities, float32, or numbers, float64: where they are large and
    vary little, float32 cannot tell them apart."""

    mean: Tensor
    std: Tensor
    offset: Tensor
    factor: Tensor

    def __init__(self, model: nn.Module, card: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.target = model, card["target"]
        self.dtype = getattr(torch, card["dtype"])
        scale = card["preprocessing"] or {}
        self.divide = scale["divide"] if scale.get("kind") == "scale" else None
        self.symbols, self.unit = card["inputs"] == "symbols", card["unit"] is not None
        for name, values in zip(("offset", "factor"), card["unit"] or (), strict=False):  # mean and scale of labels
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        if self.divide is not None:
            rest = [1] * (len(card["shape"]) - 1)
            for name in ("mean", "std"):
                self.register_buffer(name, torch.tensor(scale[name], dtype=torch.float32).reshape(-1, *rest))

    def forward(self, raw: Tensor) -> Tensor:
        """[batch, *shape] -> [batch, outputs], or [batch, L, outputs or more] of tokens."""
        x = raw
        if self.divide is not None:
            x = (x / self.divide - self.mean) / self.std
        out: Tensor = self.model(x if self.symbols else x.to(self.dtype))
        if self.target == "number":
            return out.double() * self.factor + self.offset if self.unit else out.double()
        return (torch.sigmoid(out) if self.target == "labels" else torch.softmax(out, -1)).float()


def load(
    run: Path, force: bool = False, model: object = None, client: str | None = None, trust: bool = False
) -> Trained:
    """The model of a run's folder; the training data are not needed.

    Args:
        force: take it even of a run that diverged, or with weights that are not finite.
        model: the model, where the run was given it from Python as an object; its weights are those of the run.
        client: whose, by name or number, where the run's answer is a model a client.
        trust: import the module that the folder names.

    Raises:
        UserError: the folder holds no such model, or its files are damaged or do not belong together.
    """
    if not (run / "run.json").exists():
        runs = sorted(str(path.parent) for path in run.glob("**/seed-*/run.json"))
        some = f", as {runs[0]}" if runs else ""
        raise UserError(f"{run} holds no run (no run.json); give the folder of one run{some}")
    status = folder.read_description(run).get("status")
    file = _weights(run, client)
    try:
        about = json.loads(sums.text(run / "model.json"))
        weights, _ = tensors.read(file)
    except FileNotFoundError as absent:
        raise UserError(
            f"{run} holds no model to use (no {Path(str(absent.filename or 'model.safetensors')).name}); give a run of "
            "classification or regression that has done a round"
        ) from None
    except (OSError, ValueError) as broken:
        raise UserError(f"cannot read the model of {run} ({broken}); restore it or run again") from None
    kind = about.get("format") if isinstance(about, dict) else type(about).__name__
    if kind != FORMAT:
        raise UserError(f"{run / 'model.json'}: its format is {kind!r}, this version reads {FORMAT}")
    about = check(about, run / "model.json")
    if not force and (status == "diverged" or not all(bool(leaf.isfinite().all()) for leaf in weights.values())):
        raise UserError(
            f"{run} diverged, so its model answers nothing of use; run again with a smaller --lr, or take it "
            "all the same with --force (force=True in Python)"
        )
    if trust:
        folder.trust(run)
    imports.trust(model)
    text, _held = named("model", about["model"] if model is None else model)
    network = factories.build(models(), "model", text, tuple(about["shape"]), about["outputs"])
    try:
        network.load_state_dict(weights)
    except RuntimeError:
        raise UserError(
            f"{run}: the weights in model.safetensors are not of the model {text} in model.json; restore them"
            if model is None
            else f"{run}: its weights are not those of a model {text}; give the model that the run was begun with"
        ) from None
    try:
        program = Program(network.to(getattr(torch, about["dtype"])), about).eval()
    except (KeyError, TypeError, ValueError, RuntimeError) as wrong:
        raise UserError(
            f"{run / 'model.json'}: its preprocessing or unit is not what a run writes ({reason(wrong)}); restore it "
            "or run again"
        ) from None
    return Trained(about, program)


def _weights(run: Path, client: str | None) -> Path:
    """The file of a run's model, or of a client's own.

    Raises:
        UserError: there is one model for all, or one a client and none of this one.
    """
    if not (run / MODELS).is_dir():
        if client is not None:
            raise UserError(f"{run} has one model for all clients, given client {client!r}; leave the client out")
        return run / MODEL
    table = columns(run / "clients.csv") if (run / "clients.csv").exists() else {"client": [], "name": []}
    numbers = dict(zip(table["name"], table["client"], strict=True))
    clients = sorted((path.stem for path in (run / MODELS).glob("*.safetensors")), key=int)
    names = {number: name for name, number in numbers.items() if name}
    if client is None:
        raise UserError(f"{run} has a model a client; name one, as in --client {names.get(clients[0], clients[0])}")
    number = numbers.get(client, client)
    if number not in clients:
        raise unknown("client with a model of its own", client, [names.get(one, one) for one in clients])
    return run / MODELS / f"{number}.safetensors"


def export(
    run: str | Path,
    format: Kind = "torch",
    out: str | Path | None = None,
    force: bool = False,
    *,
    model: object = None,
    client: str | None = None,
    trust: bool = False,
) -> Path:
    """Write a run's model as a program that takes raw inputs, with its description as JSON beside it.

    Args:
        format: "torch" is read by `torch.export.load(FILE).module()`, "onnx" by any ONNX runtime, "peft" by
            `peft.PeftModel.from_pretrained`: a folder with what was added to the weights of a model `hf`.
        out: the file; model.pt2, model.onnx or adapter in the run's folder if not given. The JSON file is FILE.json.
        force: write even the model of a run that diverged, or weights that are not finite.
        model: the model, where the run was given it as an object or by import path.
        client: whose, by name or number, where the run's answer is a model a client.
        trust: import the module that the folder names, which runs code of who made it.

    Returns: the program's path.

    Raises:
        UserError: the folder holds no model or a lost one, the format is unknown, ONNX is not installed, or `out` is
            there and is no exported model.
    """
    if format not in FORMATS:
        raise UserError(f"the format must be torch, onnx or peft, given {format!r}")
    if format == "onnx" and not all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript")):
        raise UserError("ONNX needs the packages onnx and onnxscript; pip install 'fedconcord[onnx]', or export torch")
    trained = load(Path(run), force, model, client, trust)
    if format == "peft":
        return adapter.write(Path(out or Path(run) / "adapter"), trained.program.model, trained.card)
    path = Path(out) if out is not None else Path(run) / f"model{SUFFIX[format]}"
    card = path.with_name(f"{path.name}.json")
    if path.exists() and not (path.is_file() and card.is_file()):
        raise UserError(f"{path} is there and was not exported, as it has no {card.name} beside it; give another file")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part{SUFFIX[format]}")
    try:
        _save(trained, format, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    meaning = MEANING[trained.card["target"]].format(length=trained.card["shape"][0])
    about = dict(trained.card) | {"input": _described(trained.card), "output": meaning}
    files.write_json(card, about)
    return path


Kind = Literal["torch", "onnx", "peft"]
MEANING = {
    "class": "float32 [batch, outputs], the probability of each class",
    "number": "float64 [batch, outputs], the numbers",
    "labels": "float32 [batch, outputs], the probability of each label",
    "tokens": "float32 [batch, {length}, outputs], the probability of each class at each token (none at padding)",
}


def _described(card: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, ("batch", *card["shape"])))
    kind = str(DTYPE[card["inputs"]]).removeprefix("torch.")
    table = (card["preprocessing"] or {}).get("kind") == "table"
    rest = "" if card.get("pad") is None else f", filled up with the token {card['pad']}"
    return f"{kind} [{shape}], {'after the preprocessing below' if table else 'raw'}{rest}"


def _save(trained: Trained, format: Kind, path: Path) -> None:
    example = torch.zeros(2, *trained.card["shape"], dtype=DTYPE[trained.card["inputs"]])
    free = ({0: torch.export.Dim("batch")},)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its insides
        if format == "torch":
            with path.open("wb") as file:  # torch's own errors name neither the file nor a reason
                torch.export.save(torch.export.export(trained.program, (example,), dynamic_shapes=free), file)
            return
        logger = logging.getLogger(NOISY)
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                trained.program,
                (example,),
                dynamo=True,
                dynamic_shapes=free,
                input_names=["raw"],
                output_names=["value" if trained.program.target == "number" else "probability"],
                verbose=False,
            )
        finally:
            logger.setLevel(level)
        assert program is not None
        program.save(path)
