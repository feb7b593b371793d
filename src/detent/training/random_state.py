"""The states of all random generators that a training step may use."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["random_state", "seed_everything", "set_random_state"]


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator, which a user's transforms may draw from
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The state from which `set_random_state` makes all generators draw the same numbers again."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the states of all generators."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
