"""LiteRT's files: a deployed network as .tflite, and any int8 .tflite as a network of the twin."""

from __future__ import annotations

from detent.targets.litert.file.container import Operator, TfliteModel, TfliteTensor, read_tflite, to_bytes
from detent.targets.litert.file.network import network_of, read_network
from detent.targets.litert.file.writer import FORMAT, MICRO_FORMAT, Origin, model_to_tflite, origin_of

__all__ = [
    "FORMAT",
    "MICRO_FORMAT",
    "Operator",
    "Origin",
    "TfliteModel",
    "TfliteTensor",
    "model_to_tflite",
    "network_of",
    "origin_of",
    "read_network",
    "read_tflite",
    "to_bytes",
]
