"""Every algorithm on an ONNX file: loaded, prepared, calibrated, deployed, and run by ONNX Runtime."""

import warnings

import numpy as np
import onnxruntime
import pytest
import torch

import detent
from detent.recipes import Recipe
from tests.algorithms.nets import Convs, Mlp, images, vectors

LSQ = {"weight": {"quantizer": "lsq"}, "activation": {"quantizer": "lsq"}}
STEPS = {"adaround": 20, "brecq": 10, "qdrop": 10}
BUILTIN = ("equalize", "adaround", "brecq", "qdrop", "gptq", "smoothquant")
ALONE = {
    "bias_correction": {},
    "finetune_weights": {"options": {"steps": 10}},
    "finetune_scales": {"options": {"steps": 10}},
}


def request(name):
    """The recipe of that name with fewer steps; a plain one with the algorithm where no recipe has its name."""
    if name in ALONE:
        base = LSQ if name == "finetune_scales" else {}
        return Recipe.from_dict({"name": "mine", **base, "algorithms": [{"name": name, **ALONE[name]}]})
    data = Recipe.named(name).to_dict()
    for algorithm in data["algorithms"]:
        if algorithm["name"] in STEPS:
            algorithm["options"] = {"steps": STEPS[algorithm["name"]]}
    return Recipe.from_dict(data)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Both networks as ONNX files, with the data they are calibrated on."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("nets")
    made = {}
    for name, net, data in (("convs", Convs().eval(), images(4)), ("mlp", Mlp().eval(), vectors(4))):
        path = folder / f"{name}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            torch.onnx.export(net, (data[0],), path, dynamo=False)
        made[name] = path, data
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BUILTIN, *ALONE])
def test_an_onnx_file_goes_through_and_runs(name, files, tmp_path):
    path, data = files["mlp" if name in ("smoothquant", "gptq") else "convs"]
    artifact = detent.quantize(path, data, backend="onnxruntime", recipe=request(name), folder=tmp_path / "out")
    reports = artifact.prepared.algorithm_notes
    assert name in [report.algorithm for report in reports]
    assert all(report.changes for report in reports)
    assert artifact.verify(data[:1], latency=False).holds

    def run(file):
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return session.run(None, {session.get_inputs()[0].name: data[-1].numpy()})[0]

    wanted, got = run(path), run(artifact.folder / "model.onnx")
    # 8 bits everywhere: 20 dB is far below what they leave (about 35), and far above a network that is broken.
    assert np.square(got - wanted).sum() < 0.01 * np.square(wanted).sum()
