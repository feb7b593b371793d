"""Recipes: what a user asks of a quantization, before the model or the backend is known."""

from detent.recipes.builtin import BUILTIN, Builtin
from detent.recipes.find import find
from detent.recipes.options import Options
from detent.recipes.recipe import AlgorithmRequest, BatchNorm, Calibration, Recipe
from detent.recipes.rule import Match, Rule
from detent.recipes.tensor_request import Groups, TensorRequest

__all__ = [
    "BUILTIN",
    "AlgorithmRequest",
    "BatchNorm",
    "Builtin",
    "Calibration",
    "Groups",
    "Match",
    "Options",
    "Recipe",
    "Rule",
    "TensorRequest",
    "find",
]
