"""Transformers as HuggingFace's library has them, from a folder of its form: `--model "hf(path='minilm')"`.

A sample is a row of tokens [L], integers, filled up with the padding token; the attention mask is made of it. Only
weights in safetensors are read, which no code can be in, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedconcord.support.errors import UserError
from fedconcord.support.parameters import about

HEADS = {
    "sample": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "next": "AutoModelForCausalLM",
}
BUCKET = 16  # tokens; a step's batches are as long as their longest sample, rounded up to a multiple of it


class Classifier(nn.Module):
    """A transformer that answers with the classes of a sample or of each token: tokens [B, L] int64 -> logits
    [B, classes] or [B, L, classes].

    Args:
        fresh: names of parameters that start at random, which adapters train whole.
    """

    def __init__(self, body: nn.Module, pad: int, is_causal: bool, fresh: Sequence[str]) -> None:
        super().__init__()
        self.body, self.pad, self.is_causal, self.fresh = body, pad, is_causal, fresh

    def forward(self, tokens: Tensor) -> Tensor:
        # [B, 1, L, L], as the library asks whether a mask of two axes is full, which several clients at once cannot
        # say; and numbers, as eager attention adds it
        longest, dtype = tokens.shape[1], next(self.parameters()).dtype
        visible = (tokens != self.pad)[:, None, None, :].expand(-1, 1, longest, -1)
        if self.is_causal:
            visible = visible & torch.ones(longest, longest, dtype=torch.bool, device=tokens.device).tril()
        mask = torch.zeros(visible.shape, dtype=dtype, device=tokens.device)
        mask = mask.masked_fill(~visible, torch.finfo(dtype).min)
        logits: Tensor = self.body(input_ids=tokens, attention_mask=mask).logits
        return logits


def hf(
    shape: tuple[int, ...],
    classes: int,
    /,
    path: Annotated[str, about("folder with config.json and model.safetensors, as `save_pretrained` writes it")] = "",
    dropout: Annotated[
        Literal["off", "config"],
        about("off; or as config.json says, but for the weights of attention, which the library drops by itself"),
    ] = "off",
    head: Annotated[
        Literal["sample", "token", "next"],
        about("what has a class: a sample; each token; or what the next token is, by the folder's own head, causally"),
    ] = "sample",
) -> nn.Module:
    """A transformer of HuggingFace's library with a head for the classes of samples or tokens, from a folder.

    Its layers keep their names below `body`, for `parts` and adapters. A head that the folder has no weights for starts
    at the seed's draws, and is trained whole where adapters freeze the rest, as in the library peft. That of a language
    model is the folder's and has every token of the vocabulary, those that the data lack among them.

    Raises:
        UserError: transformers is not installed, the folder is none, its weights are in another form or do not fit,
            samples are no row of at most as many tokens as the model has positions for, or the vocabulary is too small.
    """
    if len(shape) != 1:
        raise UserError(f"model 'hf' needs samples that are a row of tokens, given samples of shape {shape}")
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise UserError(f"model 'hf' needs a folder with config.json in path, given {path!r}; see `save_pretrained`")
    if not [*folder.glob("*.safetensors")]:
        raise UserError(f"model 'hf' reads weights in safetensors alone, and {path!r} has none; save it again in them")
    with _library() as library:
        config = library.AutoConfig.from_pretrained(folder, local_files_only=True, num_labels=classes)
    most = getattr(config, "max_position_embeddings", shape[0])
    if shape[0] > most:
        raise UserError(f"samples are rows of {shape[0]} tokens; the model in {path!r} has positions for {most}")
    if head == "next" and classes > config.vocab_size:
        raise UserError(f"the data have tokens up to {classes - 1}; the model in {path!r} knows {config.vocab_size}")
    with _library() as library:
        for name in vars(config):
            of_others = dropout == "off" or "att" in name or "layer" in name  # drawn by the library's own functions
            if "drop" in name and of_others and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        # eager attention: what is fused has no rule for several clients at once
        body, report = getattr(library, HEADS[head]).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # of the head, which starts anew for other classes
            output_loading_info=True,
        )
    for layer in body.modules() if dropout == "off" else ():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # of a head, which no config.json may say
    outputs = None if head == "next" else classes
    misfits = [name for name, *_ in report["mismatched_keys"] if len(body.get_parameter(name)) != outputs]
    if misfits:
        raise UserError(f"the weights {misfits[0]!r} in {path!r} do not fit its config.json; save the model again")
    pad = getattr(config, "pad_token_id", None)
    fresh = [f"body.{name}" for name in (*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"]))]
    body.config.pad_token_id = pad = 0 if pad is None else pad  # before which a causal model's head looks for a sample
    with _library():
        is_causal = head == "next" or not (config.is_encoder_decoder or _looks_ahead(body))
    return Classifier(body, pad, is_causal, fresh).train(dropout == "config")


@torch.no_grad()
def _looks_ahead(body: Any) -> bool:
    """Whether a token's features depend on those after it where the library makes the mask: no field of its says so."""
    rows = torch.tensor([[1, 1], [1, 0]])
    first = body.base_model(input_ids=rows, attention_mask=torch.ones_like(rows)).last_hidden_state[:, 0]
    return not torch.allclose(first[0], first[1], rtol=1e-5, atol=1e-6)


@contextmanager
def _library() -> Iterator[Any]:
    """HuggingFace's library, silent about layers that start anew, and what it raises in one sentence."""
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise UserError(
            "model 'hf' needs HuggingFace's transformers: pip install 'fedconcord[hf]', or give a model of your own"
        ) from error
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield transformers
    except Exception as error:  # what it raises of a broken file has no common type
        raise UserError(f"model 'hf' cannot be read: {' '.join(str(error).split())}") from error
    finally:
        transformers.logging.set_verbosity(level)


def shortened(tokens: Tensor, pad: int) -> Tensor:
    """Tokens [..., L] without the columns at the end that are padding in every sample, but for a rest of a bucket."""
    used = (tokens != pad).flatten(0, -2).any(0).nonzero()
    longest = int(used[-1]) + 1 if len(used) else 1
    return tokens[..., : -(-longest // BUCKET) * BUCKET]


def tokens(texts: Sequence[str], encode: Callable[[str], Sequence[int]], length: int, pad: int = 0) -> np.ndarray:
    """Texts as rows of tokens [n, length] int64: cut after `length`, filled up with `pad`.

    Args:
        encode: one text to its tokens, such as a tokeniser of HuggingFace's with `.encode`.
    """
    rows = np.full((len(texts), length), pad, np.int64)
    for row, text in zip(rows, texts, strict=True):
        mine = list(encode(text))[:length]
        row[: len(mine)] = mine
    return rows
