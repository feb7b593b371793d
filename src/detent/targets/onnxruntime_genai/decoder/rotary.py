"""Tables of rotary positions, for more positions than the deployed network has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.targets.onnxruntime_genai.decoder.match import NotADecoder

__all__ = ["tables"]

Floats = npt.NDArray[np.float32]

_MOST = 2**30
"""Bytes of both tables; a model file holds 2 GB."""


def tables(config: Mapping[str, Any], cos: Floats, sin: Floats, rows: int) -> tuple[Floats, Floats]:
    """Cosines and sines (rows, width / 2) that begin as those of the network, (words, width), do."""
    words, width = cos.shape
    half = width // 2
    if rows * width * cos.itemsize > _MOST:
        raise NotADecoder(f"config.json says {rows:,} words, whose positions take more than {_MOST >> 20:,} MB")
    for frequencies in _known_frequencies(config, width):
        angles = torch.outer(torch.arange(rows, dtype=torch.float32), frequencies)
        made = angles.cos().numpy(), angles.sin().numpy()
        # An angle below `words` is rounded twice, and what comes of it once; transformers' own is one of these too.
        slack = words * 2.0**-22
        pairs = ((table[:words], known[:, part]) for table, known in zip(made, (cos, sin), strict=True) for part in
                 (slice(0, half), slice(half, width)))  # fmt: skip
        if all(np.abs(table - known).max() <= slack for table, known in pairs):
            return made
    raise NotADecoder("its rotary positions are not what config.json says in rope_parameters")


def _known_frequencies(config: Mapping[str, Any], width: int) -> list[Tensor]:
    try:
        made = [_frequencies(said, width) for said in _parameters(config)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotADecoder(f"rope_parameters of config.json cannot be read: {error}") from None
    return [frequencies for frequencies in made if frequencies is not None]


def _parameters(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Of all layers, or of kinds of layers."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kinds = [one for one in found.values() if isinstance(one, Mapping)] or [found]
    for kind in kinds:
        for theta in ("rope_theta", "rope_local_base_freq"):
            own = kind.get(theta, config.get(theta))
            if own is not None:
                yield {**kind, "rope_theta": float(own)}


def _frequencies(said: Mapping[str, Any], width: int) -> Tensor | None:
    """How far each pair of numbers turns for a position; None for a way that is not known here."""
    plain: Tensor = 1.0 / said["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
    match said.get("rope_type", said.get("type", "default")):
        case "default":
            return plain
        case "linear":
            slower: Tensor = plain / float(said["factor"])
            return slower
        case "llama3":
            return _llama3(plain, said)
    return None


def _llama3(plain: Tensor, said: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: long waves are slowed down by a factor, short ones are not, and those between by a part of it."""
    factor, low, high = (float(said[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    before = float(said["original_max_position_embeddings"])
    waves = 2 * math.pi / plain
    part = (before / waves - low) / (high - low)
    between = (1 - part) * plain / factor + part * plain
    slowed = torch.where(waves > before / low, plain / factor, plain)
    return torch.where((waves <= before / low) & (waves >= before / high), between, slowed)
