"""How each torch module is written: its attributes become arguments of the function it stands for.

A writer gets the builder, the module, `part` (which gives a parameter of it as a tensor of the graph, quantized if it
is), and what the module is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from detent.deploy.export import ops_adaptive as a
from detent.deploy.export import ops_elementwise as e
from detent.deploy.export import ops_reduce as r
from detent.deploy.export import ops_resize as z
from detent.deploy.export import ops_shape as s
from detent.deploy.export import ops_weighted as w
from detent.deploy.export.builder import Builder
from detent.deploy.export.values import Ref
from detent.errors import DeployError

__all__ = ["MODULES"]

Part = Callable[[str], "Ref | None"]


def _conv(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    x, padding = input, m.padding
    if m.padding_mode != "zeros":
        pads = _padding(m)
        mode = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[m.padding_mode]
        x = Ref(b.emit("Pad", [input, b.integers(pads)], mode=mode), input.shape, input.dtype)
        padding = 0
    weight, bias = part("weight"), part("bias")
    assert weight is not None
    return w.conv(b, x, weight, bias, m.stride, padding, m.dilation, m.groups)


def _padding(m: Any) -> list[int]:
    """What a convolution pads, all the beginnings, then all the ends, batch and channels among them."""
    rank = len(m.kernel_size)
    if m.padding == "same":
        total = [d * (k - 1) for d, k in zip(m.dilation, m.kernel_size, strict=True)]
        return [0, 0, *(t // 2 for t in total), 0, 0, *(t - t // 2 for t in total)]
    ends = w.each(m.padding, rank) if m.padding != "valid" else [0] * rank
    return [0, 0, *ends, 0, 0, *ends]


def _conv_transpose(b: Builder, m: Any, part: Part, input: Ref, output_size: Any = None) -> Ref:
    del output_size  # the example shows what comes out; ONNX has it as output padding
    weight, bias = part("weight"), part("bias")
    assert weight is not None
    rank = len(m.kernel_size)
    plain = [
        (int(size) - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
        for size, stride, padding, dilation, kernel in zip(
            input.shape[2:], m.stride, m.padding, m.dilation, m.kernel_size, strict=True
        )
    ]
    extra = [int(size) - least for size, least in zip(b.result.shape[-rank:], plain, strict=True)]
    return w.conv_transpose(b, input, weight, bias, m.stride, m.padding, extra, m.groups, m.dilation)


def _linear(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del m
    weight = part("weight")
    assert weight is not None
    return w.linear(b, input, weight, part("bias"))


def _embedding(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del m
    weight = part("weight")
    assert weight is not None
    return w.embedding(b, input, weight)


def _embedding_bag(
    b: Builder, m: Any, part: Part, input: Ref, offsets: Any = None, per_sample_weights: Ref | None = None
) -> Ref:
    weight = part("weight")
    assert weight is not None
    return w.embedding_bag(
        b, input, weight, offsets, mode=m.mode, per_sample_weights=per_sample_weights, padding_idx=m.padding_idx
    )


def _batch_norm(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    mean, variance = part("running_mean"), part("running_var")
    if mean is None or variance is None:
        raise DeployError(
            f"write {b.current!r}",
            "a batch norm that keeps no statistics: what one sample gives depends on the others of its batch",
            "make it with track_running_stats=True",
        )
    return r.batch_norm(b, input, mean, variance, part("weight"), part("bias"), eps=m.eps)


def _instance_norm(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    return r.instance_norm(
        b,
        input,
        part("running_mean"),
        part("running_var"),
        part("weight"),
        part("bias"),
        not m.track_running_stats,
        eps=m.eps,
    )


def _upsample(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del part
    return z.resize(b, input, m.size, m.scale_factor, m.mode, m.align_corners, m.recompute_scale_factor)


def _channel_shuffle(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del part
    _, channels, *plane = input.shape
    sizes = [int(size) for size in plane]
    x = b.emit("Reshape", [input, b.integers([-1, m.groups, int(channels) // m.groups, *sizes])])
    x = b.emit("Transpose", [x], perm=[0, 2, 1, *range(3, 3 + len(sizes))])
    return b.final("Reshape", [x, b.integers([-1, int(channels), *sizes])])


def _pad(mode: str) -> Callable[..., Ref]:
    def emit(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
        del part
        return s.pad(b, input, m.padding, mode, getattr(m, "value", 0.0))

    return emit


def _from(emit: Callable[..., Any], *attributes: str) -> Callable[..., Any]:
    """A module without parameters: these attributes follow the input."""

    def write(b: Builder, m: Any, part: Part, *args: Any) -> Any:
        del part
        return emit(b, *args, *(getattr(m, name) for name in attributes))

    return write


def _max_pool(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del part
    return r.max_pool(b, input, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


def _avg_pool(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del part
    override = getattr(m, "divisor_override", None)
    return r.avg_pool(b, input, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, override)


def _prelu(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
    del m
    weight = part("weight")
    assert weight is not None
    return e.prelu(b, input, weight)


def _normed(emit: Callable[..., Ref], shape: str, *, bias: bool) -> Callable[..., Ref]:
    def write(b: Builder, m: Any, part: Part, input: Ref) -> Ref:
        parameters = (part("weight"), part("bias")) if bias else (part("weight"),)
        return emit(b, input, getattr(m, shape), *parameters, m.eps)

    return write


MODULES: Mapping[type, Callable[..., Any]] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _conv),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _conv_transpose),
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _batch_norm),
    nn.LayerNorm: _normed(r.layer_norm, "normalized_shape", bias=True),
    nn.RMSNorm: _normed(r.rms_norm, "normalized_shape", bias=False),
    nn.GroupNorm: _normed(r.group_norm, "num_groups", bias=True),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _instance_norm),
    nn.LocalResponseNorm: _from(r.local_response_norm, "size", "alpha", "beta", "k"),
    nn.ReLU: _from(e.unary("Relu")),
    nn.ReLU6: _from(e.relu6),
    nn.Hardtanh: _from(e.hardtanh, "min_val", "max_val"),
    nn.LeakyReLU: _from(e.leaky_relu, "negative_slope"),
    nn.PReLU: _prelu,
    nn.RReLU: _from(lambda b, x, lower, upper: e.leaky_relu(b, x, (lower + upper) / 2), "lower", "upper"),
    nn.ELU: _from(e.elu, "alpha"),
    nn.Hardswish: _from(e.unary("HardSwish")),
    nn.Hardsigmoid: _from(e.hardsigmoid),
    nn.SiLU: _from(e.silu),
    nn.Mish: _from(e.mish),
    nn.GELU: _from(e.gelu, "approximate"),
    nn.Sigmoid: _from(e.unary("Sigmoid")),
    nn.Softplus: _from(e.softplus, "beta", "threshold"),
    nn.Tanh: _from(e.unary("Tanh")),
    nn.Softmax: _from(e.softmax, "dim"),
    nn.Softmax2d: _from(lambda b, x: e.softmax(b, x, -3)),
    nn.LogSoftmax: _from(e.log_softmax, "dim"),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _max_pool),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _avg_pool),
    **dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        _from(a.adaptive_pool("Average"), "output_size"),
    ),
    **dict.fromkeys(
        (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _from(a.adaptive_pool("Max"), "output_size")
    ),
    nn.Upsample: _upsample,
    nn.PixelShuffle: _from(z.pixel_shuffle, "upscale_factor"),
    nn.PixelUnshuffle: _from(z.pixel_unshuffle, "downscale_factor"),
    nn.ChannelShuffle: _channel_shuffle,
    nn.Flatten: _from(s.reshape),
    nn.Unflatten: _from(s.reshape),
    nn.ZeroPad2d: _pad("constant"),
    nn.ConstantPad1d: _pad("constant"),
    nn.ConstantPad2d: _pad("constant"),
    nn.ReflectionPad2d: _pad("reflect"),
    nn.ReplicationPad2d: _pad("replicate"),
    **dict.fromkeys(
        (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), _from(e.identity)
    ),
}
