"""The table of algorithms that a recipe can name: when each of them runs, and the check of its options."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from detent.algorithms.adaround import adaround
from detent.algorithms.autoround import autoround, autoround_layers
from detent.algorithms.awq import awq
from detent.algorithms.bias_correction import bias_correction
from detent.algorithms.brecq import brecq, qdrop
from detent.algorithms.common.piecewise import Outcome
from detent.algorithms.common.report import Report
from detent.algorithms.common.walk import Walk
from detent.algorithms.equalization import equalize
from detent.algorithms.finetuning import finetune_scales, finetune_weights
from detent.algorithms.gptq import gptq, gptq_layers
from detent.algorithms.hqq import hqq
from detent.algorithms.rotate import rotate
from detent.algorithms.smoothquant import smoothquant
from detent.errors import RecipeError, RegistrationError
from detent.graph import PreparedModel
from detent.registry import Table

__all__ = ["ALGORITHMS", "Algorithm", "check", "run_algorithm"]

Phase = Literal["before calibration", "after calibration"]


@dataclass(frozen=True)
class Algorithm:
    """A function of a prepared model and batches with keyword options, the phase in which it runs, and a one-line
    description.

    `needs_data` is whether the batches influence its result. `on_graph`, for an algorithm that works layer by layer,
    takes the options and returns what is done to one graph, so that the algorithm can work on a model of which only a
    part is in memory at a time.
    """

    run: Callable[..., Report]
    phase: Phase
    about: str
    needs_data: bool = True
    on_graph: Callable[..., Callable[[Walk], Iterable[Outcome]]] | None = None


class AlgorithmRegistry(Table[Algorithm]):
    """Algorithms by name. A registered name cannot be replaced."""

    def __init__(self, table: Mapping[str, Algorithm]):
        super().__init__("algorithm")
        for name, algorithm in table.items():
            self.register(name, algorithm)

    def register(self, name: str, algorithm: Algorithm) -> None:
        """Add `algorithm` under `name`; refuse a name that is taken, a value that is no Algorithm, and an unknown
        phase."""
        self._check(name, algorithm)
        if name in self._table and self[name] != algorithm:
            raise RegistrationError(
                f"register algorithm {name!r}", f"the name is taken: {self[name].about}", "choose another"
            )
        self._table[name] = algorithm

    def _check(self, name: str, thing: Any) -> None:
        asked = f"register algorithm {name!r}"
        if not isinstance(thing, Algorithm):
            raise RegistrationError(asked, f"it is a {type(thing).__name__}", "give an Algorithm(run, phase, about)")
        if thing.phase not in get_args(Phase):
            raise RegistrationError(
                asked, f"its phase is {thing.phase!r}", f"use one of {', '.join(map(repr, get_args(Phase)))}"
            )


_BEFORE: Phase = "before calibration"
_AFTER: Phase = "after calibration"

ALGORITHMS = AlgorithmRegistry(
    {
        "equalize": Algorithm(equalize, _BEFORE, "cross-layer equalization, high biases absorbed (Nagel et al., 2019)"),
        "smoothquant": Algorithm(
            smoothquant, _BEFORE, "outliers moved from activations to weights (Xiao et al., 2023)"
        ),
        "awq": Algorithm(awq, _BEFORE, "weights that meet large inputs enlarged (Lin et al., 2024)"),
        "rotate": Algorithm(rotate, _BEFORE, "residual streams turned by Hadamard matrices (Ashkboos et al., 2024)"),
        "hqq": Algorithm(
            hqq, _AFTER, "scales fitted to weights without data (Badri and Shaji, 2023)", needs_data=False
        ),
        "gptq": Algorithm(
            gptq, _AFTER, "weights column by column, with second moments (Frantar et al., 2023)", on_graph=gptq_layers
        ),
        "autoround": Algorithm(
            autoround,
            _AFTER,
            "rounding and scales by signed gradients (Cheng et al., 2024)",
            on_graph=autoround_layers,
        ),
        "adaround": Algorithm(adaround, _AFTER, "learned rounding, layer by layer (Nagel et al., 2020)"),
        "brecq": Algorithm(brecq, _AFTER, "learned rounding and scales, block by block (Li et al., 2021)"),
        "qdrop": Algorithm(qdrop, _AFTER, "BRECQ with quantization dropped at random (Wei et al., 2022)"),
        "finetune_weights": Algorithm(finetune_weights, _AFTER, "weights, biases and scales together (AdaQuant, 2021)"),
        "finetune_scales": Algorithm(finetune_scales, _AFTER, "scales alone, block by block (LSQ)"),
        "bias_correction": Algorithm(bias_correction, _AFTER, "mean errors taken out of biases (Nagel et al., 2019)"),
    }
)


def check(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown algorithm, an unknown option, and a value of the wrong type."""
    takes = _options(ALGORITHMS[name].run)
    for option, value in options.items():
        asked = f"algorithm {name!r} with {option} = {value!r}"
        if option not in takes:
            found = f"it takes {', '.join(takes)}" if takes else "it takes no options"
            raise RecipeError(asked, found, _near(option, takes, "remove it"))
        if not _fits(value, takes[option]):
            wanted = getattr(takes[option], "__name__", str(takes[option]))
            raise RecipeError(
                asked, f"it is a {type(value).__name__}; {wanted} is expected", "give a value of that type"
            )


def run_algorithm(name: str, prepared: PreparedModel, batches: Iterable[Any], options: Mapping[str, Any]) -> Report:
    """Check the options and run one algorithm of the table."""
    check(name, options)
    return ALGORITHMS[name].run(prepared, batches, **options)


def _options(function: Callable[..., Report]) -> dict[str, Any]:
    """Keyword parameters and their types; `object`, which accepts any value, if there is no annotation."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {one.name: hints.get(one.name, object) for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _near(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
