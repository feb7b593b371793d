"""One maker for each kind of operation that torch has an integer kernel for.

Each looks at an operation, at what it reads and at what follows, and adds the step, or says why there is no kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from detent.deploy.encoding import BOUNDS, Encoding
from detent.deploy.qdq_graph import Op, QdqGraph, Read
from detent.deploy.torch_native_lowering import Lowering, Maker, NoKernelError

__all__ = ["MAKERS", "lower"]

_SIGMOID_GRID = (1 / 256, 0)
_TANH_GRID = (1 / 128, 128)
_RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


def lower(graph: QdqGraph) -> Lowering:
    """Every operation of `graph` as a call."""
    return Lowering(graph, MAKERS)


def _conv(low: Lowering, op: Op) -> None:
    x = op.inputs[0]
    low.grid(x)
    rank = len(_shape(low, op.inputs[1])) - 2
    pads = op.attributes.get("pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:] or op.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NoKernelError("torch's kernels pad both sides alike")
    if rank > 2:
        raise NoKernelError("Detent drives torch's kernels for one and two dimensions")
    attributes = {
        "strides": op.attributes.get("strides", [1] * rank),
        "padding": pads[:rank],
        "dilations": op.attributes.get("dilations", [1] * rank),
        "groups": op.attributes.get("group", 1),
    }
    _weighted(low, f"conv{rank}d", (op,), x, op.inputs[1], op.inputs[2:], axis=0, attributes=attributes)


def _conv_transpose(low: Lowering, op: Op) -> None:
    x, weight = op.inputs[0], op.inputs[1]
    low.grid(x)
    rank = len(_shape(low, weight)) - 2
    pads = op.attributes.get("pads", [0] * 2 * rank)
    if (
        pads[:rank] != pads[rank:]
        or "output_shape" in op.attributes
        or op.attributes.get("auto_pad", "NOTSET") != "NOTSET"
    ):
        raise NoKernelError("torch's kernels cut both sides alike")
    if rank != 2:
        raise NoKernelError("Detent drives torch's transposed kernel for two dimensions")
    if weight is not None and weight.encoding is not None and not weight.encoding.per_tensor:
        raise NoKernelError("torch's transposed kernel takes weights with one scale")
    attributes = {
        "strides": op.attributes.get("strides", [1] * rank),
        "padding": pads[:rank],
        "output_padding": op.attributes.get("output_padding", [0] * rank),
        "dilations": op.attributes.get("dilations", [1] * rank),
        "groups": op.attributes.get("group", 1),
    }
    _weighted(low, f"conv_transpose{rank}d", (op,), x, weight, op.inputs[2:], axis=1, attributes=attributes)


def _gemm(low: Lowering, op: Op) -> None:
    low.grid(op.inputs[0])
    given = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0, **op.attributes}
    if (given["transA"], given["transB"], given["alpha"], given["beta"]) != (0, 1, 1.0, 1.0):
        raise NoKernelError("torch's kernel computes x W' + b with W as (outputs, inputs)")
    _weighted(low, "linear", (op,), op.inputs[0], op.inputs[1], op.inputs[2:], axis=0)


def _matmul(low: Lowering, op: Op) -> None:
    x, weight = op.inputs
    low.grid(x)
    ops: tuple[Op, ...] = (op,)
    turned = low.pending(weight)
    if turned is not None and turned.attributes.get("perm", [1, 0]) == [1, 0]:
        weight, ops = turned.inputs[0], (turned, op)
    elif weight is None or not low.is_constant(weight):
        raise NoKernelError("torch multiplies two computed matrices in float")
    bias: tuple[Read | None, ...] = ()
    add = low.behind(op, ("Add",))
    if add is not None and low.is_constant(add.inputs[1]) and _is_bias(low, add.inputs[1], weight, turned is not None):
        ops, bias = (*ops, add), (add.inputs[1],)
    _weighted(low, "linear", ops, x, weight, bias, axis=0 if turned is not None else 1)


def _is_bias(low: Lowering, bias: Read | None, weight: Read | None, turned: bool) -> bool:
    shape = _shape(low, weight)
    return _shape(low, bias) == (shape[0 if turned else 1],)


def _weighted(
    low: Lowering,
    kernel: str,
    ops: tuple[Op, ...],
    x: Read | None,
    weight: Read | None,
    bias: tuple[Read | None, ...],
    *,
    axis: int,
    attributes: dict[str, Any] | None = None,
) -> None:
    """A convolution or linear layer with the ReLU or Clip behind it."""
    if weight is None or weight.encoding is None or not low.is_constant(weight):
        raise NoKernelError("its weight is not quantized")
    encoding = weight.encoding
    codes = low.graph.constants[weight.tensor]
    least, greatest = BOUNDS[encoding.dtype]
    if encoding.zero_point.any() or least < -128 or greatest > 127:
        raise NoKernelError("torch's kernels take signed 8 bit weights with zero point 0")
    if encoding.block is not None or encoding.axis not in (None, axis, axis - codes.ndim):
        raise NoKernelError("torch's kernels take weights with one scale, or one for each output")
    if any(read is not None and not low.is_constant(read) for read in bias):
        raise NoKernelError("its bias is computed")
    chain, clamp, relu = _activation(low, ops)
    grid = low.output_grid(chain[-1].outputs[0])
    if kernel == "linear" and axis == 1:
        codes = codes.T
    held_bias = None
    if bias and bias[0] is not None:
        held_bias = low.hold(bias[0].tensor, np.asarray(low.constant(bias[0]), np.float32))
    constants = (
        low.hold(weight.tensor, codes.astype(np.int8)),
        low.hold(f"{weight.tensor}_scale", encoding.scale),
        held_bias,
    )
    _add(low, f"quantized.{kernel}", chain, (x,), grid, clamp, relu, attributes or {}, constants)


def _activation(low: Lowering, ops: tuple[Op, ...]) -> tuple[tuple[Op, ...], tuple[float, float] | None, bool]:
    """`ops` with the ReLU or Clip behind them, its bounds, and whether it is a ReLU."""
    following = low.behind(ops[-1], ("Relu", "Clip"))
    if following is None or not all(low.is_constant(read) for read in following.inputs[1:] if read is not None):
        return ops, None, False
    if following.type == "Relu":
        return (*ops, following), None, True
    return (*ops, following), _bounds(low, following), False


def _bounds(low: Lowering, clip: Op) -> tuple[float, float]:
    given = [float(low.constant(read)) if read is not None else None for read in clip.inputs[1:]]
    least, greatest = (*given, None, None)[:2]
    return (-np.inf if least is None else least, np.inf if greatest is None else greatest)


def _add(
    low: Lowering,
    call: str,
    ops: tuple[Op, ...],
    reads: tuple[Read | None, ...],
    grid: Encoding,
    clip: tuple[float, float] | None,
    relu: bool,
    attributes: dict[str, Any],
    constants: tuple[str | None, ...] = (),
) -> None:
    kernel = f"{call}_relu" if relu and call != "quantized.conv_transpose2d" else call
    least, greatest = grid.qmin, grid.qmax
    if clip is not None or (kernel == call and relu):
        bounds = (0.0, np.inf) if clip is None else clip
        # Rounding is monotone: clipping and then rounding gives what rounding and then clipping does.
        codes = grid.quantize(np.clip(np.array(bounds, np.float32), *_span(grid)))
        least, greatest = max(least, int(codes[0])), min(greatest, int(codes[1]))
    if (least, greatest) != (0, 255):
        attributes = {**attributes, "clamp": [least, greatest]}
    low.add(kernel, ops, reads, (Read(ops[-1].outputs[0], grid),), constants=constants, attributes=attributes)


def _span(grid: Encoding) -> tuple[float, float]:
    ends = grid.dequantize(np.array([grid.qmin, grid.qmax]))
    return float(ends[0]), float(ends[1])


def _pair(low: Lowering, op: Op) -> None:
    """Add, Mul."""
    if any(low.is_constant(read) for read in op.inputs):
        raise NoKernelError("one side is a constant")
    for read in op.inputs:
        low.grid(read)
    chain, clip, relu = _activation(low, (op,))
    grid = low.output_grid(chain[-1].outputs[0])
    _add(low, f"quantized.{op.type.lower()}", chain, op.inputs, grid, clip, relu, {})


def _concat(low: Lowering, op: Op) -> None:
    if any(low.is_constant(read) for read in op.inputs):
        raise NoKernelError("one part is a constant")
    for read in op.inputs:
        low.grid(read)
    grid = low.output_grid(op.outputs[0])
    _add(low, "quantized.cat", (op,), op.inputs, grid, None, False, {"dim": op.attributes["axis"]})


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
    _add(low, "clamp", (op,), op.inputs[:1], grid, _bounds(low, op), False, {})


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
    _add(low, f"quantized.{name}", (op,), op.inputs, grid, None, False, attributes)


def _built_in(name: str, output: tuple[float, int]) -> Maker:
    """Kernels with one output grid: scale and zero point."""

    def make(low: Lowering, op: Op) -> None:
        low.grid(op.inputs[0])
        grid = low.output_grid(op.outputs[0])
        if (float(grid.scale), int(grid.zero_point)) != output:
            raise NoKernelError(f"torch's kernel gives scale {output[0]} and zero point {output[1]}, nothing else")
        if op.type == "HardSigmoid" and abs(op.attributes.get("alpha", 0.2) - 1 / 6) > 1e-6:
            raise NoKernelError("torch's kernel has slope 1/6")
        _add(low, name, (op,), op.inputs, grid, None, False, {})

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
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Elu": _unary,
    "Gemm": _gemm,
    "GlobalAveragePool": _average_pool,
    "HardSigmoid": _built_in("aten.hardsigmoid", _SIGMOID_GRID),
    "HardSwish": _unary,
    "LeakyRelu": _unary,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _pair,
    "Pad": _pad,
    "Resize": _resize,
    "Sigmoid": _built_in("quantized.sigmoid", _SIGMOID_GRID),
    "Tanh": _built_in("aten.tanh", _TANH_GRID),
}
"""By ONNX operation type."""


def _shape(low: Lowering, read: Read | None) -> tuple[int, ...]:
    if read is None or not low.is_constant(read):
        raise NoKernelError("its weight is computed")
    return low.graph.constants[read.tensor].shape
