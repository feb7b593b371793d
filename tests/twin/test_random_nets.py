"""Random nets on the engines that are matched integer for integer: no number differs, whatever the attributes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from detent.errors import DeployError
from detent.ir import read_qdq, write_qdq
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.litert.file import model_to_tflite
from detent.targets.openvino.spec import OPENVINO
from detent.targets.rewrites import legalize
from detent.twin import Twin
from tests.targets.ncnn.nets import ncnn_form
from tests.targets.torch_native.nets import differing as differing_in_torch
from tests.twin.builder import Net
from tests.twin.random_nets import random_net
from tests.twin.random_operations import MAKERS

WEIGHTED = ["conv"] * 6
few_or_many = pytest.mark.parametrize(
    "seeds", [pytest.param(range(6), id="few"), pytest.param(range(6, 60), id="many", marks=pytest.mark.full)]
)


@few_or_many
def test_onnxruntime(seeds: range) -> None:
    kinds = [*WEIGHTED, "average_anew", "max", "global", "add", "mul", "concat", "linear", "relu", "leaky"]
    for seed in seeds:
        net = random_net(seed, kinds)
        session = onnxruntime.InferenceSession(net.model.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        ours = Twin(net.model, ARITHMETICS["onnxruntime"]()).run(net.feeds)
        for name, theirs in zip(names, session.run(names, net.feeds), strict=True):
            assert np.array_equal(ours[name], theirs), (seed, name)


@few_or_many
@pytest.mark.parametrize(
    ("kernels", "arithmetic"), [("xnnpack", "xnnpack"), ("builtin", "ruy"), ("reference", "tflite_reference")]
)
def test_litert(kernels: str, arithmetic: str, seeds: range) -> None:
    pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")
    from tests.targets.litert.proof import differing

    kinds = [*WEIGHTED, "average", "max", "global", "add", "mul", "concat", "linear", "relu", "leaky"]
    counted: Counter[bool] = Counter()
    for seed in seeds:
        net = random_net(seed, kinds, activation=("uint8", "int8")[seed % 2])
        try:
            model_to_tflite(net.model)
        except DeployError:
            counted[False] += 1
            continue
        counted[True] += 1
        assert differing(net, ARITHMETICS[arithmetic](), kernels)[0] == 0, seed  # type: ignore[arg-type]
    assert counted[True] > counted[False] * 3


@few_or_many
def test_ncnn(seeds: range) -> None:
    pytest.importorskip("ncnn", reason="needs the extra `ncnn`")
    from detent.targets.ncnn.engine import Ncnn
    from detent.targets.ncnn.file import ncnn_model

    for seed in seeds:
        kinds = [*WEIGHTED, "max", "global", "add", "mul", "linear", "relu", "leaky"]
        net = ncnn_form(random_net(seed, kinds, activation="int8", symmetric=True))
        graph = read_qdq(net.model)
        try:
            engine = Ncnn(ncnn_model(net.model), graph, packing=False)
        except DeployError:
            continue  # a pool that ncnn rounds up in one direction only
        theirs = engine.run(net.feeds)
        for name, ours in Twin(graph, ARITHMETICS["ncnn"]()).run(net.feeds).items():
            assert np.array_equal(ours, theirs[name].reshape(ours.shape)), (seed, name)


@few_or_many
@pytest.mark.parametrize("kernels", ["fbgemm", "qnnpack"])
def test_torch(kernels: str, seeds: range, tmp_path: Path) -> None:
    kinds = [*WEIGHTED, "add", "mul", "concat", "linear", "relu", "leaky", "global"]
    for seed in seeds:
        net = random_net(seed, kinds)
        wrong, count = differing_in_torch(net, tmp_path, kernels, ARITHMETICS[kernels]())  # type: ignore[arg-type]
        assert count > 0
        # A convolution whose sides are padded unevenly is left in float; what it gives is compared on its grid.
        assert not [name for name in wrong if read_qdq(net.model).grid_of(name) is not None], seed


@few_or_many
def test_openvino(seeds: range, tmp_path: Path) -> None:
    """With powers of two, in the forms in which they are written for it."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    from tests.targets.openvino.test_arithmetic import distances

    kinds = [*WEIGHTED, *(kind for kind in MAKERS if kind != "conv")]
    styles = [{"activation": "uint8"}, {"activation": "int8", "symmetric": True}, {"activation": "int8"}]
    for seed in seeds:
        net = random_net(seed, kinds, scales="pot", **styles[seed % 3])
        written = Net(write_qdq(legalize(read_qdq(net.model), OPENVINO.rewrites)), net.feeds)
        assert not distances(written, tmp_path).any(), seed
