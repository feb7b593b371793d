"""The networks of the tests are what they say: published sizes and names, traceable, lively, repeatable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.fx import GraphModule, symbolic_trace
from torch.fx.proxy import TraceError

from tests import models
from tests.graph.nets import every_model, made, tensors
from tests.models import MODELS
from tests.networks import efficientnet, odd, parts, resnet

DATA = Path(os.environ.get("DETENT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))

CONCRETE_ARGS = {"several_modes": {"mode": "tensor", "labels": None}}
UNTRACEABLE = {"control_flow"}


@pytest.fixture(autouse=True)
def one_thread():
    """Nets this small run slower on two threads than on one, many times slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_same(left, right):
    assert type(left) is type(right)
    for a, b in zip(tensors(left), tensors(right), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@every_model
def test_eval_gives_finite_outputs_that_depend_on_the_input(name):
    net, inputs = made(name)
    with torch.no_grad():
        outputs = tensors(net(*inputs))
    for output in outputs:
        assert output.shape[0] == 2
        assert output.isfinite().all()
        # With torch's own initialization the logits of a MobileNet are its last bias, up to 1e-6 of their size.
        assert (output[0] - output[1]).std() > 0.01 * output.std()


@every_model
def test_train_mode_runs_and_its_gradients_are_finite(name):
    net, inputs = made(name)
    sum(output.square().mean() for output in tensors(net.train()(*inputs))).backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    assert [name for name, gradient in gradients.items() if not gradient.isfinite().all()] == []
    unused = {name for name, _ in net.named_parameters()} - set(gradients)
    assert all(name.startswith("gate.") for name in unused)  # the branch that control_flow did not take


@every_model
def test_the_seed_decides_weights_inputs_and_outputs(name):
    (net, inputs), (again, inputs_again), (other, _) = made(name), made(name), made(name, seed=1)
    assert_same(net.state_dict(), again.state_dict())
    assert_same(inputs, inputs_again)
    for mode in (True, False):
        outputs = []
        for twin in (net, again):
            torch.manual_seed(2)  # for the dropout
            outputs.append(twin.train(mode)(*inputs))
        assert_same(*outputs)
    assert any((a != b).any() for a, b in zip(net.parameters(), other.parameters(), strict=True))


@every_model
def test_no_batch_norm_is_the_identity(name):
    net, _ = made(name)
    for module in net.modules():
        if isinstance(module, parts.BATCH_NORMS):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                assert tensor.std() > 0


@pytest.mark.parametrize("name", [name for name in MODELS if name not in UNTRACEABLE])
def test_torch_fx_traces_it_and_gives_the_same_outputs(name):
    net, inputs = made(name)
    concrete = CONCRETE_ARGS.get(name)
    traced = symbolic_trace(net, concrete_args=concrete)
    assert isinstance(traced, GraphModule)
    with torch.no_grad():
        assert_same(traced(*inputs, *(concrete or {}).values()), net(*inputs))


@pytest.mark.parametrize("name", sorted(UNTRACEABLE | set(CONCRETE_ARGS)))
def test_torch_fx_refuses_to_branch_on_a_value(name):
    net, _ = made(name)
    with pytest.raises(TraceError, match="control flow"):
        symbolic_trace(net)


# --- the published architectures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "published"),
    [
        pytest.param(models.resnet18, 11_689_512, id="resnet18"),
        pytest.param(models.resnet50, 25_557_032, id="resnet50"),
        pytest.param(models.mobilenet_v2, 3_504_872, id="mobilenet_v2"),
        pytest.param(models.mobilenet_v3_small, 2_542_856, id="mobilenet_v3_small"),
        pytest.param(models.efficientnet_lite0, 4_652_008, id="efficientnet_lite0"),
        pytest.param(models.regnetx, 2_684_792, id="regnetx-200mf"),
        pytest.param(
            lambda: models.regnetx(depths=(1, 2, 7, 12), widths=(32, 64, 160, 400), group_width=16),
            5_495_976,
            id="regnetx-400mf",
        ),
        pytest.param(models.vit_small, 22_050_664, id="vit_small"),
        pytest.param(lambda: models.bert_encoder(depth=6), 22_713_216, id="minilm-l6"),
        pytest.param(models.resnet20, 269_722, id="resnet20"),
    ],
)
def test_parameter_count_is_the_published_one(build, published):
    with torch.device("meta"):
        assert sum(p.numel() for p in build().parameters()) == published


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "resnet18",
            {"conv1.weight", "bn1.running_var", "layer2.0.downsample.0.weight", "layer4.1.bn2.bias", "fc.bias"},
        ),
        ("resnet50", {"layer1.0.conv3.weight", "layer1.0.downsample.1.weight", "layer3.5.bn3.weight"}),
        (
            "mobilenet_v2",
            {"features.0.0.weight", "features.1.conv.1.weight", "features.18.1.bias", "classifier.1.bias"},
        ),
        ("mobilenet_v3_small", {"features.1.block.1.fc2.bias", "features.4.block.3.0.weight", "classifier.3.weight"}),
        ("efficientnet_lite0", {"_conv_stem.weight", "_blocks.15._project_conv.weight", "_bn1.bias", "_fc.weight"}),
        (
            "regnetx",
            {"stem.0.weight", "trunk_output.block4.block4-6.f.b.1.bias", "trunk_output.block1.block1-0.proj.0.weight"},
        ),
        ("vit_small", {"cls_token", "pos_embed", "patch_embed.proj.bias", "blocks.1.attn.qkv.weight", "norm.weight"}),
        (
            "bert_encoder",
            {"embeddings.LayerNorm.bias", "encoder.layer.1.attention.self.key.bias", "pooler.dense.weight"},
        ),
    ],
)
def test_names_are_those_of_the_published_checkpoint(name, expected):
    net, _ = made(name)
    assert expected - set(net.state_dict()) == set()


@pytest.mark.parametrize(("file", "depth"), [("resnet20", 3), ("resnet56", 9)], ids=["resnet20", "resnet56"])
def test_the_cifar_weights_load_strictly(file, depth):
    path = DATA / "resnet_cifar10" / f"{file}.safetensors"
    if not path.exists():
        pytest.skip(f"no {path.name} in {path.parent}: point DETENT_DATA at the folder of test data")
    net = models.resnet20(depth=depth)
    net.load_state_dict(load_file(path), strict=True)
    assert net.eval()(torch.zeros(1, 3, 32, 32)).isfinite().all()


def test_the_cifar_shortcut_takes_every_second_pixel_and_pads_channels_on_both_sides():
    block = resnet.CifarBlock(2, 4, 2).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # leaves the shortcut alone
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    out = block(x)
    assert out.tolist() == [[[[0, 0], [0, 0]], [[0, 2], [8, 10]], [[16, 18], [24, 26]], [[0, 0], [0, 0]]]]


def test_tf_padding_leaves_the_size_and_shifts_the_window():
    pad, conv = efficientnet.same_conv(1, 1, 3, stride=2, tf_padding=True)
    plain_pad, plain = efficientnet.same_conv(1, 1, 3, stride=2, tf_padding=False)
    for each in (conv, plain):
        torch.nn.init.ones_(each.weight)
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert conv(pad(x)).flatten().tolist() == [45, 39, 66, 50]  # 0..2 + 4..6 + 8..10 = 45: it starts at the corner
    assert plain(plain_pad(x)).flatten().tolist() == [10, 24, 51, 90]  # 0 + 1 + 4 + 5 = 10: it starts one outside


@pytest.mark.parametrize(
    ("channels", "rounded"), [(32, 32), (8.0, 8), (1, 8), (11, 16), (12, 16), (18, 24), (19, 24), (36, 40), (100, 104)]
)
def test_divisible_rounds_to_eights_and_loses_at_most_a_tenth(channels, rounded):
    assert parts.divisible(channels) == rounded


# --- the odd ones have the oddity they are for -------------------------------------------------------------


def test_control_flow_takes_either_branch():
    torch.manual_seed(0)
    gate = odd.SignGate()
    x = torch.rand(2, 8, 4, 4)
    assert torch.equal(gate(x), gate.positive(x))
    assert torch.equal(gate(-x), gate.negative(-x))


def test_reused_module_calls_its_conv_and_its_relu_twice():
    targets = [node.target for node in symbolic_trace(models.reused_module()).graph.nodes if node.op == "call_module"]
    assert targets == ["conv", "relu", "conv", "relu", "fc"]


def test_functional_ops_works_in_place_without_touching_its_input():
    net, (x,) = made("functional_ops")
    before = x.clone()
    net(x)
    assert torch.equal(x, before)


def test_bert_takes_a_float_mask_and_ignores_what_it_masks():
    net, (ids, mask) = made("bert_encoder")
    assert_same(net(ids, mask), net(ids, mask.float()))
    elsewhere = torch.where(mask, ids, 7)
    for a, b in zip(net(ids, mask), net(elsewhere, mask), strict=True):
        text = mask if a.dim() == 3 else slice(None)
        torch.testing.assert_close(a[text], b[text], rtol=0, atol=1e-6)  # exp(-10000) is 0; only sums are reordered


def test_several_modes_share_the_logits():
    net, (x,) = made("several_modes")
    logits, labels = net(x), torch.tensor([3, 1])
    assert torch.equal(net(x, mode="predict"), logits.softmax(dim=1))
    assert torch.equal(net(x, mode="loss", labels=labels)["loss"], F.cross_entropy(logits, labels))
    with pytest.raises(ValueError, match="loss with labels"):
        net(x, mode="loss")
    with pytest.raises(ValueError, match="'train'"):
        net(x, mode="train")
