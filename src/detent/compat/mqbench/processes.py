"""What MQBench's deploy functions call: quantization nodes out of a file again, and their parameters into a JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from detent.compat.mqbench.own_nodes import LOGARITHMIC, OwnNode, own_nodes_of, without_own_nodes
from detent.errors import DeployError
from detent.files import write_bytes
from detent.ir import Encoding, Network, read_qdq, write_qdq
from detent.ir.qparams import BOUNDS
from detent.rewrites import float_network
from detent.targets.nnie import gfpq_entries

__all__ = [
    "LinearQuantizer_process",
    "LogarithmicQuantizer_process",
    "convert_xir",
    "remove_fakequantize_and_collect_params",
    "remove_fakequantize_and_collect_params_nnie",
]


class LinearQuantizer_process:  # noqa: N801
    """Takes Q and DQ, and nodes that a user's `symbolic` wrote, out of a file and collects what they say."""

    def remove_fakequantize_and_collect_params(
        self, onnx_path: str | Path, model_name: str, backend: str
    ) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """Writes `<model_name>_deploy_model.onnx` and `<model_name>_clip_ranges.json`, and gives what is in them."""
        path = Path(onnx_path)
        quantized = read_qdq(onnx.load(path))
        ranges = {one.tensor: self.clip_range(self.parse_qparams(one)) for one in own_nodes_of(quantized)}
        # Written and read again: shapes behind such a node are known now.
        rest = read_qdq(write_qdq(without_own_nodes(quantized)))
        ranges |= {name: self.clip_range(one) for name, one in _encodings(rest).items()}
        network, context = write_qdq(float_network(rest)), {backend: ranges}
        onnx.save(network, path.parent / f"{model_name}_deploy_model.onnx")
        _write_json(path.parent / f"{model_name}_clip_ranges.json", context)
        return network, context

    def parse_qparams(self, own: OwnNode) -> Encoding:
        """The qparams of a node with the inputs (tensor, scale, zero point): its range is in two more, or in its
        attributes."""
        said = own.op.attributes
        ends = [one.item() for one in own.constants[2:4]] or [said.get("quant_min"), said.get("quant_max")]
        if len(own.constants) < 2 or len(ends) != 2 or None in ends:
            raise DeployError(
                f"the parameters of {own.op.name!r}",
                f"{own.op.type} has {len(own.constants)} constants and the attributes {', '.join(said) or 'none'}",
                "let symbolic write tensor, scale, zero_point, quant_min_i and quant_max_i",
            )
        low, high = (int(one) for one in ends)
        scale, zero_point = (one.reshape(()) if one.size == 1 else one.flatten() for one in own.constants[:2])
        stored = next(name for name, (least, most) in BOUNDS.items() if least <= low and high <= most)
        return Encoding(scale, zero_point.round(), stored, 0 if scale.ndim else None, qmin=low, qmax=high)

    def clip_range(self, encoding: Encoding) -> dict[str, Any]:
        """What the JSON says of one tensor."""
        return {
            "scale": encoding.scale.tolist(),
            "zero_point": encoding.zero_point.tolist(),
            "quant_min": encoding.qmin,
            "quant_max": encoding.qmax,
            "round_mode": "half_even",
        }


class LogarithmicQuantizer_process:  # noqa: N801
    """The same for HiSilicon's NNIE, whose numbers are logarithmic: what is collected are greatest magnitudes."""

    def remove_fakequantize_and_collect_params(
        self, onnx_path: str | Path, model_name: str
    ) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """Writes `<model_name>_deploy_model.onnx` and `<model_name>_gfpq_param_dict.json`, and gives both."""
        path = Path(onnx_path)
        quantized = read_qdq(onnx.load(path))
        nodes = [one for one in own_nodes_of(quantized) if one.op.type == LOGARITHMIC]
        activations = [one for one in nodes if one.tensor not in quantized.constants]
        magnitudes = {one.op.outputs[0]: one.constants[0].item() for one in activations}
        entries, _ = gfpq_entries(
            quantized.ops, lambda op: [magnitudes[name] for name in op.input_names if name in magnitudes]
        )
        network, context = write_qdq(without_own_nodes(quantized)), {"nnie": {"gfpq_param_dict": entries}}
        onnx.save(network, path.parent / f"{model_name}_deploy_model.onnx")
        _write_json(path.parent / f"{model_name}_gfpq_param_dict.json", context)
        return network, context


def remove_fakequantize_and_collect_params(onnx_path: str | Path, model_name: str, backend: str) -> Any:
    """Does what `LinearQuantizer_process` does."""
    return LinearQuantizer_process().remove_fakequantize_and_collect_params(onnx_path, model_name, backend)


def remove_fakequantize_and_collect_params_nnie(onnx_path: str | Path, model_name: str) -> Any:
    """Does what `LogarithmicQuantizer_process` does."""
    return LogarithmicQuantizer_process().remove_fakequantize_and_collect_params(onnx_path, model_name)


def convert_xir(*_: Any, **__: Any) -> None:
    """MQBench's last step for Vitis; AMD's compiler takes it, with the files that `convert_deploy` writes."""
    raise DeployError(
        "convert_xir: an xmodel of a DPU",
        "it needs AMD's compiler (vai_c_xir), which is not part of Detent",
        "compile what convert_deploy wrote for BackendType.Vitis, in AMD's container",
    )


def _encodings(network: Network) -> dict[str, Encoding]:
    reads = [read for op in network.ops for read in op.inputs if read is not None]
    return {read.tensor: read.encoding for read in reads if read.encoding is not None}


def _write_json(path: Path, held: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(held, indent=2) + "\n").encode())
