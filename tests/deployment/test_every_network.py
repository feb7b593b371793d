"""Small networks of every kind for targets whose files are written here: each is deployed, or refused in a sentence.

The engine runs what was deployed, next to the twin. Refusals are known one by one: another one, or none where there was
one, is a change.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import detent
from detent.errors import DeployError
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.twin import Twin
from tests.models import MODELS

ISLAND = "no file format holds Python: gate stays Python"
REFUSED = {
    ("ncnn", "control_flow"): ISLAND,
    ("litert", "control_flow"): ISLAND,
    ("litert", "conv1d_3d"): "convolutions with 1 or 2 are written",
    ("litert", "conv_transpose_bn"): "without groups or dilation",
}
NETWORKS = [
    *("residual_cnn", "mobile_cnn", "transformer_block", "unet", "yolo_head", "vit_block", "control_flow"),
    *("reused_module", "functional_ops", "dict_io", "dataclass_io", "conv1d_3d", "conv_transpose_bn", "linear_bn"),
]


@pytest.mark.pairwise(strength=1)
@pytest.mark.filterwarnings("ignore::detent.errors.FloatModelWarning")  # ncnn has nothing for `conv_transpose_bn`
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", ["ncnn", "litert"])
def test_it_is_deployed_or_refused(backend: str, network: str, tmp_path: Path) -> None:
    engine = ENGINES[backend]
    if engine.version() is None:
        pytest.skip(f"needs the extra `{engine.extra}`")
    torch.manual_seed(0)
    inputs = MODELS[network].inputs()
    prepared = detent.prepare(MODELS[network].build().eval(), inputs, backend=backend)
    detent.calibrate(prepared, [inputs])
    if (backend, network) in REFUSED:
        with pytest.raises(DeployError, match=REFUSED[backend, network]):
            detent.deploy(prepared, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return
    artifact = detent.deploy(prepared, tmp_path / "out")
    given = [value for part in inputs for value in (part.values() if isinstance(part, dict) else [part])]
    feeds = {name: value.numpy() for name, value in zip(artifact.graph.inputs, given, strict=True)}
    found = engine.load(artifact).run(feeds)
    expected = Twin(artifact, ARITHMETICS[artifact.manifest["arithmetic"]]()).run(feeds)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        # Products of two activations are one step apart in about one of 100,000, and a step spreads in what follows.
        tolerance = 0.05 * float(np.abs(values).max())
        np.testing.assert_allclose(found[name].reshape(values.shape), values, atol=tolerance)
