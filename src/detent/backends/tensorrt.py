"""TensorRT with explicit Q/DQ, the only way since version 11."""

from __future__ import annotations

from detent.backends.backend import FUSED, MOVES, Backend, chains, takes
from detent.backends.offer import Offer
from detent.numerics import PerChannel, PerTensor

__all__ = ["TENSORRT"]

_EPILOGUES = ("sigmoid", "silu", "gelu", "softplus")

TENSORRT = Backend(
    name="tensorrt",
    about="NVIDIA TensorRT",
    weight=Offer(narrow=(True, False), granularities=(PerChannel, PerTensor)),
    # NVIDIA's documents give activations [-128, 127] and zero point 0; MQBench takes [-127, 127] for both.
    activation=Offer(),
    rules=takes(
        "conv",
        "conv_transpose",
        "linear",
        "matmul",
        "add",
        "mul",
        "avgpool",
        "global_avgpool",
        "batchnorm",
        "prelu",
    ),
    fusions=(
        *FUSED,
        *chains(("conv", "conv_transpose", "linear"), _EPILOGUES, norm=True),
        *chains(("add",)),
        ("mul", "add"),
    ),
    shares=(*MOVES, "resize"),
    # A convolution takes the other operand of the residual add into its epilogue. MQBench has this rule but gives it to
    # no backend, and quantizes both operands.
    unquantized_edges=(("conv", "add"),),
    repeats_grids=False,
    any_place=True,
    files=("onnx", "tensorrt_ranges"),
)
