"""torch's own quantized kernels, and MMRazor's `native` scheme for them."""

from __future__ import annotations

from dataclasses import replace

from detent.graph import AVERAGE_POOLS, CLIPPING, WEIGHTED
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Target

__all__ = ["NATIVE", "NATIVE_TARGET", "TARGET", "TORCH_X86"]

TORCH_X86 = Backend(
    name="torch_x86",
    about="torch.ops.quantized on x86 (fbgemm)",
    # 7 bits, `reduce_range`: pairs of products saturate without VNNI. Torch narrows activations for that; narrowing
    # either will do. In depthwise kernels they saturate on every CPU (12 % of outputs wrong, up to 211 steps).
    weight=SupportedSchemes(bits=(8, 7), granularities=(PerChannel, PerTensor)),
    depthwise_bits=7,
    activation=SupportedSchemes(bits=(8, 7), signed=(False,), symmetric=(False,)),
    bias="int32",
    rules=quantize_io(
        *WEIGHTED,
        "matmul",
        "add",
        "mul",
        "leaky_relu",
        "prelu",
        "elu",
        "hardswish",
        "hardsigmoid",
        "sigmoid",
        "tanh",
        "softmax",
        "batchnorm",
        "layernorm",
        "groupnorm",
        "instancenorm",
    ),
    fusions=(*FUSED, *chains(("add", "mul", "batchnorm"))),
    # Pools, resizing and clipping keep the scale of their input.
    passthrough=(*MOVES, "concat", *AVERAGE_POOLS, "mean", "resize", *CLIPPING),
    common_qparams=("concat",),
    # Transposed convolutions have one scale, or run in float.
    per_tensor_weights=("conv_transpose",),
    # Kernels with a built-in output scale: 1/256 with zero point 0, and 1/128 with 128 for tanh.
    ranges={
        "sigmoid": (0.0, 255 / 256),
        "hardsigmoid": (0.0, 255 / 256),
        "softmax": (0.0, 255 / 256),
        "tanh": (-1.0, 127 / 128),
    },
    saturates_on=("avx2", "avx512", "avx_vnni"),  # FBGEMM looks for the VNNI of AVX-512 only
    quantize_outputs=True,
    opset=21,
    arithmetic="fbgemm",
    files=("torch",),
    engine="torch",
)

TARGET = Target(
    backend=TORCH_X86,
    formats={"torch": "detent.targets.torch_native.writer:FORMAT"},
    engine="detent.targets.torch_native.engine:TorchNative",
    arithmetics={
        "fbgemm": "detent.targets.torch_native.arithmetic.fbgemm:Fbgemm",
        "qnnpack": "detent.targets.torch_native.arithmetic.qnnpack:Qnnpack",
        "onednn": "detent.targets.torch_native.arithmetic.onednn:Onednn",
    },
)

# MMRazor: weights in [-127, 127], a bias that stays float.
NATIVE = replace(
    TORCH_X86,
    name="native",
    about="MMRazor's native scheme",
    weight=SupportedSchemes(narrow=(True, False), granularities=(PerChannel, PerTensor)),
    depthwise_bits=None,
    saturates_on=(),
    activation=SupportedSchemes(signed=(False,), symmetric=(False,)),
    bias="float",
)

NATIVE_TARGET = Target(backend=NATIVE)
