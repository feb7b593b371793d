"""Facts made by hand: hostile names, and as many nodes as one likes."""

from __future__ import annotations

from dataclasses import replace

from detent.report import Facts
from detent.report.facts import Histogram, Node, TensorSummary

HOSTILE = "</script><!--<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u2028${x}\u202e`|\\"


def node(name: str, reads: tuple[str, ...], **given: object) -> Node:
    made = {"op": "Conv", "outputs": (f"{name}_out",), "result": f"{name}_out", "shape": ("N", 8, 4, 4)}
    return Node(name=name, reads=reads, **{**made, **given})  # type: ignore[arg-type]


def tensor(name: str, **given: object) -> TensorSummary:
    counts = Histogram(
        low=-10.5,
        high=255.5,
        counts=(3, 2, 1, 0, 5) * 12,
        below=0.01,
        above=0.0,
        at_least=0.02,
        at_most=0.0,
        of="float values",
    )
    made = {"role": "activation", "bits": 8, "dtype": "uint8", "qmin": 0, "qmax": 255, "scale": (0.1, 0.1)}
    return TensorSummary(name=name, zero_point=(3, 3), histogram=counts, **{**made, **given})  # type: ignore[arg-type]


def chain(count: int, prefix: str = "layer") -> Facts:
    """So many operations, each of which reads the one before it, and every fifth the one five before it, too."""
    names = [f"{prefix}{number}" for number in range(count)]
    nodes = []
    for number, name in enumerate(names):
        reads = [f"{names[number - 1]}_out" if number else "x"]
        if number > 5 and number % 5 == 0:
            reads.append(f"{names[number - 5]}_out")
        values = {"weight_bits": 4 if number % 3 else 8, "activation_bits": 8, "sqnr": 50.0 - number % 45}
        nodes.append(node(name, tuple(reads), tensors=(reads[0],), alone=20.0 + number % 40, runs="integer", **values))
    tensors = {name: tensor(name) for name in dict.fromkeys(one.tensors[0] for one in nodes)}
    planned = [{"tensor": one.name, "kind": "conv", "float": f"because {one.name}"} for one in nodes]
    manifest = {
        "backend": "academic",
        "engine": None,
        "arithmetic": "onnx_spec",
        "notes": [],
        "files": {"model.onnx": "0" * 64},
        "plan": {"tensors": planned, "recipe": "ptq", "notes": []},
    }
    return Facts(
        name="chain",
        folder="out",
        manifest=manifest,
        files={"model.onnx": 1000},
        size=1000,
        float_size=4000,
        parameters=1000,
        inputs=("x",),
        outputs=(("y", f"{names[-1]}_out"),),
        nodes=tuple(nodes),
        tensors=tensors,
    )


def hostile() -> Facts:
    """Every text that a model or a folder gives is hostile."""
    facts = chain(6, HOSTILE)
    manifest = {**facts.manifest, "backend": HOSTILE, "notes": [HOSTILE], "files": {HOSTILE: HOSTILE}}
    manifest["plan"] = {**facts.manifest["plan"], "recipe": HOSTILE, "notes": [HOSTILE]}
    nodes = tuple(replace(one, op=HOSTILE, why=HOSTILE, runs="float") for one in facts.nodes)
    return replace(
        facts,
        name=HOSTILE,
        folder=HOSTILE,
        manifest=manifest,
        files={HOSTILE: 1},
        nodes=nodes,
        inputs=("x", HOSTILE),
        outputs=((HOSTILE, facts.outputs[0][1]),),
        output_sqnr={HOSTILE: 30.0},
        sqnr_of=HOSTILE,
    )
