"""MQBench's `ModelQuantizer`, which says what a user's own backend quantizes, as rules of the planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from detent.compat.mqbench.qconfig import checked_keys
from detent.errors import RecipeError
from detent.graph import Inputs, PreparedModel, kind_of, torch_op
from detent.planning import Backend, quantize_inputs
from detent.preparing import prepare
from detent.recipes import Recipe
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
    """TensorRT's by default: quantizes what certain modules and functions take in. Subclasses name others.

    `_find_act_quants` has the last word on which tensors are quantized, and `prepare` on all of it.
    """

    def __init__(self, extra_quantizer_dict: Mapping[str, Any] | None = None):
        said = checked_keys(extra_quantizer_dict or {}, _KEYS, "extra_quantizer_dict")
        self.additional_module_type: tuple[type[nn.Module], ...] = tuple(said.get("additional_module_type", ()))
        self.additional_function_type: list[Any] = list(said.get("additional_function_type", ()))
        self.additional_node_name: list[str] = list(said.get("additional_node_name", ()))
        self._excluded = (*said.get("exclude_module_name", ()), *said.get("exclude_node_name", ()))
        self.exclude_kinds = tuple(kind_named(one) for one in said.get("exclude_function_type", ()))
        self.base: Backend = TENSORRT
        self.options: dict[str, Any] = {}
        self._inputs = Inputs((), {})
        self._nodes: list[fx.Node] = []

    @property
    def additional_module_typ(self) -> tuple[type[nn.Module], ...]:
        """The spelling of MQBench's page on adding a backend."""
        return self.additional_module_type

    @property
    def module_type_to_quant_input(self) -> tuple[type[nn.Module], ...]:
        return self.additional_module_type

    @property
    def function_type_to_quant_input(self) -> list[Any]:
        return self.additional_function_type

    def prepare(self, model: nn.Module, qconfig: Recipe) -> PreparedModel:
        """The model with its quantizers. An override changes the arguments or the result."""
        backend, own = self._backend_and_own_operations()
        return prepare(
            model,
            self._inputs.args,
            backend=backend,
            recipe=qconfig,
            example_kwargs=self._inputs.kwargs,
            own_operations=own,
            choose_activations=self._choose,
            **self.options,
        )

    def traced(self, model: nn.Module, inputs: Inputs, recipe: Recipe) -> PreparedModel:
        """What `prepare` gives for `model`, as it is called with `inputs`."""
        self._inputs = inputs
        made = self.prepare(model, recipe)
        if not isinstance(made, PreparedModel):
            raise RecipeError(
                f"{type(self).__name__}.prepare", f"it gives {type(made).__name__}", "return what super().prepare gives"
            )
        return made

    def exclude(self, model: nn.Module) -> tuple[str, ...]:
        """The patterns of a recipe for what stays float; an excluded module excludes its submodules."""
        modules = dict(model.named_modules())
        whole = {name for name in self._excluded if name in modules and any(True for _ in modules[name].children())}
        return tuple(f"{name}.*" if name in whole else name for name in self._excluded)

    def _find_act_quants(self, model: fx.GraphModule) -> list[fx.Node]:  # noqa: ARG002
        """The nodes of `model` whose tensors are quantized; by default those that the backend's rules say."""
        return list(self._nodes)

    def _choose(self, model: fx.GraphModule, nodes: list[fx.Node]) -> list[fx.Node]:
        named = [node for node in model.graph.nodes if node.name in self.additional_node_name]
        missing = set(self.additional_node_name) - {node.name for node in named}
        if missing:
            known = ", ".join(node.name for node in model.graph.nodes)
            raise RecipeError(f"additional_node_name {sorted(missing)}", f"the nodes are {known}", "use these names")
        self._nodes = list(dict.fromkeys((*nodes, *named)))
        return self._find_act_quants(model)

    def _backend_and_own_operations(self) -> tuple[Backend, tuple[Any, ...]]:
        """The base with the operations that the properties name among its rules, and those that it has no word for.

        What one of them takes in is a tensor, so that it is fused to nothing before it.
        """
        base = self.base
        named = (*self.module_type_to_quant_input, *self.function_type_to_quant_input)
        kinds = {one: _kind_of(one) for one in named}
        new = {kind for one, kind in kinds.items() if kind and kind not in base.rules and torch_op(one)}
        own = tuple(one for one, kind in kinds.items() if kind not in base.rules and kind not in new)
        backend = replace(
            base,
            rules={**base.rules, **quantize_inputs(*sorted(new))},
            passthrough=tuple(kind for kind in base.passthrough if kind not in new),
            fusions=tuple(chain for chain in base.fusions if not new & set(chain[1:])),
        )
        return backend, own


def kind_named(target: Any) -> str:
    """The kind of a module's class or of a function."""
    kind = _kind_of(target)
    if kind is None:
        name = getattr(target, "__name__", str(target))
        raise RecipeError(
            f"exclude {name}", "it is not a kind of operation that backends know", "exclude it by its name"
        )
    return kind


def _kind_of(target: Any) -> str | None:
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
    return None if kind is None else kind.name
