"""A small network, and engines whose answers are wrong: the engine runs, and what it says is changed, the result of one
layer and all that follows from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.artifact import Artifact
from detent.recipes import Recipe
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.base import Engine
from detent.targets.engines import ENGINES
from detent.twin import Twin

INSTALLED = [
    name
    for name in ("onnxruntime", "openvino", "torch_x86", "litert", "ncnn", "mnn", "executorch_xnnpack", "qnn")
    if ENGINES[BACKENDS[name].engine].version() is not None
]
LAYER = "relu2"


class Net(nn.Module):
    """`tanh` runs in float in some engines, so that equality is not claimed from end to end."""

    def __init__(self, *, tanh: bool):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv2d(4, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3),
        )
        self.relu1, self.relu2, self.between = nn.ReLU(), nn.ReLU(), nn.Tanh() if tanh else nn.ReLU()
        self.last = nn.Conv2d(8, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu2(self.conv2(self.relu1(self.conv1(x))))
        return self.last(self.between(self.conv3(x))).flatten(1)


NETS = {"plain": (False, ()), "float function": (True, ()), "float output": (False, ("last",))}


def made(backend: str, kind: str, folder: Path, bits: int = 7) -> Artifact:
    """Weights of 7 bits are the same numbers on every CPU; whole ones of 8 are for CPUs with VNNI."""
    torch.manual_seed(0)
    tanh, exclude = NETS[kind]
    weight = {"bits": bits} if backend in ("onnxruntime", "openvino", "torch_x86") else {}
    recipe = Recipe(name="mutants", weight=weight, exclude=exclude, cpu="vnni" if bits == 8 else None)
    prepared = detent.prepare(Net(tanh=tanh).eval(), (batches()[0],), backend=backend, recipe=recipe)
    detent.calibrate(prepared, batches())
    return detent.deploy(prepared, folder)


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 4, 8, 8, generator=generator) for _ in range(2)]


# ---- mutants: what the layer has in place of what it computed


def off_by_one(_graph, shown, grid, layer):
    """1 LSB in 1 % of the layer, at least one."""
    old = shown[layer]
    chosen = np.random.default_rng(0).random(old.shape) < 0.01
    if np.issubdtype(old.dtype, np.integer):
        return np.where(chosen, old + np.where(old < grid.qmax, 1, -1), old).astype(old.dtype)
    return old + chosen.astype(old.dtype) * np.float32(grid.scale)


def without_bias(graph, shown, grid, _layer):
    return computed_anew(graph, shown, grid, keeps_bias=False)


def saturated(graph, shown, grid, _layer):
    """Pairs of products that saturate: here at half of the largest, so that it is the same for every width."""
    return computed_anew(graph, shown, grid, saturates=True)


def computed_anew(graph, shown, grid, *, keeps_bias=True, saturates=False):
    op = next(op for op in graph.ops if op.name == "conv2")
    data, weight, bias = op.inputs
    codes = shown["relu1"]
    if not np.issubdtype(codes.dtype, np.integer):
        codes = data.encoding.quantize(codes)
    shifted = torch.from_numpy(codes.astype(np.float64) - np.float64(data.encoding.zero_point))
    weights = torch.from_numpy(graph.constants[weight.tensor].astype(np.float64))
    columns, rows = F.unfold(shifted, 3, padding=1), weights.flatten(1)
    products = (columns.unsqueeze(1) * rows.unsqueeze(0).unsqueeze(-1)).unflatten(2, (-1, 2)).sum(3)
    if saturates:
        most = float(products.abs().max()) / 2
        products = products.clamp(-most, most)
    scale = torch.from_numpy(np.float64(data.encoding.scale) * np.float64(weight.encoding.scale).reshape(-1))
    real = products.sum(2) * scale.reshape(-1, 1)
    if keeps_bias:
        held = graph.constants[bias.tensor]
        values = held if bias.encoding is None else bias.encoding.dequantize(held)
        real = real + torch.from_numpy(np.float64(values).reshape(-1, 1))
    real = real.reshape(shown[LAYER].shape).clamp_min(0).numpy().astype(np.float32)
    old = shown[LAYER]
    return grid.quantize(real).astype(old.dtype) if np.issubdtype(old.dtype, np.integer) else real


LAYERS: dict[str, Callable] = {"off by one": off_by_one, "without bias": without_bias, "saturated": saturated}


def is_second(inputs) -> bool:
    """Whether inputs are those of the second batch."""
    (given,) = inputs.values()
    return np.array_equal(given, batches()[1].numpy())


def mutate_run(monkeypatch, engine: type[Engine], mutated: Callable) -> None:
    """`mutated` in place of what `run` gives; some engines show their tensors by a run too, which stays as it is."""
    run, tensors = engine.run, engine.tensors
    showing = False

    def shown(self, given):
        nonlocal showing
        before, showing = showing, True
        try:
            return tensors(self, given)
        finally:
            showing = before

    monkeypatch.setattr(engine, "tensors", shown)
    monkeypatch.setattr(
        engine, "run", lambda self, given: run(self, given) if showing or not is_second(given) else mutated(self, given)
    )


def mutate_layer(monkeypatch, artifact: Artifact, change: Callable, *, layer: str = LAYER, shows: bool = True) -> None:
    """All behind the layer is what the twin makes of it. In the second batch only."""
    engine = ENGINES[artifact.manifest["engine"]]
    run = engine.run
    twin = Twin(artifact.graph, ARITHMETICS[artifact.manifest["arithmetic"]]())
    (output,) = artifact.graph.outputs

    def inside(self, given):
        shown = tensors(self, given)
        new = change(artifact.graph, shown, artifact.graph.encodings(layer)[0], layer)
        assert not np.array_equal(new, shown[layer])
        real = {name for name, values in shown.items() if values.dtype.kind == "f"}
        found = twin.tensors(given, {layer: new}, before_grids=real - {output.read.tensor})
        return shown, {**found, layer: new}

    def mutated_tensors(self, given):
        if not is_second(given):
            return tensors(self, given)
        shown, found = inside(self, given)
        return {name: found.get(name, values) for name, values in shown.items()}

    def mutated_run(self, given):
        outputs = run(self, given)
        _, found = inside(self, given)
        made, grid = found[output.read.tensor], output.read.encoding
        real = made if made.dtype.kind == "f" else grid.dequantize(made)
        return {output.name: np.asarray(real, np.float32).reshape(outputs[output.name].shape)}

    mutate_run(monkeypatch, engine, mutated_run)
    tensors = engine.tensors
    if shows:
        monkeypatch.setattr(engine, "tensors", mutated_tensors)
