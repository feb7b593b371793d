"""Twins, bit-exact emulators of engines: run a deployed network in integers, under a named arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from detent.deprecation import moved
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.interpreter import Model, Twin
from detent.twin.onnx_spec import OnnxSpec
from detent.twin.shift import ShiftHalfUp
from detent.twin.weight_only import WeightOnly

__all__ = ["Arithmetic", "Model", "OnnxSpec", "ShiftHalfUp", "Step", "Twin", "WeightOnly", "run", "tensors"]


def run(
    model: Model,
    inputs: Mapping[str, npt.NDArray[Any]],
    arithmetic: str | Arithmetic = "onnxruntime",
    *,
    cpu: str | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """The outputs of a QDQ model, computed as the engine of that arithmetic does, by default on this kind of CPU."""
    return Twin(model, _of(arithmetic, cpu)).run(inputs)


def tensors(
    model: Model,
    inputs: Mapping[str, npt.NDArray[Any]],
    arithmetic: str | Arithmetic = "onnxruntime",
    *,
    given: Mapping[str, npt.NDArray[Any]] | None = None,
    cpu: str | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Every tensor inside, integer codes where it is quantized; see `Twin.tensors`."""
    return Twin(model, _of(arithmetic, cpu)).tensors(inputs, given)


def _of(arithmetic: str | Arithmetic, cpu: str | None) -> Arithmetic:
    from detent.targets.arithmetics import ARITHMETICS  # a name is that of a target's, which stands above

    return ARITHMETICS[arithmetic](cpu) if isinstance(arithmetic, str) else arithmetic


__getattr__ = moved(__name__, ("detent.targets.arithmetics",))
