"""ncnn: `.param` and `.bin` with the integers in them, and the calibration table of ncnn's own tools."""

from __future__ import annotations

from detent.targets.ncnn.file.model import NcnnLayer, NcnnModel
from detent.targets.ncnn.file.table import TableEntry, read_ncnn_table
from detent.targets.ncnn.file.weighted import FUSED, requantized
from detent.targets.ncnn.file.writer import FORMAT, TABLE_FORMAT, ncnn_model, read_ncnn

__all__ = [
    "FORMAT",
    "FUSED",
    "TABLE_FORMAT",
    "NcnnLayer",
    "NcnnModel",
    "TableEntry",
    "ncnn_model",
    "read_ncnn",
    "read_ncnn_table",
    "requantized",
]
