"""SmoothQuant: outliers of activations go into the weights, the float network stays."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import smoothquant
from detent.algorithms.common.floating import as_float
from detent.algorithms.smoothquant_core import smoothing
from tests.algorithms.nets import Mlp, noise, ready, vectors


def with_outliers(net):
    with torch.no_grad():
        net.norm.weight[3] *= 60
        net.norm.weight[7] *= 30
    return net


def test_half_and_half_makes_inputs_and_weights_equal():
    inputs, weights = torch.tensor([16.0, 2.0, 0.5]), torch.tensor([1.0, 0.5, 2.0])
    scale = smoothing(inputs, weights, 0.5)
    torch.testing.assert_close(inputs / scale, weights * scale)
    torch.testing.assert_close(smoothing(inputs, weights, 1.0), inputs)


def test_outliers_are_smoothed_and_the_float_network_stays():
    net, data = with_outliers(Mlp()), vectors()
    prepared = ready(net, data, backend="onnxruntime", calibrated=False)
    plain = ready(net, data, backend="onnxruntime")
    report = smoothquant(prepared, data)
    (change,) = report.changes
    assert change.kept
    assert change.place == "left + right"
    assert change.after < 0.5 * change.before
    assert change.note.startswith("alpha 0.")
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-4, atol=1e-4)
    detent.calibrate(prepared, data)
    assert noise(prepared, net, data) < noise(plain, net, data)
    assert report.skipped == {"down": "what gives its input has no weights to take the scales"}


def test_a_given_alpha_is_not_searched():
    data = vectors()
    prepared = ready(with_outliers(Mlp()), data, backend="onnxruntime", calibrated=False)
    assert smoothquant(prepared, data, alpha=0.5).changes[0].note == "alpha 0.5"


def test_what_does_not_help_is_not_done():
    data = vectors()
    prepared = ready(Mlp(), data, backend="onnxruntime", calibrated=False)
    weight = prepared.norm.weight.clone()
    (change,) = smoothquant(prepared, data, alpha=1.0).changes
    assert change.after > change.before
    assert not change.kept
    assert torch.equal(prepared.norm.weight, weight)


class PostNorm(nn.Module):
    """The output of the norm is added again: it must not change."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        y = self.norm(x)
        return y + self.fc(y)


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        with torch.no_grad():
            self.a.weight[2] *= 50

    def forward(self, x):
        return self.b(self.a(x))


def test_other_users_forbid_it():
    data = vectors()
    prepared = ready(PostNorm(), data, backend="onnxruntime", calibrated=False)
    report = smoothquant(prepared, data)
    assert report.changes == ()
    assert report.skipped == {"fc": "its input has other users, which would see it smoothed"}


def test_a_linear_layer_before_takes_the_scales():
    net, data = Chain(), vectors()
    prepared = ready(net, data, backend="onnxruntime", calibrated=False)
    (change,) = smoothquant(prepared, data).changes
    assert change.kept
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["vit_block", "transformer_block"])
def test_attention_blocks(name):
    from tests.graph.nets import made

    net, inputs = made(name)
    batches = [inputs, made(name, 1)[1]]
    prepared = detent.prepare(net, inputs, backend="onnxruntime", recipe="smoothquant")
    detent.calibrate(prepared, batches)
    (report,) = prepared.algorithm_notes
    assert report.changes
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(*inputs), net(*inputs), rtol=1e-3, atol=1e-3)
