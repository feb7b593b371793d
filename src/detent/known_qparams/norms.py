"""Batch norms of a quantized ONNX file: which can be folded, and how that changes the file's scales.

Tools that train write the batch norm behind the convolution, unfolded. Folded, the weight is w g for each output
channel, and if its scale becomes s |g| its codes stay what they are, but for their sign. A norm is left alone if the
file has a grid before it, or one for the weight that has no such multiple on the target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from detent.frontends.onnx import OnnxEncoding, OnnxSource
from detent.graph import Captured, foldable, folding_factor, kind_of
from detent.numerics import PerChannel, QParams, Scheme
from detent.planning import Backend

__all__ = ["FileNorms", "scaled"]


@dataclass(frozen=True)
class FileNorms:
    """`apart`: the modules of batch norms that are not folded. `factors`: what the weight of a module is multiplied by,
    per output channel. `merged`: from the name of an operation's node to that of the batch norm folded into it."""

    apart: frozenset[str] = frozenset()
    factors: Mapping[str, Tensor] = field(default_factory=dict)
    merged: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, captured: Captured, source: OnnxSource, target: Backend) -> FileNorms:
        apart: set[str] = set()
        factors: dict[str, Tensor] = {}
        merged: dict[str, str] = {}
        for region in captured.regions.values():
            modules = dict(region.named_modules())
            for graph in region.graphs.values():
                for op, norm in foldable(graph, modules):
                    path = str(op.target)
                    held = source.parameters.get(f"{path}.weight")
                    encoding = source.encodings.get(held.initializer) if held else None
                    kind = kind_of(op, modules)
                    assert kind is not None
                    if source.tensors.get(op.name) in source.encodings or not _can_follow(encoding, kind.name, target):
                        apart.add(str(norm.target))
                    else:
                        merged[op.name] = norm.name
                        factors[path] = folding_factor(modules[str(norm.target)])
        return cls(frozenset(apart), factors, merged)

    def seen_from(self, source: OnnxSource, left: Collection[str]) -> OnnxSource:
        """`source` for graphs in which only the nodes `left` remain: an operation gives what its batch norm gave."""
        gone = {op: norm for op, norm in self.merged.items() if norm not in left}
        tensors = {**source.tensors, **{op: source.tensors[norm] for op, norm in gone.items()}}
        nodes = {**source.nodes, **{op: (*source.nodes[op], *source.nodes[norm]) for op, norm in gone.items()}}
        return replace(source, tensors=tensors, nodes=nodes)


def _can_follow(encoding: OnnxEncoding | None, kind: str, target: Backend) -> bool:
    """Whether a weight's scale can be multiplied channel by channel."""
    if encoding is None:
        return True
    signed = not encoding.dtype.startswith("u")
    offer = target.weight_schemes(kind)
    channels = any(issubclass(PerChannel, one.granularities) and True in one.symmetric for one in offer.alternatives)
    return kind != "conv_transpose" and channels and signed and not encoding.zero_point.any() and not encoding.block


def scaled(known: tuple[Scheme, QParams], factor: Tensor) -> tuple[Scheme, QParams]:
    """The scheme and scale of a weight whose output channels, along axis 0, are multiplied."""
    scheme, qparams = known
    size = factor.abs()
    one = torch.ones_like(size)
    scale = qparams.scale * torch.where(size > 0, size, one)  # of a channel of zeros any scale will do
    return replace(scheme, granularity=PerChannel(0)), QParams(scale, torch.zeros_like(scale, dtype=torch.int64))
