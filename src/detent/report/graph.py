"""The network drawn as SVG: a node an operation, which a style sheet colors by its attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from detent.markup import Html, tag
from detent.report.facts import Facts, Node
from detent.report.layout import HEIGHT, WIDTH, Drawing, lay_out
from detent.report.text import Scale, bits_class, decibels, short, width_text

__all__ = ["COLORINGS", "draw_graph"]

COLORINGS = {
    "bits": "Bits",
    "runs": "Placement",
    "sqnr": "SQNR",
    "alone": "Cost alone",
    "lsb": "LSB difference",
}
"""By what nodes are colored, and what it is called."""


def draw_graph(facts: Facts) -> Html:
    """The whole drawing. A node has its number, the numbers of those above and below it, and a class for each way of
    coloring."""
    names = {f"node-{number}": node for number, node in enumerate(facts.nodes)}
    above, below = _links(facts)
    drawing = lay_out(below)
    edges = [
        tag("path", d=path, class_="edge", data_from=source, data_to=target)
        for (source, target), path in drawing.edges.items()
    ]
    order = sorted(drawing.ranks, key=lambda key: drawing.ranks[key])
    rows: dict[int, list[str]] = {}
    for key in order:
        rows.setdefault(drawing.ranks[key][0], []).append(key)
    groups = []
    for key in order:
        node, beside = names.get(key), rows[drawing.ranks[key][0]]
        place = beside.index(key)
        links = {
            "data_up": " ".join(above.get(key, ())),
            "data_down": " ".join(below[key]),
            "data_left": beside[place - 1] if place else None,
            "data_right": beside[place + 1] if place + 1 < len(beside) else None,
        }
        groups.append(_end(key, facts, drawing, links) if node is None else _operation(key, node, drawing, links))
    size = f"0 0 {drawing.width:.0f} {drawing.height:.0f}"
    inner = (tag("g", *edges, class_="edges"), tag("g", *groups, class_="nodes"))
    return tag("svg", *inner, viewBox=size, data_size=size, id="graph", role="group", aria_label="the network")


def _links(facts: Facts) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The keys above and below each; below, in an order in which they can run."""
    below: dict[str, list[str]] = {f"input-{number}": [] for number in range(len(facts.inputs))}
    makers = {name: f"input-{number}" for number, name in enumerate(facts.inputs)}
    reads: list[tuple[str, tuple[str, ...]]] = []
    for number, node in enumerate(facts.nodes):
        below[f"node-{number}"] = []
        makers.update((name, f"node-{number}") for name in node.outputs if name)
        reads.append((f"node-{number}", node.reads))
    for number, (_, tensor) in enumerate(facts.outputs):
        below[f"output-{number}"] = []
        reads.append((f"output-{number}", (tensor,)))
    above: dict[str, list[str]] = {}
    for key, tensors in reads:
        above[key] = list(dict.fromkeys(makers[name] for name in tensors if name in makers))
        for maker in above[key]:
            below[maker].append(key)
    return above, below


def _operation(key: str, node: Node, drawing: Drawing, links: Mapping[str, str | None]) -> Html:
    x, y = drawing.nodes[key]
    classes = {
        "data_bits": bits_class(node.bits),
        "data_runs": node.runs or "unknown",
        "data_sqnr": Scale.SQNR.class_of(node.sqnr),
        "data_alone": Scale.ALONE.class_of(node.alone),
        "data_lsb": Scale.LSB.class_of(node.lsb),
    }
    label = f"{node.op} {node.name}, {width_text(node)}"
    values = (tag("text", text, class_=f"value by-{by}", x=WIDTH - 10, y=17) for by, text in _values(node))
    return tag(
        "g",
        tag("title", f"{node.op}: {node.name}"),
        tag("rect", width=WIDTH, height=HEIGHT, rx=7),
        tag("rect", class_="strip", width=5, height=HEIGHT - 12, x=6, y=6, rx=2.5),
        tag("text", short(node.op, 13), class_="op", x=18, y=17),
        *values,
        tag("text", short(node.name, 25), class_="name", x=18, y=31),
        id=key,
        class_="node",
        tabindex=-1,
        role="button",
        aria_label=label,
        transform=f"translate({x - WIDTH / 2:.0f} {y - HEIGHT / 2:.0f})",
        data_text=f"{node.op} {node.name}".lower(),
        **classes,
        **links,
    )


def _values(node: Node) -> Iterator[tuple[str, str]]:
    yield "bits", width_text(node)
    yield "runs", node.runs or ""
    yield "sqnr", decibels(node.sqnr, "")
    yield "alone", decibels(node.alone, "")
    yield "lsb", "" if node.lsb is None else f"{node.lsb:.3g}"


def _end(key: str, facts: Facts, drawing: Drawing, links: Mapping[str, str | None]) -> Html:
    kind, _, number = key.partition("-")
    name = facts.inputs[int(number)] if kind == "input" else facts.outputs[int(number)][0]
    x, y = drawing.nodes[key]
    return tag(
        "g",
        tag("title", f"{kind}: {name}"),
        tag("rect", width=WIDTH - 40, height=HEIGHT, x=20, rx=HEIGHT / 2),
        tag("text", short(f"{kind} {name}", 17), class_="name", x=WIDTH / 2, y=24, text_anchor="middle"),
        id=key,
        class_="node end",
        tabindex=-1,
        role="button",
        aria_label=f"{kind} {name}",
        transform=f"translate({x - WIDTH / 2:.0f} {y - HEIGHT / 2:.0f})",
        data_text=f"{kind} {name}".lower(),
        **links,
    )
