"""Checks that an algorithm makes before it starts."""

from __future__ import annotations

from detent.errors import NotCalibratedError, SchemeError
from detent.graph import PreparedModel, quantizers_of
from detent.quantizers import Quantizer

__all__ = ["needs_calibration", "needs_quantizer"]


def needs_calibration(prepared: PreparedModel, algorithm: str) -> None:
    """Refuse a model with a quantizer that is not calibrated."""
    missing = [quantizer.name for quantizer in quantizers_of(prepared) if not quantizer.calibrated]
    if missing:
        raise NotCalibratedError(
            algorithm, f"{len(missing)} tensors were never measured, {missing[0]!r} among them", "calibrate first"
        )


def needs_quantizer(prepared: PreparedModel, algorithm: str, wanted: type[Quantizer]) -> None:
    """Refuse a model that is not calibrated, or that has no quantizer of the type that the algorithm works on."""
    needs_calibration(prepared, algorithm)
    if not any(isinstance(quantizer, wanted) for quantizer in quantizers_of(prepared)):
        raise SchemeError(
            algorithm,
            f"no tensor of the model is quantized by {wanted.__name__}",
            f"prepare it with recipe {algorithm!r}, or with the quantizer in your own",
        )
