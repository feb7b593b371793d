"""MMRazor's quantizers: a backend and a `global_qconfig`, which prepare a model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from detent.compat.mmrazor.qconfig import recipe_of
from detent.compat.mmrazor.registry import MODELS, TASK_UTILS
from detent.errors import RecipeError
from detent.graph import PreparedModel
from detent.preparing import prepare

__all__ = [
    "AcademicQuantizer",
    "BaseQuantizer",
    "CustomTracer",
    "NativeQuantizer",
    "OpenVINOQuantizer",
    "TensorRTQuantizer",
]


class CustomTracer:
    """What stays whole when a model is captured: methods by their dotted names, modules by name or class."""

    def __init__(
        self,
        skipped_methods: Sequence[str] = (),
        skipped_module_names: Sequence[str] = (),
        skipped_module_classes: Sequence[type[nn.Module]] = (),
    ):
        self.skip_methods = tuple(skipped_methods)
        self.leaf_modules = (*skipped_module_names, *skipped_module_classes)


class BaseQuantizer(nn.Module):
    """Has a tracer, and prepares models."""

    def __init__(self, tracer: Any):
        super().__init__()
        self.tracer = TASK_UTILS.build(tracer or {}, type="CustomTracer")

    @abstractmethod
    def prepare(self, model: nn.Module, example_inputs: Sequence[Any], **options: Any) -> PreparedModel:
        """The prepared model; `options` are those of `detent.prepare`."""


class NativeQuantizer(BaseQuantizer):
    """For torch's own kernels; for the other backends there are classes derived from it.

    `is_qat` False is for calibration only: a fake quantizer that learns its scale is then refused.
    """

    backend: ClassVar[str] = "native"

    def __init__(self, global_qconfig: Mapping[str, Any], tracer: Any = None, is_qat: bool = True):
        super().__init__(tracer)
        self.recipe = recipe_of(global_qconfig, self.backend)
        methods = {self.recipe.weight.quantizer, self.recipe.activation.quantizer}
        if not is_qat and methods != {"fixed"}:
            raise RecipeError(
                f"is_qat=False with {', '.join(sorted(map(str, methods)))}",
                "these learn or move their ranges in training",
                "use FakeQuantize, or is_qat=True",
            )

    def prepare(self, model: nn.Module, example_inputs: Sequence[Any], **options: Any) -> PreparedModel:
        return prepare(
            model,
            example_inputs,
            backend=self.backend,
            recipe=self.recipe,
            skip_methods=self.tracer.skip_methods,
            leaf_modules=self.tracer.leaf_modules,
            **options,
        )


class OpenVINOQuantizer(NativeQuantizer):
    backend = "openvino"


class TensorRTQuantizer(NativeQuantizer):
    backend = "tensorrt"


class AcademicQuantizer(NativeQuantizer):
    """For papers: inputs and weights of convolutions and linear layers."""

    backend = "academic"


TASK_UTILS.offer(CustomTracer)
MODELS.offer(
    NativeQuantizer,
    OpenVINOQuantizer,
    TensorRTQuantizer,
    AcademicQuantizer,
    TorchNativeQuantizer=NativeQuantizer,
    OpenvinoQuantizer=OpenVINOQuantizer,  # the document has both spellings
)
