"""The float run and the quantized run of one graph side by side, a few nodes at a time.

Only live values are kept, so a network of any depth is walked through once, and every layer sees the improvements made
before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from detent.algorithms.common.batches import run
from detent.algorithms.common.binding import Values, bound_inputs
from detent.algorithms.common.floating import as_float, evaluating
from detent.algorithms.common.layers import modules_of, regions_of
from detent.graph import PreparedModel, Region

__all__ = ["RecordedCall", "Walk", "compute", "walks"]

_MOST_BYTES = 1_200_000_000  # of values alive in both runs; with what computing needs this stays below 2 GB


class RecordedCall:
    """One call of a graph: its live values in the float run and in the quantized run."""

    def __init__(self, wanted: Values, got: Values, *, held_back: bool):
        self.wanted, self.got, self.held_back = wanted, got, held_back


class Walk:
    """The calls of one graph, all at the same node; as many calls as keep at most `most_bytes` alive (1.2 GB if
    None)."""

    def __init__(
        self,
        prepared: PreparedModel,
        path: str,
        region: Region,
        mode: str,
        calls: Sequence[RecordedCall],
        *,
        most_bytes: float | None = None,
    ):
        self.prepared, self.path, self.region, self.mode = prepared, path, region, mode
        self.graph = region.graphs[mode]
        self.modules = modules_of(region)
        self._nodes = list(self.graph.nodes)
        self._index = {node: index for index, node in enumerate(self._nodes)}
        self._last = {node: max((self._index[user] for user in node.users), default=-1) for node in self._nodes}
        self._at = 0
        self.calls = self._that_fit(calls, _MOST_BYTES if most_bytes is None else most_bytes)
        self.left_out = len(calls) - len(self.calls)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the report."""
        return (f"{self.left_out} batches are left out, for memory",) if self.left_out else ()

    @property
    def nodes(self) -> Sequence[fx.Node]:
        return self._nodes

    @property
    def position(self) -> int:
        """The number of nodes already run."""
        return self._at

    def index(self, node: fx.Node) -> int:
        return self._index[node]

    def to(self, node: fx.Node) -> None:
        """Run everything before `node`, which must not be behind the current position."""
        end = self._index[node]
        if end <= self._at:
            return
        passed, self._at = self._nodes[self._at : end], end
        with torch.no_grad():
            with as_float(self.prepared):
                for call in self.calls:
                    self._advance(passed, call.wanted, end)
            for call in self.calls:
                self._advance(passed, call.got, end)

    def train_calls(self) -> list[RecordedCall]:
        return [call for call in self.calls if not call.held_back]

    def judge_calls(self) -> list[RecordedCall]:
        return [call for call in self.calls if call.held_back]

    def _that_fit(self, calls: Sequence[RecordedCall], most_bytes: float) -> list[RecordedCall]:
        """As many calls as fit into memory, at least one to learn from and one to judge by."""
        each = max(self._bytes_alive() * 2, 1)
        if len(calls) * each <= most_bytes:
            return list(calls)
        fit = max(1, int(most_bytes / each))
        judge = [call for call in calls if call.held_back][: max(1, fit // 4)]
        return [call for call in calls if not call.held_back][: max(1, fit - len(judge))] + judge

    def _bytes_alive(self) -> int:
        """The peak memory of one call, by the shapes recorded while capturing."""
        alive = most = 0
        for index, node in enumerate(self._nodes):
            alive += _bytes(node)
            most = max(most, alive)
            alive -= sum(_bytes(source) for source in {*node.all_input_nodes, node} if self._last[source] <= index)
        return most

    def _advance(self, nodes: Iterable[fx.Node], values: Values, end: int) -> None:
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                values[node] = compute(node, values, self.modules, self.region)
        for node in [node for node in values if self._last[node] < end]:
            del values[node]


def _bytes(node: fx.Node) -> int:
    return 4 * math.prod(node.meta.get("shape", ())) if node.op not in ("get_attr", "output") else 0


def compute(node: fx.Node, values: Mapping[fx.Node, Any], modules: Mapping[str, nn.Module], root: nn.Module) -> Any:
    """The value of a node, from the values before it."""
    if node.op == "get_attr":
        value: Any = root
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value
    args: Any = fx.node.map_arg(node.args, lambda source: values[source])
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda source: values[source])
    if node.op == "call_module":
        return modules[str(node.target)](*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    function: Callable[..., Any] = node.target  # type: ignore[assignment]
    return function(*args, **kwargs)


def walks(prepared: PreparedModel, train: Sequence[Any], judge: Sequence[Any]) -> Iterator[Walk]:
    """A walk through every graph that the batches reach, outer regions first. The inputs of a region inside a graph
    break are recorded when its turn comes, so they reflect earlier improvements. The model is in eval mode
    meanwhile."""
    with evaluating(prepared):
        for path, region in sorted(
            regions_of(prepared).items(), key=lambda item: item[0].count(".") if item[0] else -1
        ):
            yield from _walks_of(prepared, path, region, train, judge)


def _walks_of(
    prepared: PreparedModel, path: str, region: Region, train: Sequence[Any], judge: Sequence[Any]
) -> Iterator[Walk]:
    calls: dict[str, list[RecordedCall]] = {}
    for held_back, batches in ((False, train), (True, judge)):
        with as_float(prepared):
            wanted = _inputs(prepared, region, batches)
        got = _inputs(prepared, region, batches)
        # Another number of calls means that quantizing has changed the way through the Python of a graph break.
        for (mode, values), (other, quantized) in zip(wanted, got, strict=False):
            if mode == other:
                calls.setdefault(mode, []).append(RecordedCall(values, quantized, held_back=held_back))
    for mode, found in calls.items():
        if any(call.held_back for call in found) and not all(call.held_back for call in found):
            yield Walk(prepared, path, region, mode, found)


def _inputs(prepared: PreparedModel, region: Region, batches: Sequence[Any]) -> list[tuple[str, Values]]:
    """The mode and placeholder values of each call of a region when the model runs on the batches."""
    found: list[tuple[str, Values]] = []
    with _recording(region, found, stop=region is prepared):
        for batch in batches:
            try:
                run(prepared, batch)
            except _StopError:
                continue
    return found


class _StopError(Exception):
    """Ends a run early: the rest is not needed."""


@contextmanager
def _recording(region: Region, found: list[tuple[str, Values]], *, stop: bool) -> Iterator[None]:
    runners = region.runners
    kept = dict(runners)

    def recorder(mode: str, runner: fx.GraphModule) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found.append((mode, bound_inputs(runner, args, kwargs)))
            if stop:
                raise _StopError
            return runner(*args, **kwargs)

        return call

    for mode, runner in kept.items():
        runners[mode] = recorder(mode, runner)  # type: ignore[assignment]
    try:
        yield
    finally:
        runners.update(kept)
