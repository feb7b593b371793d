"""What the tests of backends share: planning small networks, and the networks of `tests.models`, captured once."""

from __future__ import annotations

from functools import cache

import torch

from detent.graph import capture, fold_batch_norms
from detent.planning import plan
from detent.recipes import Recipe
from detent.targets import BACKENDS
from tests.graph.nets import made
from tests.networks.inline import Net

__all__ = ["DEFAULT", "Net", "captured_model", "image", "planned", "quantized", "shared", "summary"]

DEFAULT = Recipe(name="default")  # asks for nothing: all that is planned is the backend's own


def image(channels=4, size=6):
    return torch.randn(2, channels, size, size)


def planned(net, *inputs, backend, recipe=DEFAULT, modes=None, **said):
    """The Plan of a network; `said` are keys of a recipe of its own."""
    target = BACKENDS[backend] if isinstance(backend, str) else backend
    recipe = Recipe(name="mine", **said) if said else recipe
    captured = capture(net.eval(), inputs or (image(),), modes=modes)
    strategy = target.batch_norm if recipe.batch_norm.strategy is None else recipe.batch_norm.strategy
    fold_batch_norms(captured, strategy)
    return plan(captured, target, recipe)


@cache
def captured_model(name, strategy):
    """A network of `tests.models`, captured and with its batch norms folded."""
    captured = capture(*made(name))
    fold_batch_norms(captured, strategy)
    return captured


def summary(plan):
    """Tensor to what it is, in few words: "float", or the scheme, or "= <tensor>" for a shared one."""
    return {entry.tensor: "float" if hasattr(entry, "reason") else shared(entry) for entry in plan}


def shared(entry):
    return f"= {entry.shares}" if entry.shares else str(entry.scheme)


def quantized(plan):
    """The names of the quantized activations."""
    return [entry.tensor for entry in plan.quantized if entry.role == "activation"]
