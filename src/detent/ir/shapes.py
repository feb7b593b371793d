"""Shape inference: the shapes of a network's tensors, and the values that follow from sizes alone.

Exporters write `x.view(b, -1, c)` as Shape, Gather, Concat and Reshape. ONNX's own inference stops there. If all input
sizes are known, these nodes compute from constants, and every shape after them is known.
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

__all__ = ["BatchSizes", "Known", "Shape", "infer_node", "known_sizes", "shapes_of"]

Array = npt.NDArray[Any]
Shape = tuple[int | str, ...]
"""Sizes, or the names of free ones; "?" for one that has no name."""

_LARGEST = 1 << 22  # elements of what is computed ahead
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
_TYPES = tuple(helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in ("float32", "int64", "int32", "bool"))


# --- for any size of the inputs ----------------------------------------------------------------------------


def shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    """Of every tensor whose shape is stated or can be inferred, constants included.

    Inference copies all that it is handed, so it gets the model without its weights.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        graph = model.graph
    found = {
        value.name: _named_shape(value)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    }
    found |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    if _is_complete(model, found) and not _rounds_up(model):
        return found
    tried, sizes = dict(found), BatchSizes.of(model)
    for name in sizes.ones.shapes.keys() & sizes.twos.shapes.keys():
        signature, names = sizes.signature(name), found.get(name, ())
        names = names if len(names) == len(signature) else ("?",) * len(signature)
        tried[name] = tuple(str(free) if size < 0 else size for size, free in zip(signature, names, strict=True))
    return tried


def _rounds_up(model: onnx.ModelProto) -> bool:
    """Whether there is a pool with `ceil_mode`, whose size the inference of older opsets has wrong."""
    pools = [node for node in model.graph.node if node.op_type in _POOLS]
    return any(attribute.name == "ceil_mode" and attribute.i for node in pools for attribute in node.attribute)


def _is_complete(model: onnx.ModelProto, found: Mapping[str, Shape]) -> bool:
    """Whether every tensor has a shape in which only the sizes are free that the inputs have."""
    free = {size for value in model.graph.input for size in found.get(value.name, ()) if isinstance(size, str)}
    sizes = [found.get(name, ("?",)) for node in model.graph.node for name in node.output if name]
    return all(isinstance(size, int) or (size in free and size != "?") for shape in sizes for size in shape)


def _named_shape(value: onnx.ValueInfoProto) -> Shape:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same nodes with large constants as inputs."""
    graph = model.graph
    large = {tensor.name: tensor for tensor in graph.initializer if math.prod(tensor.dims) > _SMALL}
    inputs = [value for value in graph.input if value.name not in large]
    inputs += [helper.make_tensor_value_info(name, one.data_type, one.dims) for name, one in large.items()]
    small = [tensor for tensor in graph.initializer if tensor.name not in large]
    return onnx.ModelProto(
        ir_version=max(model.ir_version, 4),
        opset_import=model.opset_import,
        functions=model.functions,
        graph=onnx.GraphProto(
            name=graph.name,
            node=graph.node,
            input=inputs,
            output=graph.output,
            initializer=small,
            value_info=graph.value_info,
        ),
    )


# --- for one size, and for a batch of any size -------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """`shapes` of tensors, and `values` of those that do not depend on the numbers in the inputs."""

    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Array]


def known_sizes(model: onnx.ModelProto, free: int, *, strict: bool = False) -> Known:
    """What is known if every free size of the inputs is `free`.

    A node whose inputs do not fit together gives tensors of unknown shape; with `strict` it raises
    `onnx.shape_inference.InferenceError`.
    """
    sizing = _Sizing(model, free)
    for node in model.graph.node:
        sizing.take(node, strict=strict)
    return Known(
        {name: shape for name, kind in sizing.types.items() if (shape := _shape(kind)) is not None}, sizing.values
    )


@dataclass(frozen=True)
class BatchSizes:
    """Sizes with the free ones (the batch) found by trying two values: what is the same for both is not free."""

    ones: Known
    twos: Known

    @classmethod
    def of(cls, model: onnx.ModelProto, *, strict: bool = False) -> BatchSizes:
        """Infer for batches of one and of two. With `strict`, shapes that do not fit together are an error."""
        try:
            return cls(*(known_sizes(model, size, strict=strict) for size in (1, 2)))
        except onnx.shape_inference.InferenceError as error:
            raise DeployError(
                "the shapes of the network", f"they do not fit together: {error}", "check that it runs in ONNX Runtime"
            ) from None

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Of a batch of one."""
        if tensor not in self.ones.shapes or tensor not in self.twos.shapes:
            raise DeployError(
                f"the shape of the tensor {tensor!r}",
                "it is only known when the network runs",
                "give a network whose shapes depend on the batch size alone",
            )
        return self.ones.shapes[tensor]

    def signature(self, tensor: str) -> tuple[int, ...]:
        """The shape with -1 where the batch decides."""
        pairs = zip(self.shape(tensor), self.twos.shapes[tensor], strict=True)
        return tuple(one if one == two else -1 for one, two in pairs)

    def value(self, tensor: str) -> Array | None:
        """The numbers of a tensor that is computed from sizes and constants, if they are the same for every batch."""
        found = [known.values.get(tensor) for known in (self.ones, self.twos)]
        same = found[0] is not None and found[1] is not None and np.array_equal(found[0], found[1])
        return found[0] if same else None


class _Sizing:
    def __init__(self, model: onnx.ModelProto, free: int):
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
                self.types[value.name] = _with_size(value.type, free)

    def take(self, node: onnx.NodeProto, *, strict: bool) -> None:
        computed = self._computed(node)
        if computed is not None:
            for name, array in computed.items():
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                self.types[name] = helper.make_tensor_type_proto(kind, array.shape)
                self.values[name] = array
            return
        small = {name: self.values[name] for name in node.input if name in self.values}
        small = {name: array for name, array in small.items() if array.size <= _SMALL}
        try:
            self.types.update(infer_node(node, self.types, small, self._opset, self._opsets))
        except onnx.shape_inference.InferenceError:
            if strict:
                raise
        except Exception:  # an operator that onnx does not know, or parts of it that are not there
            return

    def _computed(self, node: onnx.NodeProto) -> dict[str, Array] | None:
        """The outputs of the node, if they depend on sizes and constants alone."""
        names = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size") and not node.domain:
            shape = _shape(self.types.get(node.input[0], onnx.TypeProto()))
            values = {} if shape is None else {node.input[0]: np.broadcast_to(np.float32(0), shape)}
        else:
            values = {name: self.values[name] for name in names if name in self.values}
        if node.domain or node.op_type in _NOT_COMPUTED or len(values) < len(set(names)):
            return None
        try:
            found = evaluate_node(node, values, self._opset)
        except Exception:  # the evaluator does not have everything
            return None
        if any(array.size > _LARGEST or array.dtype == object for array in found.values()):
            return None
        return found


def infer_node(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, Array],
    opset: int,
    opsets: Sequence[onnx.OperatorSetIdProto] | None = None,
) -> dict[str, onnx.TypeProto]:
    """The types of the outputs of one node, from the types of its inputs and the values of some of them."""
    version = max(opset, _COUNTED) if node.op_type in _POOLS else opset
    return onnx.shape_inference.infer_node_outputs(
        onnx.defs.get_schema(node.op_type, version, node.domain),
        node,
        {name: types[name] for name in node.input if name in types},
        {name: numpy_helper.from_array(np.asarray(array), name) for name, array in values.items()},
        opset_imports=[helper.make_opsetid("", opset)] if opsets is None else list(opsets),
    )


def _shape(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    if not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None


def _with_size(kind: onnx.TypeProto, free: int) -> onnx.TypeProto:
    fixed = onnx.TypeProto()
    fixed.CopyFrom(kind)
    for dim in fixed.tensor_type.shape.dim:
        if not dim.HasField("dim_value"):
            dim.dim_value = free
    return fixed
