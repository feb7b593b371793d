"""What each vendor's file says of tensors and operations, from the reader of its format; networks are in
`vendor_networks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from detent.deploy.formats.acl import read_acl
from detent.deploy.formats.ascend_record import read_records
from detent.deploy.formats.content import parse_json
from detent.deploy.formats.mqbench_json import read_clip_ranges
from detent.deploy.formats.nnie_gfpq import read_gfpq
from detent.deploy.formats.nxp_ranges import read_nxp
from detent.deploy.formats.onnx_qlinear import read_qlinear
from detent.deploy.formats.ppl_json import read_ppl
from detent.deploy.formats.ppq_json import read_ppq
from detent.deploy.formats.qualcomm_encodings import QualcommRange, read_overrides, read_ranges
from detent.deploy.formats.rknn import read_rknn
from detent.deploy.formats.stpu_minmax import read_stpu
from detent.deploy.formats.tengine_scale import read_scales
from detent.deploy.formats.tensorrt_ranges import read_calibration_cache, read_dynamic_ranges
from detent.deploy.formats.vitis_quant_info import read_quant_info
from detent.deploy.ncnn.table import read_ncnn_table
from detent.verification.vendor_networks import (
    espdl,
    initializers,
    mnn,
    mnn_text,
    ncnn,
    openvino,
    tflite,
    torch_grids,
    torch_tensors,
)
from detent.verification.vendor_said import Said, named

__all__ = ["READERS", "Reader"]


@dataclass(frozen=True)
class Reader:
    """`read` takes the content of the file, and of the one `beside` it, if it needs that; `roles` are those of the
    tensors that it must all speak of."""

    read: Callable[..., Iterator[Said]]
    roles: tuple[str, ...] = ()
    beside: str | None = None


def _acl(content: bytes) -> Iterator[Said]:
    types = {"QASYMM8": "uint8", "QASYMM8_SIGNED": "int8", "QSYMM8_PER_CHANNEL": "int8", "QASYMM16": "uint16"}
    types |= {"QSYMM16": "int16", "S32": "int32"}
    for name, one in read_acl(content).items():
        yield Said(name, {"scale": one.scale, "zero point": one.offset, "type": types.get(one.data_type)})


def _ascend(content: bytes) -> Iterator[Said]:
    for op, record in read_records(content).items():
        yield Said(op, {"scale": record.scale_d, "offset": -128 - record.offset_d}, 0)
        if record.scale_w:
            yield Said(op, {"scale": record.scale_w}, 1)


def _mqbench(content: bytes) -> Iterator[Said]:
    if content.lstrip().startswith(b"{"):
        for dialect, read in {"tensorrt": _tensorrt_ranges, "ppl": _ppl, "activation_encodings": _snpe}.items():
            if dialect in parse_json(content, "mqbench_json"):
                yield from read(content)
                return
        yield from (Said(name, {"scale": scale}) for name, scale in read_clip_ranges(content).items())
    else:
        yield from (Said(name, {"greatest": most}) for name, most in read_clip_ranges(content).items())


def _ncnn_table(content: bytes) -> Iterator[Said]:
    for entry in read_ncnn_table(content):
        yield Said(entry.layer, {"factor": entry.input}, 0)
        yield Said(entry.layer, {"factor": entry.weight}, 1)


def _nnie(content: bytes) -> Iterator[Said]:
    for op, magnitudes in read_gfpq(content).magnitudes.items():
        yield from (Said(op, {"scale": one}, place) for place, one in enumerate(magnitudes))


def _nxp(content: bytes) -> Iterator[Said]:
    yield from initializers(content)
    for name, one in read_nxp(content).items():
        yield Said(name, {"range": (one.minimum, one.maximum)})


def _ppl(content: bytes) -> Iterator[Said]:
    for name, one in read_ppl(content).tensors.items():
        grid = {"scale": one.scale, "zero point": one.zero_point, "bits": one.bits}
        yield Said(name, {**grid, "range": (one.minimum, one.maximum)})


def _ppq(content: bytes) -> Iterator[Said]:
    for tensors in read_ppq(content).configs.values():
        for name, one in tensors.items():
            codes = {"bits": one.bits, "codes": (one.qmin, one.qmax)}
            yield Said(name, {"scale": one.scale, "zero point": one.zero_point, **codes})


def _qlinear(content: bytes) -> Iterator[Said]:
    for name, one in read_qlinear(content).grids.items():
        facts = {"scale": one.scale, "zero point": one.zero_point, "type": one.dtype}
        yield Said(named(name), facts)


def _overrides(content: bytes) -> Iterator[Said]:
    held = read_overrides(content)
    for name, one in {**held.activations, **held.parameters}.items():
        yield Said(name, {"scale": one.scale, "offset": one.offset, "bits": one.bits})


def _snpe(content: bytes) -> Iterator[Said]:
    def facts(ranges: tuple[QualcommRange, ...]) -> dict[str, Any]:
        full = ([one.minimum for one in ranges], [one.maximum for one in ranges])
        return {"full range": full, "bits": ranges[0].bits}

    held = read_ranges(content)
    for name, ranges in {**held.activations, **held.parameters}.items():
        yield Said(name, facts(ranges))


def _rknn(content: bytes) -> Iterator[Said]:
    for name, one in read_rknn(content).items():
        grid = {"scale": one.scale, "zero point": one.zero_point, "type": one.dtype}
        yield Said(name, {**grid, "range": (one.minimum, one.maximum)})


def _stpu(content: bytes) -> Iterator[Said]:
    for name, one in read_stpu(content).items():
        if one.scale is not None:
            yield Said(name.removesuffix("_bias"), {"scale": one.scale}, 2)
        elif name.endswith("_weights"):
            yield Said(name.removesuffix("_weights"), {"magnitude": one.maximum}, 1)
        else:
            yield Said(name, {"magnitude": one.maximum})


def _tengine(content: bytes) -> Iterator[Said]:
    for name, one in read_scales(content).items():
        yield Said(name, {"scale": one.scale, "zero point": one.zero_point})


def _tensorrt_cache(content: bytes) -> Iterator[Said]:
    yield from (Said(name, {"scale": scale}) for name, scale in read_calibration_cache(content).scales.items())


def _tensorrt_ranges(content: bytes) -> Iterator[Said]:
    yield from (Said(name, {"magnitude": most}) for name, most in read_dynamic_ranges(content).items())


def _vitis(content: bytes) -> Iterator[Said]:
    held = read_quant_info(content)
    for name, one in {**held.parameters, **held.outputs, **held.inputs}.items():
        yield Said(name, {"scale": one.scale, "bits": one.bits})


_ALL, _NO_BIAS, _DATA = ("activation", "weight", "bias"), ("activation", "weight"), ("activation",)

READERS: Mapping[str, Reader] = {
    "acl_tensors.json": Reader(_acl, _ALL),
    "ascend_record.txt": Reader(_ascend),
    "clip_ranges.json": Reader(_mqbench, _DATA),
    "float.onnx": Reader(initializers),
    "model.espdl": Reader(espdl),
    "model.json": Reader(torch_grids),
    "model.mnn_compression.bin": Reader(mnn),
    "model.mnn_compression.json": Reader(mnn_text),
    "model.ncnn.bin": Reader(ncnn, beside="model.ncnn.param"),
    "model.safetensors": Reader(torch_tensors),
    "model.table": Reader(_ncnn_table),
    "model.tflite": Reader(tflite),
    "model.xml": Reader(openvino, beside="model.bin"),
    "nnie_gfpq.json": Reader(_nnie),
    "nxp.onnx": Reader(_nxp, _DATA),
    "ppl_quantization.json": Reader(_ppl, _NO_BIAS),
    "ppq_config.json": Reader(_ppq, _ALL),
    "qlinear.onnx": Reader(_qlinear),
    "quant_info.json": Reader(_vitis, _ALL),
    "quantization_overrides_0.6.1.json": Reader(_overrides, _NO_BIAS),
    "quantization_overrides_1.0.0.json": Reader(_overrides, _NO_BIAS),
    "rknn.quantization.cfg": Reader(_rknn, _NO_BIAS),
    "snpe_encodings.json": Reader(_snpe, _NO_BIAS),
    "stpu_minmax.json": Reader(_stpu, _DATA),
    "tengine.scale": Reader(_tengine, _DATA),
    "tensorrt_calibration.cache": Reader(_tensorrt_cache, _DATA),
    "tensorrt_clip_ranges.json": Reader(_tensorrt_ranges, _DATA),
    "tensorrt_ranges.json": Reader(_tensorrt_ranges, _DATA),
}
"""By the name of the file."""
