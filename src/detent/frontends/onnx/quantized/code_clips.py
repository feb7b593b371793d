"""Removes a Clip of codes, which files have if a grid has fewer codes than its type, and records its bounds.

QuantizeLinear -> Clip(0, 15) -> DequantizeLinear is QuantizeLinear -> DequantizeLinear, codes 0 to 15
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from detent.frontends.onnx.skeleton import reads
from detent.ir.protos import constant_tensors, without_initializers

__all__ = ["Ends", "fold_code_clips"]

Ends = dict[str, tuple[int, int]]
"""Tensor of codes -> the least and the greatest of them."""


def fold_code_clips(model: ModelProto) -> tuple[ModelProto, Ends]:
    """`model` itself if it clips no codes."""
    if not any(node.op_type == "Clip" for node in model.graph.node):
        return model, {}
    return _Clips(model).left_out()


class _Clips:
    def __init__(self, model: ModelProto):
        self._model = model
        self._outputs = {value.name for value in model.graph.output}
        self._constants = constant_tensors(model.graph)
        self._makers: dict[str, NodeProto] = {}
        self._readers: dict[str, list[str]] = {}
        for node in model.graph.node:
            self._makers.update((name, node) for name in node.output)
            for name in reads(node):
                self._readers.setdefault(name, []).append(node.op_type)
        self._ends: Ends = {}
        self._made: list[TensorProto] = []  # constant codes, clipped
        self._renamed: dict[str, str] = {}  # output of a Q -> output of the Clip after it

    def left_out(self) -> tuple[ModelProto, Ends]:
        for node in self._model.graph.node:
            if node.op_type == "Clip":
                self._leave_out(node)
        if not self._ends:
            return self._model, {}
        made = without_initializers(self._model)
        made.graph.initializer.extend([*self._model.graph.initializer, *self._made])
        kept = [node for node in made.graph.node if not (node.op_type == "Clip" and node.output[0] in self._ends)]
        for node in kept:
            node.output[:] = [self._renamed.get(name, name) for name in node.output]
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in kept]
        del made.graph.node[:]
        made.graph.node.extend(nodes)
        return made, self._ends

    def _leave_out(self, clip: NodeProto) -> None:
        """If nothing but DQ reads its output, and nothing else the codes that it takes."""
        given, taken = clip.output[0], clip.input[0]
        ends, readers = self._limits(clip), self._readers.get(given, [])
        if ends is None or given in self._outputs or not readers or set(readers) != {"DequantizeLinear"}:
            return
        codes, maker = self._constants.get(taken), self._makers.get(taken)
        if codes is not None:
            values = numpy_helper.to_array(codes)
            if not np.issubdtype(values.dtype, np.integer):
                return
            low, high = (values.dtype.type(end) for end in ends)
            self._made.append(numpy_helper.from_array(np.clip(values, low, high), given))
        elif maker is not None and maker.op_type == "QuantizeLinear" and len(self._readers[taken]) == 1:
            self._renamed[taken] = given
        else:
            return
        self._ends[given] = ends

    def _limits(self, clip: NodeProto) -> tuple[int, int] | None:
        names = [*clip.input[1:3], "", ""][:2]
        held = [numpy_helper.to_array(self._constants[name]) if name in self._constants else None for name in names]
        bounds = [end for end in held if end is not None]
        computed = any(name and end is None for name, end in zip(names, held, strict=True))
        if computed or not bounds or any(end.size != 1 or not np.issubdtype(end.dtype, np.integer) for end in bounds):
            return None
        whole = np.iinfo(bounds[0].dtype)
        low, high = (int(end.reshape(())) if end is not None else None for end in held)
        return int(whole.min) if low is None else low, int(whole.max) if high is None else high
