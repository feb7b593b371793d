"""Converts the inputs and outputs of an engine to the types of the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.ir import Output, Port

__all__ = ["Shapes", "given", "real", "shapes_of"]

Arrays = Mapping[str, npt.NDArray[Any]]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The inputs of a network, each with its shape: a network is compiled once for each."""


def shapes_of(inputs: Arrays) -> Shapes:
    return tuple((name, tuple(array.shape)) for name, array in inputs.items())


def given(ports: Mapping[str, Port], inputs: Arrays, *, engine: str) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a network in its order, contiguous and of its types; unexpected inputs are refused."""
    if set(inputs) != set(ports):
        raise EngineError(
            f"run on {engine} with inputs {', '.join(sorted(inputs)) or 'none'}",
            f"the network takes {', '.join(sorted(ports))}",
            "name the inputs as the network does",
        )
    return {name: _given(name, port, inputs[name], engine) for name, port in ports.items()}


def _given(name: str, port: Port, array: npt.NDArray[Any], engine: str) -> npt.NDArray[Any]:
    shape = np.shape(array)
    fits = len(shape) == len(port.shape) and all(
        isinstance(want, str) or want == got for want, got in zip(port.shape, shape, strict=True)
    )
    if not fits:
        raise EngineError(
            f"run on {engine} with {name!r} of shape {shape}",
            f"the network takes {port.shape}",
            "give that shape; named sizes are free",
        )
    typed = port.cast(array)
    if typed is None:
        raise EngineError(
            f"run on {engine} with {name!r} of {np.asarray(array).dtype}",
            f"the network takes {port.dtype}, which does not hold these numbers",
            f"give it as {port.dtype}",
        )
    return np.ascontiguousarray(typed).reshape(shape)


def real(output: Output, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An output of the network, dequantized if the network returns codes."""
    if not output.as_codes or values.dtype == np.float32:
        return values
    assert output.read.encoding is not None
    return output.read.encoding.dequantize(values)
