"""PPQ's dispatchers: which operations go to the target, by where the values of convolutions and matrices flow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from detent.compat.ppq.graph import BaseGraph, Operation
from detent.errors import UnknownNameError

__all__ = ["DISPATCHERS", "dispatched"]

Names = frozenset[str]


def dispatched(graph: BaseGraph, types: Collection[str], dispatcher: str) -> Names:
    """The names of the operations of these types that a dispatcher (upper or lower case) sends to the target."""
    choose = DISPATCHERS.get(dispatcher.lower())
    if choose is None:
        raise UnknownNameError(
            f"the dispatcher {dispatcher!r}", f"not one of {', '.join(DISPATCHERS)}", "use one of these"
        )
    can = frozenset(one.name for one in graph.operations.values() if one.type in types and one.kind)
    return choose(_Flow(graph), can) & can


class _Flow:
    """Who reads what an operation gives, and whose results it reads."""

    def __init__(self, graph: BaseGraph):
        operations = graph.operations.values()
        made = {variable.name: one.name for one in operations for variable in one.outputs}
        self.before: dict[str, set[str]] = {
            one.name: {made[variable.name] for variable in one.inputs if variable.name in made} for one in operations
        }
        self.after: dict[str, set[str]] = {one.name: set() for one in operations}
        for name, sources in self.before.items():
            for source in sources:
                self.after[source].add(name)
        self.all = frozenset(self.after)
        self.computing = frozenset(one.name for one in operations if _computes(one))

    def reached(self, start: Iterable[str], links: Mapping[str, set[str]], through: Collection[str]) -> Names:
        """`start`, and all that is linked to it by operations of `through`."""
        found, waiting = set(start), list(start)
        while waiting:
            for name in links[waiting.pop()]:
                if name in through and name not in found:
                    found.add(name)
                    waiting.append(name)
        return frozenset(found)


def _computes(operation: Operation) -> bool:
    return operation.is_computing_op or operation.type == "MatMul"


def _conservative(flow: _Flow, can: Names) -> Names:
    """What convolutions and matrices give, up to the first operation of another type."""
    return flow.reached(flow.computing, flow.after, can)


def _aggressive(flow: _Flow, can: Names) -> Names:  # noqa: ARG001
    """What they give, also behind operations of other types."""
    return flow.reached(flow.computing, flow.after, flow.all)


def _between(flow: _Flow, can: Names) -> Names:
    """What lies between two of them."""
    return flow.reached(flow.computing, flow.after, can) & flow.reached(flow.computing, flow.before, can)


def _connected(flow: _Flow, can: Names) -> Names:  # noqa: ARG001
    """What they give and what goes into them."""
    return _aggressive(flow, flow.all) | flow.reached(flow.computing, flow.before, flow.all)


DISPATCHERS: Mapping[str, Callable[[_Flow, Names], Names]] = {
    "conservative": _conservative,
    "aggresive": _aggressive,  # PPQ's spelling
    "pplnn": _between,
    "pointwise": lambda flow, _: flow.computing,
    "allin": lambda flow, _: flow.all,
    "perseus": _connected,
    "pursus": _connected,  # what PPQ's own settings call it
}
