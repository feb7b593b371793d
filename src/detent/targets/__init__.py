"""Hardware targets: one module or folder each, with everything specific to the target.

Importing this package loads neither the targets nor torch, so that the command line can check a name quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detent.planning import Backend
    from detent.targets.base.registry import BackendRegistry, TargetRegistry
    from detent.targets.base.table import BACKENDS, TARGETS
    from detent.targets.base.target import Target

__all__ = ["BACKENDS", "PLACES", "TARGETS", "BackendRegistry", "Target", "TargetRegistry", "register"]

PLACES = {
    "onnxruntime": "detent.targets.onnxruntime.spec:TARGET",
    "onnxruntime_genai": "detent.targets.onnxruntime_genai.spec:TARGET",
    "onnxruntime_genai_a8": "detent.targets.onnxruntime_genai.spec:A8_TARGET",
    "openvino": "detent.targets.openvino.spec:TARGET",
    "openvino_llm": "detent.targets.openvino.spec:LLM_TARGET",
    "tensorrt": "detent.targets.tensorrt:TARGET",
    "ncnn": "detent.targets.ncnn.spec:TARGET",
    "mnn": "detent.targets.mnn.spec:TARGET",
    "litert": "detent.targets.litert.spec:TARGET",
    "tflite_micro": "detent.targets.litert.spec:MICRO_TARGET",
    "executorch_xnnpack": "detent.targets.executorch.spec:TARGET",
    "executorch_8da4w": "detent.targets.executorch.spec:TARGET_8DA4W",
    "torch_x86": "detent.targets.torch_native.spec:TARGET",
    "snpe": "detent.targets.qualcomm.spec:SNPE_TARGET",
    "qnn": "detent.targets.qualcomm.spec:QNN_TARGET",
    "vitis": "detent.targets.vitis.spec:TARGET",
    "ppl_cuda": "detent.targets.openppl:CUDA_TARGET",
    "ppl_w8a16": "detent.targets.openppl:W8A16_TARGET",
    "ppl_dsp": "detent.targets.openppl:DSP_TARGET",
    "tengine": "detent.targets.tengine:TARGET",
    "nnie": "detent.targets.nnie:TARGET",
    "acl": "detent.targets.acl:TARGET",
    "ascend": "detent.targets.ascend:TARGET",
    "tvm": "detent.targets.tvm.spec:TARGET",
    "nxp": "detent.targets.nxp:TARGET",
    "fpga": "detent.targets.fpga:TARGET",
    "rknn": "detent.targets.rknn:TARGET",
    "stpu": "detent.targets.stpu:TARGET",
    "metax": "detent.targets.metax:TARGET",
    "esp_dl": "detent.targets.esp_dl.spec:TARGET",
    "gguf": "detent.targets.gguf.spec:TARGET",
    "compressed_tensors": "detent.targets.compressed_tensors.spec:TARGET",
    "academic": "detent.targets.academic:TARGET",
    "academic_nlp": "detent.targets.academic:NLP_TARGET",
    "native": "detent.targets.torch_native.spec:NATIVE_TARGET",
}
"""Where each target is: a line for each. `TARGETS` has the targets themselves, `BACKENDS` what the planner reads."""

_HOMES = {
    "BACKENDS": "detent.targets.base.table",
    "TARGETS": "detent.targets.base.table",
    "BackendRegistry": "detent.targets.base.registry",
    "TargetRegistry": "detent.targets.base.registry",
    "Target": "detent.targets.base.target",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register(target: Target | Backend) -> None:
    """Make a target known under its name, with what it brings; a Backend is one that brings nothing."""
    from detent.targets.base.table import BACKENDS, TARGETS
    from detent.targets.base.target import Target

    if isinstance(target, Target):
        TARGETS.register(target)
    else:
        BACKENDS.register(target)
