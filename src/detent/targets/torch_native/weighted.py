"""Makers for the operations with weights that torch has integer kernels for: convolutions and linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from detent.ir import Op, Operand
from detent.ir.qparams import BOUNDS
from detent.targets.torch_native.calls import activation_of, add_call
from detent.targets.torch_native.lowering import NoKernelError, TorchLowering

__all__ = ["conv", "conv_transpose", "gemm", "matmul"]


def conv(low: TorchLowering, op: Op) -> None:
    x = op.inputs[0]
    low.grid(x)
    rank = len(_shape(low, op.inputs[1])) - 2
    pads = op.attribute("pads", rank)
    if pads[:rank] != pads[rank:] or op.attribute("auto_pad") not in ("NOTSET", "VALID"):
        raise NoKernelError("torch's kernels pad both sides alike")
    if rank > 2:
        raise NoKernelError("Detent drives torch's kernels for one and two dimensions")
    attributes = {
        "strides": op.attribute("strides", rank),
        "padding": pads[:rank],
        "dilations": op.attribute("dilations", rank),
        "groups": op.groups,
    }
    _weighted(low, f"conv{rank}d", (op,), x, op.inputs[1], op.inputs[2:], axis=0, attributes=attributes)


def conv_transpose(low: TorchLowering, op: Op) -> None:
    x, weight = op.inputs[0], op.inputs[1]
    low.grid(x)
    rank = len(_shape(low, weight)) - 2
    pads = op.attribute("pads", rank)
    if pads[:rank] != pads[rank:] or "output_shape" in op.attributes or op.attribute("auto_pad") != "NOTSET":
        raise NoKernelError("torch's kernels cut both sides alike")
    if rank != 2:
        raise NoKernelError("Detent drives torch's transposed kernel for two dimensions")
    if weight is not None and weight.encoding is not None and not weight.encoding.per_tensor:
        raise NoKernelError("torch's transposed kernel takes weights with one scale")
    attributes = {
        "strides": op.attribute("strides", rank),
        "padding": pads[:rank],
        "output_padding": op.attribute("output_padding", rank),
        "dilations": op.attribute("dilations", rank),
        "groups": op.groups,
    }
    _weighted(low, f"conv_transpose{rank}d", (op,), x, weight, op.inputs[2:], axis=1, attributes=attributes)


def gemm(low: TorchLowering, op: Op) -> None:
    low.grid(op.inputs[0])
    if [op.attribute(name) for name in ("transA", "transB", "alpha", "beta")] != [0, 1, 1.0, 1.0]:
        raise NoKernelError("torch's kernel computes x W' + b with W as (outputs, inputs)")
    _weighted(low, "linear", (op,), op.inputs[0], op.inputs[1], op.inputs[2:], axis=0)


def matmul(low: TorchLowering, op: Op) -> None:
    x, weight = op.inputs
    low.grid(x)
    ops: tuple[Op, ...] = (op,)
    turned = low.pending(weight)
    if turned is not None and turned.attribute("perm", 2) == [1, 0]:
        weight, ops = turned.inputs[0], (turned, op)
    elif weight is None or not low.is_constant(weight):
        raise NoKernelError("torch multiplies two computed matrices in float")
    bias: tuple[Operand | None, ...] = ()
    add = low.behind(op, ("Add",))
    if add is not None and low.is_constant(add.inputs[1]) and _is_bias(low, add.inputs[1], weight, turned is not None):
        ops, bias = (*ops, add), (add.inputs[1],)
    _weighted(low, "linear", ops, x, weight, bias, axis=0 if turned is not None else 1)


def _is_bias(low: TorchLowering, bias: Operand | None, weight: Operand | None, turned: bool) -> bool:
    shape = _shape(low, weight)
    return _shape(low, bias) == (shape[0 if turned else 1],)


def _weighted(
    low: TorchLowering,
    kernel: str,
    ops: tuple[Op, ...],
    x: Operand | None,
    weight: Operand | None,
    bias: tuple[Operand | None, ...],
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
    chain, clamp, relu = activation_of(low, ops)
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
    add_call(low, f"quantized.{kernel}", chain, (x,), grid, clamp, relu, attributes or {}, constants)


def _shape(low: TorchLowering, read: Operand | None) -> tuple[int, ...]:
    if read is None or not low.is_constant(read):
        raise NoKernelError("its weight is computed")
    return low.graph.constants[read.tensor].shape
