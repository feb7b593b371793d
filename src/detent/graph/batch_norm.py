"""Batch normalization with quantized weights, numbered as in the MQBench paper.

| strategy | weights that are quantized | statistics in training |
|---|---|---|
| -1 | w, with the batch norm left alone | as always |
|  0 | w merged with the batch norm, once and for all | none left |
|  1 | w g / s, folded anew each step | running ones, frozen |
|  2 | w g / s~, after a first convolution that finds s~ and m~ (Jacob et al. 2018) | batch, running kept |
|  3 | w g / s, output rescaled by s / s~ (Krishnamoorthi 2018) | batch, running kept |
|  4 | w g / s, then times s / g, then the batch norm as always (PyTorch) | batch, running kept |

g, b: gamma and beta; m, s: running mean and deviation; m~, s~: those of the batch, over all ranks of a distributed job.
In eval all of them compute the same as the unfused model, and deploy the same merged weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from detent.errors import SchemeError
from detent.graph.recomputing import is_plain, weighted
from detent.graph.torch_ops import kind_of
from detent.observers.ranks import many_ranks, over_ranks
from detent.quantizers import QUANTIZE, Mode, Quantizer

__all__ = [
    "STRATEGIES",
    "ChannelMoments",
    "FoldedBatchNorm",
    "foldable",
    "folding_factor",
    "follow",
    "merge_into",
    "merged",
    "moments_over_ranks",
]

STRATEGIES = (-1, 0, 1, 2, 3, 4)

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HALVES = (torch.float16, torch.bfloat16)
_LEAST = 1e-8  # a channel that gamma has switched off is still divided by its scale in strategy 4


def foldable(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> list[tuple[fx.Node, fx.Node]]:
    """Pairs of a weighted operation and a batch norm that is its only reader."""
    pairs = []
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in graph.nodes:
        kind = kind_of(node, modules)
        if node.op != "call_module" or kind is None or not kind.weighted:
            continue
        if len(node.users) != 1 or calls[node.target] != 1:
            continue
        after = next(iter(node.users))
        if after.op != "call_module" or calls[after.target] != 1:
            continue
        bn = modules[str(after.target)]
        if kind.name == "linear" and len(node.meta.get("shape", ())) != 2:
            continue  # on (batch, length, features) the batch norm is along another axis than the weight's outputs
        if isinstance(bn, _BATCH_NORMS) and bn.track_running_stats and bn.running_mean is not None:
            pairs.append((node, after))
    return pairs


def folding_factor(bn: Any) -> Tensor:
    """The factor of the running statistics for each channel."""
    return _factor(bn, bn.running_var).detach()


def _factor(bn: Any, variance: Tensor) -> Tensor:
    """gamma / deviation, for each channel."""
    inverse = torch.rsqrt(variance + bn.eps)
    return inverse if bn.weight is None else inverse * bn.weight


def _along_outputs(factor: Tensor, op: nn.Module, weight: Tensor) -> Tensor:
    """`factor`, one per output channel, in a shape that broadcasts against the weight of `op`."""
    if not getattr(op, "transposed", False):
        return factor.reshape(-1, *[1] * (weight.ndim - 1))
    # A transposed weight is (inputs, outputs / groups, ...): inputs of one group meet that group's outputs only.
    groups = int(op.groups)  # type: ignore[arg-type]
    each = factor.reshape(groups, 1, -1).expand(-1, weight.shape[0] // groups, -1)
    return each.reshape(weight.shape[0], -1, *[1] * (weight.ndim - 2))


def merged(op: nn.Module, bn: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias that compute `bn(op(x))` with the running statistics."""
    weight: Tensor = op.weight  # type: ignore[assignment]
    factor = _factor(bn, bn.running_var)
    shift = -bn.running_mean if op.bias is None else op.bias - bn.running_mean
    bias = shift * factor if bn.bias is None else shift * factor + bn.bias
    return weight * _along_outputs(factor, op, weight), bias


def merge_into(op: nn.Module, bn: nn.Module) -> None:
    """Strategy 0: `op` becomes `bn(op(x))`, in place."""
    with torch.no_grad():
        weight, bias = merged(op, bn)
        own: Any = op
        own.weight.copy_(weight)
        if own.bias is None:
            own.bias = nn.Parameter(bias)
        else:
            own.bias.copy_(bias)


class ChannelMoments(NamedTuple):
    """Mean and (biased) variance of each channel, and how many values each was taken over."""

    mean: Tensor
    variance: Tensor
    values: float


def moments_over_ranks(y: Tensor) -> ChannelMoments:
    """Mean and variance of each channel of `y` over the batches of all ranks, with gradients to all of them."""
    dims = [dim for dim in range(y.ndim) if dim != (1 if y.ndim > 1 else 0)]
    variance, mean = torch.var_mean(y, dims, correction=0)
    count = y.numel() / mean.numel()
    if not many_ranks():
        return ChannelMoments(mean, variance, count)
    share = torch.full_like(mean, count)
    # Each rank's spread about its own mean, and that of the means: no difference of large squares.
    totals: Tensor = _Sum.apply(torch.stack([mean * share, share]))  # type: ignore[no-untyped-call]
    everywhere = totals[1].detach()
    common = totals[0] / everywhere
    spread: Tensor = _Sum.apply((variance + (mean - common).square()) * share)  # type: ignore[no-untyped-call]
    return ChannelMoments(common, spread / everywhere, float(everywhere.max()))


@torch.no_grad()
def follow(bn: Any, found: ChannelMoments, shift: Tensor | float = 0.0) -> None:
    """Update the running statistics of `bn` as `nn.BatchNorm` would, for a batch whose mean is greater by `shift`."""
    bn.num_batches_tracked.add_(1)
    momentum = 1 / float(bn.num_batches_tracked) if bn.momentum is None else bn.momentum
    bn.running_mean.lerp_(found.mean + shift, momentum)
    bn.running_var.lerp_(found.variance * (found.values / max(found.values - 1, 1)), momentum)


class _Sum(torch.autograd.Function):
    """The sum over all ranks; the gradient, too, is the sum of what the ranks have."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return over_ranks(values, "sum")

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return over_ranks(gradient.contiguous(), "sum")


class _Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


class FoldedBatchNorm(nn.Module):
    """A convolution or linear layer and its batch norm as one operation, by strategy 1 to 4.

    `weight_quantizer` and `bias_quantizer` see the folded ones, which are those that are deployed.
    """

    def __init__(self, op: nn.Module, bn: nn.Module, strategy: int, kind: str):
        super().__init__()
        if strategy not in (1, 2, 3, 4):
            raise SchemeError(f"batch-norm strategy {strategy}", f"strategies are {STRATEGIES}", "choose one of them")
        self.op, self.bn, self.strategy, self.kind = op, bn, strategy, kind
        self.weight_quantizer: nn.Module = nn.Identity()
        self.bias_quantizer: nn.Module = nn.Identity()
        self.frozen = False
        self.in_float32 = False  # whatever autocast says
        self.training = op.training

    @property
    def weight(self) -> Tensor:
        """The folded weight, before quantization."""
        return merged(self.op, self.bn)[0]

    @property
    def bias(self) -> Tensor:
        """The folded bias, before quantization."""
        return merged(self.op, self.bn)[1]

    @torch.no_grad()
    def fold_to(self, folded: Tensor) -> None:
        """Set the operation's weight so that the folded weight is `folded`; channels with gamma 0 keep theirs."""
        weight: Tensor = self.op.weight  # type: ignore[assignment]
        factor = _along_outputs(folding_factor(self.bn), self.op, weight)
        weight.copy_(torch.where(factor == 0, weight, folded / factor))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Takes the same arguments as the operation."""
        if not self.in_float32:
            return self._compute(_Call(args, kwargs))
        own: Any = self.op
        with torch.autocast(own.weight.device.type, enabled=False):
            whole = {name: _float32(value) for name, value in kwargs.items()}
            return self._compute(_Call(tuple(_float32(value) for value in args), whole))

    def _compute(self, x: _Call) -> Tensor:
        uses_batch = self.training and not self.frozen and self.strategy != 1
        if not uses_batch:
            weight, bias = merged(self.op, self.bn)
            y = self._run_quantized(x, weight)
            return y + self._along_channels(self.bias_quantizer(bias), y)
        if self.strategy == 4:
            return self._unscaled(x)
        bn: Any = self.bn
        own_weight: Tensor = self.op.weight  # type: ignore[assignment]
        mean, variance = self._batch_statistics(self._run(x, own_weight))
        batch_factor = _factor(bn, variance)
        shift = -mean * batch_factor
        shift = shift if bn.bias is None else shift + bn.bias
        if self.op.bias is not None:
            # It cancels, so its gradient is zero; one that is missing would stop DistributedDataParallel.
            shift = shift + 0.0 * self.op.bias  # type: ignore[operator]
        factor = batch_factor if self.strategy == 2 else _factor(bn, bn.running_var)
        y = self._run_quantized(x, own_weight * _along_outputs(factor, self.op, own_weight))
        if self.strategy == 3:
            running, batch = torch.sqrt(bn.running_var + bn.eps), torch.sqrt(variance + bn.eps)
            y = y * self._along_channels(running / batch, y)
        return y + self._along_channels(self.bias_quantizer(shift), y)

    def _unscaled(self, x: _Call) -> Tensor:
        own_weight: Tensor = self.op.weight  # type: ignore[assignment]
        factor = _factor(self.bn, self.bn.running_var)  # type: ignore[arg-type]
        factor = torch.where(factor.abs() < _LEAST, torch.full_like(factor, _LEAST), factor)
        # Unscaled is the quantized weight, not the output, which is larger by far.
        y = self._run_quantized(x, own_weight, _along_outputs(factor, self.op, own_weight))
        bias: Tensor | None = self.op.bias  # type: ignore[assignment]
        out: Tensor = self.bn(y if bias is None else y + self._along_channels(bias, y))
        mode: Mode = getattr(self.bias_quantizer, "mode", QUANTIZE)
        if mode.watch is not None:
            mode.watch(self.bias)  # the deployed bias, which this strategy computes in eval alone
        return out

    def _run_quantized(self, x: _Call, weight: Tensor, factor: Tensor | None = None) -> Tensor:
        """Like `_run`, with a weight that is quantized scaled by `factor`, and quantized again in the backward pass."""
        quantizer = self.weight_quantizer
        if factor is not None and not isinstance(quantizer, Quantizer):
            return self._run(x, quantizer(weight * factor) / factor)
        quantized = quantizer(weight) if factor is None else quantizer(weight, factor)
        call = weighted(self.op, x.args, x.kwargs, quantizer) if is_plain(self.op) else None
        return self._run(x, quantized) if call is None else call.run(weight, quantized, self._no_bias(), factor)

    def _run(self, x: _Call, weight: Tensor) -> Tensor:
        """The operation with another weight and without its bias, which cancels against the batch mean."""
        replaced: dict[str, Tensor] = {"weight": weight}
        bias = self._no_bias()
        if bias is not None:
            replaced["bias"] = bias
        out: Tensor = functional_call(self.op, replaced, x.args, x.kwargs)
        return out

    def _no_bias(self) -> Tensor | None:
        own: Tensor | None = self.op.bias  # type: ignore[assignment]
        return None if own is None else torch.zeros_like(own)

    def _batch_statistics(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Of the batch, without the bias; the running ones follow as `nn.BatchNorm` would move them."""
        own: Any = self.op
        found = moments_over_ranks(y)
        follow(self.bn, found, 0.0 if own.bias is None else own.bias)
        return found.mean, found.variance

    def _along_channels(self, values: Tensor, y: Tensor) -> Tensor:
        return values if self.kind == "linear" else values.reshape(-1, *[1] * (y.ndim - 2))

    def extra_repr(self) -> str:
        return f"strategy={self.strategy}{', frozen' if self.frozen else ''}"
