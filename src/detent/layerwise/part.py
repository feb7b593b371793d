"""One part of a language model: prepared, calibrated, improved by the recipe's algorithms, and turned into codes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn

from detent.algorithms import ALGORITHMS, Change, Layer, all_layers, run_algorithm
from detent.algorithms.common.binding import bound_inputs
from detent.algorithms.common.floating import evaluating
from detent.algorithms.common.layers import regions_of
from detent.algorithms.common.piecewise import Skipped
from detent.algorithms.common.walk import RecordedCall, Walk
from detent.errors import CaptureError, DeployError
from detent.graph import PreparedModel, QuantizedTensor, observing
from detent.layerwise.skeleton import LayerCall
from detent.numerics import IntGrid, PerGroup
from detent.planning import Backend
from detent.preparing import prepare
from detent.quantizers import Fixed
from detent.recipes import Match, Recipe, Rule, TensorRequest
from detent.targets.base.blocks import Blocks

__all__ = ["Part", "Quantized", "Run", "quantize_part"]

_EXAMPLES = 2  # rows to trace with: torch.export takes a size of 1 for a constant


class Part(NamedTuple):
    """A module with its weights, its name inside of the model of transformers, and its name in recipes; the prefix is
    empty, or what names of layers begin with there."""

    module: nn.Module
    name: str
    prefix: str

    def full(self, layer: str) -> str:
        return f"{self.name}.{layer}" if self.name else layer


@dataclass
class Run:
    """Hidden states on their way through the model, a tensor for each batch: in the float model, in the quantized one,
    and, of the batches that judge, in the one that the algorithm has not improved. The last `judges` of them judge."""

    wanted: list[Tensor]
    got: list[Tensor]
    before: list[Tensor]
    judges: int

    @classmethod
    def begun(cls, hidden: Sequence[Tensor], judges: int, *, compares: bool) -> Run:
        return cls(list(hidden), list(hidden), list(hidden[len(hidden) - judges :]) if compares else [], judges)

    def tensors(self) -> dict[str, Tensor]:
        named = (("wanted", self.wanted), ("got", self.got), ("before", self.before))
        return {f"{name}.{index}": tensor for name, held in named for index, tensor in enumerate(held)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], judges: int) -> Run:
        def held(name: str) -> list[Tensor]:
            count = sum(key.startswith(f"{name}.") for key in tensors)
            return [tensors[f"{name}.{index}"] for index in range(count)]

        return cls(held("wanted"), held("got"), held("before"), judges)


class Quantized(NamedTuple):
    """What became of a part: its weights in blocks by their full names, the plan's lines, the algorithm's."""

    blocks: dict[str, Blocks]
    plan: list[dict[str, str]]
    changes: list[Change]
    skipped: dict[str, str]


def quantize_part(
    part: Part,
    recipe: Recipe,
    backend: Backend,
    calls: Sequence[LayerCall],
    example: Tensor,
    run: Run | None,
    *,
    passes: bool = True,
) -> Quantized:
    """Quantize the linear layers of a part, whose calls have the shapes of `example`. With a run, its hidden states
    become those that come out of the part, unless it is the last: `passes` False."""
    asked = _requests(part, recipe)
    if all(request.quantize is False for request in asked.values()):
        if run is not None and passes:
            for states in (run.wanted, run.got, run.before):
                _pass(part.module, calls, states)
        return Quantized({}, [_float(part, name, "the recipe says so") for name in asked], [], {})
    prepared = _prepared(part, recipe, asked, backend, calls[0], example)
    layers = {part.full(f"{one.name}.weight"): one for one in all_layers(prepared) if one.quantizer is not None}
    for name, layer in layers.items():
        _require_blocks(name, layer)
    with observing(prepared):
        for layer in layers.values():
            _ = layer.module.weight  # weights alone have quantizers, which see them so
    changes, skipped = _improve(prepared, recipe, calls, run, passes=passes)
    return Quantized(
        {name: _blocks(name, layer) for name, layer in layers.items()},
        [*_plan(part, prepared, asked)],
        [replace(change, place=part.full(change.place)) for change in changes],
        {part.full(place): reason for place, reason in skipped.items()},
    )


def _requests(part: Part, recipe: Recipe) -> dict[str, TensorRequest]:
    """What the recipe asks for the weight of each linear layer, by its name in the part."""
    return {
        name: recipe.for_tensor("weight", part.prefix + part.full(name), "linear")
        for name, one in part.module.named_modules()
        if isinstance(one, nn.Linear)
    }


def _prepared(
    part: Part,
    recipe: Recipe,
    asked: Mapping[str, TensorRequest],
    backend: Backend,
    call: LayerCall,
    example: Tensor,
) -> PreparedModel:
    rules = tuple(Rule(match=Match(name=name), weight=request) for name, request in asked.items())
    own = Recipe(name=recipe.name, weight=recipe.weight, activation=TensorRequest(quantize=False), rules=rules)
    args, kwargs = _few_rows(call, len(example))
    prepared = prepare(
        part.module, (example[:_EXAMPLES], *args), example_kwargs=kwargs, backend=backend, recipe=own, inplace=True
    )
    regions = regions_of(prepared)
    if list(regions) != [""] or len(prepared.graphs) != 1:
        found = f"it is captured as {len(regions)} graphs"
        raise CaptureError(f"quantize {part.name} alone", found, "use --whole, which captures the model as one graph")
    return prepared


def _few_rows(call: LayerCall, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the layer is called with for the first rows of a batch."""

    def few(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(few(part) for part in value)
        return value[:_EXAMPLES] if isinstance(value, Tensor) and value.ndim and len(value) == rows else value

    return tuple(few(value) for value in call.args), {name: few(value) for name, value in call.kwargs.items()}


def _improve(
    prepared: PreparedModel, recipe: Recipe, calls: Sequence[LayerCall], run: Run | None, *, passes: bool
) -> tuple[list[Change], dict[str, str]]:
    """Run the recipe's algorithms, and take the hidden states through the part."""
    changes: list[Change] = []
    skipped: dict[str, str] = {}
    improve = None
    for one in recipe.algorithms:
        algorithm = ALGORITHMS[one.name]
        if algorithm.on_graph is not None:
            improve = algorithm.on_graph(**one.options)
        else:
            report = run_algorithm(one.name, prepared, [], one.options)
            changes += report.changes
            skipped |= report.skipped
    if run is None:
        return changes, skipped
    with evaluating(prepared):
        if passes:
            _pass(prepared, calls, run.before)
        walk = _walk(prepared, calls, run)
        for outcome in improve(walk) if improve is not None else ():
            if isinstance(outcome, Skipped):
                skipped[outcome.place] = outcome.reason
            else:
                changes.append(outcome)
        if passes:
            end = next(node for node in walk.nodes if node.op == "output")
            walk.to(end)
            run.wanted = [_output(end, call.wanted) for call in walk.calls]
            run.got = [_output(end, call.got) for call in walk.calls]
    return changes, skipped


def _walk(prepared: PreparedModel, calls: Sequence[LayerCall], run: Run) -> Walk:
    """Both runs at the beginning of the part. The run lets go of its hidden states: there is one copy of them."""
    ((mode, runner),) = prepared.runners.items()
    learning = len(calls) - run.judges
    recorded = []
    for index, call in enumerate(calls):
        wanted, got = (
            bound_inputs(runner, (states.pop(0), *call.args), dict(call.kwargs)) for states in (run.wanted, run.got)
        )
        recorded.append(RecordedCall(wanted, got, held_back=index >= learning))
    return Walk(prepared, "", prepared, mode, recorded, most_bytes=math.inf)


def _output(end: fx.Node, values: Mapping[fx.Node, Any]) -> Tensor:
    given = end.args[0]
    return _first(values[given] if isinstance(given, fx.Node) else fx.node.map_arg(given, lambda node: values[node]))


def _first(value: Any) -> Tensor:
    found: Tensor = value[0] if isinstance(value, (list, tuple)) else value
    return found


@torch.no_grad()
def _pass(module: nn.Module, calls: Sequence[LayerCall], states: list[Tensor]) -> None:
    """Take hidden states, those of the last calls, through a part."""
    own = calls[len(calls) - len(states) :]
    states[:] = [_first(module(x, *call.args, **call.kwargs)) for x, call in zip(states, own, strict=True)]


def _require_blocks(name: str, layer: Layer) -> None:
    quantizer = layer.quantizer
    assert quantizer is not None
    scheme = quantizer.scheme
    asked = f"quantize {name} a layer at a time"
    if not isinstance(scheme.grid, IntGrid) or not isinstance(scheme.granularity, PerGroup):
        raise DeployError(asked, f"it is to be {scheme}", "ask for integers in groups, or use --whole")
    if not isinstance(quantizer, Fixed):
        raise DeployError(asked, f"its quantizer is {type(quantizer).__name__}", "use the quantizer fixed, or --whole")


def _blocks(name: str, layer: Layer) -> Blocks:
    quantizer = layer.quantizer
    assert quantizer is not None
    grid, granularity, qparams = quantizer.scheme.grid, quantizer.scheme.granularity, quantizer.qparams()
    assert isinstance(granularity, PerGroup)
    codes = quantizer.codes(layer.weight.detach()).numpy().astype(np.int16)
    zero_point = qparams.zero_point.numpy() - grid.qmin
    return Blocks(name, grid.bits, granularity.size, codes - grid.qmin, qparams.scale.float().numpy(), zero_point)


def _plan(part: Part, prepared: PreparedModel, asked: Mapping[str, TensorRequest]) -> Iterator[dict[str, str]]:
    """A line for each linear layer: how it is quantized, or why not."""
    entries = {entry.tensor: entry for entry in prepared.plan.entries}
    for name in asked:
        entry = entries.get(f"{name}.weight")
        if isinstance(entry, QuantizedTensor):
            yield {"tensor": part.full(entry.tensor), "as": str(entry.scheme), "why": entry.why}
        else:
            yield _float(part, name, "the target has no grid for it" if entry is None else entry.reason)


def _float(part: Part, layer: str, why: str) -> dict[str, str]:
    return {"tensor": part.full(f"{layer}.weight"), "as": "float", "why": why}
