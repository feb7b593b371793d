"""A small language model of transformers in a folder with a tokenizer, for targets that write more of such than of
other networks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.targets.gguf.test_tokenizer import spoken
from tests.targets.onnxruntime_genai import families

__all__ = ["LANGUAGE_MODELS", "saved"]

LANGUAGE_MODELS = {
    "compressed_tensors": ("w4g32", "config.json"),
    "gguf": ("q4_0", "model.gguf"),
    "onnxruntime_genai": ("w4g32", "genai_config.json"),
    "onnxruntime_genai_a8": ("w4g32", "genai_config.json"),
    "openvino_llm": ("w4g32", "model.bin"),
}
"""Such targets, each with a recipe and a file that it writes."""


def saved(folder: Path) -> Path:
    families.saved(folder, "llama", num_hidden_layers=1)
    (folder / "tokenizer.json").write_text(json.dumps(spoken()))
    return folder
