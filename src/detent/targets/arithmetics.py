"""How engines compute: the arithmetics of the twins, by name."""

from __future__ import annotations

from detent.registry import Registry
from detent.targets.executorch.arithmetic import ExecuTorchXnnpack
from detent.targets.litert.arithmetic.reference import TfliteReference
from detent.targets.litert.arithmetic.ruy import Ruy
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.targets.mnn.arithmetic import Mnn
from detent.targets.ncnn.arithmetic import Ncnn
from detent.targets.onnxruntime.arithmetic.onnxruntime import OnnxRuntime
from detent.targets.openvino.arithmetic.openvino import OpenVino
from detent.targets.qualcomm.arithmetic.htp import Htp
from detent.targets.torch_native.arithmetic.fbgemm import Fbgemm
from detent.targets.torch_native.arithmetic.onednn import Onednn
from detent.targets.torch_native.arithmetic.qnnpack import Qnnpack
from detent.targets.vitis.arithmetic import VitisDpu
from detent.twin import Arithmetic, OnnxSpec, ShiftHalfUp

__all__ = ["ARITHMETICS", "register"]

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
