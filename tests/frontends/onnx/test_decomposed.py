"""What exporters take apart is one operation again: when it is, when it is not, and what is deployed of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper, parser
from torch import nn

import detent
from detent import load
from detent.deployment import deployment_of
from detent.frontends.onnx import source_of

ROOT, TANH = math.sqrt(2), math.sqrt(2 / math.pi)


def model(body: str, *, size: int = 6, outputs: str = "y", opset: int = 17, **constants: Any) -> onnx.ModelProto:
    """A linear layer, and behind it `body`, which makes y of x."""
    ends = ", ".join(f"float[b, {size}] {name}" for name in outputs.split())
    made = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        net (float[b, {size}] input) => ({ends}) {{ x = MatMul (input, w) {body} }}"""
    )
    held = {"w": np.random.default_rng(0).normal(size=(size, size)).astype(np.float32), **constants}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in held.items())
    for node in made.graph.node:
        node.name = f"/{node.op_type}/{node.output[0]}"
    return made


def f32(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def functions(graph: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def check_numbers(made: onnx.ModelProto, graph: torch.fx.GraphModule) -> None:
    size = made.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.linspace(-9, 9, 40 * size, dtype=np.float32).reshape(40, size)
    wanted = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"input": x})[0]
    given = graph(torch.from_numpy(x))
    given = given[0] if isinstance(given, tuple) else given
    # float32 steps of a function against the function, and a sum in another order.
    np.testing.assert_allclose(given.detach().numpy(), wanted, rtol=1e-4, atol=2e-6)


ERF = {"r": f32(ROOT), "i": f32(1 / ROOT), "one": f32(1), "half": f32(0.5)}
CUBE = {"c": f32(TANH), "k": f32(0.044715), "three": f32(3), "one": f32(1), "half": f32(0.5)}
SIX = {"three": f32(3), "zero": f32(0), "six": f32(6), "sixth": f32(1 / 6)}

GELU = "d = Div (x, r) e = Erf (d) a = Add (e, one) "
SPELLINGS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "gelu-torch": (F.gelu, GELU + "m = Mul (x, a) y = Mul (m, half)", ERF),
    "gelu-half-first": (F.gelu, GELU + "h = Mul (x, half) y = Mul (h, a)", ERF),
    "gelu-of-products": (
        F.gelu, "d = Mul (i, x) e = Erf (d) a = Add (one, e) h = Mul (half, a) y = Mul (h, x)", ERF,
    ),
    "gelu-half-inside": (
        F.gelu, "d = Mul (x, i) e = Erf (d) h = Mul (e, half) a = Add (h, half) y = Mul (x, a)", ERF,
    ),
    "gelu-over-two": (F.gelu, GELU + "m = Mul (a, x) y = Div (m, two)", {**ERF, "two": f32([2.0])}),
    "tanh-pow": (
        F.gelu,
        "p = Pow (x, three) q = Mul (p, k) s = Add (x, q) v = Mul (s, c) t = Tanh (v) a = Add (t, one)"
        "h = Mul (x, half) y = Mul (h, a)",
        CUBE,
    ),
    "tanh-products": (
        F.gelu,
        "p = Mul (x, x) q = Mul (p, k) n = Add (q, one) u = Mul (x, c) v = Mul (u, n) t = Tanh (v) a = Add (one, t)"
        "h = Mul (a, half) y = Mul (x, h)",
        CUBE,
    ),
    "mish": (F.mish, "s = Softplus (x) t = Tanh (s) y = Mul (x, t)", {}),
    "mish-of-torch-export": (
        F.mish, "g = Greater (x, t0) p = Softplus (x) s = Where (g, x, p) t = Tanh (s) y = Mul (x, t)", {"t0": f32(20)},
    ),
    "softplus": (F.softplus, "g = Greater (x, t0) p = Softplus (x) y = Where (g, x, p)", {"t0": f32(20)}),
    "leaky-where": (
        F.leaky_relu, "g = Greater (x, z0) p = Mul (x, k) y = Where (g, x, p)", {"z0": f32(0), "k": f32(0.1)},
    ),
    "leaky-max": (F.leaky_relu, "p = Mul (k, x) y = Max (x, p)", {"k": f32(0.1)}),
    "hardswish-relu6": (F.hardswish, "a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six)", SIX),
    "hardswish-gate-first": (
        F.hardswish, "a = Add (x, three) c = Clip (a, zero, six) d = Mul (c, sixth) y = Mul (d, x)", SIX,
    ),
    "hardswish-hardsigmoid": (
        F.hardswish, "s = HardSigmoid <alpha: float = 0.16666667, beta: float = 0.5> (x) y = Mul (x, s)", {},
    ),
    "hardsigmoid": (F.hardsigmoid, "a = Add (x, three) c = Clip (a, zero, six) y = Div (c, six)", SIX),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_activation_function_is_one(spelling: str) -> None:
    function, body, constants = SPELLINGS[spelling]
    made = model(body, **constants)
    graph = load(made)
    assert functions(graph) == [function]
    check_numbers(made, graph)
    (node,) = (node for node in graph.graph.nodes if node.target is function)
    assert node.kwargs.get("approximate", "none") == ("tanh" if spelling.startswith("tanh") else "none")
    steps = {step.name for step in made.graph.node if step.op_type != "MatMul"}
    assert set(source_of(graph).nodes[node.name]) == steps
    assert source_of(graph).tensors[node.name] == "y"


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "root-of-four-digits": (GELU + "m = Mul (x, a) y = Mul (m, half)", {**ERF, "r": f32(1.4142)}),
    "other-constant": (SPELLINGS["tanh-pow"][1], {**CUBE, "k": f32(0.0447)}),
    "two-tensors": (GELU + "z = Relu (x) m = Mul (z, a) y = Mul (m, half)", ERF),
    "vector": (GELU + "m = Mul (x, a) y = Mul (m, half)", {**ERF, "half": np.full(6, 0.5, np.float32)}),
    "more-axes": (GELU + "m = Mul (x, a) y = Mul (m, half)", {**ERF, "half": np.full((1, 1, 1), 0.5, np.float32)}),
    "clipped-far-out": (
        "l = Clip (x, low, high) " + GELU.replace("(x", "(l") + "m = Mul (x, a) y = Mul (m, half)",
        {**ERF, "low": f32(-3.0), "high": f32(3.0)},
    ),
    "relu6-of-another-shift": (SPELLINGS["hardswish-relu6"][1], {**SIX, "three": f32(2.5)}),
    "steeper-below": ("p = Mul (k, x) y = Max (x, p)", {"k": f32(1.5)}),
    "where-shifted": ("g = Greater (x, z0) p = Mul (x, k) y = Where (g, x, p)", {"z0": f32(0.5), "k": f32(0.1)}),
    "quick-gelu": ("d = Mul (x, k) s = Sigmoid (d) y = Mul (x, s)", {"k": f32(1.702)}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_function_stays_as_it_is(other: str) -> None:
    body, constants = OTHERS[other]
    made = model(body, **constants)
    if other == "more-axes":
        made.graph.output[0].type.tensor_type.shape.CopyFrom(
            helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "b", 6]).tensor_type.shape
        )
    graph = load(made)
    assert not {F.gelu, F.mish, F.hardswish, F.hardsigmoid, F.leaky_relu} & set(functions(graph))
    check_numbers(made, graph)


@pytest.mark.parametrize("reader", ["an output", "another node"])
def test_a_step_that_others_read_stays(reader: str) -> None:
    more = "" if reader == "an output" else " z = Relu (e)"
    made = model(GELU + "m = Mul (x, a) y = Mul (m, half)" + more, outputs="y e" if not more else "y z", **ERF)
    graph = load(made)
    assert torch.erf in functions(graph)
    check_numbers(made, graph)


def test_steps_with_grids_of_their_own_stay() -> None:
    """The file's scales are for the steps."""
    body = (
        "d = Div (x, r) e = Erf (d) a = Add (e, one) q = QuantizeLinear (a, s, zp) p = DequantizeLinear (q, s, zp)"
        "m = Mul (x, p) y = Mul (m, half)"
    )
    graph = load(model(body, **ERF, s=f32(0.02), zp=np.array(0, np.int8)))
    assert torch.erf in functions(graph)
    assert "a" in source_of(graph).encodings


def test_steps_in_the_order_of_another_scale_are_not_lost() -> None:
    """y = gelu(2 x) is gelu behind the product, not of x."""
    made = model("t = Mul (x, two) " + GELU.replace("(x", "(t") + "m = Mul (t, a) y = Mul (m, half)", **ERF, two=f32(2))
    graph = load(made)
    assert functions(graph) == [torch.mul, F.gelu]
    check_numbers(made, graph)


RMS = {"two": f32(2), "eps": f32(1e-6), "one": f32(1), "g": np.linspace(0.5, 1.5, 6, dtype=np.float32)}
MEAN = "p = Pow (x, two) v = ReduceMean <axes = [-1], keepdims = 1> (p) s = Add (v, eps) r = Sqrt (s) "
NORMS = {
    "quotient": MEAN + "n = Div (x, r) y = Mul (n, g)",
    "reciprocal": MEAN + "i = Reciprocal (r) n = Mul (x, i) y = Mul (g, n)",
    "one-over": MEAN + "i = Div (one, r) n = Mul (i, x) y = Mul (n, g)",
    "product": MEAN.replace("Pow (x, two)", "Mul (x, x)") + "n = Div (x, r) y = Mul (n, g)",
}


@pytest.mark.parametrize("spelling", NORMS)
def test_a_norm_by_the_root_of_the_mean_square_is_a_module(spelling: str) -> None:
    made = model(NORMS[spelling], **RMS)
    graph = load(made)
    (norm,) = (module for module in graph.modules() if isinstance(module, nn.RMSNorm))
    assert norm.weight.tolist() == RMS["g"].tolist()
    assert norm.eps == pytest.approx(1e-6)
    assert not functions(graph)
    check_numbers(made, graph)


@pytest.mark.parametrize(
    "body",
    [
        MEAN.replace("[-1]", "[0]") + "n = Div (x, r) y = Mul (n, g)",
        MEAN + "z = Relu (x) n = Div (z, r) y = Mul (n, g)",
        MEAN.replace("two", "three") + "n = Div (x, r) y = Mul (n, g)",
    ],
    ids=["over-the-batch", "of-another-tensor", "cubes"],
)
def test_another_quotient_is_no_norm(body: str) -> None:
    made = model(body, **RMS, three=f32(4))
    graph = load(made)
    assert not any(isinstance(module, nn.RMSNorm) for module in graph.modules())
    check_numbers(made, graph)


# --- what is deployed ---------------------------------------------------------------------------------------------


def deployed(made: onnx.ModelProto, backend: str) -> onnx.ModelProto:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    prepared = detent.prepare(load(made), (x,), backend=backend)
    detent.calibrate(prepared, [(x,)])
    return deployment_of(prepared.eval()).model


def operations(found: onnx.ModelProto) -> list[tuple[str, str]]:
    """Without what belongs to grids."""
    grids = ("QuantizeLinear", "DequantizeLinear", "Clip")
    return [(node.op_type, node.name) for node in found.graph.node if node.op_type not in grids]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt", "vitis"])
def test_the_files_own_steps_are_deployed(backend: str) -> None:
    made = model(SPELLINGS["gelu-torch"][1] + " o = MatMul (y, w)", outputs="o", **ERF)
    found = deployed(made, backend)
    assert operations(found) == [(node.op_type, node.name) for node in made.graph.node]
    between = {name for node in found.graph.node if node.op_type == "QuantizeLinear" for name in node.input[:1]}
    assert not between & {"d", "e", "a", "m"}


@pytest.mark.parametrize("backend", ["litert", "ncnn"])
@pytest.mark.parametrize("spelling", ["gelu-torch", "tanh-pow", "hardswish-gate-first"])
def test_formats_without_the_steps_get_the_operator(backend: str, spelling: str) -> None:
    _, body, constants = SPELLINGS[spelling]
    found = deployed(model(body + " o = MatMul (y, w)", outputs="o", **constants), backend)
    kind = "HardSwish" if "hard" in spelling else "Gelu"
    assert operations(found) == [("MatMul", "/MatMul/x"), (kind, "/Mul/y"), ("MatMul", "/MatMul/o")]
