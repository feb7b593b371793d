"""Which grids the tensors of a prepared model are on: the Plan, with the numbers that came out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from torch import fx

from detent.frontends.torch.parameters import Stored
from detent.frontends.torch.readers import parameter_readers, readers
from detent.graph import PreparedModel, QuantizedTensor, quantizer_path, ranges_of, sum_of_weights
from detent.ir import DeployedTensor
from detent.quantizers import Quantizer

__all__ = ["Grids"]


class Grids:
    """The quantizers of one forward mode of a prepared model, by the node whose output they quantize.

    `kept` are tensors that lie on the grid of another without a quantizer of their own, because the operation only
    moves values.
    """

    def __init__(self, prepared: PreparedModel, runner: fx.GraphModule):
        self.plan = prepared.plan
        self.modules: Mapping[str, Any] = dict(prepared.named_modules(remove_duplicate=False))
        self.nodes = {node.name: node for node in runner.graph.nodes}
        self._entries = {entry.node: entry for entry in self.plan.quantized if entry.role == "activation"}
        self.kept = {
            name: entry
            for name, entry in self._entries.items()
            if entry.shares and quantizer_path(name) not in self.modules
        }

    def quantizer_of(self, entry: QuantizedTensor) -> Quantizer:
        """What puts an activation on its grid, also where it shares another's."""
        while quantizer_path(entry.node) not in self.modules:
            entry = next(other for other in self._entries.values() if other.tensor == entry.shares)
        found: Quantizer = self.modules[quantizer_path(entry.node)]
        return found

    def users(self, entry: QuantizedTensor) -> tuple[str, ...]:
        """The operations that read the quantized value."""
        if entry.users:
            return entry.users
        found: list[str] = []
        for user in self.nodes[entry.node].users:
            passed = self.is_quantizer(user)
            found.extend(later.name for later in user.users) if passed else found.append(user.name)
        return tuple(dict.fromkeys(name for name in found if name != "output"))

    def is_quantizer(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(self.modules[str(node.target)], Quantizer)

    def deployed(
        self,
        stored: Mapping[str, Stored],
        tensor_name: Callable[[QuantizedTensor], str],
        written: Mapping[str, Sequence[str]],
        nodes: Sequence[onnx.NodeProto],
    ) -> Iterator[DeployedTensor]:
        """Every quantized tensor. `written` names the ONNX nodes of an fx node, which are among `nodes`."""
        reading = readers(nodes)
        makers = {name: node.name for node in nodes for name in node.output}
        entries = [
            entry for entry in self.plan.quantized if entry.node in self.nodes
        ]  # others: of another forward mode
        names = {entry.tensor: tensor_name(entry) for entry in entries}
        for entry in entries:
            tensor = names[entry.tensor]
            if entry.role == "activation":
                qparams, op = self.quantizer_of(entry).qparams(), makers.get(tensor, "")
                made = {node for user in self.users(entry) for node in written.get(user, ())}
                users = [reader for reader in parameter_readers(tensor, reading) if reader in made]
            else:
                kept = stored[f"{self.nodes[entry.node].target}.{entry.role}"].qparams
                assert kept is not None
                users = parameter_readers(tensor, reading)
                qparams, op = kept, next(iter(users), "")
            yield DeployedTensor(
                tensor=tensor,
                role=entry.role,
                kind=entry.kind,
                op=op,
                scheme=entry.scheme,
                scale=qparams.scale.detach().cpu().float().numpy(),
                zero_point=qparams.zero_point.detach().cpu().long().numpy(),
                users=tuple(users),
                shares=None if entry.shares is None else names.get(entry.shares, entry.shares),
            )

    def ranges(
        self, prepared: PreparedModel, tensor_name: Callable[[QuantizedTensor], str]
    ) -> Iterator[DeployedTensor]:
        """The float tensors whose range is known, for another target."""
        weights = sum_of_weights(prepared)
        known = {one.name: one for one in ranges_of(prepared) if one.is_of(weights)}
        for entry in self.plan.ranges:
            if entry.tensor in known and entry.node in self.nodes:
                qparams = known[entry.tensor].qparams()
                yield DeployedTensor(
                    tensor=tensor_name(entry),
                    role="activation",
                    kind=entry.kind,
                    op="",
                    scheme=entry.scheme,
                    scale=qparams.scale.cpu().float().numpy(),
                    zero_point=qparams.zero_point.cpu().numpy(),
                )
