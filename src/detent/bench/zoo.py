"""MQBench's zoo of experiments, from one table: a config of `detent train` for each, and the script that runs it.

    qbench_zoo/<algorithm>_experiments/<network>_<bits>bit_<hardware>/config.yaml

The training setting is MQBench's: 100 epochs of ImageNet, SGD, a cosine, smoothed labels; only the network decides on
learning rate, decay and batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.compat.mqbench.hardware import hardware_named
from detent.compat.mqbench.solver import backend_of, recipe_of
from detent.files import write_bytes
from detent.recipes import yaml_text
from detent.training.config import Config

__all__ = ["Experiment", "experiments", "write_zoo"]


@dataclass(frozen=True)
class _Network:
    """As MQBench calls it, as our zoo does, and its setting: peak learning rate, decay, samples of a batch."""

    name: str
    ours: str
    rate: float
    decay: float
    batch: int = 512


_NETWORKS = (
    _Network("resnet18", "resnet18", 0.004, 1e-4),
    _Network("resnet50", "resnet50", 0.004, 1e-4, batch=256),
    _Network("mobilenetv2", "mobilenet_v2", 0.01, 1e-5),
    _Network("effnet", "efficientnet_lite0", 0.01, 1e-5),
    _Network("regnet600", "regnetx_600mf", 0.004, 1e-4),
)
_METHODS = {
    "lsq": ("lsq", "lsq"),
    "dsq": ("dsq", "dsq"),
    "pact": ("dorefa", "pact"),
    "dorefa": ("dorefa", "dorefa"),
    "qil": ("qil", "qil"),
}
"""Of weights and activations."""
_HARDWARE = {
    "academic": "academic",
    "acl": "acl",
    "fbgemm": "fbgemm",
    "snpe": "snpe",
    "trt": "tensorrt",
    "tvm": "tvm",
}
_STRATEGIES = (-1, 0, 1, 2, 3, 4)
_OBSERVERS = {"minmax": "MinMaxObserver", "lsq": "LSQObserver", "mse": "MSEObserver"}
_BASE_RATE = 1e-4
_SCRIPT = """#!/bin/sh
# sh run.sh --data FOLDER --pretrained FILE: the options of `detent train`.
exec python -u -m detent train config.yaml "$@"
"""


@dataclass(frozen=True)
class Experiment:
    """A folder of the zoo, and its config."""

    folder: str
    config: Config

    def text(self) -> str:
        head = (
            "# MQBench's setting. --data FOLDER and --pretrained FILE name ImageNet and the float weights elsewhere.\n"
        )
        return head + yaml_text.dumps(self.config.to_dict())


def experiments() -> Iterator[Experiment]:
    """All of them: the 150 of the benchmark, those of batch-norm strategies and of initializations."""
    for method in _METHODS:
        for network in _NETWORKS:
            for hardware in _HARDWARE:
                yield _experiment(f"{method}_experiments/{network.name}_4bit_{hardware}", network, method, hardware)
    for network in _NETWORKS:
        for strategy in _STRATEGIES:
            yield _experiment(
                f"bnfold_experiments/{network.name}_4bit_bn{strategy}", network, "lsq", "academic", strategy=strategy
            )
    for network in (_NETWORKS[0], _NETWORKS[2]):
        for bits in (4, 8):
            for observer in _OBSERVERS:
                where = f"initialization_experiments/{network.name}_{bits}bit_{observer}"
                yield _experiment(where, network, "lsq", "academic", bits=bits, observer=observer)


def _experiment(
    folder: str,
    network: _Network,
    method: str,
    hardware: str,
    *,
    bits: int = 4,
    strategy: int = 4,
    observer: str | None = None,
) -> Experiment:
    weights, activations = _METHODS[method]
    told: dict[str, Any] = {
        "qparams": {"w_method": weights, "a_method": activations, "bit": bits},
        "backend": _HARDWARE[hardware],
        "bnfold": strategy,
    }
    if observer is not None:
        told["qparams"] |= {"w_observer": _OBSERVERS[observer], "a_observer": _OBSERVERS[observer]}
    if method == "qil" and hardware_named(_HARDWARE[hardware]).params.pot_scale:
        told["backend"] = {"symmetry": True}  # an interval that is learned has no power of two; MQBench rounds it
    recipe = {**recipe_of(told), "name": f"{method}-{hardware}-{bits}bit"}
    return Experiment(
        folder,
        Config.from_dict(
            {
                "name": folder.replace("_experiments/", "_"),
                "model": {"name": network.ours, "pretrained": f"../../../weights/{network.ours}.pth"},
                "data": {
                    "name": "image_folder",
                    "folder": "../../../data/imagenet",
                    "batch_size": network.batch,
                    "augment": True,
                    "workers": 6,
                },
                "backend": backend_of(told),
                "recipe": recipe,
                "train": {"loop": "qat", "epochs": 100, "seed": 1000},
                "optimizer": {"lr": network.rate, "weight_decay": network.decay, "nesterov": True},
                "schedule": {
                    "warmup_steps": 2500 * 512 // network.batch,
                    "start": _BASE_RATE / network.rate,
                },
                "loss": {"label_smoothing": 0.1},
            },
            source=folder,
        ),
    )


def write_zoo(folder: str | Path) -> list[Path]:
    """Write every experiment below `folder`; the configs' paths."""
    written = []
    for experiment in experiments():
        where = Path(folder) / experiment.folder
        where.mkdir(parents=True, exist_ok=True)
        write_bytes(where / "config.yaml", experiment.text().encode())
        write_bytes(where / "run.sh", _SCRIPT.encode())
        written.append(where / "config.yaml")
    return written
