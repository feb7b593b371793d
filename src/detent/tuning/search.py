"""The search of `tune`: which recipes are tried in which order, and which are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from glob import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.algorithms import RestoredOp, noise_of_weights, rank_restored, restoring
from detent.algorithms.common.batches import few, noise_of, outputs_of
from detent.algorithms.common.floating import as_float, evaluating
from detent.artifact import Artifact
from detent.errors import DataError, DetentError
from detent.evaluation import BitExact, OnEngine
from detent.graph import PreparedModel, eval_mode
from detent.planning import Backend
from detent.quantizers import Role
from detent.quantizing import calibrated
from detent.recipes import Match, Recipe, Rule, TensorRequest
from detent.targets.engines import ENGINES
from detent.tuning.changes import RecipeChange, Side, changes
from detent.tuning.metrics import Metric
from detent.tuning.result import Trial

__all__ = ["Best", "Search"]

_WIDEST = 16  # bits that some target computes with
_NAMED = 3
_ROWS = 16  # samples that tell whether a change may help
_SMALL = 0.1  # part of the noise: without it the outputs come half a decibel nearer
_ANY = TensorRequest()

Treatment = Callable[[Sequence[RestoredOp]], Recipe]


@dataclass(frozen=True)
class Best:
    """The best trial so far."""

    artifact: Artifact
    prepared: PreparedModel
    score: float
    recipe: Recipe
    judge: _Judge

    @cached_property
    def noise(self) -> float:
        """The noise at the simulated outputs."""
        return self.judge.noise(self.prepared)

    @cached_property
    def share(self) -> dict[Side, float]:
        """The shares of weights and of activations in the noise."""
        weights = noise_of_weights(self.prepared, self.judge.data)
        return {"weights": weights, "activations": 1 - weights}


class _Judge:
    """A few samples and the float outputs of the first model; later models may differ in float, because equalization
    changes it."""

    def __init__(self, data: Sequence[Any]):
        self.data = few(data, _ROWS)
        self._wanted: list[list[Tensor]] = []

    def noise(self, prepared: PreparedModel) -> float:
        with evaluating(prepared):
            if not self._wanted:
                with as_float(prepared):
                    self._wanted = outputs_of(prepared, self.data)
            return noise_of(self._wanted, outputs_of(prepared, self.data), torch.device("cpu"))


class Search:
    """The trials so far, and the best of them."""

    def __init__(
        self,
        network: nn.Module,
        data: Sequence[Any],
        backend: Backend,
        metric: Metric,
        drop: float,
        cpu: str | None,
        scratch: Path,
        report: Callable[[Trial], None],
    ):
        self._network, self._data, self._backend, self._metric = network, data, backend, metric
        self._cpu, self._scratch, self._report = cpu, scratch, report
        engine = None if backend.engine is None else ENGINES[backend.engine]
        self._engine = engine if engine is not None and engine.version() is not None else None
        self.measured_on = f"the twin of {backend.name}" if self._engine is None else self._engine.name
        with eval_mode(network), torch.no_grad():
            self.float_score = _number(metric(network))
        self.target = self.float_score - drop
        self.trials: list[Trial] = []
        self._best: Best | None = None
        self._judge = _Judge(data)

    def run(self, recipe: Recipe) -> Best:
        """Until the target is met, or there is nothing left to try."""
        self._try(recipe.name, recipe)
        if not self._met:
            share = self.best.share
            for change in changes("weights" if share["weights"] > share["activations"] else "activations"):
                if not self._met:
                    self._change(change)
        if not self._met:
            self._treat_operations()
        return self.best

    @property
    def best(self) -> Best:
        assert self._best is not None  # the first trial raises the error
        return self._best

    @property
    def _met(self) -> bool:
        return self.best.score >= self.target

    def _change(self, change: RecipeChange) -> None:
        """Try a change unless it is known not to help."""
        recipe, side = change.make(self.best.recipe), change.side
        if recipe == self.best.recipe:
            return
        share = 1.0 if side is None else self.best.share[side]
        if share < _SMALL:
            note = f"not tried: {side} make {share:.0%} of the error"
            self._add(Trial(change=change.name, recipe=recipe, score=None, note=note), time.perf_counter())
        else:
            self._try(change.name, recipe, screened=True)

    def _try(self, change: str, recipe: Recipe, *, screened: bool = False) -> bool:
        """Whether it was carried out. It is kept if it is better than all before.

        `screened`: it is not deployed if the simulated outputs are no nearer to the float ones than the best so far.
        """
        began = time.perf_counter()
        try:
            made = calibrated(
                self._network,
                self._data,
                backend=self._backend,
                recipe=recipe,
                steps=len(self._data) or None,
                cpu=self._cpu,
            )
            if screened and 0 < self.best.noise < math.inf:
                more = self._judge.noise(made.prepared) / self.best.noise
                if not more < 1:
                    note = f"not measured: {10 * math.log10(more):.1f} dB more error in simulation"
                    self._add(Trial(change=change, recipe=recipe, score=None, note=note), began)
                    return True
            artifact = made.write(self._scratch / str(len(self.trials)))
            found = self._metric(self._running(artifact))
        except DetentError as error:
            if self._best is None:
                raise
            self._add(Trial(change=change, recipe=recipe, score=None, note=f"not possible: {error.found}"), began)
            return False
        score = _number(found)
        gained = None if self._best is None else score - self._best.score
        kept = gained is None or gained > 0
        if kept:
            self._best = Best(artifact, made.prepared, score, recipe, self._judge)
        self._add(Trial(change=change, recipe=recipe, score=score, gained=gained, kept=kept), began)
        return True

    def _add(self, trial: Trial, began: float) -> None:
        timed = Trial(**{**vars(trial), "seconds": time.perf_counter() - began})
        self.trials.append(timed)
        self._report(timed)

    def _running(self, artifact: Artifact) -> nn.Module:
        prepared = _prepared(artifact)
        if self._engine is None:
            return BitExact(prepared)
        options = self._engine.options_for(str(artifact.manifest["arithmetic"]))
        return OnEngine(prepared, self._engine.load(artifact, **options), artifact.graph.inputs)

    def _treat_operations(self) -> None:
        """Give more bits to, or keep in float, as few operations as necessary."""
        ops, enough = self._needed()
        base = self.best.recipe
        for what, make in self._treatments(base):
            for count in _doubled(enough, len(ops) - 1):
                recipe = make(ops[:count])
                if not self._met and recipe != base and not self._try(_named(what, ops[:count]), recipe):
                    break

    def _needed(self) -> tuple[list[RestoredOp], int]:
        """The operations by gain, highest first, and how many of them the simulation says are needed."""
        prepared = self.best.prepared
        ops = rank_restored(prepared, self._data)
        few, enough = 0, max(1, len(ops) - 1)
        while enough - few > 1:
            middle = (few + enough) // 2
            with restoring(prepared, ops[:middle]):
                met = _number(self._metric(prepared)) >= self.target
            few, enough = (few, middle) if met else (middle, enough)
        return ops, enough

    def _treatments(self, base: Recipe) -> Iterator[tuple[str, Treatment]]:
        twice: dict[Role, TensorRequest] = {}
        for tensor in self.best.prepared.plan.quantized:
            bits = 2 * tensor.scheme.grid.bits
            if tensor.role != "bias" and bits <= min(_WIDEST, twice.get(tensor.role, _ANY).bits or _WIDEST):
                twice[tensor.role] = TensorRequest(bits=bits)
        if "weight" in twice:
            yield "more bits for", partial(_with_rules, base, dict(twice))
            del twice["weight"]  # engines that have 16 bits have them for activations
        if twice:
            yield "more bits for what is read by", partial(_with_rules, base, twice)
        yield "float:", lambda ops: base.replace(exclude=(*base.exclude, *(escape(one.op) for one in ops)))


def _prepared(artifact: Artifact) -> PreparedModel:
    assert artifact.prepared is not None  # it was made here
    return artifact.prepared


def _named(what: str, ops: Sequence[RestoredOp]) -> str:
    names = [one.op for one in ops]
    return f"{what} {', '.join(names) if len(names) <= _NAMED else f'{names[0]} and {len(names) - 1} others'}"


def _doubled(count: int, most: int) -> Iterator[int]:
    """`count`, twice that and so on, ending with `most`; at least one operation stays quantized."""
    while 0 < count < most:
        yield count
        count *= 2
    if most > 0:
        yield most


def _with_rules(recipe: Recipe, asked: Mapping[Role, TensorRequest], ops: Sequence[RestoredOp]) -> Recipe:
    """The requests for each operation, merged with the recipe's rule for it if there is one, because only the first
    rule applies."""
    rules = []
    for one in ops:
        rule = recipe.rule_for(one.op, one.kind) or Rule(match=Match(name=one.op))
        laid = {role: request.over(rule.request(role)) for role, request in asked.items()}
        rules.append(rule.replace(match=Match(name=escape(one.op)), **laid))
    return recipe.replace(rules=(*rules, *recipe.rules))


def _number(score: object) -> float:
    try:
        found = float(score)  # type: ignore[arg-type]  # a tensor or an array of one number is one
    except (TypeError, ValueError):
        raise DataError("the metric", f"it gave {score!r}", "give one number, greater if better") from None
    if not math.isfinite(found):
        raise DataError("the metric", f"it gave {found}", "give a finite number")
    return found
