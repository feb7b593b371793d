"""Perplexity of stories260K with a KV cache of few bits, alone and behind quantized weights.

    python benchmarks/kv_cache.py ../shared/data [--sequences 64] [--group 32]

"W4" are weights of `w4g32_gptq` for `compressed_tensors`, learned on 32 other sequences. The text is what the float
model writes itself, as in `ptq_language.py`. Needs transformers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import detent
from detent.frontends.hugging_face import load_checkpoint
from detent.kv_cache import quantized_cache
from llama_files import perplexity, save
from ptq_language import LENGTH, load, written

BITS = (8, 4, 3, 2)


def quantized(folder: Path, examples: Tensor) -> nn.Module:
    """The model of transformers with the weights that are simulated."""
    batches = [(rows, torch.ones_like(rows)) for rows in examples.split(8)]
    loaded = load_checkpoint(folder)
    prepared = detent.prepare(loaded, batches[0], backend="compressed_tensors", recipe="w4g32_gptq")
    detent.calibrate(prepared, batches)
    layers = dict(prepared.eval().named_modules())
    for name, layer in loaded.named_modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(layers[name].weight.detach().clone())  # type: ignore[operator, union-attr]
    found: nn.Module = next(one for one in loaded.modules() if hasattr(one, "generate"))
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--group", type=int, default=32)
    asked = parser.parse_args()
    import transformers

    net = load(asked.data / "stories260k" / "stories260K.bin")
    examples, tokens = written(net, 32, seed=1)[:, :LENGTH], written(net, asked.sequences, seed=2)
    ids = tokens[:, :LENGTH]
    with tempfile.TemporaryDirectory() as folder:
        save(net, Path(folder) / "model")
        models = {
            "float": transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "model").eval(),
            "W4": quantized(Path(folder) / "model", examples),
        }
        print(f"{'weights':10}{'residual':>10}{'float KV':>10}" + "".join(f"{f'KV{bits}':>10}" for bits in BITS))
        for name, model in models.items():
            for residual in (0, 32):
                caches = [None, *(quantized_cache(bits, group=asked.group, residual=residual) for bits in BITS)]
                found = [perplexity(model(ids, past_key_values=cache).logits, tokens) for cache in caches]
                print(f"{name:10}{residual:10}" + "".join(f"{one:10.3f}" for one in found))


if __name__ == "__main__":
    main()
