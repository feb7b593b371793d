"""MMRazor's names over Detent: configs, registries, quantizers, `MMArchitectureQuant` and its loops."""

from detent.compat.mmrazor.architecture import ClsDataPreprocessor, MMArchitectureQuant
from detent.compat.mmrazor.config import Config
from detent.compat.mmrazor.loops import LSQEpochBasedLoop, PTQLoop, QATEpochBasedLoop, Runner
from detent.compat.mmrazor.modules import (
    BaseModule,
    FakeQuantizeBase,
    LearnableFakeQuantize,
    LSQObserver,
    LSQPerChannelObserver,
    MinMaxObserver,
    sync_tensor,
)
from detent.compat.mmrazor.quantizers import (
    AcademicQuantizer,
    BaseQuantizer,
    CustomTracer,
    NativeQuantizer,
    OpenVINOQuantizer,
    TensorRTQuantizer,
)
from detent.compat.mmrazor.registry import LOOPS, MODELS, TASK_UTILS

__all__ = [
    "LOOPS",
    "MODELS",
    "TASK_UTILS",
    "AcademicQuantizer",
    "BaseModule",
    "BaseQuantizer",
    "ClsDataPreprocessor",
    "Config",
    "CustomTracer",
    "FakeQuantizeBase",
    "LSQEpochBasedLoop",
    "LSQObserver",
    "LSQPerChannelObserver",
    "LearnableFakeQuantize",
    "MMArchitectureQuant",
    "MinMaxObserver",
    "NativeQuantizer",
    "OpenVINOQuantizer",
    "PTQLoop",
    "QATEpochBasedLoop",
    "Runner",
    "TensorRTQuantizer",
    "sync_tensor",
]
