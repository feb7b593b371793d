"""`load`: the one way in."""

from __future__ import annotations

import os

from onnx import ModelProto, TensorProto
from torch import fx

from detent.errors import OnnxError
from detent.onnx_import.caffe import load_caffe
from detent.onnx_import.importer import graph_module
from detent.onnx_import.reading import read_model

__all__ = ["load"]


def load(model: str | os.PathLike[str] | ModelProto, weights: str | os.PathLike[str] | None = None) -> fx.GraphModule:
    """An ONNX model, or the file of one, as a GraphModule in eval mode with trainable parameters.

    Operations with weights are torch modules, named after the ONNX nodes; the others are functions. Inputs and
    outputs are those of the file, in its order. `source_of(result)` maps every fx node, module and parameter back to
    the names in the file. Q/DQ pairs are taken out of the graph; `source_of(result).encodings` keeps their scales.
    What cannot be imported exactly is refused with `OnnxError`.

    With `weights`, a Caffe network: `load("net.prototxt", "net.caffemodel")`.
    """
    if weights is not None:
        if isinstance(model, ModelProto):
            raise OnnxError("load a ModelProto with weights", "it has its own", "give a .prototxt and a .caffemodel")
        return load_caffe(model, weights)
    if not isinstance(model, ModelProto):
        return graph_module(read_model(model))
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise OnnxError("load a ModelProto", "its weights are in another file", "give the path of the model instead")
    return graph_module(model)
