"""Block reconstruction: learns parameters inside a block so that its output approaches that of the float model.

Shared by AdaRound (on one layer), BRECQ, QDrop and the finetuning of weights and scales. Inputs and targets are cached
for the current block only, batches are drawn from them, and Adam learns the parameters that the algorithm chooses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from detent.algorithms.common.blocks import Block
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.floating import as_float
from detent.algorithms.common.report import Change, better
from detent.algorithms.common.samples import BlockSamples, Sample
from detent.algorithms.common.walk import RecordedCall, Walk, compute
from detent.graph import PreparedModel
from detent.quantizers import AdaRound, QDrop, Quantizer
from detent.quantizers.adaround import annealed_beta, rounding_penalty

__all__ = ["Learned", "Reconstruction", "activation_quantizers", "reconstruct", "rounding_and_scales"]


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """Options for learning a block: Adam steps on batches of rows. The rates of scales and weights are relative to
    their magnitude. `drop` is the share of elements of the block's input that come from the float run instead of the
    quantized one."""

    steps: int = 2000
    batch: int = 32
    rate: float = 3e-2
    scale_rate: float = 1e-3
    weight_rate: float = 1e-3
    penalty: float = 30.0
    warm_up: float = 0.2
    drop: float = 0.0
    seed: int = 0


@dataclass
class Learned:
    """The learned parameters of one block with their rates, and the quantizers whose rounding is learned."""

    rates: dict[nn.Parameter, float] = field(default_factory=dict)
    roundings: list[tuple[AdaRound, Tensor]] = field(default_factory=list)
    dropping: list[QDrop] = field(default_factory=list)


Choice = Callable[[Walk, Block, Reconstruction], Learned]


def rounding_and_scales(walk: Walk, block: Block, options: Reconstruction) -> Learned:
    """The rounding of the block's weights, and the scales of activations inside it that can be learned."""
    found = Learned()
    for layer in block.layers:
        if isinstance(layer.quantizer, AdaRound) and layer.calls == 1:
            found.rates[layer.quantizer.rounding] = options.rate
            found.roundings.append((layer.quantizer, layer.weight.detach()))
    for quantizer in activation_quantizers(walk, block):
        scale = getattr(quantizer, "scale", None)
        if isinstance(scale, nn.Parameter):
            found.rates[scale] = options.scale_rate * float(scale.detach().abs().mean())
        if isinstance(quantizer, QDrop):
            found.dropping.append(quantizer)
    return found


def activation_quantizers(walk: Walk, block: Block) -> list[Quantizer]:
    """The activation quantizers inside a block, each once."""
    parts = [walk.modules[str(node.target)] for node in block.nodes if node.op == "call_module"]
    return list(dict.fromkeys(part for part in parts if isinstance(part, Quantizer)))


def reconstruct(walk: Walk, block: Block, options: Reconstruction, choose: Choice = rounding_and_scales) -> Change:
    """Learn one block, which the walk has reached; roll back unless it helps on held-back data."""
    learned = choose(walk, block, options)
    before = _error(walk, block)
    if not learned.rates or not before > 0:
        why = "nothing in it is learned" if not learned.rates else "its output is exact"
        return Change(place=block.name, before=before, after=before, kept=True, note=why)
    kept = {parameter: parameter.detach().clone() for parameter in learned.rates}
    _learn(walk, block, learned, options, scale=before)
    after = _error(walk, block)
    helped = better(before, after)
    if not helped:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)
    return Change(place=block.name, before=before, after=after, kept=helped)


def _learn(walk: Walk, block: Block, learned: Learned, options: Reconstruction, *, scale: float) -> None:
    """Adam on the squared error divided by `scale`, so that one strength of the penalty suits blocks of any
    magnitude."""
    samples = BlockSamples(_cached(walk, block), options.batch, options.drop, options.seed)
    roundings = {quantizer.rounding for quantizer, _ in learned.roundings}
    optimizer = torch.optim.Adam([{"params": [p], "lr": rate} for p, rate in learned.rates.items()])
    count = max(1, sum(weight.numel() for _, weight in learned.roundings))
    with _learning(walk.prepared, learned), torch.enable_grad():
        for step in range(options.steps):
            for group in optimizer.param_groups:
                (parameter,) = group["params"]
                if parameter not in roundings:
                    group["lr"] = learned.rates[parameter] * 0.5 * (1 + math.cos(math.pi * step / options.steps))
            inputs, wanted = samples.draw()
            optimizer.zero_grad()
            total = (_run(walk, block, inputs) - wanted).square().mean() / scale
            beta = annealed_beta(step, options.steps, warm_up=options.warm_up)
            if beta is not None:
                for quantizer, weight in learned.roundings:
                    total = total + options.penalty / count * rounding_penalty(quantizer.soft_rounding(weight), beta)
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@contextmanager
def _learning(prepared: PreparedModel, learned: Learned) -> Iterator[None]:
    """Inside the block, gradients are on for the learned parameters only, and soft rounding and dropping are active."""
    asked = {parameter: parameter.requires_grad for parameter in prepared.parameters()}
    soft: list[Quantizer] = [*(quantizer for quantizer, _ in learned.roundings), *learned.dropping]
    flags = {quantizer: quantizer.training for quantizer in soft}
    for parameter in asked:
        parameter.requires_grad_(parameter in learned.rates)
    for quantizer in soft:
        quantizer.train()
    try:
        yield
    finally:
        for parameter, requires in asked.items():
            parameter.requires_grad_(requires)
        for parameter in learned.rates:
            parameter.grad = None
        for quantizer, training in flags.items():
            quantizer.train(training)


def _run(walk: Walk, block: Block, inputs: Sequence[Any]) -> Tensor:
    values: dict[fx.Node, Any] = dict(zip(block.inputs, inputs, strict=True))
    for node in (*block.constants, *block.nodes):
        values[node] = compute(node, values, walk.modules, walk.region)
    result: Tensor = values[block.output]
    return result


def _inputs(block: Block, values: dict[fx.Node, Any]) -> tuple[Any, ...]:
    return tuple(values[node] for node in block.inputs)


def _copied(inputs: Sequence[Any]) -> list[Any]:
    """Copies, because an operation of the block may modify its inputs."""
    return [value.clone() if isinstance(value, Tensor) else value for value in inputs]


def _cached(walk: Walk, block: Block) -> list[Sample]:
    with torch.no_grad(), as_float(walk.prepared):
        return [
            Sample(
                _inputs(block, call.got),
                _inputs(block, call.wanted),
                _run(walk, block, _copied(_inputs(block, call.wanted))),
            )
            for call in walk.train_calls()
        ]


def _error(walk: Walk, block: Block) -> float:
    """The output error of the block on held-back data, with inputs from the quantized network."""
    deviation = Deviation()
    with torch.no_grad():
        for call in walk.judge_calls():
            deviation.add(_wanted(walk, block, call), _run(walk, block, _copied(_inputs(block, call.got))))
    return deviation.mean_squared


def _wanted(walk: Walk, block: Block, call: RecordedCall) -> Tensor:
    with as_float(walk.prepared):
        return _run(walk, block, _copied(_inputs(block, call.wanted)))
