"""A callback for the Trainer of Hugging Face's transformers.

phases = Phases(model.net, calibration_batches, freeze_bn_begin=3)
Trainer(model, ..., callbacks=[hugging_face_callback(phases)]).train()
"""

from __future__ import annotations

from typing import Any

from detent.errors import EngineError, install_hint
from detent.training.phases import Phases

__all__ = ["hugging_face_callback"]


def hugging_face_callback(phases: Phases) -> Any:
    """Calibrates when training begins, enters the phases at their epochs, and measures float ranges when it ends."""
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise EngineError(
            "a callback for Hugging Face's Trainer",
            "transformers is not installed",
            install_hint("transformers"),
        ) from None

    class Quantization(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            phases.begin()

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            phases.begin_epoch(int(state.epoch or 0) + 1)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            phases.end()

    return Quantization()
