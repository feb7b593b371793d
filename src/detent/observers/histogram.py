"""Histograms that merge exactly, whatever order and batches the data came in.

A bin is `[i * width, (i + 1) * width)` with a width that is a power of two, so bins are anchored at zero and
two neighbors make exactly one bin of twice the width. When a batch does not fit, the width doubles until it
does. The final counts therefore depend on the data alone, not on how it was split, and memory is fixed.
Which bin a value falls in is exact too: dividing by a power of two does not round.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from detent.errors import SchemeError
from detent.numerics import native
from detent.observers.ranks import over_ranks

__all__ = ["Histogram"]

_LEAST_EXPONENT = -100  # ranges below 2^-100 are all alike; keeps 1 / width finite
_PARTS = 16


class Histogram:
    """Counts of a tensor's values, a row for each scale.

    `counts[r, i]` is the number of values in `[(i - bins/2) * width[r], (i + 1 - bins/2) * width[r])`.

    >>> h = Histogram(bins=8)
    >>> h.add(torch.tensor([[0.1, 0.3, -0.2]]))
    >>> h.width.tolist(), h.counts.tolist()
    ([0.125], [[0, 0, 1, 0, 1, 0, 1, 0]])
    >>> h.add(torch.tensor([[0.9]]))
    >>> h.width.tolist(), h.counts.tolist()
    ([0.25], [[0, 0, 0, 1, 1, 1, 0, 1]])
    """

    def __init__(self, bins: int):
        if bins < 4 or bins & (bins - 1):
            raise SchemeError(f"a histogram of {bins} bins", "bins merge in pairs", "choose a power of two >= 4")
        self.bins = bins
        self.counts = torch.empty(0)
        self._exponent = torch.empty(0)  # a row covers [-2^exponent, 2^exponent)
        self._empty = True

    @property
    def width(self) -> Tensor:
        """The width of the bins of each row, float64."""
        return torch.ldexp(torch.ones_like(self._exponent, dtype=torch.float64), self._exponent + 1) / self.bins

    @property
    def half(self) -> int:
        """The index of the bin that starts at zero."""
        return self.bins // 2

    def edges(self) -> Tensor:
        """The left edge of every bin, float64, (rows, bins)."""
        index = torch.arange(self.bins, device=self.counts.device, dtype=torch.float64) - self.half
        return index * self.width[:, None]

    def add(self, rows: Tensor) -> None:
        """Count the float32 values of a matrix, each in the row it stands in; they must be finite."""
        rows = rows.contiguous()
        largest = torch.maximum(-rows.amin(1), rows.amax(1))
        exponent = torch.frexp(largest).exponent.to(torch.int64)
        exponent = torch.where(largest > 0, exponent, _LEAST_EXPONENT).clamp_min(_LEAST_EXPONENT)
        if self._empty:
            self.counts = torch.zeros(len(rows), self.bins, dtype=torch.int64, device=rows.device)
            self._exponent, self._empty = exponent, False
        else:
            self._coarsen_to(torch.maximum(self._exponent, exponent))
        self._count(rows)

    def over_ranks(self) -> Histogram:
        """The histogram of the values of all ranks."""
        total = Histogram(self.bins)
        total.counts, total._exponent, total._empty = self.counts, self._exponent, self._empty
        total._coarsen_to(over_ranks(self._exponent, "max"))
        total.counts = over_ranks(total.counts, "sum")
        return total

    def emptied(self) -> Histogram:
        """An empty histogram with the same number of rows and bins."""
        nothing = Histogram(self.bins)
        nothing.counts, nothing._empty = torch.zeros_like(self.counts), self._empty
        nothing._exponent = torch.full_like(self._exponent, _LEAST_EXPONENT)
        return nothing

    def folded(self) -> Tensor:
        """Counts of the magnitudes, (rows, bins / 2): bin i holds x in [i, i + 1) and -x in (i, i + 1] widths."""
        return self.counts[:, self.half :] + self.counts[:, : self.half].flip(1)

    def quantile(self, q: float) -> Tensor:
        """The value below which a share `q` of each row lies, linear inside a bin, float64."""
        return _quantile(self.counts, q) * self.width - self.half * self.width

    def magnitude_quantile(self, q: float) -> Tensor:
        """The same for |x|."""
        return _quantile(self.folded(), q) * self.width

    def points(self, per_bin: int) -> tuple[Tensor, Tensor]:
        """The data as weighted points, `per_bin` of them spread evenly in each occupied bin.

        Values and how many they stand for, both float64, (rows, points).
        """
        bins = self._bins_in_use()
        offsets = (torch.arange(per_bin, device=self.counts.device, dtype=torch.float64) + 0.5) / per_bin
        values = self.edges().gather(1, bins)[:, :, None] + offsets * self.width[:, None, None]
        weights = self.counts.gather(1, bins)[:, :, None].double() / per_bin
        return values.flatten(1), weights.expand(values.shape).flatten(1)

    def _bins_in_use(self) -> Tensor:
        """Indices of bins, (rows, some): all occupied ones of each row, and empty ones where others have more.

        A channel of a weight occupies a few hundred of thousands of bins.
        """
        occupied = self.counts > 0
        most = int(occupied.sum(1).max())
        return occupied.byte().sort(dim=1, descending=True, stable=True).indices[:, :most]

    def _coarsen_to(self, exponent: Tensor) -> None:
        steps = exponent - self._exponent
        if not bool(steps.any()):
            return
        index = torch.arange(self.bins, device=self.counts.device) - self.half
        # An arithmetic shift is a division that rounds down: bin -1 stays bin -1.
        merged = (index >> steps.clamp_max(62)[:, None]) + self.half
        self.counts = torch.zeros_like(self.counts).scatter_add_(1, merged, self.counts)
        self._exponent = exponent

    def _count(self, rows: Tensor) -> None:
        lib = native.library() if rows.device.type == "cpu" else None
        if lib is None:
            shift = torch.ldexp(torch.ones_like(self._exponent, dtype=torch.float32), self._shift())
            place = rows * shift[:, None]
            below = (rows < 0) & (place == 0)  # so small beside the width that it has become zero
            index = torch.where(below, -1, torch.floor(place).to(torch.int64)) + self.half
            index += torch.arange(len(rows), device=rows.device)[:, None] * self.bins
            self.counts += torch.bincount(index.flatten(), minlength=self.counts.numel()).reshape(self.counts.shape)
            return
        parts = _PARTS if rows.shape[1] > 2**15 else 1
        scratch = torch.empty(parts * self.bins, dtype=torch.int32)
        for row, counts, shift in zip(rows, self.counts, self._shift().tolist(), strict=True):
            lib.histogram(
                row.data_ptr(),
                row.numel(),
                math.ldexp(1.0, shift),
                self.half,
                counts.data_ptr(),
                scratch.data_ptr(),
                parts,
            )

    def _shift(self) -> Tensor:
        """log2 of 1 / width."""
        return int(math.log2(self.bins)) - 1 - self._exponent


def _quantile(counts: Tensor, q: float) -> Tensor:
    """Position of the q-quantile of each row, in bins from the left."""
    cumulative = counts.cumsum(1).double()
    target = cumulative[:, -1:] * q
    at = torch.searchsorted(cumulative, target).clamp_max(counts.shape[1] - 1)
    inside = counts.gather(1, at).double()
    before = cumulative.gather(1, at) - inside
    share = ((target - before) / inside.clamp_min(1)).clamp(0, 1)
    return (at + share).squeeze(1)
