"""Stores weights and biases of a prepared model as constants of the graph that `annotate` inserts Q and DQ into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch import Tensor, nn

from detent.deployment.annotate_base import place_of
from detent.errors import DeployError
from detent.frontends.onnx import OnnxSource, is_left_out
from detent.frontends.torch.builder import Builder
from detent.frontends.torch.parameters import Stored, stored
from detent.ir import DeployedTensor, Encoding, Trait, ops_with
from detent.numerics import PerChannel, PerGroup

__all__ = ["Parameters"]


class Parameters:
    """`stored` is what was written so far, by path, without the codes, which are in the graph then."""

    def __init__(self, source: OnnxSource, graph: onnx.GraphProto, builder: Builder, *, int4: bool = False):
        self.source, self.graph, self.b, self._int4 = source, graph, builder, int4
        self.stored: dict[str, Stored] = {}
        self.placed: dict[str, tuple[str, bool]] = {}  # the name of each in the graph, and whether it is turned

    def write(self, path: str, module: nn.Module, nodes: list[onnx.NodeProto]) -> None:
        """The weight and the bias of a module, which is these nodes."""
        for which in ("weight", "bias"):
            kept = stored(module, which, int4=self._int4)
            if kept is None:
                continue
            known = self.source.parameters.get(f"{path}.{which}")
            read = known is not None and any(known.initializer in node.input for node in nodes)
            place = None if read else place_of(nodes, which)
            if place is None and known is None and which == "weight":
                continue
            self.stored[f"{path}.{which}"] = replace(kept, codes=None)  # their place is in the graph now
            if place is not None:
                node, index, turned = place
                self.placed[f"{path}.{which}"] = node.input[index], turned
                node.input[index] = self._written(kept, node.input[index], transposed=turned)
                continue
            turned = bool(known and known.transposed)
            name = self._own_name(kept, self.initializer(path, which), transposed=turned)
            self.placed[f"{path}.{which}"] = name, turned
            given = self._written(kept, name, transposed=turned)
            if known is None:
                self._give_bias(nodes, given, path)
            else:
                for node in nodes:
                    node.input[:] = [given if held == known.initializer else held for held in node.input]

    def write_others(self, now: Mapping[str, Tensor]) -> None:
        """What is no weight or bias of an operation, such as the gates of an LSTM, goes where it came from."""
        held = {initializer.name: initializer for initializer in self.graph.initializer}
        for path, known in self.source.parameters.items():
            if path in self.stored or path not in now or known.initializer not in held:
                continue
            if is_left_out(held[known.initializer]):
                continue  # of an operation that is gone
            before = numpy_helper.to_array(held[known.initializer])
            after = known.written(now[path].detach().cpu().numpy(), before)
            if not np.array_equal(before, after):
                held[known.initializer].CopyFrom(numpy_helper.from_array(after, known.initializer))

    def initializer(self, path: str, which: str) -> str:
        """The name of a parameter in the file."""
        if f"{path}.{which}" in self.placed:
            return self.placed[f"{path}.{which}"][0]
        held = self.source.parameters.get(f"{path}.{which}")
        if held is not None:
            # Of a file that was quantized before, it is what its DQ gave.
            return held.initializer.removesuffix("_dequantized")
        weight = self.source.parameters.get(f"{path}.weight")
        return f"{weight.initializer}_{which}" if weight else f"{path}.{which}"

    def as_stored(self, tensor: DeployedTensor) -> DeployedTensor:
        """A matrix that the file holds the other way round than torch has its channels along the other axis."""
        held = {p.initializer for p in self.source.parameters.values() if p.transposed}
        held = held.difference(name for name, _ in self.placed.values())
        held.update(name for name, turned in self.placed.values() if turned)
        granularity = tensor.scheme.granularity
        if tensor.tensor not in held or not isinstance(granularity, (PerChannel, PerGroup)):
            return tensor
        scheme = replace(tensor.scheme, granularity=replace(granularity, axis=1 - granularity.axis))
        return replace(tensor, scheme=scheme, scale=tensor.scale.T, zero_point=tensor.zero_point.T)

    def _own_name(self, kept: Stored, name: str, *, transposed: bool) -> str:
        """Another name than that of the file where an operation that shares the parameter holds it on another grid: a
        bias has the scale of what the operation reads."""
        held = self.b.coded.get(f"{name}_dequantized")
        encoding = _turned(kept.encoding) if transposed and kept.encoding is not None else kept.encoding
        return name if held is None or held[1] == encoding else self.b.fresh(name)

    def _written(self, kept: Stored, name: str, *, transposed: bool) -> str:
        """The parameter as a constant of the graph: the name of its real values."""
        if kept.codes is None or kept.encoding is None:
            array = kept.values.detach().cpu().numpy()
            array = np.ascontiguousarray(array.T if transposed else array)
            same = next((i for i in self.graph.initializer if i.name == name), None)
            if same is not None:  # slopes of a PRelu have axes there that torch leaves out
                array = array.reshape(tuple(same.dims)) if array.size == np.prod(same.dims) else array
                if is_left_out(same):
                    same.CopyFrom(numpy_helper.from_array(array, name))
                    return name
                if np.array_equal(numpy_helper.to_array(same), array):
                    return name
            return self.b.constant(array, self.b.fresh(name))
        codes, encoding = kept.codes, kept.encoding
        if transposed:
            codes = np.ascontiguousarray(codes.T)
            encoding = _turned(encoding)
        return self.b.dequantized(codes, encoding, name, given=f"{name}_dequantized")

    def _give_bias(self, nodes: list[onnx.NodeProto], name: str, path: str) -> None:
        """A bias that folding made, on an operation that had none."""
        for node in nodes:
            if node.op_type in ops_with(Trait.WEIGHTED) - {"MatMul"}:
                while len(node.input) < 3:
                    node.input.append("")
                node.input[2] = name
                return
        product = next((node for node in nodes if node.op_type == "MatMul"), None)
        if product is None:
            raise DeployError(f"write the bias of {path!r}", "its operation takes none", "fold no batch norm into it")
        after, inner = product.output[0], self.b.fresh(f"{product.output[0]}_product")
        product.output[0] = inner
        self.graph.node.append(helper.make_node("Add", [inner, name], [after], name=self.b.fresh(f"{path}/bias")))


def _turned(encoding: Encoding) -> Encoding:
    """The grid of a matrix that is held the other way round."""
    if encoding.axis is None:
        return encoding
    return replace(encoding, axis=1 - encoding.axis, scale=encoding.scale.T, zero_point=encoding.zero_point.T)
