"""ncnn: `.param` and `.bin` with the integers in them, and the calibration table of ncnn's own tools."""

from __future__ import annotations

from detent.deploy.ncnn.model import NcnnLayer, NcnnModel
from detent.deploy.ncnn.table import TableEntry, read_ncnn_table
from detent.deploy.ncnn.weighted import FUSED, requantized
from detent.deploy.ncnn.writer import ncnn_model, read_ncnn, write_ncnn, write_ncnn_table

__all__ = [
    "FUSED",
    "NcnnLayer",
    "NcnnModel",
    "TableEntry",
    "ncnn_model",
    "read_ncnn",
    "read_ncnn_table",
    "requantized",
    "write_ncnn",
    "write_ncnn_table",
]
