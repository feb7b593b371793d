"""ONNX Runtime's integer kernels that are the same on every processor, and the makers around them."""

from __future__ import annotations

from functools import partial
from math import exp

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand
from detent.ir.reference.windows import pool_windows
from detent.ir.windows import SlidingWindow
from detent.targets.onnxruntime.arithmetic.functions import sigmoid, tanh
from detent.targets.onnxruntime.arithmetic.fusion import MOVERS, BinaryKernel, Fusion, HeldGrid, factor
from detent.twin import Step
from detent.twin.arithmetic import Kernel, Maker
from detent.twin.float_ops import compute
from detent.twin.lowering import float_step
from detent.twin.requantize import dequantize, float32_multiplier, per_channel, quantize

__all__ = ["makers"]


def makers(fusion: Fusion, *, add: BinaryKernel, multiply: BinaryKernel) -> dict[str, Maker]:
    """The table for one kind of processor; what differs between them is given."""
    return {
        **MOVERS,
        "Add": fusion.binary(add),
        "AveragePool": fusion.unary(average_pool),
        "Concat": partial(_concat, fusion),
        "Conv": partial(_conv, fusion),
        "Gemm": partial(_gemm, fusion),
        "GlobalAveragePool": fusion.unary(global_average_pool),
        "LeakyRelu": fusion.unary(partial(table, compute)),
        "MatMul": partial(_matmul, fusion),
        "Mul": fusion.binary(multiply),
        "Sigmoid": partial(_sigmoid, fusion),
        "Softmax": fusion.unary(softmax),
        "Tanh": partial(float_step, function=tanh),
    }


# --- weighted operations -------------------------------------------------------------------------------------


def _conv(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    """QLinearConv, for a bias whose scale is that of input times weight, or nearly."""
    if not fusion.takes(graph, op.inputs[0]) or not _bias_fits(op):
        return None
    return _quantized(fusion, graph, op)


def _bias_fits(op: Op) -> bool:
    """The runtime's tolerance, found by trying: a bias on a scale further off keeps the convolution in float."""
    data, weight, bias = (*op.inputs, None)[:3]
    if bias is None or bias.encoding is None or data is None or weight is None:
        return True
    if data.encoding is None or weight.encoding is None:
        return False
    expected = np.asarray(data.encoding.scale * weight.encoding.scale)
    return bool(np.isclose(bias.encoding.scale, expected, rtol=1e-2, atol=1e-6).all())


def _gemm(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    """QGemm, which gives floats where no Q follows. Signed data want signed weights."""
    data, weight = op.inputs[:2]
    if fusion.dtype(graph, data) == "int8" != fusion.dtype(graph, weight):
        return None
    return _quantized(fusion, graph, op) or _to_float(fusion, graph, op) or _of_activations(fusion, graph, op)


def _matmul(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    """QLinearMatMul, or MatMulIntegerToFloat where no Q follows; of weights or of two activations."""
    if not fusion.takes(graph, op.inputs[0]):
        return None
    return _quantized(fusion, graph, op) or _to_float(fusion, graph, op) or _of_activations(fusion, graph, op)


def _quantized(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    """`clip(rne(f32(acc) * f32(f32(sx * sw) / sy)) + zy)`."""
    group, sums = fusion.group(graph, op, inputs=1), fusion.sums(graph, op)
    if group is None or sums is None:
        return None
    output = group.output.encoding
    requantize = float32_multiplier(sums.scale, sums.channels, output, (output.qmin, output.qmax))
    return Step(group.chain.ops, (sums.read,), group.chain.writes, lambda x: requantize(sums(x)))


def _to_float(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    """`f32(acc) * f32(sx * sw)`."""
    sums = fusion.sums(graph, op)
    if sums is None or not fusion.ends_in_float(graph, op):
        return None
    scale = per_channel(sums.scale, sums.channels)
    return Step((op,), (sums.read,), (Operand(op.outputs[0]),), lambda x: sums(x).to(torch.float32).mul_(scale))


def _of_activations(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    a, b = (fusion.stored(graph, read) for read in op.inputs[:2])
    if a is None or b is None or len(op.inputs) > 2:
        return None
    scale = np.asarray(factor(op) * a.scale * b.scale, np.float32)
    sums = fusion.products(op, a, b)
    group = fusion.group(graph, op, inputs=1)
    if group is not None:
        output = group.output.encoding
        requantize = float32_multiplier(scale, (1,), output, (output.qmin, output.qmax))
        return Step(group.chain.ops, op.inputs, group.chain.writes, lambda x, y: requantize(sums(x, y)))
    if not fusion.ends_in_float(graph, op):
        return None
    writes = (Operand(op.outputs[0]),)
    return Step((op,), op.inputs, writes, lambda x, y: sums(x, y).to(torch.float32).mul_(float(scale)))


# --- one activation ------------------------------------------------------------------------------------------


def _sigmoid(fusion: Fusion, graph: Network, op: Op) -> Step:
    return fusion.unary(partial(table, sigmoid))(graph, op) or float_step(graph, op, sigmoid)


def table(function: Kernel, op: Op, grid: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearSigmoid and QLinearLeakyRelu: 256 results, computed in float beforehand."""
    least = grid.encoding.qmin
    codes = torch.arange(least, grid.encoding.qmax + 1, dtype=torch.float32)
    results = quantize(function(op, dequantize(codes, grid.encoding)), output.encoding)
    return lambda x: results[(x - least).long()]


def softmax(op: Op, grid: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearSoftmax: a table of exponentials, sums in float32 in order, and the reciprocal of the output's scale
    *rounded down to an integer* (so 1/255 is exact and 1/200.5 is taken for 1/200).

    The table leaves room for the sum and not for the product with that reciprocal: over an axis of one element (of `n`
    elements, if the output's scale is less than `1 / (148 * n)`) it is infinite. As an unsigned integer that is 0, as a
    signed one the least, which a zero point below 0 turns into the greatest.
    """
    axis = int(op.attribute("axis"))
    inverse = float(np.floor(np.float32(1.0) / output.scale))
    scale = float(grid.scale)
    least, greatest = output.encoding.qmin, output.encoding.qmax
    overflown = output.zero_point
    if output.dtype == "int8":
        overflown = greatest if output.zero_point < 0 else least

    def kernel(codes: Tensor) -> Tensor:
        rows = codes.movedim(axis, 0)
        below = (rows - rows.amax(0, keepdim=True)).long() + 255
        parts = _exponentials(scale, rows.shape[0])[below]
        shares = (parts * inverse).div_(_in_order(list(parts)))
        infinite = shares.isinf()
        settled = shares.round_().add_(output.zero_point).clamp_(least, greatest).masked_fill_(infinite, overflown)
        return settled.movedim(0, axis)

    return kernel


def _exponentials(scale: float, length: int) -> Tensor:
    """`exp(scale * (i - 255))` for each code, scaled up so that the sum of `length` of them stays below the greatest
    float32 with a factor of e**5 to spare."""
    greatest = np.float32(np.finfo(np.float32).max) / np.float32(length)
    shift = max(0.0, float(np.log(greatest)) - 5) / scale
    return torch.tensor([exp((i - 255 + shift) * scale) for i in range(256)], dtype=torch.float64).to(torch.float32)


def _in_order(parts: list[Tensor]) -> Tensor:
    """The sum in float32, one after the other."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def average_pool(op: Op, grid: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearAveragePool: real numbers added in the order of the window, divided, and rounded *with* the zero point,
    `rne(f32(f32(mean / sy) + zy))`. A window as large as an input without padding is a global pool."""
    everything = float(np.prod(op.attributes["kernel_shape"]))
    window = SlidingWindow.of(op.attributes)
    of_everything = global_average_pool(op, grid, output)

    def kernel(codes: Tensor) -> Tensor:
        padded = any(map(any, window.resolve(codes.shape[2:]).pads))
        if window.kernel == tuple(codes.shape[2:]) and not padded:
            whole: Tensor = of_everything(codes)
            return whole
        parts, counts = pool_windows(op.attributes, dequantize(codes, grid.encoding))
        mean = _in_order(parts) / (everything if op.attribute("count_include_pad") else counts)
        return output.settle(mean.div_(float(output.scale)).add_(output.lifted_zero_point).round_())

    return kernel


def global_average_pool(_op: Op, grid: HeldGrid, output: HeldGrid) -> Kernel:
    """QLinearGlobalAveragePool: `rne(f32(sum) * f32(sx / f32(sy * n))) + zy`."""

    def kernel(codes: Tensor) -> Tensor:
        sums = (codes - grid.zero_point).sum(tuple(range(2, codes.ndim)), keepdim=True, dtype=torch.float64)
        scale = np.float32(grid.scale / np.float32(output.scale * np.float32(codes[0, 0].numel())))
        mean = sums.to(torch.float32).mul_(float(scale)).round_().add_(output.zero_point)
        return mean.clamp_(output.encoding.qmin, output.encoding.qmax)

    return kernel


# --- several activations -------------------------------------------------------------------------------------


def _concat(fusion: Fusion, graph: Network, op: Op) -> Step | None:
    """QLinearConcat: each input that has another grid goes through a table."""
    group = fusion.group(graph, op)
    if group is None:
        return None
    output, axis = group.output.encoding, int(op.attributes["axis"])
    grids = [read.encoding for read in group.reads]

    def kernel(*inputs: Tensor) -> Tensor:
        return torch.cat([_on(x, grid, output) for x, grid in zip(inputs, grids, strict=True)], axis)

    return Step(group.chain.ops, op.inputs, group.chain.writes, kernel)


def _on(codes: Tensor, grid: Encoding, output: Encoding) -> Tensor:
    return codes if grid == output else quantize(dequantize(codes, grid), output)
