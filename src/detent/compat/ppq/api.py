"""What scripts import from `ppq.api` first: from a model to a quantized graph in one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from detent.compat.ppq.executor import TorchExecutor
from detent.compat.ppq.export import export_ppq_graph
from detent.compat.ppq.graph import BaseGraph, load_caffe_graph, load_onnx_graph, load_torch_model
from detent.compat.ppq.platforms import TargetPlatform
from detent.compat.ppq.quantizer import Quantizer, dispatch_graph
from detent.compat.ppq.settings import QuantizationSetting
from detent.errors import OnnxError, RecipeError

__all__ = [
    "DISABLE_CUDA_KERNEL",
    "ENABLE_CUDA_KERNEL",
    "NetworkFramework",
    "export",
    "load_graph",
    "load_native_graph",
    "quantize",
    "quantize_caffe_model",
    "quantize_native_model",
    "quantize_onnx_model",
    "quantize_torch_model",
]

_Path = str | os.PathLike[str]
_Collate = Callable[[Any], Any]


class NetworkFramework(Enum):
    """What a network is read from."""

    PPL = 1
    ONNX = 2
    CAFFE = 3
    NATIVE = 4


def load_graph(
    file_path: _Path,
    from_framework: NetworkFramework = NetworkFramework.ONNX,
    *,
    caffemodel_path: _Path | None = None,
) -> BaseGraph:
    """The operations of a file; Caffe's weights are in a second one."""
    if from_framework is NetworkFramework.ONNX:
        return load_onnx_graph(file_path)
    if from_framework is NetworkFramework.CAFFE and caffemodel_path is not None:
        return load_caffe_graph(file_path, caffemodel_path)
    if from_framework is NetworkFramework.CAFFE:
        raise OnnxError(f"load {os.fspath(file_path)!r}", "caffemodel_path is not given", "give both files")
    return load_native_graph(file_path)


def load_native_graph(import_file: _Path) -> BaseGraph:
    """Refused: PPQ's native files are pickles."""
    raise OnnxError(
        f"load {os.fspath(import_file)!r}",
        "PPQ's native files are pickles, which execute code when they are read",
        "export it from PPQ as ONNX (TargetPlatform.ONNX or ONNXRUNTIME) and load that",
    )


def quantize_native_model(
    model: BaseGraph,
    calib_dataloader: Iterable[Any],
    calib_steps: int,
    input_shape: Sequence[int] | None,
    platform: TargetPlatform,
    input_dtype: torch.dtype = torch.float,
    inputs: Any = None,
    setting: QuantizationSetting | None = None,
    collate_fn: _Collate | None = None,
    device: str = "cuda",
    verbose: int = 0,
    do_quantize: bool = True,
) -> BaseGraph:
    """Dispatch a graph to `platform` and quantize it there; with `do_quantize` False it is dispatched only.

    The network is traced with `inputs`, or with zeros of `input_shape`. With `verbose` the plan is printed.
    """
    setting = setting or QuantizationSetting()
    dispatch_graph(model, platform, setting)
    executor = TorchExecutor(model, device)
    if not do_quantize:
        return model
    if inputs is None and input_shape is None:
        raise RecipeError(f"quantize {model.name!r}", "neither input_shape nor inputs is given", "give one of them")
    example = torch.zeros(tuple(input_shape or ()), dtype=input_dtype) if inputs is None else inputs
    quantizer = Quantizer(platform, model)
    quantizer._verbose = bool(verbose)
    return quantizer.quantize(example, calib_dataloader, executor, setting, calib_steps, collate_fn)


def quantize_onnx_model(onnx_import_file: _Path, *args: Any, **kwargs: Any) -> BaseGraph:
    """`quantize_native_model` of an ONNX file; the arguments behind it are the same."""
    return quantize_native_model(load_onnx_graph(onnx_import_file), *args, **kwargs)


def quantize_caffe_model(caffe_proto_file: _Path, caffe_model_file: _Path, *args: Any, **kwargs: Any) -> BaseGraph:
    """`quantize_native_model` of a Caffe network; the arguments behind it are the same."""
    return quantize_native_model(load_caffe_graph(caffe_proto_file, caffe_model_file), *args, **kwargs)


def quantize_torch_model(
    model: nn.Module,
    calib_dataloader: Iterable[Any],
    calib_steps: int,
    input_shape: Sequence[int] | None,
    platform: TargetPlatform,
    input_dtype: torch.dtype = torch.float,
    setting: QuantizationSetting | None = None,
    collate_fn: _Collate | None = None,
    inputs: Any = None,
    do_quantize: bool = True,
    onnx_export_file: str = "onnx.model",
    device: str = "cuda",
    verbose: int = 0,
) -> BaseGraph:
    """`quantize_native_model` of a torch model, which is traced as it is (see `load_torch_model`)."""
    if inputs is None and input_shape is None:
        raise RecipeError("quantize a torch model", "neither input_shape nor inputs is given", "give one of them")
    sample = torch.zeros(tuple(input_shape or ()), dtype=input_dtype) if inputs is None else inputs
    graph = load_torch_model(model, onnx_export_file, sample, "cpu")
    return quantize_native_model(
        graph,
        calib_dataloader,
        calib_steps,
        None,
        platform,
        inputs=sample,
        setting=setting,
        collate_fn=collate_fn,
        device=device,
        verbose=verbose,
        do_quantize=do_quantize,
    )


def quantize(
    working_directory: _Path,
    setting: QuantizationSetting | None,
    model_type: NetworkFramework,
    executing_device: str,
    input_shape: Sequence[int],
    target_platform: TargetPlatform,
    dataloader: Iterable[Any],
    calib_steps: int = 32,
) -> BaseGraph:
    """Quantize `model.onnx`, or `model.prototxt` with `model.caffemodel`, of a folder."""
    folder = Path(working_directory)
    if model_type is NetworkFramework.CAFFE:
        graph = load_caffe_graph(folder / "model.prototxt", folder / "model.caffemodel")
    else:
        graph = load_graph(folder / "model.onnx", model_type)
    return quantize_native_model(
        graph, dataloader, calib_steps, input_shape, target_platform, setting=setting, device=executing_device
    )


def export(working_directory: _Path, quantized: BaseGraph, platform: TargetPlatform) -> list[Path]:
    """`export_ppq_graph` to `quantized.onnx` and `quantized.json` of a folder."""
    folder = Path(working_directory)
    return export_ppq_graph(quantized, platform, folder / "quantized.onnx", folder / "quantized.json")


class DISABLE_CUDA_KERNEL:  # noqa: N801, PPQ's name
    """Changes nothing: there are no kernels of PPQ's here to turn off."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class ENABLE_CUDA_KERNEL(DISABLE_CUDA_KERNEL):  # noqa: N801, PPQ's name
    """Changes nothing, and says so: torch's own kernels run here, on every device."""

    def __enter__(self) -> None:
        warnings.warn("ENABLE_CUDA_KERNEL: torch's own kernels are used; PPQ's are not part of Detent", stacklevel=2)
