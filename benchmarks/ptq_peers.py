"""The same networks through other quantizers, where they are installed: 8 bits, their own defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ptq_data import Task


def write_onnx(net: nn.Module, task: Task, path: str | Path) -> None:
    """With input `x` and a free batch size."""
    torch.onnx.export(
        net,
        (task.calibration[0][:2],),
        str(path),
        input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def write_static_file(
    task: Task,
    folder: Path,
    *,
    per_channel: bool,
    reduce_range: bool = False,
    clock: AbstractContextManager[Any] | None = None,
) -> Path:
    """The file that `onnxruntime.quantization.quantize_static` writes: QDQ, u8 activations and s8 weights. `clock` is
    entered once all is imported."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._batches: Iterator[Tensor] = iter(task.calibration)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {"x": batch.numpy()}

    paths = [str(folder / name) for name in ("float.onnx", "ready.onnx", "quantized.onnx")]
    with clock or nullcontext():
        write_onnx(task.net, task, paths[0])
        quant_pre_process(paths[0], paths[1])
        quantize_static(
            paths[1],
            paths[2],
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            reduce_range=reduce_range,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return Path(paths[2])


def onnxruntime_static(task: Task, *, per_channel: bool, reduce_range: bool = False) -> Callable[[Tensor], Any]:
    """`quantize_static` on ONNX Runtime."""
    import onnxruntime

    path = write_static_file(task, Path(tempfile.mkdtemp()), per_channel=per_channel, reduce_range=reduce_range)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x.numpy()})[0]


def nncf_post_training(task: Task, *, per_channel: bool) -> Callable[[Tensor], Any]:
    """`nncf.quantize` with its default preset; it chooses per-channel weights itself."""
    import nncf

    del per_channel
    quantized = nncf.quantize(task.net, nncf.Dataset(task.calibration), subset_size=len(task.calibration))
    return quantized.eval()


def nncf_on_openvino(task: Task) -> Callable[[Tensor], Any]:
    """`nncf.quantize` of the OpenVINO model with `overflow_fix` for every layer, on OpenVINO."""
    import nncf
    import openvino
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    model = openvino.convert_model(task.net, example_input=task.calibration[0][:2])
    quantized = nncf.quantize(
        model,
        nncf.Dataset(task.calibration, lambda batch: batch.numpy()),
        subset_size=len(task.calibration),
        advanced_parameters=AdvancedQuantizationParameters(overflow_fix=OverflowFix.ENABLE),
    )
    compiled = openvino.compile_model(quantized, "CPU")
    return lambda x: compiled(x.numpy())[0]


PEERS: dict[str, tuple[str, Callable[..., Callable[[Tensor], Any]]]] = {
    "onnxruntime.quantization": ("onnxruntime", onnxruntime_static),
    "NNCF": ("nncf", nncf_post_training),
}
