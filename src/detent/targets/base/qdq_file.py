"""`model.onnx`, which every target may name among its files."""

from __future__ import annotations

from collections.abc import Mapping

from detent.targets.base.deployment import Deployment
from detent.targets.base.format import Format, Roles, Written

__all__ = ["FORMAT", "QDQ_FILE", "OnnxFormat"]

QDQ_FILE = "model.onnx"


class OnnxFormat(Format):
    """The QDQ model itself, which `verify` compares with the manifest tensor by tensor."""

    name = "onnx"
    files: Mapping[str, Roles | None] = {QDQ_FILE: None}
    weights = QDQ_FILE

    def write(self, deployment: Deployment) -> Written:
        return Written({QDQ_FILE: deployment.model.SerializeToString(deterministic=True)})


FORMAT = OnnxFormat()
