"""MMRazor's algorithm: a float architecture with several forward modes, prepared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.artifact import Artifact, deploy
from detent.calibrating import calibrate
from detent.compat.mmrazor.checkpoint import load_float_checkpoint
from detent.compat.mmrazor.deploy_config import input_shape_of
from detent.compat.mmrazor.registry import MODELS
from detent.compat.mmrazor.tracer import CustomTracer
from detent.errors import DeployError, RegistrationError, UnknownNameError
from detent.graph import PreparedModel

__all__ = ["ClsDataPreprocessor", "MMArchitectureQuant"]

_USUAL = (1, 3, 224, 224)


class ClsDataPreprocessor(nn.Module):
    """Images as a network for classification wants them: channels turned round, mean and deviation taken out."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        to_rgb: bool = False,
        num_classes: int | None = None,
    ):
        super().__init__()
        self.to_rgb, self.num_classes = to_rgb, num_classes
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """The call for one image or a batch; the channels are the third axis from the end."""
        images = images.flip(-3) if self.to_rgb else images
        return (images.to(self.mean.dtype) - self.mean) / self.std


class MMArchitectureQuant(nn.Module):
    """`architecture.forward(inputs, data_samples, mode)` prepared in all of its modes, which share their quantizers.

    `prepared` is what the quantizer made; `architecture` stays the float model. Inputs are preprocessed ones. The
    deployed file takes images of the size in `input_shapes`: by default that of the `deploy_cfg`, or of the data that a
    `Runner` is given, or 224x224.
    """

    def __init__(
        self,
        architecture: Any,
        quantizer: Any,
        deploy_cfg: str | Mapping[str, Any] | None = None,
        data_preprocessor: Any = None,
        forward_modes: Sequence[str] = ("tensor", "predict", "loss"),
        float_checkpoint: str | os.PathLike[str] | None = None,
        input_shapes: Sequence[int] | None = None,
    ):
        super().__init__()
        built = MODELS.build(architecture)
        if float_checkpoint is not None:
            load_float_checkpoint(built, float_checkpoint)
        self.__dict__["architecture"] = built  # beside the tree: only what is prepared is trained
        self.quantizer = MODELS.build(quantizer)
        self.data_preprocessor = MODELS.build(data_preprocessor) if data_preprocessor else nn.Identity()
        self.forward_modes = tuple(forward_modes)
        if deploy_cfg is not None and input_shapes is None:
            input_shapes = input_shape_of(deploy_cfg, str(self.quantizer.backend))
        self.shape_is_given = input_shapes is not None
        self.input_shapes = tuple(input_shapes or _USUAL)
        self.quantizer.swap_ff_with_fxff(built)
        labels = torch.zeros(self.input_shapes[0], dtype=torch.int64)
        self.prepared = self._prepare(labels, modes={mode: {"mode": mode} for mode in forward_modes})

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = "tensor") -> Any:
        if self.forward_modes == (mode,):
            return self.prepared(inputs, data_samples)
        return self.prepared(inputs, data_samples, mode=mode)

    def calibrate_step(self, data: Mapping[str, Any] | Sequence[Any] | Tensor) -> None:
        """Set the scales from one batch, which is preprocessed first: images, or images with their data samples."""
        batch = [data["inputs"], data.get("data_samples")] if isinstance(data, Mapping) else data
        images, *samples = [batch] if isinstance(batch, Tensor) else batch
        calibrate(self.prepared, [(self.data_preprocessor(images), *samples)])

    def sync_qparams(self, src_mode: str) -> None:
        """Nothing is left to copy: the modes share their quantizers."""
        if src_mode not in self.forward_modes:
            known = ", ".join(self.forward_modes)
            raise UnknownNameError(f"the forward mode {src_mode!r}", f"prepared are {known}", "use one of these")

    def get_deploy_model(self) -> Any:
        """The `tensor` mode alone, without `data_samples`, with the weights and scales of now."""
        model = self._prepare(concrete_args={"mode": "tensor", "data_samples": None})
        lacking = model.load_state_dict(self.prepared.state_dict(), strict=False).missing_keys
        if lacking:
            raise DeployError(
                "the tensor mode of a model", f"it has what was not prepared: {', '.join(lacking)}", "prepare that mode"
            )
        return model.eval()

    def deploy(self, folder: str | Path) -> Artifact:
        """The files of the backend."""
        return deploy(self.get_deploy_model(), folder)

    def _prepare(self, *further_inputs: Any, **options: Any) -> PreparedModel:
        example = torch.randn(self.input_shapes, generator=torch.Generator().manual_seed(0))
        model, quantizer = self.__dict__["architecture"], self.quantizer
        if not isinstance(quantizer.tracer, CustomTracer):
            kind = type(quantizer.tracer).__name__
            raise RegistrationError(f"trace with {kind}", "it is not a CustomTracer", "derive it from CustomTracer")
        prepared = quantizer.prepare(model, quantizer.tracer.trace_modes(model, (example, *further_inputs), **options))
        if not isinstance(prepared, PreparedModel):
            code = type(quantizer).prepare.__code__
            raise RegistrationError(
                f"prepare of {type(quantizer).__name__}, line {code.co_firstlineno} of {code.co_filename}",
                f"it gives a {type(prepared).__name__}",
                "derive from NativeQuantizer and return super().prepare(model, graph_module)",
            )
        return prepared


MODELS.offer(MMArchitectureQuant, ClsDataPreprocessor)
