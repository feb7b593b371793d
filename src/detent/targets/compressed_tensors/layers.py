"""A checkpoint of compressed-tensors, a layer at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from detent.errors import DeployError
from detent.targets.base.blocks import Blocks
from detent.targets.base.layer_format import LayerFormat
from detent.targets.compressed_tensors.layout import config_of, file_of, packed, scheme_of

__all__ = ["FORMAT"]


class CompressedTensorsLayers(LayerFormat):
    def packed(self, name: str, blocks: Blocks) -> Mapping[str, Tensor]:
        if not blocks.centered:
            raise DeployError(f"write {name} to a checkpoint", "it is not symmetric", "use another recipe")
        return packed(name, blocks)

    def shard(self, tensors: Mapping[str, Tensor]) -> bytes:
        return file_of(tensors, "model")  # where `Checkpoint` has the model of transformers

    def config(
        self, config: Mapping[str, Any], quantized: Mapping[str, tuple[int, int]], floats: Collection[str]
    ) -> bytes:
        return config_of(config, scheme_of(quantized, (), floats))


FORMAT = CompressedTensorsLayers()
