"""`QatProcessor`: from a float model to a trainable one, and from that to files, under the names of the document."""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from torch import Tensor, nn

from detent import targets as backends
from detent.artifact import Artifact, deploy
from detent.calibrating import calibrate
from detent.compat.vitis import statistics
from detent.compat.vitis.config import VitisConfig
from detent.compat.vitis.deployed import Deployed
from detent.compat.vitis.layers import layers_of
from detent.compat.vitis.trainable import TrainableModel
from detent.compat.vitis.translation import VITIS_CPU, backend_of, recipe_of, tensors_of
from detent.errors import DeployError, RecipeError
from detent.graph import PreparedModel, QuantizedTensor
from detent.numerics import PerChannel
from detent.preparing import prepare

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
        self._trainable: TrainableModel | None = None
        self._artifact: Artifact | None = None

    def trainable_model(self, calib_dir: _Path = "", allow_reused_module: bool = True) -> TrainableModel:
        """The model with quantizers, calibrated on `inputs`: an ordinary module; `.plan` says what is quantized.

        A module may be called twice; with `allow_reused_module` False that is refused.
        """
        if str(calib_dir):
            raise RecipeError(
                f"trainable_model from {str(calib_dir)!r}",
                "results of Vitis AI's own calibration name the tensors of its own trace",
                "leave calib_dir out: scales are calibrated on `inputs`",
            )
        if self._trainable is None:
            self._trainable = TrainableModel.of(self._prepared())
            if not allow_reused_module:
                _refuse_reused(self._trainable)
            calibrate(self._trainable, [self._inputs])
        return self._trainable

    def to_deployable(self, trained_model: PreparedModel, output_dir: _Path) -> Deployed:
        """Write the trained model as an artifact and give it back as it runs there, in integers."""
        self._artifact = deploy(trained_model, output_dir)
        return Deployed(self._artifact)

    convert_to_deployable = to_deployable

    def deployable_model(self, src_dir: _Path, used_for_xmodel: bool = False) -> Deployed:
        """What `to_deployable` wrote, read back; every file is checked against its hash. `used_for_xmodel` is what
        Vitis AI asks before `export_xmodel`; a model of a target that has none is refused there."""
        if used_for_xmodel:
            self._require_dpu("deployable_model(used_for_xmodel=True)")
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
        self._require_dpu("export_xmodel")
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
            layer = settings.get(entry.tensor.removesuffix(".weight"))
            asked = layer["weights"].ch_axis if layer else self.config.tensors()["weights"].ch_axis
            granularity = entry.scheme.granularity
            if asked is not None and isinstance(granularity, PerChannel) and granularity.axis != asked:
                raise RecipeError(
                    f"{self.config.source}: ch_axis = {asked} for {entry.tensor!r}",
                    f"allowed is {granularity.axis}, where a {entry.kind} has its output channels",
                    "give this layer_type a ch_axis of its own",
                )
        return prepared

    def _require_dpu(self, asked: str) -> None:
        if self.config.target_device != "DPU":
            raise DeployError(asked, f"the config has target_device {self.config.target_device!r}", "train for the DPU")

    def _written(self, asked: str) -> Artifact:
        if self._artifact is None:
            raise DeployError(asked, "nothing was deployed yet", "call to_deployable or deployable_model first")
        return self._artifact


def _refuse_reused(model: PreparedModel) -> None:
    calls = Counter(node.target for graph in model.graphs.values() for node in graph.nodes if node.op == "call_module")
    again = [str(name) for name, count in calls.items() if count > 1 and name in dict(model.named_modules())]
    if again:
        raise RecipeError(
            "trainable_model(allow_reused_module=False)",
            f"{', '.join(again)} {'is' if len(again) == 1 else 'are'} called more than once",
            "allow it: each call has quantizers of its own for what it takes in",
        )


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
