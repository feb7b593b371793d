"""NXP: the float network with the range of each activation `T` as two more initializers, `T_min` and `T_max`.

They are inputs of the graph too, as in PPQ's files. Scales are powers of two, so that a range says the grid:
`T_min = -2^(bits-1) * scale` and `T_max = -T_min - scale`. Those of parameters follow from the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from detent.ir import DeployedTensor, write_qdq
from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.targets.base import Deployment, Format, Target, TensorFacts, Written
from detent.targets.base.content import unreadable
from detent.targets.base.float_network import FloatNetwork, initializer_facts
from detent.targets.base.format import Roles
from detent.targets.base.limits import exponents, integers, on_one_scale, refusal, symmetric
from detent.targets.base.power_of_two import POWER_OF_TWO
from detent.targets.base.ppq_kinds import SHIFTING_KINDS

__all__ = ["FORMAT", "NXP", "TARGET", "NxpRange", "NxpRangesFormat", "read_nxp"]

NXP = Backend(
    name="nxp",
    about="NXP, power-of-two scales",
    weight=replace(POWER_OF_TWO, granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    activation=replace(POWER_OF_TWO, roundings=(Rounding.HALF_UP,)),
    # PPQ's NxpInputRoundingRefinePass.
    network_input=replace(POWER_OF_TWO, roundings=(Rounding.HALF_DOWN,)),
    bias="int32",
    bias_schemes=SupportedSchemes(bits=(32,), scales=("power_of_two",), roundings=(Rounding.HALF_AWAY,)),
    rules=quantize_io(*SHIFTING_KINDS),
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    arithmetic="shift_half_up",
    files=("onnx", "nxp_ranges"),
)

TARGET = Target(backend=NXP, formats={"nxp_ranges": "detent.targets.nxp:FORMAT"})

_NAME = "nxp_ranges"
_FILE = "nxp.onnx"
_MIN, _MAX = "_min", "_max"


@dataclass(frozen=True)
class NxpRange:
    minimum: float
    maximum: float


class NxpRangesFormat(Format):
    name = _NAME
    files: Mapping[str, Roles | None] = {_FILE: ("activation",)}

    def write(self, deployment: Deployment) -> Written:
        network = FloatNetwork.of(deployment, _NAME)
        # Its ranges are inputs that have a value: an `ir.Network` has no such inputs.
        model = write_qdq(network.network)
        taken = {tensor.name for tensor in model.graph.initializer}
        taken.update(name for op in network.ops for name in (*op.input_names, *op.outputs))
        for name, tensor in network.activations.items():
            _require(tensor)
            for suffix, value in ((_MIN, tensor.minimum), (_MAX, tensor.maximum)):
                own = name + suffix
                if own in taken:
                    raise refusal(_NAME, tensor, f"the network has a tensor {own!r} already", "rename that one")
                model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), own))
                model.graph.input.append(helper.make_tensor_value_info(own, onnx.TensorProto.FLOAT, []))
        return Written({_FILE: model.SerializeToString(deterministic=True)}, network.notes)

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        yield from initializer_facts(files[file])
        for name, one in read_nxp(files[file]).items():
            yield TensorFacts(name, {"range": (one.minimum, one.maximum)})


FORMAT = NxpRangesFormat()


def read_nxp(content: bytes) -> dict[str, NxpRange]:
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:
        raise unreadable(_NAME, f"it is not an ONNX model: {error}") from None
    inputs = {value.name for value in model.graph.input}
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in inputs}
    return {
        name[: -len(_MIN)]: NxpRange(value.item(), values[name[: -len(_MIN)] + _MAX].item())
        for name, value in values.items()
        if name.endswith(_MIN) and name[: -len(_MIN)] + _MAX in values
    }


def _require(tensor: DeployedTensor) -> None:
    grid = integers(tensor, _NAME, signed=True)
    symmetric(tensor, _NAME)
    on_one_scale(tensor, _NAME)
    exponents(tensor, _NAME)
    if grid.narrow:
        raise refusal(
            _NAME, tensor, "a range determines the lowest code, which a narrow grid lacks", "use the full grid"
        )
