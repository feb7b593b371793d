"""Compressed weights on OpenVINO: what the files hold, what its kernels decode, and products against the twin."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.errors import ArtifactError
from detent.targets.engines import ENGINES
from detent.targets.openvino.compressed_file import FORMAT, read_compressed
from detent.verification.vendor_files import vendor_disagreements
from tests.targets.weights_in_blocks import SCHEMES, TOKENS, asked, deployed

openvino = pytest.importorskip("openvino")

RECIPES = {
    **SCHEMES,
    "w8-channel": asked(bits=8, granularity="per_channel"),
    "w8-channel-affine": asked(bits=8, granularity="per_channel", symmetric=False),
    "w4-channel": asked(bits=4, granularity="per_channel"),
}
TYPES = {"w4g32": "i4", "w8": "i8", "w4g16-affine": "u4", "w8g64-affine": "u8"} | {
    "w8-channel": "i8", "w8-channel-affine": "u8", "w4-channel": "i4",
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_engine_and_twin_agree_on_compressed_kernels(tmp_path, recipe):
    artifact = deployed(tmp_path / "out", "openvino_llm", RECIPES[recipe])
    verdict = artifact.verify([TOKENS], latency=False)
    assert verdict.holds, str(verdict)
    compared = {found.tensor for found in verdict.tensors if found.what == "twin vs engine"}
    assert {"table", "up.matmul", "words"} <= compared
    assert {placed["ran_as"] for placed in verdict.placements} == {"float", "folded"}
    read = read_compressed(*((artifact.folder / name).read_bytes() for name in ("model.xml", "model.bin")))
    layers = kernels(artifact)
    # The codes go into the kernels as they are: nothing decodes them beforehand.
    assert [kind for kind, _ in layers].count("Gather") == 1
    held = [types[1 if kind == "FullyConnected" else 0] for kind, types in layers]
    assert (
        held.count(TYPES[recipe]) == len(read) == (3 if recipe == "w8g64-affine" else 5 if "channel" in recipe else 4)
    )


def kernels(artifact) -> list[tuple[str, list[str]]]:
    """The products and tables that OpenVINO made of the file, and the types of what they read."""
    core = openvino.Core()
    compiled = core.compile_model(str(artifact.folder / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        kind = node.get_rt_info()["layerType"].astype(str)
        if kind in ("FullyConnected", "Gather"):
            sources = [node.input_value(at).get_node() for at in range(node.get_input_size())]
            found.append((kind, [source.get_rt_info()["outputPrecisions"].astype(str) for source in sources]))
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_kernels_decode_weights_bit_for_bit(tmp_path, recipe):
    """A product with one row of the unit matrix is a column of the weight, without a rounding."""
    torch.manual_seed(1)
    net = nn.Linear(128, 48, bias=False)
    prepared = detent.prepare(net, (torch.eye(128),), backend="openvino_llm", recipe=RECIPES[recipe])
    detent.calibrate(prepared, [torch.eye(128)])
    artifact = detent.deploy(prepared, tmp_path / "out")
    (name,) = artifact.graph.inputs
    (made,) = ENGINES["openvino"].load(artifact).run({name: np.eye(128, dtype=np.float32)}).values()
    (blocks,) = read_compressed(*((artifact.folder / name).read_bytes() for name in ("model.xml", "model.bin")))
    np.testing.assert_array_equal(made.T, blocks.real)
    np.testing.assert_array_equal(made, prepared(torch.eye(128)).detach().numpy())


def test_a_changed_code_is_found(tmp_path):
    artifact = deployed(tmp_path / "out", "openvino_llm")
    assert not list(vendor_disagreements(artifact))
    layers, path = (artifact.folder / "model.xml").read_text(), artifact.folder / "model.bin"
    name = "down.weight_transposed_quantized"
    at = int(re.search(rf'name="{name}" type="Const"[^>]*>\s*<data [^>]*offset="(\d+)"', layers)[1])
    numbers = bytearray(path.read_bytes())
    numbers[at] ^= 1
    path.write_bytes(bytes(numbers))
    assert list(vendor_disagreements(artifact)) == ["down.weight: model.xml has other numbers than model.onnx"]


def test_damaged_files_are_refused(tmp_path):
    artifact = deployed(tmp_path / "out", "openvino_llm")
    layers, numbers = (artifact.folder / "model.xml").read_text(), (artifact.folder / "model.bin").read_bytes()
    changes = {
        'shape="64, 3, 1"': 'shape="64, 4, 1"',
        'shape="64, 3, 32"': 'shape="-1"',
        "<edges>": "<edge>",
        'offset="0"': 'offset="x"',
    }
    for old, new in changes.items():
        assert old in layers
        with pytest.raises(ArtifactError, match="read a openvino_compressed file"):
            read_compressed(layers.replace(old, new, 1).encode(), numbers)
    with pytest.raises(ArtifactError, match="other sizes"):
        read_compressed(layers.encode(), numbers[:1000])


def test_the_same_network_gives_the_same_files(tmp_path):
    first, second = (deployed(tmp_path / name, "openvino_llm") for name in ("a", "b"))
    for name in FORMAT.files:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
