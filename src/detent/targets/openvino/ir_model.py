"""A deployed network as OpenVINO reads it, and its files `model.xml` and `model.bin`: what both kinds of IR share."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.errors import DeployError, install_hint
from detent.files import temporary_folder
from detent.targets.base import Deployment

if TYPE_CHECKING:
    from openvino import Model

__all__ = ["CONSTANTS", "LAYERS", "finish", "read_model", "save", "stand_in"]

LAYERS, CONSTANTS = "model.xml", "model.bin"
# Without it the CPU plugin rounds what a linear layer reads again, by ranges that it finds as it runs, if the layer's
# weights have zero points or what it reads is not quantized: 1 % of the largest number was seen.
_AS_GIVEN = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
_COUNTED = re.compile(r"[A-Za-z]+_\d+")  # the name that a node gets that has none: its type and a running number


def read_model(deployment: Deployment) -> Model:
    try:
        import openvino
    except ImportError as error:
        raise DeployError(
            "write an OpenVINO IR", f"openvino is not installed ({error})", install_hint("openvino")
        ) from error
    try:
        return openvino.Core().read_model(io.BytesIO(deployment.model.SerializeToString()))
    except RuntimeError as error:
        raise DeployError(
            "write an OpenVINO IR", str(error), "keep the operation OpenVINO does not know out"
        ) from error


def stand_in(made: Any, old: Any) -> None:
    """An output of a node in place of another, under its names."""
    made.get_node().set_friendly_name(old.get_node().get_friendly_name())
    made.set_names(old.get_names())
    for reader in old.get_target_inputs():
        reader.replace_source_output(made)


def finish(model: Model, *, keep: set[str]) -> None:
    """Types anew, the options under which it computes what was deployed, and names that are the same each time.

    Nodes without a name of their own are numbered from 0, so that the same network gives the same file. Those of the
    ONNX model, `add_1` among them, are what the engine is asked about: `keep` has them."""
    model.validate_nodes_and_infer_types()
    for name, value in _AS_GIVEN.items():
        model.set_rt_info(value, ["runtime_options", name])
    for index, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name() not in keep and _COUNTED.fullmatch(node.get_friendly_name()):
            node.set_friendly_name(f"{node.get_type_name()}_{index}")


def save(model: Model) -> tuple[str, bytes]:
    """The text of layers, and the constants."""
    import openvino

    with temporary_folder() as folder:
        path = Path(folder) / LAYERS
        try:
            openvino.save_model(model, str(path), compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(f"OpenVINO could not write {path}") from error  # its own words are "iostream error"
        return path.read_text("utf-8"), path.with_suffix(".bin").read_bytes()
