"""AWQ: weights that meet large inputs are enlarged, the float network stays."""

import torch

import detent
from detent.algorithms import awq
from detent.algorithms.awq_core import awq_scales
from detent.algorithms.common.floating import as_float
from tests.algorithms.nets import Mlp, noise, ready, vectors

W3 = {"weight": {"bits": 3, "granularity": {"per_group": 8}}, "activation": {"quantize": False}}


def with_salient_inputs():
    torch.manual_seed(0)
    net = Mlp()
    with torch.no_grad():
        net.norm.weight[3] *= 20
        net.norm.weight[11] *= 8
    return net


def test_scales_by_hand():
    torch.testing.assert_close(awq_scales(torch.tensor([4.0, 1.0, 0.25]), 1.0), torch.tensor([4.0, 1.0, 0.25]))
    assert awq_scales(torch.tensor([4.0, 1.0, 0.25]), 0.0).tolist() == [1.0, 1.0, 1.0]
    assert torch.isfinite(awq_scales(torch.tensor([4.0, 0.0]), 1.0)).all()


def test_the_float_network_stays_and_the_quantized_one_is_nearer_to_it():
    net, data = with_salient_inputs(), vectors()
    plain, prepared = ready(net, data, **W3), ready(net, data, calibrated=False, **W3)
    report = awq(prepared, data)
    assert report.changes[0].place == "left + right"
    assert report.changes[0].kept
    assert report.changes[0].after < 0.6 * report.changes[0].before
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-4, atol=1e-4)
    detent.calibrate(prepared, data)
    assert noise(prepared, net, data) < 0.8 * noise(plain, net, data)


def test_a_gated_unit_takes_the_scales_through_its_product():
    net, data = with_salient_inputs(), vectors()
    with torch.no_grad():
        net.right.weight[5] *= 30
        net.right.bias[5] *= 30
    prepared = ready(net, data, calibrated=False, **W3)
    report = awq(prepared, data)
    assert [change.place for change in report.changes] == ["left + right", "down"]
    assert report.changes[1].kept
    assert report.skipped == {}
    with torch.no_grad(), as_float(prepared):
        torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-4, atol=1e-3)


def test_gptq_and_autoround_go_on_from_it():
    net, data = with_salient_inputs(), vectors()
    names = ["awq", "gptq", "autoround"]
    prepared = ready(net, data, **W3, algorithms=[{"name": name} for name in names])
    assert [report.algorithm for report in prepared.algorithm_notes] == names
    assert noise(prepared, net, data) < 0.5 * noise(ready(net, data, **W3), net, data)
