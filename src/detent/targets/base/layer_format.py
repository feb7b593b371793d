"""The checkpoint format of a language model that is written one layer at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from detent.targets.base.blocks import Blocks

__all__ = ["LayerFormat"]


class LayerFormat(ABC):
    """Names are those of transformers, as `model.layers.0.mlp.up_proj.weight`."""

    @abstractmethod
    def packed(self, name: str, blocks: Blocks) -> Mapping[str, Tensor]:
        """The tensors that a weight in blocks becomes."""

    @abstractmethod
    def shard(self, tensors: Mapping[str, Tensor]) -> bytes:
        """A file of some tensors, the same bytes for the same tensors."""

    @abstractmethod
    def config(
        self, config: Mapping[str, Any], quantized: Mapping[str, tuple[int, int]], floats: Collection[str]
    ) -> bytes:
        """config.json: with the (bits, group size) of weights, and the linear layers that stay float."""
