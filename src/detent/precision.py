"""Mixed precision by measured latency: every layer is built alone and timed at each width, and widths are chosen within
a budget.

A layer alone has the quantization of its inputs and the way back to floats counted with it, and operations without
weights are in nobody's time: the sum is a model of the network's latency that is good for comparing widths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import parametrize

from detent.algorithms import BitChoice, Layer, all_layers, choose_precision, sensitivity
from detent.algorithms.common.layers import source_of
from detent.algorithms.mixed_precision import FLOAT_BITS
from detent.artifact import Artifact, deploy
from detent.calibrating import calibrate
from detent.errors import EngineError
from detent.files import temporary_folder
from detent.graph import PreparedModel
from detent.preparing import prepare
from detent.progress import progress
from detent.recipes import Recipe
from detent.targets.base import Engine
from detent.targets.engines import ENGINES
from detent.verification.batches import unpack_batches

__all__ = ["faster_in_float", "layer_latency", "search_precision", "time_artifacts"]

_WARM_UP = 3
_WORTH = 0.95  # of the time: a smaller gain is within what two timings differ

Prices = dict[str, dict[int, float]]


def search_precision(
    prepared: PreparedModel,
    batches: Iterable[Any],
    budget: float,
    *,
    of: Literal["latency", "size", "bit_operations"] = "latency",
    bits: Sequence[int] = (8, FLOAT_BITS),
) -> BitChoice:
    """The widths with the least noise within `budget` milliseconds (or bytes, or bit operations); 32 bits are float.

    Milliseconds are those of `layer_latency`, so the engine of the backend must be installed.
    """
    found = sensitivity(prepared, batches, bits=bits)
    return choose_precision(found, budget, of=layer_latency(prepared, bits=bits) if of == "latency" else of)


def faster_in_float(prepared: PreparedModel, **options: Any) -> dict[str, tuple[float, float]]:
    """The quantized layers that the engine runs faster in float, with the milliseconds as planned and in float.

    `options` are those of `layer_latency`.
    """
    layers = [layer for layer in all_layers(prepared) if layer.quantizer is not None]
    widths = {layer.name: layer.quantizer.scheme.grid.bits for layer in layers if layer.quantizer is not None}
    prices = layer_latency(prepared, bits=sorted({*widths.values(), FLOAT_BITS}), **options)
    both = {name: (row[widths[name]], row[FLOAT_BITS]) for name, row in prices.items()}
    return {name: (planned, plain) for name, (planned, plain) in both.items() if plain < _WORTH * planned}


def time_artifacts(artifacts: Sequence[Artifact], batch: Any, *, threads: int = 1, repeats: int = 30) -> list[float]:
    """Milliseconds of each artifact on its engine, for the first sample of `batch`: the fastest run, taking turns."""
    runs = {}
    for index, artifact in enumerate(artifacts):
        ports = artifact.graph.inputs
        inputs = next(unpack_batches([batch], ports, len(ports))).inputs
        if all(isinstance(port.shape[0], str) for port in ports.values() if port.shape):
            inputs = {name: values[:1] for name, values in inputs.items()}
        runs[index] = _run(ENGINES[artifact.manifest["engine"]].fastest(artifact, threads=threads), inputs)
    return list(_timed(runs, repeats, time.perf_counter).values())


def layer_latency(
    prepared: PreparedModel,
    *,
    bits: Sequence[int] = (8, FLOAT_BITS),
    threads: int = 1,
    repeats: int = 30,
    clock: Callable[[], float] = time.perf_counter,
) -> Prices:
    """Milliseconds of every quantized layer for one sample, at each width of its weight, on the backend's engine.

    The fastest of `repeats` runs, the widths of a layer taking turns. For `choose_precision(..., of=...)`.
    """
    engine = _engine(prepared)
    layers = {layer.name: layer for layer in all_layers(prepared) if layer.quantizer is not None}
    found: Prices = {}
    known: dict[Any, dict[int, float]] = {}
    with temporary_folder() as folder, progress("timing layers", len(layers)) as bar:
        for index, (name, layer) in enumerate(layers.items()):
            alike = _shape_of(layer)
            if alike not in known:
                built = _engines(prepared, layer, engine, bits, threads, Path(folder) / str(index))
                known[alike] = _timed(built, repeats, clock)
            found[name] = dict(known[alike])
            bar.advance(facts=name)
    return found


def _shape_of(layer: Layer) -> tuple[Any, ...]:
    """The properties that determine a layer's latency."""
    return layer.kind, layer.op.extra_repr(), tuple(layer.weight.shape), _input_shape(layer)


def _input_shape(layer: Layer) -> tuple[int, ...]:
    """The input shape for one sample."""
    source = source_of(layer.node)
    assert source is not None
    return (1, *source.meta["shape"][1:])


def _engine(prepared: PreparedModel) -> type[Engine]:
    name = prepared.backend.engine
    if name is None:
        raise EngineError(
            f"the latency of layers on {prepared.backend.name!r}",
            "no engine runs that backend here",
            "give choose_precision prices of your own, measured on the device",
        )
    engine: type[Engine] = ENGINES[name]
    engine.require()
    return engine


def _engines(
    prepared: PreparedModel, layer: Layer, engine: type[Engine], bits: Sequence[int], threads: int, folder: Path
) -> dict[int, Callable[[], Any]]:
    """The engine of one layer at each width."""
    found: dict[int, Callable[[], Any]] = {}
    x = torch.rand(_input_shape(layer))
    alone = _layer_as_network(layer)
    integer = next((width for width in bits if width < FLOAT_BITS), None)
    for width in bits:
        # Without quantization it does not matter which integers the file is made for.
        artifact = _deployed(prepared, alone, x, integer if width >= FLOAT_BITS else width, folder / str(width))
        if width >= FLOAT_BITS:
            loaded = engine.load(artifact, threads=threads, as_float=True)
        else:
            loaded = engine.fastest(artifact, threads=threads)
        found[width] = _run(loaded, {next(iter(artifact.graph.inputs)): x.numpy()})
    return found


def _run(engine: Engine, inputs: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: engine.run(inputs)


def _layer_as_network(layer: Layer) -> nn.Module:
    """The float operation as a network of its own."""
    op = layer.op
    # A parametrized module has a class of its own, below the one it was made by.
    made_by: Any = type(op).__mro__[1] if parametrize.is_parametrized(op) else type(op)
    plain: Any = made_by.__new__(made_by)
    nn.Module.__init__(plain)
    plain.__dict__.update({key: value for key, value in vars(op).items() if key not in vars(nn.Module())})
    for name, value in (("weight", layer.weight_parameter), ("bias", layer.bias_parameter)):
        plain.register_parameter(name, None if value is None else nn.Parameter(value.detach().clone()))
    return nn.Sequential(plain).eval()


def _deployed(prepared: PreparedModel, alone: nn.Module, x: torch.Tensor, width: int | None, folder: Path) -> Artifact:
    recipe = Recipe.from_dict({"name": "layer", "weight": {} if width is None else {"bits": width}})
    ready = prepare(alone, (x,), backend=prepared.backend, recipe=recipe)
    calibrate(ready, [x])
    return deploy(ready, folder)


def _timed(runs: Mapping[int, Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> dict[int, float]:
    if repeats < 1:
        raise EngineError(f"layer_latency(repeats={repeats})", "nothing would be measured", "give 1 or more")
    times: dict[int, list[float]] = {width: [] for width in runs}
    for turn in range(_WARM_UP + repeats):
        for width, run in runs.items():
            start = clock()
            run()
            if turn >= _WARM_UP:
                times[width].append((clock() - start) * 1e3)
    return {width: min(taken) for width, taken in times.items()}
