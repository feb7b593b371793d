"""MMRazor's algorithm: a float architecture with several forward modes, prepared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detent.artifact import Artifact, deploy
from detent.compat.mmrazor.registry import MODELS
from detent.errors import DeployError
from detent.preparing import calibrate

__all__ = ["ClsDataPreprocessor", "MMArchitectureQuant"]


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
        """Of one image or of a batch; the channels are the third axis from the end."""
        images = images.flip(-3) if self.to_rgb else images
        return (images.to(self.mean.dtype) - self.mean) / self.std


class MMArchitectureQuant(nn.Module):
    """`architecture.forward(inputs, data_samples, mode)` prepared in all of its modes, which share their quantizers.

    `prepared` is what `detent.prepare` made; `architecture` stays the float model. Inputs are preprocessed ones.
    """

    def __init__(
        self,
        architecture: Any,
        quantizer: Any,
        data_preprocessor: Any = None,
        forward_modes: Sequence[str] = ("tensor", "predict", "loss"),
        float_checkpoint: str | os.PathLike[str] | None = None,
        input_shapes: Sequence[int] = (1, 3, 224, 224),
    ):
        super().__init__()
        built = MODELS.build(architecture)
        if float_checkpoint is not None:
            state = torch.load(float_checkpoint, map_location="cpu", weights_only=True)
            built.load_state_dict(state.get("state_dict", state))
        self.__dict__["architecture"] = built  # beside the tree: only what is prepared is trained
        self.quantizer = MODELS.build(quantizer)
        self.data_preprocessor = MODELS.build(data_preprocessor) if data_preprocessor else nn.Identity()
        self.forward_modes, self.input_shapes = tuple(forward_modes), tuple(input_shapes)
        generator = torch.Generator().manual_seed(0)
        self._example = torch.randn(self.input_shapes, generator=generator)
        labels = torch.zeros(self.input_shapes[0], dtype=torch.int64)
        self.prepared = self.quantizer.prepare(
            built,
            (self._example,),
            example_kwargs={"data_samples": labels},
            modes={mode: {"mode": mode} for mode in forward_modes},
        )

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = "tensor") -> Any:
        if self.forward_modes == (mode,):
            return self.prepared(inputs, data_samples)
        return self.prepared(inputs, data_samples, mode=mode)

    def calibrate_step(self, data: Mapping[str, Any] | Tensor) -> None:
        """Set the scales from one batch, which is preprocessed first."""
        calibrate(self.prepared, [self.data_preprocessor(data["inputs"] if isinstance(data, Mapping) else data)])

    def get_deploy_model(self) -> Any:
        """The `tensor` mode alone, without `data_samples`, with the weights and scales of now."""
        alone = {"mode": "tensor", "data_samples": None}
        model = self.quantizer.prepare(self.__dict__["architecture"], (self._example,), concrete_args=alone)
        lacking = model.load_state_dict(self.prepared.state_dict(), strict=False).missing_keys
        if lacking:
            raise DeployError(
                "the tensor mode of a model", f"it has what was not prepared: {', '.join(lacking)}", "prepare that mode"
            )
        return model.eval()

    def deploy(self, folder: str | Path) -> Artifact:
        """The files of the backend."""
        return deploy(self.get_deploy_model(), folder)


MODELS.offer(MMArchitectureQuant, ClsDataPreprocessor)
