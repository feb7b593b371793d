"""`genai_config.json`: what onnxruntime-genai must be told of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.targets.base.content import as_json
from detent.targets.onnxruntime_genai.decoder import PARTS, PAST, PRESENT, Decoder

__all__ = ["GENAI_CONFIG", "genai_config"]

GENAI_CONFIG = "genai_config.json"

_CHOICE = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty")
_MOST_WORDS = 2048
"""Keys and values of so many words are made room for, unless a caller asks for another `max_length`."""


def genai_config(decoder: Decoder, config: Mapping[str, Any], generation: Mapping[str, Any], file: str) -> bytes:
    """Of a model with a config.json, and a generation_config.json that goes before it where it says something."""
    said = {**config, **{name: value for name, value in generation.items() if value is not None}}
    ends = said.get("eos_token_id")
    padding = said.get("pad_token_id")
    if padding is None:
        padding = ends[0] if isinstance(ends, list) and ends else ends
    tokens = {"bos_token_id": said.get("bos_token_id"), "eos_token_id": ends, "pad_token_id": padding}
    inputs = {"input_ids": decoder.words, "attention_mask": decoder.mask, "position_ids": decoder.positions}
    for part in PARTS:
        inputs[f"past_{part}_names"] = PAST.replace("%s", part)
    outputs = {"logits": decoder.scores, **{f"present_{part}_names": PRESENT.replace("%s", part) for part in PARTS}}
    return as_json(
        {
            "model": {
                "type": "decoder",  # any model of words with a cache
                "vocab_size": int(config["vocab_size"]),
                "context_length": decoder.context,
                **_given(tokens),
                "decoder": {
                    "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                    "filename": file,
                    "hidden_size": int(config["hidden_size"]),
                    "head_size": decoder.size,
                    "num_attention_heads": decoder.heads,
                    "num_key_value_heads": decoder.kv_heads,
                    "num_hidden_layers": decoder.layers,
                    "inputs": _given(inputs),
                    "outputs": outputs,
                },
            },
            "search": {
                "max_length": min(decoder.context, _MOST_WORDS),
                "past_present_share_buffer": True,
                **_given({name: generation.get(name) for name in _CHOICE}),
            },
        }
    )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
