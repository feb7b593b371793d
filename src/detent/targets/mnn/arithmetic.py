"""MNN on x86, symmetric int8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op, Operand, clip_bounds, constant_values
from detent.ir.reference.windows import pool_windows
from detent.targets.mnn.gelu import gelu, with_gelu
from detent.targets.mnn.layers import BINARY, WEIGHTED, MnnUnit
from detent.targets.mnn.scale_propagation import AVERAGES, MOVES
from detent.targets.mnn.scales import MnnScales
from detent.twin import Arithmetic, Step
from detent.twin.accumulate import Accumulator, accumulator, bias_values
from detent.twin.arithmetic import Kernel, Maker
from detent.twin.float_ops import float_kernel
from detent.twin.lowering import float_step, lower
from detent.twin.requantize import clamp_bounds, dequantize, per_channel

__all__ = ["Mnn"]

Floats = npt.NDArray[Any]

_HALF = torch.tensor(0.5)
_OFFSET = 128
"""x86 multiplies unsigned codes: every code is this much higher, and the bias takes it off again, in float32."""


class Mnn(Arithmetic):
    """Half away from zero everywhere (a half is added, then the fraction cut off), and the bias in float32.

    - quantize: `clip(rha(f32(x * f32(1 / scale))))`.
    - convolution: `rha(f32(f32(f32(acc + 128 * sum(w)) * sw) * f32(sx / sy)) + b)` with
      `b = f32(f32(bias - f32(f32(sum(w) * sw) * f32(128 * sx))) / sy)`; linear layers alike.
    - depthwise: `rha(f32(acc + trunc(bias / f32(sx * sw))) * f32(f32(sx / sy) * sw))`.
    - average: of codes lifted by 128, with a reciprocal of 24 bits, rounded down; on the grid of what is read.
    - sums and products of two activations: in float32, then quantized.

    Which operations run on integers, and on which grids, is what `mnn.scales` says.
    """

    name = "mnn"
    claim = "equal on x86 with MNN 3.6.1, except for operations that run in float"
    elsewhere = (
        "emulated (Neoverse N1), 3,955 of 38,936 outputs of ten small networks differ, in 4 of them, by 1 LSB; on "
        "Cortex-A72 also outputs of a fifth, by up to 39"
    )
    # Sigmoid, tanh, exp, erf, SiLU and others are within 2**-21 (`benchmarks/mnn_functions.py`), on either side.
    float_slack = 2**-20
    functions: ClassVar[Mapping[str, Kernel]] = {"Gelu": gelu}

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return _half_away(values * float(np.float32(1) / np.float32(encoding.scale)), encoding.qmin, encoding.qmax)

    def rewrite(self, graph: Network) -> Network:
        return with_gelu(graph)

    @property
    def integer_operators(self) -> frozenset[str]:
        return frozenset(_MAKERS)

    def lower(self, graph: Network) -> list[Step]:
        known = MnnScales(graph)
        makers: dict[str, Maker] = {kind: partial(maker, known) for kind, maker in _MAKERS.items()}
        makers |= {kind: partial(float_step, function=own) for kind, own in self.functions.items()}
        steps = lower(_as_mnn_reads(graph, known), makers)
        return [shown for step in steps for shown in (step, *_real_numbers(graph, step))]


def _as_mnn_reads(graph: Network, known: MnnScales) -> Network:
    """The network in which integer operations read codes on MNN's grids, and all others read real numbers."""
    coded = {op.outputs[0] for unit in known.on_integers.values() for op in unit.ops}

    def seen(op: Op, read: Operand | None) -> Operand | None:
        if read is None or read.tensor in graph.constants:
            return read
        return Operand(read.tensor, known.read(op, read.tensor) if op.outputs[0] in coded else None)

    ops = (replace(op, inputs=tuple(seen(op, read) for read in op.inputs)) for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def _real_numbers(graph: Network, step: Step) -> Iterator[Step]:
    """Tensors on another grid than in the network are shown as real numbers."""
    for made in step.writes:
        grid = made.encoding
        if grid is not None and grid not in graph.encodings(made.tensor):
            yield Step((), (made,), (Operand(made.tensor),), partial(dequantize, encoding=grid), "quantize")


def _half_away(values: Tensor, low: float, high: float) -> Tensor:
    limited = values.clamp(low, high)
    return limited.add_(torch.copysign(_HALF, limited)).trunc_()


def _weighted(known: MnnScales, graph: Network, op: Op) -> Step | None:
    unit, acc = known.on_integers.get(op.outputs[0]), accumulator(graph, op)
    if unit is None or acc is None:
        return None
    output = known.given(unit)
    bounds = clamp_bounds(graph, [each for each in unit.ops[1:] if each.type != "Add"], output)
    assert bounds is not None
    group = op.groups
    if op.type == "Conv" and acc.weights.shape[:2] == (group, 1):  # from one channel to one, too
        real = _depthwise(graph, op, acc, output)
    else:
        real = _dense(acc, _bias(graph, unit), output)
    step = Step(unit.ops, (acc.read,), (Operand(unit.output, output),), lambda codes: _half_away(real(codes), *bounds))
    return _with_function(known, graph, step)


def _with_function(known: MnnScales, graph: Network, step: Step) -> Step:
    """A function of a tensor without a grid in the network is part of the step. It is computed on dequantized codes: a
    ReLU returns codes, while a clip may return values between two codes."""
    function, grid = known.functions.get(step.ops[0].outputs[0]), step.writes[0].encoding
    if function is None:
        return step
    assert grid is not None
    ops, output, codes_of = (*step.ops, function), function.outputs[0], step.kernel
    if function.type == "Relu":
        return replace(
            step, ops=ops, writes=(Operand(output, grid),), kernel=lambda *reads: codes_of(*reads).clamp_(min=0)
        )
    bounds = clip_bounds(graph, function)
    assert bounds is not None
    low, high = bounds
    return replace(
        step,
        ops=ops,
        writes=(Operand(output),),
        kernel=lambda *reads: dequantize(codes_of(*reads), grid).clamp_(low, high),
    )


def _depthwise(graph: Network, op: Op, acc: Accumulator, output: Encoding) -> Callable[[Tensor], Tensor]:
    ratio, bias = np.float32(acc.input.scale) / np.float32(output.scale), bias_values(graph, op)
    multiplier = per_channel(np.broadcast_to(ratio * acc.weight.scale, (len(acc.weights),)), acc.channels)
    whole = np.zeros(len(acc.weights)) if bias is None else np.trunc(bias / acc.scale)
    shift = per_channel(whole, acc.channels)
    return lambda codes: acc(codes).to(torch.float32).add_(shift).mul_(multiplier)


def _dense(acc: Accumulator, bias: Floats | None, output: Encoding) -> Callable[[Tensor], Tensor]:
    weight_scale = per_channel(np.broadcast_to(acc.weight.scale, (len(acc.weights),)), acc.channels)
    ratio = float(np.float32(acc.input.scale) / np.float32(output.scale))
    sums = acc.weights.reshape(len(acc.weights), -1).sum(1).astype(np.float32)
    lifted = per_channel(_OFFSET * sums, acc.channels)
    scaled = (sums * acc.weight.scale).astype(np.float32) * (np.float32(_OFFSET) * np.float32(acc.input.scale))
    rest = ((np.float32(0) if bias is None else bias) - scaled.astype(np.float32)).astype(np.float32)
    shift = per_channel(rest / np.float32(output.scale), acc.channels)

    def real(codes: Tensor) -> Tensor:
        return acc(codes).to(torch.float32).add_(lifted).mul_(weight_scale).mul_(ratio).add_(shift)

    return real


def _bias(graph: Network, unit: MnnUnit) -> Floats | None:
    """The bias of the operation, or the constant that is added to a matrix product."""
    added = next((each for each in unit.ops[1:] if each.type == "Add"), None)
    if added is None:
        return bias_values(graph, unit.head)
    read = next(r for r in added.inputs if graph.is_constant(r))
    return np.asarray(constant_values(graph, read), np.float32)


def _binary(known: MnnScales, graph: Network, op: Op) -> Step | None:
    """In float32 on the real numbers of the codes, then quantized."""
    unit = known.on_integers.get(op.outputs[0])
    if unit is None:
        return None
    output, compute = known.grids[unit.output], float_kernel(graph, op)
    a, b = (float(known.grids[name].scale) for name in unit.reads)
    factor = float(np.float32(1) / np.float32(output.scale))
    low = 0 if len(unit.ops) > 1 else output.qmin

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return _half_away(compute(x * a, y * b) * factor, low, output.qmax)

    return _with_function(known, graph, Step(unit.ops, op.inputs, (Operand(unit.output, output),), kernel))


def _moved(known: MnnScales, graph: Network, op: Op) -> Step | None:
    """Data movement on codes, which are read on the grid of the output."""
    unit = known.on_integers.get(op.outputs[0])
    if unit is None:
        return None
    writes = tuple(Operand(name, known.grids[name]) for name in op.outputs if name)
    return Step((op,), op.inputs, writes, float_kernel(graph, op), "moved")


def _average(known: MnnScales, _: Network, op: Op) -> Step | None:
    """AveragePool and GlobalAveragePool."""
    if op.outputs[0] not in known.on_integers:
        return None

    def kernel(codes: Tensor) -> Tensor:
        if op.type == "GlobalAveragePool":
            count = torch.tensor(float(codes[0, 0].numel()))
            return _mean(codes.flatten(2).sum(2).reshape(*codes.shape[:2], *(1,) * (codes.ndim - 2)), count)
        places, counts = pool_windows(op.attributes, codes)
        return _mean(sum(places[1:], places[0]), counts)

    return Step((op,), op.inputs, (Operand(op.outputs[0], known.grids[op.outputs[0]]),), kernel)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    many = count.to(torch.float64)
    reciprocal = torch.floor(2**24 / many)
    lifted = total.to(torch.float64) + _OFFSET * many
    return (torch.floor(lifted * reciprocal / 2**24) - _OFFSET).to(torch.float32)


_MAKERS: dict[str, Callable[[MnnScales, Network, Op], Step | None]] = {
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(WEIGHTED, _weighted),
    **dict.fromkeys((*MOVES, "MaxPool", "Resize"), _moved),
    **dict.fromkeys(AVERAGES, _average),
}
