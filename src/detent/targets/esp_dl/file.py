"""Espressif ESP-DL: a whole model in its `.espdl` file, as esp-ppq writes it, and that tool's table of scales.

Activations are int8 or int16 on one power-of-two scale, images lie channels-last, a ReLU is part of the convolution
or matrix product before it, weights are packed for the chip's vector instructions, and other activation functions are
tables of 256 codes. The batch is 1.

What a chip computes on float (a softmax gives float) or what this writer has no rule for is refused with the name of
the operation: esp-ppq itself can then quantize `float.onnx`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from detent.targets.base import Deployment, Format, TensorFacts, Written, ppq_json
from detent.targets.base.float_network import FLOAT_MODEL
from detent.targets.base.format import EVERY_ROLE, Roles
from detent.targets.esp_dl.container import EspModel
from detent.targets.esp_dl.convert import Converter
from detent.targets.esp_dl.rules import KNOWN

__all__ = ["FORMAT", "EspdlFormat", "read_espdl"]

_FILE = "model.espdl"


class EspdlFormat(Format):
    name = "espdl"
    files: Mapping[str, Roles | None] = {_FILE: (), ppq_json.PPQ_FILE: EVERY_ROLE, FLOAT_MODEL: ()}
    weights = _FILE
    operators = KNOWN

    def write(self, deployment: Deployment) -> Written:
        table = ppq_json.FORMAT.write(deployment)
        model = Converter(deployment.graph).model(deployment.name)
        note = f"{_FILE} takes and gives images channels-last, with batch 1"
        return Written({_FILE: model.to_bytes(), **table.files}, (*table.notes, note))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return _facts(read_espdl(files[file])) if file == _FILE else ppq_json.FORMAT.facts(file, files)


FORMAT = EspdlFormat()


def _facts(model: EspModel) -> Iterator[TensorFacts]:
    for value in model.values:
        if value.dtype != "float32":
            yield TensorFacts(value.name, {"scale": [2.0**e for e in value.exponents], "type": value.dtype})
    for tensor in model.tensors:
        if tensor.array.dtype in (np.int8, np.int16, np.int32):
            facts = {"scale": [2.0**e for e in tensor.exponents], "numbers": tensor.array}
            yield TensorFacts(tensor.name, facts)


def read_espdl(content: bytes) -> EspModel:
    """Also of esp-ppq's own files, if they are not encrypted."""
    return EspModel.from_bytes(content)
