"""Which convolution OpenVINO fuses an addition into (oneDNN's "sum" post-operation).

A convolution is fused with the elementwise operations after it, and then with the addition of a second activation,
whose memory it overwrites with its result. So no operation may read that second activation afterwards. What counts is
the kernel that produces it: one kernel of several elementwise operations can produce several tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from detent.ir import Network, Op, Operand, Trait, is_output, ops_with, per_network, sole_reader
from detent.targets.openvino.arithmetic.ranges import CLIPS
from detent.traversal import reachable

__all__ = [
    "COMPOSED",
    "FUNCTIONS",
    "Branch",
    "comes_from_convolution",
    "fusing_op",
    "has_separate_bias_kernel",
    "is_activation",
    "summed_branch",
]

FUNCTIONS = ops_with(Trait.ACTIVATION) - {"HardSigmoid"}  # which is never fused
_FUNCTIONS = frozenset({*CLIPS, *FUNCTIONS})
"""Operations that are fused into a convolution, or with each other into one kernel."""
_OF_TWO = ops_with(Trait.ARITHMETIC)
_ELEMENTWISE = _FUNCTIONS | _OF_TWO
_HEADS = (
    ops_with(Trait.WEIGHTED)
    | ops_with(Trait.REDUCES) - {"ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"}  # not proven
    | ops_with(Trait.AVERAGE_POOL)
    | {"InstanceNormalization", "Resize"}
)
COMPOSED = ops_with(Trait.WEIGHTED)
"""Operations whose post-operations the plugin simplifies (`OutputRequantization`)."""


@dataclass(frozen=True)
class Branch:
    """A convolution and the operations fused into it, up to the tensor that is added; `other` is the second summand."""

    convolution: Op
    behind: tuple[Op, ...]
    other: Operand

    @property
    def tensor(self) -> str:
        return (self.convolution, *self.behind)[-1].outputs[0]


Branches = Mapping[str, Branch]


def summed_branch(graph: Network, op: Op) -> Branch | None:
    """The convolution that an Add or Sub is fused into, if there is one."""
    return _summed_branches(graph).get(op.outputs[0])


@per_network
def _summed_branches(graph: Network) -> dict[str, Branch]:
    """By output tensor of the addition, in order: whether an addition is fused depends on those before it."""
    found: dict[str, Branch] = {}
    for op in graph.ops:
        branch = _summed_branch(graph, op, found)
        if branch is not None:
            found[op.outputs[0]] = branch
    return found


def _summed_branch(graph: Network, add: Op, known: Branches) -> Branch | None:
    reads = [read for read in add.inputs if read is not None]
    if len(reads) != 2 or reads[0].tensor == reads[1].tensor or not _same_shape(graph, reads):
        return None
    if not all(is_activation(graph, read) for read in reads):
        return None
    first, second = (_branch(graph, *pair) for pair in ((reads[0], reads[1]), (reads[1], reads[0])))
    chosen = second
    if first is not None and (second is None or len(graph.readers(first.tensor)) == 1):
        chosen = first
    return chosen if chosen is not None and _can_run_in_place(graph, add, chosen, known) else None


def is_activation(graph: Network, read: Operand) -> bool:
    return read.encoding is not None and read.encoding.per_tensor and read.tensor not in graph.constants


def _same_shape(graph: Network, reads: Iterable[Operand]) -> bool:
    """Whether both have the same shape. Free sizes count as equal, whatever their names."""
    first, second = (graph.shapes.get(read.tensor) for read in reads)
    if first is None or second is None or len(first) != len(second):
        return False
    return all(a == b or (isinstance(a, str) and isinstance(b, str)) for a, b in zip(first, second, strict=True))


def _branch(graph: Network, read: Operand, other: Operand) -> Branch | None:
    behind: list[Op] = []
    op = graph.producer(read.tensor)
    while op is not None and op.type != "Conv":
        data = _data(graph, op)
        if data is None or sole_reader(graph, data.tensor) is None:
            return None
        behind.insert(0, op)
        op = graph.producer(data.tensor)
    return None if op is None else Branch(op, tuple(behind), other)


def _data(graph: Network, op: Op) -> Operand | None:
    """The one input of an elementwise operation that is not constant."""
    reads = [read for read in op.inputs if read is not None and read.tensor not in graph.constants]
    return reads[0] if len(reads) == 1 and op.type in _ELEMENTWISE else None


def _can_run_in_place(graph: Network, add: Op, branch: Branch, known: Branches) -> bool:
    if sole_reader(graph, branch.tensor) is None:
        return False
    kernel = _outputs_of_kernel(graph, branch.other.tensor, known)
    if any(read is not None and read.tensor in kernel for read in branch.convolution.inputs):
        return False
    if any(is_output(graph, tensor) for tensor in kernel):
        return False
    readers = {op.outputs[0] for tensor in kernel for op, _ in graph.readers(tensor)} - kernel
    return readers <= _ancestors(graph, add, readers)


def _outputs_of_kernel(graph: Network, tensor: str, known: Branches) -> set[str]:
    """All outputs of the kernel that produces a tensor."""

    def is_elementwise(name: str) -> bool:
        op = graph.producer(name)
        return op is not None and op.type in _ELEMENTWISE and not _is_in_convolution(graph, name, known)

    def taken_from(name: str) -> list[str]:
        op = graph.producer(name)
        if op is None or not is_elementwise(name):
            return []
        reads = [read.tensor for read in op.inputs if read is not None and read.tensor not in graph.constants]
        return [read for read in reads if graph.producer(read) is None or is_elementwise(read)]

    found: set[str] = set()
    for name in reachable([tensor], taken_from):
        op = graph.producer(name)
        found.update((name,) if op is None else op.outputs)
    return found


def _is_in_convolution(graph: Network, tensor: str, known: Branches) -> bool:
    """Whether a tensor is produced by a convolution and the operations fused into it."""
    made_by = graph.producer(tensor)
    while made_by is not None and made_by.type in _ELEMENTWISE:
        data = _data(graph, made_by)
        if data is None:
            return made_by.outputs[0] in known
        if sole_reader(graph, data.tensor) is None:
            return False
        made_by = graph.producer(data.tensor)
    return made_by is not None and made_by.type == "Conv"


def fusing_op(graph: Network, tensor: str) -> Op | None:
    """The operation into whose kernel an elementwise operation on a tensor is fused; None if it has a kernel of its
    own."""
    while sole_reader(graph, tensor) is not None:
        made_by = graph.producer(tensor)
        if made_by is None or made_by.type in _HEADS:
            return made_by
        data = made_by.inputs[0] if made_by.type == "MaxPool" else _data(graph, made_by)
        known = _summed_branches(graph)
        if data is None or (made_by.type == "MaxPool" and not _is_in_convolution(graph, data.tensor, known)):
            branch = known.get(made_by.outputs[0])
            return None if branch is None else branch.convolution
        if has_separate_bias_kernel(graph, made_by):
            return made_by
        tensor = data.tensor
    return None


def has_separate_bias_kernel(graph: Network, op: Op) -> bool:
    """Whether an operation adds a bias to a matrix product of more than three dimensions: the plugin then looks for the
    channels on another axis, and adds the bias in a separate kernel."""
    data = _data(graph, op) if op.type == "Add" else None
    source = None if data is None else graph.producer(data.tensor)
    return source is not None and source.type == "MatMul" and len(graph.shapes.get(source.outputs[0], ())) > 3


def comes_from_convolution(graph: Network, tensor: str) -> bool:
    """Whether a tensor is the output of a convolution, possibly clipped."""
    made_by = graph.producer(tensor)
    while made_by is not None and made_by.type in CLIPS and made_by.inputs[0] is not None:
        made_by = graph.producer(made_by.inputs[0].tensor)
    return made_by is not None and made_by.type == "Conv"


def _ancestors(graph: Network, op: Op, wanted: Collection[str]) -> set[str]:
    """The first outputs of an operation and of all that it depends on, starting at the first of `wanted` in topological
    order."""
    order = _order(graph)
    first = min((order[name] for name in wanted), default=0)

    def before(name: str) -> list[str]:
        made_by = graph.producer(name)
        sources = [graph.producer(read.tensor) for read in made_by.inputs if read is not None] if made_by else []
        return [each.outputs[0] for each in sources if each is not None and order[each.outputs[0]] >= first]

    return set(reachable([op.outputs[0]], before))


@per_network
def _order(graph: Network) -> dict[str, int]:
    """The position of each operation in topological order, by its first output."""
    return {op.outputs[0]: index for index, op in enumerate(graph.ops)}
