"""Small networks whose weights saturate, deployed for an engine, and how far two answers to them are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import detent
from detent.ir import Network, Package
from detent.recipes import Recipe

__all__ = ["CASES", "NETS", "Case", "codes", "deployed", "differences", "inputs_of"]

Arrays = dict[str, npt.NDArray[Any]]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.two, self.down = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 24, 1, stride=2)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.two(self.one(x).relu())).relu()
        return self.head(self.down(x).relu().mean((2, 3)))


class Gated(nn.Module):
    """Squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze, self.excite = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        gate = self.excite(self.squeeze(nn.functional.adaptive_avg_pool2d(x, 1)).relu())
        return x * gate.sigmoid()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(20, 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.one(x), self.two(x).relu()], 1))


class Attention(nn.Module):
    """One head, with its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 32**0.5
        return x + self.out(scores.softmax(-1) @ self.value(x))


def _convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU(), nn.Conv2d(16, 33, 3, padding=1), nn.ReLU6()),
        *(nn.Conv2d(33, 32, 1), nn.Conv2d(32, 32, 3, padding=2, dilation=2, groups=4)),
    )


def _separable() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.ReLU6(), nn.Conv2d(24, 24, 3, padding=1, groups=24)),
        *(nn.ReLU6(), nn.Conv2d(24, 40, 1), nn.Hardswish(), nn.Conv2d(40, 40, 5, padding=2, groups=40)),
        nn.Conv2d(40, 16, 1),
    )


def _pools() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.AvgPool2d(3, stride=1, padding=1), nn.Conv2d(16, 20, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(20, 7),
    )


def _activations() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.LeakyReLU(0.1), nn.Conv2d(8, 8, 3), nn.Hardswish(), nn.Conv2d(8, 8, 3)),
        *(nn.Sigmoid(), nn.Conv2d(8, 8, 1), nn.Tanh(), nn.Conv2d(8, 6, 1), nn.Softmax(1)),
    )


def _linears() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def _sound() -> nn.Module:
    return nn.Sequential(nn.Conv1d(5, 16, 3, padding=1), nn.ReLU(), nn.Conv1d(16, 12, 4, stride=2))


_IMAGE = (3, 12, 12)
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "activations": (_activations, _IMAGE),
    "attention": (Attention, (9, 32)),
    "branches": (Branches, _IMAGE),
    "convolutions": (_convolutions, _IMAGE),
    "gated": (Gated, _IMAGE),
    "linears": (_linears, (100,)),
    "pools": (_pools, _IMAGE),
    "residual": (Residual, _IMAGE),
    "separable": (_separable, _IMAGE),
    "sound": (_sound, (5, 21)),
}
"""By name: what builds it, and the shape of a sample."""


@dataclass(frozen=True)
class Case:
    backend: str
    net: str
    bits: int
    """Of the weights."""

    def __str__(self) -> str:
        return f"{self.backend}-{self.net}-{self.bits}"


_BITS = {"onnxruntime": (8, 7), "openvino": (8, 7), "torch_x86": (8, 7), "litert": (8,), "ncnn": (8,)}
# The kernels of LiteRT and ncnn do not add in pairs that saturate.

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
