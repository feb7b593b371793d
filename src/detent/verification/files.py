"""Whether the deployed ONNX file holds the numbers of the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from detent.deploy import TRANSPOSED, Encoding, QdqGraph

__all__ = ["disagreements"]


def disagreements(graph: QdqGraph, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each tensor whose scale, zero point or axis in the file is not what the manifest says."""
    inside = _encodings(graph)
    for tensor in manifest["tensors"]:
        if tensor["scheme"]["grid"]["kind"] != "int":
            continue
        name = tensor["tensor"]
        found = inside.get(name)
        if not found:
            continue
        wanted = (np.asarray(tensor["scale"], np.float32), np.asarray(tensor["zero point"], np.int64))
        axis = tensor["scheme"]["granularity"].get("axis")
        if not any(_agrees(encoding, *wanted, axis) for encoding in found):
            one = found[0]
            yield (
                f"{name}: model.onnx has {_shown(one.scale)}, zero point {_shown(one.zero_point)}, axis {one.axis}; "
                f"the manifest says {_shown(wanted[0])}, {_shown(wanted[1])}, axis {axis}"
            )


def _agrees(encoding: Encoding, scale: Any, zero_point: Any, axis: int | None) -> bool:
    return (
        (encoding.axis == axis or encoding.scale.size == 1)
        and np.array_equal(np.ravel(encoding.scale), np.ravel(scale))
        and np.array_equal(np.ravel(encoding.zero_point), np.ravel(zero_point))
    )


def _encodings(graph: QdqGraph) -> dict[str, list[Encoding]]:
    found: dict[str, list[Encoding]] = {}
    reads = [read for op in graph.ops for read in op.inputs if read is not None]
    reads += [output.read for output in graph.outputs]
    for read in reads:
        if read.encoding is not None:
            name, encoding = read.tensor.removesuffix("_quantized"), read.encoding
            if name.endswith(TRANSPOSED):
                name = name.removesuffix(TRANSPOSED)
                encoding = encoding if encoding.axis is None else replace(encoding, axis=1 - encoding.axis)
            found.setdefault(name, []).append(encoding)
    return found


def _shown(values: Any) -> str:
    flat = np.ravel(values)
    return f"{flat[0]:.9g}" if flat.size == 1 else f"[{flat[0]:.6g}, ... {flat.size}]"
