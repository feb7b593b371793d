"""PPQ's error analyses, as `detent.algorithms.analyze` measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from detent.algorithms import Analysis, analyze
from detent.compat.ppq.graph import BaseGraph
from detent.errors import NotCalibratedError, UnknownNameError

__all__ = ["graphwise_error_analyse", "layerwise_error_analyse"]


def layerwise_error_analyse(
    graph: BaseGraph,
    running_device: str,
    dataloader: Iterable[Any],
    collate_fn: Callable[[Any], Any] | None = None,
    method: str = "snr",
    steps: int = 8,
    verbose: bool = True,
) -> dict[str, float]:
    """For each operation, the noise over signal at the network's outputs that its own tensors cost.

    The costs of an operation's weight and of what it takes in are measured one at a time and added.
    """
    costs = {loss.tensor: loss.cost for loss in _analyzed(graph, running_device, dataloader, collate_fn, steps).tensors}
    _check_method(method, ("snr",))
    found = {}
    for operation in graph.topological_sort():
        own = [costs[str(one.tensor)] for one in operation.inputs if one.tensor in costs and operation.config]
        if own and operation.is_computing_op:
            found[operation.name] = sum(own)
    return _shown(found, "noise of the outputs by layer", verbose)


def graphwise_error_analyse(
    graph: BaseGraph,
    running_device: str,
    dataloader: Iterable[Any],
    collate_fn: Callable[[Any], Any] | None = None,
    method: str = "snr",
    steps: int = 8,
    verbose: bool = True,
) -> dict[str, float]:
    """For each operation, how far what it takes in has come from the float network's, as noise over signal or cosine.

    All that comes before it is quantized.
    """
    _check_method(method, ("snr", "cosine"))
    losses = {one.tensor: one for one in _analyzed(graph, running_device, dataloader, collate_fn, steps).tensors}
    found: dict[str, float] = {}
    for operation in graph.topological_sort():
        loss = losses.get(operation.inputs[0].tensor or "") if operation.inputs else None
        if operation.config is None or loss is None or loss.accumulated is None or loss.accumulated_cosine is None:
            continue
        found[operation.name] = loss.accumulated_cosine if method == "cosine" else 10 ** (-loss.accumulated / 10)
    return _shown(found, "noise of the inputs, accumulated", verbose)


def _analyzed(
    graph: BaseGraph, device: str, dataloader: Iterable[Any], collate_fn: Callable[[Any], Any] | None, steps: int
) -> Analysis:
    if graph.prepared is None:
        raise NotCalibratedError(f"analyze {graph.name!r}", "it has not been quantized", "quantize it first")
    graph.prepared.to(device)
    return analyze(graph.prepared, [collate_fn(one) if collate_fn else one for one in islice(dataloader, steps)])


def _check_method(method: str, known: tuple[str, ...]) -> None:
    if method not in known:
        raise UnknownNameError(f"the method {method!r}", f"not one of {', '.join(known)}", "use one of these")


def _shown(found: dict[str, float], title: str, verbose: bool) -> dict[str, float]:
    if verbose:
        print(title)
        for name, value in sorted(found.items(), key=lambda one: -one[1]):
            print(f"  {name}: {value:.3e}")
    return found
