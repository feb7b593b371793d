"""Every file format that a backend may name; a format is imported when it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module

from detent.errors import RegistrationError, UnknownNameError
from detent.targets.base import Deployment, Format, Written
from detent.targets.base.format import Roles

__all__ = ["FORMATS", "QDQ_FILE", "OnnxFormat", "find_format", "register"]

QDQ_FILE = "model.onnx"


class OnnxFormat(Format):
    """The QDQ model itself, which `verify` compares with the manifest tensor by tensor."""

    name = "onnx"
    files: Mapping[str, Roles | None] = {QDQ_FILE: None}

    def write(self, deployment: Deployment) -> Written:
        return Written({QDQ_FILE: deployment.model.SerializeToString(deterministic=True)})


FORMATS: dict[str, str | Format] = {
    "acl": "detent.targets.acl:FORMAT",
    "ascend_record": "detent.targets.ascend:FORMAT",
    "espdl": "detent.targets.esp_dl.file:FORMAT",
    "mnn_compression": "detent.targets.mnn.writer:FORMAT",
    "mqbench_json": "detent.targets.base.mqbench_json:FORMAT",
    "ncnn": "detent.targets.ncnn.file.writer:FORMAT",
    "ncnn_table": "detent.targets.ncnn.file.writer:TABLE_FORMAT",
    "nnie_gfpq": "detent.targets.nnie:FORMAT",
    "nxp_ranges": "detent.targets.nxp:FORMAT",
    "onnx": OnnxFormat(),
    "onnx_qlinear": "detent.targets.tvm.qlinear:FORMAT",
    "openvino_ir": "detent.targets.openvino.ir_file:FORMAT",
    "ppl_dsp_json": "detent.targets.openppl:DSP_FORMAT",
    "ppl_json": "detent.targets.openppl:CUDA_FORMAT",
    "ppl_w8a16_json": "detent.targets.openppl:W8A16_FORMAT",
    "ppq_json": "detent.targets.base.ppq_json:FORMAT",
    "pte": "detent.targets.executorch.program:FORMAT",
    "qualcomm_encodings": "detent.targets.qualcomm.encodings:FORMAT",
    "rknn": "detent.targets.rknn:FORMAT",
    "stpu_minmax": "detent.targets.stpu:FORMAT",
    "tengine_scale": "detent.targets.tengine:FORMAT",
    "tensorrt_ranges": "detent.targets.tensorrt:FORMAT",
    "tflite": "detent.targets.litert.file.writer:FORMAT",
    "tflite_micro": "detent.targets.litert.file.writer:MICRO_FORMAT",
    "torch": "detent.targets.torch_native.writer:FORMAT",
    "vitis_quant_info": "detent.targets.vitis.quant_info:FORMAT",
}
"""The format of a name, or where it is ("module:object")."""


def find_format(name: str) -> Format:
    """The format of a name."""
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise UnknownNameError(f"the file format {name!r}", f"known are {known}", "use one of these, or register it")
    found = FORMATS[name]
    if not isinstance(found, str):
        return found
    module, _, constant = found.partition(":")
    made: Format = getattr(import_module(module), constant)
    return made


def register(own: Format | str, write: Callable[[Deployment], Mapping[str, bytes]] | None = None) -> None:
    """Make a format of one's own known under its name; a backend then names it in `files`.

    `register(name, write)`, with a function that gives the files, is deprecated: `verify` cannot read those back.
    """
    if isinstance(own, str):
        if write is None:
            raise RegistrationError(f"register the file format {own!r}", "it is a name", "give a Format")
        warnings.warn("register a Format instead of a name and a function", DeprecationWarning, stacklevel=2)
        own = _FunctionFormat(own, write)
    if own.name in FORMATS:
        raise RegistrationError(f"register the file format {own.name!r}", "the name is taken", "choose another")
    FORMATS[own.name] = own


class _FunctionFormat(Format):
    """A function that gives the files, and appends to `deployment.notes`."""

    def __init__(self, name: str, function: Callable[[Deployment], Mapping[str, bytes]]):
        self.name, self._function = name, function
        self.files: Mapping[str, Roles | None] = {}

    def write(self, deployment: Deployment) -> Written:
        notes = list(deployment.notes)
        files = self._function(replace(deployment, notes=notes))
        return Written(files, tuple(notes[len(deployment.notes) :]))
