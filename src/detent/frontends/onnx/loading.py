"""`import_model`: a file as it is written. `detent.load` is this, with what deploying rewrote put back."""

from __future__ import annotations

import os
from collections.abc import Mapping

from onnx import ModelProto, TensorProto
from torch import fx

from detent.errors import OnnxError
from detent.frontends.caffe.importer import load_caffe
from detent.frontends.onnx.importer import graph_module
from detent.frontends.onnx.reading.files import read_model
from detent.frontends.onnx.reading.given_inputs import set_inputs
from detent.ir.protos import all_tensors

__all__ = ["import_model"]


def import_model(
    model: str | os.PathLike[str] | ModelProto,
    weights: str | os.PathLike[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    values: Mapping[str, float] | None = None,
) -> fx.GraphModule:
    """Import an ONNX file: what `detent.load` does with a file that Detent did not deploy."""
    if weights is not None:
        if isinstance(model, ModelProto):
            raise OnnxError("load a ModelProto with weights", "it has its own", "give a .prototxt and a .caffemodel")
        if sizes or values:
            raise OnnxError(
                "set sizes or inputs of a Caffe network", "its .prototxt states them", "change the .prototxt"
            )
        return load_caffe(model, weights)
    if not isinstance(model, ModelProto):
        return graph_module(set_inputs(read_model(model), sizes or {}, values or {}))
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in all_tensors(model)):
        raise OnnxError("load a ModelProto", "its weights are in another file", "give the path of the model instead")
    return graph_module(set_inputs(model, sizes or {}, values or {}))
