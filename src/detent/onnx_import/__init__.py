"""ONNX (and Caffe) files as trainable `torch.fx` graphs.

    graph = detent.load("model.onnx")
    prepared = detent.prepare(graph, example_inputs, backend="onnxruntime")

An operator is computed as ONNX says or refused, naming the node.
"""

from __future__ import annotations

from detent.onnx_import.integer_products import refuse_codes
from detent.onnx_import.loading import import_model
from detent.onnx_import.ports import example_inputs, ports_of, refuse_other_reals, types_of
from detent.onnx_import.qoperators import written_out
from detent.onnx_import.skeleton import is_left_out, without_initializers
from detent.onnx_import.source import OnnxEncoding, OnnxParameter, OnnxSource, is_imported, source_of

__all__ = [
    "OnnxEncoding",
    "OnnxParameter",
    "OnnxSource",
    "example_inputs",
    "import_model",
    "is_imported",
    "is_left_out",
    "ports_of",
    "refuse_codes",
    "refuse_other_reals",
    "source_of",
    "types_of",
    "without_initializers",
    "written_out",
]
