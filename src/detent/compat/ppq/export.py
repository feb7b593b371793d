"""PPQ's export: one file for the network, one for its parameters, wherever the user wants them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from detent.artifact import Artifact, deploy
from detent.compat.ppq.graph import BaseGraph
from detent.compat.ppq.platforms import BACKEND_OF, TargetPlatform
from detent.errors import DeployError, NotCalibratedError

__all__ = ["export_ppq_graph"]

_FILES: Mapping[TargetPlatform, tuple[str, ...]] = {
    TargetPlatform.ONNXRUNTIME: ("onnx",),
    TargetPlatform.ONNX: ("ppq_json",),
    TargetPlatform.ORT_OOS_INT8: ("onnx_qlinear",),
    TargetPlatform.EXTENSION: ("onnx",),
}

_NETWORKS = (".onnx", ".tflite", ".param", ".bin", ".xml")


def export_ppq_graph(
    graph: BaseGraph,
    platform: TargetPlatform,
    graph_save_to: str | os.PathLike[str],
    config_save_to: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """Write the network to `graph_save_to`, its parameters to `config_save_to`, and the other files beside the first.

    The formats are those of the platform's backend; ONNXRUNTIME is QDQ ONNX, ORT_OOS_INT8 is QLinear ONNX, ONNX is
    PPQ's own table beside a float network. Where parameters are in a file, the network is the float one they speak of,
    and the QDQ model goes beside it. What was written is returned.
    """
    if graph.prepared is None:
        raise NotCalibratedError(f"export {graph.name!r}", "it has not been quantized", "quantize it first")
    if platform not in _FILES and platform not in BACKEND_OF:
        raise DeployError(
            f"export for {platform.name}",
            f"there are files for {', '.join(one.name for one in (*_FILES, *BACKEND_OF))}",
            "choose one of them",
        )
    files = _FILES.get(platform) or BACKEND_OF[platform].files
    with tempfile.TemporaryDirectory() as folder:
        artifact = deploy(graph.prepared, Path(folder) / "made", files=files)
        return _placed(artifact, _names(artifact, files), graph_save_to, config_save_to)


def _names(artifact: Artifact, files: Sequence[str]) -> list[str]:
    """The files that were asked for: the QDQ model is always made, and not always one of them."""
    made = list(artifact.manifest["files"])
    return [name for name in made if name != "model.onnx" or "onnx" in files] or made


def _placed(
    artifact: Artifact,
    names: Sequence[str],
    graph_save_to: str | os.PathLike[str],
    config_save_to: str | os.PathLike[str] | None,
) -> list[Path]:
    network = Path(graph_save_to)
    network.parent.mkdir(parents=True, exist_ok=True)
    networks = [name for name in names if name.endswith(_NETWORKS)]
    # Parameter files speak of the float network, which is beside them.
    first = "float.onnx" if "float.onnx" in networks else networks[0]
    places = {first: network}
    configs = [name for name in names if name not in networks]
    if config_save_to is not None and configs:
        places[configs[0]] = Path(config_save_to)
    places |= {name: network.with_name(f"{network.stem}_{name}") for name in names if name not in places}
    for name, to in places.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.folder / name, to)
    return list(places.values())
