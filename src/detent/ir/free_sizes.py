"""Shapes and constants of a network for given input sizes, and which sizes are free.

Whether a size is free is found by trying: what is the same for sizes that are far apart and have little in common does
not depend on them. Small sizes would not do: behind a few strides, widths of 1 and of 2 are both 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from detent.errors import DeployError
from detent.ir.folding import evaluate_node

__all__ = ["FreeSizes", "Known", "infer_node", "is_free", "known_sizes", "signature_of", "try_sizes"]

Array = npt.NDArray[Any]

_LARGEST = 1 << 22  # elements of values computed in advance
_SMALL = 1024  # elements; a constant that says a shape or axes has fewer
_COUNTED = 22  # the opset whose inference does not count a pool's last window where that begins outside
_POOLS = ("MaxPool", "AveragePool")
_NOT_COMPUTED = (
    "DequantizeLinear",
    "QuantizeLinear",
    "RandomNormal",
    "RandomUniform",
    "Bernoulli",
    "If",
    "Loop",
    "Scan",
)
_GROWING = ("ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample")
_TYPES = tuple(helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in ("float32", "int64", "int32", "bool"))

_BATCHES = ((3, 3, 0), (64, 64, 0))
_TRIES = ((2, 64, 0), (3, 160, 32), (64, 2464, 0))
"""Of a network whose first axes alone are free, and of others: sizes along first axes, along other axes, and by how
much the latter differ from each other. Maps that are made smaller and larger again want multiples of 32."""
_LARGE = ((160, 160, 0), (512, 512, 0), (4096, 4096, 0), (16096, 16096, 0))
"""For networks that need more: time along the first axis, waveforms, or the same size along several axes."""


@dataclass(frozen=True)
class Known:
    """`shapes` of tensors, `values` of those that do not depend on the numbers in the inputs, and their numpy types."""

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Array]
    dtypes: Mapping[str, str]


def known_sizes(
    model: onnx.ModelProto, first: int, others: int | None = None, *, apart: int = 0, strict: bool = False
) -> Known:
    """What is known if free sizes along the first axis of an input are `first`, and those along other axes `others`, by
    default the same, plus `apart` for each that has another name.

    A node whose inputs do not fit together gives tensors of unknown shape; with `strict` it raises
    `onnx.shape_inference.InferenceError`.
    """
    leading, inner = _free_names(model.graph)
    others = first if others is None else others
    sizes = dict.fromkeys(leading, first) | {name: others + apart * i for i, name in enumerate(inner)}
    sizing = _Sizing(model, sizes)
    for node in model.graph.node:
        sizing.take(node, strict=strict)
    shapes = {name: shape for name, kind in sizing.types.items() if (shape := _shape(kind)) is not None}
    kinds = {name: kind.tensor_type.elem_type for name, kind in sizing.types.items()}
    dtypes = {name: helper.tensor_dtype_to_np_dtype(kind).name for name, kind in kinds.items() if kind}
    return Known(shapes, sizing.values, dtypes)


@dataclass(frozen=True)
class FreeSizes:
    """Which sizes are free, from what is known for several sizes; `one` is known for a batch of one.

    `inner` names the sizes that are free along other axes than the first.
    """

    one: Known
    tries: tuple[Known, ...]
    inner: tuple[str, ...]

    @classmethod
    def of(cls, model: onnx.ModelProto, *, strict: bool = False) -> FreeSizes:
        """With `strict`, shapes that do not fit together in a batch of one are an error."""
        inner = _free_names(model.graph)[1]
        try:
            one = _of_one(model, [others for _, others, _ in (*_TRIES, *_LARGE)] if inner else [1], strict=strict)
        except onnx.shape_inference.InferenceError as error:
            raise DeployError(
                "the shapes of the network", f"they do not fit together: {error}", "check that it runs in ONNX Runtime"
            ) from None
        return cls(one, try_sizes(model), tuple(inner))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor in a batch of one."""
        self.signature(tensor)
        return self.one.shapes[tensor]

    def signature(self, tensor: str) -> tuple[int, ...]:
        """The shape with -1 where the inputs decide."""
        signature = signature_of(tensor, self.tries)
        if signature is None or len(signature) != len(self.one.shapes.get(tensor, (*signature, 1))):
            raise DeployError(
                f"the shape of the tensor {tensor!r}",
                "it is only known when the network runs",
                "give a network whose shapes depend on the batch size alone",
            )
        return signature

    def value(self, tensor: str) -> Array | None:
        """The numbers of a tensor that is computed from sizes and constants, if they are the same for every size."""
        found = [known.values[tensor] for known in (self.one, *self.tries) if tensor in known.values]
        same = len(found) > min(2, len(self.tries)) and all(np.array_equal(found[0], other) for other in found)
        return found[0] if same else None


def signature_of(tensor: str, tries: Sequence[Known]) -> tuple[int, ...] | None:
    """The shape with -1 where the sizes of the inputs decide; None where it is not known."""
    found = [known.shapes[tensor] for known in tries if tensor in known.shapes]
    if len(found) < min(2, len(tries)) or len({len(shape) for shape in found}) > 1:
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*found, strict=True))


def try_sizes(model: onnx.ModelProto) -> tuple[Known, ...]:
    """What is known for input sizes far apart, and for larger ones if these do not determine the shapes of all tensors;
    or for the only size, if the network has no free sizes."""
    leading, inner = _free_names(model.graph)
    if not leading and not inner:
        return (known_sizes(model, 1),)
    tries = [known_sizes(model, first, others, apart=apart) for first, others, apart in (_TRIES if inner else _BATCHES)]
    names = {name for node in model.graph.node for name in node.output if name}
    for first, others, apart in _LARGE:
        if all(sum(name in known.shapes for known in tries) > 1 for name in names):
            break
        tries.append(known_sizes(model, first, others, apart=apart))
    return tuple(tries)


def _of_one(model: onnx.ModelProto, others: Sequence[int], *, strict: bool) -> Known:
    """The sizes for a batch of one, with the first of `others` that fit the network."""
    for size in others[:-1]:
        try:
            return known_sizes(model, 1, size, strict=True)
        except onnx.shape_inference.InferenceError:
            continue
    return known_sizes(model, 1, others[-1] if strict else others[0], strict=strict)


def _free_names(graph: onnx.GraphProto) -> tuple[list[str], list[str]]:
    """The free sizes of the inputs: those that are the first of an input, and the others."""
    held = {tensor.name for tensor in graph.initializer}
    names = [
        (axis, _free_name(axis, dim))
        for value in graph.input
        if value.name not in held
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if is_free(dim)
    ]
    leading = list(dict.fromkeys(name for axis, name in names if axis == 0))
    return leading, list(dict.fromkeys(name for axis, name in names if axis and name not in leading))


def is_free(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Also true for -1, which some exporters write."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def _free_name(axis: int, dim: onnx.TensorShapeProto.Dimension) -> str:
    """One without a name is taken to be the same in all inputs."""
    return dim.dim_param or f"size{axis}"


class _Sizing:
    def __init__(self, model: onnx.ModelProto, sizes: Mapping[str, int]):
        self._opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self._opsets = list(model.opset_import)
        self.types: dict[str, onnx.TypeProto] = {}
        self.values: dict[str, Array] = {}
        for tensor in model.graph.initializer:
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            if math.prod(tensor.dims) <= _LARGEST and tensor.data_type in _TYPES:
                self.values[tensor.name] = numpy_helper.to_array(tensor)
        for value in model.graph.input:
            if value.name not in self.types:
                self.types[value.name] = _with_sizes(value.type, sizes)

    def take(self, node: onnx.NodeProto, *, strict: bool) -> None:
        computed = self._computed(node)
        if computed is not None:
            for name, array in computed.items():
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                self.types[name] = helper.make_tensor_type_proto(kind, array.shape)
                self.values[name] = array
            return
        try:
            self.types.update(self._inferred(node))
        except onnx.shape_inference.InferenceError:
            if strict:
                raise
        except Exception:  # an operator that onnx does not know, or parts of it that are not there
            return

    def _inferred(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        small = {name: self.values[name] for name in node.input if name in self.values}
        small = {name: array for name, array in small.items() if array.size <= _SMALL}
        return infer_node(node, self.types, small, self._opset, self._opsets)

    def _computed(self, node: onnx.NodeProto) -> dict[str, Array] | None:
        """The outputs of the node, if they depend on sizes and constants alone."""
        names = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size") and not node.domain:
            shape = _shape(self.types.get(node.input[0], onnx.TypeProto()))
            values = {} if shape is None else {node.input[0]: np.broadcast_to(np.float32(0), shape)}
        else:
            values = {name: self.values[name] for name in names if name in self.values}
        if node.domain or node.op_type in _NOT_COMPUTED or len(values) < len(set(names)) or self._is_large(node):
            return None
        try:
            found = evaluate_node(node, values, self._opset)
        except Exception:  # the evaluator does not have everything
            return None
        if any(array.size > _LARGEST or array.dtype == object for array in found.values()):
            return None
        return found

    def _is_large(self, node: onnx.NodeProto) -> bool:
        """Whether a node gives much more than it takes: known before it is computed."""
        if node.op_type not in _GROWING:
            return False
        try:
            shapes = [_shape(kind) for kind in self._inferred(node).values()]
        except Exception:  # it does not fit together, which computing it says
            return False
        return any(shape is not None and math.prod(shape) > _LARGEST for shape in shapes)


def infer_node(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, Array],
    opset: int,
    opsets: Sequence[onnx.OperatorSetIdProto] | None = None,
) -> dict[str, onnx.TypeProto]:
    """The types of the outputs of one node, from the types of its inputs and the values of some of them.

    Sizes that cannot be raise `onnx.shape_inference.InferenceError`.
    """
    version = max(opset, _COUNTED) if node.op_type in _POOLS else opset
    given = {name: types[name] for name in node.input if name in types}
    if node.op_type == "Slice" and any(0 in (_shape(kind) or ()) for kind in given.values()):
        # ONNX's inference aborts the process there.
        raise onnx.shape_inference.InferenceError(f"Slice {node.name!r} of an empty tensor")
    made = onnx.shape_inference.infer_node_outputs(
        onnx.defs.get_schema(node.op_type, version, node.domain),
        node,
        given,
        {name: numpy_helper.from_array(np.asarray(array), name) for name, array in values.items()},
        opset_imports=[helper.make_opsetid("", opset)] if opsets is None else list(opsets),
    )
    if any(size < 0 for kind in made.values() for size in _shape(kind) or ()):
        raise onnx.shape_inference.InferenceError(f"{node.op_type} {node.name!r}: its inputs are too small")
    return made


def _shape(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def _with_sizes(kind: onnx.TypeProto, sizes: Mapping[str, int]) -> onnx.TypeProto:
    fixed = onnx.TypeProto()
    fixed.CopyFrom(kind)
    for axis, dim in enumerate(fixed.tensor_type.shape.dim):
        if is_free(dim):
            dim.dim_value = sizes[_free_name(axis, dim)]
    return fixed
