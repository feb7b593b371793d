"""Any .tflite file on 8-bit or 16-bit codes as the network that the twin interprets: ONNX operations with channels
second.

Tensors keep their names. Where a file counts on the order of channels last, as before a linear layer, a Transpose says
so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from detent.errors import DeployError
from detent.ir import Network, Op, Operand
from detent.targets.litert.file.container import Operator, TfliteModel, read_tflite
from detent.targets.litert.file.kernels import SHORT_SUMS
from detent.targets.litert.file.other_kernels import refuse_other_kernels
from detent.targets.litert.file.translation import FROM_LAST, TO_LAST, Translation

__all__ = ["network_of", "read_network"]


def read_network(content: bytes) -> Network:
    """The network of a .tflite file."""
    return network_of(read_tflite(content))


def network_of(model: TfliteModel) -> Network:
    """The network of a file that was read. It takes and gives codes where the file does."""
    translation = Translation(model)
    for operator in model.operators:
        if operator.kind not in _READERS:
            raise DeployError(
                f"read {operator.kind} of a .tflite file",
                f"it makes {translation.names[operator.outputs[0]]!r}, and the twin does not interpret it",
                f"operators that are read: {', '.join(sorted(_READERS))}",
            )
        refuse_other_kernels(model, operator)
        _READERS[operator.kind](translation, operator)
    return translation.graph()


def _conv(t: Translation, operator: Operator) -> None:
    x, w = operator.inputs[:2]
    depthwise = operator.kind == "DEPTHWISE_CONV_2D"
    weight = t.weight(w, (3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    kernel = [int(size) for size in t.constants[weight.tensor].shape[2:]]
    channels = t.tensor(x).shape[3]
    group = channels if depthwise else channels // t.tensor(w).shape[3]
    dilations = [int(operator.options.get(name, 1)) or 1 for name in ("dilationHFactor", "dilationWFactor")]
    # What the file says, where of two ways to add up the twin would take the one that Detent writes.
    biases = [t.tensor(index) for index in operator.inputs[2:] if index >= 0]
    sums = {SHORT_SUMS: any(b.dtype == "int32" for b in biases)} if t.tensor(x).dtype == "int16" else {}
    t.emit(
        "Conv",
        operator,
        t.read(x),
        weight,
        *t.bias(operator),
        kernel_shape=kernel,
        group=group,
        dilations=dilations,
        **sums,
        **t.window(operator),
    )


def _conv_transpose(t: Translation, operator: Operator) -> None:
    _, w, x = operator.inputs[:3]
    weight = t.weight(w, (3, 0, 1, 2))
    kernel = [int(size) for size in t.constants[weight.tensor].shape[2:]]
    strides = t.window(operator)["strides"]
    sizes, given = t.tensor(x).shape[1:3], t.tensor(operator.outputs[0]).shape[1:3]
    total = [s * (i - 1) + k - o for s, i, k, o in zip(strides, sizes, kernel, given, strict=True)]
    pads = [*(t // 2 for t in total), *(t - t // 2 for t in total)]
    t.emit(
        "ConvTranspose",
        operator,
        t.read(x),
        weight,
        *t.bias(operator, 3),
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
    )


def _fully_connected(t: Translation, operator: Operator) -> None:
    x, w = operator.inputs[:2]
    read = t.in_file_order(x)
    if operator.options.get("keepNumDims"):
        name = t.names[operator.outputs[0]]
        weight = t.weight(w, (1, 0))
        bias = t.bias(operator)
        if not bias:
            t.emit("MatMul", operator, read, weight)
            return
        t.ops.append(Op("MatMul", f"{name}.MatMul", (read, weight), (f"{name}_product",)))
        t.emit("Add", operator, Operand(f"{name}_product"), *bias)
        return
    if t.rank(x) != 2:
        read = t.reshaped(read, f"{read.tensor}_rows", [-1, t.tensor(w).shape[1]])
    t.emit("Gemm", operator, read, t.weight(w, (0, 1)), *t.bias(operator), transB=1)


def _reshape(t: Translation, operator: Operator) -> None:
    x, y = operator.inputs[0], operator.outputs[0]
    name, shape = t.names[y], list(t.tensor(y).signature)
    if shape and shape[0] == 1 and -1 not in shape and t.tensor(x).signature[0] == -1:
        shape[0] = -1
    read = t.in_file_order(x)
    if len(shape) != 4:
        t.reshaped(read, name, shape)
    elif shape[3] == 1 or shape[1] * shape[2] == 1:
        t.reshaped(read, name, [shape[axis] for axis in FROM_LAST])
    else:
        made = t.reshaped(read, f"{name}_channels_last", shape)
        t.ops.append(Op("Transpose", f"{name}.Transpose", (made,), (name,), {"perm": list(FROM_LAST)}))


def _pool(t: Translation, operator: Operator) -> None:
    kind = "MaxPool" if operator.kind == "MAX_POOL_2D" else "AveragePool"
    kernel = [int(operator.options["filterHeight"]), int(operator.options["filterWidth"])]
    t.emit(kind, operator, t.read(operator.inputs[0]), kernel_shape=kernel, **t.window(operator))


def _mean(t: Translation, operator: Operator) -> None:
    x, rank = operator.inputs[0], t.rank(operator.inputs[0])
    axes = [axis % rank for axis in t.integers(operator.inputs[1])]
    keep = bool(operator.options.get("keepDims"))
    read = t.read(x)
    if rank == 4 and (keep or set(axes) == {1, 2}):
        axes = [TO_LAST[axis] for axis in axes]
    else:
        read = t.in_file_order(x)
    held = t.constant(f"{t.names[operator.outputs[0]]}_axes", np.array(sorted(axes), np.int64), None)
    t.emit("ReduceMean", operator, read, held, keepdims=int(keep))


def _softmax(t: Translation, operator: Operator) -> None:
    x = operator.inputs[0]
    t.emit("Softmax", operator, t.read(x), axis=1 if t.rank(x) == 4 else -1)


def _concat(t: Translation, operator: Operator) -> None:
    rank = t.rank(operator.outputs[0])
    axis = int(operator.options["axis"]) % rank
    axis = TO_LAST[axis] if rank == 4 else axis
    t.emit("Concat", operator, *(t.read(index) for index in operator.inputs), axis=axis)


def _pad(t: Translation, operator: Operator) -> None:
    x, table = operator.inputs[:2]
    amounts = np.array(t.integers(table)).reshape(-1, 2)
    if t.rank(x) == 4:
        amounts = amounts[list(FROM_LAST)]
    name = t.names[operator.outputs[0]]
    pads = t.constant(f"{name}_pads", amounts.T.reshape(-1).astype(np.int64), None)
    t.emit("Pad", operator, t.read(x), pads)


def _strided_slice(t: Translation, operator: Operator) -> None:
    x, rank = operator.inputs[0], t.rank(operator.inputs[0])
    if any(operator.options.get(mask) for mask in ("ellipsisMask", "newAxisMask", "shrinkAxisMask", "offset")):
        raise DeployError("read STRIDED_SLICE of a .tflite file", "it changes the number of axes", "reshape instead")
    begin, end, step = (t.integers(index) for index in operator.inputs[1:4])
    name, ends = t.names[operator.outputs[0]], (operator.options["beginMask"], operator.options["endMask"])
    cuts = [
        (axis, 0 if ends[0] >> axis & 1 else begin[axis], 2**31 - 1 if ends[1] >> axis & 1 else end[axis], step[axis])
        for axis in range(rank)
    ]
    places = [(TO_LAST[axis] if rank == 4 else axis, *cut) for axis, *cut in cuts]
    axes, *others = zip(*places, strict=True)
    reads = [
        t.constant(f"{name}_{part}", np.array(values, np.int64), None)
        for part, values in zip(("starts", "ends", "axes", "steps"), (*others[:2], axes, others[2]), strict=True)
    ]
    t.emit("Slice", operator, t.read(x), *reads)


def _transpose(t: Translation, operator: Operator) -> None:
    x, rank = operator.inputs[0], t.rank(operator.inputs[0])
    order = t.integers(operator.inputs[1])
    if rank == 4:  # of what channels last would be, back to channels second
        order = [TO_LAST[order[axis]] for axis in FROM_LAST]
    t.emit("Transpose", operator, t.read(x), perm=order)


def _resize(t: Translation, operator: Operator) -> None:
    x, y = operator.inputs[0], operator.outputs[0]
    half, align = bool(operator.options.get("halfPixelCenters")), bool(operator.options.get("alignCorners"))
    sizes = t.constant(f"{t.names[y]}_scales", np.array(_scales(t, x, y), np.float32), None)
    linear = operator.kind == "RESIZE_BILINEAR"
    where = "align_corners" if align else "half_pixel" if half else "asymmetric"
    if not linear and align:
        raise DeployError("read RESIZE_NEAREST_NEIGHBOR", "it aligns corners", "give one that does not")
    how = {} if linear else {"nearest_mode": "round_prefer_ceil" if half else "floor"}
    t.emit(
        "Resize",
        operator,
        t.read(x),
        None,
        sizes,
        mode="linear" if linear else "nearest",
        coordinate_transformation_mode=where,
        **how,
    )


def _leaky_relu(t: Translation, operator: Operator) -> None:
    t.emit("LeakyRelu", operator, t.read(operator.inputs[0]), alpha=float(operator.options["alpha"]))


def _gelu(t: Translation, operator: Operator) -> None:
    way = "tanh" if operator.options.get("approximate") else "none"
    t.emit("Gelu", operator, t.read(operator.inputs[0]), approximate=way)


def _clip(t: Translation, operator: Operator) -> None:
    t.clip(t.names[operator.outputs[0]], t.read(operator.inputs[0]), _CLIPS[operator.kind])


def _plain(t: Translation, operator: Operator) -> None:
    """An operation with the same inputs and no options."""
    inputs = [None if index < 0 else t.read(index) for index in operator.inputs]
    t.emit(_PLAIN[operator.kind], operator, *inputs)


def _scales(t: Translation, x: int, y: int) -> list[float]:
    before, behind = t.tensor(x).shape, t.tensor(y).shape
    return [1.0, 1.0, behind[1] / before[1], behind[2] / before[2]]


_CLIPS = {"RELU": (0.0, np.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
_PLAIN = {
    "ADD": "Add",
    "BATCH_MATMUL": "MatMul",
    "DEQUANTIZE": "Identity",
    "ELU": "Elu",
    "HARD_SWISH": "HardSwish",
    "LOGISTIC": "Sigmoid",
    "MUL": "Mul",
    "QUANTIZE": "Identity",
    "SUB": "Sub",
    "TANH": "Tanh",
}
_READERS: dict[str, Callable[[Translation, Operator], None]] = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_CLIPS, _clip),
    "AVERAGE_POOL_2D": _pool,
    "CONCATENATION": _concat,
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _conv,
    "FULLY_CONNECTED": _fully_connected,
    "GELU": _gelu,
    "LEAKY_RELU": _leaky_relu,
    "MAX_POOL_2D": _pool,
    "MEAN": _mean,
    "PAD": _pad,
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "SOFTMAX": _softmax,
    "SQUEEZE": _reshape,
    "STRIDED_SLICE": _strided_slice,
    "TRANSPOSE": _transpose,
    "TRANSPOSE_CONV": _conv_transpose,
}
