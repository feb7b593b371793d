"""Where a range that is trained starts on few codes."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import Grid, QParams, Requirement, choose_qparams
from detent.observers.histogram_observer import HistogramObserver
from detent.observers.mse import least_error

__all__ = ["Start"]

_NORM = 3.0  # the square clips the large weights that matter most


class Start(HistogramObserver):
    """The range with the least cubed error; `calibrate` takes the whole range instead if the outputs are nearer so."""

    requires = Requirement(grids=(Grid,))

    def whole_range(self) -> QParams:
        """What `minmax` answers; to be asked for on every rank, as `qparams`."""
        low, high = self.extremes()
        return choose_qparams(low, high, self.scheme)

    def _qparams(self, low: Tensor, high: Tensor) -> QParams:
        return least_error(self._histogram.over_ranks(), low, high, self.scheme, _NORM)
