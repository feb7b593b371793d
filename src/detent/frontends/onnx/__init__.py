"""ONNX (and Caffe) files as trainable `torch.fx` graphs.

    graph = detent.load("model.onnx")
    prepared = detent.prepare(graph, example_inputs, backend="onnxruntime")

An operator is computed as ONNX says or refused, naming the node.
"""

from __future__ import annotations

from detent.frontends.onnx.growth import MOST_BYTES, refuse_large_tensors
from detent.frontends.onnx.loading import import_model
from detent.frontends.onnx.ports import example_inputs, ports_of, refuse_other_reals, types_of
from detent.frontends.onnx.quantized.integer_products import refuse_codes
from detent.frontends.onnx.quantized.qoperators import expand_qoperators
from detent.frontends.onnx.skeleton import is_left_out
from detent.frontends.onnx.source import OnnxEncoding, OnnxParameter, OnnxSource, is_imported, source_of
from detent.ir.protos import without_initializers

__all__ = [
    "MOST_BYTES",
    "OnnxEncoding",
    "OnnxParameter",
    "OnnxSource",
    "example_inputs",
    "expand_qoperators",
    "import_model",
    "is_imported",
    "is_left_out",
    "ports_of",
    "refuse_codes",
    "refuse_large_tensors",
    "refuse_other_reals",
    "source_of",
    "types_of",
    "without_initializers",
]
