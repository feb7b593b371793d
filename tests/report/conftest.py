"""A deployed network with data, what a report knows of it, and a browser."""

from __future__ import annotations

import pytest
import torch

import detent
from detent.artifact import Artifact
from detent.demo import images, trained
from detent.report import Facts, collect


@pytest.fixture(scope="package")
def artifact(tmp_path_factory) -> Artifact:
    """The demo's network for ONNX Runtime, with the model it came from."""
    torch.manual_seed(0)
    data = images()
    prepared = detent.prepare(trained(), (data.calibration[:1],), backend="onnxruntime")
    detent.calibrate(prepared, [data.calibration[:64]])
    return detent.deploy(prepared, tmp_path_factory.mktemp("report") / "demo")


@pytest.fixture(scope="package")
def labeled() -> list[tuple[torch.Tensor, torch.Tensor]]:
    data = images()
    return [(data.test[:32], data.test_labels[:32]), (data.test[32:64], data.test_labels[32:64])]


@pytest.fixture(scope="package")
def facts(artifact, labeled) -> Facts:
    """Of the artifact with the model in memory, on labeled data."""
    return collect(artifact, prepared=artifact.prepared, data=labeled)
