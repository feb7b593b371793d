"""One maker for each kind of operation that torch has an integer kernel for.

Each looks at an operation, at what it reads and at what follows, and adds the step, or says why there is no kernel.
"""

from __future__ import annotations

from typing import Any

from detent.ir import Network, Op, Operand, Trait, clip_bounds, ops_with
from detent.targets.torch_native.calls import activation_of, add_call
from detent.targets.torch_native.lowering import Maker, NoKernelError, TorchLowering
from detent.targets.torch_native.weighted import conv, conv_transpose, gemm, matmul

__all__ = ["MAKERS", "lower"]

_SIGMOID_GRID = (1 / 256, 0)
_TANH_GRID = (1 / 128, 128)
_RESHAPES = ops_with(Trait.RESHAPES) - {"Identity"}  # which requantizes
# The two are not proven on codes.
_MOVES = ops_with(Trait.MOVES_VALUES) - {"GatherElements", "Tile"}

_UNARY = {"Elu": ("elu", "alpha"), "HardSwish": ("hardswish", ""), "LeakyRelu": ("leaky_relu", "slope")}
"""Torch's kernel, and what it calls alpha."""


def lower(graph: Network) -> TorchLowering:
    """The calls for all operations of `graph`."""
    return TorchLowering(graph, MAKERS)


def _pair(low: TorchLowering, op: Op) -> None:
    """Add, Mul."""
    if any(low.is_constant(read) for read in op.inputs):
        raise NoKernelError("one side is a constant")
    for read in op.inputs:
        low.grid(read)
    chain, clip, relu = activation_of(low, (op,))
    grid = low.output_grid(chain[-1].outputs[0])
    add_call(low, f"quantized.{op.type.lower()}", chain, op.inputs, grid, clip, relu, {})


def _concat(low: TorchLowering, op: Op) -> None:
    if any(low.is_constant(read) for read in op.inputs):
        raise NoKernelError("one part is a constant")
    for read in op.inputs:
        low.grid(read)
    grid = low.output_grid(op.outputs[0])
    add_call(low, "quantized.cat", (op,), op.inputs, grid, None, False, {"dim": op.attributes["axis"]})


def _same_grid(low: TorchLowering, op: Op) -> None:
    """Operations on codes whose output is on the grid of their input, and moves behind them before it is put there:
    moving and rounding can change places."""
    x = op.inputs[0]
    grid = low.grid(x)
    ops = [op]
    while low.graph.grid_of(ops[-1].outputs[0]) is None and (following := low.behind(ops[-1], _RESHAPES)) is not None:
        ops.append(following)
    if any(low.graph.grid_of(name) != grid for name in ops[-1].outputs if name):
        raise NoKernelError("torch's kernel keeps the grid of its input, and its output is on another")
    if low.is_constant(x) or not all(read is None or low.is_constant(read) for o in ops for read in o.inputs[1:]):
        raise NoKernelError("its parameters are computed, or all of it is constant")
    for each in ops:
        data = each.inputs[0]
        assert data is not None
        writes = tuple(Operand(name, grid) for name in each.outputs if name)
        reads = (Operand(data.tensor, grid), *each.inputs[1:])
        low.add(f"onnx.{each.type}", (each,), reads, writes, attributes=each.attributes)


def _clip(low: TorchLowering, op: Op) -> None:
    grid = low.grid(op.inputs[0])
    bounds = clip_bounds(low.graph, op)
    if low.graph.grid_of(op.outputs[0]) != grid or bounds is None:
        raise NoKernelError("torch's kernel keeps the grid of its input, and its output is on another")
    add_call(low, "clamp", (op,), op.inputs[:1], grid, bounds, False, {})


def _average_pool(low: TorchLowering, op: Op) -> None:
    shape = low.graph.shapes.get(op.inputs[0].tensor, ()) if op.inputs[0] is not None else ()
    if len(op.attributes.get("kernel_shape", shape[2:])) != 2:
        raise NoKernelError("Detent drives torch's averaging kernel for two dimensions")
    if op.type == "AveragePool":
        _check_average(op)
    _same_grid(low, op)


def _check_average(op: Op) -> None:
    pads = op.attribute("pads")
    if op.attribute("ceil_mode") or (any(pads) and not op.attribute("count_include_pad")):
        raise NoKernelError("torch's libraries differ in what they divide by at the border")
    if (
        op.attribute("auto_pad") not in ("NOTSET", "VALID")
        or pads[:2] != pads[2:]
        or any(dilation != 1 for dilation in op.attribute("dilations"))
    ):
        raise NoKernelError("torch's kernels pad both sides alike and are not dilated")


def _max_pool(low: TorchLowering, op: Op) -> None:
    kernel = op.attributes["kernel_shape"]
    pads = op.attribute("pads")
    uneven = pads[: len(kernel)] != pads[len(kernel) :] or op.attribute("auto_pad") not in ("NOTSET", "VALID")
    if len(kernel) > 2 or uneven or len(op.outputs) > 1:
        raise NoKernelError("torch's kernels pad both sides alike, in one or two dimensions, and give no indices")
    _same_grid(low, op)


def _resize(low: TorchLowering, op: Op) -> None:
    rule = (op.attribute("mode"), op.attribute("coordinate_transformation_mode"))
    if rule != ("nearest", "asymmetric") or op.attribute("nearest_mode") != "floor":
        raise NoKernelError("Detent drives torch's kernel for the nearest neighbor, asymmetric and rounded down")
    _same_grid(low, op)


def _pad(low: TorchLowering, op: Op) -> None:
    value = op.optional(2)
    zero = value is None or (low.is_constant(value) and not low.constant(value).any())
    if op.attribute("mode") != "constant" or not zero:
        raise NoKernelError("torch pads codes with zeros only")
    _same_grid(low, op)


def _unary(low: TorchLowering, op: Op) -> None:
    """Kernels with an output grid of their own choice: HardSwish, LeakyRelu, Elu."""
    low.grid(op.inputs[0])
    grid = low.output_grid(op.outputs[0])
    name, alpha = _UNARY[op.type]
    attributes: dict[str, Any] = {alpha: float(op.attribute("alpha"))} if alpha else {}
    add_call(low, f"quantized.{name}", (op,), op.inputs, grid, None, False, attributes)


def _built_in(name: str, output: tuple[float, int]) -> Maker:
    """Kernels with one output grid: scale and zero point."""

    def make(low: TorchLowering, op: Op) -> None:
        low.grid(op.inputs[0])
        grid = low.output_grid(op.outputs[0])
        if (float(grid.scale), int(grid.zero_point)) != output:
            raise NoKernelError(f"torch's kernel gives scale {output[0]} and zero point {output[1]}, nothing else")
        if op.type == "HardSigmoid" and abs(op.attribute("alpha") - 1 / 6) > 1e-6:
            raise NoKernelError("torch's kernel has slope 1/6")
        add_call(low, name, (op,), op.inputs, grid, None, False, {})

    return make


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(_MOVES | {"Relu"}, _same_grid),
    **dict.fromkeys(_UNARY, _unary),
    "Add": _pair,
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "GlobalAveragePool": _average_pool,
    "HardSigmoid": _built_in("aten.hardsigmoid", _SIGMOID_GRID),
    "MatMul": matmul,
    "MaxPool": _max_pool,
    "Mul": _pair,
    "Pad": _pad,
    "Resize": _resize,
    "Sigmoid": _built_in("quantized.sigmoid", _SIGMOID_GRID),
    "Tanh": _built_in("aten.tanh", _TANH_GRID),
}
"""By ONNX operation type."""
