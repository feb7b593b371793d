"""A `config.yaml` of the benchmark's zoo, with all its sections, as a config of `detent train`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.compat.mqbench.models import MODELS, missing_weights, model_options
from detent.compat.mqbench.qconfig import checked_keys
from detent.errors import RecipeError
from detent.training.datasets import ListedImages

__all__ = ["is_zoo_config", "sections_of"]

_SECTIONS = (
    "model", "dist", "qparams", "backend", "bnfold", "optimizer", "lr_scheduler", "label_smooth", "ema", "data",
    "saver", "freeze_step", "seed",
)  # fmt: skip
_DATA = (
    "type", "read_from", "use_dali", "batch_size", "num_workers", "pin_memory", "input_size", "test_resize", "train",
    "test",
)  # fmt: skip
_SPLIT = ("root_dir", "meta_file", "image_reader", "sampler", "transforms", "evaluator")
_OPTIMIZERS = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}


def is_zoo_config(config: Mapping[str, Any]) -> bool:
    """Whether it has the benchmark's own sections, and not those of `detent train`."""
    return isinstance(config.get("model"), Mapping) and "type" in config["model"]


def sections_of(
    config: Mapping[str, Any], *, pretrained: str | None, folder: str | None, processes: int = 1
) -> dict[str, Any]:
    """Its sections but `qparams`, `backend` and `bnfold`, as `detent train` has them.

    The benchmark counts iterations, and samples of one process: `max_iter` becomes epochs, and batches those of all
    processes. `pretrained` is a file of weights, "none" for random ones; `folder` has pictures in folders of classes in
    place of the section's own. What says how a cluster reads (memcached, pinned memory, samplers) says nothing here,
    nor does `dist.sync`: false means that gradients are averaged during the backward pass, true after it.
    """
    checked_keys(config, _SECTIONS, "config.yaml")
    model, optimizer = config["model"], _with_kwargs(config, "optimizer")
    if pretrained is None:
        raise missing_weights(model["type"])
    schedule = checked_keys(
        _of_type(config, "lr_scheduler", "Cosine"),
        ("base_lr", "warmup_lr", "warmup_steps", "max_iter", "min_lr"),
        "lr_scheduler.kwargs",
    )
    data = _data(checked_keys(config["data"], _DATA, "data"), folder, processes)
    peak = schedule.get("warmup_lr", schedule["base_lr"])
    steps = math.ceil(data.pop("count") / data["batch_size"])
    epochs = max(1, round(schedule["max_iter"] / steps))
    saver = checked_keys(config.get("saver") or {}, ("print_freq", "val_freq", "save_many", "pretrain"), "saver")
    validated = saver.get("val_freq", steps)
    train = {"loop": "lsq", "epochs": epochs, "val_interval": max(1, round(validated / steps))}
    if validated < steps:
        train["checkpoint_interval"] = validated
    if (config.get("ema") or {}).get("enable"):
        train["ema"] = float(config["ema"].get("kwargs", {}).get("decay", 0.999))
    if "freeze_step" in config and config["freeze_step"] < schedule["max_iter"]:
        train["freeze_bn_begin"] = 1 + config["freeze_step"] // steps
    return {
        "model": {
            "name": MODELS[model["type"]] if model["type"] in MODELS else model["type"],
            "options": model_options(model),
            "pretrained": None if pretrained == "none" else pretrained,
        },
        "data": {**data, "train_batches": min(steps, schedule["max_iter"])},
        "train": {**train, "seed": config.get("seed", 1000)},
        "optimizer": {**optimizer, "lr": peak},
        "schedule": {
            "name": "cosine",
            "warmup_steps": schedule.get("warmup_steps", 0),
            "start": schedule["base_lr"] / peak,
            "end": schedule.get("min_lr", 0.0) / peak,
        },
        "loss": {"label_smoothing": config.get("label_smooth", 0.0)},
    }


def _with_kwargs(config: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The optimizer. `pconfig` may say what is so here in any case: that norms and biases do not decay."""
    said = checked_keys(config[section], ("type", "kwargs", "pconfig", "no_wd"), section)
    if said["type"] not in _OPTIMIZERS:
        raise RecipeError(
            f"{section}.type {said['type']!r}", f"allowed are {', '.join(_OPTIMIZERS)}", "use one of these"
        )
    for group, options in (said.get("pconfig") or {}).items():
        if group not in ("bn_w", "bn_b", "conv_b", "linear_b") or dict(options) != {"weight_decay": 0.0}:
            raise RecipeError(f"{section}.pconfig.{group}", "norms and biases do not decay, others do", "leave it out")
    kwargs = checked_keys(said.get("kwargs") or {}, ("nesterov", "momentum", "weight_decay"), f"{section}.kwargs")
    return {"name": _OPTIMIZERS[said["type"]], **kwargs}


def _of_type(config: Mapping[str, Any], section: str, only: str) -> Mapping[str, Any]:
    said = checked_keys(config[section], ("type", "kwargs"), section)
    if said["type"] != only:
        raise RecipeError(f"{section}.type {said['type']!r}", f"allowed is {only}", f"use {only}")
    kwargs: Mapping[str, Any] = said["kwargs"]
    return kwargs


def _data(said: Mapping[str, Any], folder: str | None, processes: int) -> dict[str, Any]:
    if said.get("type", "imagenet") != "imagenet" or said.get("use_dali"):
        raise RecipeError(f"data.type {said.get('type')!r}", "allowed is imagenet, without DALI", "use it")
    sizes = {"size": said.get("input_size", 224), "resize": said.get("test_resize", 256)}
    found: dict[str, Any] = {
        "batch_size": said["batch_size"] * processes,
        "workers": said.get("num_workers", 0),
        "augment": True,
    }
    if folder is not None:
        count = sum(1 for path in (Path(folder) / "train").rglob("*") if path.is_file())
        return {**found, "name": "image_folder", "folder": folder, "options": sizes, "count": max(1, count)}
    for split in ("train", "test"):
        checked_keys(said[split], _SPLIT, f"data.{split}")
    options = {
        f"{split}_{ours}": said[split][theirs]
        for split in ("train", "test")
        for ours, theirs in (("root", "root_dir"), ("list", "meta_file"))
    }
    count = len(ListedImages(None, "train", **options, **sizes))
    return {**found, "name": "listed_images", "options": {**options, **sizes}, "count": count}
