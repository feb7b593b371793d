"""Complex numbers become their real and imaginary parts, or stay inside of one operation."""

from __future__ import annotations

import onnx
import pytest
import torch
from torch import nn

import detent
from detent.graph import capture
from tests.graph.nets import Net, run

pytestmark = pytest.mark.slow


def net(function, shape=(8, 8)):
    torch.manual_seed(0)
    made = Net(lambda n, x: function(n.fc(x), n), fc=nn.Linear(*shape))
    angles = torch.outer(torch.arange(16.0), torch.rand(4))
    made.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
    made.register_buffer("window", torch.hann_window(8))
    made.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
    return made.eval()


def tokens(batch=2, count=6, width=8):
    torch.manual_seed(1)
    return torch.randn(batch, count, width)


def pairs(y):
    return torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2))


def rotary(y, n):
    """Of Llama."""
    turned = pairs(y.float()) * n.turns[: y.shape[1]]
    return torch.view_as_real(turned).flatten(-2).type_as(y)


def rotary_inside(y, _):
    angles = torch.outer(torch.arange(y.shape[1]).float(), torch.ones(4))
    turned = pairs(y) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def arithmetic(y, _):
    z = torch.complex(y[..., :4], y[..., 4:])
    z = (z * (1 - 2j) + z.conj() / 2 - 0.5).transpose(1, 2)
    z = torch.cat([z, -z[:, :1]], 1)
    return torch.cat([z.real, z.imag, z.abs(), (2 * z).sum(-1, keepdim=True).real.expand_as(z)], 1)


def product(y, n):
    return torch.view_as_real(pairs(y) @ n.weight).flatten(-2)


def spectrum(y, _):
    return torch.fft.fft(torch.fft.fft(y, dim=-1), dim=-2).real


@pytest.mark.parametrize("function", [rotary, rotary_inside, arithmetic, product, spectrum])
def test_it_computes_the_same_in_real_numbers(function):
    model = net(function)
    captured = capture(model, (tokens(),))
    assert not captured.graph_breaks
    types = {node.meta.get("dtype") for node in captured.module.graphs["forward"].nodes if node.op.startswith("call")}
    assert types - {None} <= {torch.float32, torch.int64}
    for x in (tokens(), tokens(3)):
        assert torch.allclose(run(captured.module, (x,)), run(model, (x,)), atol=1e-5)


def test_parameters_of_complex_numbers_are_trained():
    model = net(product)
    captured = capture(model, (tokens(),))
    captured.module(tokens()).pow(2).sum().backward()
    model(tokens()).pow(2).sum().backward()
    assert torch.allclose(captured.module.weight.grad, model.weight.grad, atol=1e-4)


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn"])
@pytest.mark.parametrize("function", [rotary, rotary_inside])
def test_rotary_embeddings_are_deployed(function, backend, tmp_path):
    prepared = detent.prepare(net(function), (tokens(),), backend=backend)
    detent.calibrate(prepared, [tokens()])
    assert detent.deploy(prepared, tmp_path).verify([tokens()], latency=False).holds


def waves(**options):
    def function(y, n):
        spectra = torch.stft(y, 8, window=n.window[: options.get("win_length", 8)], return_complex=True, **options)
        return torch.view_as_real(spectra)

    return function


STFT = {
    "plain": {},
    "hop": {"hop_length": 3},
    "window": {"win_length": 6},
    "normalized": {"normalized": True},
    "both sides": {"onesided": False},
}


@pytest.mark.parametrize("options", [{"center": False}, {"pad_mode": "constant"}], ids=["not centered", "constant"])
def test_short_time_spectra_with_other_ends(options):
    model, x = net(waves(**options), (64, 64)), torch.randn(2, 64)
    assert torch.allclose(run(capture(model, (x,)).module, (x,)), run(model, (x,)), atol=1e-5)


@pytest.mark.parametrize("name", STFT)
def test_short_time_spectra_are_convolutions_when_deployed(name, tmp_path):
    torch.manual_seed(0)
    model, x = net(waves(**STFT[name]), (64, 64)), torch.randn(2, 64)
    prepared = detent.prepare(model, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    artifact = detent.deploy(prepared, tmp_path)
    assert "Conv" in {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert artifact.verify([x], latency=False).holds


def test_complex_results_are_refused_with_what_to_do():
    captured = capture(net(lambda y, _: pairs(y)), (tokens(),))
    assert "it returns complex numbers" in captured.graph_breaks[""]


def test_complex_inputs_are_refused_with_what_to_do():
    model = Net(lambda n, x: n.fc(x.real), fc=nn.Linear(4, 4)).eval()
    captured = capture(model, (torch.randn(2, 4, dtype=torch.complex64),))
    assert "its input 'x' is complex" in captured.graph_breaks[""]
