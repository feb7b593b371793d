"""What workers of the tests do in place of training: functions of a cell."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any


def trivial(cell: dict[str, Any], *, allow_imports: bool) -> dict[str, Any]:
    """Figures as `measure_cell` gives them, from the seed."""
    del allow_imports
    accuracy = 90.0 + cell["axes"]["seed"]
    return {
        "accuracy": {"float": 92.0, "simulated": accuracy},
        "parameter_bytes": {"float": 400.0, "quantized": 50.0},
        "deployed": {
            "engine": None,
            "holds": True,
            "accuracy": {"simulated": accuracy, "twin": accuracy, "engine": None},
            "latency_ratio": None,
        },
        "seconds": {"prepare": 0.0, "quantize": 1.0, "measure": 0.0},
    }


def _count(cell: dict[str, Any]) -> int:
    """How often a cell was begun: the weights' folder counts."""
    folder = Path(cell["config"]["model"]["pretrained"]).parent
    for number in range(1000):
        try:
            (folder / f"{cell['axes']['seed']}-{number}").open("x").close()
        except FileExistsError:
            continue
        return number
    raise AssertionError


def killed_once(cell: dict[str, Any], *, allow_imports: bool) -> dict[str, Any]:
    """The process dies at the first try of the cell of seed 1."""
    if _count(cell) == 0 and cell["axes"]["seed"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return trivial(cell, allow_imports=allow_imports)


def killed_always(cell: dict[str, Any], *, allow_imports: bool) -> dict[str, Any]:
    """The process dies at every try of the cell of seed 1; seed 2 raises."""
    _count(cell)
    if cell["axes"]["seed"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if cell["axes"]["seed"] == 2:
        raise ValueError("two is no good")
    return trivial(cell, allow_imports=allow_imports)


def endless(cell: dict[str, Any], *, allow_imports: bool) -> dict[str, Any]:
    """It says that it has begun, and does not end by itself."""
    del allow_imports
    _count(cell)
    threading.Event().wait()
    raise AssertionError
