"""`QatProcessor`: from a float model to a trainable one, and from that to files, under the names of the document."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from torch import Tensor, nn

from detent import targets as backends
from detent.artifact import Artifact, deploy
from detent.compat.vitis import statistics
from detent.compat.vitis.config import VitisConfig
from detent.compat.vitis.deployed import Deployed
from detent.compat.vitis.layers import layers_of
from detent.compat.vitis.translation import VITIS_CPU, backend_of, recipe_of, tensors_of
from detent.errors import DeployError, RecipeError
from detent.graph import PreparedModel, QuantizedTensor
from detent.numerics import PerChannel
from detent.preparing import calibrate, prepare

__all__ = ["QatProcessor"]

_Path = str | Path


class QatProcessor:
    """Vitis AI's: `trainable_model`, then your own training, then `to_deployable` and the exports.

    `inputs` are one batch (a tensor, or a tuple of them) that the model is traced with and that sets the first scales:
    give real data. Further batches go in by `detent.calibrate(trainable, batches)`. `model` is left as it is.
    """

    def __init__(self, model: nn.Module, inputs: Any, config_file: _Path | None = None):
        self.config = VitisConfig() if config_file is None else VitisConfig.load(config_file)
        self._model = _converted(model, self.config)
        self._inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        self._trainable: PreparedModel | None = None
        self._artifact: Artifact | None = None

    def trainable_model(self) -> PreparedModel:
        """The model with quantizers, calibrated on `inputs`: an ordinary module; `.plan` says what is quantized."""
        if self._trainable is None:
            self._trainable = self._prepared()
            calibrate(self._trainable, [self._inputs])
        return self._trainable

    def to_deployable(self, trained_model: PreparedModel, output_dir: _Path) -> Deployed:
        """Write the trained model as an artifact and give it back as it runs there, in integers."""
        self._artifact = deploy(trained_model, output_dir)
        return Deployed(self._artifact)

    def deployable_model(self, src_dir: _Path) -> Deployed:
        """What `to_deployable` wrote, read back; every file is checked against its hash."""
        self._artifact = Artifact.load(src_dir)
        return Deployed(self._artifact)

    def export_onnx_model(self, output_dir: _Path) -> Path:
        """`<output_dir>/<model's class>.onnx`, with Q and DQ; zero points are those of the model."""
        source = self._written("export_onnx_model").path("model.onnx")
        target = Path(output_dir) / f"{type(self._model).__name__}.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(onnx.load(source), target)
        return target

    def export_xmodel(self, output_dir: _Path) -> Artifact:
        """The power-of-two artifact for a DPU: model.onnx, float.onnx and the positions of every tensor.

        Making a DPU's instructions of it is the work of AMD's compiler (vai_c_xir), which is not part of Detent.
        """
        written = self._written("export_xmodel")
        if self.config.target_device != "DPU":
            raise DeployError(
                "export_xmodel", f"the config has target_device {self.config.target_device!r}", "train for the DPU"
            )
        target = Path(output_dir)
        if target.resolve() != written.folder.resolve():
            shutil.copytree(written.folder, target, dirs_exist_ok=True)
        print(f"{target}: power-of-two model written; compiling it for a DPU needs AMD's compiler (vai_c_xir)")
        return Artifact(target, written.manifest, written.prepared)

    def _prepared(self) -> PreparedModel:
        statistics.register()
        backends.register(VITIS_CPU)
        layers = layers_of(self._model, self._inputs)
        recipe = recipe_of(self.config, layers)
        prepared = prepare(self._model, self._inputs, backend=backend_of(self.config), recipe=recipe)
        settings = tensors_of(self.config, layers)
        for entry in _weights(prepared):
            asked = settings[entry.tensor.removesuffix(".weight")]["weights"].ch_axis
            granularity = entry.scheme.granularity
            if asked is not None and isinstance(granularity, PerChannel) and granularity.axis != asked:
                raise RecipeError(
                    f"{self.config.source}: ch_axis = {asked} for {entry.tensor!r}",
                    f"allowed is {granularity.axis}, where a {entry.kind} has its output channels",
                    "give this layer_type a ch_axis of its own",
                )
        return prepared

    def _written(self, asked: str) -> Artifact:
        if self._artifact is None:
            raise DeployError(asked, "nothing was deployed yet", "call to_deployable or deployable_model first")
        return self._artifact


def _weights(prepared: PreparedModel) -> Iterator[QuantizedTensor]:
    return (entry for entry in prepared.plan.quantized if entry.role == "weight" and entry.tensor.endswith(".weight"))


def _converted(model: nn.Module, config: VitisConfig) -> nn.Module:
    """`model`, or a copy in which the activations that the config names are others."""
    swaps: dict[type[nn.Module], type[nn.Module]] = {}
    if "convert_relu6_to_relu" in config.flags:
        swaps[nn.ReLU6] = nn.ReLU
    if "convert_silu_to_hswish" in config.flags:
        swaps[nn.SiLU] = nn.Hardswish
    if not swaps:
        return model
    copied = copy.deepcopy(model)
    for name, module in list(copied.named_modules()):
        if type(module) in swaps and name:
            copied.set_submodule(name, swaps[type(module)]())
    return copied
