"""What a logarithm takes in is on no grid: 8 bits would round the smallest numbers to zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import detent
from detent.errors import FloatModelWarning

BACKENDS = ["onnxruntime", "openvino", "litert", "ncnn", "tensorrt"]


class Spectrogram(nn.Module):
    """Frames of a wave, their spectra as two products, energies of bands, decibels, then a layer that is trained."""

    def __init__(self, decibels: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        angle = 2 * math.pi / 64 * torch.outer(torch.arange(64.0), torch.arange(33.0))
        self.register_buffer("waves", torch.cat((angle.cos(), angle.sin()), 1))
        self.register_buffer("bands", torch.rand(33, 12))
        self.head, self._decibels = nn.Linear(12, 4), decibels

    def forward(self, wave: Tensor) -> Tensor:
        spectrum = wave.unfold(-1, 64, 32) @ self.waves
        power = spectrum[..., :33] ** 2 + spectrum[..., 33:] ** 2
        return self.head(self._decibels(power @ self.bands))


DECIBELS = {
    "clipped": lambda power: power.clamp(min=1e-7).log(),
    "sum": lambda power: torch.log(power + 1e-7),
    "log10": lambda power: 10 * torch.log10(power.clamp(min=1e-7)),
    "log2": lambda power: power.maximum(torch.tensor(1e-7)).log2(),
}


def _waves() -> Tensor:
    """From quiet to loud over 80 dB."""
    return torch.randn(4, 640) * torch.logspace(-4, 0, 640)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DECIBELS)
def test_a_spectrogram_stays_float_and_what_is_behind_it_does_not(name: str, backend: str):
    torch.manual_seed(0)
    net = Spectrogram(DECIBELS[name]).eval()
    prepared = detent.prepare(net, (_waves(),), backend=backend)
    detent.calibrate(prepared, [_waves() for _ in range(4)])
    reasons = {entry.tensor: entry.reason for entry in prepared.plan.kept_float}
    assert not [t for t in ("wave", "waves.weight", "bands.weight") if "spectrogram" not in reasons.get(t, "")], reasons
    assert "head.weight" in {entry.tensor for entry in prepared.plan.quantized}
    wave = _waves()
    with torch.no_grad():
        expected, error = net(wave), net(wave) - prepared(wave)
    assert 10 * torch.log10(expected.square().sum() / error.square().sum()) > 25  # on the grid of its loudest: under 5


def _file_of_a_spectrogram() -> onnx.ModelProto:
    """With operators that torch has no function for: samples are put over others, and the squares summed."""
    rng = np.random.default_rng(0)
    make = helper.make_node
    nodes = [
        make("ScatterElements", ["wave", "places", "start"], ["begun"], axis=1),
        make("STFT", ["begun", "hop", "window"], ["spectrum"]),
        make("ReduceSumSquare", ["spectrum"], ["power"], axes=[-1], keepdims=0),
        make("MatMul", ["power", "bands"], ["energies"]),
        make("Clip", ["energies", "least"], ["bounded"]),
        make("Log", ["bounded"], ["y"]),
    ]
    held = {
        "places": np.zeros((4, 1), np.int64),
        "start": np.full((4, 1), 0.5, np.float32),
        "hop": np.array(32),
        "window": np.hanning(64).astype(np.float32),
        "bands": rng.random((33, 12)).astype(np.float32),
        "least": np.array(1e-7, np.float32),
    }
    wave = helper.make_tensor_value_info("wave", TensorProto.FLOAT, [4, 640])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 19, 12])
    graph = helper.make_graph(nodes, "g", [wave], [y], [numpy_helper.from_array(a, name) for name, a in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_spectrogram_of_a_file_stays_float(tmp_path):
    with pytest.warns(FloatModelWarning):
        artifact = detent.quantize(_file_of_a_spectrogram(), [_waves()], backend="onnxruntime", folder=tmp_path / "o")
    prepared = artifact.prepared
    assert prepared is not None
    assert not prepared.plan.quantized
    reasons = {entry.tensor: (entry.kind, entry.reason) for entry in prepared.plan.kept_float}
    for tensor, kind in (("wave", "input"), ("begun", "ScatterElements"), ("power", "ReduceSumSquare")):
        assert reasons[tensor] == (kind, "part of a spectrogram, whose smallest values a logarithm takes")
    assert artifact.verify([_waves()], latency=False).holds


class Layers(nn.Module):
    """A trained network that ends in a logarithm, as mixtures of densities and box decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.second(torch.relu(self.first(x))).square().clamp(min=1e-4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_before_a_logarithm_run_on_integers_and_give_it_real_numbers(backend: str):
    net = Layers().eval()
    prepared = detent.prepare(net, (torch.randn(4, 8),), backend=backend)
    quantized = {entry.tensor for entry in prepared.plan.quantized}
    reasons = {entry.tensor: entry.reason for entry in prepared.plan.kept_float}
    assert {"x", "first.weight", "second.weight"} <= quantized
    assert all("is a logarithm" in reasons[tensor] for tensor in ("second", "square", "clamp"))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn"])
def test_the_engines_compute_it(backend: str, tmp_path):
    for place, net in enumerate((Spectrogram(DECIBELS["clipped"]), Layers())):
        torch.manual_seed(1)
        example = _waves() if place == 0 else torch.randn(4, 8)
        prepared = detent.prepare(net.eval(), (example,), backend=backend)
        detent.calibrate(prepared, [example])
        assert detent.deploy(prepared, tmp_path / str(place)).verify([example]).holds
