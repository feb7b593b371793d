"""HARDWARE: what each target can store, where it quantizes, what it runs as one. One table a file."""

from detent.backends.academic import ACADEMIC, ACADEMIC_NLP
from detent.backends.acl import ACL
from detent.backends.ascend import ASCEND
from detent.backends.backend import FUSED, MOVES, VANISHES, Backend, BiasRule, Rule, both, chains, takes
from detent.backends.dispatch import dispatched
from detent.backends.executorch_xnnpack import EXECUTORCH_XNNPACK
from detent.backends.fixed_point import ESP_DL, FPGA, NXP
from detent.backends.litert import LITERT, TFLITE_MICRO
from detent.backends.metax import METAX
from detent.backends.mnn import MNN
from detent.backends.ncnn import NCNN
from detent.backends.nnie import NNIE
from detent.backends.offer import Offer
from detent.backends.onnxruntime import ONNXRUNTIME
from detent.backends.openppl import PPL_CUDA, PPL_DSP, PPL_W8A16
from detent.backends.openvino import OPENVINO
from detent.backends.planner import plan
from detent.backends.qualcomm import QNN, SNPE
from detent.backends.registry import BackendRegistry
from detent.backends.rknn import RKNN
from detent.backends.stpu import STPU
from detent.backends.tengine import TENGINE
from detent.backends.tensorrt import TENSORRT
from detent.backends.torch_native import NATIVE, TORCH_X86
from detent.backends.tvm import TVM
from detent.backends.vitis import VITIS

__all__ = [
    "ACADEMIC",
    "ACADEMIC_NLP",
    "ACL",
    "ASCEND",
    "BACKENDS",
    "ESP_DL",
    "EXECUTORCH_XNNPACK",
    "FPGA",
    "FUSED",
    "LITERT",
    "METAX",
    "MNN",
    "MOVES",
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
    "VANISHES",
    "VITIS",
    "Backend",
    "BackendRegistry",
    "BiasRule",
    "Offer",
    "Rule",
    "both",
    "chains",
    "dispatched",
    "plan",
    "register",
    "takes",
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
