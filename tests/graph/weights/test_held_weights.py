"""Parameters that forward hands to functions: quantized like those of modules, and known by their float names."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.errors import RecipeError
from detent.graph import FloatTensor, QuantizedTensor, quantizers_of
from detent.numerics import PerChannel, PerTensor
from detent.planning import Backend, SupportedSchemes, quantize_io
from detent.recipes import Recipe
from tests.graph.nets import EIGHT, assert_close, run

SIXTEEN = Backend(
    name="sixteen",
    about="near float",
    weight=SupportedSchemes(bits=(16,), granularities=(PerChannel, PerTensor)),
    activation=SupportedSchemes(bits=(16,), symmetric=(False, True)),
    rules=quantize_io("conv", "conv_transpose", "linear", "matmul", "embedding", "add"),
)
DEFAULT = Recipe(name="default")


class Held(nn.Module):
    """Tensors of the given shapes as parameters (or buffers), and what forward does with them."""

    def __init__(self, forward, *, buffers=(), **shapes):
        super().__init__()
        for name, shape in shapes.items():
            value = torch.randn(shape)
            if name in buffers:
                self.register_buffer(name, value)
            else:
                setattr(self, name, nn.Parameter(value))
        self._run = forward

    def forward(self, x):
        return self._run(self, x)


IMAGE, ROWS = (2, 4, 8, 8), (3, 5, 6)

# forward, shapes, input, the module it becomes
CALLS = {
    "conv1d": (lambda n, x: F.conv1d(x, n.w, n.b), {"w": (6, 4, 3), "b": (6,)}, (2, 4, 9), nn.Conv1d),
    "conv2d": (lambda n, x: F.conv2d(x, n.w), {"w": (6, 4, 3, 3)}, IMAGE, nn.Conv2d),
    "conv2d-options": (
        lambda n, x: F.conv2d(x, n.w, n.b, stride=2, padding=[1], dilation=(1, 2), groups=2),
        {"w": (6, 2, 3, 3), "b": (6,)},
        IMAGE,
        nn.Conv2d,
    ),
    "conv2d-same": (lambda n, x: F.conv2d(x, n.w, padding="same"), {"w": (6, 4, 3, 3)}, IMAGE, nn.Conv2d),
    "conv2d-by-keyword": (
        lambda n, x: F.conv2d(input=x, weight=n.w, bias=n.b),
        {"w": (6, 4, 1, 1), "b": (6,)},
        IMAGE,
        nn.Conv2d,
    ),
    "conv3d": (lambda n, x: F.conv3d(x, n.w), {"w": (6, 4, 1, 3, 3)}, (2, 4, 3, 8, 8), nn.Conv3d),
    "conv_transpose2d": (
        lambda n, x: F.conv_transpose2d(x, n.w, n.b, 2, 1, 1, 2),
        {"w": (4, 3, 3, 3), "b": (6,)},
        IMAGE,
        nn.ConvTranspose2d,
    ),
    "linear": (lambda n, x: F.linear(x, n.w, n.b), {"w": (7, 6), "b": (7,)}, ROWS, nn.Linear),
    "linear-transposed": (lambda n, x: F.linear(x, n.w.T), {"w": (6, 7)}, ROWS, nn.Linear),
    "matmul": (lambda n, x: torch.matmul(x, n.w), {"w": (6, 7)}, ROWS, nn.Linear),
    "operator": (lambda n, x: x @ n.w, {"w": (6, 7)}, ROWS, nn.Linear),
    "method": (lambda n, x: x.matmul(n.w.t()), {"w": (7, 6)}, ROWS, nn.Linear),
    "mm": (lambda n, x: torch.mm(x, n.w.transpose(0, 1)), {"w": (7, 6)}, (5, 6), nn.Linear),
}


def made(name):
    forward, shapes, size, kind = CALLS[name]
    torch.manual_seed(0)
    return Held(forward, **shapes).eval(), torch.randn(size), kind


def prepared_of(model, x, backend=SIXTEEN, recipe=DEFAULT):
    prepared = detent.prepare(model, (x,), backend=backend, recipe=recipe)
    detent.calibrate(prepared, [x])
    return prepared.eval()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_becomes_a_module_that_is_quantized(name):
    model, x, kind = made(name)
    expected = run(model, (x,))
    prepared = prepared_of(model, x)
    assert isinstance(prepared.w, kind)
    entry = prepared.plan["w.weight"]
    assert isinstance(entry, QuantizedTensor)
    assert entry.role == "weight"
    # One scale for each output channel, whichever axis of the parameter that is.
    assert prepared.w.parametrizations.weight[0].scale_shape == (
        prepared.w.weight.shape[entry.scheme.granularity.axis],
    )
    # 16 bits on both sides of some ten products.
    assert (run(prepared, (x,)) - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("name", CALLS)
def test_names_and_values_of_the_float_model_go_in_and_come_out(name):
    model, x, _ = made(name)
    prepared = prepared_of(model, x)
    read = detent.float_state_dict(prepared)
    assert list(read) == list(model.state_dict())
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in read.items())
    torch.manual_seed(1)
    other = Held(CALLS[name][0], **CALLS[name][1])
    assert prepared.load_state_dict(other.state_dict()).missing_keys == []
    assert all(torch.equal(t, other.state_dict()[key]) for key, t in detent.float_state_dict(prepared).items())
    prepared.load_state_dict(copy.deepcopy(prepared.state_dict()))


@pytest.mark.parametrize("name", ["conv2d", "matmul"])
def test_the_model_that_was_given_stays_as_it_was(name):
    model, x, _ = made(name)
    before = {key: (id(p), p.clone()) for key, p in model.named_parameters()}
    prepared_of(model, x)
    assert {key: id(p) for key, p in model.named_parameters()} == {key: one for key, (one, _) in before.items()}
    assert all(torch.equal(p, before[key][1]) for key, p in model.named_parameters())


def test_in_place_the_parameters_stay_the_ones_an_optimizer_has():
    model, x, _ = made("linear")
    parameters = list(model.parameters())
    prepared = detent.prepare(model, (x,), backend=SIXTEEN, recipe=DEFAULT, inplace=True)
    assert {id(p) for p in parameters} <= {id(p) for p in prepared.parameters()}


def test_it_trains():
    model, x, _ = made("matmul")
    prepared = prepared_of(model, x, recipe="lsq", backend=EIGHT).train()
    before = detent.float_state_dict(prepared)["w"].clone()
    prepared(x).square().sum().backward()
    torch.optim.SGD(prepared.parameters(), lr=1e-3).step()
    assert not torch.equal(detent.float_state_dict(prepared)["w"], before)


@pytest.mark.parametrize("name", ["conv2d-options", "linear", "operator"])
def test_of_a_wrapped_model_too(name):
    model, x, kind = made(name)
    prepared = prepared_of(detent.wrap(model, x), x)
    assert isinstance(prepared.w, kind)
    assert isinstance(prepared.plan["w.weight"], QuantizedTensor)
    assert list(detent.float_state_dict(prepared)) == list(model.state_dict())


def test_an_embedding():
    model = Held(lambda n, x: F.embedding(x, n.table), table=(10, 4))
    x = torch.tensor([[1, 2], [9, 0]])
    prepared = prepared_of(model, x)
    assert isinstance(prepared.table, nn.Embedding)
    assert isinstance(prepared.plan["table.weight"], QuantizedTensor)
    assert (prepared(x) - model(x)).abs().max() < 1e-3


def test_a_buffer_is_a_weight_too_and_stays_a_buffer():
    """A fixed filter, as for blurring."""
    model = Held(lambda n, x: F.conv2d(x, n.blur, groups=4, padding=1), buffers=("blur",), blur=(4, 1, 3, 3))
    x = torch.randn(IMAGE)
    prepared = prepared_of(model, x)
    assert isinstance(prepared.plan["blur.weight"], QuantizedTensor)
    assert [name for name, _ in prepared.named_parameters()] == []
    assert list(detent.float_state_dict(prepared)) == ["blur"]


def test_parameters_of_submodules_stand_where_they_stood():
    model = nn.Sequential(Held(lambda n, x: F.conv2d(x, n.w), w=(4, 4, 1, 1)), nn.ReLU(), nn.Conv2d(4, 2, 1))
    x = torch.randn(IMAGE)
    prepared = prepared_of(model.eval(), x)
    assert isinstance(prepared.plan["0.w.weight"], QuantizedTensor)
    assert set(detent.float_state_dict(prepared)) == {"0.w", "2.weight", "2.bias"}


def test_a_recipe_knows_the_layer_by_the_name_of_the_parameter():
    model = nn.Sequential(Held(lambda n, x: F.conv2d(x, n.w), w=(4, 4, 1, 1)), nn.Conv2d(4, 2, 1))
    x = torch.randn(IMAGE)
    prepared = prepared_of(model, x, recipe=Recipe(name="mine", exclude=["0.w"]))
    assert prepared.plan["0.w.weight"].reason == "the recipe excludes it"
    with pytest.raises(RecipeError, match="matches nothing"):
        prepared_of(model, x, recipe=Recipe(name="mine", exclude=["0.v"]))


@pytest.mark.parametrize("strategy", [-1, 0, 1, 2, 3, 4])
def test_a_batch_norm_folds_into_it(strategy):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(6, 4, 3, 3)), nn.Parameter(torch.randn(6))
            self.bn = nn.BatchNorm2d(6)
            nn.init.uniform_(self.bn.weight, 0.5, 1.5)
            nn.init.normal_(self.bn.running_mean)
            nn.init.uniform_(self.bn.running_var, 0.5, 1.5)

        def forward(self, x):
            return F.relu(self.bn(F.conv2d(x, self.w, self.b)))

    torch.manual_seed(0)
    model, other, x = Normed().eval(), Normed().eval(), torch.randn(IMAGE)
    recipe = Recipe.from_dict({"name": "folded", "batch_norm": {"strategy": strategy}})
    prepared = prepared_of(model, x, recipe=recipe)
    expected = run(model, (x,))
    assert (run(prepared, (x,)) - expected).abs().max() <= 1e-3 * expected.abs().max()
    twin = Normed().eval()
    twin.load_state_dict(detent.float_state_dict(prepared))
    assert_close(run(twin, (x,)), expected, 1e-5)
    prepared.load_state_dict(other.state_dict())
    detent.calibrate(prepared, [x])
    expected = run(other, (x,))
    assert (run(prepared, (x,)) - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_a_batch_norm_behind_a_product_folds_along_its_columns():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.bn = nn.Parameter(torch.randn(6, 7)), nn.BatchNorm1d(7)
            nn.init.uniform_(self.bn.weight, 0.5, 1.5)
            nn.init.uniform_(self.bn.running_var, 0.5, 1.5)

        def forward(self, x):
            return self.bn(x @ self.w)

    torch.manual_seed(0)
    model, other, x = Normed().eval(), Normed().eval(), torch.randn(5, 6)
    prepared = prepared_of(model, x, recipe=Recipe.from_dict({"name": "merged", "batch_norm": {"strategy": 0}}))
    assert_close(run(prepared, (x,)), run(model, (x,)), 1e-3 * float(run(model, (x,)).abs().max()))
    twin = Normed().eval()
    twin.load_state_dict(detent.float_state_dict(prepared))
    assert_close(run(twin, (x,)), run(model, (x,)), 1e-5)
    prepared.load_state_dict(other.state_dict())
    detent.calibrate(prepared, [x])
    assert_close(run(prepared, (x,)), run(other, (x,)), 1e-3 * float(run(other, (x,)).abs().max()))


# --- shared parameters -------------------------------------------------------------------------------------


def test_the_same_call_twice_is_one_module_with_one_scale():
    model = Held(lambda n, x: F.conv2d(F.relu(F.conv2d(x, n.w, n.b)), n.w, n.b), w=(4, 4, 1, 1), b=(4,))
    x = torch.randn(IMAGE)
    prepared = prepared_of(model, x)
    assert sum(quantizer.role == "weight" for quantizer in quantizers_of(prepared)) == 1
    expected = run(model, (x,))
    assert (run(prepared, (x,)) - expected).abs().max() <= 1e-3 * expected.abs().max()


SHARED = {
    "another function": (lambda n, x: F.conv2d(x, n.w) + n.w.sum(), "sum_1 too"),
    "other options": (lambda n, x: F.conv2d(x, n.w) + F.conv2d(x, n.w, padding=1)[..., 1:-1, 1:-1], "conv2d_1 too"),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_parameter_that_is_used_in_two_ways_stays_float_and_the_plan_says_why(name):
    forward, why = SHARED[name]
    model = nn.Sequential(Held(forward, w=(4, 4, 3, 3) if "options" in name else (4, 4, 1, 1)), nn.Conv2d(4, 2, 1))
    x = torch.randn(IMAGE)
    prepared = prepared_of(model, x)
    assert isinstance(prepared.get_parameter("0.w"), nn.Parameter)
    reasons = [entry.reason for entry in prepared.plan if isinstance(entry, FloatTensor)]
    assert any("0.w is used by" in reason and why in reason for reason in reasons), reasons
    assert_close(run(prepared, (x,)), run(model, (x,)), 1e-2)


def test_a_weight_tied_to_a_module_stays_in_the_module():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.mix = nn.Linear(4, 4)

        def forward(self, x):
            return F.linear(self.mix(self.table(x)), self.table.weight)

    model, x = Tied(), torch.tensor([[1, 2], [9, 0]])
    prepared = prepared_of(model, x)
    assert isinstance(prepared.table, nn.Embedding)
    assert isinstance(prepared.plan["table.weight"], QuantizedTensor)
    reasons = [entry.reason for entry in prepared.plan if isinstance(entry, FloatTensor)]
    assert any("table.weight is used by table too" in reason for reason in reasons), reasons
    assert (prepared(x) - model(x)).abs().max() < 1e-2


def test_two_forward_modes_share_the_module():
    class Modal(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(7, 6))

        def forward(self, x, mode="logits"):
            y = F.linear(x, self.w)
            return y if mode == "logits" else F.relu(y)

    x = torch.randn(ROWS)
    modes = {"logits": {"mode": "logits"}, "positive": {"mode": "positive"}}
    prepared = detent.prepare(Modal(), (x,), backend=SIXTEEN, recipe=DEFAULT, modes=modes)
    detent.calibrate(prepared, [{"x": x, "mode": mode} for mode in modes])
    assert sum(quantizer.role == "weight" for quantizer in quantizers_of(prepared)) == 1
    assert torch.equal(prepared(x, mode="positive"), prepared(x, mode="logits").relu())


def test_a_computed_weight_stays_float():
    model = nn.Sequential(Held(lambda n, x: F.conv2d(x, n.w * x.mean()), w=(4, 4, 1, 1)), nn.Conv2d(4, 2, 1))
    prepared = prepared_of(model, torch.randn(IMAGE))
    reasons = [entry.reason for entry in prepared.plan if isinstance(entry, FloatTensor)]
    assert "the weight of conv2d is in no module" in reasons


def test_a_method_that_stays_one_node_keeps_its_parameter():
    prepared = detent.prepare(
        Skipping(), (torch.randn(IMAGE),), backend=SIXTEEN, recipe=DEFAULT, skip_methods=[f"{__name__}.Skipping.scaled"]
    )
    assert isinstance(prepared.w, nn.Parameter)
    detent.calibrate(prepared, [torch.randn(IMAGE)])


class Skipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, 1, 1))
        self.conv = nn.Conv2d(4, 4, 1)

    def scaled(self, x):
        return x * self.w.mean()

    def forward(self, x):
        return F.conv2d(self.scaled(self.conv(x)), self.w)


class Branching(nn.Module):
    """Python code that stays Python, and reads the parameter of the part it calls."""

    def __init__(self):
        super().__init__()
        self.part = Held(lambda n, x: F.conv2d(x, n.w), w=(4, 4, 1, 1))
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(self.part(x))
        return y * self.part.w.abs().max() if y.sum() > 0 else y


def test_inside_of_code_that_stays_python_parameters_stay():
    torch.manual_seed(0)
    model, x = Branching(), torch.randn(IMAGE)
    prepared = prepared_of(model, x)
    assert_close(run(prepared, (x,)), run(model, (x,)), 1e-2)


def test_a_bias_that_forward_computes_is_added_behind_the_layer():
    """As in Swin V2, which leaves the keys without one."""

    def forward(n, x):
        bias = n.b.clone()
        bias[2:4].zero_()
        return F.linear(F.linear(x, n.w, bias), n.v)

    model = Held(forward, w=(6, 6), b=(6,), v=(5, 6)).eval()
    x = torch.randn(ROWS)
    prepared = detent.prepare(model, (x,), backend=SIXTEEN, recipe=DEFAULT)
    detent.calibrate(prepared, [x])
    assert isinstance(prepared.get_submodule("w"), nn.Linear)
    assert [entry.tensor for entry in prepared.plan.quantized if entry.role == "weight"] == ["w.weight", "v.weight"]
    assert_close(run(prepared, (x,)), run(model, (x,)), 1e-3)
    prepared(x).square().sum().backward()
    assert prepared.get_parameter("b").grad[2:4].tolist() == [0, 0]
