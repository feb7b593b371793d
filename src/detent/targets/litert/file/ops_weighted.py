"""Convolutions, linear layers and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Op, Operand
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.kernels import has_short_sums, is_wide
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, refusal
from detent.targets.litert.file.numbers import bias_codes, weight_codes
from detent.targets.litert.file.padding import SAME, VALID, Pads, explicit_pads, padded, same_pads
from detent.targets.litert.file.schema import code_of, schema
from detent.targets.litert.file.signals import each, give, image

__all__ = ["WEIGHTED"]

Array = npt.NDArray[Any]

ACTIVATIONS = {"NONE": 0, "RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}


def _weight(
    low: TfliteLowering, op: Op, read: Operand, order: Sequence[int], encoding: Encoding | None, *, int4: bool = True
) -> tuple[Array, Encoding | None]:
    """A constant weight with its axes in `order`: codes and their encoding for integers, else real numbers. `int4` if
    the operator has a kernel for weights of four bits."""
    if encoding is None:
        real = low.values(read)
        if real is None:
            raise refusal(op, f"the weight {read.tensor!r} is computed")
        return real.transpose(order), None
    assert read.encoding is not None
    codes, held = weight_codes(low.graph.constants[read.tensor], read.encoding, read.tensor, int4=int4)
    if held.axis is None:
        return codes.transpose(order), held
    axis = tuple(order).index(held.axis % codes.ndim)
    return codes.transpose(order), Encoding(held.scale, held.zero_point, held.dtype, axis)


def _bias(
    low: TfliteLowering,
    node: TfliteNode,
    read: Operand | None,
    channels: int,
    x: Operand,
    weight: Encoding | None,
    *,
    of: Array | None = None,
) -> int:
    """A bias of one number per channel; on integers those of the accumulator's scale, which is sx * sw. `of` are the
    weights, out channels first, of an operator that adds up 16-bit codes in 32 bits if its bias has 32."""
    name = f"{node.main.name}.bias" if read is None else read.tensor
    values = np.zeros(channels, np.float32) if read is None else low.values(read)
    if values is None:
        raise refusal(node.main, f"the bias {name!r} is computed")
    values = np.broadcast_to(values.reshape(-1), (channels,))
    if weight is None:
        return low.constant(name, values.astype(np.float32))
    wide = is_wide(low.encoding(x))
    scale = np.asarray(low.encoding(x).scale * weight.scale, np.float32)
    encoding = Encoding(scale, np.zeros(scale.shape, np.int64), "int32", 0 if scale.ndim else None)
    if read is not None and read.encoding is not None and _same_scale(read.encoding, scale, channels):
        codes = np.broadcast_to(low.graph.constants[read.tensor].reshape(-1), (channels,))
    else:
        codes = bias_codes(values, np.broadcast_to(scale, (channels,)), name, wide=wide)
    short = not wide or (low.short_sums and of is not None and has_short_sums(of, codes))
    return low.constant(name, codes.astype(np.int32 if short else np.int64), encoding)


def _same_scale(encoding: Encoding, scale: npt.NDArray[np.float32], channels: int) -> bool:
    held = np.broadcast_to(encoding.scale.reshape(-1), (channels,))
    return encoding.symmetric and np.allclose(held, np.broadcast_to(scale, (channels,)), rtol=1e-6, atol=0)


def _operands(op: Op) -> tuple[Operand, Operand, Operand | None]:
    """The data, the weight and the bias."""
    x, w = op.reads[:2]
    return x, w, op.optional(2)


def conv(low: TfliteLowering, node: TfliteNode) -> None:
    op = node.main
    x, w, bias = _operands(op)
    spatial = low.rank(x.tensor) - 2
    if spatial not in (1, 2):
        raise refusal(op, f"it has {spatial} spatial axes, and only convolutions with 1 or 2 are written")
    encoding = low.integer_output(node, x, weight=w)
    integer = encoding is not None
    group = op.groups
    shape = low.shape(w.tensor)
    depthwise = group > 1 and shape[1] == 1 and group == low.shape(x.tensor)[1]
    order = (1, *range(2, 2 + spatial), 0) if depthwise else (0, *range(2, 2 + spatial), 1)
    # Of depthwise convolutions on 16 bits LiteRT takes two weights in a byte for one.
    int4 = not (depthwise and encoding is not None and is_wide(encoding))
    weight, held = _weight(low, op, w, order, encoding, int4=int4)
    if spatial == 1:
        weight, held = weight[:, None], _moved(held)
    strides, dilations = each(op, "strides", spatial), each(op, "dilations", spatial)
    index = image(low, low.take(x, last=True, integer=integer), spatial)
    index, padding = _padding(low, op, index, shape[2:], strides, dilations)
    bias_index = _bias(low, node, bias, shape[0], x, held, of=None if depthwise else weight)
    inputs = [index, low.constant(w.tensor, weight, held), bias_index]
    options: dict[str, Any] = {
        "padding": padding,
        "strideH": strides[0],
        "strideW": strides[1],
        "dilationHFactor": dilations[0],
        "dilationWFactor": dilations[1],
        "fusedActivationFunction": ACTIVATIONS[node.activation],
    }
    if encoding is not None and is_wide(encoding) and low.tensors[bias_index].dtype == "int32":
        options["quantizedBiasType"] = code_of(schema().TensorType, "INT32")
    kind = "CONV_2D"
    if depthwise:
        kind, options["depthMultiplier"] = "DEPTHWISE_CONV_2D", shape[0] // group
    give(low, node, kind, inputs, options, encoding, spatial)


def _moved(encoding: Encoding | None) -> Encoding | None:
    """The encoding of a weight that got a row axis behind its first."""
    if encoding is None or not encoding.axis:
        return encoding
    return Encoding(encoding.scale, encoding.zero_point, encoding.dtype, encoding.axis + 1)


def _padding(
    low: TfliteLowering, op: Op, index: int, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, int]:
    """The tensor, padded if LiteRT's own padding will not do, and that. `kernel` has one number for a signal."""
    sizes = low.tensors[index].shape[1:3]
    pads: Pads = explicit_pads(op, sizes[-len(kernel) :], kernel)
    if len(kernel) == 1:
        pads, kernel = ((0, 0), *pads), [1, *kernel]
    if not any(map(any, pads)):
        return index, VALID
    if pads == same_pads(sizes, kernel, strides, dilations):
        return index, SAME
    return padded(low, index, pads), VALID


def conv_transpose(low: TfliteLowering, node: TfliteNode) -> None:
    op = node.main
    x, w, bias = _operands(op)
    spatial = low.rank(x.tensor) - 2
    strides = [int(value) for value in op.attribute("strides", spatial)]
    dilations = [int(value) for value in op.attribute("dilations", spatial)]
    if spatial != 2 or op.groups != 1 or any(d != 1 for d in dilations):
        raise refusal(op, "LiteRT's transposed convolution is that of images, without groups or dilation")
    encoding = low.integer_output(node, x, weight=w)
    weight, held = _weight(low, op, w, (1, 2, 3, 0), encoding, int4=False)
    channels, *kernel = weight.shape[:3]
    sizes, given = low.shape(x.tensor)[2:], low.shape(node.output)[2:]
    full = [stride * (size - 1) + k for size, stride, k in zip(sizes, strides, kernel, strict=True)]
    before = [int(value) for value in op.attribute("pads", spatial)[:2]]
    after = [total - first - kept for total, first, kept in zip(full, before, given, strict=True)]
    if any(value < 0 for value in after):
        raise refusal(op, "its output padding is larger than its padding")
    low.fixed_batch = True  # the size of the output is a constant that holds the batch
    # XNNPACK leaves "same" with a stride longer than the kernel to LiteRT's own kernel.
    reached = all(k >= stride for k, stride in zip(kernel, strides, strict=True))
    same = reached and same_pads(given, kernel, strides, (1, 1)) == tuple(zip(before, after, strict=True))
    made_sizes = tuple(given) if same else tuple(full)
    inputs = [
        low.integers("output_shape", (1, *made_sizes, channels)),
        low.constant(w.tensor, weight, held),
        low.take(x, last=True, integer=encoding is not None),
        _bias(low, node, bias, channels, x, held),
    ]
    options = {"padding": SAME if same else VALID, "strideH": strides[0], "strideW": strides[1]}
    if made_sizes == tuple(given):
        low.emit("TRANSPOSE_CONV", inputs, [low.make(node.output, Variant(encoding, True))], **options)
        return
    whole = low.add(f"{node.output}_whole", (1, *made_sizes, channels), encoding=encoding)
    low.emit("TRANSPOSE_CONV", inputs, [whole], **options)
    begin, end = [0, *before, 0], [0, *(b + g for b, g in zip(before, given, strict=True)), channels]
    cut = [whole, *(low.integers(name, value) for name, value in (("begin", begin), ("end", end), ("step", [1] * 4)))]
    low.emit("STRIDED_SLICE", cut, [low.make(node.output, Variant(encoding, True))], beginMask=9, endMask=9)


def gemm(low: TfliteLowering, node: TfliteNode) -> None:
    op = node.main
    x, w, bias = _operands(op)
    if op.attribute("alpha") != 1.0 or op.attribute("beta") != 1.0 or op.attribute("transA"):
        raise refusal(op, "it scales or transposes its operands", "give a Gemm with alpha = beta = 1 and transA = 0")
    _fully_connected(low, node, x, w, bias, transposed=bool(op.attribute("transB")))


def matmul(low: TfliteLowering, node: TfliteNode) -> None:
    x, w = node.main.inputs
    assert x is not None
    assert w is not None
    if low.is_constant(w) and low.rank(w.tensor) == 2:
        _fully_connected(low, node, x, w, node.bias, transposed=False)
        return
    encoding = low.integer_output(node, x, w)
    operands = [low.take(read, last=False, integer=encoding is not None) for read in (x, w)]
    low.emit("BATCH_MATMUL", operands, [low.make(node.output, Variant(encoding))], adjX=False, adjY=False)


def _fully_connected(
    low: TfliteLowering,
    node: TfliteNode,
    x: Operand | None,
    w: Operand | None,
    bias: Operand | None,
    *,
    transposed: bool,
) -> None:
    assert x is not None
    assert w is not None
    encoding = low.integer_output(node, x, weight=w)
    order = (0, 1) if transposed else (1, 0)
    weight, held = _weight(low, node.main, w, order, encoding)
    if x.tensor in low.flattened:
        channels, *spatial = low.flattened[x.tensor]
        weight = weight.reshape(-1, channels, *spatial).transpose(0, 2, 3, 1).reshape(weight.shape)
    inputs = [
        low.take(x, last=False, integer=encoding is not None),
        low.constant(w.tensor, weight, held),
        _bias(low, node, bias, weight.shape[0], x, held),
    ]
    made = low.make(node.output, Variant(encoding))
    low.emit(
        "FULLY_CONNECTED",
        inputs,
        [made],
        fusedActivationFunction=ACTIVATIONS[node.activation],
        keepNumDims=low.rank(x.tensor) != 2,
    )


WEIGHTED: dict[str, Lowerer] = {"Conv": conv, "ConvTranspose": conv_transpose, "Gemm": gemm, "MatMul": matmul}
