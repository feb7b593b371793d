"""The float network that `mnnconvert` reads, without what MNN gets wrong.

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

import numpy as np
import onnx
from onnx import helper

from detent.errors import DeployError
from detent.ir import Network, attribute_value
from detent.rewrites import float_model
from detent.targets.mnn.layers import PRODUCT
from detent.targets.mnn.scale_propagation import REAL
from detent.targets.mnn.scope import MnnScope
from detent.targets.mnn.windows import with_whole_windows

__all__ = ["mnn_model"]

Nodes = Iterator[onnx.NodeProto]

_FLOATS = np.finfo(np.float32)
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}

_FUNCTIONS = ("Clip", "LeakyRelu", "Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Sqrt", "HardSwish", "Gelu", "Erf")
"""What MNN may compute before a change of layout that stands before it."""


def mnn_model(model: onnx.ModelProto, graph: Network) -> onnx.ModelProto:
    """The float network of a QDQ model, as MNN is to read it; all tensors keep their names and numbers."""
    found = float_model(model)
    scope = MnnScope(found, graph)
    scope.read_casts()
    nodes = [made for each in found.graph.input for made in scope.made_of(each.name)]
    nodes += [new for node in found.graph.node for new in _written(scope, node)]
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


def _written(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    if node.op_type in ("AveragePool", "MaxPool"):
        node = with_whole_windows(node, scope.sizes(node.input[0]))
    for new in _REWRITES.get(node.op_type, _unchanged)(scope, node):
        yield from _kept_from_codes(scope, new)
        yield from (made for name in new.output for made in scope.made_of(name))


def _kept_from_codes(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """A sum or a product that would have another grid than in the network."""
    if node.output[0] in scope.kept_from_codes:
        yield from _without_scale(scope, node)
    else:
        yield node


def _without_scale(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """No scale comes back to what the operation gives, because another gives its numbers."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.output[0] = f"{node.output[0]}.made"
    yield made
    yield scope.same(made.output[0], node.output[0])


def _unchanged(_: MnnScope, node: onnx.NodeProto) -> Nodes:
    yield node


def _in_float(scope: MnnScope, node: onnx.NodeProto, count: int) -> Nodes:
    """The first `count` inputs twice as large, the result half: exact, and products that no converter takes out."""
    output, inputs = node.output[0], list(node.input)
    for index, name in enumerate(inputs[:count]):
        inputs[index] = f"{output}.doubled.{index}"
        yield helper.make_node("Mul", [name, scope.number(2)], [inputs[index]], name=inputs[index])
    doubled = onnx.NodeProto()
    doubled.CopyFrom(node)
    doubled.input[:] = inputs
    doubled.output[0] = f"{output}.doubled"
    yield doubled
    yield helper.make_node("Mul", [doubled.output[0], scope.number(0.5)], [output], name=f"{output}.halved")


def _arithmetic(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """The converter takes out what changes nothing, and scales would go on through it."""
    first, second = (_is_one_number(scope, name, _NEUTRAL[node.op_type]) for name in node.input)
    if node.output[0] in scope.alone and (second or (first and node.op_type in ("Add", "Mul"))):
        yield scope.same(node.input[0 if second else 1], node.output[0])
    else:
        yield from _product(scope, node)


def _is_one_number(scope: MnnScope, name: str, value: float) -> bool:
    return name in scope.constants and scope.array(name).size == 1 and bool(scope.array(name) == value)


def _always_in_float(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    if any(name in scope.constants for name in node.input):
        yield node
    else:
        yield from _in_float(scope, node, len(node.input))


def _if_wrong(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    if node.output[0] not in scope.never_on_codes:
        yield node
    elif node.input[0] in scope.scaled:
        yield from _in_float(scope, node, 1)
    else:
        yield from _without_scale(scope, node)


def _relu(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """One that stands alone is a clip, which has no kernel for codes. One behind a matrix product is a maximum: MNN
    would take it into the product and give that a name that nobody can know, so that it finds no scales for it."""
    if node.output[0] in scope.behind_products:
        yield helper.make_node("Max", [node.input[0], scope.number(0)], list(node.output), name=node.name)
        return
    if node.output[0] not in scope.alone:
        yield node
        return
    bounds = [scope.number(0), scope.number(float(_FLOATS.max))]
    yield helper.make_node("Clip", [node.input[0], *bounds], list(node.output), name=node.name)


def _clip(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """One behind a matrix product is a maximum and a minimum, for the same reason."""
    steps = [(kind, bound) for kind, bound in zip(("Max", "Min"), node.input[1:], strict=False) if bound]
    if node.output[0] not in scope.behind_products or not steps:
        yield node
        return
    read, output = node.input[0], node.output[0]
    for kind, bound in steps:
        given = output if (kind, bound) == steps[-1] else f"{output}.above"
        yield helper.make_node(kind, [read, bound], [given], name=given)
        read = given


def _product(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """A large one, with what is added to it, is a convolution of one place."""
    unit = scope.product(node.output[0])
    if unit is None:
        yield node
        return
    if unit.output != node.output[0]:
        return  # it is written with the sum behind it
    head = scope.producer(unit.head.outputs[0])
    x, weight = head.input[:2]
    added = [name for name in (*head.input[2:], *node.input) if name in scope.constants and name != weight]
    matrix = scope.array(weight)
    if not next((attribute.i for attribute in head.attribute if attribute.name == "transB"), 0):
        matrix = matrix.T
    kernel = scope.constant(f"{unit.output}.kernel", np.ascontiguousarray(matrix)[..., None, None])
    places = scope.constant(f"{unit.output}.places", np.array([-1, matrix.shape[1], 1, 1], np.int64))
    product, rank = f"{unit.output}{PRODUCT}", scope.rank(x)
    yield helper.make_node("Reshape", [x, places], [f"{product}.in"], name=f"{product}.in")
    yield helper.make_node("Conv", [f"{product}.in", kernel, *added[:1]], [product], name=product, kernel_shape=[1, 1])
    yield from _in_its_shape(scope, x, product, unit.output, rank, len(matrix))


def _in_its_shape(scope: MnnScope, x: str, product: str, output: str, rank: int | None, size: int) -> Nodes:
    """The shape of `x`, with another size of the last axis."""
    last = scope.constant(f"{product}.size", np.array([size], np.int64))
    if rank == 2:
        shape = scope.constant(f"{product}.shape", np.array([-1, size], np.int64))
    else:
        shape = f"{product}.shape"
        bounds = [scope.constant(f"mnn.at.{at}", np.array([at], np.int64)) for at in (0, -1)]
        yield helper.make_node("Shape", [x], [f"{product}.sizes"], name=f"{product}.sizes")
        yield helper.make_node("Slice", [f"{product}.sizes", *bounds], [f"{product}.outer"], name=f"{product}.outer")
        yield helper.make_node("Concat", [f"{product}.outer", last], [shape], name=shape, axis=0)
    yield helper.make_node("Reshape", [product, shape], [output], name=f"{product}.out")


def _conv(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """One with small groups has none, and zeros between them."""
    if node.output[0] not in scope.dense:
        yield node
        return
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    kernel, groups = scope.array(node.input[1]), attributes.pop("group")
    outputs, inputs = kernel.shape[0] // groups, kernel.shape[1]
    whole = np.zeros((kernel.shape[0], groups * inputs, *kernel.shape[2:]), kernel.dtype)
    for index in range(groups):
        rows = slice(index * outputs, (index + 1) * outputs)
        whole[rows, index * inputs : (index + 1) * inputs] = kernel[rows]
    reads = [node.input[0], scope.constant(f"{node.output[0]}.kernel", whole), *node.input[2:]]
    yield helper.make_node("Conv", reads, list(node.output), name=node.name, **attributes)


def _batch_norm(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """A product and a sum with constants."""
    x, *parameters = node.input
    rank = scope.rank(x)
    if rank is None or not all(name in scope.constants for name in parameters):
        yield node
        return
    weight, bias, mean, variance = (scope.array(name).astype(np.float64) for name in parameters)
    epsilon = next((attribute.f for attribute in node.attribute if attribute.name == "epsilon"), 1e-5)
    factor = weight / np.sqrt(variance + epsilon)
    output, shape = node.output[0], (1, -1, *(1,) * (rank - 2))
    factors = scope.constant(f"{output}.factor", factor.reshape(shape).astype(np.float32))
    shifts = scope.constant(f"{output}.shift", (bias - mean * factor).reshape(shape).astype(np.float32))
    yield helper.make_node("Mul", [x, factors], [f"{output}.scaled"], name=f"{output}.scaled")
    yield helper.make_node("Add", [f"{output}.scaled", shifts], [output], name=node.name)


def _average(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    for new in _if_wrong(scope, node):
        yield from _padded(scope, new) if new.op_type == "AveragePool" else (new,)


def _padded(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """Padding that counts is part of what is averaged."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    pads, counted, ceil_mode = (
        attribute_value(node.op_type, attributes, name) for name in ("pads", "count_include_pad", "ceil_mode")
    )
    if not counted or not any(pads):
        yield node
        return
    if ceil_mode:
        raise DeployError(
            f"write AveragePool {node.name or node.output[0]!r} for MNN",
            "it counts its padding and has windows that end outside of it; MNN never counts padding on integers",
            "count_include_pad=False or ceil_mode=False",
        )
    padded, half = f"{node.output[0]}.padded", len(pads) // 2
    sides = scope.constant(f"{padded}.sides", np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64))
    yield helper.make_node("Pad", [node.input[0], sides], [padded], name=padded)
    kept = {name: value for name, value in attributes.items() if name not in ("pads", "count_include_pad")}
    yield helper.make_node("AveragePool", [padded], list(node.output), name=node.name, **kept)


def _identity(scope: MnnScope, node: onnx.NodeProto) -> Nodes:
    """An output that a function reads too: MNN would give out what the function makes of it."""
    source = node.input[0]
    moved = node.output[0] in scope.outputs and source not in scope.convolved
    real = f"{source}{REAL}" if source in scope.casts else source
    if moved and any(other.op_type in _FUNCTIONS for name in (source, real) for other in scope.readers(name)):
        doubled = f"{node.output[0]}.doubled"
        yield helper.make_node("Mul", [real, scope.number(2)], [doubled], name=doubled)
        yield helper.make_node("Mul", [doubled, scope.number(0.5)], list(node.output), name=node.name)
    else:
        yield node


_REWRITES: dict[str, Callable[[MnnScope, onnx.NodeProto], Nodes]] = {
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
