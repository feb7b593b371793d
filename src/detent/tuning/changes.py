"""Changes of a recipe that are tried before single layers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from detent.recipes import AlgorithmRequest, Recipe, TensorRequest

__all__ = ["RecipeChange", "Side", "changes"]

Side = Literal["weights", "activations"]
Made = Callable[[Recipe], Recipe]


class RecipeChange(NamedTuple):
    """A named change of a recipe. `side` is the side whose error it reduces; None if it reduces both."""

    name: str
    make: Made
    side: Side | None = None


_OBSERVERS = ("mse", "percentile", "kl")


def changes(worse: Side) -> list[RecipeChange]:
    """The changes to try, in order, those for the side with the larger error first."""
    of_activations = [
        RecipeChange(f"activations observed by {observer}", _observing(observer, weights=False), "activations")
        for observer in _OBSERVERS
    ]
    of_weights = [
        RecipeChange("weights observed by mse", _observing("mse", weights=True), "weights"),
        RecipeChange("equalization", _with_algorithm("equalize", first=True)),
    ]
    ordered = of_weights + of_activations if worse == "weights" else of_activations + of_weights
    return [
        *ordered,
        RecipeChange("bias correction", _with_algorithm("bias_correction")),
        RecipeChange("AdaRound", _rounding),
    ]


def _observing(observer: str, *, weights: bool) -> Made:
    def change(recipe: Recipe) -> Recipe:
        request = TensorRequest(observer=observer)
        if weights:
            return recipe.replace(weight=request.over(recipe.weight))
        # Ranges of samples are chosen where no observer is named.
        calibration = recipe.calibration.replace(choose_ranges=None)
        return recipe.replace(activation=request.over(recipe.activation), calibration=calibration)

    return change


def _with_algorithm(name: str, *, first: bool = False) -> Made:
    def change(recipe: Recipe) -> Recipe:
        if any(request.name == name for request in recipe.algorithms):
            return recipe
        added = (AlgorithmRequest(name=name),)
        return recipe.replace(algorithms=added + recipe.algorithms if first else recipe.algorithms + added)

    return change


def _rounding(recipe: Recipe) -> Recipe:
    if any(request.name == "adaround" for request in recipe.algorithms):
        return recipe
    others = [request for request in recipe.algorithms if request.name != "bias_correction"]
    return recipe.replace(
        weight=TensorRequest(quantizer="adaround").over(recipe.weight),
        algorithms=(*others, AlgorithmRequest(name="adaround")),
    )
