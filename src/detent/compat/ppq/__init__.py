"""PPQ's names over Detent: what a document imports from `ppq.api`, `ppq.core`, `ppq.IR`, `ppq.lib` is all here."""

from detent.compat.ppq.analysis import graphwise_error_analyse, layerwise_error_analyse
from detent.compat.ppq.config import OperationQuantizationConfig, TensorQuantizationConfig
from detent.compat.ppq.executor import TorchExecutor
from detent.compat.ppq.export import export_ppq_graph
from detent.compat.ppq.graph import BaseGraph, Operation, load_caffe_graph, load_onnx_graph
from detent.compat.ppq.platforms import TargetPlatform
from detent.compat.ppq.policy import QuantizationPolicy, QuantizationProperty, QuantizationStates, RoundingPolicy
from detent.compat.ppq.quantizer import BaseQuantizer, Quantizer, dispatch_graph, register_network_quantizer
from detent.compat.ppq.settings import DispatchingTable, QuantizationSetting, QuantizationSettingFactory

__all__ = [
    "BaseGraph",
    "BaseQuantizer",
    "DispatchingTable",
    "Operation",
    "OperationQuantizationConfig",
    "QuantizationPolicy",
    "QuantizationProperty",
    "QuantizationSetting",
    "QuantizationSettingFactory",
    "QuantizationStates",
    "Quantizer",
    "RoundingPolicy",
    "TargetPlatform",
    "TensorQuantizationConfig",
    "TorchExecutor",
    "dispatch_graph",
    "export_ppq_graph",
    "graphwise_error_analyse",
    "layerwise_error_analyse",
    "load_caffe_graph",
    "load_onnx_graph",
    "register_network_quantizer",
]
