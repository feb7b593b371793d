"""Weights of 2 bits, trained with what the float model writes and thinks of it (LLM-QAT): LSQ and SEQ side by side.

    python benchmarks/qat_language.py [--steps 200] [--rates 0.001 0.003]

stories260K (ptq_language.py); one scale for each channel of every linear layer but the last, and activations float.
Training text, the text that the learning rate is chosen on, and the text that is measured are drawn apart, with fixed
seeds. The loss is the cross entropy with the float model's own chances of the next word (Liu et al., LLM-QAT, 2023).
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent.recipes import Recipe
from ptq_data import DATA
from ptq_language import LENGTH, load, perplexity, written

BATCH = 8
ROWS: dict[str, dict[str, Any]] = {
    "lsq": {"quantizer": "lsq", "bits": 2, "granularity": "per_channel"},
    "seq": {"quantizer": "seq", "grid": "half", "bits": 2, "granularity": "per_channel"},
}


def prepared_for(net: nn.Module, weight: dict[str, Any], batches: list[Tensor]) -> Any:
    recipe = Recipe.from_dict(
        {"name": "W2", "weight": weight, "activation": {"quantize": False}, "exclude": ["embedding", "output"]}
    )
    prepared = detent.prepare(net, (batches[0],), backend="academic_nlp", recipe=recipe)
    detent.calibrate(prepared, batches)
    return prepared


def trained(net: nn.Module, weight: dict[str, Any], text: Tensor, steps: int, rate: float) -> Any:
    """AdamW with a rate that falls to zero along a cosine."""
    batches = list(text[:, :LENGTH].split(BATCH))
    prepared = prepared_for(net, weight, batches[:4]).train()
    optimizer = torch.optim.AdamW(prepared.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.no_grad():
        chances = [torch.softmax(net(batch), -1) for batch in batches]
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        at = int(torch.randint(len(batches), (), generator=order))
        optimizer.zero_grad()
        F.cross_entropy(prepared(batches[at]).flatten(0, 1), chances[at].flatten(0, 1)).backward()
        optimizer.step()
        schedule.step()
    return prepared.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="2-bit weights of a language model, trained")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3])
    given = parser.parse_args()
    net = load(DATA / "stories260k" / "stories260K.bin")
    text, choosing, judging = written(net, 256, seed=3), written(net, 32, seed=4), written(net, 64, seed=2)
    print(f"float: perplexity {perplexity(net, judging):.3f}", flush=True)
    for name, weight in ROWS.items():
        torch.manual_seed(0)
        start = perplexity(prepared_for(net, weight, list(text[:32, :LENGTH].split(BATCH))).eval(), judging)
        models = {rate: trained(net, weight, text, given.steps, rate) for rate in given.rates}
        held = {rate: perplexity(model, choosing) for rate, model in models.items()}
        best = min(held, key=lambda rate: held[rate])
        tried = ", ".join(f"{rate:g}: {value:.3f}" for rate, value in held.items())
        print(f"{name}: {start:.3f} calibrated, {perplexity(models[best], judging):.3f} after {given.steps} steps "
              f"(rates on other text: {tried})", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
