"""The grids of a prepared model's tensors: the Plan, with calibrated scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import fx

from detent.frontends.torch.parameters import StoredParameter
from detent.graph import PreparedModel, QuantizedTensor, quantizer_path, ranges_of, sum_of_weights
from detent.ir import DeployedTensor, Network, Op, requantizes
from detent.quantizers import Quantizer
from detent.traversal import reachable

__all__ = ["PlannedGrids"]


class PlannedGrids:
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
        """The quantizer of an activation, which may be shared with others."""
        while quantizer_path(entry.node) not in self.modules:
            entry = next(other for other in self._entries.values() if other.tensor == entry.shares)
        found: Quantizer = self.modules[quantizer_path(entry.node)]
        return found

    def users(self, entry: QuantizedTensor) -> tuple[str, ...]:
        """The operations that read the quantized value."""
        if entry.users:
            return entry.users
        found: list[fx.Node] = []
        for user in self.nodes[entry.node].users:
            found += user.users if self.is_quantizer(user) else [user]
        return tuple(dict.fromkeys(user.name for user in found if user.op != "output"))

    def is_quantizer(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(self.modules[str(node.target)], Quantizer)

    def deployed(
        self,
        stored: Mapping[str, StoredParameter],
        tensor_name: Callable[[QuantizedTensor], str],
        written: Mapping[str, Sequence[str]],
        network: Network,
    ) -> Iterator[DeployedTensor]:
        """Every quantized tensor. `written` names the operations of an fx node."""
        entries = [
            entry for entry in self.plan.quantized if entry.node in self.nodes
        ]  # others: of another forward mode
        names = {entry.tensor: tensor_name(entry) for entry in entries}
        for entry in entries:
            tensor = names[entry.tensor]
            if entry.role == "activation":
                maker = network.producer(tensor)
                qparams, op = self.quantizer_of(entry).qparams(), maker.name if maker else ""
                made = {name for user in self.users(entry) for name in written.get(user, ())}
                users = [reader for reader in _readers(network, tensor) if reader in made]
            else:
                kept = stored[f"{self.nodes[entry.node].target}.{entry.role}"].qparams
                assert kept is not None
                users = _readers(network, tensor)
                qparams, op = kept, next(iter(users), "")
            yield DeployedTensor(
                tensor=tensor,
                role=entry.role,
                kind=entry.kind,
                op=op,
                scheme=entry.scheme.without_chance(),
                scale=qparams.scale.detach().cpu().float().numpy(),
                zero_point=qparams.zero_point.detach().cpu().long().numpy(),
                offset=None if qparams.offset is None else qparams.offset.detach().cpu().float().numpy(),
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


def _readers(network: Network, tensor: str) -> list[str]:
    """The names of the operations that read a tensor, or a constant that stores it, also through other grids."""

    def behind(op: Op) -> list[Op]:
        return [reader for reader, _ in network.readers(op.outputs[0])] if requantizes(network, op) else []

    held = (name for name, stored in network.stored_as.items() if stored.parameter == tensor)
    starts = [op for name in (tensor, *held) for op, _ in network.readers(name)]
    return [op.name for op in reachable(starts, behind) if not requantizes(network, op)]
