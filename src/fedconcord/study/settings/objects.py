"""Settings given from Python as objects: the text that stands for each, and what run.json says of it.

A function or class that other processes can import stands as `package.module:name`, so that nothing is lost. Anything
else stands as `object:Name_digest` (`objects`): the digest is of its content, so that a run resumes with the same
thing and refuses another.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedconcord.federation.data.dataset import Dataset
from fedconcord.federation.data.inputs import arrays_of
from fedconcord.federation.participation.sampling import Sampler
from fedconcord.federation.partitions.own import of_partitioner, of_samples
from fedconcord.method.contract import Algorithm, Term
from fedconcord.method.contract.identity import UNNAMED, Identity
from fedconcord.study.settings.parts import REGISTRIES
from fedconcord.study.settings.sources import Source, prepare
from fedconcord.support import grammar, imports, objects
from fedconcord.support.errors import UserError
from fedconcord.support.objects import NamedObject

# keys that take objects
KEYS = ("method", "methods", "model", "data", "partition", "sampling", "lr_schedule", "loss", "metrics", "local.term")
TAKES = {  # what they take beside names
    "method": "a fedconcord.Algorithm, or a function that makes one",
    "model": "a torch.nn.Module, or a function (shape, classes) -> nn.Module",
    "sampling": "a fedconcord.Sampler, or a function that makes one",
    "lr_schedule": "a function (round) -> the factor on the local step size",
    "partition": "a function (labels, n_clients, rng) -> arrays, or the samples of each client as a list of arrays",
    "loss": "a function (outputs, targets) -> one number a sample",
    "metrics": "a function (outputs, targets) -> number",
    "local.term": "a fedconcord.Term, or a function that makes one",
}
LONGEST = 120  # letters of a label, which names a folder


def named(key: str, value: Any) -> tuple[Any, list[NamedObject]]:
    """The value with texts for its objects, and what must be kept for as long as the texts are used.

    Raises:
        UserError: it is of no kind that the key takes.
    """
    if key not in KEYS or value is None or isinstance(value, str):
        return value, []
    several = key in ("methods", "metrics")
    if several and (callable(value) or isinstance(value, Algorithm)):
        value = [value]
    if several and not isinstance(value, Sequence):
        return value, []
    pairs = [_named("method" if key == "methods" else key, one) for one in (value if several else [value])]
    texts = [text for text, _ in pairs]
    return texts if several else texts[0], [one for _, one in pairs if one is not None]


def _named(key: str, value: Any) -> tuple[Any, NamedObject | None]:
    if isinstance(value, str | int | float) or value is None:  # what is no text is refused as such
        return value, None
    things = REGISTRIES[key].things
    text = next((name for name in things if things[name] is value), imports.path_of(value))
    if text is not None:
        imports.trust(text)
        return text, None
    thing = _kept(key, value)
    return _labelled(thing.text, value), thing


def _labelled(text: str, value: Any) -> str:
    """The text of an object; of a method that says which it is, with a label that has its parameters."""
    if not isinstance(value, Algorithm) or value.identity == UNNAMED:
        return text
    label = str(_spec(value.identity))
    return str(grammar.Spec(text, (), {"label": label})) if len(label) <= LONGEST and label.isprintable() else text


def _spec(value: Any) -> Any:
    """An identity as a call, and those within it."""
    if not isinstance(value, Identity):
        return value
    return grammar.Spec(value.name, (), {key: _spec(part) for key, part in value.parameters})


def words(texts: Mapping[str, Any]) -> dict[str, str]:
    """What each object among these settings is, by its key."""
    by_key: dict[str, str] = {}
    for key, text in objects_of(texts):
        about = objects.held(text, key).words
        by_key[key] = f"{by_key[key]}; {about}" if key in by_key else about
    return by_key


def objects_of(texts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key and text of every object among these settings."""
    values = {key: value for key in KEYS if (value := _at(texts, key)) is not None}
    listed = {key: value if isinstance(value, list) else [value] for key, value in values.items()}
    every = [(key, text) for key, texts_of_key in listed.items() for text in texts_of_key if objects.is_object(text)]
    return [(key, grammar.parse(text, key).name) for key, text in every]


def _at(texts: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, in tables or by itself; None where there is none."""
    table, _, name = key.rpartition(".")
    return texts.get(key) if key in texts or not table else (texts.get(table) or {}).get(name)


def unchanged(source: Source, saved: Mapping[str, Any], folder: Path) -> Source:
    """The settings without the objects that a folder's job was begun with, for a resumed job keeps its settings.

    Args:
        saved: the settings of the folder.

    Raises:
        UserError: an object is another one than was.
    """
    values = dict(source.values)
    for key in (key for key in KEYS if key in values):
        value, before = prepare(key, values[key]), _at(saved, key)
        several = isinstance(value, list)
        if not any(imports.PATH.match(str(text)) for text in (value if several else [value])):
            continue
        if key == "methods":
            values[key] = [text for text in value if _bare(text) not in map(_bare, before or ())]
        if _bare(value) == _bare(before) or not values[key]:
            del values[key]
        elif key != "methods" and objects.is_object(value):
            raise UserError(
                f"{key} is {value} ({objects.held(value, key).words}), and {folder} was begun with {before}; resume it "
                "with the same object, or start anew without resume"
            )
    return replace(source, values=values)


def _bare(text: Any) -> Any:
    """An object's text without its label, which is no part of what it is; anything else as it is."""
    return grammar.parse(text, "object").name if objects.is_object(text) else text


# -- kinds of objects ----------------------------------------------------------------------------------------------


def _kept(key: str, value: Any) -> NamedObject:
    """The object under a name and a digest, as it is now, with words for run.json.

    Raises:
        UserError: it is of no kind that the key takes.
    """
    data = arrays_of(value) if key == "data" and not callable(value) else None
    digest, name = digest_of(value if data is None else data), type(value).__name__
    thing: Callable[..., Any] = partial(_itself, value if data is None else data)
    if key == "method" and isinstance(value, Algorithm):
        name, about = value.identity.method or "algorithm", f"Algorithm {value.identity}"
        if value.identity == UNNAMED:
            about = "Algorithm without a name, told from others by the code of its functions"
    elif key == "model" and isinstance(value, nn.Module):
        start = copy.deepcopy(value)  # as it was when it was given
        thing, count = partial(_copied, start), sum(p.numel() for p in value.parameters())
        frozen = sum(p.numel() for p in value.parameters() if not p.requires_grad)
        rest = f", {frozen} of them frozen" * (frozen > 0)
        about = f"{_one_line(value)} with {count} parameters, which start as they were given{rest}"
    elif key == "sampling" and isinstance(value, Sampler):
        name = value.identity.method or "sampler"
        about = f"Sampler {name}"
    elif key == "local.term" and isinstance(value, Term):
        name, about = value.name, f"Term {value.name}"
    elif data is not None:
        arrays: Mapping[str, np.ndarray]
        if isinstance(data, Dataset):
            arrays, title = {"train_x": data.train_x, "train_y": data.train_y, "test_x": data.test_x}, data.name
        else:
            arrays, title = data, "arrays"
        listed = ", ".join(f"{part} {array.dtype} {list(array.shape)}" for part, array in arrays.items())
        name, about = title, f"{name}: {listed}"
    elif key == "partition" and hasattr(value, "load_partition"):
        thing, about = of_partitioner(copy.deepcopy(value)), _one_line(value)
    elif callable(value):
        name, thing = getattr(value, "__name__", name), value
        about = f"{name} of {getattr(value, '__module__', type(value).__module__)}"
    elif key == "partition" and (isinstance(value, Sequence) or hasattr(value, "__array__")):
        parts = [np.array(part) for part in value]
        name, thing, about = "samples", of_samples(parts), f"the samples of {len(parts)} clients"
    else:
        raise UserError(f"{key} is {name}; give {TAKES[key]}")
    return objects.hold(name, digest, thing, f"{about}; sha256 {digest}")


def _itself(thing: Any, *leading: Any) -> Any:
    return thing


def _copied(model: nn.Module, shape: tuple[int, ...], classes: int) -> nn.Module:
    return copy.deepcopy(model)


def _one_line(value: Any) -> str:
    return " ".join(repr(value).split())[:500]


# -- content -------------------------------------------------------------------------------------------------------


def digest_of(value: Any) -> str:
    """SHA-256 of what a thing is: arrays, plain values and containers by content, functions by their code and what they
    hold of these, modules of torch by class and weights; anything else by its class alone."""
    digest = hashlib.sha256()
    _feed(digest.update, value, ())
    return digest.hexdigest()


def _feed(update: Callable[[Any], None], value: Any, above: tuple[int, ...]) -> None:
    def each(*parts: Any) -> None:
        for part in parts:
            _feed(update, part, (*above, id(value)))

    def say(*texts: object) -> None:
        update(repr(texts).encode())

    if id(value) in above:  # holds itself
        return
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy() if value.dtype != torch.bfloat16 else value.detach().cpu().float().numpy()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        say(type(value).__name__, value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        say("array", value.dtype.str, value.shape)
        update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    elif isinstance(value, Mapping):
        say("mapping", len(value))
        each(*(part for item in value.items() for part in item))
    elif isinstance(value, list | tuple | np.ndarray):
        say(type(value).__name__, len(value))
        each(*value)
    elif isinstance(value, nn.Module):
        say("module", type(value).__qualname__, repr(value))
        each(type(value).forward, dict(value.state_dict()), *_frozen(value))
    elif hasattr(value, "__code__"):
        say("function", value.__qualname__)
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        each(value.__code__, cells, value.__defaults__, value.__kwdefaults__)
    elif hasattr(value, "co_code"):
        shape = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags
        say("code", value.co_code.hex(), value.co_names, value.co_varnames, shape)
        each(value.co_consts)
    elif isinstance(value, type):
        say("class", value.__module__, value.__qualname__)
        each(*(part for part in vars(value).values() if hasattr(part, "__code__")))
    elif isinstance(value, Algorithm) or type(value).__module__ == "functools":
        fields = [getattr(value, name) for name in ("func", "args", "keywords") if hasattr(value, name)]
        say(type(value).__qualname__)
        each(*(fields or vars(value).values()))
    else:
        say("other", type(value).__module__, type(value).__qualname__)
        attributes = vars(value) if hasattr(value, "__dict__") else {}
        each({name: part for name, part in attributes.items() if isinstance(part, int | float | str | np.ndarray)})


def _frozen(module: nn.Module) -> list[list[str]]:
    """Names of its parameters that are not trained and, where there are some, of its layers in evaluation mode."""
    names = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    return [names, [name for name, layer in module.named_modules() if not layer.training]] if names else []


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
