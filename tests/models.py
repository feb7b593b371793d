"""Networks for the tests: the standard ones, three tiny ones for golden tables, odd ones for the capture.

A function per network builds it at full size unless told otherwise; `MODELS` holds each of them shrunk to run in
milliseconds. Weights and inputs come from torch's global generator: the caller seeds.

    torch.manual_seed(0)
    entry = MODELS["resnet18"]
    logits = entry.build().eval()(*entry.inputs())

Where an architecture has published weights, the names and shapes of the parameters are those of that checkpoint.
All of them trace with `torch.fx.symbolic_trace`, save `control_flow`, and `several_modes` only with concrete arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.networks.bert import bert_encoder
from tests.networks.detection import unet, yolo_head
from tests.networks.efficientnet import efficientnet_lite0
from tests.networks.golden import mobile_cnn, residual_cnn, transformer_block
from tests.networks.lstm import lstm_tagger
from tests.networks.mobilenet import mobilenet_v2, mobilenet_v3_small
from tests.networks.odd import (
    control_flow,
    conv1d_3d,
    conv_transpose_bn,
    dataclass_io,
    dict_io,
    functional_ops,
    linear_bn,
    reused_module,
    several_modes,
)
from tests.networks.regnet import regnetx
from tests.networks.resnet import resnet18, resnet20, resnet50
from tests.networks.vit import vit_block, vit_small


@dataclass(frozen=True)
class Entry:
    """A network small enough for any test: `entry.build()(*entry.inputs())`, a batch of 2."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]  # tensors; for dict_io a dict of them
    note: str


def images(size: int = 64, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    """Noise with a mean of its own for each image and channel: plain noise looks all the same after a global pool."""
    return lambda: (torch.randn(2, channels, size, size) + torch.randn(2, channels, 1, 1),)


def tokens(length: int, dim: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(2, length, dim),)


def ids_and_mask() -> tuple[Tensor, Tensor]:
    """Two sentences of 10 and 7 tokens; id 0 fills up the second."""
    mask = torch.arange(10) < torch.tensor([[10], [7]])
    return torch.randint(1, 50, (2, 10)) * mask, mask


MODELS: dict[str, Entry] = {
    "resnet18": Entry(partial(resnet18, width=0.25, classes=10), images(), "basic blocks, in-place add and relu"),
    "resnet50": Entry(partial(resnet50, width=0.125, classes=10), images(), "bottlenecks, one relu called thrice"),
    "resnet20": Entry(resnet20, images(32), "CIFAR; shortcuts by strided slice and channel padding"),
    "mobilenet_v2": Entry(partial(mobilenet_v2, width=0.25, classes=10), images(), "depthwise, ReLU6, bare adds"),
    "mobilenet_v3_small": Entry(
        partial(mobilenet_v3_small, width=0.25, classes=10), images(), "hardswish, squeeze-excite with hardsigmoid"
    ),
    "efficientnet_lite0": Entry(
        partial(efficientnet_lite0, width=0.25, classes=10), images(), "ReLU6, 5x5 depthwise, no squeeze-excite"
    ),
    "regnetx": Entry(partial(regnetx, width=0.25, classes=10), images(), "group convs, module names with a hyphen"),
    "yolo_head": Entry(
        partial(yolo_head, channels=8, classes=4), images(), "SiLU, nearest upsampling, concat; returns a list of three"
    ),
    "unet": Entry(partial(unet, channels=4, depth=2), images(32), "max pool, transposed conv, long concats"),
    "vit_block": Entry(partial(vit_block, dim=32, heads=4), tokens(9, 32), "pre-norm attention with fused qkv"),
    "vit_small": Entry(
        partial(vit_small, dim=32, depth=2, heads=4, patch=8, image=32, classes=10),
        images(32),
        "patch conv, class token and positions as parameters",
    ),
    "bert_encoder": Entry(
        partial(bert_encoder, dim=32, heads=4, vocabulary=50, length=16),
        ids_and_mask,
        "int64 ids and a bool mask; post-norm; returns all tokens and the pooled one",
    ),
    "lstm_tagger": Entry(
        partial(lstm_tagger, vocabulary=50, dim=16, hidden=12, tags=5),
        lambda: (torch.randint(0, 50, (2, 7)),),
        "bidirectional LSTM, whose result is a nested tuple",
    ),
    "residual_cnn": Entry(residual_cnn, images(16), "golden: conv-bn-relu, residual add, concat, three pools"),
    "mobile_cnn": Entry(mobile_cnn, images(16), "golden: depthwise separable, hardswish, squeeze-excite"),
    "transformer_block": Entry(transformer_block, tokens(6, 16), "golden: LayerNorm, attention, GELU, residual adds"),
    "control_flow": Entry(control_flow, images(8), "an inner module with a data-dependent branch: torch.fx refuses it"),
    "reused_module": Entry(reused_module, images(8, channels=4), "the same conv and the same relu called twice"),
    "functional_ops": Entry(functional_ops, images(8), "synonyms of add, `*=`, in-place relu, keyword arguments"),
    "dict_io": Entry(
        dict_io, lambda: ({"image": torch.randn(2, 3, 8, 8), "side": torch.randn(2, 6)},), "a dict in, a dict out"
    ),
    "dataclass_io": Entry(dataclass_io, images(8), "returns a frozen dataclass"),
    "conv1d_3d": Entry(conv1d_3d, lambda: (torch.randn(2, 4, 16), torch.randn(2, 2, 4, 6, 6)), "two inputs, two ranks"),
    "conv_transpose_bn": Entry(
        conv_transpose_bn, images(4, channels=8), "transposed conv and batch norm, also grouped"
    ),
    "linear_bn": Entry(linear_bn, lambda: (torch.randn(2, 16),), "linear and batch norm, to be folded like a conv's"),
    "several_modes": Entry(
        several_modes, images(16), "forward branches on `mode`: torch.fx needs concrete_args for mode and labels"
    ),
}

# Fifty layers and more: a second and more where the others take a tenth.
LARGE = ("resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_lite0", "regnetx")
SMALL = [name for name in MODELS if name not in LARGE]
