"""Deploys a model that was imported from an ONNX file: puts the tensors of that file's own network on grids.

Operations and tensors keep their names. Folded batch norms are removed (the operation before them gives their tensor),
weights have their current values and are stored as integers, and readers of a quantized tensor read it on its grid.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from detent.deployment.annotate_base import base_network
from detent.deployment.annotate_parameters import Parameters
from detent.frontends.onnx import source_of
from detent.frontends.torch import Exported
from detent.frontends.torch.builder import Builder, operand_of
from detent.frontends.torch.grids import PlannedGrids
from detent.frontends.torch.parameters import activation_encoding
from detent.frontends.torch.values import Ref
from detent.graph import PreparedModel, QuantizedTensor
from detent.ir import Network, Operand

__all__ = ["annotate"]


def annotate(prepared: PreparedModel, *, opset: int) -> Exported:
    """The network of the ONNX file that `prepared` was loaded from, quantized as `prepared` is."""
    return _Annotation(prepared, opset).run()


class _Annotation:
    """One annotation; `run` is the result."""

    def __init__(self, prepared: PreparedModel, opset: int):
        self.region, self.source = prepared, source_of(prepared)
        self.runner: fx.GraphModule = next(iter(prepared.runners.values()))
        self.grids = PlannedGrids(prepared, self.runner)
        self.notes: list[str] = []
        network, self.parts, renamed = base_network(self.source, opset)
        self.tensors = {
            name: renamed.get(tensor, tensor)
            for name, tensor in self.source.tensors.items()
            if name in self.grids.nodes
        }
        self.b = Builder.of(network)
        self.parameters = Parameters(self.source, self.b, int4=self.region.backend.int4_weights)

    def run(self) -> Exported:
        self._drop_folded()
        for path in self._modules():
            self.parameters.write(path, self.grids.modules[path], self._places(self.source.modules[path]))
        self.parameters.write_others(self.region.state_dict())
        for node in self.runner.graph.nodes:
            self._activation(node)
        network, names = self._with_free_names(self.b.network())
        found = self.grids.deployed(self.parameters.stored, self._tensor_name, self.source.nodes, network)
        ranges = self.grids.ranges(self.region, self._tensor_name)
        return Exported(network, tuple(map(self.parameters.as_stored, found)), tuple(ranges), self.notes, names)

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

    def _places(self, names: tuple[str, ...]) -> list[int]:
        return [place for place, op in enumerate(self.b.ops) if op.name in names]

    def _with_free_names(self, network: Network) -> tuple[Network, dict[str, str]]:
        """A dequantized output keeps its name; the tensor before the quantization gets another one."""
        names = {
            output.name: self.b.fresh(f"{output.name}_unquantized")
            for output in network.outputs
            if output.read.encoding is not None and output.read.tensor == output.name
            if output.name not in network.coded
        }
        self.tensors = {name: names.get(tensor, tensor) for name, tensor in self.tensors.items()}
        return network.renamed(names), names

    # --- batch norms

    def _drop_folded(self) -> None:
        """Removes batch norms that the prepared model no longer calls."""
        called = set(self._modules())
        gone = {name for path, names in self.source.modules.items() if path not in called for name in names}
        for norm in [op for op in self.b.ops if op.name in gone and op.type == "BatchNormalization"]:
            before, after = norm.reads[0].tensor, norm.outputs[0]
            self.b.ops.remove(norm)
            place = next(place for place, op in enumerate(self.b.ops) if before in op.outputs)
            maker = self.b.ops[place]
            outputs = tuple(after if name == before else name for name in maker.outputs)
            self.b.ops[place] = replace(maker, outputs=outputs)
            self.tensors = {name: after if tensor == before else tensor for name, tensor in self.tensors.items()}

    # --- activations

    def _activation(self, node: fx.Node) -> None:
        """Put a tensor on a grid, for the readers that the plan names."""
        if self.grids.is_quantizer(node):
            source = node.all_input_nodes[0]
            readers = list(node.users)
            quantizer = self.grids.modules[str(node.target)]
        elif node.name in self.grids.kept and self.region.backend.repeats_grids:
            source = node
            quantizer = self.grids.quantizer_of(self.grids.kept[node.name])
            readers = [user for user in node.users if not self.grids.is_quantizer(user)]
        else:
            return
        tensor = self.tensors.get(source.name)
        if tensor is None or not readers:
            return
        if quantizer.scheme.grid.onnx_dtype() is None:
            self.notes.append(f"{tensor}: model.onnx has no {quantizer.scheme}; it is float there")
            return
        if quantizer.scheme.rounding.value != "half_even":
            note = f"QuantizeLinear rounds half to even; this target rounds {quantizer.scheme.rounding.value}"
            self.notes.extend([] if note in self.notes else [note])
        read = operand_of(self.b.quantized(Ref(tensor, (), torch.float32), activation_encoding(quantizer)))
        wanted = {name for reader in readers for name in self.source.nodes.get(reader.name, ())}
        if all(self.grids.is_quantizer(user) for user in source.users):
            wanted |= self._copies()
        for place, op in enumerate(self.b.ops):
            if op.name in wanted or self.parts.get(op.name) in wanted:
                self.b.reread(place, Operand(tensor), read)
        if any(reader.op == "output" for reader in readers):  # its name is another where a tensor is called "output"
            self.b.outputs = [
                replace(output, read=read) if output.read == Operand(tensor) else output for output in self.b.outputs
            ]

    def _copies(self) -> set[str]:
        """An Identity is no node of the graph that was imported: where all read from the grid, what it passes on is."""
        known = {name for names in self.source.nodes.values() for name in names}
        return {op.name for op in self.b.ops if op.type == "Identity" and op.name not in known}
