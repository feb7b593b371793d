"""ncnn on x86 and arm, in float32 between its integer layers, channels not interleaved."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, reduced_axes
from detent.ir.reference.windows import pool_windows
from detent.targets.ncnn.file import FUSED, requantized
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import Accumulator, accumulator, bias_values
from detent.twin.arithmetic import Kernel, Maker
from detent.twin.lowering import chain, float_step, lower
from detent.twin.requantize import fma, per_channel

__all__ = ["Ncnn"]


_BELOW_HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))
_LANES = 4


class Ncnn(Arithmetic):
    """Numbers become integers on the way into a convolution or a linear layer, and floats again on the way out.

    - quantize: `clip(trunc(f32(f32(x * f) +- 0.5)))` with the factor `f = f32(1 / scale)`. The largest float32 below
      0.5 becomes 1 that way, but 0 among the last numbers of a plane, those that do not fill four lanes.
    - convolution: `fma(f32(acc), f32(1 / f32(fx * fw)), bias)`; linear layer and depthwise convolution: the same
      product, then the sum. The depthwise kernels for 3x3 of stride 1 or 2 with a ReLU or nothing behind are fused
      too, except on CPUs of the kind "avx2".
    - the bias is float32, and so is everything else. A global mean sums in four lanes, that are then added crosswise.
    """

    name = "ncnn"
    claim = (
        "equal, on CPUs with AVX2 or AVX-512, with packing=False, for convolutions, linear layers, pools, means, sums, "
        "products, piecewise linear functions and moves; functions that ncnn approximates in float32 (exp, division, "
        "interpolation and what is made of them) and layers left in float are off by a few units of the last place in "
        "a third to two thirds of outputs"
    )
    elsewhere = (
        "emulated, 0 of 39,000 outputs of ten small networks differ, and 1,331 of 226,000 where results lie on ties "
        "(depthwise convolutions, by 1 LSB)"
    )

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        real = values.contiguous() * float(_factor(encoding))
        codes = torch.copysign(torch.tensor(0.5), real).add_(real).trunc_()
        plane = real.flatten(2) if real.ndim > 3 else real
        left = plane.shape[-1] % _LANES
        if left:
            end = codes.view(plane.shape)[..., -left:]
            end[plane[..., -left:].abs() == _BELOW_HALF] = 0
        return codes.clamp_(encoding.qmin, encoding.qmax)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset({*_MAKERS, "Conv"})

    def lower(self, graph: Network) -> list[Step]:
        return lower(graph, {**_MAKERS, "Conv": partial(_conv, fused=self.cpu.name != "avx2")})


def _factor(encoding: Encoding) -> np.float32:
    found: np.float32 = np.float32(1) / np.float32(encoding.scale)
    return found


def _conv(graph: Network, op: Op, *, fused: bool) -> Step | None:
    """`fused`: the fast depthwise kernels round once."""
    acc = accumulator(graph, op)
    if acc is None:
        return None
    unit, bias = _unit(acc), bias_values(graph, op)
    shift = None if bias is None else per_channel(bias, acc.channels)
    activation = _activation(graph, op)
    if _is_depthwise(op, acc.weights.shape) and not (fused and _is_fast(op, acc.weights.shape, activation)):
        return _rounded_twice(graph, op, activation, acc, unit, shift)

    def kernel(codes: Tensor) -> Tensor:
        total = acc(codes).to(torch.float32)
        return total.mul_(unit) if shift is None else fma(total, unit, shift)

    return Step((op,), (acc.read,), (Operand(op.outputs[0]),), kernel)


def _activation(graph: Network, op: Op) -> Op | None:
    """The activation function that ncnn fuses into a convolution."""
    ops = chain(graph, op, FUSED).ops
    return ops[1] if len(ops) > 1 else None


def _is_depthwise(op: Op, weights: tuple[int, ...]) -> bool:
    group = op.groups
    return group > 1 and weights[:2] == (group, 1)


def _is_fast(op: Op, weights: tuple[int, ...], activation: Op | None) -> bool:
    """Whether ncnn has a kernel of its own for a depthwise convolution: those are 3x3, of stride 1 or 2, with a ReLU or
    nothing behind."""
    rank = len(weights) - 2
    strides, dilations = op.attribute("strides", rank), op.attribute("dilations", rank)
    fast = weights[2:] == (3, 3) and strides in ([1, 1], [2, 2]) and dilations == [1, 1]
    return fast and (activation is None or activation.type == "Relu")


def _rounded_twice(
    graph: Network, op: Op, activation: Op | None, acc: Accumulator, unit: Tensor, shift: Tensor | None
) -> Step:
    """The product is rounded before the bias is added; codes for the next layer are rounded directly."""

    def real(codes: Tensor) -> Tensor:
        total = acc(codes).to(torch.float32).mul_(unit)
        return total if shift is None else total.add_(shift)

    ops = (op,) if activation is None else (op, activation)
    given = requantized(graph, ops[-1].outputs[0])
    if given is None:
        return Step((op,), (acc.read,), (Operand(op.outputs[0]),), real)
    factor, encoding = float(_factor(given)), given
    follow = None if activation is None else float_step(graph, activation)
    constants = () if follow is None else follow.reads[1:]

    def kernel(codes: Tensor, *bounds: Tensor | None) -> Tensor:
        value = real(codes) if follow is None else follow.kernel(real(codes), *bounds)
        value = value * factor
        whole = value.trunc()
        away = torch.sign(value).mul_((value - whole).abs_() >= 0.5)
        return whole.add_(away).clamp_(encoding.qmin, encoding.qmax)

    return Step(ops, (acc.read, *constants), (Operand(ops[-1].outputs[0], encoding),), kernel)


def _linear(graph: Network, op: Op) -> Step | None:
    acc = accumulator(graph, op)
    if acc is None:
        return None
    unit = _unit(acc)
    bias = bias_values(graph, op)
    shift = None if bias is None else per_channel(bias, acc.channels)

    def kernel(codes: Tensor) -> Tensor:
        total = acc(codes).to(torch.float32).mul_(unit)
        return total if shift is None else total.add_(shift)

    return Step((op,), (acc.read,), (Operand(op.outputs[0]),), kernel)


def _unit(acc: Accumulator) -> Tensor:
    """The scale of each output channel's integer sums, as ncnn computes it from the factors it stores."""
    weight = (np.float32(1) / acc.weight.scale).astype(np.float32)
    product = (_factor(acc.input) * weight).astype(np.float32)
    return per_channel(np.broadcast_to(np.float32(1) / product, (len(acc.weights),)), acc.channels)


def _float_kernel(op: Op, kernel: Kernel) -> Step | None:
    """A float step; None if its output is read on a grid, for which ncnn has no kernel."""
    if any(read is not None and read.encoding is not None for read in op.inputs):
        return None
    return Step((op,), op.inputs, (Operand(op.outputs[0]),), kernel, "float")


def _global_mean(_graph: Network, op: Op) -> Step | None:
    return _float_kernel(op, lambda x: _mean(x.flatten(2)).reshape(*x.shape[:2], *(1,) * (x.ndim - 2)))


def _reduce_mean(graph: Network, op: Op) -> Step | None:
    """A mean over height and width, which ncnn computes as a pool."""
    keep, given = bool(op.attribute("keepdims")), graph.shapes.get(op.outputs[0])
    rank = 0 if given is None else len(given) + (0 if keep else 2)
    if rank != 4 or reduced_axes(graph, op, rank) != (2, 3):
        return None
    return _float_kernel(op, lambda x, *_: _mean(x.flatten(2)).reshape(*x.shape[:2], *(1, 1) * keep))


def _mean(x: Tensor) -> Tensor:
    """The mean over the last axis: four lanes, (0 + 2) + (1 + 3), then the rest, times the float32 reciprocal."""
    whole = x.shape[-1] // _LANES * _LANES
    lanes = x.new_zeros(*x.shape[:-1], _LANES)
    for start in range(0, whole, _LANES):
        lanes += x[..., start : start + _LANES]
    total = (lanes[..., 0] + lanes[..., 2]) + (lanes[..., 1] + lanes[..., 3])
    for index in range(whole, x.shape[-1]):
        total = total + x[..., index]
    return total * float(np.float32(1) / np.float32(x.shape[-1]))


def _average_pool(_graph: Network, op: Op) -> Step | None:
    """One that counts its padding multiplies with the reciprocal of the area; others divide."""
    if not op.attribute("count_include_pad"):
        return None
    reciprocal = float(np.float32(1) / np.float32(np.prod(op.attributes["kernel_shape"])))

    def kernel(x: Tensor) -> Tensor:
        places, _ = pool_windows(op.attributes, x)
        return sum(places[1:], places[0]) * reciprocal

    return _float_kernel(op, kernel)


def _hard_sigmoid(_graph: Network, op: Op) -> Step | None:
    alpha, beta = float(op.attribute("alpha")), float(op.attribute("beta"))
    return _float_kernel(op, lambda x: _gate(x, alpha, beta))


def _hard_swish(_graph: Network, op: Op) -> Step | None:
    return _float_kernel(op, lambda x: _gate(x, 1 / 6, 0.5).mul_(x))


def _gate(x: Tensor, alpha: float, beta: float) -> Tensor:
    return fma(x, float(np.float32(alpha)), float(np.float32(beta))).clamp_(0, 1)


_MAKERS: dict[str, Maker] = {
    "AveragePool": _average_pool,
    "Gemm": _linear,
    "GlobalAveragePool": _global_mean,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "MatMul": _linear,
    "ReduceMean": _reduce_mean,
}
