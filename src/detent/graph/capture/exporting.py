"""The second way from a module to an fx graph, where symbolic tracing cannot go on: it runs inside of torch.export.

torch.export runs the Python code of a module on tensors without numbers, whose sizes are symbols. Code that depends on
sizes, keyword arguments or structure runs as it does in PyTorch; code that depends on numbers is refused. What the
module calls meanwhile is recorded, so that the graph has the operations, modules and names of a traced one.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from detent.errors import CaptureError
from detent.graph.capture.out_of_place import write_out_of_place
from detent.graph.capture.recording import CallRecorder
from detent.graph.capture.replaying import (
    NumericSizes,
    ReadsNumbersError,
    join_runs,
    refuse_other_inputs,
    refuse_reading,
)
from detent.graph.capture.running import Inputs, arguments_of, flat, fresh, map_tensors
from detent.graph.capture.shape_guards import as_traced, doubled
from detent.graph.decompositions.table import without_fast_path

__all__ = ["Attributes", "ExportedGraph", "Exporter", "attributes_of"]

Attributes = Mapping[nn.Module, Mapping[str, Any]]

_PARTS = frozenset(("training", "_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"))


def attributes_of(root: nn.Module) -> Attributes:
    """The plain attributes and hooks of every module, where code may keep state from one call to the next."""
    return {
        module: {k: copy.copy(v) if "_hooks" in k else v for k, v in vars(module).items() if k not in _PARTS}
        for module in root.modules()
    }


class ExportedGraph(NamedTuple):
    """A graph, the modules in it that must not work in place any more, and the classes of what it does not return."""

    graph: fx.Graph
    in_place: set[str]
    dropped: list[str]


class Exporter:
    """Exports one module with the inputs it is called with. `attributes` are those it had before it first ran."""

    def __init__(
        self, module: nn.Module, inputs: Inputs, attributes: Attributes, is_leaf: Callable[[nn.Module, str], bool]
    ):
        self._module, self._inputs, self._is_leaf = module, inputs, is_leaf
        self._attributes = {each: attributes[each] for each in module.modules() if each in attributes}

    def export(self, constants: Mapping[str, Any], *, owns_inputs: bool) -> ExportedGraph:
        """The graph, which does not take the arguments in `constants`. The error is the first of several attempts'."""
        larger = doubled(self._inputs)  # torch.export takes a size of 1 for a constant
        first: Exception | None = None
        for free in (None, 1):
            try:
                recorder, ranges = self._recorded(larger, constants, free)
                _refuse_other_sizes(recorder, ranges)
            except Exception as error:  # torch's own, or the model's
                first = first or error
                continue
            return self._completed(recorder, owns_inputs)
        assert first is not None
        raise first

    def replay(self, constants: Mapping[str, Any], *, owns_inputs: bool) -> ExportedGraph:
        """The graph of what is called when the module runs, on two batches. On one if it takes no other."""
        larger = doubled(self._inputs)
        try:
            recorder = self._replayed(larger, constants)
        except ReadsNumbersError:
            raise
        except Exception:  # the model's, which has the batch size built in
            recorder = self._replayed(self._inputs, constants)
            refuse_other_inputs(recorder.graph, recorder.inputs, None)
            return self._completed(recorder, owns_inputs)
        other = self._replayed(doubled(larger), constants)
        if not all(torch.equal(held, other.constants[name]) for name, held in recorder.constants.items()):
            raise CaptureError("capture", "its code makes other tensors for another batch", "")
        join_runs(recorder.graph, other.graph, recorder.inputs, other.inputs)
        refuse_other_inputs(recorder.graph, recorder.inputs, other.inputs)
        return self._completed(recorder, owns_inputs)

    def _completed(self, recorder: CallRecorder, owns_inputs: bool) -> ExportedGraph:
        for name, tensor in recorder.constants.items():
            self._module.register_buffer(name, tensor.detach(), persistent=False)
        in_place = write_out_of_place(recorder.graph, self._module, owns_inputs=owns_inputs)
        recorder.graph.eliminate_dead_code(_has_effect)
        recorder.graph.lint()
        return ExportedGraph(recorder.graph, in_place, recorder.dropped)

    def _replayed(self, inputs: Inputs, constants: Mapping[str, Any]) -> CallRecorder:
        """The calls recorded while the module runs on `inputs`."""
        recorder = CallRecorder(self._module, self._is_leaf, sizes=NumericSizes(), check=refuse_reading)
        given = fresh(inputs)
        tensors = [value for value in flat(tuple(given)) if isinstance(value, Tensor)]
        self._add_inputs(recorder, given, constants, tensors)
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        with self._as_before_running(), torch.no_grad(), _quietly(), without_fast_path():
            recorder.record(lambda: self._module(*given.args, **given.kwargs))
            for buffer, before in buffers:
                buffer.copy_(before)
        return recorder

    def _recorded(
        self, inputs: Inputs, constants: Mapping[str, Any], free: int | None
    ) -> tuple[CallRecorder, Mapping[Any, Any]]:
        """What is called when the module runs on `inputs`, of whose sizes so many leading ones are free (None: all, of
        batches of images one), and which numbers they may be."""
        recorders: list[CallRecorder] = []

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            waiting = iter(tensors)
            given = Inputs(*map_tensors(tuple(inputs), lambda _: next(waiting)))
            recorder = CallRecorder(self._module, self._is_leaf)
            self._add_inputs(recorder, given, constants, tensors)
            with self._as_before_running():
                result = recorder.record(lambda: self._module(*given.args, **given.kwargs))
            recorders.append(recorder)
            return tuple(value for value in flat(result) if isinstance(value, Tensor))

        tensors = [value for value in flat(tuple(inputs)) if isinstance(value, Tensor)]
        # Expressions of heights and widths go through every window of a network, which takes torch minutes to prove.
        counts = [1 if free is None and tensor.ndim > 3 else free for tensor in tensors]
        axes = [range(tensor.ndim)[:count] for tensor, count in zip(tensors, counts, strict=True)]
        sizes = tuple(dict.fromkeys(each, torch.export.Dim.AUTO) for each in axes)
        with _quietly(), without_fast_path():
            program = torch.export.export(
                _Wrapped(self._module, run), tuple(tensors), dynamic_shapes=(sizes,), strict=False
            )
        return recorders[-1], program.range_constraints

    def _add_inputs(
        self, recorder: CallRecorder, given: Inputs, constants: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> None:
        examples = zip(_shapes(self._inputs), _shapes(doubled(self._inputs)), strict=True)
        shapes = {id(tensor): pair for tensor, pair in zip(tensors, examples, strict=True)}
        various = {name for name, one in inspect.signature(self._module.forward).parameters.items() if "*" in str(one)}
        for name, value in arguments_of(self._module, given).items():
            if name in constants or name in various:
                continue
            node = recorder.graph.placeholder(name)
            recorder.add_input(value, node, shapes)
            if not any(isinstance(part, Tensor) for part in flat(value)):
                held = recorder.graph.call_function(operator.eq, (node, value))
                recorder.graph.call_function(as_traced, (held, True))

    @contextmanager
    def _as_before_running(self) -> Iterator[None]:
        """A context in which modules have the attributes they had before running; changes inside are discarded."""
        now = {module: dict(vars(module)) for module in self._module.modules()}
        buffers = {module: dict(module._buffers) for module in now}
        try:
            for module, held in self._attributes.items():
                _set(module, {k: copy.copy(v) if "_hooks" in k else v for k, v in held.items()})
            yield
        finally:
            for module, held in now.items():
                _set(module, held)
                module._buffers.update(buffers[module])


class _Wrapped(nn.Module):
    """A module with the signature that torch.export needs: tensors in, tensors out."""

    def __init__(self, module: nn.Module, run: Callable[..., tuple[Tensor, ...]]):
        super().__init__()
        self.module, self.run = module, run

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.run(*tensors)


def _set(module: nn.Module, attributes: Mapping[str, Any]) -> None:
    for name in vars(module).keys() - _PARTS - attributes.keys():
        del vars(module)[name]
    vars(module).update(attributes)


def _shapes(inputs: Inputs) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in flat(tuple(inputs)) if isinstance(value, Tensor)]


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or node.target is as_traced


def _refuse_other_sizes(recorder: CallRecorder, ranges: Mapping[Any, Any]) -> None:
    """Nodes that check sizes that code has decided by, or that torch.export could not leave free."""
    graph = recorder.graph
    last = [node for node in graph.nodes if node.op == "placeholder" or node in recorder.inputs][-1]
    with graph.inserting_before(last.next):
        for node, shape in recorder.inputs.items():
            for axis, size in enumerate(shape):
                expression = size.node.expr if isinstance(size, torch.SymInt) else size
                limits = ranges.get(expression)
                checks: list[tuple[Callable[..., Any], int]] = []
                if isinstance(expression, int) or getattr(expression, "is_Integer", False):
                    checks.append((operator.eq, int(expression)))
                elif limits is not None:
                    checks += [(operator.ge, int(limits.lower))] if limits.lower > 2 else []
                    checks += [(operator.le, int(limits.upper))] if limits.upper.is_Integer else []
                for holds, number in checks:
                    asked = graph.call_method("size", (node, axis))
                    graph.call_function(as_traced, (graph.call_function(holds, (asked, number)), True))


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppresses torch.export's output about failures, which the error message contains."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
