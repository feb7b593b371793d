"""Checkpoints: one safetensors file whose header holds the JSON, written whole or not at all.

    checkpoint.save("run/last.safetensors", prepared, training={"optimizer": optimizer.state_dict()})
    training = checkpoint.load("run/last.safetensors", prepared)

Tensors and JSON are in one file because one rename makes it appear: a kill at any moment leaves the last complete
file. Reading runs no code. A file of another network, backend or recipe is refused with the differences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from detent.errors import ArtifactError, refusing
from detent.files import write_bytes
from detent.graph import BEFORE_CORRECTION, FloatRange, PreparedModel
from detent.training.state_codec import pack, unpack

__all__ = ["VERSION", "differences", "load", "load_model", "read", "save"]

VERSION = 1
"""Of the layout; a reader refuses one it does not know."""

_SHOWN = 8  # differences that an error lists; the rest are counted


def save(path: str | Path, prepared: PreparedModel, *, training: Mapping[str, Any] | None = None) -> None:
    """Write the state of a prepared model, what it was prepared for, and any nested training state."""
    plain, tensors = pack({"model": prepared.state_dict(), "training": dict(training or {})})
    header = {"checkpoint version": VERSION, **_request(prepared), "state": plain}
    where = Path(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(where, to_bytes(tensors, metadata={"detent": json.dumps(header)}))


def read(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint: `backend`, `recipe`, and `state` with `model` and `training`."""
    where = Path(path)
    asked = f"read the checkpoint {str(where)!r}"
    if "\0" in str(where) or not where.is_file():
        raise ArtifactError(asked, "there is no such file", "give the path of a checkpoint that training wrote")
    try:
        with safe_open(where, "pt") as file:
            metadata = (file.metadata() or {}).get("detent")
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ArtifactError(asked, f"it is truncated or no safetensors file: {error}", "use an older one") from None
    if metadata is None:
        raise ArtifactError(asked, "it holds weights only", "load weights by `pretrained`, and resume from checkpoints")
    try:
        header: dict[str, Any] = json.loads(metadata)
        version = header["checkpoint version"]
        if version == VERSION:
            header["state"] = unpack(header["state"], tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(asked, f"its header is damaged: {error!r}", "use an older one") from None
    if version != VERSION:
        raise ArtifactError(asked, f"checkpoint version {version}", f"use a Detent that reads it, or version {VERSION}")
    _check_form(header["state"], asked)
    return header


def _check_form(state: Any, asked: str) -> None:
    """Refuse a state without model tensors or without a mapping of training state."""
    if not isinstance(state, dict) or not all(isinstance(state.get(part), dict) for part in ("model", "training")):
        raise ArtifactError(asked, "its state has no 'model' and 'training'", "use an older one")
    for name, value in state["model"].items():
        if not isinstance(value, Tensor):
            raise ArtifactError(asked, f"{name} of its model is a {type(value).__name__}", "use an older one")


def load(path: str | Path, prepared: PreparedModel) -> dict[str, Any]:
    """Load the model's state into `prepared` and return the training state. A mismatch is refused before anything is
    changed."""
    header = read(path)
    found = differences(header, prepared)
    if found:
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ArtifactError(
            f"load the checkpoint {path}",
            f"it does not fit the model: {'; '.join(found[:_SHOWN])}{more}",
            "prepare the model, backend and recipe that the checkpoint is of",
        )
    prepared.load_state_dict(header["state"]["model"], strict=True)
    training: dict[str, Any] = header["state"]["training"]
    return training


def load_model(path: str | Path, prepared: PreparedModel) -> dict[str, Any]:
    """Like `load`, but with averaged weights instead of the last ones if the checkpoint has them."""
    training = load(path, prepared)
    average = training.get("ema")
    if average:
        with refusing(ArtifactError, f"load the averages of {path}", "use an older one"):
            prepared.load_state_dict(average, strict=False)
    return training


def differences(header: Mapping[str, Any], prepared: PreparedModel) -> list[str]:
    """The differences between a checkpoint and a prepared model; empty if the checkpoint can be loaded."""
    wanted = _request(prepared)
    found = [
        f"{key} {header.get(key)!r} in the file, {wanted[key]!r} here"
        for key in ("backend",)
        if header.get(key) != wanted[key]
    ]
    found += _different_keys("recipe", header.get("recipe", {}), wanted["recipe"])
    own, held = (_without_corrections(state) for state in (prepared.state_dict(), header["state"]["model"]))
    found += [f"{name} is only in the file" for name in held if name not in own]
    spare = _ranges(prepared)
    found += [f"{name} is only in the model" for name in own if name not in held and name not in spare]
    for name, tensor in own.items():
        if name in held and (held[name].shape, held[name].dtype) != (tensor.shape, tensor.dtype):
            found.append(f"{name} is {_described(held[name])} in the file, {_described(tensor)} here")
    return found


def _without_corrections(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state without the original biases that calibration records, which an uncalibrated model does not have."""
    return {name: value for name, value in state.items() if not name.startswith(BEFORE_CORRECTION)}


def _ranges(prepared: PreparedModel) -> set[str]:
    """The ranges of float tensors, which a model does not need and checkpoints of an earlier version do not have."""
    paths = [path for path, one in prepared.named_modules() if isinstance(one, FloatRange)]
    return {f"{path}.{name}" for path in paths for name in prepared.get_submodule(path).state_dict()}


def _request(prepared: PreparedModel) -> dict[str, Any]:
    recipe = prepared.recipe.to_dict()
    recipe.pop("seed", None)  # has no say in what the state means
    return {"backend": prepared.backend.name, "recipe": json.loads(json.dumps(recipe))}


def _different_keys(path: str, held: Any, wanted: Any) -> list[str]:
    if held == wanted:
        return []
    if isinstance(held, dict) and isinstance(wanted, dict):
        keys = sorted(held.keys() | wanted.keys())
        return [line for key in keys for line in _different_keys(f"{path}.{key}", held.get(key), wanted.get(key))]
    return [f"{path} {held!r} in the file, {wanted!r} here"]


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
