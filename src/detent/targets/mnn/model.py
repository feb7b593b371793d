"""The float network for `mnnconvert`, rewritten to avoid bugs of MNN.

MNN runs an operation on codes as soon as it has a scale for all that it reads and gives. Some of those kernels are
wrong in MNN 3.6.1. On x86 and arm64: batch norms that stand alone, maxima and minima of two tensors, and resizes other
than the nearest are up to 220 steps off, absolute and negative numbers one step, and an average never counts its
padding. On x86: a max pool of negative numbers, and the last numbers of a ReLU that stands alone. Nothing switches a
kernel off, but a product with a constant has no scale: what stands between two of them is computed in float.

The converter is wrong too: it loses the weights of large matrix products, and gives out what a function makes of an
output instead of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from detent.errors import DeployError
from detent.ir import Network, Op, Operand
from detent.rewrites import float_network
from detent.targets.mnn.layers import PRODUCT
from detent.targets.mnn.scope import MnnScope, written
from detent.targets.mnn.windows import with_whole_windows

__all__ = ["mnn_network"]

Ops = Iterator[Op]

_FLOATS = np.finfo(np.float32)
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}

_FUNCTIONS = ("Clip", "LeakyRelu", "Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Sqrt", "HardSwish", "Gelu", "Erf")
"""What MNN may compute before a change of layout that stands before it."""


def mnn_network(graph: Network) -> Network:
    """The float network of a deployed one, rewritten for MNN; all tensors keep their names and values."""
    plain = float_network(graph).with_named_outputs()
    scope = MnnScope(plain, graph)
    ops = [made for name in plain.inputs for made in scope.made_of(name)]
    ops += [new for op in scope.network.ops for new in _written(scope, op)]
    return replace(plain, ops=tuple(ops), constants=scope.constants)


def _written(scope: MnnScope, op: Op) -> Ops:
    if any(read.encoding is not None for read in op.reads):
        yield op  # it dequantizes what the network is given as codes
        return
    if op.type in ("AveragePool", "MaxPool"):
        op = with_whole_windows(op, scope.sizes(op.input_names[0]))
    for new in _REWRITES.get(op.type, _unchanged)(scope, op):
        yield from _kept_from_codes(scope, new)
        yield from (made for name in new.outputs for made in scope.made_of(name))


def _kept_from_codes(scope: MnnScope, op: Op) -> Ops:
    """A sum or product that would be on another grid than in the network."""
    if op.outputs[0] in scope.kept_from_codes:
        yield from _without_scale(scope, op)
    else:
        yield op


def _without_scale(scope: MnnScope, op: Op) -> Ops:
    """No scale propagates back to the output of the operation, because its values come from another one."""
    made = replace(op, outputs=(f"{op.outputs[0]}.made", *op.outputs[1:]))
    yield made
    yield scope.same(made.outputs[0], op.outputs[0])


def _unchanged(_: MnnScope, op: Op) -> Ops:
    yield op


def _in_float(scope: MnnScope, op: Op, count: int) -> Ops:
    """The first `count` inputs doubled and the result halved: exact, and products that no converter removes."""
    output, inputs = op.outputs[0], list(op.input_names)
    for index, name in enumerate(inputs[:count]):
        inputs[index] = f"{output}.doubled.{index}"
        yield written("Mul", [name, scope.number(2)], inputs[index], inputs[index])
    reads = tuple(Operand(name) if name else None for name in inputs)
    doubled = replace(op, inputs=reads, outputs=(f"{output}.doubled", *op.outputs[1:]))
    yield doubled
    yield written("Mul", [doubled.outputs[0], scope.number(0.5)], output, f"{output}.halved")


def _arithmetic(scope: MnnScope, op: Op) -> Ops:
    """The converter removes operations that change nothing, and scales would propagate through."""
    first, second = (_is_one_number(scope, name, _NEUTRAL[op.type]) for name in op.input_names)
    if op.outputs[0] in scope.alone and (second or (first and op.type in ("Add", "Mul"))):
        yield scope.same(op.input_names[0 if second else 1], op.outputs[0])
    else:
        yield from _product(scope, op)


def _is_one_number(scope: MnnScope, name: str, value: float) -> bool:
    return name in scope.constants and scope.constants[name].size == 1 and bool(scope.constants[name] == value)


def _always_in_float(scope: MnnScope, op: Op) -> Ops:
    if any(name in scope.constants for name in op.input_names):
        yield op
    else:
        yield from _in_float(scope, op, len(op.input_names))


def _if_wrong(scope: MnnScope, op: Op) -> Ops:
    if op.outputs[0] not in scope.never_on_codes:
        yield op
    elif op.input_names[0] in scope.scaled:
        yield from _in_float(scope, op, 1)
    else:
        yield from _without_scale(scope, op)


def _relu(scope: MnnScope, op: Op) -> Ops:
    """A ReLU that is not fused becomes a clip, which has no integer kernel. After a matrix product it becomes a
    maximum: MNN would fuse it into the product under a name that cannot be predicted, and then find no scales for
    it."""
    if op.outputs[0] in scope.behind_products:
        yield written("Max", [op.input_names[0], scope.number(0)], op.outputs[0], op.name)
        return
    if op.outputs[0] not in scope.alone:
        yield op
        return
    bounds = [scope.number(0), scope.number(float(_FLOATS.max))]
    yield written("Clip", [op.input_names[0], *bounds], op.outputs[0], op.name)


def _clip(scope: MnnScope, op: Op) -> Ops:
    """After a matrix product it becomes a maximum and a minimum, for the same reason."""
    steps = [(kind, bound) for kind, bound in zip(("Max", "Min"), op.input_names[1:], strict=False) if bound]
    if op.outputs[0] not in scope.behind_products or not steps:
        yield op
        return
    read, output = op.input_names[0], op.outputs[0]
    for kind, bound in steps:
        given = output if (kind, bound) == steps[-1] else f"{output}.above"
        yield written(kind, [read, bound], given, given)
        read = given


def _product(scope: MnnScope, op: Op) -> Ops:
    """A large product, with the addition after it, becomes a 1x1 convolution."""
    unit = scope.product(op.outputs[0])
    if unit is None:
        yield op
        return
    if unit.output != op.outputs[0]:
        return  # it is written with the sum behind it
    head = scope.producer(unit.head.outputs[0])
    x, weight = head.input_names[:2]
    added = [name for name in (*head.input_names[2:], *op.input_names) if name in scope.constants and name != weight]
    matrix = scope.constants[weight]
    if head.type != "Gemm" or not head.attribute("transB"):
        matrix = matrix.T
    kernel = scope.constant(f"{unit.output}.kernel", np.ascontiguousarray(matrix)[..., None, None])
    places = scope.constant(f"{unit.output}.places", np.array([-1, matrix.shape[1], 1, 1], np.int64))
    product, rank = f"{unit.output}{PRODUCT}", scope.rank(x)
    yield written("Reshape", [x, places], f"{product}.in", f"{product}.in")
    yield written("Conv", [f"{product}.in", kernel, *added[:1]], product, product, kernel_shape=[1, 1])
    yield from _in_its_shape(scope, x, product, unit.output, rank, len(matrix))


def _in_its_shape(scope: MnnScope, x: str, product: str, output: str, rank: int | None, size: int) -> Ops:
    """The shape of `x`, with another size for the last axis."""
    last = scope.constant(f"{product}.size", np.array([size], np.int64))
    if rank == 2:
        shape = scope.constant(f"{product}.shape", np.array([-1, size], np.int64))
    else:
        shape = f"{product}.shape"
        bounds = [scope.constant(f"mnn.at.{at}", np.array([at], np.int64)) for at in (0, -1)]
        yield written("Shape", [x], f"{product}.sizes", f"{product}.sizes")
        yield written("Slice", [f"{product}.sizes", *bounds], f"{product}.outer", f"{product}.outer")
        yield written("Concat", [f"{product}.outer", last], shape, shape, axis=0)
    yield written("Reshape", [product, shape], output, f"{product}.out")


def _conv(scope: MnnScope, op: Op) -> Ops:
    """A convolution with small groups becomes one without groups, with zero weights between them."""
    if op.outputs[0] not in scope.dense:
        yield op
        return
    kernel, groups = scope.constants[op.input_names[1]], op.groups
    outputs, inputs = kernel.shape[0] // groups, kernel.shape[1]
    whole = np.zeros((kernel.shape[0], groups * inputs, *kernel.shape[2:]), kernel.dtype)
    for index in range(groups):
        rows = slice(index * outputs, (index + 1) * outputs)
        whole[rows, index * inputs : (index + 1) * inputs] = kernel[rows]
    reads = [op.input_names[0], scope.constant(f"{op.outputs[0]}.kernel", whole), *op.input_names[2:]]
    attributes = {name: value for name, value in op.attributes.items() if name != "group"}
    yield written("Conv", reads, op.outputs[0], op.name, **attributes)


def _batch_norm(scope: MnnScope, op: Op) -> Ops:
    """A multiplication and an addition of constants."""
    x, *parameters = op.input_names
    rank = scope.rank(x)
    if rank is None or not all(name in scope.constants for name in parameters):
        yield op
        return
    weight, bias, mean, variance = (scope.constants[name].astype(np.float64) for name in parameters)
    factor = weight / np.sqrt(variance + op.attribute("epsilon"))
    output, shape = op.outputs[0], (1, -1, *(1,) * (rank - 2))
    factors = scope.constant(f"{output}.factor", factor.reshape(shape).astype(np.float32))
    shifts = scope.constant(f"{output}.shift", (bias - mean * factor).reshape(shape).astype(np.float32))
    yield written("Mul", [x, factors], f"{output}.scaled", f"{output}.scaled")
    yield written("Add", [f"{output}.scaled", shifts], output, op.name)


def _average(scope: MnnScope, op: Op) -> Ops:
    for new in _if_wrong(scope, op):
        yield from _padded(scope, new) if new.type == "AveragePool" else (new,)


def _padded(scope: MnnScope, op: Op) -> Ops:
    """Padding that is included in the average."""
    pads, counted, ceil_mode = (op.attribute(name) for name in ("pads", "count_include_pad", "ceil_mode"))
    if not counted or not any(pads):
        yield op
        return
    if ceil_mode:
        raise DeployError(
            f"write AveragePool {op.label!r} for MNN",
            "it counts its padding and has windows that end outside of it; MNN never counts padding on integers",
            "count_include_pad=False or ceil_mode=False",
        )
    padded, half = f"{op.outputs[0]}.padded", len(pads) // 2
    sides = scope.constant(f"{padded}.sides", np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64))
    yield written("Pad", [op.input_names[0], sides], padded, padded)
    kept = {name: value for name, value in op.attributes.items() if name not in ("pads", "count_include_pad")}
    yield written("AveragePool", [padded], op.outputs[0], op.name, **kept)


def _identity(scope: MnnScope, op: Op) -> Ops:
    """For an output that a function reads too: MNN would return the result of the function."""
    source = op.input_names[0]
    moved = op.outputs[0] in scope.outputs and source not in scope.convolved
    real = scope.casts.alias_of.get(source, source)
    if moved and any(other.type in _FUNCTIONS for name in (source, real) for other in scope.readers(name)):
        doubled = f"{op.outputs[0]}.doubled"
        yield written("Mul", [real, scope.number(2)], doubled, doubled)
        yield written("Mul", [doubled, scope.number(0.5)], op.outputs[0], op.name)
    else:
        yield op


_REWRITES: dict[str, Callable[[MnnScope, Op], Ops]] = {
    "Abs": _always_in_float,
    "Add": _arithmetic,
    "AveragePool": _average,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _conv,
    "Div": _arithmetic,
    "Gemm": _product,
    "GlobalAveragePool": _if_wrong,
    "Identity": _identity,
    "MatMul": _product,
    "Max": _always_in_float,
    "MaxPool": _if_wrong,
    "Min": _always_in_float,
    "Mul": _arithmetic,
    "Neg": _always_in_float,
    "Relu": _relu,
    "Resize": _if_wrong,
    "Sub": _arithmetic,
}
