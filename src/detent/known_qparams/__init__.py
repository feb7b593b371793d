"""Applies qparams that are known before calibration: those of another backend, and those of a quantized ONNX file."""

from detent.known_qparams.known import Known, adopt, initialize, known_of_file, limits, measured, with_their_biases
from detent.known_qparams.norms import FileNorms, scaled
from detent.known_qparams.placement import FilePlacement, as_in_file
from detent.known_qparams.schemes import as_offered

__all__ = [
    "FileNorms",
    "FilePlacement",
    "Known",
    "adopt",
    "as_in_file",
    "as_offered",
    "initialize",
    "known_of_file",
    "limits",
    "measured",
    "scaled",
    "with_their_biases",
]
