"""Every operator that is imported, and what converts it."""

from __future__ import annotations

from detent.onnx_import import (
    activations,
    arithmetic,
    control_flow,
    convolutions,
    detection,
    gathering,
    integer_products,
    linear,
    logic,
    normalization,
    patches,
    pooling,
    quantization,
    recurrent,
    reductions,
    reshaping,
    resizing,
    shapes,
    slicing,
    spectra,
)
from detent.onnx_import.call import Converter

__all__ = ["CONVERTERS"]

CONVERTERS: dict[str, Converter] = {
    **arithmetic.CONVERTERS,
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
