"""What every data set is to the rest of the package: arrays in memory, and a division in clients if it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Target = Literal["class", "number", "labels", "tokens"]  # classification, regression, multi-label, a class a token
IGNORED = -100  # in the place of a token's class: it has none to be learnt, as in torch


class Scale(NamedTuple):
    """How bytes become the numbers that a model takes: x / divide, then (x - mean[c]) / std[c], all in float32."""

    divide: float
    mean: Sequence[float]  # of channel c, the first axis of a sample; one number for all alike
    std: Sequence[float]

    def arrays(self, axes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """divide, mean and std as float32 arrays [c or 1, 1, ...] for samples of so many axes."""
        shape = (-1, *[1] * (axes - 1))
        divide, mean, std = (np.array(part, np.float32).reshape(shape) for part in self)
        return divide, mean, std

    def floats(self, pixels: np.ndarray) -> np.ndarray:
        """Bytes [n, *shape] as float32."""
        divide, mean, std = self.arrays(pixels.ndim - 1)
        x = pixels.astype(np.float32)
        x /= divide  # in place: the arrays are large
        x -= mean
        x /= std
        return x


def scaling(divide: float, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """`Dataset.preprocessing` of the kind "scale", which is what the fields of `Scale` say."""
    return {"kind": "scale", "divide": divide, "mean": mean, "std": std}


class Streams(NamedTuple):
    """Training samples that are made when a client takes part, where all of them would not fit in memory."""

    offsets: np.ndarray  # [N + 1] int64: samples of client i are offsets[i] .. offsets[i+1]-1
    draw: Callable[[int], tuple[np.ndarray, np.ndarray]]  # client -> (x [n_i, *shape], y [n_i]), the same every time


class Dataset(NamedTuple):
    """Samples and targets of one task, ready for a model: features are scaled, or bytes that are when they are read."""

    name: str  # of the data set
    train_x: np.ndarray  # [n, *shape] float32; uint8 to be scaled (`scale`); int64 for symbols that a model embeds
    train_y: np.ndarray  # [n] int64, 0 .. classes-1; [n, L], some `IGNORED`, of "tokens"; else [n, classes] float32
    test_x: np.ndarray  # [m, *shape] as train_x
    test_y: np.ndarray  # [m], as train_y
    classes: int  # outputs of a model: classes, numbers to predict, or labels that may hold together
    natural: list[np.ndarray] | None = None  # N sorted int64 arrays of training samples, where the data come in clients
    target: Target = "class"  # what is learnt: classification, regression, several labels a sample, or tokens
    client_names: list[str] | None = None  # of the natural clients
    output_names: list[str] | None = None  # of the classes, numbers or labels
    preprocessing: Mapping[str, Any] | None = None  # plain values: what was done to raw inputs; None: nothing
    unit: tuple[list[float], list[float]] | None = None  # number: mean and scale [classes] that labels were scaled by
    streams: Streams | None = None  # all clients, where the arrays and `natural` hold the few that are judged
    persons: np.ndarray | None = None  # [n] int64: whose each training sample is, where a person may have several

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_x.shape[1:])

    @property
    def scale(self) -> Scale | None:
        """How arrays of bytes are scaled: as `preprocessing` says, if it is of that kind. Other arrays are not."""
        how = self.preprocessing or {}
        return Scale(how["divide"], how["mean"], how["std"]) if how.get("kind") == "scale" else None

    def scaled(self) -> Dataset:
        """The same with bytes as the float32 that a model takes: four times the memory."""
        scale = self.scale
        if scale is None:
            return self
        train, test = (scale.floats(x) if x.dtype == np.uint8 else x for x in (self.train_x, self.test_x))
        return self._replace(train_x=train, test_x=test)
