"""The original values of corrected biases, stored in the state dict so that a model that loads it can undo the
corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from detent.graph.prepared import PreparedModel

__all__ = ["BEFORE_CORRECTION", "load_corrections", "save_corrections"]

BEFORE_CORRECTION = "corrected_biases."
"""What the names of float biases begin with in a state dict, before the name of the bias itself."""


def save_corrections(prepared: PreparedModel, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A hook of `state_dict`: adds the float values of corrected biases that have not changed since."""
    if not prepared.corrected:
        return
    for name, parameter in prepared.named_parameters(remove_duplicate=False):
        before, after = prepared.corrected.get(parameter, (None, None))
        if before is not None and after is not None and torch.equal(parameter, after):
            state[f"{prefix}{BEFORE_CORRECTION}{name}"] = before.detach().clone()


def load_corrections(prepared: PreparedModel, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """A hook of `load_state_dict`: the biases in `state` count as corrected if it says so, whatever they were here."""
    start = f"{prefix}{BEFORE_CORRECTION}"
    floats = {key.removeprefix(start): state.pop(key) for key in list(state) if key.startswith(start)}
    for name, parameter in prepared.named_parameters():
        if f"{prefix}{name}" not in state:
            continue
        if prepared.corrected.pop(parameter, None) is not None:
            prepared.float_originals.pop(parameter, None)
        if name in floats:
            before, after = (value.detach().to(parameter) for value in (floats[name], state[f"{prefix}{name}"]))
            prepared.corrected[parameter] = (before.clone(), after.clone())
            prepared.float_originals[parameter] = before.clone()
