"""PPQ's settings, and the algorithms of a recipe that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
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


class _Setting:
    """Has the fields that mean something here; setting another one is refused, so that nothing is ignored."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = [one.name for one in fields(self)]  # type: ignore[arg-type]
        if name not in known:
            raise RecipeError(
                f"{type(self).__name__}.{name} = {value!r}", f"it has {', '.join(known)} here", "leave it out"
            )
        super().__setattr__(name, value)


@dataclass
class CalibrationSetting(_Setting):
    """`calib_algorithm`: an observer in place of those the configs name."""

    calib_algorithm: str | None = None


@dataclass
class EqualizationSetting(_Setting):
    iterations: int = 10


@dataclass
class SSDEqualizationSetting(_Setting):
    iteration: int = 3


@dataclass
class LSQSetting(_Setting):
    """`is_scale_trainable` False trains weights alone."""

    steps: int = 500
    lr: float = 1e-5
    is_scale_trainable: bool = True


@dataclass
class BlockwiseReconstructionSetting(_Setting):
    steps: int = 5000


@dataclass
class WeightSplitSetting(_Setting):
    """Weights of `interested_layers` above `value_threshold` go into a layer of their own."""

    interested_layers: list[str] = field(default_factory=list)
    value_threshold: float = 2.0


@dataclass
class ChannelSplitSetting(_Setting):
    """Of the channels behind ("down") or in front of ("up") each of `interested_layers`, `expand_ratio` are doubled.

    Without layers, of those between any two.
    """

    interested_layers: list[str] = field(default_factory=list)
    search_directions: list[str] = field(default_factory=list)
    expand_ratio: float = 0.1


@dataclass
class QuantizationSetting(_Setting):
    """What to do besides calibration."""

    dispatcher: str = "conservative"
    dispatching_table: DispatchingTable = field(default_factory=DispatchingTable)
    fusion: bool = True
    quantize_activation_setting: CalibrationSetting = field(default_factory=CalibrationSetting)
    quantize_parameter_setting: CalibrationSetting = field(default_factory=CalibrationSetting)
    weight_split: bool = False
    weight_split_setting: WeightSplitSetting = field(default_factory=WeightSplitSetting)
    channel_split: bool = False
    channel_split_setting: ChannelSplitSetting = field(default_factory=ChannelSplitSetting)
    equalization: bool = False
    equalization_setting: EqualizationSetting = field(default_factory=EqualizationSetting)
    ssd_equalization: bool = False
    ssd_setting: SSDEqualizationSetting = field(default_factory=SSDEqualizationSetting)
    bias_correct: bool = False
    lsq_optimization: bool = False
    lsq_optimization_setting: LSQSetting = field(default_factory=LSQSetting)
    blockwise_reconstruction: bool = False
    blockwise_reconstruction_setting: BlockwiseReconstructionSetting = field(
        default_factory=BlockwiseReconstructionSetting
    )

    def algorithms(self) -> list[dict[str, Any]]:
        """For a recipe, in PPQ's order. What splits a network is done before it is prepared."""
        self._refuse_pairs()
        found: list[dict[str, Any]] = []
        if self.equalization or self.ssd_equalization:
            # Ours always measures the loss, which is what PPQ's two methods differ in.
            rounds = self.equalization_setting.iterations if self.equalization else self.ssd_setting.iteration
            found.append({"name": "equalize", "options": {"rounds": rounds}})
        if self.bias_correct:
            found.append({"name": "bias_correction"})
        if self.lsq_optimization:
            lsq = self.lsq_optimization_setting
            rates = {"weight_rate": lsq.lr, "scale_rate": lsq.lr}
            found.append({"name": "finetune_weights", "options": {"steps": lsq.steps, **rates}})
        if self.blockwise_reconstruction:
            found.append({"name": "brecq", "options": {"steps": self.blockwise_reconstruction_setting.steps}})
        return found

    @property
    def weight_quantizer(self) -> str | None:
        """What the weights are simulated by, where an algorithm needs something else than fixed scales."""
        return "adaround" if self.blockwise_reconstruction else self.activation_quantizer

    @property
    def activation_quantizer(self) -> str | None:
        return "lsq" if self.lsq_optimization and self.lsq_optimization_setting.is_scale_trainable else None

    def _refuse_pairs(self) -> None:
        pairs = (("equalization", "ssd_equalization"), ("lsq_optimization", "blockwise_reconstruction"))
        for one, other in pairs:
            if getattr(self, one) and getattr(self, other):
                raise RecipeError(f"the settings {one} and {other}", "each would undo the other", "choose one of them")


class QuantizationSettingFactory:
    """PPQ's settings by the kind of target. What differs between targets is in their backends here."""

    @staticmethod
    def default_setting() -> QuantizationSetting:
        return QuantizationSetting()

    academic_setting = pplcuda_setting = trt_setting = ncnn_setting = nxp_setting = default_setting
    mnn_setting = metax_setting = default_setting

    @staticmethod
    def ascend_setting() -> QuantizationSetting:
        return QuantizationSetting(fusion=False)

    @staticmethod
    def dsp_setting() -> QuantizationSetting:
        """For targets without a scale for each channel: equalized."""
        return QuantizationSetting(equalization=True, equalization_setting=EqualizationSetting(iterations=3))

    @staticmethod
    def fpga_setting() -> QuantizationSetting:
        return QuantizationSetting(equalization=True)

    metax_pertensor_setting = fpga_setting
