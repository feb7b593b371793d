"""`convert_deploy` and the functions behind it: QDQ ONNX, the float network beside it, a JSON of parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from detent.artifact import Artifact, deploy
from detent.compat.mqbench.phases import PlatformModel
from detent.compat.mqbench.platform import target_of
from detent.deploy import Encoding, deployment_of, float_model, read_qdq, writer
from detent.errors import DeployError

__all__ = [
    "LinearQuantizer_process",
    "convert_deploy",
    "register_deploy_function",
    "remove_fakequantize_and_collect_params",
]

_CLIP_RANGES = ("tensorrt", "snpe", "vitis", "ppl_w8a16", "ppl_cuda")
"""Backends that MQBench writes a clip_ranges.json for."""

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

    `<model_name>.onnx` has Q and DQ; `<model_name>_deploy_model.onnx` and `<model_name>_<file>` are what the backend's
    own format is. `input_shape_dict` is checked against what the model was traced with.
    """
    target, prepared = target_of(backend_type), model.prepared
    if target.name != prepared.backend.name:
        raise DeployError(f"deploy for {target.name!r}", f"it was prepared for {prepared.backend.name!r}", "name that")
    model.enter("quantized")
    folder = Path(output_path)
    artifact = deploy(prepared, folder / model_name)
    _check_shapes(artifact, input_shape_dict or {})
    contents = {name: (artifact.folder / name).read_bytes() for name in artifact.manifest["files"]}
    if target.name in _CLIP_RANGES:
        contents |= writer("mqbench_json")(deployment_of(prepared))
    kept = {"model.onnx": f"{model_name}.onnx", "float.onnx": f"{model_name}_deploy_model.onnx"}
    for name, content in contents.items():
        (folder / kept.get(name, f"{model_name}_{Path(name).name}")).write_bytes(content)
    for function in _FUNCTIONS.get(target.name, ()):
        path = str(folder / f"{model_name}.onnx")
        function(model, onnx_model_path=path, model_name=model_name, output_path=str(folder))
    return artifact


class LinearQuantizer_process:  # noqa: N801
    """Takes the quantization out of a QDQ file and collects its parameters. `translate` is for a vendor's own form."""

    def remove_fakequantize_and_collect_params(self, onnx_path: str | Path, model_name: str, backend: str) -> Any:
        """Writes `<model_name>_deploy_model.onnx` and `<model_name>_clip_ranges.json`; what `translate` gives."""
        path = Path(onnx_path)
        quantized = onnx.load(path)
        network = float_model(quantized)
        context = {backend: {name: self.clip_range(one) for name, one in _encodings(quantized).items()}}
        onnx.save(network, path.parent / f"{model_name}_deploy_model.onnx")
        (path.parent / f"{model_name}_clip_ranges.json").write_text(json.dumps(context, indent=2) + "\n")
        return self.translate(network, context)

    def clip_range(self, encoding: Encoding) -> dict[str, Any]:
        """What the JSON says of one tensor."""
        return {
            "scale": encoding.scale.tolist(),
            "zero_point": encoding.zero_point.tolist(),
            "quant_min": encoding.qmin,
            "quant_max": encoding.qmax,
            "round_mode": "half_even",
        }

    def translate(self, model: onnx.ModelProto, context: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """The network in float and the parameters, in the form a runtime takes; the parameters, unless overridden."""
        return context


def remove_fakequantize_and_collect_params(onnx_path: str | Path, model_name: str, backend: str) -> Any:
    """As `LinearQuantizer_process` does."""
    return LinearQuantizer_process().remove_fakequantize_and_collect_params(onnx_path, model_name, backend)


def _encodings(model: onnx.ModelProto) -> dict[str, Encoding]:
    graph = read_qdq(model)
    reads = [read for op in graph.ops for read in op.inputs if read is not None]
    return {read.tensor: read.encoding for read in reads if read.encoding is not None}


def _check_shapes(artifact: Artifact, asked: Mapping[str, Any]) -> None:
    ports = artifact.graph.inputs
    for name, shape in asked.items():
        if name not in ports:
            raise DeployError(f"input_shape_dict[{name!r}]", f"the network takes {', '.join(ports)}", "use these names")
        held = ports[name].shape
        if len(held) != len(shape) or any(isinstance(h, int) and h != s for h, s in zip(held, shape, strict=True)):
            raise DeployError(f"input_shape_dict[{name!r}] = {list(shape)}", f"traced with {list(held)}", "give these")
