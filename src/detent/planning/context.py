"""Everything the planner needs to decide on one graph."""

from __future__ import annotations

from dataclasses import dataclass

from detent.planning.backend import Backend
from detent.planning.placement import QuantizerPlacement
from detent.planning.requests import Requests
from detent.planning.view import GraphView

__all__ = ["Context"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The graph, the target, the placement, and the requests of the recipe.

    `any_cpu`: weights must not saturate on any CPU.
    """

    view: GraphView
    backend: Backend
    placement: QuantizerPlacement
    requests: Requests
    any_cpu: bool
