"""A callback for Lightning's Trainer.

phases = Phases(module.net, calibration_batches, freeze_bn_begin=3)
Trainer(callbacks=[lightning_callback(phases)]).fit(module)
"""

from __future__ import annotations

from typing import Any

from detent.errors import EngineError, install_hint
from detent.training.phases import Phases

__all__ = ["lightning_callback"]


def lightning_callback(phases: Phases) -> Any:
    """Calibrates when fitting begins, enters the phases at their epochs, and measures float ranges when it ends."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise EngineError("a callback for Lightning", "lightning is not installed", install_hint("train")) from None

    class Quantization(Callback):  # type: ignore[misc, unused-ignore]
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            phases.begin()

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            phases.begin_epoch(int(trainer.current_epoch) + 1)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            phases.end()

    return Quantization()
