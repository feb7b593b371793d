"""A bias stored as integers on the scale of its accumulator: input scale times weight scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from detent.numerics import PerTensor, QParams, Scheme, fused_accumulator_quantize, quantize
from detent.quantizers import QUANTIZE, Mode, Quantizer, on_grid, straight_through

__all__ = ["DerivedBias"]


class DerivedBias(nn.Module):
    """The scale is derived from two other quantizers; nothing is measured or learned."""

    def __init__(self, scheme: Scheme, of_input: Quantizer, of_weight: Quantizer, name: str):
        super().__init__()
        self.scheme, self.name = scheme, name
        self.mode: Mode = QUANTIZE
        self._sources = (of_input, of_weight)  # in a tuple: they are registered where they belong

    def qparams(self) -> QParams:
        """Zero point 0, and the product of the scales, rounded to float32 as engines do."""
        return QParams.symmetric(self._product())

    def qparams_for(self, bias: Tensor) -> QParams:
        """The same, with a scale for each element that has one."""
        return QParams.symmetric(self._scale_for(bias))

    def _product(self) -> Tensor:
        of_input, of_weight = (source.qparams().scale for source in self._sources)
        return (of_input * of_weight).detach()

    def _scale_for(self, bias: Tensor) -> Tensor:
        scale = self._product()
        if isinstance(self.scheme.granularity, PerTensor):
            return scale.reshape(())
        if scale.numel() == bias.numel():
            return scale
        return scale.flatten().expand(bias.shape) if scale.numel() == 1 else _repeat(scale, bias)

    @torch.no_grad()
    def codes(self, bias: Tensor) -> Tensor:
        """The deployed integers."""
        # In float64: a code of 32 bits has more digits than a float32.
        return quantize(bias.double(), self.qparams_for(bias), self.scheme)

    def forward(self, bias: Tensor) -> Tensor:
        if not (self.mode.quantizes and all(source.calibrated for source in self._sources)):
            return bias  # also where a module is printed that was not calibrated; running it, its input says so
        scale = self._scale_for(bias)  # a product of scales that were checked
        grid = self.scheme.grid
        assert grid.is_uniform
        if grid.compute_dtype(bias.dtype) == torch.float64:
            fused = fused_accumulator_quantize(bias, scale, grid.qmin, grid.qmax, self.scheme.rounding)
            if fused is not None:
                return fused
        zero = torch.zeros_like(scale)
        simulated = on_grid(bias, scale, zero, self.scheme)
        # What the codes stand for, to the last bit: a float32 has fewer digits than some of them.
        with torch.no_grad():
            codes = on_grid(
                bias.double() / scale.double(), torch.ones_like(scale, dtype=torch.double), zero, self.scheme
            )
            deployed = codes.to(scale.dtype) * scale
        return straight_through(deployed.to(simulated.dtype), simulated)


def _repeat(scale: Tensor, bias: Tensor) -> Tensor:
    """A grouped transposed convolution has a scale for each output of one group."""
    return scale.repeat(bias.numel() // scale.numel())
