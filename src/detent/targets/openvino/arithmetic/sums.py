"""Which convolution OpenVINO runs an addition inside of.

A convolution takes in what is done to each element behind it, and then an addition of a second activation, whose
memory it writes its result into. So nobody may read that second one afterwards, and what counts is the kernel that
makes it: one kernel of several functions of elements makes several tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from detent.ir import Network, Op, Operand, Trait, is_output, ops_with, sole_reader
from detent.targets.openvino.arithmetic.ranges import CLIPS

__all__ = [
    "COMPOSED",
    "FUNCTIONS",
    "Branch",
    "is_activation",
    "is_bias_apart",
    "out_of_convolution",
    "summed_branch",
    "taken_in",
]

FUNCTIONS = ("Elu", "Gelu", "HardSwish", "LeakyRelu", "Mish", "Sigmoid", "Softplus", "Tanh")
_FUNCTIONS = frozenset({*CLIPS, *FUNCTIONS})
"""What a convolution takes in, and what is put together into one kernel where there is none."""
_OF_TWO = ops_with(Trait.ARITHMETIC)
_HEADS = (
    ops_with(Trait.WEIGHTED)
    | ops_with(Trait.REDUCES) - {"ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"}  # not proven
    | ops_with(Trait.POOL) - ops_with(Trait.EXTREME)
    | {"InstanceNormalization", "Resize"}
)
COMPOSED = ops_with(Trait.WEIGHTED)
"""Operations that the plugin puts what follows them together for (`OutputRequantization`)."""


@dataclass(frozen=True)
class Branch:
    """A convolution and what it takes in, to the tensor that is added; `other` is what it is added to."""

    convolution: Op
    behind: tuple[Op, ...]
    other: Operand

    @property
    def tensor(self) -> str:
        return (self.convolution, *self.behind)[-1].outputs[0]


def summed_branch(graph: Network, add: Op) -> Branch | None:
    """The convolution that an Add, or a Sub, is run inside of, if there is one."""
    reads = [read for read in add.inputs if read is not None]
    if len(reads) != 2 or reads[0].tensor == reads[1].tensor or not _same_shape(graph, reads):
        return None
    if not all(is_activation(graph, read) for read in reads):
        return None
    first, second = (_branch(graph, *pair) for pair in ((reads[0], reads[1]), (reads[1], reads[0])))
    chosen = second
    if first is not None and (second is None or len(graph.readers(first.tensor)) == 1):
        chosen = first
    return chosen if chosen is not None and _may_write_over(graph, add, chosen) else None


def is_activation(graph: Network, read: Operand) -> bool:
    return read.encoding is not None and read.encoding.per_tensor and read.tensor not in graph.constants


def _same_shape(graph: Network, reads: Iterable[Operand]) -> bool:
    """Free sizes are taken for the same, whatever they are called."""
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
    """What is not constant of what a function of elements reads."""
    reads = [read for read in op.inputs if read is not None and read.tensor not in graph.constants]
    return reads[0] if len(reads) == 1 and op.type in (*_FUNCTIONS, *_OF_TWO) else None


def _may_write_over(graph: Network, add: Op, branch: Branch) -> bool:
    if sole_reader(graph, branch.tensor) is None:
        return False
    kernel = set(_made_together(graph, branch.other.tensor))
    if any(read is not None and read.tensor in kernel for read in branch.convolution.inputs):
        return False
    if any(is_output(graph, tensor) for tensor in kernel):
        return False
    before = _ancestors(graph, add)
    readers = {op.outputs[0] for tensor in kernel for op, _ in graph.readers(tensor)}
    return readers <= before | kernel


def _made_together(graph: Network, tensor: str) -> Iterator[str]:
    """The tensors of the kernel that makes a tensor."""
    made_by = graph.producer(tensor)
    yield from (tensor,) if made_by is None else made_by.outputs
    if made_by is None or made_by.type not in (*_FUNCTIONS, *_OF_TWO) or _is_in_convolution(graph, tensor):
        return
    for read in made_by.inputs:
        if read is None or read.tensor in graph.constants:
            continue
        source = graph.producer(read.tensor)
        if source is None or (source.type in (*_FUNCTIONS, *_OF_TWO) and not _is_in_convolution(graph, read.tensor)):
            yield from _made_together(graph, read.tensor)


def _is_in_convolution(graph: Network, tensor: str) -> bool:
    """Whether a convolution makes a tensor, with what it takes in behind it."""
    made_by = graph.producer(tensor)
    while made_by is not None and made_by.type in (*_FUNCTIONS, *_OF_TWO):
        data = _data(graph, made_by)
        if data is None:
            return summed_branch(graph, made_by) is not None
        if sole_reader(graph, data.tensor) is None:
            return False
        made_by = graph.producer(data.tensor)
    return made_by is not None and made_by.type == "Conv"


def taken_in(graph: Network, tensor: str) -> Op | None:
    """The operation whose kernel also does what is done to each element of a tensor; None if that has its own."""
    while sole_reader(graph, tensor) is not None:
        made_by = graph.producer(tensor)
        if made_by is None or made_by.type in _HEADS:
            return made_by
        data = made_by.inputs[0] if made_by.type == "MaxPool" else _data(graph, made_by)
        if data is None or (made_by.type == "MaxPool" and not _is_in_convolution(graph, data.tensor)):
            branch = summed_branch(graph, made_by)
            return None if branch is None else branch.convolution
        if is_bias_apart(graph, made_by):
            return made_by
        tensor = data.tensor
    return None


def is_bias_apart(graph: Network, op: Op) -> bool:
    """Whether an operation adds a bias to a product of matrices of more than three dimensions: the plugin looks for
    its channels on another axis then, and adds it in a kernel of its own."""
    data = _data(graph, op) if op.type == "Add" else None
    source = None if data is None else graph.producer(data.tensor)
    return source is not None and source.type == "MatMul" and len(graph.shapes.get(source.outputs[0], ())) > 3


def out_of_convolution(graph: Network, tensor: str) -> bool:
    """Whether a convolution made a tensor, perhaps with a ReLU behind it."""
    made_by = graph.producer(tensor)
    while made_by is not None and made_by.type in CLIPS and made_by.inputs[0] is not None:
        made_by = graph.producer(made_by.inputs[0].tensor)
    return made_by is not None and made_by.type == "Conv"


def _ancestors(graph: Network, op: Op) -> set[str]:
    """The first outputs of an operation and of all that it depends on."""
    makers = {name: each for each in graph.ops for name in each.outputs}
    found, left = {op.outputs[0]}, [op]
    while left:
        for read in left.pop().inputs:
            source = None if read is None else makers.get(read.tensor)
            if source is not None and source.outputs[0] not in found:
                found.add(source.outputs[0])
                left.append(source)
    return found
