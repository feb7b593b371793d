"""Convolutions, transposed convolutions and fully connected layers: the ones that ncnn runs on integers.

What an integer layer holds next to its codes are factors, `1 / scale`: `int8_scale_term` (parameter 8) says that they
are there, and above 100 that the layer gives int8 for the next one, with one more factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Network, Op, is_output
from detent.targets.ncnn.file.lowering import ONE_SAMPLE, Dims, NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value
from detent.targets.ncnn.file.pointwise import finite_bounds

__all__ = ["FUSED", "conv", "conv_transpose", "gemm", "is_linear", "linear", "requantized"]

Array = npt.NDArray[Any]

FUSED = {"Relu": 1, "LeakyRelu": 2, "Clip": 3, "Sigmoid": 4, "Mish": 5, "HardSwish": 6}
"""Functions that a layer takes in, as parameter 9 names them."""

_GREATEST = 127
"""ncnn's codes are -127 to 127: it saturates there, whatever the scale."""


@dataclass(frozen=True, eq=False)
class _Weights:
    """Output channels first. `factors` (one for each channel) and `input_factor` are None in a float layer."""

    values: Array
    bias: Array | None
    factors: npt.NDArray[np.float32] | None = None
    input_factor: np.float32 | None = None

    @property
    def arrays(self) -> list[Array]:
        """The arrays in the order of the `.bin`; factors are those of every output channel."""
        held: list[Array] = [self.values.ravel()]
        if self.bias is not None:
            held.append(self.bias)
        if self.factors is not None and self.input_factor is not None:
            held += [self.factors, np.array([self.input_factor])]
        return held


def conv(low: NcnnLowering, op: Op) -> None:
    """Conv of 1, 2 or 3 dimensions; one whose scales differ within a group is cut into its groups."""
    weights = _weights(low, op, out_axis=0)
    rank, group = weights.values.ndim - 2, op.groups
    if rank > 3 or (rank == 3 and weights.factors is not None):
        refuse(
            op, f"ncnn has no integer convolution of {rank} dimensions", "leave it in float: exclude it in the recipe"
        )
    params = _geometry(op, weights.values.shape[2:])
    output, activation = _activation(low, op)
    params |= activation
    source = low.view(low.data(op), _conv_dims(low, op, low.data(op)))
    out_dims = _conv_dims(low, op, output)
    if group > 1 and weights.factors is not None and not _even(weights.factors, group):
        _conv_by_group(low, op, source, weights, params, output, out_dims)
        return
    arrays = weights.arrays
    params |= {0: len(weights.values), 5: int(weights.bias is not None), 6: weights.values.size}
    if group > 1:
        params[7] = group
    if weights.factors is not None:
        following = requantized(low.graph, output) if rank == 2 else None
        params[8] = (1 if group > 1 else 2) + (100 if following is not None else 0)
        arrays[-2] = weights.factors[:: len(weights.factors) // group] if group > 1 else weights.factors
        if following is not None:
            arrays.append(np.array([_factor(following.scale)]))
    type_ = ("ConvolutionDepthWise" if group > 1 else "Convolution") + ("3D" if rank == 3 else "")
    low.layer(type_, op, [source], params, arrays, output=output, dims=out_dims)


def _conv_by_group(
    low: NcnnLowering,
    op: Op,
    source: str,
    weights: _Weights,
    params: Mapping[int, Value],
    output: str,
    out_dims: Dims,
) -> None:
    """ncnn has one weight scale for a group: a group whose channels have several is a convolution of its own."""
    group, factors = op.groups, weights.factors
    assert factors is not None
    assert weights.input_factor is not None
    each, taken = len(weights.values) // group, weights.values.shape[1]
    inputs = [f"{output}:in{index}" for index in range(group)]
    outputs = [f"{output}:out{index}" for index in range(group)]
    low.part("Slice", op, "slice", [source], inputs, {0: (taken,) * group, 1: 0})
    for index in range(group):
        mine = slice(index * each, (index + 1) * each)
        held = _Weights(
            weights.values[mine],
            None if weights.bias is None else weights.bias[mine],
            factors[mine],
            weights.input_factor,
        )
        own = {0: each, 5: int(held.bias is not None), 6: held.values.size, 8: 2}
        low.part("Convolution", op, f"group{index}", [inputs[index]], [outputs[index]], {**params, **own}, held.arrays)
    low.layer("Concat", op, outputs, {0: 0}, output=output, dims=out_dims)


def conv_transpose(low: NcnnLowering, op: Op) -> None:
    """ConvTranspose of 1 or 2 dimensions, in float."""
    read, values = op.inputs[0], low.constant(op.inputs[1])
    if read is not None and read.encoding is not None:
        refuse(op, "ncnn has no integer transposed convolution", "leave it in float")
    if values is None or values.ndim not in (3, 4):
        refuse(op, "its weights are computed, or not of 1 or 2 dimensions", "give constant weights")
    group = op.groups
    taken, each = values.shape[:2]
    # ONNX keeps the input channels first, ncnn the output channels, within each group.
    arranged = values.reshape(group, taken // group, each, *values.shape[2:]).swapaxes(1, 2)
    bias = _bias(low, op)
    extra = (0, *op.attribute("output_padding", values.ndim - 2))
    params = _geometry(op, values.shape[2:]) | {18: extra[-1], 19: extra[-2]}
    output, activation = _activation(low, op)
    params |= activation | {0: each * group, 5: int(bias is not None), 6: values.size}
    if group > 1:
        params[7] = group
    source = low.view(low.data(op), _conv_dims(low, op, low.data(op)))
    arrays = _Weights(np.ascontiguousarray(arranged, np.float32), bias).arrays
    type_ = "DeconvolutionDepthWise" if group > 1 else "Deconvolution"
    low.layer(type_, op, [source], params, arrays, output=output, dims=_conv_dims(low, op, output))


def gemm(low: NcnnLowering, op: Op) -> None:
    """Gemm with constant weights: what a linear layer is."""
    plain = op.attribute("alpha") == 1.0 and op.attribute("beta") == 1.0
    if not plain or op.attribute("transA"):
        refuse(op, "it has alpha, beta or transA", "fold the factors into the weights")
    _fully_connected(low, op, _weights(low, op, out_axis=0 if op.attribute("transB") else 1), op.outputs[0])


def is_linear(low: NcnnLowering, op: Op) -> bool:
    """Whether a MatMul has a constant matrix on its right."""
    held = low.constant(op.inputs[1])
    return held is not None and held.ndim == 2


def linear(low: NcnnLowering, op: Op) -> None:
    """MatMul with a constant matrix, and the bias that is added to it."""
    weights, output = _weights(low, op, out_axis=1, has_bias=False), op.outputs[0]
    after = low.only_reader(output)
    if after is not None and after.type == "Add":
        other = next((read for read in after.inputs if read is not None and read.tensor != output), None)
        bias = low.constant(other)
        if bias is not None and bias.shape == (len(weights.values),):
            low.absorb(after)
            weights = _Weights(weights.values, bias.astype(np.float32), weights.factors, weights.input_factor)
            output = after.outputs[0]
    _fully_connected(low, op, weights, output)


def _fully_connected(low: NcnnLowering, op: Op, weights: _Weights, output: str) -> None:
    given, taken = weights.values.shape
    rows = int(np.prod(low.shape(low.data(op))[:-1]))
    output, params = _activation(low, op, output)
    params |= {0: given, 1: int(weights.bias is not None), 2: weights.values.size}
    if weights.factors is not None:
        params[8] = 2
    # ncnn runs a layer with more than one row as many; one row is a vector to it.
    dims, out_dims = ((taken,), (given,)) if rows == 1 else ((rows, taken), (rows, given))
    source = low.view(low.data(op), dims)
    low.layer("InnerProduct", op, [source], params, weights.arrays, output=output, dims=out_dims)


# --- weights and parameters ---


def _weights(low: NcnnLowering, op: Op, *, out_axis: int, has_bias: bool = True) -> _Weights:
    """The weights of an operation: codes if it reads codes, otherwise real numbers."""
    data, weight = op.inputs[:2]
    real = low.constant(weight)
    if data is None or weight is None or real is None:
        refuse(op, "its weights are computed", "give constant weights")
    bias = _bias(low, op) if has_bias else None
    if data.encoding is None:
        return _Weights(np.ascontiguousarray(np.moveaxis(real, out_axis, 0), np.float32), bias)
    reads, encoding = data.encoding, weight.encoding
    if encoding is None:
        refuse(op, "its input is quantized and its weights are not", "quantize both, or none")
    if not (reads.per_tensor and reads.symmetric and (reads.qmin, reads.qmax) == (-_GREATEST, _GREATEST)):
        refuse(
            op,
            f"it reads {data.tensor!r} with codes {reads.qmin} to {reads.qmax} and zero point {reads.zero_point}",
            f"ncnn has one scale, no zero point and codes -{_GREATEST} to {_GREATEST}",
        )
    codes = np.moveaxis(low.graph.constants[weight.tensor], out_axis, 0)
    if not encoding.symmetric or encoding.axis not in (None, out_axis) or encoding.block is not None:
        refuse(op, "its weights have a zero point, or scales along another axis", "one scale for each output channel")
    if np.abs(codes).max(initial=0) > _GREATEST:
        refuse(op, f"codes of {weight.tensor!r} are outside of -{_GREATEST} to {_GREATEST}", "use a narrow grid")
    factors = (np.float32(1) / np.broadcast_to(encoding.scale, (len(codes),))).astype(np.float32)
    return _Weights(np.ascontiguousarray(codes, np.int8), bias, factors, _factor(reads.scale))


def _factor(scale: npt.NDArray[np.float32]) -> np.float32:
    found: np.float32 = np.float32(1) / np.float32(scale)
    return found


def _bias(low: NcnnLowering, op: Op) -> Array | None:
    read = op.optional(2)
    if read is None:
        return None
    held = low.constant(read)
    if held is None:
        refuse(op, f"its bias {read.tensor!r} is computed", "give a constant bias")
    return held.astype(np.float32).ravel()


def _even(scales: npt.NDArray[np.float32], group: int) -> bool:
    """Whether all channels of a group have one scale."""
    rows = scales.reshape(group, -1)
    return bool((rows == rows[:, :1]).all())


def requantized(graph: Network, tensor: str) -> Encoding | None:
    """The grid on which a convolution returns `tensor` as codes: the grid of all its readers, if these are 2-d integer
    convolutions written as one layer. None if it returns floats."""
    encoding = graph.grid_of(tensor)
    if encoding is None or is_output(graph, tensor):
        return None
    for op, read in graph.readers(tensor):
        weight = op.inputs[1] if op.type == "Conv" else None
        if op.inputs[0] is not read or weight is None or weight.encoding is None:
            return None
        codes, group = graph.constants[weight.tensor], op.groups
        scales = np.broadcast_to(weight.encoding.scale, (len(codes),))
        if codes.ndim != 4 or (group > 1 and not _even(scales, group)):
            return None
    return encoding


def _geometry(op: Op, kernel: tuple[int, ...]) -> dict[int, Value]:
    """Kernel, dilation, stride and padding. One of 1 dimension is one of 2 with a height of 1."""
    if op.attribute("auto_pad") not in ("NOTSET", "VALID"):
        refuse(op, f"auto_pad {op.attributes['auto_pad']!r}", "say the padding in numbers")
    rank = len(kernel)
    dilations = op.attribute("dilations", rank)
    strides = op.attribute("strides", rank)
    pads = op.attribute("pads", rank)
    before, behind = pads[:rank], pads[rank:]
    params: dict[int, Value] = {}
    for axis, keys in zip(
        range(rank - 1, -1, -1), ((1, 2, 3, 4, 15), (11, 12, 13, 14, 16), (21, 22, 23, 24, 17)), strict=False
    ):
        values = (kernel[axis], dilations[axis], strides[axis], before[axis], behind[axis])
        params |= dict(zip(keys, values, strict=True))
    if rank == 1:
        params |= {11: 1, 12: 1, 13: 1, 14: 0, 16: 0}
    return params


def _conv_dims(low: NcnnLowering, op: Op, tensor: str) -> Dims:
    shape = low.shape(tensor)
    if shape[0] != 1:
        refuse(op, f"{tensor!r} has {shape[0]} samples for one of the network", ONE_SAMPLE)
    return (shape[1], 1, shape[2]) if len(shape) == 3 else shape[1:]


def _activation(low: NcnnLowering, op: Op, output: str | None = None) -> tuple[str, dict[int, Value]]:
    """The output of the layer, and the parameters of the activation function fused into it, if there is one."""
    tensor = op.outputs[0] if output is None else output
    after = low.only_reader(tensor)
    if after is None or after.inputs[0] is None or after.inputs[0].tensor != tensor:
        return tensor, {}
    if after.type not in FUSED:
        return tensor, {}
    numbers: tuple[float, ...] = ()
    if after.type == "LeakyRelu":
        numbers = (float(after.attribute("alpha")),)
    elif after.type == "Clip":
        numbers = finite_bounds(low, after)
    elif after.type == "HardSwish":
        numbers = (1 / 6, 0.5)
    low.absorb(after)
    return after.outputs[0], {9: FUSED[after.type], **({10: numbers} if numbers else {})}
