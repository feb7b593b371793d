"""Small QDQ nets, one for each operation and the whole networks, that every proof of the twin runs.

net = small_net("conv_relu", Style(activation="uint8", scales="tie", seed=3))
twin.run(net.model, net.feeds)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.twin.builder import Builder, Net, Style, T

__all__ = ["SMALL", "Builder", "Net", "Style", "T", "mobilenet", "resnet18", "small_net"]

Array = npt.NDArray[Any]
f32 = np.float32


def conv(
    b: Builder,
    x: T,
    channels: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    pad: int | None = None,
    dilation: int = 1,
    group: int = 1,
    then: str | None = None,
    grid: bool = True,
) -> T:
    pad = dilation * (kernel // 2) if pad is None else pad
    return b.weighted(
        "Conv",
        x,
        (channels, x.value.shape[1] // group, kernel, kernel),
        axis=0,
        then=then,
        grid=grid,
        kernel_shape=[kernel, kernel],
        pads=[pad] * 4,
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        group=group,
    )


def image(b: Builder, name: str = "x", channels: int = 16, size: int = 10) -> T:
    return b.input(name, b.style.batch, channels, size, size)


def linear(b: Builder, x: T, features: int, *, then: str | None = None) -> T:
    return b.weighted("Gemm", x, (features, x.value.shape[1]), axis=0, then=then, transB=1)


def add(b: Builder, x: T, y: T, *, then: str | None = None) -> T:
    made = b.float_op("Add", x, y)
    if then:
        made = b.activation(then, made)
    assert x.scale is not None
    return b.quantized(made, relu=then is not None, unit=float(x.scale))


def _pair(b: Builder, size: int = 10) -> tuple[T, T]:
    """Two inputs; in a "tie" net the second scale is an odd multiple of the first, up to rounding."""
    x = image(b, "x", size=size)
    assert x.scale is not None
    return x, b.input("y", *x.value.shape, spread=float(x.scale) * 3 if b.style.scales == "tie" else None)


def _conv_net(channels: int = 24, inputs: int = 16, **options: Any) -> Callable[[Builder], T]:
    return lambda b: conv(b, image(b, channels=inputs), channels, **options)


def _conv_transpose(b: Builder) -> T:
    x = image(b)
    return b.weighted(
        "ConvTranspose",
        x,
        (16, 12, 3, 3),
        axis=1,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
        output_padding=[1, 1],
    )


def _conv1d(b: Builder) -> T:
    x = b.input("x", b.style.batch, 16, 30)
    return b.weighted("Conv", x, (24, 16, 3), axis=0, kernel_shape=[3], pads=[1, 1])


def _conv3d(b: Builder) -> T:
    x = b.input("x", b.style.batch, 4, 5, 6, 7)
    return b.weighted("Conv", x, (8, 4, 3, 3, 3), axis=0, kernel_shape=[3, 3, 3], pads=[1] * 6)


def _gemm(then: str | None = None) -> Callable[[Builder], T]:
    return lambda b: linear(b, b.input("x", b.style.batch * 64, 64), 48, then=then)


def _matmul(b: Builder) -> T:
    return b.weighted("MatMul", b.input("x", b.style.batch, 20, 64), (64, 48), axis=1)


def _matmul_dynamic(b: Builder) -> T:
    x, y = b.input("x", b.style.batch, 4, 16, 24), b.input("y", b.style.batch, 4, 24, 16)
    assert x.scale is not None
    assert y.scale is not None
    return b.quantized(b.float_op("MatMul", x, y), unit=float(x.scale * y.scale))


def _add(then: str | None = None) -> Callable[[Builder], T]:
    return lambda b: add(b, *_pair(b), then=then)


def _add_channels(b: Builder) -> T:
    x = image(b)
    return add(b, x, b.input("y", 1, x.value.shape[1], 1, 1))


def _mul(then: str | None = None) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x, y = _pair(b)
        assert x.scale is not None
        assert y.scale is not None
        made = b.float_op("Mul", x, y)
        made = b.activation(then, made) if then else made
        return b.quantized(made, relu=then is not None, unit=float(x.scale * y.scale))

    return build


def _sub(b: Builder) -> T:
    return b.quantized(b.float_op("Sub", *_pair(b)))


def _concat(b: Builder) -> T:
    x, y = _pair(b)
    assert x.scale is not None
    return b.quantized(b.float_op("Concat", x, y, axis=1), unit=float(x.scale))


def _concat_equal(b: Builder) -> T:
    x = image(b)
    y = b.input("y", *x.value.shape)
    y = b.quantized(b.float_op("Identity", y), like=x)
    return b.quantized(b.float_op("Concat", x, y, axis=1), like=x)


def _pool(**attributes: Any) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x = image(b)
        assert x.scale is not None
        unit = float(x.scale) / float(np.prod(attributes["kernel_shape"]))
        return b.quantized(b.float_op("AveragePool", x, **attributes), unit=unit)

    return build


def _max_pool(b: Builder) -> T:
    x = image(b)
    made = b.float_op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    return b.quantized(made, like=x)


def _gap(b: Builder) -> T:
    x = image(b)
    assert x.scale is not None
    made = b.float_op("GlobalAveragePool", x)
    return b.quantized(made, unit=float(x.scale) / (x.value.shape[2] * x.value.shape[3]))


def _mean(b: Builder) -> T:
    x = image(b)
    return b.quantized(b.float_op("ReduceMean", x, "axes", constants={"axes": np.array([2, 3])}, keepdims=0))


def _resize(mode: str) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x = image(b)
        constants = {"scales": np.array([1, 1, 2, 2], np.float32)}
        how = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"} if mode == "nearest" else {}
        made = b.float_op("Resize", x, None, "scales", constants=constants, mode=mode, **how)
        return b.quantized(made, like=x)

    return build


def _unary(kind: str, *, like: bool = False, relu: bool = False, **attributes: Any) -> Callable[[Builder], T]:
    def build(b: Builder) -> T:
        x = image(b)
        return b.quantized(b.float_op(kind, x, **attributes), relu=relu, like=x if like else None)

    return build


def _relu_alone(b: Builder) -> T:
    x = image(b)
    return b.quantized(b.float_op("Relu", x), relu=True)


def _clip_alone(b: Builder) -> T:
    return b.quantized(b.activation("Relu6", image(b)), relu=True)


def _pad(b: Builder) -> T:
    x = image(b)
    constants = {"pads": np.array([0, 0, 1, 2, 0, 0, 3, 1])}
    return b.quantized(b.float_op("Pad", x, "pads", constants=constants), like=x)


def _layer_norm(b: Builder) -> T:
    x = b.input("x", b.style.batch, 20, 32)
    constants = {
        "gamma": b.random.uniform(0.5, 2, 32).astype(np.float32),
        "beta": b.random.normal(size=32).astype(np.float32),
    }
    return b.quantized(b.float_op("LayerNormalization", x, "gamma", "beta", constants=constants, axis=-1))


def _softmax(b: Builder) -> T:
    x = b.input("x", b.style.batch, 20, 32)
    return b.quantized(b.float_op("Softmax", x, axis=-1), relu=True)


def _moves(b: Builder) -> T:
    x = image(b)
    constants = {
        "starts": np.array([1, 0]),
        "ends": np.array([9, 8]),
        "axes": np.array([2, 3]),
        "steps": np.array([1, 2]),
    }
    y = b.quantized(b.float_op("Slice", x, "starts", "ends", "axes", "steps", constants=constants), like=x)
    y = b.quantized(b.float_op("Transpose", y, perm=[0, 2, 3, 1]), like=x)
    y = b.quantized(b.float_op("Reshape", y, "shape", constants={"shape": np.array([0, -1])}), like=x)
    return linear(b, y, 10)


def _float_add(b: Builder) -> T:
    """A convolution that is not quantized before the add."""
    x = image(b)
    return b.quantized(b.activation("Relu", b.float_op("Add", conv(b, x, 16, grid=False), x)), relu=True)


def _float_weights(kind: str) -> Callable[[Builder], T]:
    """Layers whose weights and biases are float, between quantized activations."""

    def build(b: Builder) -> T:
        y = conv(b, image(b), 24, then="Relu") if kind == "Conv" else _gemm()(b)
        b.with_float_weights()
        return y

    return build


def _residual(b: Builder) -> T:
    x = conv(b, image(b, channels=3), 16, then="Relu")
    x = add(b, conv(b, x, 16), x, then="Relu")
    x = conv(b, x, 16, group=16, then="Relu")
    x = b.quantized(b.float_op("GlobalAveragePool", x), relu=True)
    x = b.quantized(b.float_op("Flatten", x), like=x)
    return linear(b, x, 10)


# --- what engines decide by the neighborhood of an operation -------------------------------------------------


def _conv_then_pool(b: Builder) -> T:
    """No grid between the convolution and the pool."""
    x = conv(b, image(b), 16, then="Relu", grid=False)
    return b.quantized(b.float_op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), relu=True)


def _reshape_then_gemm(b: Builder) -> T:
    """No grid between the reshape and the layer behind it."""
    x = conv(b, image(b, size=4), 8, then="Relu")
    return linear(b, b.on_the_grid_of(x, b.float_op("Reshape", x, "shape", constants={"shape": np.array([0, -1])})), 10)


def _transpose_then_matmul(b: Builder) -> T:
    x, y = b.input("x", b.style.batch, 4, 16, 24), b.input("y", b.style.batch, 4, 16, 24)
    return b.quantized(b.float_op("MatMul", x, b.float_op("Transpose", y, perm=[0, 1, 3, 2])))


def _requantized(b: Builder) -> T:
    """Two pairs of Q and DQ in a row."""
    x = conv(b, image(b), 16, then="Relu")
    return conv(b, b.quantized(T(x.read, x.value), relu=True), 8, 1)


def _float_end(kind: str) -> Callable[[Builder], T]:
    """A layer whose output is not quantized."""

    def build(b: Builder) -> T:
        if kind == "Gemm":
            return b.weighted("Gemm", b.input("x", b.style.batch * 8, 64), (48, 64), axis=0, grid=False, transB=1)
        return b.weighted("MatMul", b.input("x", b.style.batch, 20, 64), (64, 48), axis=1, grid=False)

    return build


def _gemm_plain(b: Builder) -> T:
    return b.weighted("Gemm", b.input("x", b.style.batch * 8, 64), (64, 48), axis=1)


def _matmul_2d(b: Builder) -> T:
    return b.weighted("MatMul", b.input("x", b.style.batch * 8, 64), (64, 48), axis=1)


def _with_constant(kind: str, *shape: int, first: bool = False) -> Callable[[Builder], T]:
    """An operation of an activation and a quantized constant."""

    def build(b: Builder) -> T:
        x, c = image(b), b.coded_constant("c", *shape)
        return b.quantized(b.float_op(kind, *((c, x) if first else (x, c))))

    return build


def _branches(b: Builder) -> T:
    """A tensor that three operations read."""
    x = conv(b, image(b), 16, then="Relu")
    y = b.quantized(b.float_op("Mul", x, conv(b, x, 16, 1, then="Sigmoid")), relu=True)
    return b.quantized(b.float_op("Concat", y, x, axis=1), relu=True)


def _split(b: Builder) -> T:
    x = image(b)
    left, right = b.split(x, 1)
    return add(b, b.quantized(left, like=x), b.quantized(right, like=x))


def _conv_same(b: Builder) -> T:
    x = image(b, size=9)
    shape = (24, 16, 4, 4)
    return b.weighted("Conv", x, shape, axis=0, kernel_shape=[4, 4], strides=[2, 2], auto_pad="SAME_UPPER")


def _conv_uneven(b: Builder) -> T:
    return b.weighted("Conv", image(b), (24, 16, 3, 3), axis=0, kernel_shape=[3, 3], pads=[0, 1, 2, 1])


def _softmax_channels(b: Builder) -> T:
    return b.quantized(b.float_op("Softmax", image(b), axis=1), relu=True)


def _depth_to_space(b: Builder) -> T:
    x = image(b)
    return b.quantized(b.float_op("DepthToSpace", x, blocksize=2, mode="CRD"), like=x)


# --- sizes and neighbors at which kernels change over ---------------------------------------------------------


def _concat_13(b: Builder) -> T:
    """A block of 8 channels, and 5 that fill none."""
    x = image(b, channels=13)
    assert x.scale is not None
    y = b.input("y", *x.value.shape, spread=float(x.scale) * 3 if b.style.scales == "tie" else None)
    return b.quantized(b.float_op("Concat", x, y, axis=1), unit=float(x.scale))


def _add_to_row(b: Builder) -> T:
    """The first operand is the one that is repeated."""
    x = image(b)
    return add(b, b.input("y", 1, 1, 1, x.value.shape[3]), x)


def _clip_beside(b: Builder) -> T:
    """What is clipped is read by another operation, too."""
    x = image(b)
    return b.quantized(b.float_op("Mul", x, b.quantized(b.activation("Relu6", x), relu=True)))


def _softmax_of_one(b: Builder) -> T:
    """Exponentials as large as float32 holds, so that a product with them is infinite."""
    return b.quantized(b.float_op("Softmax", b.input("x", b.style.batch * 20, 16, 1), axis=-1), relu=True)


def _softmax_beyond(b: Builder) -> T:
    """Shares beyond the greatest code, read by two, so that int8 stays int8."""
    x = b.input("x", b.style.batch * 20, 32)
    y = b.float_op("Softmax", x, axis=-1)
    y = b.on_grid(y.name, y.value, f32(1 / 3000), b.zero_point(relu=True))
    return b.quantized(b.float_op("Concat", y, x, y, axis=1))


def _max_pool_ceil(b: Builder) -> T:
    """Rounded up, the last window of a row would begin outside, and is none."""
    x = image(b)
    return b.quantized(b.float_op("MaxPool", x, kernel_shape=[1, 1], strides=[3, 2], ceil_mode=1), like=x)


def _transposed_gaps(b: Builder) -> T:
    """A stride that is longer than the kernel."""
    return b.weighted("ConvTranspose", image(b), (16, 12, 1, 2), axis=1, kernel_shape=[1, 2], strides=[2, 3])


SMALL: dict[str, Callable[[Builder], T]] = {
    "conv": _conv_net(),
    "conv_relu": _conv_net(then="Relu"),
    "conv_relu6": _conv_net(then="Relu6"),
    "conv_sigmoid": _conv_net(then="Sigmoid"),
    "conv_1x1": _conv_net(kernel=1),
    "conv_strided": _conv_net(stride=2),
    "conv_dilated": _conv_net(dilation=2),
    "conv_grouped": _conv_net(group=4),
    "conv_5x5_deep": _conv_net(inputs=64, kernel=5),
    "conv_1d": _conv1d,
    "conv_3d": _conv3d,
    "depthwise": _conv_net(channels=16, group=16),
    "depthwise_relu": _conv_net(channels=16, group=16, then="Relu"),
    "conv_transpose": _conv_transpose,
    "gemm": _gemm(),
    "gemm_relu": _gemm("Relu"),
    "matmul": _matmul,
    "matmul_dynamic": _matmul_dynamic,
    "add": _add(),
    "add_relu": _add("Relu"),
    "add_channels": _add_channels,
    "mul": _mul(),
    "mul_relu": _mul("Relu"),
    "sub": _sub,
    "concat": _concat,
    "concat_equal": _concat_equal,
    "avgpool": _pool(kernel_shape=[2, 2], strides=[2, 2]),
    "avgpool_padded": _pool(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "avgpool_padded_counted": _pool(kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4, count_include_pad=1),
    "maxpool": _max_pool,
    "gap": _gap,
    "mean": _mean,
    "resize_nearest": _resize("nearest"),
    "resize_linear": _resize("linear"),
    "relu": _relu_alone,
    "clip": _clip_alone,
    "sigmoid": _unary("Sigmoid", relu=True),
    "tanh": _unary("Tanh"),
    "hardswish": _unary("HardSwish"),
    "hardsigmoid": _unary("HardSigmoid", relu=True),
    "leaky_relu": _unary("LeakyRelu", alpha=0.1),
    "elu": _unary("Elu"),
    "gelu": _unary("Gelu"),
    "softmax": _softmax,
    "layernorm": _layer_norm,
    "pad": _pad,
    "moves": _moves,
    "float_add": _float_add,
    "conv_float_weights": _float_weights("Conv"),
    "gemm_float_weights": _float_weights("Gemm"),
    "conv_then_pool": _conv_then_pool,
    "reshape_then_gemm": _reshape_then_gemm,
    "transpose_then_matmul": _transpose_then_matmul,
    "requantized": _requantized,
    "gemm_float": _float_end("Gemm"),
    "matmul_float": _float_end("MatMul"),
    "gemm_plain": _gemm_plain,
    "matmul_2d": _matmul_2d,
    "add_constant": _with_constant("Add", 1, 16, 1, 1),
    "add_constant_first": _with_constant("Add", 1, 16, 1, 1, first=True),
    "add_row": _with_constant("Add", 10),
    "mul_constant": _with_constant("Mul", 1, 16, 1, 1),
    "mul_scalar": _with_constant("Mul"),
    "branches": _branches,
    "split": _split,
    "conv_same": _conv_same,
    "conv_uneven": _conv_uneven,
    "softmax_channels": _softmax_channels,
    "depth_to_space": _depth_to_space,
    "avgpool_ceil": _pool(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "depthwise_13": _conv_net(channels=13, inputs=13, group=13),
    "concat_13": _concat_13,
    "avgpool_everything": _pool(kernel_shape=[10, 10], strides=[1, 1]),
    "add_to_row": _add_to_row,
    "clip_beside": _clip_beside,
    "softmax_of_one": _softmax_of_one,
    "softmax_beyond": _softmax_beyond,
    "maxpool_ceil": _max_pool_ceil,
    "conv_transpose_gaps": _transposed_gaps,
    "residual": _residual,
}
"""One net for each operation, and a few of several."""


def small_net(kind: str, style: Style = Style()) -> Net:
    builder = Builder(style)
    builder.output(SMALL[kind](builder))
    return builder.net()


def resnet18(style: Style = Style(batch=1), size: int = 224, classes: int = 1000, width: int = 16) -> Net:
    """ResNet-18 with random weights, every convolution and addition on a grid; `width` channels in the first stage."""
    b = Builder(style)
    x = conv(b, b.input("x", style.batch, 3, size, size), width, 7, stride=2, then="Relu")
    x = b.quantized(b.float_op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), like=x)
    for stage, channels in enumerate((width, 2 * width, 4 * width, 8 * width)):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            y = conv(b, conv(b, x, channels, stride=stride, then="Relu"), channels)
            shortcut = conv(b, x, channels, 1, stride=stride) if stride == 2 else x
            x = add(b, y, shortcut, then="Relu")
    x = b.quantized(b.float_op("GlobalAveragePool", x), relu=True)
    x = b.quantized(b.float_op("Flatten", x), like=x)
    b.output(linear(b, x, classes))
    return b.net()


def mobilenet(style: Style = Style(batch=1), size: int = 96, classes: int = 100) -> Net:
    """A net of MobileNetV2's kind: inverted residuals with depthwise convolutions and a clipped ReLU."""
    b = Builder(style)
    x = conv(b, b.input("x", style.batch, 3, size, size), 16, stride=2, then="Relu6")
    for channels, stride in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        inner = x.value.shape[1] * 4
        y = conv(b, x, inner, 1, then="Relu6")
        y = conv(b, y, inner, group=inner, stride=stride, then="Relu6")
        y = conv(b, y, channels, 1)
        x = add(b, x, y) if stride == 1 and x.value.shape[1] == channels else y
    x = conv(b, x, 256, 1, then="Relu6")
    x = b.quantized(b.float_op("GlobalAveragePool", x), relu=True)
    x = b.quantized(b.float_op("Flatten", x), like=x)
    b.output(linear(b, x, classes))
    return b.net()
