"""A deployed model as a module: what it gives is what the files compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from detent.artifact import Artifact
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Arithmetic, OnnxSpec, Twin
from detent.verification.against_file import PlannedRounding

__all__ = ["Deployed"]


class Deployed(nn.Module):
    """Runs an artifact in the integers of its target, which rounds as the config says. There are no gradients;
    `artifact` has the files."""

    def __init__(self, artifact: Artifact):
        super().__init__()
        self.artifact = artifact
        self._twin = Twin(artifact.graph, _arithmetic(artifact))
        self._names = tuple(artifact.graph.inputs)

    def forward(self, *inputs: Tensor) -> Any:
        """One tensor, or a tuple where the network has several outputs."""
        given = [value.detach().cpu().numpy() for value in inputs]
        results = self._twin.run(dict(zip(self._names, given, strict=True)))
        outputs = tuple(torch.from_numpy(result) for result in results.values())
        return outputs[0] if len(outputs) == 1 else outputs

    def extra_repr(self) -> str:
        return f"{str(self.artifact.folder)!r}, {self._twin.arithmetic.name}"


def _arithmetic(artifact: Artifact) -> Arithmetic:
    name = artifact.manifest["arithmetic"]
    # QuantizeLinear has one rounding, and the manifest says which one each tensor has.
    return PlannedRounding(artifact.manifest["tensors"]) if name == OnnxSpec.name else ARITHMETICS[name]()
