"""Maps a transformers model to llama.cpp: tensor names and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError

__all__ = ["heads_of", "interleaved", "name_of", "split_halves", "tensors_of", "values_of"]

_FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""The architecture of llama.cpp for each `model_type` of transformers."""

_WHOLE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OF_A_LAYER = tuple(f"{part}.weight" for part in _PARTS.values() if part not in ("attn_q_norm", "attn_k_norm"))
_FURTHER = {
    "qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"),
}
"""What else the layers of a family have."""
_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")


def name_of(layer: str) -> str | None:
    """llama.cpp's name for a layer of transformers, without ".weight"; None if it has none.

    >>> name_of("model.model.layers.3.mlp.down_proj"), name_of("model.lm_head"), name_of("pooler")
    ('blk.3.ffn_down', 'output', None)
    """
    found = _LAYER.fullmatch(layer)
    if found:
        part = _PARTS.get(found[2])
        return None if part is None else f"blk.{found[1]}.{part}"
    return _WHOLE.get(layer.rpartition(".")[2])


def values_of(config: Mapping[str, Any] | None, *, words: int) -> dict[str, Any]:
    """The model-wide metadata for a config.json; refuses a config that it cannot express."""
    asked = "write the format 'gguf'"
    if config is None:
        to_do = "deploy a model of transformers, or a folder of save_pretrained"
        raise DeployError(asked, "the model has no config that says how many heads it has", to_do)
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        known = ", ".join(_FAMILIES)
        raise DeployError(
            asked, f"the model is a {config.get('model_type')}, and not one of {known}", "use another target"
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", "default")
    unknown = {
        "rotary positions": kind if kind != "default" else None,
        "hidden_act": config.get("hidden_act") if config.get("hidden_act") != "silu" else None,
        "attention_bias": config.get("attention_bias") or None,
        "mlp_bias": config.get("mlp_bias") or None,
        "sliding_window": config.get("sliding_window") or None,
    }
    for what, found in unknown.items():
        if found is not None:
            raise DeployError(asked, f"the model has {what} {found!r}, which is not written", "use another target")
    heads = int(config["num_attention_heads"])
    size = int(config.get("head_dim") or config["hidden_size"] // heads)
    return {
        "general.architecture": family,
        f"{family}.context_length": int(config["max_position_embeddings"]),
        f"{family}.embedding_length": int(config["hidden_size"]),
        f"{family}.block_count": int(config["num_hidden_layers"]),
        f"{family}.feed_forward_length": int(config["intermediate_size"]),
        f"{family}.attention.head_count": heads,
        f"{family}.attention.head_count_kv": int(config.get("num_key_value_heads") or heads),
        f"{family}.attention.key_length": size,
        f"{family}.attention.value_length": size,
        f"{family}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{family}.rope.dimension_count": size,
        f"{family}.rope.freq_base": float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        f"{family}.vocab_size": words,
    }


def tensors_of(values: Mapping[str, Any]) -> list[str]:
    """What the file of such a model holds; the head may be the table."""
    family = values["general.architecture"]
    parts = (*_OF_A_LAYER, *_FURTHER.get(family, ()))
    layers = range(int(values[f"{family}.block_count"]))
    return [*(f"{name}.weight" for name in _WHOLE.values()), *(f"blk.{i}.{part}" for i in layers for part in parts)]


def heads_of(name: str, values: Mapping[str, Any]) -> int | None:
    """How many heads the rows of a weight are, if llama.cpp has them in another order; None for any other weight."""
    family, part = values["general.architecture"], name.rpartition(".")[0].rpartition(".")[2]
    if family != "llama":  # the others turn rows as transformers does
        return None
    which = {"attn_q": "head_count", "attn_k": "head_count_kv"}.get(part)
    return None if which is None else int(values[f"{family}.attention.{which}"])


def interleaved(rows: npt.NDArray[Any], heads: int | None) -> npt.NDArray[Any]:
    """Rotary positions turn a row with that half a head further on in transformers, and with the next in llama.cpp's
    `llama`.

    >>> interleaved(np.arange(8), 2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    if heads is None:
        return rows
    return np.ascontiguousarray(rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape))


def split_halves(rows: npt.NDArray[Any], heads: int | None) -> npt.NDArray[Any]:
    """The inverse."""
    if heads is None:
        return rows
    return np.ascontiguousarray(rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape))
