"""Config values overridden on the command line: `optimizer.lr=0.01`."""

from __future__ import annotations

from typing import Any

from detent.errors import RecipeError
from detent.recipes import yaml_text
from detent.recipes.files import refuse_long_numbers
from detent.recipes.refusal import RefusalError

__all__ = ["parse_override"]

_DEEPEST = 50  # keys


def parse_override(text: str) -> dict[str, Any]:
    """`key.key=value` as the mapping that a config file would have; the value is read as YAML, and is plain data.

    >>> parse_override("optimizer.lr=1e-3"), parse_override("model.options.width=0.5")
    ({'optimizer': {'lr': 0.001}}, {'model': {'options': {'width': 0.5}}})
    """
    path, equals, value = text.partition("=")
    keys = path.split(".")
    if not equals or not all(keys):
        raise RecipeError(f"the override {text!r}", "it is not KEY=VALUE", "write it as optimizer.lr=0.01")
    if len(keys) > _DEEPEST:
        raise RecipeError(f"the override {text[:40]!r}...", f"{len(keys)} keys", "a config is a few levels deep")
    try:
        held = yaml_text.loads(value)
    except RefusalError as refusal:
        raise RecipeError(f"the override {text!r}", refusal.found, refusal.to_do) from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"the override {text!r}", f"its value is not YAML: {error}", "put it in quotes") from None
    refuse_long_numbers(held, f"the override {text[:60]!r}")
    for key in reversed(keys[1:]):
        held = {key: held}
    return {keys[0]: held}
