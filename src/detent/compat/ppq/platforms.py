"""PPQ's platforms, and the backend that each of them is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from detent.errors import RegistrationError
from detent.numerics import PerChannel, PerTensor
from detent.planning import Backend, SupportedSchemes
from detent.recipes import Recipe
from detent.targets import BACKENDS

__all__ = ["BACKEND_OF", "CREATED", "RECIPE_OF", "TargetPlatform"]


class TargetPlatform(Enum):
    """What an operation may be dispatched to; the numbers are PPQ's.

    For a chip of your own `create` a member, or register a quantizer under `EXTENSION` or in the place of another.
    """

    MNN_INT8 = 100
    TRT_INT8 = 101
    NCNN_INT8 = 102
    OPENVINO_INT8 = 103
    TENGINE_INT8 = 104
    TRT_FP8 = 105
    ASC_INT8 = 106
    PPL_CUDA_INT8 = 201
    PPL_CUDA_INT4 = 202
    PPL_CUDA_FP16 = 203
    PPL_CUDA_MIX = 204
    PPL_DSP_INT8 = 301
    SNPE_INT8 = 302
    PPL_DSP_TI_INT8 = 303
    QNN_DSP_INT8 = 304
    HOST_INT8 = 401
    NXP_INT8 = 501
    FPGA_INT8 = 502
    RKNN_INT8 = 601
    METAX_INT8_C = 701
    METAX_INT8_T = 702
    HEXAGON_INT8 = 801
    GRAPHCORE_FP8 = 901
    ESPDL_INT8 = 1001
    FP32 = 0
    FP16 = 1
    BF16 = 2
    FP8 = 3
    INT8 = 4
    SOI = -1
    UNSPECIFIED = -2
    BOUNDARY = -3
    ONNX = -4
    CAFFE = -5
    NATIVE = -6
    ONNXRUNTIME = -7
    ORT_OOS_INT8 = -8
    ACADEMIC_INT8 = 10081
    ACADEMIC_INT4 = 10082
    ACADEMIC_MIX = 10083
    EXTENSION = -10086

    @classmethod
    def is_quantized_platform(cls, platform: TargetPlatform) -> bool:
        """Whether operations on it are quantized."""
        return platform not in _FLOAT

    @classmethod
    def create(cls, name: str, value: int | None = None) -> TargetPlatform:
        """A platform of your own, as a member of that name, on which operations are quantized; the one that there is
        if it was created before. Its number is the next free one if you give none.

        >>> TargetPlatform.create("MY_CHIP_INT8") is TargetPlatform.MY_CHIP_INT8
        True
        """
        given = max(one.value for one in cls) + 1 if value is None else value
        known = cls.__members__.get(name)
        if known is not None and value in (None, known.value):
            return known
        taken = next((one for one in cls if given == one.value), known)
        if taken is not None or not name.isidentifier():
            raise RegistrationError(
                f"create the platform {name} = {given}",
                f"{taken.name} = {taken.value} is taken" if taken else "it is not a valid Python name",
                "choose another name or number",
            )
        # An Enum has no way to add a member; this is what its class statement does with one.
        made = object.__new__(cls)
        made._name_, made._value_ = name, given
        setattr(cls, name, made)
        cls._member_names_.append(name)
        cls._member_map_[name] = made
        cls._value2member_map_[given] = made
        CREATED.add(made)
        return made


CREATED: set[TargetPlatform] = set()
"""Platforms that users have added."""

_FLOAT = {
    TargetPlatform.FP32,
    TargetPlatform.FP16,
    TargetPlatform.BF16,
    TargetPlatform.PPL_CUDA_FP16,
    TargetPlatform.SOI,
    TargetPlatform.UNSPECIFIED,
    TargetPlatform.BOUNDARY,
    TargetPlatform.ONNX,
    TargetPlatform.CAFFE,
    TargetPlatform.NATIVE,
}

# Both leave biases float.
_METAX_T = replace(
    BACKENDS["metax"],
    name="metax_int8_t",
    about="MetaX, one scale a tensor",
    weight=SupportedSchemes(signed=(False,), symmetric=(False,)),
    activation=SupportedSchemes(signed=(False,), symmetric=(False,)),
    bias="float",
)
_DSP_TI = replace(
    BACKENDS["ppl_dsp"],
    name="ppl_dsp_ti_int8",
    about="OpenPPL, TI's DSP",
    weight=SupportedSchemes(granularities=(PerChannel, PerTensor)),
    activation=SupportedSchemes(),
    bias="float",
    files=("onnx", "ppq_json"),
)
# Batch norms are merged, and biases have 30 bits, on the scale of input times weight: PPQ keeps them below 32, so that
# no scale underflows.
_ACADEMIC = replace(
    BACKENDS["academic"],
    name="academic_int8",
    about="PPQ's ACADEMIC_INT8: inputs and weights of convolutions and linear layers",
    bias="int32",
    bias_schemes=SupportedSchemes(bits=(30,)),
    batch_norm=0,
)

BACKEND_OF: Mapping[TargetPlatform, Backend] = {
    TargetPlatform.MNN_INT8: BACKENDS["mnn"],
    TargetPlatform.TRT_INT8: BACKENDS["tensorrt"],
    TargetPlatform.NCNN_INT8: BACKENDS["ncnn"],
    TargetPlatform.OPENVINO_INT8: BACKENDS["openvino"],
    TargetPlatform.TENGINE_INT8: BACKENDS["tengine"],
    TargetPlatform.ASC_INT8: BACKENDS["ascend"],
    TargetPlatform.PPL_CUDA_INT8: BACKENDS["ppl_cuda"],
    TargetPlatform.PPL_DSP_INT8: BACKENDS["ppl_dsp"],
    TargetPlatform.SNPE_INT8: BACKENDS["snpe"],
    TargetPlatform.QNN_DSP_INT8: BACKENDS["qnn"],
    TargetPlatform.NXP_INT8: BACKENDS["nxp"],
    TargetPlatform.FPGA_INT8: BACKENDS["fpga"],
    TargetPlatform.RKNN_INT8: BACKENDS["rknn"],
    TargetPlatform.METAX_INT8_C: BACKENDS["metax"],
    TargetPlatform.METAX_INT8_T: _METAX_T,
    TargetPlatform.PPL_DSP_TI_INT8: _DSP_TI,
    TargetPlatform.ESPDL_INT8: BACKENDS["esp_dl"],
    TargetPlatform.ONNXRUNTIME: BACKENDS["onnxruntime"],
    TargetPlatform.ORT_OOS_INT8: BACKENDS["onnxruntime"],
    TargetPlatform.ACADEMIC_INT8: _ACADEMIC,
    TargetPlatform.ACADEMIC_INT4: replace(_ACADEMIC, name="academic_int4"),
}
"""The backends that need no quantizer of the user's."""

_PAPERS = {"bits": 8, "symmetric": False, "signed": False, "granularity": "per_tensor", "observer": "percentile"}
_WEIGHTS = {"bits": 8, "symmetric": True, "signed": True, "granularity": "per_tensor", "observer": "minmax"}

RECIPE_OF: Mapping[TargetPlatform, Recipe] = {
    TargetPlatform.ACADEMIC_INT8: Recipe.from_dict({"name": "ppq", "activation": _PAPERS, "weight": _WEIGHTS}),
    TargetPlatform.ACADEMIC_INT4: Recipe.from_dict(
        {"name": "ppq", "activation": {**_PAPERS, "bits": 4}, "weight": {**_WEIGHTS, "bits": 4}}
    ),
}
"""What PPQ asks of a platform, where that is not what its backend prefers anyway."""
