"""Perplexity of stories260K in the files of language models: simulation, twin and engine side by side.

    python benchmarks/llama_files.py ../shared/data --sequences 16 [--targets gguf onnxruntime_genai]

The checkpoint of llama2.c is made a folder of save_pretrained, and deployed to every target whose engine is installed.
The text is what the float model writes itself, as in `ptq_language.py`. Needs transformers.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import detent
from detent.frontends.hugging_face import load_checkpoint
from detent.targets import BACKENDS
from detent.targets.engines import ENGINES
from detent.targets.formats import size_to_load
from ptq_language import LENGTH, Llama, load, written

RECIPES = {
    "gguf": ("q8_0", "q4_0"),  # 64 inputs are no super-blocks of K-quants
    "onnxruntime_genai": ("w8", "w4g32"),
    "onnxruntime_genai_a8": ("w8", "w4g32"),
    "openvino_llm": ("w8", "w4g32"),
    "executorch_8da4w": ("w4g32",),
}


def save(net: Llama, folder: Path) -> None:
    """As transformers has it: rows of heads that rotary positions turn together stand half a head apart there."""
    import transformers

    layers: list[Any] = list(net.layers)
    config = transformers.LlamaConfig(
        vocab_size=net.embedding.num_embeddings,
        hidden_size=net.embedding.embedding_dim,
        intermediate_size=layers[0].w1.out_features,
        num_hidden_layers=len(layers),
        num_attention_heads=layers[0].heads,
        num_key_value_heads=layers[0].kv_heads,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)

    def halves(weight: Tensor, heads: int) -> Tensor:
        return weight.reshape(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

    state = {"model.embed_tokens.weight": net.embedding.weight, "model.norm.weight": net.norm.weight}
    state["lm_head.weight"] = net.embedding.weight
    for index, own in enumerate(layers):
        parts = {
            "input_layernorm": own.attention_norm.weight,
            "post_attention_layernorm": own.ffn_norm.weight,
            "self_attn.q_proj": halves(own.wq.weight, own.heads),
            "self_attn.k_proj": halves(own.wk.weight, own.kv_heads),
            "self_attn.v_proj": own.wv.weight,
            "self_attn.o_proj": own.wo.weight,
            "mlp.gate_proj": own.w1.weight,
            "mlp.up_proj": own.w3.weight,
            "mlp.down_proj": own.w2.weight,
        }
        state.update({f"model.layers.{index}.{name}.weight": value for name, value in parts.items()})
    model.load_state_dict(state)
    model.save_pretrained(folder)


def save_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer of llama2.c (pieces with scores) as tokenizer.json: merges in the order of scores, and bytes for
    what is in no piece. llama2.c's own special pieces stand between line breaks."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, processors

    content, at = source.read_bytes(), 4
    pieces: dict[str, tuple[int, float]] = {}
    while at < len(content):
        score, length = struct.unpack_from("<fi", content, at)
        text = content[at + 8 : at + 8 + length].decode()
        text = text.strip() if len(pieces) < 3 else text.replace(" ", "\u2581")
        pieces[text] = (len(pieces), score)
        at += 8 + length
    splits = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=lambda piece: -pieces[piece][1])
        for cut in range(1, len(piece))
        if pieces[piece][0] > 258 and piece[:cut] in pieces and piece[cut:] in pieces
    ]
    made = tokenizers.Tokenizer(
        models.BPE(
            {piece: index for piece, (index, _) in pieces.items()}, splits, unk_token="<unk>", byte_fallback=True,
            fuse_unk=True,
        )
    )  # fmt: skip
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    said |= {"add_bos_token": True, "add_eos_token": False, "legacy": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def perplexity(scores: Tensor, tokens: Tensor) -> float:
    return math.exp(float(F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())))


@torch.no_grad()
def row(model: Path, target: str, recipe: str, tokens: Tensor, folder: Path) -> str:
    backend, ids = BACKENDS[target], tokens[:, :LENGTH]
    mask = torch.ones_like(ids)
    prepared = detent.prepare(load_checkpoint(model), (ids[:1], mask[:1]), backend=target, recipe=recipe)
    detent.calibrate(prepared, [(ids[:1], mask[:1])])
    artifact = detent.deploy(prepared, folder)
    simulated = prepared.eval()(ids, mask)
    batch: dict[str, Any] = dict(zip(artifact.graph.inputs, (ids.numpy(), mask.numpy()), strict=True))
    (output,) = (each.name for each in artifact.graph.outputs)
    twin = torch.from_numpy(detent.twin.run(artifact, batch, backend.arithmetic)[output])
    engine = torch.from_numpy(ENGINES[backend.engine].load(artifact).run(batch)[output])
    sides = "".join(f"{perplexity(side, tokens):12.4f}" for side in (simulated, twin, engine))
    verdict = artifact.verify([(ids[:2], mask[:2])], latency=False)
    size = size_to_load(artifact)
    return f"{target:22}{recipe:8}{sides}{size:12,}  {'holds' if verdict.holds else 'FAILS'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--targets", nargs="+", choices=RECIPES, default=list(RECIPES))
    asked = parser.parse_args()
    net = load(asked.data / "stories260k" / "stories260K.bin")
    tokens = written(net, asked.sequences, seed=2)
    with torch.no_grad():
        print(f"float: {perplexity(net(tokens[:, :LENGTH]), tokens):.4f}")
    print(f"{'':30}{'simulation':>12}{'twin':>12}{'engine':>12}{'bytes':>12}  verdict on 2 sequences")
    with tempfile.TemporaryDirectory() as folder:
        save(net, Path(folder) / "model")
        for target in asked.targets:
            if ENGINES[BACKENDS[target].engine].version() is None:
                print(f"{target:22}its engine is not installed")
                continue
            for recipe in RECIPES[target]:
                print(row(Path(folder) / "model", target, recipe, tokens, Path(folder) / target / recipe))


if __name__ == "__main__":
    main()
