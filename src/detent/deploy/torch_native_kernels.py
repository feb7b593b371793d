"""One maker for each kind of operation that torch has an integer kernel for.

Each looks at an operation, at what it reads and at what follows, and adds the step, or says why there is no kernel.
"""

from __future__ import annotations

from typing import Any

from detent.deploy.qdq_graph import Op, QdqGraph, Read
from detent.deploy.torch_native_calls import activation_of, add_call, bounds_of
from detent.deploy.torch_native_lowering import Lowering, Maker, NoKernelError
from detent.deploy.torch_native_weighted import conv, conv_transpose, gemm, matmul

__all__ = ["MAKERS", "lower"]

_SIGMOID_GRID = (1 / 256, 0)
_TANH_GRID = (1 / 128, 128)
_RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


def lower(graph: QdqGraph) -> Lowering:
    """Every operation of `graph` as a call."""
    return Lowering(graph, MAKERS)


def _pair(low: Lowering, op: Op) -> None:
    """Add, Mul."""
    if any(low.is_constant(read) for read in op.inputs):
        raise NoKernelError("one side is a constant")
    for read in op.inputs:
        low.grid(read)
    chain, clip, relu = activation_of(low, (op,))
    grid = low.output_grid(chain[-1].outputs[0])
    add_call(low, f"quantized.{op.type.lower()}", chain, op.inputs, grid, clip, relu, {})


def _concat(low: Lowering, op: Op) -> None:
    if any(low.is_constant(read) for read in op.inputs):
        raise NoKernelError("one part is a constant")
    for read in op.inputs:
        low.grid(read)
    grid = low.output_grid(op.outputs[0])
    add_call(low, "quantized.cat", (op,), op.inputs, grid, None, False, {"dim": op.attributes["axis"]})


def _same_grid(low: Lowering, op: Op) -> None:
    """Operations on codes whose output is on the grid of their input, and moves behind them before it is put there:
    moving and rounding can change places."""
    x = op.inputs[0]
    grid = low.grid(x)
    ops = [op]
    while low.graph.grid_of(ops[-1].outputs[0]) is None and (following := low.behind(ops[-1], _RESHAPES)) is not None:
        ops.append(following)
    if any(low.graph.grid_of(name) != grid for name in ops[-1].outputs if name):
        raise NoKernelError("torch's kernel keeps the grid of its input, and what it gives is on another")
    if low.is_constant(x) or not all(read is None or low.is_constant(read) for o in ops for read in o.inputs[1:]):
        raise NoKernelError("its parameters are computed, or all of it is constant")
    for each in ops:
        data = each.inputs[0]
        assert data is not None
        writes = tuple(Read(name, grid) for name in each.outputs if name)
        reads = (Read(data.tensor, grid), *each.inputs[1:])
        low.add(f"onnx.{each.type}", (each,), reads, writes, attributes=each.attributes)


def _clip(low: Lowering, op: Op) -> None:
    grid = low.grid(op.inputs[0])
    if low.graph.grid_of(op.outputs[0]) != grid or not all(low.is_constant(r) for r in op.inputs[1:] if r is not None):
        raise NoKernelError("torch's kernel keeps the grid of its input, and what it gives is on another")
    add_call(low, "clamp", (op,), op.inputs[:1], grid, bounds_of(low, op), False, {})


def _average_pool(low: Lowering, op: Op) -> None:
    shape = low.graph.shapes.get(op.inputs[0].tensor, ()) if op.inputs[0] is not None else ()
    if len(op.attributes.get("kernel_shape", shape[2:])) != 2:
        raise NoKernelError("Detent drives torch's averaging kernel for two dimensions")
    pads = op.attributes.get("pads", [0] * 4)
    if op.attributes.get("ceil_mode", 0) or (any(pads) and not op.attributes.get("count_include_pad", 0)):
        raise NoKernelError("torch's libraries differ in what they divide by at the border")
    auto = op.attributes.get("auto_pad", "NOTSET")
    if (
        auto not in ("NOTSET", "VALID")
        or pads[:2] != pads[2:]
        or any(dilation != 1 for dilation in op.attributes.get("dilations", [1, 1]))
    ):
        raise NoKernelError("torch's kernels pad both sides alike and are not dilated")
    _same_grid(low, op)


def _max_pool(low: Lowering, op: Op) -> None:
    kernel = op.attributes["kernel_shape"]
    pads = op.attributes.get("pads", [0] * 2 * len(kernel))
    uneven = pads[: len(kernel)] != pads[len(kernel) :] or op.attributes.get("auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )
    if len(kernel) > 2 or uneven or len(op.outputs) > 1:
        raise NoKernelError("torch's kernels pad both sides alike, in one or two dimensions, and give no indices")
    _same_grid(low, op)


def _resize(low: Lowering, op: Op) -> None:
    rule = (op.attributes.get("mode", "nearest"), op.attributes.get("coordinate_transformation_mode", "half_pixel"))
    if rule != ("nearest", "asymmetric") or op.attributes.get("nearest_mode") != "floor":
        raise NoKernelError("Detent drives torch's kernel for the nearest neighbour, asymmetric and rounded down")
    _same_grid(low, op)


def _pad(low: Lowering, op: Op) -> None:
    value = op.inputs[2] if len(op.inputs) > 2 else None
    zero = value is None or (low.is_constant(value) and not low.constant(value).any())
    if op.attributes.get("mode", "constant") != "constant" or not zero:
        raise NoKernelError("torch pads codes with zeros only")
    _same_grid(low, op)


def _unary(low: Lowering, op: Op) -> None:
    """Kernels with an output grid of their own choice: HardSwish, LeakyRelu, Elu."""
    low.grid(op.inputs[0])
    grid = low.output_grid(op.outputs[0])
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "HardSwish": ("hardswish", {}),
        "LeakyRelu": ("leaky_relu", {"slope": float(op.attributes.get("alpha", 0.01))}),
        "Elu": ("elu", {"alpha": float(op.attributes.get("alpha", 1.0))}),
    }
    name, attributes = calls[op.type]
    add_call(low, f"quantized.{name}", (op,), op.inputs, grid, None, False, attributes)


def _built_in(name: str, output: tuple[float, int]) -> Maker:
    """Kernels with one output grid: scale and zero point."""

    def make(low: Lowering, op: Op) -> None:
        low.grid(op.inputs[0])
        grid = low.output_grid(op.outputs[0])
        if (float(grid.scale), int(grid.zero_point)) != output:
            raise NoKernelError(f"torch's kernel gives scale {output[0]} and zero point {output[1]}, nothing else")
        if op.type == "HardSigmoid" and abs(op.attributes.get("alpha", 0.2) - 1 / 6) > 1e-6:
            raise NoKernelError("torch's kernel has slope 1/6")
        add_call(low, name, (op,), op.inputs, grid, None, False, {})

    return make


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(
        (
            "DepthToSpace",
            "Expand",
            "Flatten",
            "Gather",
            "Identity",
            "Relu",
            "Reshape",
            "Slice",
            "SpaceToDepth",
            "Split",
            "Squeeze",
            "Transpose",
            "Unsqueeze",
        ),
        _same_grid,
    ),
    "Add": _pair,
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Elu": _unary,
    "Gemm": gemm,
    "GlobalAveragePool": _average_pool,
    "HardSigmoid": _built_in("aten.hardsigmoid", _SIGMOID_GRID),
    "HardSwish": _unary,
    "LeakyRelu": _unary,
    "MatMul": matmul,
    "MaxPool": _max_pool,
    "Mul": _pair,
    "Pad": _pad,
    "Resize": _resize,
    "Sigmoid": _built_in("quantized.sigmoid", _SIGMOID_GRID),
    "Tanh": _built_in("aten.tanh", _TANH_GRID),
}
"""By ONNX operation type."""
