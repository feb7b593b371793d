"""PPQ's quantizers: a user's class says what each operation wants; Detent prepares and calibrates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from detent.calibrating import calibrate
from detent.compat.ppq.config import OperationQuantizationConfig, TensorQuantizationConfig
from detent.compat.ppq.dispatching import dispatched
from detent.compat.ppq.executor import TorchExecutor
from detent.compat.ppq.graph import BaseGraph, Operation, OperationMeta
from detent.compat.ppq.outcome import note_outcome
from detent.compat.ppq.platforms import BACKEND_OF, RECIPE_OF, TargetPlatform
from detent.compat.ppq.policy import QuantizationPolicy, QuantizationProperty, QuantizationStates, RoundingPolicy
from detent.compat.ppq.settings import DispatchingTable, QuantizationSetting
from detent.compat.ppq.splitting import split
from detent.compat.ppq.translation import exactly, kinds_of, translated
from detent.compat.users_code import users_code
from detent.errors import RangeError, RecipeError, RegistrationError, UnknownNameError
from detent.preparing import prepare
from detent.recipes import Recipe

__all__ = ["BaseQuantizer", "Quantizer", "dispatch_graph", "register_network_quantizer"]


class BaseQuantizer:
    """Says what each operation wants. Override the properties and `init_quantize_config`.

    `quant_operation_types` may be a property or a method: PPQ's own documents have it as both.
    """

    target_platform: Any = TargetPlatform.EXTENSION
    default_platform: Any = TargetPlatform.FP32
    quant_operation_types: Any = frozenset({"Conv", "ConvTranspose", "Gemm"})
    quantize_policy: Any = QuantizationPolicy(
        QuantizationProperty.SYMMETRICAL + QuantizationProperty.LINEAR + QuantizationProperty.PER_TENSOR
    )
    rounding_policy: Any = RoundingPolicy.ROUND_HALF_EVEN

    def __init__(self, graph: BaseGraph, verbose: bool = True) -> None:
        self._graph, self._verbose = graph, verbose

    def init_quantize_config(self, operation: Operation) -> OperationQuantizationConfig:
        """What one operation wants: unless overridden, 8 bits by `quantize_policy`, float outputs and biases."""
        symmetric = self.quantize_policy.has_property(QuantizationProperty.SYMMETRICAL)
        config = self.create_default_quant_config(
            operation,
            quant_min=-128 if symmetric else 0,
            quant_max=127 if symmetric else 255,
            policy=self.quantize_policy,
            rounding=self.rounding_policy,
        )
        if operation.is_computing_op:
            for one in (*config.input_quantization_config[2:], *config.output_quantization_config):
                one.state = QuantizationStates.FP32
        return config

    def create_default_quant_config(
        self,
        op: Operation | None = None,
        num_of_bits: int = 8,
        quant_min: int = -128,
        quant_max: int = 127,
        observer_algorithm: str = "percentile",
        policy: QuantizationPolicy | None = None,
        rounding: RoundingPolicy = RoundingPolicy.ROUND_HALF_EVEN,
        operation_meta: OperationMeta | None = None,
    ) -> OperationQuantizationConfig:
        """The same config for everything the operation takes in and gives; shapes and bounds are FP32."""
        meta = operation_meta if operation_meta is not None else op.meta_data if op is not None else None
        if meta is None:
            raise RecipeError("a config of no operation", "neither op nor operation_meta is given", "give one of them")

        def config(is_value: bool) -> TensorQuantizationConfig:
            return TensorQuantizationConfig(
                policy=policy or self.quantize_policy,
                rounding=rounding,
                num_of_bits=num_of_bits,
                quant_min=quant_min,
                quant_max=quant_max,
                observer_algorithm=observer_algorithm,
                state=QuantizationStates.INITIAL if is_value else QuantizationStates.FP32,
            )

        return OperationQuantizationConfig(
            [config(is_value) for is_value in meta.values], [config(place == 0) for place in range(meta.num_of_output)]
        )

    def quantize(
        self,
        inputs: Any,
        calib_dataloader: Iterable[Any],
        executor: TorchExecutor,
        setting: QuantizationSetting | None = None,
        calib_steps: int = 32,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> BaseGraph:
        """Prepare the graph as the configs say and calibrate it on at most `calib_steps` batches."""
        if not 1 <= calib_steps <= 512:
            raise RangeError(f"calib_steps {calib_steps}", "1 to 512 batches calibrate", "choose a number of these")
        setting = setting or QuantizationSetting()
        graph = self._graph
        if any(operation.platform is TargetPlatform.UNSPECIFIED for operation in graph.operations.values()):
            dispatch_graph(graph, self.target_platform, setting)
        given = executor.on_device(inputs)
        names = given if isinstance(given, Mapping) else None
        example = () if names else tuple(given) if isinstance(given, (list, tuple)) else (given,)
        before = {operation.name: operation.platform for operation in graph.operations.values()}
        if split(graph, setting, example or tuple((names or {}).values())):
            self._dispatch_split(before)
        backend, recipe = self._target(setting)
        prepared = prepare(graph.module, example, backend=backend, recipe=recipe, example_kwargs=names)
        batches = islice(calib_dataloader, calib_steps)
        calibrate(prepared, [executor.on_device(collate_fn(batch) if collate_fn else batch) for batch in batches])
        graph.prepared = prepared.eval()
        note_outcome(graph, prepared)
        if self._verbose:
            print(prepared.plan)
        return graph

    def _dispatch_split(self, before: Mapping[str, TargetPlatform]) -> None:
        """Parts go where the whole went; sums of parts are quantized if sums are."""
        types = _types(self)
        for name, operation in self._graph.operations.items():
            whole = name.rpartition(".")[0]
            added = self.target_platform if operation.type in types else self.default_platform
            operation.platform = before.get(name) or before.get(whole) or added

    def _target(self, setting: QuantizationSetting) -> tuple[Any, Recipe]:
        for operation in self._graph.operations.values():
            quantized = operation.platform is self.target_platform
            operation.config = self._config(operation) if quantized else None
        return translated(self._graph, self.target_platform, setting)

    def _config(self, operation: Operation) -> OperationQuantizationConfig:
        with users_code(f"the config of {operation.name!r}", package=sys.modules[__package__]):
            config: Any = self.init_quantize_config(operation)
        if not isinstance(config, OperationQuantizationConfig):
            code = self.init_quantize_config.__func__.__code__  # type: ignore[attr-defined]
            raise RecipeError(
                f"the config of {operation.name!r}",
                f"init_quantize_config of {type(self).__name__} (line {code.co_firstlineno} of {code.co_filename}) "
                f"returned {config!r}",
                "end it with `return config`",
            )
        return config


class _BackendQuantizer(BaseQuantizer):
    """A platform whose rules are those of a backend."""

    def __init__(self, graph: BaseGraph, platform: TargetPlatform, verbose: bool = True) -> None:
        super().__init__(graph, verbose)
        self.target_platform = platform
        self.quant_operation_types = _types_on(graph, platform)

    def _target(self, setting: QuantizationSetting) -> tuple[Any, Recipe]:
        base = RECIPE_OF.get(self.target_platform, Recipe(name="ppq")).to_dict()
        activation, weight = {**base.get("activation", {})}, {**base.get("weight", {})}
        for request, chosen in (
            (activation, setting.quantize_activation_setting),
            (weight, setting.quantize_parameter_setting),
        ):
            if chosen.calib_algorithm:
                request["observer"] = chosen.calib_algorithm.lower()
        if setting.activation_quantizer:
            activation["quantizer"] = setting.activation_quantizer
        if setting.weight_quantizer:
            weight["quantizer"] = setting.weight_quantizer
        left = [
            exactly(operation.layer)
            for operation in self._graph.operations.values()
            if operation.platform is not self.target_platform and operation.type in self.quant_operation_types
        ]
        base |= {"activation": activation, "weight": weight, "algorithms": setting.algorithms(), "exclude": left}
        backend = BACKEND_OF[self.target_platform]
        return (backend if setting.fusion else replace(backend, fusions=())), Recipe.from_dict(base)


_QUANTIZERS: dict[TargetPlatform, type[BaseQuantizer]] = {}


def register_network_quantizer(quantizer: type[BaseQuantizer], platform: TargetPlatform) -> None:
    """Use `quantizer` for `platform`, in place of what there was."""
    if not (isinstance(quantizer, type) and issubclass(quantizer, BaseQuantizer)):
        raise RegistrationError(f"register {quantizer!r}", "it is not a BaseQuantizer", "derive it from BaseQuantizer")
    _QUANTIZERS[platform] = quantizer


def Quantizer(platform: TargetPlatform, graph: BaseGraph) -> BaseQuantizer:  # noqa: N802, PPQ's name
    """The quantizer of a platform: the one that was registered, or else the backend of that name."""
    if platform in _QUANTIZERS:
        return _made(_QUANTIZERS[platform], platform, graph)
    if platform not in BACKEND_OF:
        known = ", ".join(one.name for one in (*BACKEND_OF, *_QUANTIZERS))
        raise UnknownNameError(
            f"a quantizer for {platform.name}", f"there are some for {known}", "register_network_quantizer(...) one"
        )
    return _BackendQuantizer(graph, platform)


def _made(cls: type[BaseQuantizer], platform: TargetPlatform, graph: BaseGraph) -> BaseQuantizer:
    made = cls(graph)
    if cls.target_platform is BaseQuantizer.target_platform:
        made.target_platform = platform
    if made.target_platform is not platform:
        raise RegistrationError(
            f"{cls.__name__} for {platform.name}",
            f"its target_platform is {made.target_platform.name}",
            "register it for that platform",
        )
    return made


def dispatch_graph(
    graph: BaseGraph,
    platform: TargetPlatform,
    setting: QuantizationSetting | str | None = None,
    *,
    dispatcher: str | None = None,
    dispatching_table: DispatchingTable | None = None,
) -> BaseGraph:
    """Set the platform of each operation: `platform` where its quantizer takes the type, else the default one.

    `setting` is a whole setting, as in PPQ's documents, or the name of a dispatcher, as in its later versions, which
    give `dispatcher` and `dispatching_table` by themselves.
    """
    whole = setting if isinstance(setting, QuantizationSetting) else QuantizationSetting()
    by = dispatcher or (setting if isinstance(setting, str) else whole.dispatcher)
    quantizer = Quantizer(platform, graph)
    there = dispatched(graph, _types(quantizer), by)
    for operation in graph.operations.values():
        operation.platform = platform if operation.name in there else quantizer.default_platform
    for name, chosen in (dispatching_table or whole.dispatching_table).dispatchings.items():
        if name not in graph.operations:
            raise UnknownNameError(
                f"dispatch {name!r}", "the graph has no such operation", f"it has {', '.join(graph.operations)}"
            )
        if chosen is not platform and TargetPlatform.is_quantized_platform(chosen):
            raise RecipeError(
                f"dispatch {name!r} to {chosen.name}", f"the graph goes to {platform.name}", "choose that, or FP32"
            )
        graph.operations[name].platform = chosen
    return graph


def _types(quantizer: BaseQuantizer) -> frozenset[str]:
    types = quantizer.quant_operation_types
    return frozenset(types() if callable(types) else types)


def _types_on(graph: BaseGraph, platform: TargetPlatform) -> frozenset[str]:
    backend = BACKEND_OF[platform]
    kinds = {*backend.rules, *backend.passthrough}
    return frozenset(
        operation.type for operation in graph.operations.values() if kinds.intersection(kinds_of(operation))
    )
