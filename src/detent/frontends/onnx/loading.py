"""`import_model`: a file as it is written. `detent.load` is this, with what deploying rewrote put back."""

from __future__ import annotations

import os

from onnx import ModelProto, TensorProto
from torch import fx

from detent.errors import OnnxError
from detent.frontends.caffe.importer import load_caffe
from detent.frontends.onnx.importer import graph_module
from detent.frontends.onnx.reading.files import read_model

__all__ = ["import_model"]


def import_model(
    model: str | os.PathLike[str] | ModelProto, weights: str | os.PathLike[str] | None = None
) -> fx.GraphModule:
    """As `detent.load` says, which is this for a file that Detent did not deploy."""
    if weights is not None:
        if isinstance(model, ModelProto):
            raise OnnxError("load a ModelProto with weights", "it has its own", "give a .prototxt and a .caffemodel")
        return load_caffe(model, weights)
    if not isinstance(model, ModelProto):
        return graph_module(read_model(model))
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise OnnxError("load a ModelProto", "its weights are in another file", "give the path of the model instead")
    return graph_module(model)
