"""Deploys a model that was imported from an ONNX file: inserts Q and DQ into that file's own graph.

Nodes and tensors keep their names. Folded batch norms are removed (the operation before them gives their tensor),
weights have their current values and are stored as integers, and Q and DQ stand between a quantized tensor and its
readers.
"""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import helper
from torch import fx

from detent.deployment.annotate_base import base_model, in_order, needed, without_copied_outputs
from detent.deployment.annotate_parameters import Parameters
from detent.frontends.onnx import source_of
from detent.frontends.torch import Exported
from detent.frontends.torch.builder import Builder
from detent.frontends.torch.grids import Grids
from detent.frontends.torch.parameters import activation_encoding
from detent.frontends.torch.values import Ref
from detent.graph import PreparedModel, QuantizedTensor, kind_of

__all__ = ["annotate"]


def annotate(prepared: PreparedModel, *, opset: int) -> Exported:
    """The ONNX model that `prepared` was loaded from, with the quantization of `prepared`."""
    return _Annotation(prepared, opset).run()


class _Annotation:
    """One annotation; `run` is the result."""

    def __init__(self, prepared: PreparedModel, opset: int):
        self.region, self.source = prepared, source_of(prepared)
        self.runner: fx.GraphModule = next(iter(prepared.runners.values()))
        self.grids = Grids(prepared, self.runner)
        self.notes: list[str] = []
        self.model, self.parts = base_model(self.source, opset)
        self.graph = self.model.graph
        self.by_name = {node.name: node for node in self.graph.node}
        renamed = without_copied_outputs(self.graph)
        self.tensors = {
            name: renamed.get(tensor, tensor)
            for name, tensor in self.source.tensors.items()
            if name in self.grids.nodes
        }
        self.squeezed: dict[str, onnx.NodeProto] = {}  # what squeezes a pooled tensor, by what it gives
        self.b = Builder(self.model.opset_import[0].version)
        self.b.taken.update(name for node in self.graph.node for name in (*node.input, *node.output))
        self.b.taken.update(self.by_name)
        self.parameters = Parameters(self.source, self.graph, self.b, int4=self.region.backend.int4_weights)

    def run(self) -> Exported:
        self._drop_folded()
        self._pool_planes()
        for path in self._modules():
            nodes = [self.by_name[name] for name in self.source.modules[path] if name in self.by_name]
            self.parameters.write(path, self.grids.modules[path], nodes)
        self.parameters.write_others(self.region.state_dict())
        for node in list(self.runner.graph.nodes):
            self._activation(node)
        self._insert()
        found = self.grids.deployed(self.parameters.stored, self._tensor_name, self.source.nodes, self.graph.node)
        ranges = self.grids.ranges(self.region, self._tensor_name)
        return Exported(self.model, tuple(map(self.parameters.as_stored, found)), tuple(ranges), self.notes)

    # --- names

    def _tensor_name(self, entry: QuantizedTensor) -> str:
        if entry.role == "activation":
            return self.tensors.get(entry.node, entry.tensor)
        return self.parameters.initializer(str(self.grids.nodes[entry.node].target), entry.role)

    def _modules(self) -> list[str]:
        called = [
            str(n.target) for n in self.runner.graph.nodes if n.op == "call_module" and not self.grids.is_quantizer(n)
        ]
        return [path for path in dict.fromkeys(called) if path in self.source.modules]

    # --- batch norms

    def _drop_folded(self) -> None:
        """Batch norms that the prepared model does not call any more."""
        called = set(self._modules())
        for path, names in self.source.modules.items():
            if path in called:
                continue
            for name in names:
                node = self.by_name.get(name)
                if node is not None and node.op_type == "BatchNormalization":
                    self._drop(node)

    def _drop(self, norm: onnx.NodeProto) -> None:
        before, after = norm.input[0], norm.output[0]
        maker = next(node for node in self.graph.node if before in node.output)
        maker.output[list(maker.output).index(before)] = after
        self.graph.node.remove(norm)
        self.tensors = {name: after if tensor == before else tensor for name, tensor in self.tensors.items()}

    # --- means

    def _pool_planes(self) -> None:
        """The mean of each plane, which engines take in float, as the pooling that they have an integer kernel for."""
        if "global_avgpool" not in self.region.backend.rules:
            return
        ranks = {
            name: len(fx_node.all_input_nodes[0].meta["shape"])
            for fx_name, fx_node in self.grids.nodes.items()
            if (kind := kind_of(fx_node, self.grids.modules)) is not None and kind.name == "global_avgpool"
            for name in self.source.nodes.get(fx_name, ())
        }
        for node in [node for node in self.graph.node if node.op_type == "ReduceMean" and node.name in ranks]:
            keeps = next((bool(a.i) for a in node.attribute if a.name == "keepdims"), True)
            node.op_type = "GlobalAveragePool"
            del node.attribute[:], node.input[1:]
            if not keeps:
                given, axes = node.output[0], np.arange(2, ranks[node.name])
                node.output[0] = self.b.fresh(f"{given}_pooled")
                inputs = [node.output[0], self.b.constant(axes, f"{given}_axes", np.int64)]
                self.squeezed[given] = helper.make_node(
                    "Squeeze", inputs, [given], name=self.b.fresh(f"{given}/Squeeze")
                )
                self.b.nodes.append(self.squeezed[given])

    # --- activations

    def _activation(self, node: fx.Node) -> None:
        """Q and DQ behind a tensor, for the readers that the plan names."""
        if self.grids.is_quantizer(node):
            source = node.all_input_nodes[0]
            readers = [user.name for user in node.users]
            quantizer = self.grids.modules[str(node.target)]
        elif node.name in self.grids.kept and self.region.backend.repeats_grids:
            source = node
            quantizer = self.grids.quantizer_of(self.grids.kept[node.name])
            readers = [user.name for user in node.users if not self.grids.is_quantizer(user)]
        else:
            return
        tensor = self.tensors.get(source.name)
        if tensor is None or not readers:
            return
        if quantizer.scheme.grid.onnx_dtype() is None:
            self.notes.append(f"{tensor}: ONNX has no {quantizer.scheme}; it is float in model.onnx")
            return
        if quantizer.scheme.rounding.value != "half_even":
            note = f"QuantizeLinear rounds half to even; this target rounds {quantizer.scheme.rounding.value}"
            self.notes.extend([] if note in self.notes else [note])
        encoding = activation_encoding(quantizer)
        if tensor in self.squeezed:  # engines fuse only what is next to them
            squeeze = self.squeezed.pop(tensor)
            squeeze.input[0] = self.b.quantized(Ref(squeeze.input[0], (), torch.float32), encoding).name
        held = next((one for one in self.graph.initializer if one.name == tensor), None)
        if held is not None:
            self.b.initializers[tensor] = held
        given = self.b.quantized(Ref(tensor, (), torch.float32), encoding).name
        self._reread(tensor, given, readers)
        if all(self.grids.is_quantizer(user) for user in source.users):
            self._reread_copies(tensor, given)

    def _reread_copies(self, tensor: str, given: str) -> None:
        """An Identity is no node of the graph that was imported: where all read from the grid, what it passes on is."""
        known = {name for names in self.source.nodes.values() for name in names}
        for node in self.graph.node:
            if node.op_type == "Identity" and node.name not in known:
                node.input[:] = [given if held == tensor else held for held in node.input]

    def _reread(self, tensor: str, given: str, readers: list[str]) -> None:
        wanted = {name for reader in readers for name in self.source.nodes.get(reader, ())}
        for node in self.graph.node:
            if node.name in wanted or self.parts.get(node.name) in wanted:
                node.input[:] = [given if held == tensor else held for held in node.input]
        if "output" not in readers or tensor not in {value.name for value in self.graph.output}:
            return
        # The network's output keeps its name: what is before Q gets another.
        before = self.b.fresh(f"{tensor}_unquantized")
        for node in (*self.graph.node, *self.b.nodes):
            node.input[:] = [before if held == tensor else held for held in node.input]
            node.output[:] = [before if held == tensor else tensor if held == given else held for held in node.output]
        for node in self.graph.node:
            node.input[:] = [tensor if held == given else held for held in node.input]
        self.tensors = {name: before if held == tensor else held for name, held in self.tensors.items()}

    def _insert(self) -> None:
        """Put the new nodes where their inputs are known, and leave out what nothing reads."""
        known = {one.name for one in (*self.graph.input, *self.graph.initializer)} | set(self.b.initializers)
        ordered = in_order([*self.graph.node, *self.b.nodes], known)
        kept = needed(ordered, {value.name for value in self.graph.output})
        read = {name for node in kept for name in node.input} | {value.name for value in self.graph.output}
        constants = [*self.graph.initializer, *self.b.initializers.values()]
        del self.graph.node[:], self.graph.value_info[:]
        read -= {name for node in kept for name in node.output}  # a float weight that is now dequantized
        held = {constant.name: constant for constant in constants if constant.name in read}
        del self.graph.initializer[:]
        self.graph.node.extend(kept)
        self.graph.initializer.extend(held.values())
