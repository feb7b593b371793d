"""Operations that compute each word of a sequence by itself, in a network for sequences of one length."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detent.ir import Network, Op, Trait, ops_with, reduced_axes
from detent.targets.onnxruntime_genai.decoder.match import NotADecoder, vector

__all__ = ["of_any_length"]

_ALIGNED = ops_with(Trait.ELEMENTWISE) | ops_with(Trait.ARITHMETIC) | {"Identity", "Cast", "Pow", "Where"}
_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization")
_NO_END = 2**31 - 1


def of_any_length(
    graph: Network, shapes: Mapping[str, Any], words: str, *, starts: Mapping[str, int], ends: Collection[str]
) -> Network:
    """The same network for sequences of any length: reshapes lose the length that they state.

    `words` is the input of token ids, and `shapes` are those of the tensors for one length. The operations `ends` take
    care of the length themselves, and give (batch, words, ...); they take words along the axes `starts`. Any other
    operation of which it is not known that it computes each word by itself is refused.
    """
    tracked = _Tracked(graph, shapes, words, {name for op in graph.ops if op.name in ends for name in op.outputs})
    ops = tuple(op if op.name in ends else tracked.step(op) for op in graph.ops)
    for name, axis in starts.items():
        if tracked.axes.get(name) != axis:
            raise NotADecoder(f"attention reads {name}, in which words are not where they are expected")
    return replace(graph, ops=ops, constants=tracked.constants)


class _Tracked:
    """The axis of words in each tensor that has one."""

    def __init__(self, graph: Network, shapes: Mapping[str, Any], words: str, ends: Collection[str]):
        self._graph, self._shapes = graph, shapes
        self.axes = dict.fromkeys((words, *ends), 1)
        self.constants = dict(graph.constants)

    def step(self, op: Op) -> Op:
        reads = [name for name in op.input_names if name in self.axes]
        if not reads:
            return op
        axis = self._axis(op, reads)
        if axis is None or None not in {read.encoding for read in op.reads if read.tensor in self.axes}:
            raise NotADecoder(f"{op.name} ({op.type}) is not known to compute each word by itself")
        self.axes.update(dict.fromkeys(op.outputs, axis))
        return self._free(op) if op.type == "Reshape" else op

    def _axis(self, op: Op, reads: list[str]) -> int | None:
        """The axis of words in the operation's output; None if it mixes words, or may do so."""
        graph, own, rank = self._graph, self.axes[reads[0]], self._rank(reads[0])
        first = op.input_names[0] == reads[0] and len(reads) == 1
        if op.type in _ALIGNED:
            return self._aligned(op)
        if op.type in _NORMALIZATIONS:
            return own if first and op.attribute("axis", rank) % rank > own else None
        match op.type:
            case "Gather":
                return own if reads == [op.input_names[1]] and op.attribute("axis") == 0 else None
            case "MatMul":
                weight = graph.constants.get(op.input_names[1])
                return own if first and own < rank - 1 and weight is not None and weight.ndim == 2 else None
            case "ReduceMean" | "ReduceSum":
                axes = reduced_axes(graph, op, rank)
                kept = op.attribute("keepdims") and axes is not None and own not in axes
                return own if first and kept else None
            case "Transpose":
                return [int(at) for at in op.attribute("perm")].index(own)
            case "Split":
                return own if first and op.attribute("axis") % rank != own else None
            case "Concat":
                same = {self.axes.get(name) for name in op.input_names} == {own}
                return own if same and op.attribute("axis") % rank != own else None
            case "Slice":
                return own if first and self._keeps_words(op, own, rank) else None
            case "Reshape":
                return own if first and self._splits_no_words(op, own) else None
        return None

    def _aligned(self, op: Op) -> int | None:
        """Sizes are compared from the last on."""
        rank = max(self._rank(name) for name in op.input_names if name)
        found = {self.axes[name] + rank - self._rank(name) for name in op.input_names if name in self.axes}
        if len(found) != 1:
            return None
        (axis,) = found
        for name in op.input_names:
            at = axis - rank + self._rank(name) if name else -1
            if name and name not in self.axes and at >= 0 and self._sizes(name)[at] != 1:
                return None  # such as a table of positions
        return axis

    def _keeps_words(self, op: Op, own: int, rank: int) -> bool:
        starts, ends, axes, steps = (vector(self._graph, op, at) for at in range(1, 5))
        if starts is None or ends is None or axes is None or any(step != 1 for step in steps or ()):
            return False
        parts = zip(axes, starts, ends, strict=True)
        return all(axis % rank != own or (start == 0 and end >= _NO_END) for axis, start, end in parts)

    def _splits_no_words(self, op: Op, own: int) -> bool:
        """Axes before the words are unchanged, and so are the words."""
        before, after = self._sizes(op.input_names[0]), self._sizes(op.outputs[0])
        known = vector(self._graph, op, 1) is not None and all(isinstance(size, int) for size in after[own + 1 :])
        return own == 1 and known and len(after) > own and tuple(before[: own + 1]) == tuple(after[: own + 1])

    def _free(self, op: Op) -> Op:
        """Zero: the size that it has."""
        after = self._sizes(op.outputs[0])
        assert op.inputs[1] is not None
        name = f"{op.inputs[1].tensor}.{op.name}.any_length"
        self.constants[name] = np.array([0, 0, *after[2:]], np.int64)
        return replace(op, inputs=(op.inputs[0], replace(op.inputs[1], tensor=name)))

    def _sizes(self, name: str) -> tuple[Any, ...]:
        held = self.constants.get(name)
        found = held.shape if held is not None else self._shapes.get(name)
        if found is None:
            raise NotADecoder(f"the shape of {name} is not known")
        return tuple(found)

    def _rank(self, name: str) -> int:
        return len(self._sizes(name))
