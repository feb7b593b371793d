"""The tensors, the file and the config of a checkpoint of compressed-tensors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from detent.targets.base.blocks import Blocks, pack
from detent.targets.base.content import as_json

__all__ = ["PREFIX", "config_of", "file_of", "packed", "scheme_of"]

PREFIX = "detent.prefix"
"""The key of a file's metadata that tells what the names of the deployed model begin with."""


def packed(name: str, blocks: Blocks) -> dict[str, Tensor]:
    """The three tensors of a weight of that name."""
    rows, columns = blocks.codes.shape
    return {
        f"{name}_packed": torch.from_numpy(np.ascontiguousarray(pack(blocks.codes, blocks.bits)).view("<i4")),
        f"{name}_scale": torch.from_numpy(np.array(blocks.scale, order="C")),
        f"{name}_shape": torch.tensor([rows, columns]),
    }


def file_of(tensors: Mapping[str, Tensor], prefix: str) -> bytes:
    return _in_order(save(dict(tensors), metadata={"format": "pt", PREFIX: prefix}))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with its metadata sorted: the library writes them in another order each time."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def config_of(config: Mapping[str, Any], scheme: Mapping[str, Any]) -> bytes:
    """config.json of the model, with how it is quantized."""
    # The head has codes of its own, or is there as a copy.
    return as_json({**config, "quantization_config": scheme, "tie_word_embeddings": False, "dtype": "float32"})


def scheme_of(widths: Mapping[str, tuple[int, int]], small: Iterable[str], floats: Iterable[str]) -> dict[str, Any]:
    """A group of layers for each width and size of groups, one of those of E4M3, and the linear layers that are float:
    all by the names of their weights."""
    floats_of_8 = list(small)
    groups: dict[tuple[int, int | None], list[str]] = {}
    for name, key in [*widths.items(), *((name, (8, None)) for name in floats_of_8)]:
        groups.setdefault(key, []).append(name.removesuffix(".weight"))
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if floats_of_8 else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{index}": {
                "targets": names,
                "weights": {
                    "num_bits": bits,
                    "type": "int" if size else "float",
                    "symmetric": True,
                    "strategy": "group" if size else "channel",
                    "group_size": size,
                    "dynamic": False,
                },
            }
            for index, ((bits, size), names) in enumerate(groups.items())
        },
        "ignore": sorted(name.removesuffix(".weight") for name in floats),
    }
