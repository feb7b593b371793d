"""The network with nodes of its own for quantization, as MQBench exports it, and the same without them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch

from detent.compat.mqbench.base import Simulating
from detent.compat.mqbench.symbolic import SymbolicGraph, Value, applied_in
from detent.graph import PreparedModel, quantizers_of
from detent.ir import DeployedTensor, Network, Op, Operand
from detent.numerics import LogGrid, Scheme
from detent.targets.base import Deployment

__all__ = ["LOGARITHMIC", "OwnNode", "own_nodes_of", "wants_own_nodes", "with_own_nodes", "without_own_nodes"]

LOGARITHMIC = "NNIEQuantize"
"""MQBench's operation for the logarithmic grid: the tensor and its greatest magnitude."""

Write = Callable[[SymbolicGraph, Value], Value]
Reads = Callable[[Op | None, Operand], bool]
"""Whether an operation, or with None an output of the network, reads a tensor as it is quantized."""


@dataclass(frozen=True, eq=False)
class OwnNode:
    """An operation that is none of ONNX and whose inputs but the first are constants."""

    op: Op
    constants: tuple[npt.NDArray[Any], ...]

    @property
    def tensor(self) -> str:
        return self.op.input_names[0]


def wants_own_nodes(prepared: PreparedModel) -> bool:
    """Whether a quantizer is a user's own, or its grid none of ONNX's."""
    return any(isinstance(one, Simulating) or _is_logarithmic(one.scheme) for one in quantizers_of(prepared))


def _is_logarithmic(scheme: Scheme) -> bool:
    """Asked by type: MQBench has an operation for this very kind of grid."""
    return isinstance(scheme.grid, LogGrid)


def with_own_nodes(prepared: PreparedModel, deployment: Deployment) -> Network | None:
    """The deployed network in which a user's Functions, and logarithmic grids, are operations; None if it has neither.

    The other tensors keep their grids.
    """
    plain = network = deployment.graph
    quantizers = {deployment.names.get(one.name, one.name): one for one in quantizers_of(prepared)}
    made: dict[str, SymbolicGraph] = {}
    for tensor in deployment.tensors:
        reads = _reads(tensor)
        for source in _sources(network, tensor, reads):
            example = _example(plain, source)
            write = _writer(tensor, quantizers.get(tensor.shares or tensor.tensor), example)
            if write is None:
                continue
            made[source] = SymbolicGraph(source)
            given = Operand(write(made[source], Value(source)).name)
            network = _reading(network, source, reads, given)
    if not made:
        return None
    weights = {source: _real(plain, source) for source in made if source in plain.constants}
    return _placed(replace(network, coded=network.coded - weights.keys()), made, weights)


def own_nodes_of(network: Network) -> Iterator[OwnNode]:
    """The own nodes of a network, in its order."""
    for op in network.ops:
        rest = op.input_names[1:]
        if not onnx.defs.has(op.type, op.domain) and all(name in network.constants for name in rest):
            yield OwnNode(op, tuple(network.constants[name] for name in rest))


def without_own_nodes(network: Network) -> Network:
    """Whoever read what such an operation gives reads the tensor itself."""
    own = {one.op.outputs[0]: one.op.reads[0] for one in own_nodes_of(network)}
    for result, source in own.items():
        network = _reading(network, result, lambda _, __: True, source)
    return replace(network, ops=tuple(op for op in network.ops if op.outputs[0] not in own)).pruned()


def _writer(tensor: DeployedTensor, quantizer: Any, example: torch.Tensor) -> Write | None:
    if _is_logarithmic(tensor.scheme):
        magnitude = torch.from_numpy(np.array(tensor.scale, np.float32))
        return lambda graph, source: graph.op(
            f"::{LOGARITHMIC}", source, graph.constant(magnitude, f"{graph.stem}/magnitude")
        )
    if not isinstance(quantizer, Simulating):
        return None
    found = applied_in(quantizer.inner, example)
    return None if found is None else found.write


def _example(network: Network, source: str) -> torch.Tensor:
    if source in network.constants:
        return torch.from_numpy(np.array(_real(network, source)))
    shape = network.shapes.get(source, (1,))
    draw = torch.Generator().manual_seed(0)
    return torch.randn([size if isinstance(size, int) else 1 for size in shape], generator=draw)


def _real(network: Network, constant: str) -> npt.NDArray[Any]:
    """What a constant stands for."""
    encoding = network.grid_of(constant)
    held = network.constants[constant]
    return held if encoding is None else encoding.dequantize(held)


def _reads(tensor: DeployedTensor) -> Reads:
    """On a grid, or where it is none of ONNX's, in an operation that is among the users."""
    if _is_logarithmic(tensor.scheme):
        anybody = tensor.role != "activation" or not tensor.users
        return lambda op, _: op is not None and (anybody or op.name in tensor.users)
    return lambda _, read: read.encoding is not None


def _sources(network: Network, tensor: DeployedTensor, reads: Reads) -> list[str]:
    """The tensors, in the order in which they are read, that hold `tensor` and are read as it is quantized."""
    ends: list[tuple[Op | None, Operand]] = [(None, output.read) for output in network.outputs]
    every = [*((op, read) for op in network.ops for read in op.reads), *ends]
    stored = {name: one.parameter for name, one in network.stored_as.items()}
    found = (read.tensor for op, read in every if reads(op, read))
    return [name for name in dict.fromkeys(found) if stored.get(name, name) == tensor.tensor]


def _reading(network: Network, source: str, reads: Reads, given: Operand) -> Network:
    """Whoever reads `source` so reads `given`."""

    def changed(op: Op | None, read: Operand) -> Operand:
        return given if read.tensor == source and reads(op, read) else read

    ops = tuple(
        replace(op, inputs=tuple(None if read is None else changed(op, read) for read in op.inputs))
        for op in network.ops
    )
    outputs = tuple(replace(output, read=changed(None, output.read)) for output in network.outputs)
    return replace(network, ops=ops, outputs=outputs)


def _placed(network: Network, made: Mapping[str, SymbolicGraph], weights: Mapping[str, npt.NDArray[Any]]) -> Network:
    """Each new operation behind what gives its tensor; weights are floats again."""
    constants = {**network.constants, **weights}
    for each in made.values():
        constants |= each.constants
    given = {name for op in network.ops for name in op.outputs}
    ops = [one for source, each in made.items() if source not in given for one in each.ops]
    for op in network.ops:
        ops += [op, *(one for name in op.outputs if name in made for one in made[name].ops)]
    domains = {op.domain: 1 for op in ops if op.domain} | dict(network.domains)
    return replace(network, ops=tuple(ops), constants=constants, domains=domains).pruned()
