"""`convert_deploy`: the network with its quantization, the float network beside it, files of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detent.artifact import Artifact, deploy
from detent.compat.mqbench.own_nodes import wants_own_nodes, with_own_nodes
from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.platform import preset_of, target_of
from detent.deployment import deployment_of
from detent.errors import DeployError
from detent.files import write_bytes
from detent.ir import write_qdq
from detent.targets.formats import find_format

__all__ = ["convert_deploy", "register_deploy_function"]

_FUNCTIONS: dict[str, list[Callable[..., Any]]] = {}


def register_deploy_function(backend: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: `function(model, onnx_model_path=..., model_name=..., output_path=...)` runs when it is deployed."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        _FUNCTIONS.setdefault(str(getattr(backend, "value", backend)), []).append(function)
        return function

    return keep


def convert_deploy(
    model: PlatformModel,
    backend_type: Any,
    input_shape_dict: Mapping[str, Any] | None = None,
    *,
    output_path: str | Path = "./",
    model_name: str = "mqbench_qmodel",
) -> Artifact:
    """Write `<model_name>/`, the artifact, and its files under MQBench's names beside it.

    `<model_name>.onnx` has Q and DQ, or the nodes that `symbolic` of a user's Function writes, or those of the
    logarithmic grid; `<model_name>_deploy_model.onnx` and `<model_name>_<file>` are what the backend's own format is.
    `input_shape_dict` is checked against what the model was traced with.
    """
    target, prepared = target_of(backend_type), model.prepared
    if target.name != prepared.backend.name:
        raise DeployError(f"deploy for {target.name!r}", f"it was prepared for {prepared.backend.name!r}", "name that")
    model.enter("quantized")
    folder = Path(output_path)
    artifact = deploy(prepared, folder / model_name)
    _check_shapes(artifact, input_shape_dict or {})
    contents = {name: (artifact.folder / name).read_bytes() for name in artifact.manifest["files"]}
    if preset_of(target).clip_ranges:
        contents |= find_format("mqbench_json").write(deployment_of(prepared)).files
    if wants_own_nodes(prepared):
        own = with_own_nodes(prepared, deployment_of(prepared))
        contents |= {} if own is None else {"model.onnx": write_qdq(own).SerializeToString(deterministic=True)}
    kept = {
        "model.onnx": f"{model_name}.onnx",
        "float.onnx": f"{model_name}_deploy_model.onnx",
        "nnie_gfpq.json": f"{model_name}_gfpq_param_dict.json",
    }
    for name, content in contents.items():
        write_bytes(folder / kept.get(name, f"{model_name}_{Path(name).name}"), content)
    for function in _FUNCTIONS.get(target.name, ()):
        path = str(folder / f"{model_name}.onnx")
        function(model, onnx_model_path=path, model_name=model_name, output_path=str(folder))
    return artifact


def _check_shapes(artifact: Artifact, asked: Mapping[str, Any]) -> None:
    ports = artifact.graph.inputs
    for name, shape in asked.items():
        if name not in ports:
            raise DeployError(f"input_shape_dict[{name!r}]", f"the network takes {', '.join(ports)}", "use these names")
        held = ports[name].shape
        if len(held) != len(shape) or any(isinstance(h, int) and h != s for h, s in zip(held, shape, strict=True)):
            raise DeployError(f"input_shape_dict[{name!r}] = {list(shape)}", f"traced with {list(held)}", "give these")
