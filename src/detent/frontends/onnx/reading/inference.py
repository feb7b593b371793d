"""Types and shapes of tensors, node by node, as far as ONNX can infer them.

ONNX's inference of whole models is not used: a file of some bytes can make it allocate without bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx
import torch
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto
from torch import Tensor

from detent.frontends.onnx.reading.tensors import TORCH_TYPES
from detent.ir.free_sizes import infer_node

__all__ = ["Inference", "TensorInfo", "without_weights"]

_SMALL = 64  # elements; a constant that says a shape or axes has fewer
_LARGEST = 2**31 - 1
_ONNX_TYPES = {dtype: number for number, dtype in TORCH_TYPES.items()}


class TensorInfo(NamedTuple):
    """`dtype` and `dims` are None where not known; so is the size of a dimension."""

    dtype: torch.dtype | None
    dims: tuple[int | None, ...] | None


_NOTHING = TensorInfo(None, None)


class Inference:
    """The known types and shapes of tensors so far. It is an aid and not a check: what is unknown is found when the
    graph runs."""

    def __init__(self, opset: int):
        self._opset = opset
        self._types: dict[str, TypeProto] = {}
        self.free: dict[str, None] = {}  # sizes of the inputs, by name
        self.single: list[str] = []  # inputs of one number

    def info(self, name: str) -> TensorInfo:
        return _info(self._types[name]) if name in self._types else _NOTHING

    def given(self, value: ValueInfoProto) -> None:
        """An input of the graph. Sizes that cannot be are not believed."""
        kind = TypeProto()
        kind.CopyFrom(value.type)
        for dim in kind.tensor_type.shape.dim:
            if dim.HasField("dim_value") and not 0 < dim.dim_value <= _LARGEST:
                dim.ClearField("dim_value")
        self._types[value.name] = kind
        dims = kind.tensor_type.shape.dim
        self.free.update(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))
        if kind.tensor_type.HasField("shape") and all(dim.dim_value == 1 for dim in dims):
            self.single.append(value.name)

    def copied(self, name: str, source: str) -> None:
        """A tensor that is another one, under its own name."""
        if source in self._types:
            self._types[name] = self._types[source]

    def constant(self, name: str, tensor: Tensor) -> None:
        if tensor.dtype in _ONNX_TYPES:
            self._types[name] = onnx.helper.make_tensor_type_proto(_ONNX_TYPES[tensor.dtype], tuple(tensor.shape))

    def shaped(self, name: str, dtype: torch.dtype, dims: Sequence[int | None]) -> None:
        """A tensor whose shape is known otherwise, None for the sizes that are not."""
        if dtype in _ONNX_TYPES:
            self._types[name] = onnx.helper.make_tensor_type_proto(_ONNX_TYPES[dtype], list(dims))

    def node(self, node: NodeProto, constants: Mapping[str, Tensor]) -> None:
        """The outputs of a node, from what is known of its inputs and from the constants among them."""
        if not _is_sane(node, [self._types[name] for name in node.input if name in self._types]):
            return
        values = {
            name: tensor.numpy()
            for name, tensor in constants.items()
            if tensor.numel() <= _SMALL and tensor.dtype in (torch.int64, torch.int32, torch.float32)
        }
        try:
            self._types.update(infer_node(node, self._types, values, self._opset))
        except Exception:  # contradictions come up when the node is converted or run
            return


def _is_sane(node: NodeProto, types: object) -> bool:
    """Whether inference has only numbers to count with that end."""
    for attribute in node.attribute:
        numbers = [attribute.i, *attribute.ints] if attribute.type != AttributeProto.FLOAT else []
        if any(abs(number) > _LARGEST for number in numbers):
            return False
    if node.op_type == "Split" and any(a.name == "num_outputs" and a.i != len(node.output) for a in node.attribute):
        return False
    for kind in types:  # type: ignore[attr-defined]
        dims = kind.tensor_type.shape.dim
        integers = kind.tensor_type.elem_type in (TensorProto.INT64, TensorProto.INT32)
        # The length of a list of integers may become a rank.
        if integers and len(dims) == 1 and dims[0].dim_value > _SMALL:
            return False
    return True


def _info(kind: TypeProto) -> TensorInfo:
    if not kind.HasField("tensor_type"):
        return _NOTHING
    tensor = kind.tensor_type
    dims = None
    if tensor.HasField("shape"):
        dims = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in tensor.shape.dim
        )
    return TensorInfo(TORCH_TYPES.get(tensor.elem_type), dims)


def without_weights(model: ModelProto, nodes: Sequence[NodeProto]) -> ModelProto:
    """The model with initializers as inputs, for what looks at types only."""
    skeleton = ModelProto(ir_version=max(model.ir_version, 4))
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(nodes)
    initialized = {tensor.name for tensor in model.graph.initializer}
    graph.input.extend(value for value in model.graph.input if value.name not in initialized)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    # onnx.inliner asks for the type of inputs that are left out, whose name is empty, and fails if they have none.
    graph.value_info.append(onnx.helper.make_tensor_value_info("", TensorProto.FLOAT, None))
    return skeleton
