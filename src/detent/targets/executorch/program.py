"""The file for ExecuTorch: a .pte whose quantized operations run in its XNNPACK delegate."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from detent.errors import DeployError, DetentError
from detent.ir import Network
from detent.ir.fixed_sizes import with_fixed_sizes
from detent.ir.torch_module import FloatGrids, Grids, TorchGraph, with_linear_layers
from detent.targets.base import Deployment, Format, Written
from detent.targets.base.format import Roles
from detent.targets.executorch.functions import OWN_FUNCTIONS
from detent.targets.executorch.graph import with_float_weights, with_own_biases, with_planes, with_rounded_tokens
from detent.targets.executorch.grids import DecomposedGrids, GroupGrids
from detent.targets.executorch.kernels import would_mistake
from detent.targets.executorch.partition import (
    is_dequantize,
    pads_for_floats,
    real_numbers_between,
    xnnpack_partitioner,
)
from detent.targets.executorch.places import Reading, operation_of, places, reading_of

__all__ = ["FORMAT", "FORMAT_8DA4W", "PLACES_FILE", "PTE_FILE", "ExecutorchFormat", "lower_executorch"]

PTE_FILE, PLACES_FILE = "model.pte", "model.places.json"
_BATCH = 1


class ExecutorchFormat(Format):
    """The program, and how each ONNX operation runs in it. Grids cannot be read back: the delegate has its own file.

    `rounds_tokens`: weights alone are on grids, and layers round activations token by token while the program runs.
    """

    files: Mapping[str, Roles | None] = {PTE_FILE: None, PLACES_FILE: None}
    weights = PTE_FILE
    operators = frozenset(OWN_FUNCTIONS)
    requires = ("executorch", "executorch")

    def __init__(self, name: str, *, rounds_tokens: bool = False):
        self.name, self._rounds_tokens = name, rounds_tokens

    def write(self, deployment: Deployment) -> Written:
        content, found = lower_executorch(deployment.graph, rounds_tokens=self._rounds_tokens)
        notes = ["the .pte file takes one sample at a time: ExecuTorch's sizes are fixed when it is written"]
        in_float = [name for name, (_, place) in found.items() if place.startswith("float")]
        if in_float:
            notes.append(f"ExecuTorch runs in float: {', '.join(in_float)}")
        return Written({PTE_FILE: content, PLACES_FILE: json.dumps(found, indent=1).encode()}, tuple(notes))


FORMAT = ExecutorchFormat("pte")
FORMAT_8DA4W = ExecutorchFormat("pte_8da4w", rounds_tokens=True)


def lower_executorch(
    graph: Network, *, as_float: bool = False, rounds_tokens: bool = False
) -> tuple[bytes, dict[str, tuple[str, str]]]:
    """A .pte file, and for each operation its type and where it runs: "integer", "folded", "float ..."."""
    samples = tuple(_sample(name, port.dtype, port.shape) for name, port in graph.inputs.items())
    grids = FloatGrids() if as_float else GroupGrids() if rounds_tokens else DecomposedGrids()
    with _quiet():
        with _refusing():  # such as a network that runs with one size of batches only
            fixed = with_own_biases(with_planes(with_linear_layers(with_fixed_sizes(graph, samples))))
            if rounds_tokens and not as_float:
                fixed = with_rounded_tokens(fixed)
        lowered, edge = _lowered(fixed, grids, samples)
        found = places(graph, lowered, edge.exported_program())
        with _refusing():
            program = edge.to_executorch()
        _check_kernels(program.executorch_program)
        content = bytes(program.buffer)
        _check(content, TorchGraph(lowered, grids, OWN_FUNCTIONS).eval(), samples)
        return content, found


def _lowered(graph: Network, grids: Grids, samples: tuple[Tensor, ...]) -> tuple[Network, Any]:
    """The network as it was written in the end, and ExecuTorch's program, with the parts that run in the delegate.

    What is in its way is seen only when ExecuTorch has chosen what goes to the delegate; then it is written again.
    """
    outside: frozenset[str] = frozenset()
    crossings: frozenset[Reading] = frozenset()
    while True:
        written = with_float_weights(graph, outside)
        edge, seen = _edge(written, grids, samples, crossings)
        left = frozenset() if edge is None else _left_outside(written, edge.exported_program())
        if edge is not None and left <= outside:
            return written, edge
        crossings, outside = crossings | seen, outside | left


def _edge(
    graph: Network, grids: Grids, samples: tuple[Tensor, ...], crossings: frozenset[Reading]
) -> tuple[Any, frozenset[Reading]]:
    """ExecuTorch's program with real numbers at `crossings`; or None, and further crossings."""
    from executorch.exir import to_edge_transform_and_lower

    def takes(node: Any) -> bool:
        index = None if is_dequantize(node) else operation_of(node)
        return index is None or not (would_mistake(graph, graph.ops[index]) or pads_for_floats(node))

    partitioner = xnnpack_partitioner(takes)
    try:
        with _refusing():
            # Not strict: the tracer behind `strict` does not know the Q and DQ operators.
            exported = torch.export.export(TorchGraph(graph, grids, OWN_FUNCTIONS).eval(), samples, strict=False)
            change = real_numbers_between(lambda node: reading_of(node) in crossings)
            return to_edge_transform_and_lower(
                exported, transform_passes=[change], partitioner=[partitioner]
            ), frozenset()
    except DeployError:
        seen = {reading_of(node) for node in partitioner.crossings}
        found = frozenset(reading for reading in seen if reading is not None) - crossings
        if not found:
            raise
        return None, found


def _left_outside(graph: Network, program: Any) -> frozenset[str]:
    """Outputs of the layers whose weights are still codes outside of the delegate."""
    restored = [node for node in program.graph.nodes if "dequantize_per_channel" in str(node.target)]
    indices = {operation_of(user) for node in restored for user in node.users}
    return frozenset(graph.ops[index].outputs[0] for index in indices if index is not None)


@contextmanager
def _refusing() -> Iterator[None]:
    """What ExecuTorch raises is a refusal of the network."""
    try:
        yield
    except DetentError:
        raise
    except Exception as error:  # of many kinds: assertions, plain exceptions, torch's own
        cause = "" if error.__cause__ is None else f" ({error.__cause__!r})"
        raise DeployError(
            "write a .pte file",
            f"ExecuTorch does not lower the network: {str(error) or type(error).__name__}{cause}",
            "replace the operation that it names, or choose another target",
        ) from error


def _check_kernels(program: Any) -> None:
    """Refuse a program that calls what ExecuTorch has no kernel for: it would write it, and say a number at loading."""
    from executorch.extension.pybindings import portable_lib

    known = set(portable_lib._get_operator_names())
    called = {f"{op.name}.{op.overload}" for plan in program.execution_plan for op in plan.operators}
    missing = sorted(called - known)
    if missing:
        raise DeployError(
            "write a .pte file",
            f"neither ExecuTorch's delegate nor its portable kernels have {', '.join(missing)}",
            "replace that operation by others, or choose another target",
        )


def _check(content: bytes, module: TorchGraph, samples: tuple[Tensor, ...]) -> None:
    """Refuse a file that ExecuTorch does not load, or with which it computes something else than torch does: its
    delegate finds some faults only then, and mistakes the order of channels of codes that leave it and come back."""
    from executorch.runtime import Runtime

    try:
        program = Runtime.get().load_program(content)
        found = program.load_method("forward").execute(samples)
    except RuntimeError as error:
        raise DeployError(
            "write a .pte file",
            f"ExecuTorch writes it and does not run it: {error}",
            "see what ExecuTorch printed, keep that operation in float, or choose another target",
        ) from None
    with torch.no_grad():
        expected = module(*samples)
    if not all(_is_near(ours, theirs) for ours, theirs in zip(expected, found, strict=True)):
        raise DeployError(
            "write a .pte file",
            "ExecuTorch runs it and computes something else",
            "exclude the operations of the plan that are next to one that its delegate does not take, such as a slice",
        )


def _is_near(ours: Tensor, theirs: Tensor) -> bool:
    """Whether at least half of the numbers agree to a sixteenth of the largest: a mistake of layout is none of
    rounding, which may flip a few steps of 8 bits."""
    if not ours.is_floating_point():
        return True
    largest = float(ours.abs().amax()) if ours.numel() else 0.0
    return float(((ours - theirs).abs() <= largest / 16).double().mean()) >= 0.5 if largest else True


def _sample(name: str, dtype: str, shape: tuple[int | str, ...]) -> Tensor:
    if any(isinstance(size, str) for size in shape[1:]):
        raise DeployError(
            f"write the input {name!r} of shape {shape} to a .pte file",
            "only the batch may be free: ExecuTorch's sizes are fixed",
            "deploy with example inputs of the size to run",
        )
    sizes = [_BATCH if isinstance(size, str) else size for size in shape]
    kind = getattr(torch, dtype)
    if not kind.is_floating_point:
        return torch.zeros(sizes, dtype=kind)
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0), dtype=kind)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of packages that ExecuTorch imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
