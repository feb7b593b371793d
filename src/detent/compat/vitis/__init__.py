"""Vitis AI's quantization aware training, as its document has it, over Detent's core."""

from detent.compat.vitis import functional
from detent.compat.vitis.auto_module import wrap
from detent.compat.vitis.config import VitisConfig
from detent.compat.vitis.processor import QatProcessor
from detent.graph import DeQuantStub, QuantStub

__all__ = ["DeQuantStub", "QatProcessor", "QuantStub", "VitisConfig", "functional", "wrap"]
