"""ncnn's calibration table: for each integer layer the scales of its weights, then the scale of its input.

    conv1_param_0 12.5 130.2 88.0       127 / the greatest |weight|, for each output channel (or group)
    conv1 31.75                         127 / the greatest |input|

`ncnn2int8` reads it next to a float model whose layers have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.targets.ncnn.file.model import NcnnModel

__all__ = ["TableEntry", "read_ncnn_table", "table_of", "write_table"]

_WEIGHT = "_param_0"


@dataclass(frozen=True, eq=False)
class TableEntry:
    """The scales of one layer, as factors from real numbers to codes."""

    layer: str
    weight: npt.NDArray[np.float32]
    input: np.float32


def table_of(model: NcnnModel) -> tuple[TableEntry, ...]:
    """The scales in a model's integer layers."""
    entries = []
    for layer in model.layers:
        if layer.int8:
            first = 2 if layer.number(1 if layer.type == "InnerProduct" else 5) else 1
            weight, read = layer.weights[first : first + 2]
            entries.append(TableEntry(layer.name, weight.astype(np.float32), np.float32(read[0])))
    return tuple(entries)


def write_table(entries: Iterable[TableEntry]) -> bytes:
    """The table as text, with enough digits for every float32."""
    held = tuple(entries)
    weights = [" ".join([entry.layer + _WEIGHT, *(f"{scale:.9g}" for scale in entry.weight)]) for entry in held]
    inputs = [f"{entry.layer} {entry.input:.9g}" for entry in held]
    return "".join(f"{line}\n" for line in (*weights, *inputs)).encode()


def read_ncnn_table(content: bytes) -> tuple[TableEntry, ...]:
    """The entries of a table, in the order of its layers."""
    weights: dict[str, npt.NDArray[np.float32]] = {}
    inputs: dict[str, np.float32] = {}
    for number, line in enumerate(content.decode().splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            scales = np.array([float(word) for word in words[1:]], np.float32)
        except ValueError:
            raise DeployError(f"read line {number} of an ncnn table", f"{line!r}", "a name, then numbers") from None
        if words[0].endswith(_WEIGHT):
            weights[words[0].removesuffix(_WEIGHT)] = scales
        elif len(scales) == 1:
            inputs[words[0]] = scales[0]
        else:
            raise DeployError(
                f"read line {number} of an ncnn table", f"{len(scales)} scales of what {words[0]!r} reads", "give one"
            )
    if weights.keys() != inputs.keys():
        alone = sorted(weights.keys() ^ inputs.keys())
        raise DeployError(
            "read an ncnn table", f"half of {', '.join(alone)}", "give weight and input scales of each layer"
        )
    return tuple(TableEntry(layer, weights[layer], inputs[layer]) for layer in weights)
