"""MMRazor's quantizers: a backend and a `global_qconfig`, which prepare a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, ClassVar

from torch import nn

from detent.compat.mmrazor.modules import FXFloatFunctional
from detent.compat.mmrazor.qconfig import recipe_of, requests_of, symmetric_unsigned_note
from detent.compat.mmrazor.registry import MODELS, TASK_UTILS
from detent.compat.mmrazor.tracer import TracedModel
from detent.errors import RecipeError
from detent.graph import PreparedModel
from detent.planning import Backend
from detent.preparing import prepare_captured
from detent.recipes import Recipe
from detent.targets import BACKENDS

__all__ = ["AcademicQuantizer", "BaseQuantizer", "NativeQuantizer", "OpenVINOQuantizer", "TensorRTQuantizer"]

_LEARNS = "these learn or move their ranges in training"


class BaseQuantizer(nn.Module):
    """Has a tracer, and prepares models."""

    def __init__(self, tracer: Any):
        super().__init__()
        self.tracer = TASK_UTILS.build(tracer or {}, type="CustomTracer")

    @abstractmethod
    def prepare(self, model: nn.Module, graph_module: TracedModel) -> PreparedModel:
        """`model`, which the tracer has traced as `graph_module`, with quantizers."""

    def swap_ff_with_fxff(self, model: nn.Module) -> None:
        """Replace each `FloatFunctional`, in place, by one whose operations are traced. Called before tracing."""
        for name, child in model.named_children():
            if type(child).__name__ == "FloatFunctional":
                setattr(model, name, FXFloatFunctional())
            else:
                self.swap_ff_with_fxff(child)


class NativeQuantizer(BaseQuantizer):
    """For torch's own kernels; for the other backends there are classes derived from it.

    Batch norms are trained with the layers before them (as in torch's `ConvBn2d`), unless `is_qat` is False, which is
    for calibration only: a fake quantizer that learns its scale is then refused.
    """

    backend: ClassVar[str] = "native"

    def __init__(self, global_qconfig: Mapping[str, Any], tracer: Any = None, is_qat: bool = True):
        super().__init__(tracer)
        self.recipe = recipe_of(global_qconfig, self.backend, is_qat=is_qat)
        self._note = symmetric_unsigned_note(global_qconfig, self.backend)
        methods = {self.recipe.weight.quantizer, self.recipe.activation.quantizer}
        if not is_qat and methods != {"fixed"}:
            asked = f"is_qat=False with {', '.join(sorted(map(str, methods)))}"
            raise RecipeError(asked, _LEARNS, "use FakeQuantize, or is_qat=True")

    def prepare(self, model: nn.Module, graph_module: TracedModel) -> PreparedModel:
        target, recipe = self.target(), self.recipe_for(model)
        prepared = prepare_captured(graph_module.captured, graph_module.example, backend=target, recipe=recipe)
        if self._note is not None:
            prepared.plan = replace(prepared.plan, notes=(*prepared.plan.notes, self._note))
        return prepared

    def target(self) -> Backend:
        """What is deployed for."""
        return BACKENDS[self.backend]

    def recipe_for(self, _: nn.Module) -> Recipe:
        """What is asked for a model."""
        return self.recipe


class OpenVINOQuantizer(NativeQuantizer):
    backend = "openvino"


class TensorRTQuantizer(NativeQuantizer):
    backend = "tensorrt"


class AcademicQuantizer(NativeQuantizer):
    """For papers: inputs and weights of convolutions and linear layers, all of them in the width that is asked for.

    `qconfig_mapping` has a qconfig for all layers (`_global_`; without it they stay float), and lists of (class,
    qconfig) in `object_type` and of (name, qconfig) in `module_name`, which means the parts of that module too. A name
    comes before a class. `prepare_custom_config` may list `preserved_attributes` of the model.
    """

    backend = "academic"

    def __init__(
        self,
        qconfig_mapping: Mapping[str, Any] | None = None,
        tracer: Any = None,
        prepare_custom_config: Mapping[str, Any] | None = None,
        *,
        global_qconfig: Mapping[str, Any] | None = None,
        is_qat: bool = True,
    ):
        mapping = dict(qconfig_mapping or {} if global_qconfig is None else {"_global_": global_qconfig})
        unknown = sorted(set(mapping) - {"_global_", "object_type", "module_name"})
        if unknown or not mapping or (qconfig_mapping and global_qconfig):
            raise RecipeError(
                f"AcademicQuantizer with {', '.join(unknown) or 'both mappings, or none'}",
                "qconfig_mapping has _global_, object_type and module_name; global_qconfig is short for the first",
                "give one of the two",
            )
        some = [qconfig for part in ("object_type", "module_name") for _, qconfig in mapping.get(part, ())]
        super().__init__(mapping.get("_global_") or some[0], tracer, is_qat)
        if "_global_" not in mapping:
            kept = {"weight": {"quantize": False}, "activation": {"quantize": False}}
            self.recipe = Recipe.from_dict({**self.recipe.to_dict(), **kept}, source="qconfig_mapping")
        custom = dict(prepare_custom_config or {})
        self.preserved_attributes: Sequence[str] = custom.pop("preserved_attributes", ())
        if custom:
            raise RecipeError(
                f"prepare_custom_config with {', '.join(custom)}",
                "modules of one's own are traced into, and stay whole where they cannot be",
                "name them in skipped_module_names of the tracer, or leave it out",
            )
        self.qconfig_mapping = mapping

    def target(self) -> Backend:
        return replace(BACKENDS[self.backend], first_last_bits=None)

    def recipe_for(self, model: nn.Module) -> Recipe:
        mapping, rules = self.qconfig_mapping, []
        # The longest name is the most specific one.
        for name, qconfig in sorted(mapping.get("module_name", ()), key=lambda pair: -len(pair[0])):
            rules.append(self._rule(_glob(model, name), qconfig, f"module_name {name!r}"))
        for kind, qconfig in mapping.get("object_type", ()):
            names = [name for name, module in model.named_modules() if _is_a(module, kind)]
            if not names:
                raise RecipeError(f"object_type {kind!r}", "the model has no such module", "leave it out")
            rules += [self._rule(name, qconfig, f"object_type {kind!r}") for name in names]
        return Recipe.from_dict({**self.recipe.to_dict(), "rules": rules}, source="qconfig_mapping")

    def prepare(self, model: nn.Module, graph_module: TracedModel) -> PreparedModel:
        prepared = super().prepare(model, graph_module)
        for name in self.preserved_attributes:
            setattr(prepared, name, getattr(model, name))
        return prepared

    def _rule(self, glob: str, qconfig: Mapping[str, Any], where: str) -> dict[str, Any]:
        return {"match": {"name": glob}, "quantize": True, **requests_of(qconfig, self.backend, where)}


def _glob(model: nn.Module, name: str) -> str:
    modules = dict(model.named_modules())
    if name not in modules:
        near = get_close_matches(name, modules, n=1)
        to_do = f"did you mean {near[0]!r}?" if near else "give the name of a module"
        raise RecipeError(f"module_name {name!r}", "the model has no such module", to_do)
    return f"{name}.*" if any(True for _ in modules[name].children()) else name


def _is_a(module: nn.Module, kind: str | type) -> bool:
    """Whether it is of a class, which a config names as `torch.nn.Linear`, wherever in torch it is defined."""
    cls = type(module)
    if isinstance(kind, type):
        return cls is kind
    package, _, rest = kind.partition(".")
    return cls.__name__ == rest.rpartition(".")[2] and cls.__module__.partition(".")[0] == package


MODELS.offer(
    NativeQuantizer,
    OpenVINOQuantizer,
    TensorRTQuantizer,
    AcademicQuantizer,
    TorchNativeQuantizer=NativeQuantizer,
    OpenvinoQuantizer=OpenVINOQuantizer,  # the document has both spellings
)
