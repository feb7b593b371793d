"""`detent verify --cpu`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.verification.mutants import batches, made


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("cpus")
    artifact = made("onnxruntime", "plain", folder / "out")
    np.save(folder / "data.npy", batches()[0].numpy())
    return ["verify", str(artifact.folder), "--data", str(folder / "data.npy"), "--no-latency"]


def test_kinds_of_cpu_are_predicted(command, given):
    answer = command(*given, "--json", "--cpu", "avx2", "--cpu", "vnni")
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert [(row["cpu"], row["differing"]) for row in told["predicted"]] == [("avx2", 0), ("vnni", 0)]
    assert told["cpu"]


def test_a_cpu_that_is_not_known_is_a_mistake_of_the_user(command, given):
    answer = command(*given, "--cpu", "avx3")
    assert answer.returncode == 2
    assert "did you mean 'avx2'?" in answer.stderr
