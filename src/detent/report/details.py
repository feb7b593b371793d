"""What a page shows of the operation that is chosen in the graph."""

from __future__ import annotations

from collections.abc import Iterator

from detent.markup import Html, tag
from detent.report.facts import Facts, Node
from detent.report.sections import code
from detent.report.text import decibels, share, width_text

__all__ = ["details"]


def details(facts: Facts) -> Html:
    """A template for each operation, which a script puts into the panel."""
    shown = (
        tag("template", *_of_node(node, facts), id=f"about-node-{number}") for number, node in enumerate(facts.nodes)
    )
    return tag("div", *shown, hidden=True)


def _of_node(node: Node, facts: Facts) -> Iterator[Html]:
    yield tag("h3", node.op)
    yield tag("p", code(node.name), class_="full")
    pairs: list[tuple[str, object]] = [
        ("reads", width_text(node)),
        ("runs", _placement(node)),
        ("reason", node.why or node.planned or None),
        ("shape", None if node.shape is None else " \N{MULTIPLICATION SIGN} ".join(map(str, node.shape))),
        ("result", code(node.result)),
        ("SQNR of the result", None if node.sqnr is None else decibels(node.sqnr)),
        ("SQNR of the outputs, alone", None if node.alone is None else decibels(node.alone)),
    ]
    pairs += [(what, _difference(*found)) for what, found in node.differences.items()]
    for name in node.tensors:
        held = facts.tensors.get(name)
        if held is not None:
            low, high = held.scale
            scale = f"{low:.4g}" if held.channels == 1 else f"{held.channels} from {low:.3g} to {high:.3g}"
            zero = f", zero point {held.zero_point[0]}" if any(held.zero_point) and held.channels == 1 else ""
            pairs.append((f"scale of {held.role}", Html(f"{code(name)} {scale}{zero}")))
    rows = [part for name, value in pairs if value is not None for part in (tag("dt", name), tag("dd", value))]
    yield tag("dl", *rows)
    yield tag("div", *(tag("span", data_figure=name) for name in node.tensors), class_="figures")


def _placement(node: Node) -> str | None:
    words = {
        "integer": "on integers",
        "float": "in float",
        "folded": "fused into another operation, or computed before",
    }
    return None if node.runs is None else words[node.runs]


def _difference(differing: int, elements: int, most: float, unit: str) -> str:
    if not differing:
        return f"equal in all {elements:,}"
    return f"{differing:,} of {elements:,} ({share(differing / elements)}), at most {most:.3g} {unit}"
