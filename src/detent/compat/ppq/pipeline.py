"""PPQ's pipelines: passes in order, each of which says what a setting says, or is a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from detent.compat.ppq.executor import TorchExecutor
from detent.compat.ppq.graph import BaseGraph
from detent.compat.ppq.platforms import TargetPlatform
from detent.compat.ppq.quantizer import Quantizer
from detent.compat.ppq.settings import QuantizationSetting
from detent.errors import RecipeError

__all__ = [
    "PASSES",
    "BiasCorrectionPass",
    "LayerwiseEqualizationPass",
    "LearnedStepSizePass",
    "ParameterQuantizePass",
    "PassiveParameterQuantizePass",
    "Pipeline",
    "QuantizationOptimizationPass",
    "QuantizationOptimizationPipeline",
    "QuantizeFusionPass",
    "QuantizeSimplifyPass",
    "RuntimeCalibrationPass",
]


class QuantizationOptimizationPass:
    """A pass. Those of PPQ `ask` for what a setting has; your own override `optimize`, which is run on the graph:
    before it is quantized if it stands in front of `RuntimeCalibrationPass`, on the quantized one if behind it."""

    def ask(self, setting: QuantizationSetting) -> None:
        """Change the setting that the graph is quantized with."""

    def optimize(self, graph: BaseGraph, dataloader: Iterable[Any], executor: TorchExecutor, **kwargs: Any) -> None:
        """Change the graph."""


class QuantizeSimplifyPass(QuantizationOptimizationPass):
    """One quantizer for a tensor: always so here."""


class PassiveParameterQuantizePass(QuantizationOptimizationPass):
    """Biases on the scale of input times weight: what the states of their configs say here."""


class QuantizeFusionPass(QuantizationOptimizationPass):
    """Activations are fused into the operation before them; without this pass they are not."""

    def ask(self, setting: QuantizationSetting) -> None:
        setting.fusion = True


@dataclass
class RuntimeCalibrationPass(QuantizationOptimizationPass):
    """The graph is quantized and calibrated here; `method` is the observer of all activations."""

    method: str | None = None

    def ask(self, setting: QuantizationSetting) -> None:
        setting.quantize_activation_setting.calib_algorithm = self.method


@dataclass
class ParameterQuantizePass(QuantizationOptimizationPass):
    """`method` is the observer of all weights."""

    method: str | None = None

    def ask(self, setting: QuantizationSetting) -> None:
        setting.quantize_parameter_setting.calib_algorithm = self.method


@dataclass
class LayerwiseEqualizationPass(QuantizationOptimizationPass):
    iterations: int = 10

    def ask(self, setting: QuantizationSetting) -> None:
        setting.equalization, setting.equalization_setting.iterations = True, self.iterations


class BiasCorrectionPass(QuantizationOptimizationPass):
    def ask(self, setting: QuantizationSetting) -> None:
        setting.bias_correct = True


@dataclass
class LearnedStepSizePass(QuantizationOptimizationPass):
    steps: int = 500
    lr: float = 5e-5
    is_scale_trainable: bool = True

    def ask(self, setting: QuantizationSetting) -> None:
        setting.lsq_optimization, chosen = True, setting.lsq_optimization_setting
        chosen.steps, chosen.lr, chosen.is_scale_trainable = self.steps, self.lr, self.is_scale_trainable


PASSES = (
    QuantizeSimplifyPass,
    PassiveParameterQuantizePass,
    QuantizeFusionPass,
    RuntimeCalibrationPass,
    ParameterQuantizePass,
    LayerwiseEqualizationPass,
    BiasCorrectionPass,
    LearnedStepSizePass,
)


class QuantizationOptimizationPipeline:
    """Passes in order. Those of `PASSES` together say how the graph is quantized, which happens at
    `RuntimeCalibrationPass`."""

    def __init__(self, passes: Sequence[QuantizationOptimizationPass]):
        self.passes = list(passes)
        for one in self.passes:
            if not isinstance(one, QuantizationOptimizationPass):
                raise RecipeError(
                    f"the pass {one!r}", "it is not a QuantizationOptimizationPass", "derive it from that"
                )

    def append_optimization_to_pipeline(self, optim_pass: QuantizationOptimizationPass, at_front: bool = False) -> None:
        self.passes.insert(0 if at_front else len(self.passes), optim_pass)

    def optimize(
        self,
        graph: BaseGraph,
        dataloader: Iterable[Any],
        executor: TorchExecutor,
        *,
        calib_steps: int = 32,
        collate_fn: Callable[[Any], Any] | None = None,
        verbose: bool = False,
    ) -> None:
        """Run every pass, on a graph that was dispatched."""
        if not any(isinstance(one, RuntimeCalibrationPass) for one in self.passes):
            found = ", ".join(type(one).__name__ for one in self.passes) or "no pass"
            raise RecipeError("a pipeline that quantizes", f"it has {found}", "add RuntimeCalibrationPass()")
        setting = QuantizationSetting(fusion=False)
        for one in self.passes:
            one.ask(setting)
        for one in self.passes:
            if isinstance(one, RuntimeCalibrationPass):
                self._quantize(graph, dataloader, executor, setting, calib_steps, collate_fn, verbose)
            elif not isinstance(one, PASSES):
                one.optimize(graph, dataloader, executor, calib_steps=calib_steps, collate_fn=collate_fn)

    def _quantize(
        self,
        graph: BaseGraph,
        dataloader: Iterable[Any],
        executor: TorchExecutor,
        setting: QuantizationSetting,
        calib_steps: int,
        collate_fn: Callable[[Any], Any] | None,
        verbose: bool,
    ) -> None:
        there = {
            one.platform for one in graph.operations.values() if TargetPlatform.is_quantized_platform(one.platform)
        }
        if len(there) != 1:
            names = ", ".join(sorted(one.name for one in there)) or "none"
            raise RecipeError(f"quantize {graph.name!r}", f"it is dispatched to {names}", "dispatch_graph it to one")
        quantizer = Quantizer(there.pop(), graph)
        quantizer._verbose = verbose
        first = next(iter(dataloader))
        quantizer.quantize(
            collate_fn(first) if collate_fn else first, dataloader, executor, setting, calib_steps, collate_fn
        )


Pipeline = QuantizationOptimizationPipeline
"""PPQ's `ppq.lib.Pipeline`, which makes one."""
