"""Undoes rewrites that store the original operation, in a network with or without Q and DQ nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from detent.rewrites.conv_transpose_as_conv import moves_of, one_phase, transposed_kernel
from detent.rewrites.densify_conv_transpose import DENSE, grouped_kernel
from detent.rewrites.editing import BLOCKS, PHASES
from detent.rewrites.original import Original
from detent.rewrites.space_to_depth_strided_conv import MOVES, NAME, in_pixels

__all__ = ["has_rewrites", "undo"]

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def has_rewrites(model: onnx.ModelProto) -> bool:
    """Whether an operation of `model` keeps what it was before a rewrite."""
    return any(Original.of(node) is not None for node in model.graph.node)


def undo(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with every operation that keeps an `Original` put back; changed in place.

    A linear layer stays a product of matrices, which is as fast in float.
    """
    written = [(node, found) for node in model.graph.node if (found := Original.of(node)) is not None]
    if written:
        undoing = _Undoing(model.graph)
        for node, original in written:
            undoing.put_back(node, original)
        for node, _ in written:
            undoing.rename(node)
        undoing.finish()
    return model


class _Undoing:
    """Edits one graph in which every tensor of a rewritten operation has one reader."""

    def __init__(self, graph: onnx.GraphProto):
        self.graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers = {name: node for node in graph.node for name in node.input}
        self._gone: set[str] = set()  # outputs of nodes that are left out
        self._changed: set[str] = set()

    def put_back(self, node: onnx.NodeProto, original: Original) -> None:
        del node.attribute[:], node.metadata_props[:]
        node.attribute.extend(helper.make_attribute(name, value) for name, value in original.attributes.items())
        if original.form == NAME:
            self._parameter(node.input[1], lambda weights: in_pixels(original, weights))
            self._drop_before(node, MOVES)
            return
        if original.form == DENSE:
            channels = original.weight[1]
            self._parameter(
                node.input[1],
                lambda weights: grouped_kernel(original, weights),
                lambda values: values[:channels],
                axis=1,
            )
            return
        node.op_type = "ConvTranspose"
        self._parameter(
            node.input[1],
            partial(transposed_kernel, original),
            partial(one_phase, original, shared=True),
            axis=1,
        )
        if len(node.input) > 2:
            biases = partial(one_phase, original)
            self._parameter(node.input[2], biases, biases, axis=0)
        self._drop_behind(node, moves_of(original))

    def _parameter(self, name: str, change: Change, channels: Change | None = None, axis: int = 0) -> None:
        """Change a constant: real numbers, or codes with what they have for each of the channels, along `axis` then."""
        if name in self._changed:
            return  # of a layer that is called twice
        self._changed.add(name)
        node = self._makers.get(name)
        if node is None:
            self._hold(name, change)
            return
        self._hold(node.input[0], change)
        if channels is not None and list(self._constants[node.input[1]].dims):
            for held in node.input[1:]:
                self._hold(held, channels)
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("axis", axis))

    def rename(self, node: onnx.NodeProto) -> None:
        """Give its parameters the names that they had before."""
        for i, name in enumerate(node.input):
            before = name.removesuffix(PHASES).removesuffix(BLOCKS)
            if before == name:
                continue
            if name in self._makers:
                self._makers[name].output[0] = before
            else:
                self._constants[name].name = before
            node.input[i] = before

    def _hold(self, name: str, change: Change) -> None:
        tensor = self._constants[name]
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(numpy_helper.to_array(tensor))), name))

    def _drop_before(self, node: onnx.NodeProto, moves: int) -> None:
        """Leave out so many moves, and what quantizes between them."""
        while moves:
            made = self._makers[node.input[0]]
            node.input[0] = made.input[0]
            moves -= self._drop(made)

    def _drop_behind(self, node: onnx.NodeProto, moves: int) -> None:
        """The same behind an operation and the activation functions that follow it; the last of these then gives the
        result."""
        while moves and self._readers[node.output[0]].op_type in ("Relu", "Clip"):
            node = self._readers[node.output[0]]
        while moves:
            reader = self._readers[node.output[0]]
            node.output[0] = reader.output[0]
            moves -= self._drop(reader)

    def _drop(self, node: onnx.NodeProto) -> int:
        """1 if it was a move."""
        self._gone.add(node.name)
        return int(node.op_type not in ("QuantizeLinear", "DequantizeLinear"))

    def finish(self) -> None:
        kept = [node for node in self.graph.node if node.name not in self._gone]
        del self.graph.node[:]
        self.graph.node.extend(kept)
        made = {name for node in kept for name in node.output}
        values = [value for value in self.graph.value_info if value.name in made]
        del self.graph.value_info[:]
        self.graph.value_info.extend(values)
