"""PPQ's export: one file for the network, one for its parameters, wherever the user wants them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from detent.artifact import Artifact, deploy
from detent.compat.ppq.graph import BaseGraph
from detent.compat.ppq.platforms import BACKEND_OF, CREATED, TargetPlatform
from detent.errors import DeployError, NotCalibratedError
from detent.files import temporary_folder
from detent.graph import PreparedModel
from detent.targets.base.ppq_json import PPQ_FILE

__all__ = ["export_ppq_graph", "refuse_platform"]

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

    The formats are those of the platform's backend; ONNXRUNTIME, like a platform of your own, is QDQ ONNX, ORT_OOS_INT8
    is QLinear ONNX, ONNX is PPQ's own table beside a float network. Where parameters are in a file, the network is the
    float one they speak of, and the QDQ model goes beside it. Where they are all in the network, `config_save_to` is
    PPQ's table. A name without a suffix gets that of its format. What was written is returned.
    """
    if graph.prepared is None:
        raise NotCalibratedError(f"export {graph.name!r}", "it has not been quantized", "quantize it first")
    refuse_platform(platform)
    files = _FILES.get(platform) or (BACKEND_OF[platform].files if platform in BACKEND_OF else ("onnx",))
    with temporary_folder() as folder:
        artifact = deploy(graph.prepared, Path(folder) / "made", files=files)
        names = _names(artifact, files)
        if config_save_to is not None and all(name.endswith(_NETWORKS) for name in names):
            _write_table(graph.prepared, Path(folder) / "table", Path(config_save_to))
            return [*_placed(artifact, names, graph_save_to, None), Path(config_save_to)]
        return _placed(artifact, names, graph_save_to, config_save_to)


def refuse_platform(platform: TargetPlatform) -> None:
    """Refuse one that no files are written for."""
    if platform not in {*_FILES, *BACKEND_OF, *CREATED}:
        raise DeployError(
            f"export for {platform.name}",
            f"there are files for {', '.join(dict.fromkeys(one.name for one in (*_FILES, *BACKEND_OF)))}",
            "choose one of them; ONNXRUNTIME (QDQ ONNX) holds every network",
        )


def _write_table(prepared: PreparedModel, folder: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(deploy(prepared, folder, files=("ppq_json",)).path(PPQ_FILE), to)


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
    network = network if network.suffix else network.with_suffix(Path(first).suffix)
    places = {first: network}
    configs = [name for name in names if name not in networks]
    if config_save_to is not None and configs:
        places[configs[0]] = Path(config_save_to)
    places |= {name: network.with_name(f"{network.stem}_{name}") for name in names if name not in places}
    for name, to in places.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(artifact.folder / name, to)
    return list(places.values())
