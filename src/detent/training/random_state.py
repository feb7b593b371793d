"""The states of every random generator a training step may draw from."""

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
    """What `set_random_state` needs to make all generators draw the same numbers again."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put the generators where they were."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
