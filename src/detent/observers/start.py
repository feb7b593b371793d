"""Initial ranges for training at low bit widths."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import Grid, QParams, Requirement, Scheme, choose_qparams
from detent.observers.distribution import Distribution
from detent.observers.mse import checked_norm, least_error
from detent.observers.observer import Observer

__all__ = ["Start"]


class Start(Observer):
    """The range with the least cubed error; `calibrate` takes an alternative if the outputs are nearer so.

    The square clips the large weights that matter most, the whole range has the coarsest steps: which of the three is
    best depends on the network (docs/training.md has the numbers).
    """

    requires = Requirement(grids=(Grid,))

    def __init__(self, scheme: Scheme, *, name: str = "tensor", norm: float = 3.0, bins: int | None = None):
        super().__init__(scheme, name=name)
        self.norm = checked_norm(norm)
        self._seen = Distribution(scheme, bins)

    def alternatives(self) -> tuple[QParams, QParams]:
        """The results of `mse` and `minmax`; a collective operation like `qparams`."""
        low, high = self.extremes()
        square = least_error(self._seen, low, high, self.scheme, 2.0)
        return square, choose_qparams(low, high, self.scheme)

    def _observe(self, x: Tensor, low: Tensor, high: Tensor) -> None:  # noqa: ARG002
        self._seen.add(x)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        return least_error(self._seen, low, high, self.scheme, self.norm)
