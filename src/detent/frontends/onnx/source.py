"""The origin of an imported graph: the original model, and the node or tensor that each fx node and parameter stands
for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from detent.errors import OnnxError

__all__ = ["OnnxEncoding", "OnnxParameter", "OnnxSource", "is_imported", "source_of"]


@dataclass(frozen=True, eq=False)
class OnnxEncoding:
    """How a Q/DQ pair of the file stores a tensor: `real = scale * (code - zero_point)`, codes of type `dtype`.

    `scale` and `zero_point` are 0-d, or 1-d along `axis`, or, with a `block` size, of the tensor's shape with `axis`
    divided by it. `ends` are the least and the greatest code where the file says them: not all codes of the type are
    used, or a weight uses the least.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    dtype: str
    axis: int | None = None
    block: int | None = None
    ends: tuple[int, int] | None = None

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest code, as far as is known.

        >>> OnnxEncoding(np.float32(0.1), np.int64(0), "int8").limits
        (-128, 127)
        """
        bits = int(self.dtype.lstrip("uint"))
        whole = (0, 2**bits - 1) if self.dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return self.ends or whole


@dataclass(frozen=True)
class OnnxParameter:
    """The initializer that a parameter or buffer holds the values of, with its two axes swapped if `transposed`.

    The weights of recurrent modules are a part of one, `row` and within it `span`, with `gates` in another order: at
    position i stands the gate that is at `gates[i]` in the file.
    """

    initializer: str
    transposed: bool = False
    row: int | None = None
    span: tuple[int, int] | None = None
    gates: tuple[int, ...] = ()

    def written(self, values: npt.NDArray[Any], into: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The initializer, so far `into`, with the values that the parameter has now.

        >>> OnnxParameter("w", transposed=True).written(np.array([[1, 2]]), np.zeros((2, 1))).tolist()
        [[1.0], [2.0]]
        """
        result: npt.NDArray[Any] = into.copy()
        place = result if self.row is None else result[self.row]
        place = place if self.span is None else place[self.span[0] : self.span[1]]
        given = values.T if self.transposed else values
        if self.gates:
            parts = np.split(given, len(self.gates))
            given = np.concatenate([parts[self.gates.index(at)] for at in range(len(parts))])
        place[...] = given.reshape(place.shape)
        return result


@dataclass(frozen=True, eq=False)
class OnnxSource:
    """What `load` knows of the file. It is never copied: the copies of a GraphModule share it.

    `model`: the ModelProto, with its external data read in; initializers that are nothing but weights and biases of
    modules have their name, type and shape in it and no values, which the modules hold. `tensors`: name of an fx node
    -> name of the ONNX tensor it computes. `nodes`: name of an fx node -> names of the ONNX nodes it stands for (a node
    without a name is called by its first output). `modules`: the same by module path. `parameters`: path of a parameter
    or buffer -> where its values stand. `encodings`: name of an ONNX tensor -> what its Q/DQ pair says. `folded`: name
    of an ONNX tensor that nodes compute from constants alone, such as a shape -> its value, where that is small.
    `readers`: name of an ONNX tensor that has an encoding -> names of the nodes that take it from its grid, "" for the
    outputs of the network; other readers take it as it was before it was quantized.
    """

    model: Any
    tensors: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parameters: Mapping[str, OnnxParameter] = field(default_factory=dict)
    encodings: Mapping[str, OnnxEncoding] = field(default_factory=dict)
    folded: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    readers: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxSource:
        return self


def is_imported(module: nn.Module) -> bool:
    """Whether a model, or what it was prepared from, was loaded from an ONNX file."""
    meta = getattr(module, "meta", None)
    return isinstance(meta, dict) and isinstance(meta.get("onnx"), OnnxSource)


def source_of(module: nn.Module) -> OnnxSource:
    """The `OnnxSource` of the file that `module`, or the model it was prepared from, was loaded from."""
    if not is_imported(module):
        raise OnnxError(
            f"the ONNX file behind a {type(module).__name__}", "it was not loaded from one", "load it with detent.load"
        )
    holder: Any = module
    found: OnnxSource = holder.meta["onnx"]
    return found
