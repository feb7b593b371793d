"""Runtimes, each behind one small interface and imported only when it is used."""

from __future__ import annotations

from detent.registry import Registry
from detent.targets.base import Engine, Placement
from detent.targets.base.latency import Latency
from detent.targets.base.latency import compare as compare_latency
from detent.targets.executorch.engine import ExecuTorch
from detent.targets.litert.engine import LiteRT
from detent.targets.mnn.engine import Mnn
from detent.targets.ncnn.engine import Ncnn
from detent.targets.onnxruntime.engine import OnnxRuntime
from detent.targets.openvino.engine import OpenVino
from detent.targets.qualcomm.engine import Qnn
from detent.targets.torch_native.engine import TorchNative

__all__ = [
    "ENGINES",
    "Engine",
    "ExecuTorch",
    "Latency",
    "LiteRT",
    "Mnn",
    "Ncnn",
    "OnnxRuntime",
    "OpenVino",
    "Placement",
    "Qnn",
    "TorchNative",
    "compare_latency",
    "register",
]

ENGINES: Registry[Engine] = Registry(
    "engine",
    Engine,
    {
        "onnxruntime": OnnxRuntime,
        "openvino": OpenVino,
        "litert": LiteRT,
        "ncnn": Ncnn,
        "mnn": Mnn,
        "torch": TorchNative,
        "executorch": ExecuTorch,
        "qnn": Qnn,
    },
)
"""Runtimes by name."""

register = ENGINES.register
