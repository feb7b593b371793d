"""The common procedure of algorithms that work on parts: one pass through each graph, then a check of the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from detent.algorithms.common.batches import as_list, held_back
from detent.algorithms.common.layers import Layer, layers_of, regions_of
from detent.algorithms.common.report import Change, Report, record
from detent.algorithms.common.walk import Walk, walks
from detent.algorithms.common.whole import Whole
from detent.graph import PreparedModel
from detent.progress import progress

__all__ = ["Outcome", "Skipped", "each_layer", "piece_by_piece"]


@dataclass(frozen=True)
class Skipped:
    """A place that an algorithm skips, and why."""

    place: str
    reason: str


Outcome = Change | Skipped


def piece_by_piece(
    prepared: PreparedModel, batches: Iterable[Any], algorithm: str, improve: Callable[[Walk], Iterable[Outcome]]
) -> Report:
    """Improve every graph of a model; return the report, which is also recorded in the model.

    `improve` walks through one graph and yields the outcome for each of its parts.
    """
    train, judge = held_back(as_list(batches))
    changes: list[Change] = []
    skipped: dict[str, str] = {}
    notes: list[str] = []
    whole = Whole(prepared, judge)
    graphs = [graph for region in regions_of(prepared).values() for graph in region.graphs.values()]
    with progress(algorithm, sum(len(graph.nodes) for graph in graphs)) as bar:
        passed = 0
        for walk in walks(prepared, train, judge):
            notes.extend(walk.notes)
            for outcome in improve(walk):
                bar.advance(passed + walk.position, facts=outcome.place)
                if isinstance(outcome, Skipped):
                    skipped[outcome.place] = outcome.reason
                else:
                    changes.append(outcome)
            passed += len(walk.nodes)
    judged, outputs = whole.judged(changes)
    report = Report(
        algorithm=algorithm,
        metric="squared error",
        changes=judged,
        skipped=skipped,
        notes=tuple(notes),
        outputs=outputs,
    )
    return record(prepared, report)


def each_layer(
    why_not: Callable[[Layer], str | None], improve: Callable[[Walk, Layer], Change]
) -> Callable[[Walk], Iterator[Outcome]]:
    """Improve layer by layer, with inputs from the improved layers before, skipping those that `why_not` gives a reason
    for."""

    def layers(walk: Walk) -> Iterator[Outcome]:
        for layer in layers_of(walk.region, walk.path, walk.mode):
            if reason := why_not(layer):
                yield Skipped(layer.name, reason)
                continue
            walk.to(layer.node)
            yield improve(walk, layer)

    return layers
