"""Deploys a prepared model as a folder: exports it, writes each format of its backend, and adds a manifest."""

from __future__ import annotations

import json
import logging
import math
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.parametrize import ParametrizationList

from detent.cpus import X86
from detent.deployment.annotate import annotate
from detent.deployment.atomic_folder import place, target_of
from detent.deployment.functions_in_steps import write_functions_in_steps
from detent.deployment.memory import trim_heap
from detent.deployment.naming_lines import naming_lines
from detent.deployment.plane_means import pool_planes
from detent.deployment.preconditions import (
    require_calibrated,
    require_finite,
    require_finite_constants,
    require_finite_qparams,
    require_float32,
    require_mode,
    require_prepared,
    require_whole,
)
from detent.errors import DeployError
from detent.files import reserved
from detent.frontends.hugging_face import companions
from detent.frontends.onnx import is_imported
from detent.frontends.torch import export
from detent.graph import PreparedModel, eval_mode
from detent.ir import DeployedTensor, write_qdq
from detent.ir.offsets import note_offsets
from detent.ir.package import MANIFEST, VERSION, digest
from detent.ir.packed_numbers import pack_numbers
from detent.ir.saturation import saturating_layers
from detent.planning import Backend
from detent.progress import progress
from detent.quantizers import Quantizer
from detent.targets.base import Deployment, Format, Written
from detent.targets.formats import find_format
from detent.targets.rewrites import legalize

__all__ = ["deployment_of", "require_writable", "write", "wrote"]

_LOG = logging.getLogger("detent")
_WRITTEN: set[str] = set()  # a digest for each artifact


def deployment_of(prepared: PreparedModel, *, dynamic_batch: bool = True, mode: str | None = None) -> Deployment:
    """The deployed network in memory, which `write` puts into files."""
    require_prepared(prepared)
    require_whole(prepared)
    require_mode(prepared, mode)
    require_calibrated(prepared, mode)
    require_float32(prepared)
    require_finite(prepared)
    with eval_mode(prepared):
        if is_imported(prepared):
            exported = annotate(prepared, opset=_opset(prepared))
        else:
            exported = export(prepared, opset=_opset(prepared), dynamic_batch=dynamic_batch, mode=mode)
    require_finite_qparams(exported.tensors)
    require_finite_constants(exported.network)
    network = pool_planes(exported.network, on_grids="global_avgpool" in prepared.backend.rules)
    network = write_functions_in_steps(network)
    network = replace(legalize(network, prepared.backend.rewrites), name=exported.network.name or "model")
    network = note_offsets(network, exported.tensors)
    return Deployment(
        name=network.name,
        backend=prepared.backend,
        model=write_qdq(network),
        tensors=exported.tensors,
        ranges=exported.ranges,
        notes=(*_of_float(prepared), *exported.notes),
        names=exported.names,
        saturating=saturating_layers(network) if prepared.backend.saturates_on else (),
        **_config(prepared),
    )


def write(
    prepared: PreparedModel,
    folder: str | Path,
    *,
    files: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    mode: str | None = None,
    sqnr: Sequence[float | None] = (),
    notes: Sequence[str] = (),
) -> None:
    """Deploy `prepared` into `folder`: all of it, or nothing.

    `files` are the formats to write, in place of those the backend names; `model.onnx` is always among them. The files
    of an earlier deploy are replaced, and others beside them stay; a folder of other things is refused. `sqnr` of the
    outputs against the float network, in decibels, and `notes` are kept in the manifest.
    """
    require_prepared(prepared)
    target, formats = target_of(folder), _formats(prepared.backend, files)
    contents: dict[str, bytes] = {}
    written = {}
    with progress("deploying"), naming_lines(prepared):
        deployment = deployment_of(prepared, dynamic_batch=dynamic_batch, mode=mode)
        trim_heap()  # of what the weights were turned into codes with, before the files are made
        for one in formats:
            written[one.name] = _written(one, deployment)
            for file, content in written[one.name].files.items():
                _require_own(one.name, file, content, contents)
                contents[file] = content
    more = (note for one in written.values() for note in one.notes)
    deployment = replace(deployment, notes=(*deployment.notes, *more, *notes))
    manifest = _manifest(prepared, deployment, contents, mode)
    manifest["formats"] = {name: sorted(one.files) for name, one in written.items()}
    if sqnr:
        manifest["sqnr"] = _plain_sqnr([value.name for value in deployment.model.graph.output], sqnr)
    contents[MANIFEST] = json.dumps({**manifest, **_of_cpus(prepared, deployment)}, indent=1).encode()
    with reserved(target, f"deploy into {target}"):
        place(target, contents)
    _WRITTEN.add(_files_digest(manifest))


def wrote(manifest: Mapping[str, Any]) -> bool:
    """Whether this process wrote exactly these files, byte for byte."""
    return _files_digest(manifest) in _WRITTEN


def _files_digest(manifest: Mapping[str, Any]) -> str:
    return digest(json.dumps(manifest["files"], sort_keys=True).encode())


def _plain_sqnr(outputs: Sequence[str], sqnr: Sequence[float | None]) -> dict[str, float | str]:
    """JSON has no infinity."""
    found = {name: value for name, value in zip(outputs, sqnr, strict=False) if value is not None}
    return {name: round(value, 2) if math.isfinite(value) else str(value) for name, value in found.items()}


def require_writable(folder: str | Path, backend: Backend, *, files: Sequence[str] | None = None) -> None:
    """Refuse at once what `write` would refuse after all the work: a place that cannot be written, or a format whose
    package is not installed."""
    target_of(folder)
    _formats(backend, files)


def _formats(backend: Backend, files: Sequence[str] | None) -> list[Format]:
    if isinstance(files, str):
        raise DeployError(f"deploy with files={files!r}", "it is one name, not a list of them", f"give [{files!r}]")
    names = dict.fromkeys(("onnx", *(backend.files if files is None else files)))
    found = [find_format(name) for name in names]
    for one in found:
        one.require_package()
    return found


def _written(one: Format, deployment: Deployment) -> Written:
    try:
        return one.write(deployment)
    except OSError as error:
        to_do = f"make room in {tempfile.gettempdir()}, or name another folder in the variable TMPDIR"
        raise DeployError(
            f"write the format {one.name!r}", f"its library needs a temporary folder: {error}", to_do
        ) from error


def _config(prepared: PreparedModel) -> dict[str, Any]:
    """What a model of transformers says of itself, where it is, and what is beside it in the folder that it was loaded
    from: of the outermost that has a config."""
    for name, module in prepared.named_modules():
        say = getattr(getattr(module, "config", None), "to_dict", None)
        if callable(say):
            beside = companions(getattr(module, "name_or_path", ""))
            own = _parameters(prepared)
            return {"config": say(), "config_prefix": name, "companions": beside, "checkpoint": own}
    return {}


def _parameters(prepared: PreparedModel) -> dict[str, Tensor]:
    """The model's own parameters, each under its first name that is not of a weight that is quantized: the network has
    those."""
    modules = prepared.named_modules(remove_duplicate=False)
    ours = [(name, module) for name, module in modules if isinstance(module, Quantizer | ParametrizationList)]
    left = {f"{name}.{own}" for name, module in ours for own, _ in module.named_parameters(remove_duplicate=False)}
    found: dict[Tensor, str] = {}
    for name, own in prepared.named_parameters(remove_duplicate=False):
        if name not in left:
            found.setdefault(own, name)
    return {name: own.detach() for own, name in found.items()}


def _of_float(prepared: PreparedModel) -> list[str]:
    name = prepared.backend.name
    return [] if prepared.plan.quantized else [f"nothing is quantized: {name} runs all of this network in float"]


def _of_cpus(prepared: PreparedModel, deployment: Deployment) -> dict[str, Any]:
    """On which kinds of x86 CPU the engine computes the same integers, where that depends on the weights; a note if not
    on all. One who named a CPU knows it, others are told at once."""
    saturating = deployment.backend.saturates_on
    if not saturating:
        return {}
    layers = deployment.saturating
    if not layers:
        return {"cpus": list(X86)}
    some = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
    text = f"exact on some CPUs only: pairs of products saturate on {', '.join(saturating)}, in {some}"
    if prepared.recipe.cpu is None:
        _LOG.warning("%s; prepare the float model for weights that do not", text)
    return {"cpus": [name for name in X86 if name not in saturating], "notes": [*deployment.notes, text]}


def _opset(prepared: PreparedModel) -> int:
    """The opset of the backend, or a newer one if a number type needs it: 16-bit and block types need 21."""
    widths = [e.scheme.grid.bits for e in prepared.plan.quantized if e.scheme.grid.is_uniform]
    blocks = any("group" in str(entry.scheme) for entry in prepared.plan.quantized)
    wide = any(8 < bits <= 16 for bits in widths)
    return max(int(prepared.backend.opset), 21 if wide or blocks else 0)


def _manifest(
    prepared: PreparedModel, deployment: Deployment, contents: dict[str, bytes], mode: str | None
) -> dict[str, Any]:
    return {
        "manifest_version": VERSION,
        "backend": deployment.backend.name,
        "arithmetic": deployment.backend.arithmetic,
        "engine": deployment.backend.engine,
        "mode": mode,
        "recipe": prepared.recipe.to_dict(),
        "plan": prepared.plan.to_dict(),
        "tensors": [_described(tensor) for tensor in deployment.tensors],
        "ranges": [_described(tensor) for tensor in deployment.ranges],
        "notes": list(deployment.notes),
        "names": dict(deployment.names),
        "versions": {
            "detent": metadata.version("detent"),
            "torch": torch.__version__,
            "onnx": metadata.version("onnx"),
            "python": platform.python_version(),
        },
        "files": {name: digest(content) for name, content in sorted(contents.items())},
    }


def _described(tensor: DeployedTensor) -> dict[str, Any]:
    """Plain JSON types; float32 scales as the shortest decimal that reads back as the same float32."""
    return {
        "tensor": tensor.tensor,
        "role": tensor.role,
        "kind": tensor.kind,
        "op": tensor.op,
        "scheme": tensor.scheme.to_dict(),
        "scale": _numbers(tensor.scale),
        "zero_point": _numbers(tensor.zero_point),
        "users": list(tensor.users),
        "shares": tensor.shares,
    }


def _numbers(values: npt.NDArray[Any]) -> Any:
    """A list, for people to read; packed if there are too many numbers, as for groups."""
    return pack_numbers(values) if values.ndim > 1 else values.tolist()


def _require_own(writer_name: str, file: str, content: bytes, contents: Mapping[str, bytes]) -> None:
    """Several formats may share the float network; every other file has one writer."""
    path = PurePath(file)
    if path.is_absolute() or ".." in path.parts or contents.get(file, content) != content or file == MANIFEST:
        raise DeployError(
            f"write the format {writer_name!r}",
            f"its file {file!r} would leave the folder, or replace another file of the artifact",
            "give it a name of its own inside the folder",
        )
