"""Hardware targets: one module or one folder each, with everything that is known about it."""

from __future__ import annotations

from detent.planning import Backend
from detent.targets.base.registry import BackendRegistry, TargetRegistry
from detent.targets.base.target import Target

__all__ = ["BACKENDS", "TARGETS", "BackendRegistry", "Target", "TargetRegistry", "register"]

TARGETS = TargetRegistry(
    {
        "onnxruntime": "detent.targets.onnxruntime.spec:TARGET",
        "onnxruntime_genai": "detent.targets.onnxruntime_genai.spec:TARGET",
        "onnxruntime_genai_a8": "detent.targets.onnxruntime_genai.spec:A8_TARGET",
        "openvino": "detent.targets.openvino.spec:TARGET",
        "tensorrt": "detent.targets.tensorrt:TARGET",
        "ncnn": "detent.targets.ncnn.spec:TARGET",
        "mnn": "detent.targets.mnn.spec:TARGET",
        "litert": "detent.targets.litert.spec:TARGET",
        "tflite_micro": "detent.targets.litert.spec:MICRO_TARGET",
        "executorch_xnnpack": "detent.targets.executorch.spec:TARGET",
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
        "academic": "detent.targets.academic:TARGET",
        "academic_nlp": "detent.targets.academic:NLP_TARGET",
        "native": "detent.targets.torch_native.spec:NATIVE_TARGET",
    }
)
"""Every target, by name: a line for each."""

BACKENDS = TARGETS.backends
"""What the planner reads of each."""


def register(target: Target | Backend) -> None:
    """Make a target known under its name, with what it brings; a Backend is one that brings nothing."""
    if isinstance(target, Target):
        TARGETS.register(target)
    else:
        BACKENDS.register(target)
