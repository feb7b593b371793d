"""Small language models of transformers in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def saved(folder: Path, family: str = "Llama", **changes: Any) -> Path:
    """A random model in bfloat16, in several files; weights are large, so that layers do something."""
    import transformers

    torch.manual_seed(0)
    kind = family.removesuffix("Text")
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="40KB")
    return folder


def batches(count: int = 4, rows: int = 4, length: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Words at random; the first sequence is padded on the left."""
    generator = torch.Generator().manual_seed(1)
    found = [
        (torch.randint(0, 48, (rows, length), generator=generator), torch.ones(rows, length, dtype=torch.int64))
        for _ in range(count)
    ]
    found[0][1][0, :3] = 0
    return found
