"""Espressif ESP-DL: a whole model in its `.espdl` file, as esp-ppq writes it, and that tool's table of scales.

Activations are int8 or int16 on one power-of-two scale, images lie channels-last, a ReLU is part of the convolution
or matrix product before it, weights are packed for the chip's vector instructions, and other activation functions are
tables of 256 codes. The batch is 1.

What a chip computes on float (a softmax gives float) or what this writer has no rule for is refused with the name of
the operation: esp-ppq itself can then quantize `float.onnx`.
"""

from __future__ import annotations

from collections.abc import Mapping

from detent.deploy.deployment import Deployment
from detent.deploy.formats import ppq_json
from detent.deploy.formats.espdl_convert import Converter
from detent.deploy.formats.espdl_file import EspModel

__all__ = ["read_espdl", "write"]


def write(deployment: Deployment) -> Mapping[str, bytes]:
    files = dict(ppq_json.write(deployment))
    model = Converter(deployment.graph).model(deployment.name)
    deployment.notes.append("model.espdl takes and gives images channels-last, with batch 1")
    return {"model.espdl": model.to_bytes(), **files}


def read_espdl(content: bytes) -> EspModel:
    """Also of esp-ppq's own files, if they are not encrypted."""
    return EspModel.from_bytes(content)
