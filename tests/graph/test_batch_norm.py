"""Batch-norm strategies by number: in eval the unfused float model, in training what each of them publishes."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn

from detent.errors import SchemeError
from detent.graph import STRATEGIES, FoldedBatchNorm, capture, fold_batch_norms
from detent.graph.batch_norm import merged
from tests.graph.nets import Net, assert_close, captured_of, made, run

FOLDED = (1, 2, 3, 4)
BATCH = (2, 3, 4)

# Folding changes the order of float32 multiplications over sums of up to 100 terms of size 1.
FLOAT32 = 1e-5


class Pair(NamedTuple):
    op: nn.Module
    bn: nn.Module
    shape: tuple[int, ...]
    kind: str


PAIRS = {
    "conv1d": lambda: Pair(nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6), (4, 4, 9), "conv"),
    "conv2d": lambda: Pair(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), (4, 4, 7, 7), "conv"),
    "conv2d-bias": lambda: Pair(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), (4, 4, 7, 7), "conv"),
    "conv2d-grouped": lambda: Pair(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (4, 4, 7, 7), "conv"),
    "conv2d-depthwise": lambda: Pair(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), (4, 4, 7, 7), "conv"),
    "conv2d-reflect": lambda: Pair(
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6), (4, 4, 7, 7), "conv"
    ),
    "conv2d-not-affine": lambda: Pair(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False), (4, 4, 7, 7), "conv"),
    "conv3d": lambda: Pair(nn.Conv3d(2, 6, 2), nn.BatchNorm3d(6), (4, 2, 4, 5, 5), "conv"),
    "transposed1d": lambda: Pair(nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6), (4, 4, 7), "conv_transpose"),
    "transposed2d": lambda: Pair(
        nn.ConvTranspose2d(4, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6), (4, 4, 5, 5), "conv_transpose"
    ),
    "transposed2d-grouped": lambda: Pair(
        nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (4, 4, 5, 5), "conv_transpose"
    ),
    "linear": lambda: Pair(nn.Linear(8, 6), nn.BatchNorm1d(6), (16, 8), "linear"),
    "linear-no-bias": lambda: Pair(nn.Linear(8, 6, bias=False), nn.BatchNorm1d(6), (16, 8), "linear"),
    "eps": lambda: Pair(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, eps=0.1), (4, 4, 7, 7), "conv"),
    "momentum": lambda: Pair(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, momentum=0.37), (4, 4, 7, 7), "conv"),
    "cumulative": lambda: Pair(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, momentum=None), (4, 4, 7, 7), "conv"),
}

every_pair = pytest.mark.parametrize("pair", PAIRS)
folded = pytest.mark.parametrize("strategy", FOLDED)
on_batches = pytest.mark.parametrize("strategy", BATCH)


def lively_pair(name):
    """The pair with a batch norm that is not the identity, some gammas negative."""
    pair = PAIRS[name]()
    nn.init.normal_(pair.bn.running_mean, std=0.5)
    nn.init.uniform_(pair.bn.running_var, 0.3, 2.0)
    if pair.bn.affine:
        nn.init.uniform_(pair.bn.weight, 0.5, 1.5)
        nn.init.normal_(pair.bn.bias)
        with torch.no_grad():
            pair.bn.weight[1::2] *= -1
    return pair


def reference_and_folded(name, strategy):
    pair = lively_pair(name)
    plain = nn.Sequential(copy.deepcopy(pair.op), copy.deepcopy(pair.bn))
    return plain, FoldedBatchNorm(pair.op, pair.bn, strategy, pair.kind), torch.randn(pair.shape)


def statistics(bn):
    return torch.stack([bn.running_mean, bn.running_var])


# --- eval --------------------------------------------------------------------------------------------------


@folded
@every_pair
def test_in_eval_it_computes_the_unfused_float_model(pair, strategy):
    plain, fold, x = reference_and_folded(pair, strategy)
    assert_close(run(fold.eval(), (x,)), run(plain.eval(), (x,)), FLOAT32)


@every_pair
def test_merged_weight_and_bias_compute_the_unfused_float_model(pair):
    one = lively_pair(pair)
    x = torch.randn(one.shape)
    expected = run(nn.Sequential(one.op, one.bn).eval(), (x,))
    captured, _, _ = captured_of(nn.Sequential(one.op, one.bn), x)
    assert fold_batch_norms(captured, 0) == {"1": "0"}
    assert isinstance(captured.module.get_submodule("1"), nn.Identity)
    assert_close(run(captured.module, (x,)), expected, FLOAT32)


def test_the_merged_weight_is_w_times_gamma_over_sigma():
    conv, bn = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, eps=0.0)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([3.0, 5.0]).reshape(2, 1, 1, 1))
        conv.bias.copy_(torch.tensor([1.0, 2.0]))
        bn.running_mean.copy_(torch.tensor([0.5, -1.0]))
        bn.running_var.copy_(torch.tensor([4.0, 16.0]))
        bn.weight.copy_(torch.tensor([2.0, -4.0]))
        bn.bias.copy_(torch.tensor([10.0, 20.0]))
    weight, bias = merged(conv, bn)
    assert weight.flatten().tolist() == [3.0 * 2 / 2, 5.0 * -4 / 4]
    assert bias.tolist() == [(1 - 0.5) * 2 / 2 + 10, (2 + 1) * -4 / 4 + 20]


@folded
def test_the_quantizer_sees_the_folded_weight_in_eval(strategy):
    plain, fold, x = reference_and_folded("conv2d-bias", strategy)
    seen = []
    fold.weight_quantizer.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    run(fold.eval(), (x,))
    (weight,) = seen
    conv, bn = plain
    by_hand = conv.weight * (bn.weight / torch.sqrt(bn.running_var + bn.eps)).reshape(-1, 1, 1, 1)
    assert_close(weight, by_hand.detach(), FLOAT32)
    assert_close(fold.weight.detach(), by_hand.detach(), FLOAT32)


# --- training ----------------------------------------------------------------------------------------------


@on_batches
@every_pair
def test_in_training_it_normalizes_with_the_statistics_of_the_batch(pair, strategy):
    plain, fold, x = reference_and_folded(pair, strategy)
    assert_close(run(fold.train(), (x,)), run(plain.train(), (x,)), FLOAT32)


@every_pair
def test_strategy_1_normalizes_with_the_running_statistics_in_training_too(pair):
    plain, fold, x = reference_and_folded(pair, 1)
    before = statistics(fold.bn)
    for _ in range(3):
        assert_close(run(fold.train(), (x,)), run(plain.eval(), (x,)), FLOAT32)
    assert torch.equal(statistics(fold.bn), before)
    assert int(fold.bn.num_batches_tracked) == 0


@on_batches
@every_pair
def test_running_statistics_move_as_those_of_batch_norm(pair, strategy):
    plain, fold, x = reference_and_folded(pair, strategy)
    fold.train(), plain.train()
    before = statistics(fold.bn)
    for step in range(4):
        batch = torch.randn_like(x) * (step + 1)
        run(fold, (batch,)), run(plain, (batch,))
    assert not torch.equal(statistics(fold.bn), before)
    # Variances here reach about 16 and are sums of some 100 squares.
    torch.testing.assert_close(statistics(fold.bn), statistics(plain[1]), rtol=1e-5, atol=1e-5)
    assert int(fold.bn.num_batches_tracked) == int(plain[1].num_batches_tracked) == 4


@folded
def test_frozen_statistics_are_used_and_kept_in_training(strategy):
    plain, fold, x = reference_and_folded("conv2d-bias", strategy)
    fold.frozen = True
    before = statistics(fold.bn)
    assert_close(run(fold.train(), (x,)), run(plain.eval(), (x,)), FLOAT32)
    assert torch.equal(statistics(fold.bn), before)
    assert "frozen" in repr(fold)


@folded
@pytest.mark.parametrize("pair", ["conv2d-bias", "transposed2d-grouped", "linear"])
def test_gradients_reach_weight_gamma_and_beta(pair, strategy):
    _, fold, x = reference_and_folded(pair, strategy)
    x.requires_grad_()
    (fold.train()(x) * torch.randn_like(fold(x))).sum().backward()
    for tensor in (x, fold.op.weight, fold.bn.weight, fold.bn.bias):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().max() > 1e-3


@on_batches
@pytest.mark.parametrize("pair", ["conv2d", "conv2d-bias", "transposed2d-grouped", "linear", "conv2d-not-affine"])
def test_gradients_are_those_of_the_unfused_pair(pair, strategy):
    """Without quantization the three are rewritings of conv and batch norm, also for the gradient."""
    plain, fold, x = reference_and_folded(pair, strategy)
    direction = torch.randn_like(run(plain.eval(), (x,)))
    for net in (plain, fold):
        (net.train()(x) * direction).sum().backward()
    conv, bn = plain
    # Strategies 2 and 3 take the statistics from one more convolution: sums of 100 float32 terms, twice.
    torch.testing.assert_close(fold.op.weight.grad, conv.weight.grad, rtol=1e-4, atol=1e-4)
    if bn.affine:
        torch.testing.assert_close(fold.bn.weight.grad, bn.weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fold.bn.bias.grad, bn.bias.grad, rtol=1e-4, atol=1e-4)


class Halve(nn.Module):
    """In place of a quantizer: something whose effect on the weight is easy to follow."""

    def forward(self, weight):
        return weight / 2


def test_strategy_4_keeps_no_tensor_that_batch_norm_does_not():
    conv, bn = nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)
    x, kept = torch.randn(2, 4, 7, 7), set()

    def pack(tensor):
        if tensor.shape == (2, 6, 5, 5):
            kept.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = FoldedBatchNorm(conv, bn, 4, "conv").train()(x)
    assert y.shape == (2, 6, 5, 5)
    assert len(kept) == 1


@every_pair
def test_a_weight_that_folds_to_another(pair):
    op, bn, _, kind = PAIRS[pair]()
    module = FoldedBatchNorm(op, bn, 4, kind)
    with torch.no_grad():
        bn.running_var.uniform_(0.5, 2)
    wanted = torch.randn_like(module.weight)
    module.fold_to(wanted)
    torch.testing.assert_close(module.weight, wanted, rtol=1e-6, atol=0)  # a division and a product, each rounded


def test_a_channel_without_gamma_keeps_its_weight():
    conv, bn = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    with torch.no_grad():
        bn.weight[2] = 0
    before = conv.weight.detach().clone()
    FoldedBatchNorm(conv, bn, 4, "conv").fold_to(torch.zeros_like(before))
    assert torch.equal(conv.weight[2], before[2])
    assert not conv.weight[[0, 1, 3, 4, 5]].any()


def test_what_each_strategy_makes_of_a_changed_weight():
    """Half the folded weight: 1 halves the output about the bias, 2 and 3 too, 4 normalizes it away."""
    results = {}
    for strategy in FOLDED:
        torch.manual_seed(3)
        plain, fold, x = reference_and_folded("conv2d", strategy)
        fold.weight_quantizer = Halve()
        results[strategy] = run(fold.train(), (x,))
    conv, bn = plain
    y = run(conv, (x,))
    mean, deviation = y.mean((0, 2, 3), keepdim=True), (y.var((0, 2, 3), keepdim=True, correction=0) + bn.eps).sqrt()
    gamma, beta = (value.detach().reshape(1, -1, 1, 1) for value in (bn.weight, bn.bias))
    batch = gamma * (y / 2 - mean) / deviation + beta
    running_mean, running_var = (value.reshape(1, -1, 1, 1) for value in (bn.running_mean, bn.running_var))
    torch.testing.assert_close(
        results[1], gamma * (y / 2 - running_mean) / (running_var + bn.eps).sqrt() + beta, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(results[2], batch, rtol=1e-4, atol=1e-5)
    # 3 rescales by running over batch deviation, where the running one is that of before this batch or after it:
    # the two factors cancel, so that the outcome is that of 2.
    torch.testing.assert_close(results[3], batch, rtol=1e-4, atol=1e-5)
    # 4 normalizes what it gets; eps weighs four times as much against a quarter of the variance, 1e-5 of it.
    torch.testing.assert_close(results[4], run(plain.train(), (x,)), rtol=1e-3, atol=1e-3)


@folded
def test_a_channel_that_gamma_switched_off_stays_finite(strategy):
    plain, fold, x = reference_and_folded("conv2d-bias", strategy)
    with torch.no_grad():
        for bn in (plain[1], fold.bn):
            bn.weight[0] = 0.0
    assert_close(run(fold.eval(), (x,)), run(plain.eval(), (x,)), FLOAT32)
    expected = run((plain.eval() if strategy == 1 else plain.train()), (x,))
    # Strategy 4 divides a weight of 1e-8 by 1e-8 again.
    assert_close(run(fold.train(), (x,)), expected, 1e-4)


@pytest.mark.parametrize("strategy", [-1, 0, 5])
def test_a_number_that_folds_nothing_is_refused(strategy):
    with pytest.raises(SchemeError, match=str(strategy)):
        FoldedBatchNorm(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), strategy, "conv")


# --- on graphs ---------------------------------------------------------------------------------------------


def calls(captured):
    (region,) = captured.regions.values()
    (graph,) = region.graphs.values()
    return [str(node.target) for node in graph.nodes if node.op.startswith("call")]


def parts():
    conv, bn = lively_pair("conv2d-bias")[:2]
    return {"conv": conv, "bn": bn}


@pytest.mark.parametrize("strategy", [0, *FOLDED])
def test_the_batch_norm_leaves_the_graph(strategy):
    net, x = Net(lambda n, x: n.bn(n.conv(x)).relu(), **parts()), torch.randn(2, 4, 7, 7)
    captured, _, _ = captured_of(net, x)
    merges = fold_batch_norms(captured, strategy)
    assert calls(captured) == ["conv", "relu"]
    assert merges == ({"bn": "conv"} if strategy == 0 else {})
    assert isinstance(captured.module.conv, nn.Conv2d if strategy == 0 else FoldedBatchNorm)
    assert_close(run(captured.module, (x,)), run(net, (x,)), FLOAT32)


def test_strategy_minus_1_leaves_it_alone():
    net, x = Net(lambda n, x: n.bn(n.conv(x)), **parts()), torch.randn(2, 4, 7, 7)
    captured, _, _ = captured_of(net, x)
    assert fold_batch_norms(captured, -1) == {}
    assert calls(captured) == ["conv", "bn"]
    assert_close(run(captured.module, (x,)), run(net, (x,)), 0)


def second_user(net, x):
    y = net.conv(x)
    return net.bn(y) + y


def also_an_output(net, x):
    y = net.conv(x)
    return net.bn(y), y


UNFOLDABLE = {
    "conv-with-a-second-user": second_user,
    "conv-that-is-an-output": also_an_output,
    "conv-called-twice": lambda n, x: n.bn(n.conv(x)) + n.conv(x),
    "norm-called-twice": lambda n, x: n.bn(n.conv(x)) + n.bn(n.other(x)),
    "pair-called-twice": lambda n, x: n.bn(n.conv(n.widen(n.bn(n.conv(x))))),
    "norm-before-conv": lambda n, x: n.conv(n.own(x)),
    "something-between": lambda n, x: n.bn(n.conv(x).relu()),
    "norm-without-running-statistics": lambda n, x: n.plain(n.conv(x)),
    "norm-of-an-input": lambda n, x: n.own(x),
}


@pytest.mark.parametrize("strategy", [0, *FOLDED])
@pytest.mark.parametrize("case", UNFOLDABLE)
def test_what_does_not_alone_follow_is_not_folded(case, strategy):
    extra = {
        "other": nn.Conv2d(4, 6, 3),
        "widen": nn.ConvTranspose2d(6, 4, 3),
        "own": nn.BatchNorm2d(4),
        "plain": nn.BatchNorm2d(6, track_running_stats=False),
    }
    net, x = Net(UNFOLDABLE[case], **parts(), **extra), torch.randn(2, 4, 9, 9)
    captured, _, _ = captured_of(net, x)
    before = calls(captured)
    assert fold_batch_norms(captured, strategy) == {}
    assert calls(captured) == before
    assert not any(isinstance(module, FoldedBatchNorm) for module in captured.module.modules())
    assert_close(run(captured.module, (x,)), run(net, (x,)), 0)


@pytest.mark.parametrize("strategy", [0, *FOLDED])
def test_a_linear_layer_over_another_axis_than_the_norms_is_not_folded(strategy):
    """On (batch, 6, 8) the linear layer gives its 6 features last; the norm works on axis 1."""
    net = nn.Sequential(nn.Linear(8, 6), lively_pair("linear").bn)
    x = torch.randn(4, 6, 8)
    captured, _, _ = captured_of(net, x)
    fold_batch_norms(captured, strategy)
    assert_close(run(captured.module, (x,)), run(net, (x,)), FLOAT32)


@pytest.mark.parametrize("strategy", [0, *FOLDED])
@pytest.mark.parametrize(
    "forward",
    [
        pytest.param(lambda n, x: n.bn(n.conv(input=x)), id="conv-by-keyword"),
        pytest.param(lambda n, x: n.bn(input=n.conv(x)), id="norm-by-keyword"),
        pytest.param(lambda n, x: n.norm(n.up(x, output_size=[10, 10])), id="with-output-size"),
        pytest.param(lambda n, x: n.norm(n.up(x, [10, 10])), id="with-output-size-by-position"),
    ],
)
def test_the_other_arguments_of_the_operation_are_kept(forward, strategy):
    up, norm = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1), lively_pair("conv2d").bn
    net, x = Net(forward, **parts(), up=up, norm=norm), torch.randn(2, 4, 5, 5)
    captured, _, _ = captured_of(net, x)
    fold_batch_norms(captured, strategy)
    assert_close(run(captured.module, (x,)), run(net, (x,)), FLOAT32)


@pytest.mark.parametrize("strategy", [-2, 5, 7])
def test_an_unknown_strategy_is_refused_before_anything_changes(strategy):
    net, x = Net(lambda n, x: n.bn(n.conv(x)), **parts()), torch.randn(2, 4, 7, 7)
    captured, _, _ = captured_of(net, x)
    with pytest.raises(SchemeError) as refusal:
        fold_batch_norms(captured, strategy)
    assert str(strategy) in refusal.value.asked
    assert str(STRATEGIES) in refusal.value.found
    assert calls(captured) == ["conv", "bn"]


@pytest.mark.slow
@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("strategy", [-1, 0, *FOLDED])
@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "conv1d_3d", "conv_transpose_bn", "linear_bn", "control_flow"]
)
def test_whole_networks_compute_the_same_in_eval(name, strategy):
    model, inputs = made(name)
    captured = capture(model, inputs)
    fold_batch_norms(captured, strategy)
    norms = [m for m in captured.module.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))]
    folds = [m for m in captured.module.modules() if isinstance(m, FoldedBatchNorm)]
    assert bool(folds) == (strategy > 0)
    assert bool(norms) == (strategy != 0)
    # Up to twenty layers, each with its own rounding in another order.
    assert_close(run(captured.module, inputs), run(model, inputs), 1e-4)


@pytest.mark.parametrize("strategy", BATCH)
def test_whole_networks_train_with_the_same_statistics(strategy):
    model, inputs = made("residual_cnn")
    captured = capture(model, inputs)
    fold_batch_norms(captured, strategy)
    model.train(), captured.module.train()
    for _ in range(2):
        # The batch statistics of the third norm depend on those of the first two.
        torch.testing.assert_close(captured.module(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)
    for name in ("1", "2", "3"):
        ours = captured.module.get_submodule(f"conv{name}").bn
        torch.testing.assert_close(statistics(ours), statistics(model.get_submodule(f"bn{name}")), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", [0, 4])
def test_a_pair_that_two_forward_modes_share_is_folded_once(strategy):
    model, (x,) = made("several_modes")
    modes = {"tensor": {"mode": "tensor"}, "predict": {"mode": "predict"}}
    captured = capture(model, (x,), modes=modes)
    fold_batch_norms(captured, strategy)
    for mode in modes:
        assert_close(
            run(lambda x, m=mode: captured.module(x, mode=m), (x,)), run(lambda x, m=mode: model(x, m), (x,)), 1e-5
        )
