"""Which operations a backend of one's own quantizes: MQBench's `ModelQuantizer`, as rules of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import fx, nn

from detent.compat.mqbench.qconfig import checked_keys
from detent.errors import RecipeError
from detent.graph import kind_of
from detent.planning import Backend, takes
from detent.targets.tensorrt import TENSORRT

__all__ = ["QUANTIZERS", "ModelQuantizer", "kind_named", "register_model_quantizer"]

_KEYS = (
    "additional_module_type",
    "additional_function_type",
    "additional_node_name",
    "exclude_module_name",
    "exclude_function_type",
    "exclude_node_name",
)

QUANTIZERS: dict[str, type[ModelQuantizer]] = {}
"""Of user's backends, by the backend's name."""


def register_model_quantizer(backend: Any) -> Callable[[type[ModelQuantizer]], type[ModelQuantizer]]:
    """A decorator: the class says what is quantized for `backend`."""

    def keep(cls: type[ModelQuantizer]) -> type[ModelQuantizer]:
        QUANTIZERS[str(getattr(backend, "value", backend))] = cls
        return cls

    return keep


class ModelQuantizer:
    """TensorRT's by default: quantizes what certain modules and functions take in. Subclasses name others."""

    target: ClassVar[Backend] = TENSORRT

    def __init__(self, extra_quantizer_dict: Mapping[str, Any] | None = None):
        said = checked_keys(extra_quantizer_dict or {}, _KEYS, "extra_quantizer_dict")
        self.additional_module_type: tuple[type[nn.Module], ...] = tuple(said.get("additional_module_type", ()))
        self.additional_function_type: list[Any] = list(said.get("additional_function_type", ()))
        self._excluded = (*said.get("exclude_module_name", ()), *said.get("exclude_node_name", ()))
        self.exclude_kinds = tuple(kind_named(one) for one in said.get("exclude_function_type", ()))
        if said.get("additional_node_name"):
            raise RecipeError(
                f"additional_node_name {said['additional_node_name']}",
                "a backend quantizes kinds of operations",
                "name the module's class or the function instead",
            )

    @property
    def module_type_to_quant_input(self) -> tuple[type[nn.Module], ...]:
        return self.additional_module_type

    @property
    def function_type_to_quant_input(self) -> list[Any]:
        return self.additional_function_type

    def exclude(self, model: nn.Module) -> tuple[str, ...]:
        """What stays float, as a recipe says it; a module that is excluded takes its parts with it."""
        modules = dict(model.named_modules())
        whole = {name for name in self._excluded if name in modules and any(True for _ in modules[name].children())}
        return tuple(f"{name}.*" if name in whole else name for name in self._excluded)

    def backend(self, base: Backend) -> Backend:
        """`base` with the operations that the properties name among those whose inputs are quantized."""
        kinds = [kind_named(one) for one in (*self.module_type_to_quant_input, *self.function_type_to_quant_input)]
        new = {kind: rule for kind, rule in takes(*kinds).items() if kind not in base.rules}
        shares = tuple(kind for kind in base.shares if kind not in new)
        return replace(base, rules={**base.rules, **new}, shares=shares)


def kind_named(target: Any) -> str:
    """The kind of a module's class or of a function."""
    graph = fx.Graph()
    place = graph.placeholder("x")
    modules: dict[str, nn.Module] = {}
    if isinstance(target, type) and issubclass(target, nn.Module):
        module = target.__new__(target)
        modules["m"] = module
        node = graph.create_node("call_module", "m", (place,))
    else:
        node = graph.create_node("call_function", target, (place,))
    place.meta["shape"] = torch.Size(())
    kind = kind_of(node, modules)
    if kind is None:
        name = getattr(target, "__name__", str(target))
        raise RecipeError(
            f"quantize what {name} takes in",
            "it is no operation that backends speak of",
            "give the class an attribute `kind` with one of detent.graph.KINDS",
        )
    return kind.name
