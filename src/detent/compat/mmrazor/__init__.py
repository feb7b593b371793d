"""MMRazor's names over Detent: configs, registries, quantizers, `MMArchitectureQuant` and its loops."""

from detent.compat.mmrazor.architecture import ClsDataPreprocessor, MMArchitectureQuant
from detent.compat.mmrazor.config import Config
from detent.compat.mmrazor.deploy_config import DeployConfigWarning
from detent.compat.mmrazor.loops import EpochBasedTrainLoop, LSQEpochBasedLoop, PTQLoop, QATEpochBasedLoop, ValLoop
from detent.compat.mmrazor.modules import BaseModule, FakeQuantizeBase, FXFloatFunctional, LearnableFakeQuantize
from detent.compat.mmrazor.observers import (
    HistogramObserver,
    LSQObserver,
    LSQPerChannelObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    sync_tensor,
)
from detent.compat.mmrazor.quantizers import (
    AcademicQuantizer,
    BaseQuantizer,
    NativeQuantizer,
    OpenVINOQuantizer,
    TensorRTQuantizer,
)
from detent.compat.mmrazor.registry import DATASETS, LOOPS, MODELS, TASK_UTILS
from detent.compat.mmrazor.runner import Runner
from detent.compat.mmrazor.switches import (
    disable_observer,
    enable_fake_quant,
    enable_observer,
    enable_param_learning,
    enable_static_estimate,
    enable_val,
    freeze_bn_stats,
)
from detent.compat.mmrazor.tracer import CustomTracer, TracedModel

__all__ = [
    "DATASETS",
    "LOOPS",
    "MODELS",
    "TASK_UTILS",
    "AcademicQuantizer",
    "BaseModule",
    "BaseQuantizer",
    "ClsDataPreprocessor",
    "Config",
    "CustomTracer",
    "DeployConfigWarning",
    "EpochBasedTrainLoop",
    "FXFloatFunctional",
    "FakeQuantizeBase",
    "HistogramObserver",
    "LSQEpochBasedLoop",
    "LSQObserver",
    "LSQPerChannelObserver",
    "LearnableFakeQuantize",
    "MMArchitectureQuant",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "NativeQuantizer",
    "OpenVINOQuantizer",
    "PTQLoop",
    "PerChannelMinMaxObserver",
    "QATEpochBasedLoop",
    "Runner",
    "TensorRTQuantizer",
    "TracedModel",
    "ValLoop",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "enable_param_learning",
    "enable_static_estimate",
    "enable_val",
    "freeze_bn_stats",
    "sync_tensor",
]
