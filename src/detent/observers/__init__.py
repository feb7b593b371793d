"""Observers: from the batches of a tensor to its scale and zero point, one method per file."""

from detent.observers.batch_by_batch import BatchByBatch
from detent.observers.fixed import Fixed
from detent.observers.histogram import Histogram
from detent.observers.isotone import Isotone
from detent.observers.kl import Kl
from detent.observers.lsq import Lsq
from detent.observers.lsq_plus import LsqPlus
from detent.observers.minmax import MinMax
from detent.observers.moving_average import MovingAverage
from detent.observers.mse import Mse
from detent.observers.observer import Observer
from detent.observers.percentile import MovingPercentile, Percentile
from detent.observers.pow2_mode import Pow2Mode
from detent.observers.pow2_sse import Pow2Sse
from detent.observers.start import Start
from detent.observers.std import Std
from detent.registry import Registry

__all__ = [
    "OBSERVERS",
    "BatchByBatch",
    "Fixed",
    "Histogram",
    "Isotone",
    "Kl",
    "Lsq",
    "LsqPlus",
    "MinMax",
    "MovingAverage",
    "MovingPercentile",
    "Mse",
    "Observer",
    "Percentile",
    "Pow2Mode",
    "Pow2Sse",
    "Start",
    "Std",
    "register",
]

OBSERVERS: Registry[Observer] = Registry(
    "observer",
    Observer,
    {
        "minmax": MinMax,
        "moving_average": MovingAverage,
        "percentile": Percentile,
        "moving_percentile": MovingPercentile,
        "std": Std,
        "mse": Mse,
        "start": Start,
        "kl": Kl,
        "lsq": Lsq,
        "lsq_plus": LsqPlus,
        "pow2_sse": Pow2Sse,
        "pow2_mode": Pow2Mode,
        "isotone": Isotone,
        "fixed": Fixed,
    },
)
register = OBSERVERS.register
