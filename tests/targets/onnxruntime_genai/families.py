"""Small models of transformers with random weights, as folders that save_pretrained writes."""

from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip


def saved(folder: Path, family: str, **changes: Any) -> Path:
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **changes})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
