"""Charts as SVG: bars, histograms on their grids, curves."""

from __future__ import annotations

from collections.abc import Sequence

from detent.markup import Html, tag
from detent.report.facts import Curve, Node, TensorSummary
from detent.report.text import Scale, decibels, share

__all__ = ["bar", "draw_curve", "draw_depth", "draw_histogram"]

_W, _H = 320, 110  # of a histogram
_MOST_LINES = 32
"""Codes that get a line each; of finer grids every line would touch the next."""


def bar(value: float, most: float, class_: str = "") -> Html:
    """A part of a line."""
    width = 0.0 if most <= 0 else max(0.0, min(1.0, value / most)) * 100
    return tag(
        "svg",
        tag("rect", class_="rail", width=100, height=8),
        tag("rect", class_=f"fill {class_}".strip(), width=f"{width:.1f}", height=8),
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def draw_histogram(tensor: TensorSummary) -> Html:
    """The numbers of a tensor in steps of its grid: the grid is what is not shaded, bars outside of it are clipped, and
    the marks at its two ends are as high as the share of codes that are there."""
    held = tensor.histogram
    assert held is not None
    span = (held.high - held.low) or 1.0

    def x(step: float) -> float:
        return (step - held.low) / span * _W

    left, right = x(tensor.qmin - 0.5), x(tensor.qmax + 0.5)
    most, width = max(held.counts) or 1, _W / len(held.counts)
    inside: list[str] = []
    outside: list[str] = []
    for index, count in enumerate(held.counts):
        # The root shows the tails, which are what a grid clips.
        height = (count / most) ** 0.5 * (_H - 8)
        if count:
            middle = (index + 0.5) * width
            path = f"M{index * width:.1f} {_H}v-{height:.1f}h{width - 0.6:.1f}v{height:.1f}z"
            (inside if left <= middle <= right else outside).append(path)
    zones = [
        tag("rect", class_="clip", x=f"{start:.1f}", y=0, width=f"{end - start:.1f}", height=_H)
        for start, end in ((0.0, left), (right, float(_W)))
        if end - start > 0.4
    ]
    lines = [f"M{left:.1f} 0V{_H}M{right:.1f} 0V{_H}"]
    codes = range(tensor.qmin, tensor.qmax + 1) if tensor.qmax - tensor.qmin < _MOST_LINES else ()
    grid = "".join(f"M{x(code):.1f} 0V{_H}" for code in codes)
    ends = [
        tag("rect", class_="end", x=f"{at:.1f}", y=f"{_H - part * _H:.1f}", width=4, height=f"{part * _H:.1f}")
        for at, part in ((max(left - 2, 0), held.at_least), (min(right - 2, _W - 4), held.at_most))
    ]
    label = f"{tensor.name}: clipped {share(held.below + held.above)}"
    return tag(
        "svg",
        *zones,
        tag("path", class_="grid", d=grid) if grid else None,
        tag("path", class_="count", d="".join(inside)),
        tag("path", class_="count clipped", d="".join(outside)) if outside else None,
        tag("path", class_="limit", d="".join(lines)),
        *ends,
        viewBox=f"0 0 {_W} {_H}",
        class_="histogram",
        role="img",
        aria_label=label,
    )


def draw_depth(nodes: Sequence[tuple[int, Node]]) -> Html | None:
    """The SQNR of results along the network: where the error comes in."""
    points = [(number, node) for number, node in nodes if node.sqnr is not None and abs(node.sqnr) < 200]
    if len(points) < 3:
        return None
    width, height, left = 1000, 180, 44
    top = max(50.0, max(node.sqnr or 0.0 for _, node in points))
    low = min(0.0, min(node.sqnr or 0.0 for _, node in points))
    last = max(number for number, _ in points) or 1

    def place(number: int, value: float) -> tuple[float, float]:
        return left + number / last * (width - left - 10), 10 + (top - value) / (top - low) * (height - 30)

    at = [place(number, node.sqnr or 0.0) for number, node in points]
    lines = list(range(0, int(top) + 1, 10))
    return tag(
        "svg",
        *(tag("path", class_="grid", d=f"M{left} {place(0, value)[1]:.1f}H{width - 10}") for value in lines),
        *(tag("text", f"{value} dB", x=left - 6, y=f"{place(0, value)[1] + 3.5:.1f}") for value in lines[::2]),
        tag("path", class_="line", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at)),
        *(
            tag(
                "circle",
                tag("title", f"{node.op} {node.name}: {decibels(node.sqnr)}"),
                cx=f"{x:.1f}",
                cy=f"{y:.1f}",
                r=4,
                class_=f"dot c{Scale.SQNR.class_of(node.sqnr)}",
                data_node=f"node-{number}",
            )
            for (number, node), (x, y) in zip(points, at, strict=True)
        ),
        viewBox=f"0 0 {width} {height}",
        class_="depth",
        role="img",
        aria_label="SQNR of each operation, in the order in which they run",
    )


def draw_curve(curve: Curve) -> Html:
    """A value over the steps of training."""
    width, height, left = 320, 130, 46
    steps, values = zip(*curve.points, strict=True)
    low, high = min(values), max(values)
    span, length = (high - low) or 1.0, (max(steps) - min(steps)) or 1.0

    def place(step: float, value: float) -> str:
        x = left + (step - min(steps)) / length * (width - left - 8)
        return f"{x:.1f} {8 + (high - value) / span * (height - 30):.1f}"

    floor = height - 22
    return tag(
        "svg",
        tag("path", class_="grid", d=f"M{left} 8H{width - 8}M{left} {floor}H{width - 8}"),
        tag("text", f"{high:.4g}", x=left - 5, y=12),
        tag("text", f"{low:.4g}", x=left - 5, y=floor + 3),
        tag("text", f"step {max(steps):,.0f}", x=width - 8, y=height - 6),
        tag("path", class_="line", d="M" + "L".join(place(*point) for point in curve.points)),
        viewBox=f"0 0 {width} {height}",
        class_="curve",
        role="img",
        aria_label=f"{curve.name}, {values[-1]:.4g} at the end",
    )
