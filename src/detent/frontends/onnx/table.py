"""The table of converters, one for each operator that can be imported."""

from __future__ import annotations

from detent.frontends.onnx.call import Converter
from detent.frontends.onnx.canonicalize import control_flow
from detent.frontends.onnx.operators import (
    activations,
    arithmetic,
    convolutions,
    detection,
    gathering,
    linear,
    logic,
    normalization,
    patches,
    pooling,
    recurrent,
    reductions,
    reshaping,
    resizing,
    shapes,
    slicing,
    spectra,
)
from detent.frontends.onnx.quantized import integer_products, quantization

__all__ = ["CONVERTERS"]

CONVERTERS: dict[str, Converter] = {
    **arithmetic.CONVERTERS,  # first: tables below it replace some functions of one tensor
    **logic.CONVERTERS,
    **activations.CONVERTERS,
    **linear.CONVERTERS,
    **convolutions.CONVERTERS,
    **pooling.CONVERTERS,
    **normalization.CONVERTERS,
    **recurrent.CONVERTERS,
    **reshaping.CONVERTERS,
    **slicing.CONVERTERS,
    **gathering.CONVERTERS,
    **reductions.CONVERTERS,
    **resizing.CONVERTERS,
    **detection.CONVERTERS,
    **spectra.CONVERTERS,
    **patches.CONVERTERS,
    **integer_products.CONVERTERS,
    **shapes.CONVERTERS,
    **quantization.CONVERTERS,
    **control_flow.CONVERTERS,
}
