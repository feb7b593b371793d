"""The chip itself, as far as it exists: numpy that runs `imaginary.json`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.ir import Package
from detent.targets.base import Engine, Placement
from detent.targets.base.engine import Arrays
from detent.targets.base.ports import given
from imaginary_chip.file import read

__all__ = ["ImaginaryEngine"]

Array = npt.NDArray[Any]


class ImaginaryEngine(Engine):
    """Integers of 64 bits throughout, so that no sum overflows."""

    name = "imaginary"
    arithmetic = "imaginary"

    def __init__(self, package: Package):
        self._graph = package.graph
        self._file = read(package.path("imaginary.json").read_bytes())
        self._tensors = self._file["tensors"]

    @classmethod
    def version(cls) -> str | None:
        return "1.0"

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> ImaginaryEngine:
        del threads
        if as_float:
            raise EngineError("run a float network on imaginary", "the chip has no floats", "measure another engine")
        return cls(package)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        codes = self.tensors(inputs)
        return {
            name: (codes[tensor] * 2.0 ** self._exponent(tensor)).astype(np.float32)
            for name, tensor in self._file["outputs"].items()
        }

    def tensors(self, inputs: Arrays) -> dict[str, Array]:
        codes: dict[str, Array] = {}
        for name, values in given(self._graph.inputs, inputs, engine=self.name).items():
            scaled = np.floor(values.astype(np.float64) * 2.0 ** -self._exponent(name) + 0.5)
            codes[name] = np.clip(scaled, -128, 127).astype(np.int64)
        for layer in self._file["layers"]:
            sums, exponent = self._sums(layer, [codes[name] for name in layer["reads"]])
            shifted = _shift(sums, self._exponent(layer["writes"]) - exponent)
            codes[layer["writes"]] = np.clip(shifted, 0 if layer["relu"] else -128, 127)
        return {name: values.astype(np.int8) for name, values in codes.items()}

    def explain(self) -> list[Placement]:
        layers = {layer["name"] for layer in self._file["layers"]}
        return [Placement(op.name, op.type, "integer" if op.name in layers else "folded") for op in self._graph.ops]

    def _exponent(self, tensor: str) -> int:
        return int(self._tensors[tensor]["exponent"])

    def _sums(self, layer: dict[str, Any], codes: list[Array]) -> tuple[Array, int]:
        """Exact integers, and the exponent of their scale."""
        exponents = [self._exponent(name) for name in layer["reads"]]
        match layer["op"]:
            case "add":
                least = min(exponents)
                first, second = (each << (at - least) for each, at in zip(codes, exponents, strict=True))
                return first + second, least
            case "flatten":
                return codes[0].reshape(len(codes[0]), -1), exponents[0]
            case "relu":
                return codes[0], exponents[0]
        weight = self._codes(layer["weight"])
        sums = codes[0] @ weight.T if layer["op"] == "linear" else _conv(codes[0], weight, layer)
        if layer["bias"] is not None:
            sums = sums + self._codes(layer["bias"]).reshape(-1, *[1] * (sums.ndim - 2))
        return sums, exponents[0] + self._exponent(layer["weight"])

    def _codes(self, parameter: str) -> Array:
        held = self._tensors[parameter]
        return np.reshape(np.array(held["codes"], np.int64), tuple(held["shape"]))


def _conv(codes: Array, weight: Array, layer: dict[str, Any]) -> Array:
    top, left, bottom, right = layer["pads"]
    down, across = layer["stride"]
    padded = np.pad(codes, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    sums: Array = np.einsum("nchwij,ocij->nohw", windows[:, :, ::down, ::across], weight)
    return sums


def _shift(sums: Array, by: int) -> Array:
    """Divided by `2**by`, rounding half up."""
    return sums << -by if by <= 0 else (sums + (1 << (by - 1))) >> by
