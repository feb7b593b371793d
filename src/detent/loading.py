"""`detent.load`: an ONNX or Caffe file as a trainable graph; one that Detent deployed, with its rewrites undone."""

from __future__ import annotations

import os

from onnx import ModelProto
from torch import fx

from detent.frontends.onnx import import_model
from detent.frontends.onnx.reading.files import read_model
from detent.ir import read_qdq, write_qdq
from detent.rewrites.original import ORIGINAL
from detent.rewrites.undo import undo

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
        return import_model(model, weights)
    found = model if isinstance(model, ModelProto) else read_model(model)
    if any(entry.key == ORIGINAL for node in found.graph.node for entry in node.metadata_props):
        found = write_qdq(undo(read_qdq(found)))
    return import_model(found)
