"""PPQ's settings, and the algorithms of a recipe that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detent.compat.ppq.platforms import TargetPlatform
from detent.errors import RecipeError

__all__ = ["DispatchingTable", "QuantizationSetting", "QuantizationSettingFactory"]


class DispatchingTable:
    """Operations by name that go to a platform of the user's choice."""

    def __init__(self) -> None:
        self.dispatchings: dict[str, TargetPlatform] = {}

    def append(self, operation: str, platform: TargetPlatform | int) -> None:
        self.dispatchings[operation] = TargetPlatform(platform)


@dataclass
class ActivationSetting:
    """`calib_algorithm`: an observer in place of those the configs name."""

    calib_algorithm: str | None = None


@dataclass
class EqualizationSetting:
    iterations: int = 10


@dataclass
class TuningSetting:
    """Of LSQ and of block-wise reconstruction."""

    steps: int = 500


@dataclass
class QuantizationSetting:
    """What to do besides calibration. What has no counterpart here is refused where it is set to True."""

    dispatcher: str = "conservative"
    dispatching_table: DispatchingTable = field(default_factory=DispatchingTable)
    fusion: bool = True
    quantize_activation_setting: ActivationSetting = field(default_factory=ActivationSetting)
    equalization: bool = False
    equalization_setting: EqualizationSetting = field(default_factory=EqualizationSetting)
    bias_correct: bool = False
    lsq_optimization: bool = False
    lsq_optimization_setting: TuningSetting = field(default_factory=TuningSetting)
    blockwise_reconstruction: bool = False
    blockwise_reconstruction_setting: TuningSetting = field(default_factory=lambda: TuningSetting(5000))
    ssd_equalization: bool = False
    channel_split: bool = False
    weight_split: bool = False

    def algorithms(self) -> list[dict[str, Any]]:
        """For a recipe, in PPQ's order."""
        self._refuse_unknown()
        found: list[dict[str, Any]] = []
        if self.equalization:
            found.append({"name": "equalize", "options": {"rounds": self.equalization_setting.iterations}})
        if self.bias_correct:
            found.append({"name": "bias_correction"})
        if self.lsq_optimization:
            found.append({"name": "finetune_weights", "options": {"steps": self.lsq_optimization_setting.steps}})
        if self.blockwise_reconstruction:
            found.append({"name": "brecq", "options": {"steps": self.blockwise_reconstruction_setting.steps}})
        return found

    @property
    def weight_quantizer(self) -> str | None:
        """What the weights are simulated by, where an algorithm needs something else than fixed scales."""
        return "adaround" if self.blockwise_reconstruction else "lsq" if self.lsq_optimization else None

    @property
    def activation_quantizer(self) -> str | None:
        return "lsq" if self.lsq_optimization else None

    def _refuse_unknown(self) -> None:
        asked = [name for name in ("ssd_equalization", "channel_split", "weight_split") if getattr(self, name)]
        if self.lsq_optimization and self.blockwise_reconstruction:
            asked.append("lsq_optimization with blockwise_reconstruction")
        if asked:
            raise RecipeError(
                f"the setting {' and '.join(asked)}",
                "there is nothing here that it stands for",
                "use equalization, bias_correct, and one of lsq_optimization and blockwise_reconstruction; "
                "channels are split by detent.algorithms.split_channels before a model is prepared",
            )


class QuantizationSettingFactory:
    """PPQ's settings by the kind of target. What differs between targets is in their backends here."""

    @staticmethod
    def default_setting() -> QuantizationSetting:
        return QuantizationSetting()

    academic_setting = pplcuda_setting = trt_setting = ncnn_setting = nxp_setting = metax_setting = default_setting

    @staticmethod
    def dsp_setting() -> QuantizationSetting:
        """For targets without a scale for each channel: equalized."""
        return QuantizationSetting(equalization=True)
