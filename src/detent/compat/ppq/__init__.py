"""PPQ's names over Detent: what a document imports from `ppq.api`, `ppq.core`, `ppq.IR`, `ppq.lib` is all here."""

from detent.compat.ppq.analysis import graphwise_error_analyse, layerwise_error_analyse
from detent.compat.ppq.api import (
    DISABLE_CUDA_KERNEL,
    ENABLE_CUDA_KERNEL,
    NetworkFramework,
    export,
    load_graph,
    load_native_graph,
    quantize,
    quantize_caffe_model,
    quantize_native_model,
    quantize_onnx_model,
    quantize_torch_model,
)
from detent.compat.ppq.config import OperationQuantizationConfig, TensorQuantizationConfig
from detent.compat.ppq.executor import TorchExecutor
from detent.compat.ppq.export import export_ppq_graph
from detent.compat.ppq.graph import (
    BaseGraph,
    Operation,
    QuantableOperation,
    Variable,
    format_graph,
    load_caffe_graph,
    load_onnx_graph,
    load_torch_model,
)
from detent.compat.ppq.lib import Dispatcher, Exporter, LinearQuantizationConfig, Observer, Parser
from detent.compat.ppq.pipeline import (
    BiasCorrectionPass,
    LayerwiseEqualizationPass,
    LearnedStepSizePass,
    ParameterQuantizePass,
    PassiveParameterQuantizePass,
    Pipeline,
    QuantizationOptimizationPass,
    QuantizeFusionPass,
    QuantizeSimplifyPass,
    RuntimeCalibrationPass,
)
from detent.compat.ppq.platforms import TargetPlatform
from detent.compat.ppq.policy import QuantizationPolicy, QuantizationProperty, QuantizationStates, RoundingPolicy
from detent.compat.ppq.quantizer import BaseQuantizer, Quantizer, dispatch_graph, register_network_quantizer
from detent.compat.ppq.settings import DispatchingTable, QuantizationSetting, QuantizationSettingFactory

__all__ = [
    "DISABLE_CUDA_KERNEL",
    "ENABLE_CUDA_KERNEL",
    "BaseGraph",
    "BaseQuantizer",
    "BiasCorrectionPass",
    "Dispatcher",
    "DispatchingTable",
    "Exporter",
    "LayerwiseEqualizationPass",
    "LearnedStepSizePass",
    "LinearQuantizationConfig",
    "NetworkFramework",
    "Observer",
    "Operation",
    "OperationQuantizationConfig",
    "ParameterQuantizePass",
    "Parser",
    "PassiveParameterQuantizePass",
    "Pipeline",
    "QuantableOperation",
    "QuantizationOptimizationPass",
    "QuantizationPolicy",
    "QuantizationProperty",
    "QuantizationSetting",
    "QuantizationSettingFactory",
    "QuantizationStates",
    "QuantizeFusionPass",
    "QuantizeSimplifyPass",
    "Quantizer",
    "RoundingPolicy",
    "RuntimeCalibrationPass",
    "TargetPlatform",
    "TensorQuantizationConfig",
    "TorchExecutor",
    "Variable",
    "dispatch_graph",
    "export",
    "export_ppq_graph",
    "format_graph",
    "graphwise_error_analyse",
    "layerwise_error_analyse",
    "load_caffe_graph",
    "load_graph",
    "load_native_graph",
    "load_onnx_graph",
    "load_torch_model",
    "quantize",
    "quantize_caffe_model",
    "quantize_native_model",
    "quantize_onnx_model",
    "quantize_torch_model",
    "register_network_quantizer",
]
