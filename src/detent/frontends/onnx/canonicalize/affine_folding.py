"""Folds multiplications and additions of constants after a convolution or batch norm into its weights.

    Conv -> Mul(scale) -> Add(shift)        is        Conv

as PP-OCR's networks have them behind every convolution. Left apart, each step would have a grid of its own, and adding
a number that is no multiple of the grid's step would shift all that comes out by up to half of one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from detent.frontends.onnx.skeleton import reads
from detent.ir import TensorNames, Trait, ops_with
from detent.ir.protos import without_initializers

__all__ = ["fold_affine_steps"]

Array = npt.NDArray[Any]

_WEIGHTED = {"Conv": (1, 2), "BatchNormalization": (1, 2)}
"""At which inputs the factors and the summands of each output channel are."""


def fold_affine_steps(model: ModelProto) -> ModelProto:
    """The same network without those steps; `model` itself if there are none, or if Detent wrote it."""
    if model.producer_name == "detent" or not any(
        node.op_type in ops_with(Trait.ARITHMETIC) for node in model.graph.node
    ):
        return model
    folding = _Folding(model)
    nodes = [kept for node in model.graph.node if (kept := folding.take(node)) is not None]
    if not folding.changed:
        return model
    made = without_initializers(model)
    del made.graph.node[:]
    made.graph.node.extend(
        node for node in nodes if node.op_type != "Constant" or node.output[0] not in folding.changed
    )
    made.graph.initializer.extend(one for one in model.graph.initializer if one.name not in folding.changed)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in folding.changed.items())
    return made


class _Folding:
    def __init__(self, model: ModelProto):
        graph = model.graph
        self._held: dict[str, Any] = {tensor.name: tensor for tensor in graph.initializer}
        self._readers = Counter(name for node in graph.node for name in reads(node))
        self._readers.update(value.name for value in graph.output)
        self._inputs = {value.name for value in graph.input}
        self._layers: dict[str, NodeProto] = {}  # by output
        self._names = TensorNames(
            [*self._held, *self._inputs, *(name for node in graph.node for name in (*node.input, *node.output))]
        )
        self.changed: dict[str, Array] = {}

    def take(self, node: NodeProto) -> NodeProto | None:
        """The node as it is kept; None for a step that went into the layer before it."""
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
            self._held[node.output[0]] = node.attribute[0].t
        if not node.domain and node.op_type in _WEIGHTED and len(node.output) == 1:
            layer = NodeProto()
            layer.CopyFrom(node)
            self._layers[node.output[0]] = layer
            return layer
        if not node.domain and node.op_type in ops_with(Trait.ARITHMETIC) and self._fold(node):
            return None
        return node

    def _fold(self, node: NodeProto) -> bool:
        places = [index for index, name in enumerate(node.input) if name in self._layers]
        if len(places) != 1 or (node.op_type in ("Div", "Sub") and places[0] != 0):
            return False
        layer, number = self._layers[node.input[places[0]]], self._array(node.input[1 - places[0]])
        if self._readers[layer.output[0]] != 1 or number is None or number.dtype != np.float32:
            return False
        parts = self._parts(layer)
        numbers = None if parts is None else _by_channel(number, parts[0].ndim, len(parts[1]))
        if parts is None or numbers is None or not np.isfinite(numbers).all() or not self._folded(layer, node, numbers):
            return False
        del self._layers[layer.output[0]]
        layer.output[0] = node.output[0]
        self._layers[node.output[0]] = layer
        return True

    def _folded(self, layer: NodeProto, node: NodeProto, numbers: Array) -> bool:
        parts = self._parts(layer)
        assert parts is not None
        weight, bias = parts
        with np.errstate(all="ignore"):
            if node.op_type in ("Mul", "Div"):
                factor = numbers if node.op_type == "Mul" else 1 / numbers
                weight, bias = weight * factor.reshape(-1, *[1] * (weight.ndim - 1)), bias * factor
            else:
                bias = bias + (numbers if node.op_type == "Add" else -numbers)
        made = [part.astype(np.float32) for part in (weight, bias)]
        if not all(np.isfinite(part).all() for part in made) or not weight.any():
            return False
        if len(layer.input) < 3 or not layer.input[2]:
            del layer.input[2:]
            layer.input.append(self._names.unique(f"{layer.output[0]}_bias"))
            self._readers[layer.input[2]] = 1
        for name, part in zip(layer.input[1:3], made, strict=True):
            self.changed[name] = part
        return True

    def _parts(self, layer: NodeProto) -> tuple[Array, Array] | None:
        """The weight and the bias, if both are constants of this layer alone."""
        names = [layer.input[place] for place in _WEIGHTED[layer.op_type] if place < len(layer.input)]
        found = [self._array(name) for name in names if name]
        alone = all(self._readers[name] == 1 and name not in self._inputs for name in names if name)
        if not alone or not found or any(part is None or part.dtype != np.float32 for part in found):
            return None
        weight = np.asarray(found[0], np.float64)
        return weight, np.zeros(len(weight)) if len(found) < 2 else np.asarray(found[1], np.float64)

    def _array(self, name: str) -> Array | None:
        if name in self.changed:
            return self.changed[name]
        held: TensorProto | None = self._held.get(name)
        if held is None or held.data_type != TensorProto.FLOAT:
            return None
        return numpy_helper.to_array(held)


def _by_channel(number: Array, rank: int, channels: int) -> Array | None:
    """A number for each channel, the second axis of `rank`; None if it is for other axes."""
    if number.size == 1 and number.ndim <= max(rank, 1):
        return np.full(channels, number.reshape(()), np.float64)
    shape = (1,) * (rank - number.ndim) + number.shape
    along = len(shape) == rank > 2 and shape[1] == channels and number.size == channels
    return number.reshape(-1).astype(np.float64) if along else None
