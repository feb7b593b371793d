"""Hardware targets: one module or one folder each, with everything that is known about it."""

from __future__ import annotations

from detent.targets.academic import ACADEMIC, ACADEMIC_NLP
from detent.targets.acl import ACL
from detent.targets.ascend import ASCEND
from detent.targets.base.registry import BackendRegistry
from detent.targets.esp_dl.spec import ESP_DL
from detent.targets.executorch.spec import EXECUTORCH_XNNPACK
from detent.targets.fpga import FPGA
from detent.targets.litert.spec import LITERT, TFLITE_MICRO
from detent.targets.metax import METAX
from detent.targets.mnn.spec import MNN
from detent.targets.ncnn.spec import NCNN
from detent.targets.nnie import NNIE
from detent.targets.nxp import NXP
from detent.targets.onnxruntime.spec import ONNXRUNTIME
from detent.targets.openppl import PPL_CUDA, PPL_DSP, PPL_W8A16
from detent.targets.openvino.spec import OPENVINO
from detent.targets.qualcomm.spec import QNN, SNPE
from detent.targets.rknn import RKNN
from detent.targets.stpu import STPU
from detent.targets.tengine import TENGINE
from detent.targets.tensorrt import TENSORRT
from detent.targets.torch_native.spec import NATIVE, TORCH_X86
from detent.targets.tvm.spec import TVM
from detent.targets.vitis.spec import VITIS

__all__ = [
    "ACADEMIC",
    "ACADEMIC_NLP",
    "ACL",
    "ASCEND",
    "BACKENDS",
    "ESP_DL",
    "EXECUTORCH_XNNPACK",
    "FPGA",
    "LITERT",
    "METAX",
    "MNN",
    "NATIVE",
    "NCNN",
    "NNIE",
    "NXP",
    "ONNXRUNTIME",
    "OPENVINO",
    "PPL_CUDA",
    "PPL_DSP",
    "PPL_W8A16",
    "QNN",
    "RKNN",
    "SNPE",
    "STPU",
    "TENGINE",
    "TENSORRT",
    "TFLITE_MICRO",
    "TORCH_X86",
    "TVM",
    "VITIS",
    "BackendRegistry",
    "register",
]

BACKENDS = BackendRegistry(
    (
        ONNXRUNTIME,
        OPENVINO,
        TENSORRT,
        NCNN,
        MNN,
        LITERT,
        TFLITE_MICRO,
        EXECUTORCH_XNNPACK,
        TORCH_X86,
        SNPE,
        QNN,
        VITIS,
        PPL_CUDA,
        PPL_W8A16,
        PPL_DSP,
        TENGINE,
        NNIE,
        ACL,
        ASCEND,
        TVM,
        NXP,
        FPGA,
        RKNN,
        STPU,
        METAX,
        ESP_DL,
        ACADEMIC,
        ACADEMIC_NLP,
        NATIVE,
    )
)
register = BACKENDS.register
