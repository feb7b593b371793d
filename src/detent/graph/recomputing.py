"""Weighted operations that save their float weight for the backward pass and quantize it again there.

Left to autograd a convolution keeps the quantized weight, a tensor as large as the parameter it comes from. The
parameter is there anyway, and quantizing it again is one pass over it, far less than the convolution's own gradient:

    forward    y = op(x, q(w), b)        kept: x, w, and the scales of q
    backward   q(w) again; then what autograd itself computes, with the same operators, so not a bit differs

The gradient of `q` is its own business: the quantized weight is an input here, and its gradient goes back as always.
Where quantizing again might give something else (a range that moves, chance, a mode in which it does not quantize,
hooks on it), or torch would do something else than call one operator (autocast, a compiler), or the weight is too small
to matter, the plain path is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from detent.numerics import Rounding
from detent.quantizers import Quantizer

__all__ = ["LEAST_ELEMENTS", "Watch", "Weighted", "is_plain", "recompute_weight", "weighted"]

LEAST_ELEMENTS = 2**16
"""Of a weight that is not kept. Quantizing again costs some tenths of a millisecond, however small the weight is."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of the data, the weight and the bias; None where it was not asked for."""


class _Convolution(NamedTuple):
    """The arguments of ATen's convolution, also of a transposed one."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.aten.convolution.default(x, weight, bias, *self)  # type: ignore[no-any-return]

    def gradients(self, dy: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        outputs = weight.shape[1] * self.groups if self.transposed else weight.shape[0]
        found: Gradients = torch.ops.aten.convolution_backward.default(
            dy, x, weight, [outputs] if wanted[2] else None, *self, list(wanted)
        )
        return found


class _Linear:
    """The products that autograd forms for `nn.functional.linear`, in its order."""

    @staticmethod
    def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def gradients(dy: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Gradients:
        rows = dy.reshape(-1, dy.shape[-1])
        dx = rows.mm(weight).reshape(x.shape) if wanted[0] else None
        dw = rows.t().mm(x.reshape(-1, x.shape[-1])) if wanted[1] else None
        return dx, dw, rows.sum(0) if wanted[2] else None


class Watch:
    """A forward hook of ours that changes nothing: `see` is called with the module and its output."""

    def __init__(self, see: Callable[[Any, Tensor], None]):
        self.see = see

    def __call__(self, module: nn.Module, _: object, output: Tensor) -> None:
        self.see(module, output)


class Weighted(NamedTuple):
    """One call of a weighted operation: what it computes, on what, and who quantizes its weight."""

    op: _Convolution | _Linear
    x: Tensor
    quantizer: Quantizer

    def run(self, source: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor | None = None) -> Tensor:
        """The operation with `weight`, which `quantizer` has just made of `source` (and `factor`)."""
        out: Tensor = _Recomputed.apply(self.x, weight, bias, source, factor, self)  # type: ignore[no-untyped-call]
        return out


def recompute_weight(module: nn.Module) -> None:
    """Have a module whose weight was parametrized by a quantizer keep its float weight only, where that is possible."""
    if _has_torchs_forward(module):
        # The class is one that torch made for this module, when it parametrized it.
        setattr(type(module), "forward", _recomputing(type(module).forward))  # noqa: B010


def is_plain(op: nn.Module) -> bool:
    """Whether calling it does what torch's own convolution or linear layer does, and nothing else."""
    return _is_bare(op) and _has_torchs_forward(op)


def _has_torchs_forward(op: nn.Module) -> bool:
    return any(type(op).forward is known.forward for known in (*_CONVOLUTIONS, *_TRANSPOSED, nn.Linear))


def _is_bare(module: nn.Module) -> bool:
    """Whether calling it runs the forward of its class and nothing else: no hooks, nothing that stands in for it."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return not vars(module).get("forward") and all(isinstance(hook, Watch) for hook in hooks)


def _recomputing(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        held: Any = self.parametrizations.weight if parametrize.is_parametrized(self, "weight") else ()
        call = weighted(self, args, kwargs, held[0]) if len(held) == 1 else None
        return plain(self, *args, **kwargs) if call is None else call.run(held.original, self.weight, self.bias)

    return forward


def weighted(op: nn.Module, args: Sequence[Any], kwargs: Any, quantizer: nn.Module) -> Weighted | None:
    """The call of a plain `op` with its weight quantized again in the backward pass; None: make an ordinary call."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
        return None
    if not isinstance(quantizer, Quantizer) or not _is_repeatable(quantizer) or not _is_bare(quantizer):
        return None
    if _elements(op) < LEAST_ELEMENTS:
        return None
    (x,) = args
    where = x.device.type
    if torch.amp.is_autocast_available(where) and torch.is_autocast_enabled(where):
        return None
    what = _linear(op, x) or _convolution(op, x)
    return None if what is None else Weighted(what, x, quantizer)


def _elements(op: Any) -> int:
    """The number of elements of the weight. Reading the weight would quantize it."""
    if isinstance(op, nn.Linear):
        return op.in_features * op.out_features
    return int(op.in_channels * op.out_channels // op.groups * math.prod(op.kernel_size))


def _is_repeatable(quantizer: Quantizer) -> bool:
    return quantizer.repeatable and quantizer.mode.quantizes and quantizer.scheme.rounding is not Rounding.STOCHASTIC


def _linear(op: Any, x: Tensor) -> _Linear | None:
    # Other layouts are multiplied in another order, so that the last bits of the gradient would differ.
    plain = isinstance(op, nn.Linear) and x.ndim > 1 and x.is_contiguous()
    return _Linear() if plain else None


def _convolution(op: Any, x: Tensor) -> _Convolution | None:
    if not isinstance(op, (*_CONVOLUTIONS, *_TRANSPOSED)) or op.padding_mode != "zeros":
        return None
    padding = _symmetric_padding(op)
    if padding is None or x.ndim != len(padding) + 2:
        return None
    return _Convolution(op.stride, padding, op.dilation, op.transposed, op.output_padding, op.groups)


def _symmetric_padding(op: Any) -> tuple[int, ...] | None:
    """The padding in numbers; None where "same" asks for more on one side than on the other."""
    if not isinstance(op.padding, str):
        return tuple(op.padding)
    if op.padding == "valid":
        return (0,) * len(op.kernel_size)
    totals = [dilation * (size - 1) for size, dilation in zip(op.kernel_size, op.dilation, strict=True)]
    return None if any(total % 2 for total in totals) else tuple(total // 2 for total in totals)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, source: Tensor, factor: Tensor | None, call: Weighted
    ) -> Tensor:
        # The quantizer's tensors too: those of this call, and autograd notices if they are changed in the meantime.
        state = _state(call.quantizer)
        ctx.save_for_backward(x, source, factor, *state.values())
        ctx.op, ctx.quantizer, ctx.names = call.op, call.quantizer, tuple(state)
        return call.op.run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        x, source, factor, *state = ctx.saved_tensors
        weight = source  # its shape is all that is needed, unless x has a gradient
        if ctx.needs_input_grad[0]:
            # Detached, or the quantizer would prepare for a backward pass, which comes only with a second derivative.
            given = [t if t is None or torch.is_grad_enabled() else t.detach() for t in (source, factor)]
            weight = _quantized_again(ctx.quantizer, dict(zip(ctx.names, state, strict=True)), *given)
        return *ctx.op.gradients(dy, x, weight, ctx.needs_input_grad[:3]), None, None, None


def _quantized_again(
    quantizer: Quantizer, state: Mapping[str, Tensor], source: Tensor, factor: Tensor | None
) -> Tensor:
    """The quantizer's output for the tensors in `state`, whatever its mode is now."""
    now, again = _state(quantizer), _Again(quantizer)
    if all(now.get(name) is tensor for name, tensor in state.items()):
        return again.forward(source, factor)
    renamed = {f"quantizer.{name}": tensor for name, tensor in state.items()}
    out: Tensor = functional_call(again, renamed, (source, factor))
    return out


def _state(quantizer: Quantizer) -> dict[str, Tensor]:
    return {**dict(quantizer.named_parameters()), **dict(quantizer.named_buffers())}


class _Again(nn.Module):
    """A quantizer's own computation as a module, whose tensors can be exchanged for a call."""

    def __init__(self, quantizer: Quantizer):
        super().__init__()
        self.quantizer = quantizer

    def forward(self, source: Tensor, factor: Tensor | None) -> Tensor:
        return self.quantizer.simulate(source) if factor is None else self.quantizer.simulate_scaled(source, factor)
