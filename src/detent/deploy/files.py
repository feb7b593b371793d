"""Every file format a backend may name, and who writes it; a writer is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from detent.deploy.deployment import Deployment, Writer
from detent.errors import DeployError, RegistrationError, UnknownNameError

__all__ = ["FILES", "register", "require_package", "write_onnx", "writer"]


def write_onnx(deployment: Deployment) -> Mapping[str, bytes]:
    """The QDQ model itself."""
    return {"model.onnx": deployment.model.SerializeToString(deterministic=True)}


FILES: dict[str, str | Writer] = {
    "onnx": write_onnx,
    "tflite": "detent.deploy.tflite:write_tflite",
    "ncnn": "detent.deploy.ncnn:write_ncnn",
    "ncnn_table": "detent.deploy.ncnn:write_ncnn_table",
    "mnn_compression": "detent.deploy.mnn:write_mnn",
    "openvino_ir": "detent.deploy.openvino_ir:write_openvino_ir",
    "pte": "detent.deploy.executorch:write_executorch",
    "torch": "detent.deploy.torch_native:write_torch_native",
}
"""Format name to writer, or to where it is ("module:function"). The parameter files of `formats` stand behind these."""

_PACKAGES = {
    "openvino_ir": ("openvino", "openvino"),
    "pte": ("executorch", "executorch"),
    "tflite": ("ai_edge_litert", "litert"),
}
"""Formats whose library, or whose schema, is in another package: its name, and the extra that installs it."""


def writer(name: str) -> Writer:
    """The writer of a format."""
    found: str | Writer | None = FILES.get(name)
    if found is None:
        formats: Mapping[str, Writer] = import_module("detent.deploy.formats").FORMATS
        if name not in formats:
            known = ", ".join((*FILES, *formats))
            raise UnknownNameError(
                f"the file format {name!r}", f"known are {known}", "use one of these, or register it"
            )
        return formats[name]
    if not isinstance(found, str):
        return found
    module, _, function = found.partition(":")
    made: Writer = getattr(import_module(module), function)
    return made


def require_package(name: str) -> None:
    """An error that names the extra, if a format needs a package that is not installed."""
    package, extra = _PACKAGES.get(name, ("", ""))
    if package and find_spec(package) is None:
        raise DeployError(f"write the format {name!r}", f"{package} is not installed", f"pip install 'detent[{extra}]'")


def register(name: str, write: Writer) -> None:
    """Make a format of one's own known; a backend then names it in `files`."""
    taken = name in FILES or name in import_module("detent.deploy.formats").FORMATS
    if taken:
        raise RegistrationError(f"register the file format {name!r}", "the name is taken", "choose another")
    FILES[name] = write
