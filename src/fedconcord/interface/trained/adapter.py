"""A run's low-rank factors as an adapter of the library peft: adapter_config.json and adapter_model.safetensors.

A run keeps its final model with the products added to the weights. What is added to a folder's weights is their
difference, of which the singular value decomposition gives factors again: B A of the rank that is above rounding. So it
is one way for every aggregation, and for what the server itself added to the weights (`fedex`, `flora`). What was
trained whole, as a head that started at random, is in `modules_to_save`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedconcord.execution.rows import tensors
from fedconcord.federation.adapters import is_conv1d, is_linear
from fedconcord.federation.models import models
from fedconcord.support import factories, files, grammar
from fedconcord.support.errors import UserError

TASKS = {"sample": "SEQ_CLS", "token": "TOKEN_CLS", "next": "CAUSAL_LM"}
ROOT, BODY = "base_model.model.", "body."  # what peft and `hf` put before the names of the folder's model


def write(folder: Path, network: nn.Module, card: Mapping[str, Any]) -> Path:
    """Write the adapter that makes the trained network of the model in its `hf` folder; the configuration last.

    Args:
        card: model.json.

    Returns: the folder.

    Raises:
        UserError: the model is of no folder, or nothing of low rank was added to it.
    """
    spec = grammar.parse(card["model"], "model")
    if spec.name != "hf":
        raise UserError(
            f"an adapter of peft is for a model in a folder, hf(path=...), given {card['model']}; export torch"
        )
    base = factories.build(models(), "model", card["model"], tuple(card["shape"]), card["outputs"])
    factors, whole = {}, []
    for name, layer in network.named_modules():
        mine, before = dict(layer.named_parameters(recurse=False)), base.get_submodule(name)
        now = {key for key, value in mine.items() if not torch.equal(value, before.get_parameter(key).to(value))}
        if not now:
            continue
        pair = None
        if now == {"weight"} and is_linear(layer) and f"{name}.weight" not in getattr(base, "fresh", ()):
            pair = factored(mine["weight"].detach(), before.get_parameter("weight").detach(), is_conv1d(layer))
        if pair is None:
            whole.append(name)
        else:
            factors[name] = pair
    if not factors:
        raise UserError("the run added nothing of low rank to its model's weights; export torch, or run with adapters")
    rank, state = max(len(a) for a, _ in factors.values()), {}
    for name, (a, b) in factors.items():
        at = ROOT + name.removeprefix(BODY)
        state[f"{at}.lora_A.weight"] = nn.functional.pad(a, (0, 0, 0, rank - len(a))).float()
        state[f"{at}.lora_B.weight"] = nn.functional.pad(b, (0, rank - len(a))).float()
    for name in whole:
        layer = network.get_submodule(name)
        state |= {f"{ROOT}{name.removeprefix(BODY)}.{key}": one.float() for key, one in layer.state_dict().items()}
    options = factories.check(models(), "model", card["model"]).resolved()
    config = {
        "peft_type": "LORA",
        "task_type": TASKS[options["head"]],
        "base_model_name_or_path": options["path"],
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,  # so that B A is added as it is
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(is_conv1d(network.get_submodule(name)) for name in factors),
        "target_modules": [name.removeprefix(BODY) for name in factors],
        "modules_to_save": [name.removeprefix(BODY) for name in whole] or None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    tensors.write(folder / "adapter_model.safetensors", {name: one.contiguous() for name, one in state.items()})
    files.write_json(folder / "adapter_config.json", config)
    return folder


def factored(now: Tensor, before: Tensor, fan_in_fan_out: bool) -> tuple[Tensor, Tensor] | None:
    """A [r, in] and B [out, r] whose product B A is what was added to a weight, to its rounding; None where r is all
    that the weight could have.

    Args:
        now: the weight [out, in], or [in, out] with `fan_in_fan_out`; `before` was one of the same shape.
    """
    added = now.double() - before.double()
    u, s, v = torch.linalg.svd(added.mT if fan_in_fan_out else added, full_matrices=False)
    entry = torch.finfo(now.dtype).eps * float(now.double().square().mean().sqrt())  # rounding of one, at most
    noise = entry * sum(math.sqrt(length) for length in added.shape)
    rank = int((s > noise).sum())
    if rank == len(s):
        return None
    root = s[:rank].sqrt()
    return root[:, None] * v[:rank], u[:, :rank] * root
