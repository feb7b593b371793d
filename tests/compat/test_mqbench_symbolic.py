"""`symbolic` of a user's Function: what it may ask of the graph it is handed, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from detent.compat.mqbench import (
    BackendType,
    LinearQuantizer_process,
    ObserverBase,
    QuantizeBase,
    convert_deploy,
    enable_calibration,
    prepare_by_platform,
    register_backend,
)
from detent.compat.mqbench.own_nodes import own_nodes_of, without_own_nodes
from detent.compat.mqbench.symbolic import SymbolicGraph, Value, applied_in
from detent.errors import DeployError
from detent.ir import read_qdq
from tests.compat.registering import Registered


class Halved(torch.autograd.Function):
    """A Function with a number and a tensor beside what it is given."""

    @staticmethod
    def forward(ctx, x, scale, levels):  # noqa: ARG004
        return torch.round(x / scale).clamp(-levels, levels) * scale

    @staticmethod
    def symbolic(g, x, scale, levels):
        step = g.op("Constant", value_t=torch.tensor(2.0))
        return g.op("mine::Halved", x, scale, step, levels_i=levels, names_s=["a", "b"], ratio_f=1)


class Module(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self._forward = forward

    def forward(self, x):
        return self._forward(x)


SCALE = torch.tensor([0.5])
X = torch.tensor([[0.2, -0.9]])


def test_what_symbolic_asks_for_is_written():
    found = applied_in(Module(lambda x: Halved.apply(x, SCALE, 3)), X)
    assert found.function is Halved
    graph = SymbolicGraph("t")
    assert found.write(graph, Value("t")) == Value("t/Halved_1_output")
    constant, own = graph.ops
    assert (constant.type, constant.domain) == ("Constant", "")
    assert (own.type, own.domain, own.input_names) == ("Halved", "mine", ("t", "t/scale", "t/Constant_output"))
    assert own.attributes == {"levels": 3, "names": ["a", "b"], "ratio": 1.0}
    assert {name: array.tolist() for name, array in graph.constants.items()} == {"t/scale": [0.5]}


def test_several_outputs():
    first, second = SymbolicGraph("t").op("mine::Split", Value("t"), outputs=2)
    assert (first.name, second.name) == ("t/Split_output_0", "t/Split_output_1")


def test_a_module_without_such_a_function_has_none():
    class Silent(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x.clone()

    assert applied_in(Module(lambda x: x.round()), X) is None
    assert applied_in(Module(Silent.apply), X) is None


def test_functions_are_applied_as_before_afterwards():
    before = torch.autograd.Function.__dict__["apply"]
    with pytest.raises(ZeroDivisionError):
        applied_in(Module(lambda _: 1 / 0), X)
    assert torch.autograd.Function.__dict__["apply"] is before


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: Halved.apply(x.tanh(), SCALE, 3),
        lambda x: Halved.apply(x, SCALE, 3) + 1,
        lambda x: Halved.apply(x, SCALE, 3) + Halved.apply(-x, SCALE, 3),
    ],
    ids=["before", "after", "twice"],
)
def test_a_forward_that_does_more_is_refused(forward):
    with pytest.raises(DeployError, match="does more than to apply one Function"):
        applied_in(Module(forward), X)


@pytest.mark.parametrize(
    ("symbolic", "said"),
    [
        (lambda g, x, scale, levels: g.op("::A", x, 3), "inputs are values and tensors"),  # noqa: ARG005
        (lambda g, x, scale, levels: g.op("::A", x, levels=3), "does not end in _i"),  # noqa: ARG005
        (lambda g, x, scale: g.op("::A", x), "takes 3 positional arguments"),  # noqa: ARG005
        (lambda g, x, scale, levels: x.type(), "no attribute 'type'"),  # noqa: ARG005
        (lambda g, x, scale, levels: None, "it gives None"),  # noqa: ARG005
    ],
    ids=["input", "attribute", "arguments", "torch", "nothing"],
)
def test_what_symbolic_may_not_do(symbolic, said):
    class Wrong(Halved):
        pass

    Wrong.symbolic = staticmethod(symbolic)
    found = applied_in(Module(lambda x: Wrong.apply(x, SCALE, 3)), X)
    with pytest.raises(DeployError, match=said):
        found.write(SymbolicGraph("t"), Value("t"))


def model(*extra, **attributes) -> onnx.ModelProto:
    """One node of a user's on the way to a ReLU, and one behind it that is the network's output."""
    constants = {"scale": np.array([0.5, 0.25], np.float32), "zero": np.zeros(2, np.float32)}
    constants |= {f"end{place}": np.float32(value) for place, value in enumerate(extra)}
    nodes = [
        helper.make_node("Mine", ["x", *constants], ["q"], "q", **attributes),
        helper.make_node("Relu", ["q"], ["r"], "relu"),
        helper.make_node("Mine", ["r", *constants], ["y"], "y", **attributes),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy"]
    graph = helper.make_graph(
        nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    return helper.make_model(graph)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):  # noqa: ARG004
        return torch.round(x / scale).clamp(-128, 127) * scale

    @staticmethod
    def symbolic(g, x, scale):
        return g.op("mine::Rounded", x, scale)


class Rounding(QuantizeBase):
    def __init__(self, observer, **options):
        super().__init__(observer, **options)
        self.scale, self.zero_point = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return Rounded.apply(x, self.scale)


class Greatest(ObserverBase):
    def forward(self, x):
        self.min_val, self.max_val = x.min(), x.max()
        return x


def test_outputs_of_the_network_are_quantized_by_nodes_too(tmp_path):
    registered = Registered()
    scheme = {"bit": 8, "symmetry": True, "per_channel": False}
    parts = {"fakequantize": Rounding, "observer": Greatest, "qscheme": scheme}
    own = {f"{side}_{part}": value for side in "wa" for part, value in parts.items()}
    name = register_backend("rounded", extends=BackendType.QDQ, **own)
    prepared = prepare_by_platform(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.ReLU()), name).eval()
    enable_calibration(prepared)
    prepared(torch.randn(8, 4))
    convert_deploy(prepared, name, output_path=tmp_path, model_name="net")
    registered.withdraw()
    written = onnx.load(tmp_path / "net.onnx")
    own_nodes = {node.input[0] for node in written.graph.node if node.op_type == "Rounded"}
    assert own_nodes == {"0.weight", "2.weight", "input_1", "_1", "_3"}
    assert "QuantizeLinear" not in {node.op_type for node in written.graph.node}
    assert [value.name for value in written.graph.output] == ["output"]
    assert {one.domain: one.version for one in written.opset_import}["mine"] == 1
    onnx.checker.check_model(written)  # a domain of one's own is no mistake


@pytest.mark.parametrize("made", [model(-7, 7), model(quant_min=-7, quant_max=7)], ids=["inputs", "attributes"])
def test_the_range_may_be_in_inputs_or_attributes(made, tmp_path):
    onnx.save(made, tmp_path / "net.onnx")
    network, context = LinearQuantizer_process().remove_fakequantize_and_collect_params(
        tmp_path / "net.onnx", "net", "mine"
    )
    assert [node.op_type for node in network.graph.node] == ["Relu", "Identity"]
    onnx.checker.check_model(network)
    assert list(context["mine"]) == ["x", "r"]
    assert context["mine"]["x"] == {
        "scale": [0.5, 0.25], "zero_point": [0, 0], "quant_min": -7, "quant_max": 7, "round_mode": "half_even",
    }  # fmt: skip


def test_a_node_without_a_range_is_refused():
    (own, _) = own_nodes_of(read_qdq(model()))
    with pytest.raises(DeployError, match="quant_min_i"):
        LinearQuantizer_process().parse_qparams(own)


def test_operations_of_onnx_are_none_of_a_users():
    assert list(own_nodes_of(without_own_nodes(read_qdq(model(-7, 7))))) == []
