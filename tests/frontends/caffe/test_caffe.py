"""Caffe networks: small ones, written with the schema, against what the layers mean written in torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent
from detent import load
from detent.errors import OnnxError
from detent.frontends.caffe.schema import message

INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 dim: 7 dim: 7 } } }'
Blobs = dict[str, list[Tensor]]


def save(folder: Path, text: str, blobs: Blobs | None = None, *, v1: bool = False) -> tuple[Path, Path]:
    net = message("NetParameter")
    for name, tensors in (blobs or {}).items():
        layer = (net.layers if v1 else net.layer).add(name=name)
        for tensor in tensors:
            blob = layer.blobs.add()
            blob.data.extend(tensor.reshape(-1).tolist())
            if v1:
                sizes = [1] * (4 - tensor.ndim) + list(tensor.shape)
                blob.num, blob.channels, blob.height, blob.width = sizes
            else:
                blob.shape.dim.extend(tensor.shape)
    (folder / "net.prototxt").write_text(text)
    (folder / "net.caffemodel").write_bytes(net.SerializeToString())
    return folder / "net.prototxt", folder / "net.caffemodel"


def layer(kind: str, parameters: str = "", *, bottom: str = "data", top: str = "y") -> str:
    bottoms = " ".join(f'bottom: "{name}"' for name in bottom.split())
    tops = " ".join(f'top: "{name}"' for name in top.split())
    return f'layer {{ name: "l" type: "{kind}" {bottoms} {tops} {parameters} }}'


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


W, B = numbers(6, 2, 3, 3), numbers(6)
FLAT = numbers(5, 4 * 7 * 7)
PERMUTED = numbers(2, 5)

CASES: dict[str, tuple[str, list[Tensor], Callable[[Tensor], Any]]] = {
    "Convolution": (
        layer("Convolution", "convolution_param { num_output: 6 kernel_size: 3 pad: 1 stride: 2 group: 2 }"),
        [W, B],
        lambda x: F.conv2d(x, W, B, stride=2, padding=1, groups=2),
    ),
    "Convolution-sides": (
        layer(
            "Convolution",
            "convolution_param { num_output: 2 bias_term: false kernel_h: 1 kernel_w: 3 pad_w: 2 dilation: 2 }",
        ),
        [numbers(2, 4, 1, 3)],
        lambda x: F.conv2d(x, numbers(2, 4, 1, 3), padding=(0, 2), dilation=2),
    ),
    "Deconvolution": (
        layer("Deconvolution", "convolution_param { num_output: 3 kernel_size: 4 pad: 1 stride: 2 }"),
        [numbers(4, 3, 4, 4), numbers(3)],
        lambda x: F.conv_transpose2d(x, numbers(4, 3, 4, 4), numbers(3), stride=2, padding=1),
    ),
    "InnerProduct": (
        layer("InnerProduct", "inner_product_param { num_output: 5 }"),
        [FLAT, numbers(5)],
        lambda x: F.linear(x.flatten(1), FLAT, numbers(5)),
    ),
    "InnerProduct-transposed": (
        layer("InnerProduct", "inner_product_param { num_output: 5 transpose: true bias_term: false }"),
        [FLAT.t().contiguous()],
        lambda x: F.linear(x.flatten(1), FLAT),
    ),
    "BatchNorm": (
        layer("BatchNorm", "batch_norm_param { eps: 0.01 }"),
        [numbers(4), numbers(4).abs() + 3, torch.tensor([2.0])],
        lambda x: F.batch_norm(x, numbers(4) / 2, (numbers(4).abs() + 3) / 2, eps=0.01),
    ),
    "Scale": (
        layer("Scale", "scale_param { bias_term: true }"),
        [numbers(4), numbers(4) + 1],
        lambda x: x * numbers(4).reshape(4, 1, 1) + (numbers(4) + 1).reshape(4, 1, 1),
    ),
    "ReLU": (layer("ReLU"), [], F.relu),
    "ReLU-leaky": (layer("ReLU", "relu_param { negative_slope: 0.1 }"), [], lambda x: F.leaky_relu(x, 0.1)),
    "PReLU": (layer("PReLU"), [numbers(4)], lambda x: F.prelu(x, numbers(4))),
    "ELU": (layer("ELU", "elu_param { alpha: 0.5 }"), [], lambda x: F.elu(x, 0.5)),
    "Sigmoid": (layer("Sigmoid"), [], torch.sigmoid),
    "TanH": (layer("TanH"), [], torch.tanh),
    "AbsVal": (layer("AbsVal"), [], torch.abs),
    "Power": (layer("Power", "power_param { power: 2 scale: 3 shift: 1 }"), [], lambda x: (3 * x + 1) ** 2),
    "Pooling-max": (
        layer("Pooling", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }"),
        [],
        lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    ),
    "Pooling-average": (
        layer("Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 2 pad: 1 }"),
        [],
        lambda x: F.avg_pool2d(x, 2, 2, padding=1, ceil_mode=True),
    ),
    "Pooling-global": (
        layer("Pooling", "pooling_param { pool: AVE global_pooling: true }"),
        [],
        lambda x: x.mean((2, 3), keepdim=True),
    ),
    "LRN": (
        layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 k: 2 }"),
        [],
        lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 2.0),
    ),
    "Dropout": (layer("Dropout", "dropout_param { dropout_ratio: 0.7 }"), [], lambda x: x),
    "Softmax": (layer("Softmax"), [], lambda x: torch.softmax(x, 1)),
    "Reshape": (
        layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 7 } }"),
        [],
        lambda x: x.reshape(-1, 28, 7),
    ),
    "Reshape-batch": (
        layer("Reshape", "reshape_param { shape { dim: 0 dim: 28 dim: 7 } }"),
        [],
        lambda x: x.flatten(1, 2),
    ),
    "Flatten": (layer("Flatten"), [], lambda x: x.flatten(1)),
    "Flatten-some": (layer("Flatten", "flatten_param { axis: 1 end_axis: 2 }"), [], lambda x: x.flatten(1, 2)),
    "Permute": (
        layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"),
        [],
        lambda x: x.permute(0, 2, 3, 1),
    ),
    "Slice": (
        layer("Slice", "slice_param { axis: 1 slice_point: 1 slice_point: 3 }", top="a b c"),
        [],
        lambda x: (x[:, :1], x[:, 1:3], x[:, 3:]),
    ),
    "Slice-even": (layer("Slice", top="a b"), [], lambda x: (x[:, :2], x[:, 2:])),
    "Concat": (layer("Concat", bottom="data data"), [], lambda x: torch.cat([x, x], 1)),
    "Eltwise": (layer("Eltwise", bottom="data data data"), [], lambda x: 3 * x),
    "Eltwise-product": (layer("Eltwise", "eltwise_param { operation: PROD }", bottom="data data"), [], lambda x: x * x),
    "Eltwise-weighted": (
        layer("Eltwise", "eltwise_param { operation: SUM coeff: 1 coeff: -0.5 }", bottom="data data"),
        [],
        lambda x: 0.5 * x,
    ),
    "Upsample": (
        layer("Upsample", "upsample_param { scale: 3 }"),
        [],
        lambda x: x.repeat_interleave(3, 2).repeat_interleave(3, 3),
    ),
    "Interp": (
        layer("Interp", "interp_param { height: 13 width: 5 }"),
        [],
        lambda x: F.interpolate(x, (13, 5), mode="bilinear", align_corners=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_layers(name: str, tmp_path: Path) -> None:
    text, blobs, expected = CASES[name]
    graph = load(*save(tmp_path, f"{INPUT}\n{text}", {"l": blobs}))
    x = numbers(2, 4, 7, 7)
    torch.testing.assert_close(graph(x), expected(x))


def test_caffe_rounds_pooled_sizes_up_and_divides_by_the_part_inside(tmp_path: Path) -> None:
    text = layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }")
    graph = load(*save(tmp_path, f"{INPUT}\n{text}"))
    y = graph(torch.ones(1, 4, 8, 8))
    assert y.shape == (1, 4, 4, 4)
    assert torch.equal(y, torch.ones_like(y))


NET = """
name: "tiny"
input: "image" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layer { name: "conv" type: "Convolution" bottom: "image" top: "conv"
        param { lr_mult: 1 } convolution_param { num_output: 4 kernel_size: 3 bias_term: false
                                                 weight_filler { type: "msra" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" batch_norm_param { use_global_stats: true } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "noise" type: "Dropout" bottom: "conv" top: "noisy" include { phase: TRAIN } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""


def tiny() -> Blobs:
    return {
        "conv": [numbers(4, 3, 3, 3)],
        "bn": [numbers(4), numbers(4).abs() + 1, torch.tensor([1.0])],
        "scale": [numbers(4) + 1, numbers(4)],
        "fc": [numbers(2, 4), numbers(2)],
    }


def test_a_network_in_place_is_trained_and_quantized(tmp_path: Path) -> None:
    graph = load(*save(tmp_path, NET, tiny()))
    names = [node.name for node in graph.graph.nodes if node.op.startswith("call")]
    assert names == ["conv", "bn", "relu", "pool", "fc_flat", "fc", "prob"]
    assert isinstance(graph.bn, nn.BatchNorm2d)
    assert torch.equal(graph.bn.bias.detach(), tiny()["scale"][1])
    x = numbers(2, 3, 8, 8)
    blobs = tiny()
    y = F.conv2d(x, blobs["conv"][0])
    y = F.batch_norm(y, blobs["bn"][0], blobs["bn"][1], *blobs["scale"])
    expected = torch.softmax(F.linear(F.relu(y).mean((2, 3)), *blobs["fc"]), 1)
    torch.testing.assert_close(graph(x), expected)
    prepared = detent.prepare(graph, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x,)])
    # Probabilities from 8-bit tensors: a percent or two.
    assert (prepared(x) - expected).abs().max() < 0.05


def test_the_old_format(tmp_path: Path) -> None:
    text = """
    input: "data" input_dim: 1 input_dim: 4 input_dim: 7 input_dim: 7
    layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" inner_product_param { num_output: 5 } }
    layers { name: "r" type: RELU bottom: "ip" top: "ip" }
    """
    graph = load(*save(tmp_path, text, {"ip": [FLAT, numbers(5)]}, v1=True))
    x = numbers(2, 4, 7, 7)
    torch.testing.assert_close(graph(x), F.relu(F.linear(x.flatten(1), FLAT, numbers(5))))


REFUSED: dict[str, tuple[str, Blobs, str]] = {
    "unknown-layer": (INPUT + layer("DetectionOutput"), {}, "DetectionOutput layer 'l'"),
    "unknown-field": (INPUT + layer("ReLU", "relu_param { softness: 3 }"), {}, "softness"),
    "no-weights": (INPUT + layer("PReLU"), {}, "has no slope"),
    "wrong-weights": (
        INPUT + layer("Convolution", "convolution_param { num_output: 6 kernel_size: 3 }"),
        {"l": [numbers(6, 4, 3, 3), numbers(5)]},
        "a bias of",
    ),
    "weights-of-another-order": (
        INPUT + layer("Convolution", "convolution_param { num_output: 6 kernel_size: 3 bias_term: false }"),
        {"l": [numbers(4, 6, 3, 3)]},
        "a weight of",
    ),
    "statistics-of-the-batch": (
        INPUT + layer("BatchNorm", "batch_norm_param { use_global_stats: false }"),
        {"l": [numbers(4), numbers(4), torch.ones(1)]},
        "each batch by itself",
    ),
    # Of 8 elements Caffe gives ceil(7 / 3) + 1 = 4 windows, the last one from element 9 on.
    "windows-beyond-the-end": (
        INPUT + layer("Pooling", "pooling_param { pool: MAX kernel_size: 1 stride: 3 }"),
        {},
        "last window may be empty",
    ),
    "no-such-bottom": (INPUT + layer("ReLU", bottom="nothing"), {}, "no layer before it gives 'nothing'"),
    "stochastic": (INPUT + layer("Pooling", "pooling_param { pool: STOCHASTIC kernel_size: 2 }"), {}, "stochastic"),
    "no-network": ("name: 'empty'", {}, "computes nothing"),
    "not-text": ("\x00\x01", {}, "prototxt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    text, blobs, words = REFUSED[name]
    with pytest.raises(OnnxError, match=words):
        load(*save(tmp_path, text, blobs))


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    text, weights = save(tmp_path, NET, tiny())
    content = weights.read_bytes()
    for length in range(0, len(content), 7):
        weights.write_bytes(content[:length])
        with pytest.raises(OnnxError):
            load(text, weights)
    with pytest.raises(OnnxError, match="no such file"):
        load(text, tmp_path / "absent.caffemodel")


def test_sizes_that_lie_are_refused(tmp_path: Path) -> None:
    net = message("NetParameter")
    blob = net.layer.add(name="l").blobs.add()
    blob.data.extend([1.0])
    blob.shape.dim.extend([2**40, 2**40])
    text, weights = save(tmp_path, INPUT + layer("PReLU"))
    weights.write_bytes(net.SerializeToString())
    with pytest.raises(OnnxError, match="1 values for"):
        load(text, weights)
