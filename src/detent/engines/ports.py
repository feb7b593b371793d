"""What goes into a runtime and comes out of it, in the types that the network and its user agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.deploy import Output, QdqGraph
from detent.engines.engine import check_inputs

__all__ = ["given", "real"]

Arrays = Mapping[str, npt.NDArray[Any]]


def given(graph: QdqGraph, inputs: Arrays, *, engine: str) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a network, contiguous and of its types; others than it takes are refused."""
    check_inputs({name: port.shape for name, port in graph.inputs.items()}, inputs, engine=engine)
    return {name: np.ascontiguousarray(inputs[name], port.dtype) for name, port in graph.inputs.items()}


def real(output: Output, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An output of the network as real numbers, if it gives codes."""
    if not output.as_codes or values.dtype == np.float32:
        return values
    assert output.read.encoding is not None
    return output.read.encoding.dequantize(values)
