"""Checks that the deployed ONNX file has the scales of the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Layout, Network, StoredAs

__all__ = ["disagreements"]


def disagreements(graph: Network, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each tensor whose scale, zero point or axis in the file differs from the manifest, or whose
    manifest entry differs from that of the tensor it shares them with."""
    inside = _encodings(graph)
    told = {tensor["tensor"]: tensor for tensor in manifest["tensors"]}
    for tensor in manifest["tensors"]:
        if tensor["scheme"]["grid"]["kind"] != "int":
            continue
        source = told.get(tensor["shares"] or "")
        for part in ("scale", "zero_point"):
            if source is not None and source[part] != tensor[part]:
                yield (
                    f"{tensor['tensor']}: the manifest gives it the {part.replace('_', ' ')} {tensor[part]}, "
                    f"and {source[part]} to {source['tensor']}, which it shares it with"
                )
        found = inside.get(tensor["tensor"])
        if not found:
            continue
        wanted = _Wanted(
            np.ravel(np.asarray(tensor["scale"], np.float32)),
            np.ravel(np.asarray(tensor["zero_point"], np.int64)),
            tensor["scheme"]["granularity"].get("axis"),
        )
        differing = [wanted.difference(encoding, in_phases=in_phases) for encoding, in_phases in found]
        if all(differing):
            yield f"{tensor['tensor']}: {differing[0]}"


@dataclass(frozen=True, eq=False)
class _Wanted:
    """The manifest's entry for a tensor."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int | None

    def difference(self, encoding: Encoding, *, in_phases: bool) -> str:
        """The difference in words; empty if there is none."""
        many = self.scale.size > 1
        if many and not in_phases and encoding.axis != self.axis:
            return f"model.onnx has its scales along axis {encoding.axis}, the manifest along axis {self.axis}"
        for what, said, held in (
            ("scale", self.scale, encoding.scale),
            ("zero point", self.zero_point, encoding.zero_point),
        ):
            phases = np.ravel(held).reshape(-1, said.size) if in_phases and held.size % said.size == 0 else None
            rows = np.ravel(held).reshape(1, -1) if phases is None else phases
            if rows.shape[1] != said.size:
                return f"model.onnx has {held.size} {what}s, the manifest {said.size}"
            apart = np.argwhere(rows != said)
            if len(apart):
                row, channel = apart[0]
                where = f"{what} of channel {channel}" if many else what
                count = f" (and {len(apart) - 1} more)" if len(apart) > 1 else ""
                return (
                    f"model.onnx has {rows[row, channel]:.9g} as its {where}, the manifest {said[channel]:.9g}{count}"
                )
        return ""


def _encodings(graph: Network) -> dict[str, list[tuple[Encoding, bool]]]:
    """Those of each tensor, by the name that the manifest has for it, and whether it holds a transposed convolution's
    parameter once for each phase."""
    found: dict[str, list[tuple[Encoding, bool]]] = {}
    reads = [read for op in graph.ops for read in op.reads]
    reads += [output.read for output in graph.outputs]
    for read in reads:
        if read.encoding is not None:
            stored, encoding = graph.stored_as.get(read.tensor, StoredAs(read.tensor)), read.encoding
            if stored.layout is Layout.TRANSPOSED and encoding.axis is not None:
                encoding = _turned(encoding)
            found.setdefault(stored.parameter, []).append((encoding, stored.layout is Layout.PHASES))
    return found


def _turned(encoding: Encoding) -> Encoding:
    """The encoding of the transposed matrix; scales of groups lie along both axes."""
    assert encoding.axis is not None
    return replace(encoding, axis=1 - encoding.axis, scale=encoding.scale.T, zero_point=encoding.zero_point.T)
