"""What is tried before any layer is treated apart, in the order of what it costs: one recipe makes another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from detent.recipes import AlgorithmRequest, Recipe, TensorRequest

__all__ = ["changes"]

Change = Callable[[Recipe], Recipe]

_OBSERVERS = ("mse", "percentile", "kl")


def changes() -> Iterator[tuple[str, Change]]:
    """Names and changes, the cheap ones first. Only the best of several observers is of use to the next change."""
    for observer in _OBSERVERS:
        yield f"activations observed by {observer}", _observing(observer, weights=False)
    yield "weights observed by mse", _observing("mse", weights=True)
    yield "equalization", _with_algorithm("equalize", first=True)
    yield "bias correction", _with_algorithm("bias_correction")
    yield "AdaRound", _rounding


def _observing(observer: str, *, weights: bool) -> Change:
    def change(recipe: Recipe) -> Recipe:
        request = TensorRequest(observer=observer)
        if weights:
            return recipe.replace(weight=request.over(recipe.weight))
        # Ranges of samples are chosen where no observer is named.
        calibration = recipe.calibration.replace(choose_ranges=None)
        return recipe.replace(activation=request.over(recipe.activation), calibration=calibration)

    return change


def _with_algorithm(name: str, *, first: bool = False) -> Change:
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
