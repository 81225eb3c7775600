"""Gradients of plain networks, written out layer by layer: fully connected ones for many clients at once, as batched
matrix products; convolutional ones on a CPU, one client after the other.

Small networks are bound by weight traffic and by dispatch: torch.func's generic vmap takes three to four times as long.
A gradient of a dense network is never made where it is only to be added: the products add it to what it is for.

What convolutions gain on autograd: channels lie last, for which max pooling is ten times as fast; ReLU follows the
pooling it commutes with; and products are oneDNN's. So are convolutions, but for weights of 5 x 5, where fewer
multiplications do (`winograd`), and for an image of one channel, where it has no fast kernel: there they are a product.
In bfloat16 a client's weights are cast once a gradient, and what is added to the model is cast back first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedconcord.federation.objectives import winograd
from fedconcord.federation.objectives.evaluation import Resident
from fedconcord.method.contract import LossForm, Network
from fedconcord.method.contract.flat import Layout
from fedconcord.method.contract.products import product

Delta = Callable[[Tensor, Tensor], Tensor]
"""(outputs [S, B, C], targets [S, B, ...]) -> gradient of each sample's loss with respect to its outputs [S, B, C].

It may overwrite the outputs.
"""

Kernel = Callable[[Tensor, float, float, Tensor, Tensor, Tensor, Tensor | None], None]
"""(into [S, d], beta, alpha, x [S, d], inputs [S, B, *shape], targets [S, B, ...], weight [S, B] or None for 1/B):

into <- beta * into + alpha * gradients at x. `into` may be x; with beta 0 it may hold anything.
"""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """softmax(outputs) minus the label's unit vector."""
    delta = torch.softmax(outputs, -1)
    return delta.scatter_add_(-1, labels[..., None], delta.new_full((1, 1, 1), -1.0).expand(*labels.shape, 1))


def add(slot: Tensor, g: Tensor, beta: float, alpha: float) -> None:
    """slot <- beta slot + alpha g; with beta 0 the slot may hold anything."""
    if beta == 0.0:
        torch.mul(g, alpha, out=slot)
    else:
        slot.mul_(beta).add_(g, alpha=alpha)


def network(model: nn.Module, form: LossForm | None, layout: Layout, x: Resident, y: Tensor) -> Network | None:
    """What compiled steps need to know of a network that has `widths`; None for other models."""
    shape = widths(model)
    if shape is None or form is None or y.device.type != "cpu" or layout.constants:
        return None
    if x.table is None and x.raw.dtype not in (torch.float32, x.dtype):
        return None
    return Network(shape, form, x.raw.flatten(1), x.order, x.table, y)


def widths(model: nn.Module) -> tuple[int, ...] | None:
    """Inputs, hidden layers and outputs of a Sequential of Flatten, then Linear layers with ReLU between; else None."""
    if not isinstance(model, nn.Sequential):
        return None
    layers = [layer for layer in model if not isinstance(layer, nn.Flatten)]
    linear, between = layers[::2], layers[1::2]
    flattened = all(not isinstance(layer, nn.Flatten) for layer in list(model)[1:])
    if not (
        flattened
        and len(layers) % 2 == 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(layer) is nn.ReLU for layer in between)
    ):
        return None
    shapes = [(layer.in_features, layer.out_features) for layer in linear if isinstance(layer, nn.Linear)]
    return (shapes[0][0], *(out for _, out in shapes))


def kernel(
    model: nn.Module, layout: Layout, delta: Delta | None, numbers: torch.dtype | None, device: torch.device
) -> Kernel | None:
    """The gradient of a network that has one here, under a loss with such a delta; None for others.

    Args:
        numbers: of the forward and backward passes; the model's if none. The loss stays in the model's.
    """
    if delta is None:
        return None
    dense = _dense(model, layout, delta) if numbers is None else None
    return dense or (_convolutional(model, layout, delta, numbers) if device.type == "cpu" else None)


def _dense(model: nn.Module, layout: Layout, delta: Delta) -> Kernel | None:
    """The gradient of a network that has `widths` and nothing frozen; None for other models."""
    if widths(model) is None or layout.constants:
        return None

    def accumulate(
        into: Tensor, beta: float, alpha: float, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | None
    ) -> None:
        parameters = list(layout.views(x).values())
        weights, biases = parameters[::2], parameters[1::2]
        slots = parameters if into is x else list(layout.views(into).values())
        activations = [inputs.reshape(*inputs.shape[:2], -1)]
        for k, (W, b) in enumerate(zip(weights, biases, strict=True)):
            z = torch.baddbmm(b[:, None], activations[-1], W.mT)
            activations.append(z if k == len(weights) - 1 else z.relu_())
        slope = delta(activations.pop(), targets)
        slope *= 1.0 / slope.shape[1] if weight is None else weight[..., None]
        for k in reversed(range(len(weights))):
            a = activations.pop()
            before = torch.bmm(slope, weights[k]).mul_(a > 0) if k else slope  # first: the next line may change W
            slots[2 * k].baddbmm_(slope.mT, a, beta=beta, alpha=alpha)
            add(slots[2 * k + 1], slope.sum(1), beta, alpha)
            slope = before

    return accumulate


LAST = torch.channels_last


Forward = Callable[[Sequence[Tensor], Tensor], Tensor]
"""(parameters of one client in their order, inputs [B, *shape]) -> outputs [B, C]."""


class Layer(NamedTuple):
    """A layer of one client's network on a batch; parameters and their slots are [weight, bias] or []."""

    parameters: int  # 2 or 0
    forward: Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor | tuple[Tensor, ...]]]  # a, W -> z, kept
    backward: Callable[..., Tensor]  # slope, kept, W, slots, beta, alpha, needed -> slope before it, if needed


def _convolutional(model: nn.Module, layout: Layout, delta: Delta, numbers: torch.dtype | None) -> Kernel | None:
    """The gradient of a Sequential of Conv2d, MaxPool2d, ReLU, Flatten, Softmax and a last Linear, a Softmax behind it
    or not, nothing of it frozen; None for other models.
    """
    chain = _chain(model)
    learnt = [type(module) for module in model.children() if type(module) is not nn.Softmax]
    if chain is None or layout.constants or not _flattened(model) or learnt[-1] is not nn.Linear:
        return None
    begins = [sum(layer.parameters for layer in chain[:k]) for k in range(len(chain))]
    lowest = next(k for k, layer in enumerate(chain) if layer.parameters)  # no slope is needed below

    def one(
        into: list[Tensor], beta: float, alpha: float, at: list[Tensor], a: Tensor, targets: Tensor, weight: Tensor
    ) -> None:
        saved = []
        a = a.to(at[0].dtype)
        for layer, begin in zip(chain, begins, strict=True):
            a, keep = layer.forward(a, at[begin : begin + layer.parameters])
            saved.append(keep)
        slope = delta(a[None].to(weight.dtype), targets[None])[0].mul_(weight).to(a.dtype)
        for k in reversed(range(lowest, len(chain))):
            mine = slice(begins[k], begins[k] + chain[k].parameters)
            slope = chain[k].backward(slope, saved[k], at[mine], into[mine], beta, alpha, k > lowest)

    def accumulate(
        into: Tensor, beta: float, alpha: float, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | None
    ) -> None:
        mean = inputs.new_full((inputs.shape[1], 1), 1.0 / inputs.shape[1])
        for s in range(len(x)):
            slots, at = (list(layout.views(row).values()) for row in (into[s], x[s].to(numbers or x.dtype)))
            one(slots, beta, alpha, at, inputs[s], targets[s], mean if weight is None else weight[s][:, None])

    return accumulate


def forward(model: nn.Module, shape: Sequence[int]) -> Forward | None:
    """The outputs of a Sequential of the layers above, dense ones as well, on samples of a shape; None for others.

    It keeps nothing, so that threads may share it, each on a batch of its own.
    """
    chain = _chain(model)
    if chain is None or not (len(shape) == 1 or _flattened(model)):
        return None

    def outputs(parameters: Sequence[Tensor], a: Tensor) -> Tensor:
        begin = 0
        for layer in chain:
            a, _ = layer.forward(a, parameters[begin : begin + layer.parameters])
            begin += layer.parameters
        return a

    return outputs


def each(
    model: nn.Module,
    layout: Layout,
    per_sample: Callable[[Tensor, Tensor], Tensor],
    read: Callable[[Tensor], tuple[Tensor, Tensor]],
    inputs: Resident,
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The losses [B] of a model x [d] on samples [B], for the models of `forward` on a CPU; None for others.

    Args:
        per_sample: (outputs [B, C], targets) -> losses [B].
        read: samples [B] -> (inputs [B, *shape], targets).
        inputs: of all samples.
    """
    outputs = forward(model, inputs.shape[1:]) if inputs.raw.device.type == "cpu" else None

    def losses(x: Tensor, samples: Tensor) -> Tensor:
        assert outputs is not None
        few, targets = read(samples)
        return per_sample(outputs([*layout.values(x).values()], few), targets)

    return outputs and losses


def _chain(model: nn.Module) -> list[Layer] | None:
    """The layers of a Sequential that are all of kinds known here, pooling before the ReLU that it commutes with."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return None
    modules = list(model)
    for k, (first, second) in enumerate(pairwise(modules)):
        if isinstance(first, nn.ReLU) and isinstance(second, nn.MaxPool2d):
            modules[k : k + 2] = second, first  # they commute, gradients included, and pooling leaves less to do
    chain = [_layer(module, first=k == 0) for k, module in enumerate(modules)]
    layers = [layer for layer in chain if layer is not None]
    shared = sum(layer.parameters for layer in layers) != len(list(model.parameters()))
    return layers if len(layers) == len(chain) and not shared else None


def _flattened(model: nn.Module) -> bool:
    """Whether no linear layer sees anything but rows of numbers."""
    kinds = [type(module) for module in model.children()]
    return nn.Flatten in kinds and nn.Linear not in kinds[: kinds.index(nn.Flatten)]


def _layer(module: nn.Module, first: bool) -> Layer | None:
    """The layer of a module, or None where it is of another kind."""
    if type(module).__module__.partition(".")[0] != "torch":
        return None  # a subclass may do anything
    match module:
        case nn.Flatten(start_dim=1, end_dim=-1):
            return Layer(0, lambda a, p: (a.flatten(1), a), _unflatten)
        case nn.ReLU():
            return Layer(0, _relu, lambda slope, a, *rest: torch.ops.aten.threshold_backward(slope, a, 0))
        case nn.Softmax(dim=int(dim)):
            return _softmax(dim)
        case nn.Linear(bias=Tensor()):
            return Layer(2, lambda a, p: (product(a, p[0], p[1]), a), _linear_backward)
        case nn.MaxPool2d(ceil_mode=False, return_indices=False):
            return _pool(module)
        case nn.Conv2d(bias=Tensor(), padding_mode="zeros", padding=(int(), int())):
            single = first and module.in_channels == 1 and module.dilation == (1, 1)
            return _single_channel(module) if single else _convolution(module)
    return None


def _unflatten(slope: Tensor, a: Tensor, *rest: object) -> Tensor:
    slope = slope.view(a.shape)
    return slope.contiguous(memory_format=LAST) if a.ndim == 4 else slope


def _relu(a: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    a = a.relu()
    return a, a


def _softmax(dim: int) -> Layer:
    def forward(a: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        z = a.softmax(dim)
        return z, z.clone()  # the loss may overwrite the one

    def backward(slope: Tensor, z: Tensor, *rest: object) -> Tensor:
        before: Tensor = z * (slope - (slope * z).sum(dim, keepdim=True))
        return before

    return Layer(0, forward, backward)


def _linear_backward(
    slope: Tensor, a: Tensor, p: Sequence[Tensor], slots: Sequence[Tensor], beta: float, alpha: float, needed: bool
) -> Tensor:
    before = product(slope, p[0].T) if needed else slope  # first: the next line may change p
    _add(slots[0], product(slope.T, a.T), beta, alpha)
    _add(slots[1], slope.sum(0), beta, alpha)
    return before


def _add(slot: Tensor, g: Tensor, beta: float, alpha: float) -> None:
    """`add`, of a gradient in other numbers too: added without a copy in the slot's, which would be as large."""
    if slot.dtype == g.dtype:
        add(slot, g, beta, alpha)
    elif beta == 0.0:
        slot.copy_(g).mul_(alpha)
    else:
        (slot if beta == 1.0 else slot.mul_(beta)).add_(g, alpha=alpha)


def _pool(module: nn.MaxPool2d) -> Layer:
    extents = module.kernel_size, module.stride, module.padding, module.dilation
    size, stride, padding, dilation = map(_pair, extents)

    def forward(a: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        a = a.contiguous(memory_format=LAST)
        z, index = F.max_pool2d_with_indices(a, size, stride, padding, dilation)
        return z, (a, index)

    def backward(slope: Tensor, saved: tuple[Tensor, Tensor], *rest: object) -> Tensor:
        a, index = saved
        slope = slope.contiguous(memory_format=LAST)
        before: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
            slope, a, size, stride, padding, dilation, False, index
        )
        return before

    return Layer(0, forward, backward)


def _pair(value: str | int | tuple[int, ...]) -> tuple[int, int]:
    """An extent as two numbers; torch keeps some as one."""
    assert not isinstance(value, str)
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _convolution(module: nn.Conv2d) -> Layer:
    geometry = module.stride, _pair(module.padding), module.dilation
    fewer = winograd.of(module)

    def forward(a: Tensor, p: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        a = a.contiguous(memory_format=LAST)
        passes = fewer(a)
        return passes.outputs(a, *p) if passes else F.conv2d(a, p[0], p[1], *geometry, module.groups), a

    def backward(
        slope: Tensor, a: Tensor, p: Sequence[Tensor], slots: Sequence[Tensor], beta: float, alpha: float, needed: bool
    ) -> Tensor:
        if passes := fewer(a):
            slope = slope.contiguous(memory_format=LAST)
            before, *g = (passes.before(slope, p[0]) if needed else slope), *passes.weights(a, slope)
        else:
            before, *g = torch.ops.aten.convolution_backward(
                slope, a, p[0], [module.out_channels], *geometry, False, [0, 0], module.groups, [needed, True, True]
            )
        for slot, part in zip(slots, g, strict=True):
            _add(slot, part, beta, alpha)
        return before if needed else slope

    return Layer(2, forward, backward)


def _single_channel(module: nn.Conv2d) -> Layer:
    """A first convolution of one channel, as the product of the taps with every window, [taps, B H' W']."""
    (height, width), (down, right), (top, left) = (
        _pair(v) for v in (module.kernel_size, module.stride, module.padding)
    )
    channels = module.out_channels

    def forward(a: Tensor, p: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        windows = F.pad(a[:, 0], (left, left, top, top)).unfold(1, height, down).unfold(2, width, right)
        columns = windows.permute(3, 4, 0, 1, 2).reshape(height * width, -1)  # copied in runs of W', not of a tap's row
        z = torch.addmm(p[1], columns.T, p[0].view(channels, -1).T)
        return z.view(*windows.shape[:3], channels).permute(0, 3, 1, 2), columns

    def backward(
        slope: Tensor,
        columns: Tensor,
        p: Sequence[Tensor],
        slots: Sequence[Tensor],
        beta: float,
        alpha: float,
        *_: bool,
    ) -> Tensor:
        slope = slope.permute(0, 2, 3, 1).reshape(-1, channels)
        _add(slots[0].view(channels, -1), product(columns, slope.T).T, beta, alpha)
        _add(slots[1], slope.sum(0), beta, alpha)
        return slope

    return Layer(2, forward, backward)
