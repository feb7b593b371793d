"""Lowers a network to steps by the makers of an arithmetic; operations that no maker takes run in float."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from detent.ir import Encoding, Network, Op, Operand, sole_float_reader
from detent.twin.arithmetic import Kernel, Maker, Step
from detent.twin.float_ops import float_kernel, only_moves
from detent.twin.requantize import dequantize

__all__ = ["Chain", "chain", "float_step", "lower", "move_step"]


@dataclass(frozen=True)
class Chain:
    """A sequence of operations without quantization in between, and how its output is read.

    `encoding` is the one grid on which all readers read `output`; None if it is read in float, or on several grids.
    """

    ops: tuple[Op, ...]
    output: str
    encoding: Encoding | None

    @property
    def writes(self) -> tuple[Operand, ...]:
        return (Operand(self.output, self.encoding),)


def chain(graph: Network, op: Op, follow: Container[str] = (), most: int | None = None) -> Chain:
    """`op` and the operations behind it, at most `most`, whose types are in `follow`, as long as each alone reads the
    one before, in float (no Q in between), and the network does not give it."""
    ops = [op]
    while most is None or len(ops) <= most:
        tensor = ops[-1].outputs[0]
        following = sole_float_reader(graph, tensor)
        if following is None or following.type not in follow or following.inputs[0] != Operand(tensor):
            break
        ops.append(following)
    output = ops[-1].outputs[0]
    return Chain(tuple(ops), output, graph.grid_of(output))


def lower(graph: Network, makers: Mapping[str, Maker]) -> list[Step]:
    """A step for every operation: from the maker for its type if it returns one, otherwise in float (`float_step`). A
    step stands at its last operation, so that all its inputs exist."""
    place = {op.outputs[0]: index for index, op in enumerate(graph.ops)}
    taken: set[str] = set()
    steps: list[Step] = []
    for op in graph.ops:
        if op.outputs[0] in taken:
            continue
        maker = makers.get(op.type)
        step = maker(graph, op) if maker is not None else None
        step = step or float_step(graph, op)
        taken.update(each.outputs[0] for each in step.ops)
        steps.append(step)
    return sorted(steps, key=lambda step: max(place[op.outputs[0]] for op in step.ops))


def float_step(graph: Network, op: Op, function: Kernel | None = None) -> Step:
    """Dequantize the inputs, compute in float32, return floats; `function` replaces the reference kernel (see
    `float_ops`)."""
    compute = float_kernel(graph, op) if function is None else partial(function, op)
    encodings = [None if read is None else read.encoding for read in op.arguments]

    def kernel(*inputs: Any) -> Any:
        real = [
            value if encoding is None else dequantize(value, encoding)
            for value, encoding in zip(inputs, encodings, strict=True)
        ]
        return compute(*real)

    return Step((op,), op.arguments, tuple(Operand(name) for name in op.outputs if name), kernel, "float")


def move_step(graph: Network, op: Op) -> Step | None:
    """Data movement (`float_ops.only_moves`) on codes; None if the grids before and after differ or have several
    scales."""
    data = op.inputs[0]
    if not only_moves(op) or data is None or data.encoding is None or not data.encoding.per_tensor:
        return None
    if any(graph.grid_of(name) != data.encoding for name in op.outputs if name):
        return None
    writes = tuple(Operand(name, data.encoding) for name in op.outputs if name)
    return Step((op,), op.inputs, writes, float_kernel(graph, op), "moved")
