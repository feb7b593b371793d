"""A file of a few bytes that asks for terabytes is refused before anything of that size is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper

import detent
from detent.errors import OnnxError
from detent.frontends.onnx import refuse_large_tensors


def model(text: str) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def doubled(times: int) -> ModelProto:
    steps = "\n".join(f"t{n + 1} = Concat<axis=0>(t{n}, t{n})" for n in range(times))
    return model(f"net (float[4, 3] x) => (float[N] y) {{ t0 = Relu(x) {steps} y = ReduceSum<keepdims=0>(t{times}) }}")


LARGE = {
    "doubled again and again": doubled(40),
    "outer product": model(
        "net (float[60] a, float[60] b, float[60] c, float[60] d, float[60] e, float[60] f) => (float[A,B,C,D,E,F] y)"
        ' { y = Einsum<equation="a,b,c,d,e,f->abcdef">(a, b, c, d, e, f) }'
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_it_is_refused(name: str, refuses: Callable[..., AbstractContextManager[None]]) -> None:
    network = detent.load(LARGE[name])
    example = detent.frontends.onnx.example_inputs(network)
    with refuses(OnnxError, asked="run ", found="it makes a tensor of", to_do="max_tensor_bytes"):
        detent.prepare(network, example, backend="onnxruntime")


def test_a_limit_of_ones_own() -> None:
    network = detent.load(doubled(4))  # 64 rows of 3 float32
    example = (torch.zeros(4, 3),)
    refuse_large_tensors(network, example, most=64 * 3 * 4)
    with pytest.raises(OnnxError, match=r"\[64, 3\], 768 bytes"):
        refuse_large_tensors(network, example, most=64 * 3 * 4 - 1)
    refuse_large_tensors(network, (), {"x": torch.zeros(4, 3)}, most=64 * 3 * 4)


def test_sizes_are_followed_through_layers_with_weights() -> None:
    """A convolution of weights that are real, and a shape that is computed, are worked out too."""
    weight = onnx.numpy_helper.from_array(torch.zeros(8, 3, 3, 3).numpy(), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Flatten", ["c"], ["y"], name="flat"),
    ]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 16, 16])]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", ends, outs, [weight])
    network = detent.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    with pytest.raises(OnnxError, match="16,384 bytes"):
        refuse_large_tensors(network, (torch.zeros(2, 3, 16, 16),), most=16_000)
