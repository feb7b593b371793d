"""Fake quantizers: what quantization does to a tensor and to its gradient, one paper per file."""

from detent.numerics import Grid
from detent.quantizers.adaround import AdaRound
from detent.quantizers.apot import Apot
from detent.quantizers.dorefa import DoReFa
from detent.quantizers.dsq import Dsq
from detent.quantizers.fixed import Fixed
from detent.quantizers.log import Log
from detent.quantizers.lsq import Lsq
from detent.quantizers.lsq_plus import LsqPlus
from detent.quantizers.mode import PASS_THROUGH, QUANTIZE, Mode, in_modes
from detent.quantizers.moving_range import MovingRange
from detent.quantizers.pact import Pact
from detent.quantizers.qdrop import QDrop
from detent.quantizers.qil import Qil
from detent.quantizers.quantizer import Quantizer, Role
from detent.quantizers.seq import Seq
from detent.quantizers.straight_through import straight_through
from detent.quantizers.tqt import Tqt
from detent.quantizers.uniform import on_grid
from detent.registry import Registry

__all__ = [
    "PASS_THROUGH",
    "QUANTIZE",
    "QUANTIZERS",
    "AdaRound",
    "Apot",
    "DoReFa",
    "Dsq",
    "Fixed",
    "Log",
    "Lsq",
    "LsqPlus",
    "Mode",
    "MovingRange",
    "Pact",
    "QDrop",
    "Qil",
    "Quantizer",
    "Role",
    "Seq",
    "Tqt",
    "in_modes",
    "on_grid",
    "plain_quantizer",
    "register",
    "straight_through",
]

QUANTIZERS: Registry[Quantizer] = Registry(
    "quantizer",
    Quantizer,
    {
        "fixed": Fixed,
        "moving_range": MovingRange,
        "lsq": Lsq,
        "lsq_plus": LsqPlus,
        "tqt": Tqt,
        "pact": Pact,
        "dorefa": DoReFa,
        "dsq": Dsq,
        "qil": Qil,
        "apot": Apot,
        "adaround": AdaRound,
        "qdrop": QDrop,
        "log": Log,
        "seq": Seq,
    },
)
register = QUANTIZERS.register


def plain_quantizer(grid: Grid) -> str:
    """The name of the default method for tensors on `grid`.

    >>> from detent.numerics import IntGrid, LogGrid
    >>> plain_quantizer(IntGrid(8)), plain_quantizer(LogGrid())
    ('fixed', 'log')
    """
    return next(name for name, cls in QUANTIZERS.items() if cls.plain and isinstance(grid, cls.requires.grids))
