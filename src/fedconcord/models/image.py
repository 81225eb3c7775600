"""The check that convolutional models share."""

from __future__ import annotations

from fedconcord.errors import UserError


def image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """The (channels, height, width) of a sample, each side at least `smallest` pixels.

    Raises:
        UserError: samples are not images, or too small for the model's convolutions and pools.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise UserError(
            f"model {model!r} needs images (channels, height, width) of at least {smallest}x{smallest} pixels, "
            f"given samples of shape {shape}; use 'logreg' or '2nn', which take any shape"
        )
    return shape[0], shape[1], shape[2]
