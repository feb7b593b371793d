"""A language model of a billion random weights, quantized a layer at a time: memory, and time for each layer.

    python benchmarks/layer_by_layer.py FOLDER [--recipe w4g32_gptq] [--sequences 32] [--length 512]

Makes a checkpoint of the shape of TinyLlama in FOLDER/model (bfloat16, in files of 500 MB), if there is none, and
quantizes it into FOLDER/RECIPE. A layer's CPU seconds are compared with those of the matrix products that no way
through it can do without: the layer's own for each sequence, in the float and in the quantized run, and the second
moments of what its linear layers take in, once for each tensor, for the sequences that GPTQ learns from. One thread;
peak memory is that of the process, in which the products come last.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detent.layerwise import quantize_checkpoint

WIDTH, INNER, HEADS, KEYS = 2048, 5632, 32, 4
SHAPE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 22,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
}
BATCH = 8


def make(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    LlamaForCausalLM(LlamaConfig(**SHAPE, dtype="bfloat16")).save_pretrained(folder, max_shard_size="500MB")
    torch.set_default_dtype(torch.float32)


def batches(sequences: int, length: int) -> list[tuple[Tensor, Tensor]]:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (sequences, length)))
    return [(part, torch.ones_like(part)) for part in ids.split(BATCH)]


def product_seconds(sequences: int, length: int) -> float:
    """CPU seconds of the matrix products of one layer, measured on one batch of each and counted."""
    words = BATCH * length
    narrow = WIDTH // HEADS * KEYS
    x, inner = torch.randn(words, WIDTH), torch.randn(words, INNER)
    weights = [(x, out) for out in (WIDTH, narrow, narrow, WIDTH, INNER, INNER)] + [(inner, WIDTH)]
    heads = torch.randn(BATCH * HEADS, length, WIDTH // HEADS)

    def seconds(do: Any) -> float:
        do()
        start = time.process_time()
        do()
        return time.process_time() - start

    layer = sum(seconds(lambda a=a, w=torch.randn(out, a.shape[1]): a @ w.t()) for a, out in weights)
    layer += seconds(lambda: (heads @ heads.transpose(1, 2)) @ heads)
    moments = 3 * seconds(lambda: x.t() @ x) + seconds(lambda: inner.t() @ inner)
    learning = sequences - max(1, sequences // BATCH // 4) * BATCH
    return (2 * layer * sequences + moments * learning) / BATCH


def main() -> None:
    parser = argparse.ArgumentParser(description="memory and time of a model a layer at a time")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", default="w4g32_gptq")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not (given.folder / "model" / "config.json").exists():
        make(given.folder / "model")
    data = None if given.recipe in ("w4g32", "w4g128", "w8") else batches(given.sequences, given.length)
    out = given.folder / given.recipe
    start = time.process_time()
    quantize_checkpoint(given.folder / "model", data, backend="compressed_tensors", recipe=given.recipe, folder=out)
    whole = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    parts = json.loads((out / "layers.json").read_text())["parts"][:-1]
    each = [part["cpu_seconds"] for part in parts]
    size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    print(f"{given.recipe}: peak {peak:.2f} GiB, {size / 1e9:.2f} GB written, {whole:.0f} CPU s in this process")
    print(f"a layer: {sum(each) / len(each):.1f} CPU s ({min(each)} to {max(each)})")
    if data is not None:
        print(f"its matrix products alone: {product_seconds(given.sequences, given.length):.1f} CPU s")


if __name__ == "__main__":
    main()
