"""ncnn: `.param` and `.bin` with the integers in them, and the calibration table of ncnn's own tools."""

from __future__ import annotations

from detent.deploy.ncnn.model import NcnnLayer, NcnnModel
from detent.deploy.ncnn.table import TableEntry, read_ncnn_table
from detent.deploy.ncnn.weighted import FUSED, requantized
from detent.deploy.ncnn.writer import FORMAT, TABLE_FORMAT, ncnn_model, read_ncnn

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
