"""The networks of `tests.networks.saturating`, deployed for an engine, and how far two answers to them are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import detent
from detent.ir import Network, Package
from detent.recipes import Recipe
from detent.targets import BACKENDS
from detent.targets.base import Engine
from detent.targets.engines import ENGINES
from tests.networks.saturating import NETS

__all__ = ["CASES", "NETS", "Case", "codes", "deployed", "differences", "inputs_of"]

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Case:
    backend: str
    net: str
    bits: int
    """Of the weights."""

    def __str__(self) -> str:
        return f"{self.backend}-{self.net}-{self.bits}"

    @property
    def fitted(self) -> int:
        """How far the twin may be off, in steps: 0, or 1 where QNN's is fitted (leaky ReLUs, softmax, average pools
        whose windows overlap)."""
        return int(self.backend == "qnn" and self.net in ("activations", "attention", "pools"))

    @property
    def engine(self) -> type[Engine]:
        return ENGINES[BACKENDS[self.backend].engine]


_BITS = {
    **dict.fromkeys(("onnxruntime", "openvino", "torch_x86"), (8, 7)),
    # These do not add in pairs that saturate.
    **dict.fromkeys(("litert", "ncnn", "mnn", "executorch_xnnpack", "qnn"), (8,)),
}

CASES = tuple(Case(backend, net, bits) for backend, widths in _BITS.items() for net in NETS for bits in widths)


def deployed(case: Case, folder: Path) -> Package:
    """That network in `folder`."""
    build, shape = NETS[case.net]
    torch.manual_seed(len(case.net))
    net = skewed(build().eval())
    recipe = Recipe.model_validate({"name": f"w{case.bits}", "weight": {"bits": case.bits}})
    batches = [torch.rand(8, *shape) for _ in range(4)]
    cpu = "vnni" if case.bits == 8 else None  # whole 8-bit weights saturate where there is no VNNI
    return detent.quantize(net, batches, backend=case.backend, recipe=recipe, folder=folder, cpu=cpu)


def skewed(net: nn.Module) -> nn.Module:
    """Nearly all weights of a layer with one sign, so that neighboring products add up and saturate."""
    for layer in net.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            sign = torch.where(torch.rand_like(layer.weight) < 0.9, 1.0, -1.0)
            outputs = torch.where(torch.rand(len(sign)) < 0.7, 1.0, -1.0).reshape(-1, *[1] * (sign.ndim - 1))
            layer.weight.data = layer.weight.abs() * sign * outputs
    return net


def inputs_of(graph: Network, samples: int = 8) -> Arrays:
    """Inputs for a network from 0 to 1, the same on every machine; of few bits, so that they take little room."""
    random = np.random.default_rng(1)
    return {
        name: (random.integers(0, 1025, (samples, *port.shape[1:])) / 1024).astype(np.float32)
        for name, port in graph.inputs.items()
    }


def codes(graph: Network, outputs: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Outputs as integers where they have a grid, else as they are."""
    grids = {output.name: output.read.encoding for output in graph.outputs}
    return {
        name: values if (grid := grids[name]) is None else grid.quantize(values) for name, values in outputs.items()
    }


def differences(one: Arrays, other: Arrays) -> npt.NDArray[Any]:
    """How far two answers are apart, output by output: codes in steps, real numbers 1 where they are unequal by more
    than float32's rounding of the largest of them."""
    found = []
    for name, a in one.items():
        b = other[name]
        if np.issubdtype(a.dtype, np.floating):
            found.append((np.abs(a - b) > 1e-6 * np.abs(b).max()).astype(np.int64))
        else:
            found.append(np.abs(a.astype(np.int64) - b))
    return np.concatenate([each.reshape(-1) for each in found])
