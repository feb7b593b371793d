"""Stores weights and biases of a prepared model as constants of the network that `annotate` puts on grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from detent.deployment.annotate_base import place_of
from detent.errors import DeployError
from detent.frontends.onnx import OnnxSource
from detent.frontends.torch.builder import Builder, operand_of
from detent.frontends.torch.parameters import StoredParameter, stored_parameter
from detent.ir import DeployedTensor, Encoding, Op, Operand, StoredAs, Trait, ops_with
from detent.numerics import PerChannel, PerGroup

__all__ = ["Parameters"]


class Parameters:
    """`stored` is what was written so far, by path, without the codes, which are in the network then."""

    def __init__(self, source: OnnxSource, builder: Builder, *, int4: bool = False):
        self.source, self.b, self._int4 = source, builder, int4
        self.stored: dict[str, StoredParameter] = {}
        self.placed: dict[str, tuple[str, bool]] = {}  # the name of each in the network, and whether it is turned
        self._grids: dict[str, Encoding] = {}  # of those that are stored as codes, by name

    def write(self, path: str, module: nn.Module, places: Sequence[int]) -> None:
        """Store the weight and bias of a module, which is the operations at `places`."""
        for which in ("weight", "bias"):
            kept = stored_parameter(module, which, int4=self._int4)
            if kept is None:
                continue
            known = self.source.parameters.get(f"{path}.{which}")
            reads = [read for place in places for read in self.b.ops[place].reads]
            read = known is not None and Operand(known.initializer) in reads
            found = None if read else place_of(self.b.ops, places, which)
            if found is None and known is None and which == "weight":
                continue
            self.stored[f"{path}.{which}"] = replace(kept, codes=None)  # their place is in the network now
            if found is not None:
                place, index, turned = found
                name = self._read(place, index)
                self.placed[f"{path}.{which}"] = name, turned
                self._give(place, index, self._written(kept, name, transposed=turned))
                continue
            turned = bool(known and known.transposed)
            name = self._own_name(kept, self.initializer(path, which), transposed=turned)
            self.placed[f"{path}.{which}"] = name, turned
            given = self._written(kept, name, transposed=turned)
            if known is None:
                self._give_bias(places, given, path)
            else:
                for place in places:
                    self.b.reread(place, Operand(known.initializer), given)

    def write_others(self, now: Mapping[str, Tensor]) -> None:
        """Store parameters that are no weight or bias of an operation, such as the gates of an LSTM, under their own
        names."""
        for path, known in self.source.parameters.items():
            before = self.b.constants.get(known.initializer)
            if before is not None and path in now and path not in self.stored:
                self.b.constants[known.initializer] = known.written(now[path].detach().cpu().numpy(), before)

    def initializer(self, path: str, which: str) -> str:
        """The name of a parameter in the file."""
        if f"{path}.{which}" in self.placed:
            return self.placed[f"{path}.{which}"][0]
        held = self.source.parameters.get(f"{path}.{which}")
        if held is not None:
            return held.initializer
        weight = self.source.parameters.get(f"{path}.weight")
        return f"{weight.initializer}_{which}" if weight else f"{path}.{which}"

    def as_stored(self, tensor: DeployedTensor) -> DeployedTensor:
        """A matrix that the file stores transposed has its channels along the other axis."""
        held = {p.initializer for p in self.source.parameters.values() if p.transposed}
        held = held.difference(name for name, _ in self.placed.values())
        held.update(name for name, turned in self.placed.values() if turned)
        granularity = tensor.scheme.granularity
        if tensor.tensor not in held or not isinstance(granularity, (PerChannel, PerGroup)):
            return tensor
        scheme = replace(tensor.scheme, granularity=replace(granularity, axis=1 - granularity.axis))
        return replace(tensor, scheme=scheme, scale=tensor.scale.T, zero_point=tensor.zero_point.T)

    def _own_name(self, kept: StoredParameter, name: str, *, transposed: bool) -> str:
        """Another name than in the file, if an operation that shares the parameter has it on another grid: the scale of
        a bias depends on the operation's input."""
        encoding = kept.encoding.transposed() if transposed and kept.encoding is not None else kept.encoding
        return name if self._grids.get(name, encoding) == encoding else self.b.fresh(name)

    def _written(self, kept: StoredParameter, name: str, *, transposed: bool) -> Operand:
        """The parameter as a constant of the network, and the operand that reads it."""
        if kept.codes is None or kept.encoding is None:
            array = kept.values.detach().cpu().numpy()
            return Operand(self._real(array.T if transposed else array, name))
        encoding = self._grids[name] = kept.encoding.transposed() if transposed else kept.encoding
        codes = kept.codes.T if transposed else kept.codes
        return operand_of(self.b.codes(codes, encoding, f"{name}_dequantized", StoredAs(name)))

    def _real(self, array: npt.NDArray[Any], name: str) -> str:
        """A float constant; under another name if the file uses that name for other values."""
        sizes: Any = self.b.shapes.get(name, array.shape)
        if array.size == np.prod([size for size in sizes if isinstance(size, int)]):
            array = array.reshape(sizes)  # slopes of a PRelu have axes there that torch leaves out
        held = self.b.constants.get(name)
        if held is not None and np.array_equal(held, array):
            return name
        made = self.b.fresh(name)
        self.b.constants[made], self.b.shapes[made] = np.ascontiguousarray(array), array.shape
        if made != name:
            self.b.stored_as[made] = StoredAs(name)
        return made

    def _read(self, place: int, index: int) -> str:
        read = self.b.ops[place].inputs[index]
        assert read is not None
        return read.tensor

    def _give(self, place: int, index: int, read: Operand) -> None:
        op = self.b.ops[place]
        inputs = [*op.inputs, *[None] * (index + 1 - len(op.inputs))]
        inputs[index] = read
        self.b.ops[place] = replace(op, inputs=tuple(inputs))

    def _give_bias(self, places: Sequence[int], read: Operand, path: str) -> None:
        """Adds the bias that folding created to an operation that had none."""
        for place in places:
            if self.b.ops[place].type in ops_with(Trait.WEIGHTED) - {"MatMul"}:
                self._give(place, 2, read)
                return
        product = next((place for place in places if self.b.ops[place].type == "MatMul"), None)
        if product is None:
            raise DeployError(f"write the bias of {path!r}", "its operation takes none", "fold no batch norm into it")
        op = self.b.ops[product]
        inner = self.b.fresh(f"{op.outputs[0]}_product")
        bias = Op("Add", self.b.fresh(f"{path}/bias"), (Operand(inner), read), op.outputs)
        self.b.ops[product : product + 1] = [replace(op, outputs=(inner,)), bias]
