"""Vendors' parameter files: one writer a format, with a reader beside it that gives back what was said."""

from __future__ import annotations

from collections.abc import Mapping

from detent.deploy.deployment import Writer
from detent.deploy.formats import (
    acl,
    ascend_record,
    espdl,
    mqbench_json,
    nnie_gfpq,
    nxp_ranges,
    onnx_qlinear,
    ppl_json,
    ppq_json,
    qualcomm_encodings,
    rknn,
    stpu_minmax,
    tengine_scale,
    tensorrt_ranges,
    vitis_quant_info,
)

__all__ = ["FORMATS"]

FORMATS: Mapping[str, Writer] = {
    "acl": acl.write,
    "ascend_record": ascend_record.write,
    "espdl": espdl.write,
    "mqbench_json": mqbench_json.write,
    "nnie_gfpq": nnie_gfpq.write,
    "nxp_ranges": nxp_ranges.write,
    "onnx_qlinear": onnx_qlinear.write,
    "ppl_json": ppl_json.write,
    "ppq_json": ppq_json.write,
    "qualcomm_encodings": qualcomm_encodings.write,
    "rknn": rknn.write,
    "stpu_minmax": stpu_minmax.write,
    "tengine_scale": tengine_scale.write,
    "tensorrt_ranges": tensorrt_ranges.write,
    "vitis_quant_info": vitis_quant_info.write,
}
"""Names that a backend gives in its `files`."""
