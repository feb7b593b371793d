"""Weights that are quantized again in the backward pass: less is kept, and not a bit differs from the plain path."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrize

import detent
from detent.errors import NotQuantizedWarning
from detent.graph import quantizers_of, recomputing
from detent.graph.recomputing import recompute_weight
from detent.numerics import ApotGrid, HalfGrid, IntGrid, LogGrid, PerChannel, Rounding, Scheme
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from tests.models import MODELS

S8, S4 = Scheme(IntGrid(8)), Scheme(IntGrid(4))
PER_CHANNEL = Scheme(IntGrid(8), granularity=PerChannel(0))
POWER_OF_TWO = Scheme(IntGrid(8), granularity=PerChannel(0), scale="power_of_two")

LAYERS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (2, 4, 9, 8)),
    "conv2d-grouped-dilated": (lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), (2, 4, 9, 8)),
    "conv2d-depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 9, 8)),
    "conv2d-same": (lambda: nn.Conv2d(4, 6, (3, 5), padding="same"), (2, 4, 9, 8)),
    "conv2d-valid": (lambda: nn.Conv2d(4, 6, 2, padding="valid"), (2, 4, 9, 8)),
    "conv3d": (lambda: nn.Conv3d(4, 6, (1, 3, 3)), (2, 4, 3, 5, 5)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 7)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 6)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(4, 6, 2), (2, 4, 3, 3, 3)),
    "linear": (lambda: nn.Linear(7, 5), (6, 7)),
    "linear-without-bias": (lambda: nn.Linear(7, 5, bias=False), (6, 7)),
    "linear-on-sequences": (lambda: nn.Linear(7, 5), (2, 3, 7)),
}
ALGORITHMS = {
    "fixed": PER_CHANNEL,
    "lsq": PER_CHANNEL,
    "lsq_plus": PER_CHANNEL,
    "tqt": POWER_OF_TWO,
    "dorefa": Scheme(IntGrid(8, narrow=True)),
    "dsq": PER_CHANNEL,
    "qil": Scheme(IntGrid(4, narrow=True)),
    "apot": Scheme(ApotGrid(4)),
    "log": Scheme(LogGrid(8)),
    "seq": Scheme(HalfGrid(2)),
}


@pytest.fixture(autouse=True)
def no_weight_is_too_small(monkeypatch):
    monkeypatch.setattr(recomputing, "LEAST_ELEMENTS", 0)


def with_quantizer(module, algorithm="lsq", scheme=S8):
    quantizer = QUANTIZERS[algorithm](scheme, module.weight.shape, role="weight")
    name, options = quantizer.observer
    observer = OBSERVERS[name](scheme, **options)
    observer.observe(module.weight.detach())
    quantizer.initialize(observer.qparams())
    parametrize.register_parametrization(module, "weight", quantizer, unsafe=True)
    recompute_weight(module)
    return module


def plain(model):
    """The same without recomputing: a hook, even one that does nothing, may change what a quantizer gives."""
    model = copy.deepcopy(model)
    for quantizer in quantizers_of(model):
        quantizer.register_forward_hook(lambda *_: None)
    return model


def outputs_and_gradients(model, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    model.zero_grad()
    torch.manual_seed(3)  # dropout and its like
    y = model(*inputs)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    (y * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"output": y.detach(), **gradients, **{f"input {i}": x.grad for i, x in enumerate(inputs)}}


def assert_same(model, *inputs):
    other = plain(model)  # before running statistics move
    found, expected = outputs_and_gradients(model, *inputs), outputs_and_gradients(other, *inputs)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    return found


def kept(model, *inputs):
    """The storages autograd keeps that are not tensors of the model, with their sizes."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *inputs)}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = [x.detach().requires_grad_() for x in inputs]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = model(*inputs)
    del y
    return sum(found.values())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("scheme", [S8, S4], ids=str)
def test_every_layer_gives_what_the_plain_one_gives(name, scheme):
    make, shape = LAYERS[name]
    module = with_quantizer(make(), "lsq", scheme)
    x = torch.randn(shape)
    weight_bytes = module.weight.numel() * 4
    assert kept(plain(module), x) - kept(module, x) == weight_bytes
    found = assert_same(module, x)
    assert found["parametrizations.weight.0.scale"].abs().sum() > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layer", ["conv2d", "linear"])
def test_every_algorithm_gives_what_it_gives_on_the_plain_path(algorithm, layer):
    make, shape = LAYERS[layer]
    module = with_quantizer(make(), algorithm, ALGORITHMS[algorithm])
    x = torch.randn(shape)
    assert kept(plain(module), x) - kept(module, x) == module.weight.numel() * 4
    assert_same(module, x)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["nhwc", "nchw"])
def test_in_either_layout(layout):
    module = with_quantizer(nn.Conv2d(4, 6, 3)).to(memory_format=layout)
    assert_same(module, torch.randn(2, 4, 8, 8).to(memory_format=layout))


def test_in_float64():
    assert_same(with_quantizer(nn.Conv2d(4, 6, 3).double()), torch.randn(2, 4, 8, 8, dtype=torch.float64))


PLAIN = {
    "a range that moves": lambda: with_quantizer(nn.Conv2d(4, 6, 3), "moving_range"),
    "chance": lambda: with_quantizer(nn.Conv2d(4, 6, 3), "lsq", Scheme(IntGrid(8), rounding=Rounding.STOCHASTIC)),
    "soft rounding that eval mode hardens": lambda: with_quantizer(nn.Conv2d(4, 6, 3), "adaround"),
    "reflected padding": lambda: with_quantizer(nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")),
    "more padding on one side": lambda: with_quantizer(nn.Conv2d(4, 6, 2, padding="same")),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("why", PLAIN)
def test_the_plain_path_where_recomputing_would_not_be_the_same(why):
    module, x = PLAIN[why](), torch.randn(2, 4, 8, 8)
    assert kept(plain(module), x) == kept(module, x)
    assert_same(module, x)


class Standardized(nn.Conv2d):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias)


def test_a_convolution_with_a_forward_of_its_own_keeps_it():
    module = with_quantizer(Standardized(4, 6, 3))
    x = torch.randn(2, 4, 8, 8)
    weight = module.weight - module.weight.mean((1, 2, 3), keepdim=True)
    assert torch.equal(module(x), nn.functional.conv2d(x, weight, module.bias))


def test_a_weight_that_is_too_small_to_matter_is_kept(monkeypatch):
    module, x = with_quantizer(nn.Conv2d(4, 6, 3, groups=2)), torch.randn(2, 4, 8, 8)
    assert kept(module, x) < kept(plain(module), x)
    monkeypatch.setattr(recomputing, "LEAST_ELEMENTS", module.weight.numel())
    assert kept(module, x) < kept(plain(module), x)
    monkeypatch.setattr(recomputing, "LEAST_ELEMENTS", module.weight.numel() + 1)
    assert kept(module, x) == kept(plain(module), x)


def test_a_quantizer_that_was_removed_or_is_not_alone():
    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    x = torch.randn(2, 4, 8, 8)
    module = with_quantizer(nn.Conv2d(4, 6, 3))
    weight = module.weight.detach()
    parametrize.register_parametrization(module, "weight", Double())
    assert torch.equal(module(x), nn.functional.conv2d(x, 2 * weight, module.bias))
    parametrize.remove_parametrizations(module, "weight")
    assert torch.equal(module(x), nn.functional.conv2d(x, 2 * weight, module.bias))


def test_keywords_unbatched_inputs_and_output_sizes():
    x = torch.randn(2, 4, 8, 8)
    conv = with_quantizer(nn.Conv2d(4, 6, 3))
    assert torch.equal(conv(input=x), conv(x))
    torch.testing.assert_close(conv(x[0]), conv(x)[0])
    transposed = with_quantizer(nn.ConvTranspose2d(4, 6, 3, stride=2))
    assert transposed(x, output_size=(18, 18)).shape == (2, 6, 18, 18)


def test_a_frozen_weight_passes_the_gradient_on():
    module = with_quantizer(nn.Conv2d(4, 6, 3), "fixed")
    module.parametrizations.weight.original.requires_grad_(False)
    found = assert_same(module, torch.randn(2, 4, 8, 8))
    assert set(found) == {"output", "bias", "input 0"}


def test_second_derivatives():
    def penalty(module, x):
        module.zero_grad()
        (slope,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [p.grad.clone() for p in module.parameters() if p.grad is not None]

    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    for module in (with_quantizer(nn.Conv2d(4, 6, 3)), nn.Sequential(nn.Flatten(), with_quantizer(nn.Linear(256, 5)))):
        found, expected = penalty(module, x), penalty(plain(module), x)
        assert len(found) == len(expected) > 1
        for ours, theirs in zip(found, expected, strict=True):
            # Sums over two branches of the graph, in another order.
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_what_changed_in_the_meantime_is_noticed():
    for name in ("original", "0.scale"):
        module = with_quantizer(nn.Conv2d(4, 6, 3))
        y = module(torch.randn(2, 4, 8, 8, requires_grad=True)).sum()
        with torch.no_grad():
            module.get_parameter(f"parametrizations.weight.{name}").mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_tensors_given_for_one_call_are_those_of_its_backward_pass():
    module = with_quantizer(nn.Conv2d(4, 6, 3))
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.parametrizations.weight[0].scale.mul_(3)
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    given = dict(other.named_parameters())
    (found,) = torch.autograd.grad(torch.func.functional_call(module, given, (x,)).square().sum(), x)
    (expected,) = torch.autograd.grad(other(x).square().sum(), x)
    assert torch.equal(found, expected)


def prepared_of(name, recipe, backend="onnxruntime"):
    model, inputs = MODELS[name].build(), MODELS[name].inputs()
    result = detent.prepare(model, inputs, backend=backend, recipe=recipe)
    detent.calibrate(result, [inputs])
    return result.train(), inputs


def folded(strategy):
    asked = {"weight": {"quantizer": "lsq"}, "batch_norm": {"strategy": strategy}}
    return detent.Recipe.from_dict({"name": "folded", **asked})


@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn", "transformer_block"])
@pytest.mark.parametrize("recipe", ["lsq", "ptq"])
def test_whole_networks(name, recipe):
    model, inputs = prepared_of(name, recipe)
    assert kept(model, *inputs) < kept(plain(model), *inputs)
    assert_same(model, *inputs)


@pytest.mark.parametrize("strategy", [0, 1, 2, 3, 4])
def test_every_batch_norm_strategy(strategy):
    model, inputs = prepared_of("residual_cnn", folded(strategy))
    assert kept(model, *inputs) < kept(plain(model), *inputs)
    assert_same(model, *inputs)


def test_a_module_that_is_called_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return self.conv(torch.relu(self.conv(x)))

    model, x = Twice(), torch.randn(2, 4, 8, 8)
    prepared = detent.prepare(model, (x,), backend="onnxruntime", recipe="lsq")
    detent.calibrate(prepared, [x])
    assert_same(prepared.train(), x)


def test_a_copy_runs_its_own_weights():
    model, inputs = prepared_of("residual_cnn", "lsq")
    again, twin = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    before = outputs_and_gradients(again, *inputs)
    assert_same(twin, *inputs)
    after = outputs_and_gradients(model, *inputs)
    assert not torch.equal(outputs_and_gradients(twin, *inputs)["output"], before["output"])
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_under_autocast():
    model, inputs = prepared_of("residual_cnn", "lsq")
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(model, *inputs)


def test_on_a_device_without_autocast():
    model, inputs = prepared_of("residual_cnn", "lsq")
    assert model.to("meta")(*(x.to("meta") for x in inputs)).device.type == "meta"


def test_while_observing_nothing_is_quantized_again():
    model, inputs = prepared_of("residual_cnn", "lsq")
    with detent.observing(model):
        y = model(*inputs)
        with pytest.warns(NotQuantizedWarning, match="it is being calibrated"):
            y.sum().backward()
    gradient = next(p.grad for name, p in model.named_parameters() if name.endswith("original"))
    assert gradient.abs().sum() > 0
    scales = [p for name, p in model.named_parameters() if name.endswith("scale")]
    assert all(scale.grad is None for scale in scales)


def test_hooks_of_the_user_still_see_every_call():
    model, inputs = prepared_of("residual_cnn", "lsq")
    seen = []
    conv = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    conv.register_forward_hook(lambda *_: seen.append("forward"))
    conv.register_full_backward_hook(lambda *_: seen.append("backward"))
    assert_same(model, *inputs)
    assert seen[:2] == ["forward", "backward"]


def test_hooks_that_a_layer_had_before_do_not_keep_its_weight():
    conv, x = nn.Conv2d(4, 6, 3), torch.randn(2, 4, 8, 8)
    conv.register_forward_hook(lambda _, __, y: y + 1)
    module = with_quantizer(conv)
    assert kept(plain(module), x) - kept(module, x) == module.weight.numel() * 4
    assert_same(module, x)


def test_checkpointing_a_part():
    """The part runs twice, which moves the statistics of batch norms twice: here they are merged."""
    from torch.utils.checkpoint import checkpoint

    model, inputs = prepared_of("residual_cnn", folded(0))
    x = inputs[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    (found,) = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), x)
    assert torch.equal(found, expected)


def test_under_distributed_data_parallel(tmp_path):
    model, inputs = prepared_of("residual_cnn", "lsq")
    expected = outputs_and_gradients(plain(model), *inputs)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        found = outputs_and_gradients(parallel, *inputs)
    finally:
        dist.destroy_process_group()
    found = {name.removeprefix("module."): tensor for name, tensor in found.items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.filterwarnings("ignore")  # those of the compiler itself
def test_compiled_in_one_graph():
    module = with_quantizer(nn.Conv2d(4, 6, 3))
    x = torch.randn(2, 4, 8, 8)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))
    compiled(x).sum().backward()
    assert module.parametrizations.weight.original.grad.abs().sum() > 0
