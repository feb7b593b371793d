"""The recipes that come with Detent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from detent.recipes.recipe import AlgorithmRequest, Calibration, Recipe
from detent.recipes.tensor_request import TensorRequest
from detent.registry import unknown_name

__all__ = ["BUILTIN", "Builtin", "builtin"]


class Builtin(NamedTuple):
    """A recipe and one line about it."""

    description: str
    recipe: Recipe


def _fixed(observer: str | None = None) -> TensorRequest:
    return TensorRequest(quantizer="fixed", observer=observer)


def _entry(name: str, description: str, weight: TensorRequest, activation: TensorRequest, *algorithms: str) -> Builtin:
    named = tuple(AlgorithmRequest(name=algorithm) for algorithm in algorithms)
    return Builtin(description, Recipe(name=name, weight=weight, activation=activation, algorithms=named))


def _weights_only(name: str, description: str, weight: dict[str, Any], *algorithms: str) -> Builtin:
    """Weights in groups; activations stay float, or are what the engine makes of them while it runs."""
    request = TensorRequest.from_dict({"quantizer": "fixed", **weight}, source=name)
    return _entry(name, description, request, TensorRequest(quantize=False), *algorithms)


def _mixed(name: str, description: str) -> Builtin:
    """A mix of formats that the target itself decides on."""
    request = TensorRequest(quantizer="fixed")
    return Builtin(description, Recipe(name=name, weight=request, activation=TensorRequest(quantize=False), mix=name))


def _calibrated(name: str, description: str, weight: TensorRequest, activation: TensorRequest) -> Builtin:
    """Deployed as it is calibrated: nothing that comes after makes up for the mean errors of weights."""
    calibration = Calibration(correct_biases=True, choose_ranges=None if activation.observer else True)
    return Builtin(description, Recipe(name=name, weight=weight, activation=activation, calibration=calibration))


def _trained(name: str, description: str, weight: TensorRequest, activation: TensorRequest) -> Builtin:
    """Starts where calibrating ends; biases are trained too."""
    calibration = Calibration(choose_ranges=True)
    return Builtin(description, Recipe(name=name, weight=weight, activation=activation, calibration=calibration))


_LSQ = TensorRequest(quantizer="lsq")
_LSQ_PLUS = TensorRequest(quantizer="lsq_plus")
_TQT = TensorRequest(quantizer="tqt", symmetric=True, scale="power_of_two")
_PACT = TensorRequest(quantizer="pact")
_DOREFA = TensorRequest(quantizer="dorefa", symmetric=True)
_DSQ = TensorRequest(quantizer="dsq")
_QIL = TensorRequest(quantizer="qil", symmetric=True, scale="float")
_ADAROUND = TensorRequest(quantizer="adaround")
_QDROP = TensorRequest(quantizer="qdrop")
# All of an activation is quantized while its block is reconstructed.
_BRECQ = TensorRequest(quantizer="qdrop", quantizer_options={"probability": 1.0})
_APOT = TensorRequest(quantizer="apot", grid="apot", bits=4, symmetric=True, observer="start")

_SEQ = TensorRequest(quantizer="seq", grid="half", bits=2, symmetric=True, scale="float")

_W4G32: dict[str, Any] = {"bits": 4, "granularity": {"per_group": 32}}
_W4G128: dict[str, Any] = {"bits": 4, "granularity": {"per_group": 128}}
_W8: dict[str, Any] = {"bits": 8, "granularity": {"per_group": 32}}
_NF4: dict[str, Any] = {"grid": "nf4", "granularity": {"per_group": 64}}
_MXFP4: dict[str, Any] = {"grid": "e2m1", "granularity": {"per_group": 32}, "scale": "e8m0"}
_MXFP8: dict[str, Any] = {"grid": "e4m3", "granularity": {"per_group": 32}, "scale": "e8m0"}
_NVFP4: dict[str, Any] = {"grid": "e2m1", "granularity": {"per_group": 16}, "scale": "e4m3"}
_FP8 = TensorRequest(quantizer="fixed", grid="e4m3")

# What a request leaves out is the backend's default; what a method cannot do without is said.
_ENTRIES = (
    _calibrated("ptq", "calibrate and deploy; the backend chooses how ranges are observed", _fixed(), _fixed()),
    _calibrated("percentile", "calibrate; activations clipped at a percentile", _fixed(), _fixed("percentile")),
    _calibrated("kl", "calibrate; activations clipped where the histogram loses least (KL)", _fixed(), _fixed("kl")),
    _calibrated("mse", "calibrate; everything clipped at the least squared error", _fixed("mse"), _fixed("mse")),
    _entry(
        "equalize",
        "calibrate; channels of neighboring layers equalized, biases corrected (Nagel et al., ICCV 2019)",
        _fixed(),
        _fixed("mse"),  # without ceilings a few activations reach far: MobileNetV2 has 0.024 of noise, not 0.035
        "equalize",
        "bias_correction",
    ),
    _entry(
        "adaround", "learn the rounding, a layer at a time (Nagel et al., ICML 2020)", _ADAROUND, _fixed(), "adaround"
    ),
    _entry("brecq", "learn rounding and scales, a block at a time (Li et al., ICLR 2021)", _ADAROUND, _BRECQ, "brecq"),
    _entry("qdrop", "BRECQ with quantization dropped at random (Wei et al., ICLR 2022)", _ADAROUND, _QDROP, "qdrop"),
    _entry(
        "gptq", "make up for each column in the next ones (Frantar et al., ICLR 2023)", _fixed("mse"), _fixed(), "gptq"
    ),
    _weights_only("w4g32", "weights of 4 bits in groups of 32, rounded to nearest", _W4G32),
    _weights_only("w4g128", "weights of 4 bits in groups of 128, rounded to nearest", _W4G128),
    _weights_only("w8", "weights of 8 bits in groups of 32, rounded to nearest", _W8),
    _weights_only("w4g32_gptq", "weights of 4 bits in groups of 32, by GPTQ", {**_W4G32, "observer": "mse"}, "gptq"),
    _weights_only("w4g32_hqq", "weights of 4 bits in groups of 32, scales by HQQ, without data", _W4G32, "hqq"),
    _weights_only("w4g32_awq", "weights of 4 bits in groups of 32, by AWQ", _W4G32, "awq"),
    _weights_only("w4g32_autoround", "weights of 4 bits in groups of 32, by AutoRound", _W4G32, "autoround"),
    _mixed("q8_0", "llama.cpp's Q8_0: weights of 8 bits in blocks of 32"),
    _mixed("q6_k", "llama.cpp's Q6_K: weights of 6 bits in super-blocks of 256"),
    _mixed("q4_k_m", "llama.cpp's Q4_K_M: weights of 4 bits in super-blocks of 256, some of 6 bits"),
    _mixed("q4_0", "llama.cpp's Q4_0: weights of 4 bits in blocks of 32"),
    _weights_only("nf4", "weights in NormalFloat of 4 bits, groups of 64 (Dettmers et al., NeurIPS 2023)", _NF4),
    _weights_only("mxfp4", "weights in floats of 4 bits, blocks of 32 with power-of-two scales (OCP MX)", _MXFP4),
    _weights_only("mxfp8", "weights in floats of 8 bits, blocks of 32 with power-of-two scales (OCP MX)", _MXFP8),
    _weights_only("nvfp4", "weights in floats of 4 bits, blocks of 16 with scales in floats of 8 (NVFP4)", _NVFP4),
    _entry("fp8", "weights and activations in floats of 8 bits (E4M3)", _FP8, _FP8),
    _entry("smoothquant", "move outliers into the weights (Xiao et al., ICML 2023)", _fixed(), _fixed(), "smoothquant"),
    _entry(
        "rotate",
        "rotate residual streams and the values of heads by Hadamard matrices (QuaRot, NeurIPS 2024)",
        _fixed(),
        _fixed(),
        "rotate",
    ),
    _trained("lsq", "train step sizes (Esser et al., ICLR 2020)", _LSQ, _LSQ),
    _trained("lsq_plus", "train step sizes and offsets (Bhalgat et al., 2020)", _LSQ_PLUS, _LSQ_PLUS),
    _entry("tqt", "train the exponents of power-of-two scales (Jain et al., MLSys 2020)", _TQT, _TQT),
    _trained("pact", "train activation clips (Choi et al., 2018); weights as in DoReFa", _DOREFA, _PACT),
    _trained("dorefa", "weights squeezed by tanh, activations clipped (Zhou et al., 2016)", _DOREFA, _DOREFA),
    _trained("dsq", "a soft staircase that sharpens in training (Gong et al., ICCV 2019)", _DSQ, _DSQ),
    _trained("qil", "train the interval that is quantized (Jung et al., CVPR 2019)", _QIL, _QIL),
    _entry("apot", "4-bit sums of powers of two (Li et al., ICLR 2020)", _APOT, _APOT),
    _entry(
        "seq", "train weights of 2 bits without a zero (Liu et al., ParetoQ, 2025)", _SEQ, TensorRequest(quantize=False)
    ),
)

BUILTIN: Mapping[str, Builtin] = MappingProxyType({entry.recipe.name: entry for entry in _ENTRIES})


def builtin(name: str) -> Recipe:
    """The built-in recipe of that name; `UnknownNameError` with the nearest one if there is none."""
    if name not in BUILTIN:
        raise unknown_name("recipe", name, BUILTIN, "the path of a .yaml, .yml, .json or .toml file")
    return BUILTIN[name].recipe
