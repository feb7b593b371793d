"""MQBench's entry points, as its documents have them, over Detent's core."""

from detent.compat.mqbench.base import ObserverBase, QuantizeBase
from detent.compat.mqbench.deploying import convert_deploy, register_deploy_function
from detent.compat.mqbench.hardware import register_hardware
from detent.compat.mqbench.model_quantizer import ModelQuantizer, register_model_quantizer
from detent.compat.mqbench.models import model_entry
from detent.compat.mqbench.phases import (
    disable_all,
    enable_calibration,
    enable_calibration_quantization,
    enable_calibration_woquantization,
    enable_quantization,
)
from detent.compat.mqbench.platform import BackendType, prepare_by_platform, register_backend
from detent.compat.mqbench.processes import (
    LinearQuantizer_process,
    LogarithmicQuantizer_process,
    convert_xir,
    remove_fakequantize_and_collect_params,
    remove_fakequantize_and_collect_params_nnie,
)
from detent.compat.mqbench.qconfig import get_foldbn_config, get_qconfig, register_method
from detent.compat.mqbench.reconstruction import ptq_reconstruction

__all__ = [
    "BackendType",
    "LinearQuantizer_process",
    "LogarithmicQuantizer_process",
    "ModelQuantizer",
    "ObserverBase",
    "QuantizeBase",
    "convert_deploy",
    "convert_xir",
    "disable_all",
    "enable_calibration",
    "enable_calibration_quantization",
    "enable_calibration_woquantization",
    "enable_quantization",
    "get_foldbn_config",
    "get_qconfig",
    "model_entry",
    "prepare_by_platform",
    "ptq_reconstruction",
    "register_backend",
    "register_deploy_function",
    "register_hardware",
    "register_method",
    "register_model_quantizer",
    "remove_fakequantize_and_collect_params",
    "remove_fakequantize_and_collect_params_nnie",
]
