"""REAL RUNTIMES: each behind one small interface, each imported only when it is used."""

from __future__ import annotations

from detent.engines.engine import Engine, Placement
from detent.engines.executorch import ExecuTorch
from detent.engines.latency import Latency
from detent.engines.latency import compare as compare_latency
from detent.engines.litert import LiteRT
from detent.engines.mnn import Mnn
from detent.engines.ncnn import Ncnn
from detent.engines.onnxruntime import OnnxRuntime
from detent.engines.openvino import OpenVino
from detent.engines.qnn import Qnn
from detent.engines.torch_native import TorchNative
from detent.registry import Registry

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
