"""The block type of each weight, by the rules of llama.cpp's quantizer for models of the Llama family.

| mix      | weights | head, and a table that is the head too | values and `down` of some layers |
|----------|---------|----------------------------------------|----------------------------------|
| `q8_0`   | Q8_0    | Q8_0                                   |                                  |
| `q4_0`   | Q4_0    | Q6_K                                   |                                  |
| `q6_k`   | Q6_K    | Q6_K                                   |                                  |
| `q4_k_m` | Q4_K    | Q6_K                                   | Q6_K                             |

The layers with more bits are the first and the last eighth, and every third between. Where 256 does not divide the
inputs, Q4_K becomes Q5_0 and Q6_K becomes Q8_0; where 32 does not, the weight stays float (llama.cpp: float16).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from detent.errors import RecipeError
from detent.planning.mixes import MixedWeight
from detent.recipes import Rule
from detent.targets.gguf.architecture import name_of
from detent.targets.gguf.block_types import TYPES

__all__ = ["MIXES", "file_type", "gets_more_bits", "mixed", "type_in_mix"]

MIXES = {"q8_0": ("Q8_0", 7), "q4_0": ("Q4_0", 2), "q6_k": ("Q6_K", 18), "q4_k_m": ("Q4_K", 15)}
"""The type of most weights, and the number of such a file."""

_NARROWER = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_LAYER = re.compile(r"blk\.(\d+)\.(attn_v|ffn_down)")


def gets_more_bits(layer: int, count: int) -> bool:
    """
    >>> [layer for layer in range(16) if gets_more_bits(layer, 16)]
    [0, 1, 4, 7, 10, 13, 14, 15]
    """
    return layer < count // 8 or layer >= 7 * count // 8 or (layer - count // 8) % 3 == 2


def type_in_mix(mix: str, name: str, columns: int, *, layers: int, tied: bool = False) -> str | None:
    """The type of a weight, by llama.cpp's name for it; None: float."""
    kind = MIXES[mix][0]
    if name == "output" or (name == "token_embd" and tied):
        if columns % TYPES[kind].block:
            kind = "Q8_0"
        elif kind != "Q8_0":
            kind = "Q6_K"
    elif mix == "q4_k_m" and (found := _LAYER.fullmatch(name)) and gets_more_bits(int(found[1]), layers):
        kind = "Q6_K"
    if columns % TYPES[kind].block:
        kind = _NARROWER.get(kind, kind)
    return kind if columns % TYPES[kind].block == 0 else None


def mixed(mix: str, weights: Sequence[MixedWeight]) -> Iterator[Rule]:
    """Recipe rules for the weights of a model."""
    if mix not in MIXES:
        raise RecipeError(f"the mix {mix!r}", f"gguf has {', '.join(MIXES)}", "name one of these")
    names = {weight.layer: name for weight in weights if (name := name_of(weight.layer))}
    layers = len({name.split(".")[1] for name in names.values() if name.startswith("blk.")})
    for weight in weights:
        kind = None
        if weight.layer in names:
            kind = type_in_mix(mix, names[weight.layer], weight.shape[1], layers=layers, tied=weight.tied)
        asked: dict[str, object] = {"match": {"name": weight.layer}}
        if kind is not None:
            held = TYPES[kind]
            affine = held.scale == "super6"
            asked["weight"] = {
                "bits": held.bits,
                "granularity": {"per_group": held.group},
                "scale": held.scale,
                "symmetric": not affine,
                "signed": not affine,
            }
        yield Rule.from_dict(asked, source=f"mix {mix}")


def file_type(types: Sequence[str]) -> int:
    """The number that says what most of a file is; llama.cpp shows it, and computes by the types of tensors."""
    counted = sorted(set(types), key=types.count)
    return next((number for name, number in MIXES.values() if counted and name == counted[-1]), 0)
