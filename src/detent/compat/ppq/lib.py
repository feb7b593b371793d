"""The rest of `ppq.lib`: readers, writers, dispatchers and observers by name."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from torch import Tensor

from detent.compat.ppq.api import NetworkFramework, load_graph
from detent.compat.ppq.config import TensorQuantizationConfig, grid_of, request_of
from detent.compat.ppq.dispatching import DISPATCHERS, dispatched
from detent.compat.ppq.export import export_ppq_graph, refuse_platform
from detent.compat.ppq.graph import BaseGraph, Variable
from detent.compat.ppq.platforms import TargetPlatform
from detent.compat.ppq.policy import QuantizationPolicy, QuantizationProperty, QuantizationStates, RoundingPolicy
from detent.errors import UnknownNameError
from detent.numerics import PerChannel, PerTensor, Scheme
from detent.observers import OBSERVERS

__all__ = ["Dispatcher", "Exporter", "LinearQuantizationConfig", "Observer", "Parser"]

_Path = str | os.PathLike[str]


class Parser:
    """Reads a framework's files."""

    def __init__(self, framework: NetworkFramework):
        self.framework = framework

    def build(self, file_path: _Path, caffemodel_path: _Path | None = None) -> BaseGraph:
        return load_graph(file_path, self.framework, caffemodel_path=caffemodel_path)


class Exporter:
    """Writes a platform's files."""

    def __init__(self, platform: TargetPlatform):
        refuse_platform(platform)
        self.platform = platform

    def export(self, file_path: _Path, graph: BaseGraph, config_path: _Path | None = None) -> list[Path]:
        return export_ppq_graph(graph, self.platform, file_path, config_path)


class Dispatcher:
    """Says which operations go where, by one of PPQ's methods."""

    def __init__(self, graph: BaseGraph, method: str = "conservative"):
        if method.lower() not in DISPATCHERS:
            raise UnknownNameError(f"the dispatcher {method!r}", f"not one of {', '.join(DISPATCHERS)}", "use one")
        self.graph, self.method = graph, method

    def dispatch(
        self,
        quant_types: Collection[str],
        quant_platform: TargetPlatform = TargetPlatform.UNSPECIFIED,
        fp32_platform: TargetPlatform = TargetPlatform.FP32,
    ) -> dict[str, TargetPlatform]:
        """The platform of each operation, by name."""
        there = dispatched(self.graph, quant_types, self.method)
        return {name: quant_platform if name in there else fp32_platform for name in self.graph.operations}


class Observer:
    """Measures what a config asks for; `render_quantization_config` sets its scale and offset."""

    def __init__(self, quant_config: TensorQuantizationConfig, variable: Variable | None = None):
        self.config = quant_config
        name = variable.name if variable is not None else "tensor"
        request = request_of(quant_config, f"the observed {name!r}")
        axis = quant_config.channel_axis or 0
        scheme = Scheme(
            grid_of(quant_config, name),
            symmetric=bool(request.symmetric),
            granularity=PerChannel(axis) if request.granularity == "per_channel" else PerTensor(),
            scale=request.scale or "float",
            rounding=quant_config.rounding.rounding,
        )
        made = OBSERVERS[request.observer or "minmax"]
        self._observer = made(scheme, name=name, **dict(request.observer_options))

    def observe(self, value: Tensor) -> None:
        self._observer.observe(value)

    def render_quantization_config(self) -> None:
        qparams = self._observer.qparams()
        self.config.scale, self.config.offset = qparams.scale, qparams.zero_point
        self.config.state = QuantizationStates.ACTIVATED


def LinearQuantizationConfig(  # noqa: N802, PPQ's name
    symmetrical: bool = True,
    dynamic: bool = False,
    power_of_2: bool = False,
    channel_axis: int | None = None,
    quant_min: int = -128,
    quant_max: int = 127,
    num_of_bits: int = 8,
    calibration: str = "minmax",
    rounding: RoundingPolicy = RoundingPolicy.ROUND_HALF_EVEN,
) -> TensorQuantizationConfig:
    """A config of these properties."""
    flags = QuantizationProperty
    policy = (
        flags.LINEAR
        + (flags.SYMMETRICAL if symmetrical else flags.ASYMMETRICAL)
        + (flags.PER_TENSOR if channel_axis is None else flags.PER_CHANNEL)
        + (flags.POWER_OF_2 if power_of_2 else flags(0))
        + (flags.DYNAMIC if dynamic else flags(0))
    )
    return TensorQuantizationConfig(
        QuantizationPolicy(policy),
        rounding=rounding,
        num_of_bits=num_of_bits,
        quant_min=quant_min,
        quant_max=quant_max,
        observer_algorithm=calibration,
        channel_axis=channel_axis,
    )
