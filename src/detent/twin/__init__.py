"""EXACT: interprets a deployed QDQ model in integers, under a named arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from detent.registry import Registry
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.executorch import ExecuTorchXnnpack
from detent.twin.fbgemm import Fbgemm
from detent.twin.htp import Htp
from detent.twin.interpreter import Model, Twin
from detent.twin.mnn import Mnn
from detent.twin.ncnn import Ncnn
from detent.twin.onednn import Onednn
from detent.twin.onnx_spec import OnnxSpec
from detent.twin.onnxruntime import OnnxRuntime
from detent.twin.openvino import OpenVino
from detent.twin.qnnpack import Qnnpack
from detent.twin.ruy import Ruy
from detent.twin.shift import ShiftHalfUp
from detent.twin.tflite_reference import TfliteReference
from detent.twin.vitis_dpu import VitisDpu
from detent.twin.xnnpack import Xnnpack

__all__ = [
    "ARITHMETICS",
    "Arithmetic",
    "ExecuTorchXnnpack",
    "Fbgemm",
    "Htp",
    "Mnn",
    "Model",
    "Ncnn",
    "Onednn",
    "OnnxRuntime",
    "OnnxSpec",
    "OpenVino",
    "Qnnpack",
    "Ruy",
    "ShiftHalfUp",
    "Step",
    "TfliteReference",
    "Twin",
    "VitisDpu",
    "Xnnpack",
    "register",
    "run",
    "tensors",
]

ARITHMETICS: Registry[Arithmetic] = Registry(
    "arithmetic",
    Arithmetic,
    {
        "executorch": ExecuTorchXnnpack,
        "fbgemm": Fbgemm,
        "htp": Htp,
        "mnn": Mnn,
        "ncnn": Ncnn,
        "onednn": Onednn,
        "onnx_spec": OnnxSpec,
        "onnxruntime": OnnxRuntime,
        "openvino": OpenVino,
        "qnnpack": Qnnpack,
        "ruy": Ruy,
        "shift_half_up": ShiftHalfUp,
        "tflite_reference": TfliteReference,
        "vitis_dpu": VitisDpu,
        "xnnpack": Xnnpack,
    },
)
"""How engines compute, by name."""

register = ARITHMETICS.register


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
    return ARITHMETICS[arithmetic](cpu) if isinstance(arithmetic, str) else arithmetic
