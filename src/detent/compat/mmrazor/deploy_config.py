"""mmdeploy's `deploy_cfg`, as far as it speaks of the file: the backend and the size of its input."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from detent.compat.mmrazor.config import Config
from detent.errors import RecipeError

__all__ = ["DeployConfigWarning", "input_shape_of"]


class DeployConfigWarning(UserWarning):
    """A wish of a `deploy_cfg` that the deployed file does not have."""


def input_shape_of(deploy_cfg: str | Mapping[str, Any], backend: str) -> tuple[int, ...] | None:
    """The shape of the input that a `deploy_cfg`, or the file of one, asks for; None where it leaves it open.

    It must be for the backend that the model is quantized for. Names of files and axes, and the rewriting of a
    codebase, are mmdeploy's business.
    """
    given = Config.fromfile(deploy_cfg) if isinstance(deploy_cfg, str) else deploy_cfg
    given = given.get("deploy_cfg", given)
    asked = str(given.get("backend_config", {}).get("type", backend))
    if asked != backend:
        raise RecipeError(
            f"deploy_cfg for {asked!r}", f"the quantizer is for {backend!r}", f"use a deploy_cfg for {backend!r}"
        )
    shape = _shape(given)
    if shape is not None and {2, 3} & _dynamic_axes(given):
        size = "x".join(map(str, shape[2:]))
        text = f"deploy_cfg asks for an input of any size; the deployed file takes any number of images of {size}"
        warnings.warn(text, DeployConfigWarning, stacklevel=3)
    return shape


def _shape(given: Mapping[str, Any]) -> tuple[int, ...] | None:
    for one in given.get("backend_config", {}).get("model_inputs", ()):
        for shape in one.get("opt_shapes", {}).values():
            return tuple(shape)
        for shapes in one.get("input_shapes", {}).values():
            return tuple(shapes["opt_shape"])
    size = given.get("onnx_config", {}).get("input_shape")
    return None if size is None else (1, 3, size[1], size[0])  # mmdeploy says width first


def _dynamic_axes(given: Mapping[str, Any]) -> set[int]:
    onnx = given.get("onnx_config", {})
    names = onnx.get("input_names", ())
    axes = onnx.get("dynamic_axes") or {}
    return {int(axis) for name in names for axis in axes.get(name, ())}
