"""The ResNet-18 of A-FedPD and FL-Simulator, for CIFAR: GroupNorm in place of BatchNorm."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from fedconcord.basis.errors import UserError
from fedconcord.models.convolutional import image_shape

WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al., CVPR 2016, Fig. 2), each followed by a norm."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.GroupNorm(groups, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


def resnet18(
    shape: tuple[int, ...],
    classes: int,
    /,
    groups: Annotated[
        int, Field(ge=1, le=64, description="number of groups of every GroupNorm; it must divide 64")
    ] = 2,
) -> nn.Sequential:
    """ResNet-18 with a 3x3 stem, no first pool and GroupNorm (A-FedPD); 11,173,962 parameters on CIFAR-10.

    He et al., CVPR 2016, in the form for 32x32 images. FL-Simulator keeps torchvision's 7x7 stem with stride 2 and
    pool, 11,181,642 parameters: this one sees small images at their full size, at several times the cost.

    Raises:
        UserError: samples are not images of at least 8x8, or `groups` does not divide 64.
    """
    channels, _, _ = image_shape("resnet18", shape, smallest=8)
    if WIDTHS[0] % groups:
        raise UserError(
            f"model 'resnet18' has layers of 64 channels, which {groups} groups do not divide; give 1, 2, 4"
        )
    blocks: list[nn.Module] = []
    before = WIDTHS[0]
    for width in WIDTHS:
        blocks += [Block(before, width, 1 if width == WIDTHS[0] else 2, groups), Block(width, width, 1, groups)]
        before = width
    return nn.Sequential(
        nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False),
        nn.GroupNorm(groups, WIDTHS[0]),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTHS[-1], classes),
    )
