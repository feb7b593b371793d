"""`detent.load`: an ONNX or Caffe file as a trainable graph; one that Detent deployed, with its rewrites undone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from onnx import ModelProto
from torch import fx

from detent.errors import OnnxError, refusing
from detent.frontends.onnx import import_model
from detent.frontends.onnx.reading.files import read_model
from detent.ir import read_qdq, write_qdq
from detent.ir.metadata import has_note
from detent.rewrites.original import ORIGINAL
from detent.rewrites.undo import undo

__all__ = ["load"]


def load(
    model: str | os.PathLike[str] | ModelProto,
    weights: str | os.PathLike[str] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    values: Mapping[str, float] | None = None,
) -> fx.GraphModule:
    """An ONNX model, or the file of one, as a GraphModule in eval mode with trainable parameters.

    Operations with weights are torch modules, named after the ONNX nodes; the others are functions. Inputs and
    outputs are those of the file, in its order. `source_of(result)` maps every fx node, module and parameter back to
    the names in the file. Q/DQ pairs are taken out of the graph; `source_of(result).encodings` keeps their scales.
    What cannot be imported exactly is refused with `OnnxError`.

    `sizes` fixes free sizes of the inputs by their names (`size0` or `x_size0` for one without), `values`
    inputs of one number, such as a sampling rate, which are then constants: an `If` that asks for one is decided.

    With `weights`, a Caffe network: `load("net.prototxt", "net.caffemodel")`.
    """
    if weights is not None:
        return import_model(model, weights, sizes=sizes, values=values)
    found = model if isinstance(model, ModelProto) else read_model(model)
    if has_note(found, ORIGINAL):
        with refusing(OnnxError, "put the rewritten operations of a deployed model back", "deploy the model again"):
            found = write_qdq(undo(read_qdq(found)))
    return import_model(found, sizes=sizes, values=values)
