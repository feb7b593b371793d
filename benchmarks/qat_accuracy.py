"""Top-1 of trained quantizers: float, after calibration, after training, beside post-training quantization.

    python benchmarks/qat_accuracy.py    [--networks resnet20] [--quantizers lsq pact] [--widths W4A4 W3A3 W2A4]
                                         [--images 10000] [--epochs 10] [--test 10000] [--ptq brecq] [--json]
                                         [--rate 0.02] [--decay 1e-4] [--adam] [--temperature 4]
                                         [--teacher resnet56]
                                         [--mix] [--cut] [--reestimate-bn] [--checkpoints FOLDER]
                                         [--first-step] [--gradient-scale lsq]

CIFAR-10 ResNets on the backend `academic`: weights per channel, inputs of layers per tensor, first and last layer with
8 bits. Every quantizer is trained in the same way, from the same weights:

    calibration     512 of the training images
    images          the first 10,000 of CIFAR-10's training images, moved by up to 4 pixels and mirrored; with `--mix`,
                    each is a weighted mean of two of them (Zhang et al., "mixup", 2018), which a teacher can answer;
                    with `--cut`, every second one has a square of another instead (Yun et al., "CutMix", 2019)
    optimizer       SGD with momentum 0.9, or AdamW with `--adam`, batches of 128, learning rate `--rate` for weights
                    and scales (with SGD a hundredth of it for the intervals of QIL, whose gradients are sums over all
                    values), one epoch of warm-up, then half a cosine to 0; weight decay `--decay` on weights, none on
                    scales, norms and biases
    loss            Kullback-Leibler divergence from the float network's answer at `--temperature`, or from that of
                    another one, `--teacher`; no labels are used
    batch norms     trained; with `--reestimate-bn`, their statistics are measured again at the end, on 512 images

`--ptq` names the recipe beside it, learned on 1,024 of the same images; "none" leaves it out. With `--epochs 0` nothing
is trained. "start" is the signal to noise ratio of the ten scores after calibration, against the float network, in dB.
With `--epochs 0 --first-step` it also shows how far a first step at the rate would move weights and their ranges,
relative to them (the largest of all layers, or channels). A choice between observers is made by `--judge-by training`:
the last of the training images, not the test images.
With `--checkpoints`, a run that was ended goes on where it was. Where data and weights come from: ptq_data.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import detent
from detent.graph import PreparedModel, quantizers_of
from detent.recipes import Recipe
from detent.training import Batches, LSQEpochLoop, QATEpochLoop, Run, parameter_groups
from detent.training.batches import Augment
from detent.training.datasets import crop_and_flip
from detent.training.objective import Objective
from detent.training.schedules import Schedule
from ptq_data import Task, load, missing, training_images

QUANTIZERS = ("lsq", "lsq_plus", "pact", "dorefa", "dsq", "qil", "tqt", "apot")
WIDTHS = {"W8A8": (8, 8), "W4A4": (4, 4), "W3A3": (3, 3), "W2A4": (2, 4)}
NETWORKS = ("resnet20", "resnet56")
MOST_IMAGES = 10_000
BATCH, CALIBRATION = 128, 512
SCALE_RATES = {"qil": 0.01}  # of the rate, with SGD; others have the rate itself


def recipe_of(
    name: str,
    width: str,
    *,
    observer: str | None = None,
    norm: float | None = None,
    gradient: str | None = None,
    steps: int = 500,
) -> Recipe:
    """A built-in recipe with other bits, and another observer, or norm of the observer, if one is named."""
    data = Recipe.named(name).to_dict()
    named: dict[str, Any] = {} if observer is None else {"observer": observer}
    if norm is not None:
        named |= {"observer": observer or "start", "observer_options": {"norm": norm}}
    if gradient is not None:
        named |= {"quantizer_options": {"gradient_scale": gradient}}
    weight_bits, activation_bits = WIDTHS[width]
    data["weight"] = {**data.get("weight", {}), "bits": weight_bits, "granularity": "per_channel", **named}
    data["activation"] = {**data.get("activation", {}), "bits": activation_bits, **named}
    for algorithm in data.get("algorithms", []):
        if algorithm["name"] in ("adaround", "brecq", "qdrop"):
            algorithm["options"] = {"steps": steps}
    return Recipe.from_dict(data)


def calibrated(task: Task, recipe: Recipe, batches: list[Tensor]) -> PreparedModel:
    prepared = detent.prepare(task.net, (task.images[:2],), backend="academic", recipe=recipe)
    detent.calibrate(prepared, batches)
    return prepared.eval()


def first_step(prepared: PreparedModel, task: Task, images: Tensor, given: argparse.Namespace) -> dict[str, float]:
    """The largest relative change of a weight tensor, and of a range of weights, in a step without momentum."""
    objective = Objective(teacher=task.net, weight=1.0, temperature=given.temperature)
    objective(prepared.train()(images), (images, torch.zeros(len(images), dtype=torch.int64))).backward()
    ranges = [p for q in quantizers_of(prepared) if q.role == "weight" for p in q.parameters(recurse=False)]
    known = {id(p) for q in quantizers_of(prepared) for p in q.parameters(recurse=False)}
    weights = [p for p in prepared.parameters() if p.ndim > 1 and id(p) not in known]
    prepared.eval()
    moved = [float((given.rate * p.grad / p.detach()).abs().max()) for p in ranges if p.grad is not None]
    return {
        "weights move": max(
            float(given.rate * p.grad.norm() / p.detach().norm()) for p in weights if p.grad is not None
        ),
        "ranges move": max(moved, default=0.0),
    }


def mixed_with(images: Tensor, *, mix: bool, cut: bool) -> Augment:
    """Augments an image, and mixes it with one of `images`, augmented too, in one of the ways that are asked for."""
    ways = [way for way, asked in ((_mean, mix), (_with_square, cut)) if asked]

    def augment(image: Tensor, draw: torch.Generator) -> Tensor:
        other = images[int(torch.randint(len(images), (), generator=draw))]
        share = float(torch.rand((), generator=draw))
        way = ways[int(torch.randint(len(ways), (), generator=draw))]
        return way(crop_and_flip(image, draw), crop_and_flip(other, draw), share, draw)

    return augment


def _mean(image: Tensor, other: Tensor, share: float, _: torch.Generator) -> Tensor:
    return share * image + (1 - share) * other


def _with_square(image: Tensor, other: Tensor, share: float, draw: torch.Generator) -> Tensor:
    """`image`, with a square of `other`, which has `1 - share` of the area, less what reaches over the border."""
    size = torch.tensor(image.shape[1:])
    middle, half = torch.rand(2, generator=draw) * size, (1 - share) ** 0.5 * size / 2
    low, high = (middle - half).round().clamp(min=0).long(), (middle + half).round().long()
    place = (..., slice(int(low[0]), int(high[0])), slice(int(low[1]), int(high[1])))
    found = image.clone()
    found[place] = other[place]
    return found


def train(
    prepared: PreparedModel, task: Task, data: TensorDataset, given: argparse.Namespace, folder: Path | None
) -> None:
    """The schedule above; what learns no range has it measured again before each epoch."""
    torch.manual_seed(0)
    epochs, rate = given.epochs, given.rate
    scale_rate = rate * (1.0 if given.adam else SCALE_RATES.get(prepared.recipe.name, 1.0))
    mixed = mixed_with(data.tensors[0], mix=given.mix, cut=given.cut) if given.mix or given.cut else crop_and_flip
    batches = Batches(data, BATCH, shuffle=True, augment=mixed)
    teacher = load(given.teacher).net if given.teacher else task.net
    groups = parameter_groups(prepared, lr=rate, weight_decay=given.decay, scale_lr=scale_rate)
    run = Run(
        prepared,
        torch.optim.AdamW(groups) if given.adam else torch.optim.SGD(groups, momentum=0.9),
        batches,
        Batches(TensorDataset(task.images[:BATCH], task.labels[:BATCH]), BATCH),  # the whole test set is measured after
        Batches(data, BATCH, limit=CALIBRATION // BATCH),
        objective=Objective(teacher=teacher, weight=1.0, temperature=given.temperature),
        schedule=Schedule("cosine", len(batches) * epochs, len(batches)),
        folder=folder,
    )
    if run.last is not None:
        run.resume(run.last)
    learns = any(True for quantizer in quantizers_of(prepared) for _ in quantizer.parameters(recurse=False))
    kind = LSQEpochLoop if learns else QATEpochLoop
    kind(run, max_epochs=epochs, val_begin=epochs, reestimate_bn=given.reestimate_bn).run()
    prepared.eval()


def measured(task: Task, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for post-training quantization and for every quantizer, at every width."""
    exact = task.scores(task.net)
    images, labels = training_images(given.images)
    data = TensorDataset(images, labels)
    common = {"network": task.name, "float": task.accuracy(exact.argmax(1)), "images": given.images}
    for width in given.widths:
        if given.ptq != "none":
            began = time.perf_counter()
            model = calibrated(task, recipe_of(given.ptq, width, steps=given.steps), list(images[:1024].split(64)))
            scores = task.scores(model)
            yield {**common, "width": width, "by": given.ptq, **_after(task, exact, scores), "seconds": _since(began)}
        for name in given.quantizers:
            began = time.perf_counter()
            recipe = recipe_of(name, width, observer=given.observer, norm=given.norm, gradient=given.gradient_scale)
            model = calibrated(task, recipe, list(images[:CALIBRATION].split(64)))
            line = {**common, "width": width, "by": name, **_after(task, exact, task.scores(model))}
            if given.first_step:
                line |= first_step(model, task, images[:BATCH], given)
            if given.epochs:
                folder = given.checkpoints and given.checkpoints / f"{task.name}_{width}_{name}"
                train(model, task, data, given, folder)
                line["trained"] = task.accuracy(task.scores(model).argmax(1))
            yield {**line, "epochs": given.epochs, "rate": given.rate, "seconds": _since(began)}


def _after(task: Task, exact: Tensor, scores: Tensor) -> dict[str, float]:
    noise = (scores - exact).square().sum()
    return {
        "calibrated": task.accuracy(scores.argmax(1)),
        "start": float(10 * torch.log10(exact.square().sum() / noise)),
    }


def _since(began: float) -> float:
    return time.perf_counter() - began


def shown(line: dict[str, Any]) -> str:
    trained = f"{line['trained']:6.2f}" if "trained" in line else "      "
    text = f"{line['network']:<10}{line['width']:<6}{line['by']:<10}float {line['float']:5.2f}  calibrated "
    if "ranges move" in line:
        text = (
            f"{text[:-11]}first step: weights {line['weights move']:.4f}, ranges {line['ranges move']:.4f}  calibrated "
        )
    return f"{text}{line['calibrated']:5.2f} ({line['start']:4.1f} dB)  trained {trained}  {line['seconds']:6.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description="accuracy of trained quantizers")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--quantizers", nargs="*", choices=[*QUANTIZERS, "ptq"], default=QUANTIZERS)
    parser.add_argument("--widths", nargs="+", choices=WIDTHS, default=("W4A4", "W3A3", "W2A4"))
    parser.add_argument("--observer", help="what sets the start, in place of the default")
    parser.add_argument("--norm", type=float, help="of the error that this observer makes least")
    parser.add_argument("--judge-by", choices=("test", "training"), default="test", help="images to measure on")
    parser.add_argument("--images", type=int, default=MOST_IMAGES, help=f"to train on, at most {MOST_IMAGES:,}")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate after the warm-up")
    parser.add_argument("--first-step", action="store_true", help="how far a first step moves what is learned")
    parser.add_argument("--gradient-scale", help="of lsq and lsq_plus, in place of the default")
    parser.add_argument("--temperature", type=float, default=4.0, help="of the scores that are compared")
    parser.add_argument("--teacher", choices=NETWORKS, help="a float network to learn from, in place of one's own")
    parser.add_argument("--adam", action="store_true", help="AdamW in place of SGD")
    parser.add_argument("--decay", type=float, default=1e-4, help="weight decay")
    parser.add_argument("--mix", action="store_true", help="train on weighted means of two images")
    parser.add_argument("--cut", action="store_true", help="train on images with squares of others")
    parser.add_argument("--reestimate-bn", action="store_true", help="measure batch norms again after training")
    parser.add_argument("--checkpoints", type=Path, help="folder to keep the state of training in")
    parser.add_argument("--test", type=int, default=10_000, help="how many images to measure on")
    parser.add_argument("--ptq", default="brecq", help="the recipe beside it, or none")
    parser.add_argument("--steps", type=int, default=500, help="of learned rounding, for each block")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.first_step and given.epochs:
        parser.error("--first-step moves batch norms: give --epochs 0 with it")
    for name in given.networks:
        reason = missing(name)
        if reason:
            print(f"{name}: skipped, {reason}", file=sys.stderr)
            continue
        task = load(name, images=given.test)
        if given.judge_by == "training":
            images, labels = training_images(MOST_IMAGES)
            task = replace(task, images=images[-given.test :], labels=labels[-given.test :])
        for line in measured(task, given):
            print(json.dumps(line) if given.json else shown(line), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
