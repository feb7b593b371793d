"""A page for each target, from the table of targets and what belongs to each: schemes, rules, files, engine, twin."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from tools.website.docstrings import as_markdown
from tools.website.markdown import codes, page, section, table

from detent.ir import OPS
from detent.numerics import GRIDS
from detent.planning import Backend, SupportedSchemes
from detent.targets import TARGETS, Target
from detent.targets.engines import ENGINES
from tools import operator_table

BIAS = {
    "float": "Biases stay float.",
    "int32": "Biases are 32-bit integers. Their scale is that of the input times that of the weight.",
    "own": "Biases have a quantizer of their own.",
}
OWN_ENVIRONMENT = ("mnn", "executorch", "qnn")


def pages() -> dict[str, str]:
    """By name of file: the list of targets, and one page for each."""
    return {"index.md": index(), **{f"{name}.md": target_page(target) for name, target in TARGETS.items()}}


def index() -> str:
    rows = [
        [
            f"[{name}]({name}.md)",
            target.backend.about,
            bits(target.backend.weight),
            bits(target.backend.activation),
            target.backend.engine or "twin only",
        ]
        for name, target in TARGETS.items()
    ]
    return page(
        "Targets",
        "A target is a chip or an engine that Detent writes files for. Choose one by its name: "
        '`detent.prepare(..., backend="openvino")`, or `--backend openvino` on the command line. "Engine" is the '
        "software that `verify` runs, where it is installed. Every target has a twin, which runs on any machine.",
        table(["target", "what it is", "weight bits", "activation bits", "engine"], rows),
        "[Backends](../backends.md) shows the default schemes of all of them side by side, and how to add your own.",
    )


def target_page(target: Target) -> str:
    backend = target.backend
    return page(
        backend.name,
        f"{backend.about}.",
        about(target),
        f"```python\nprepared = detent.prepare(model, example_inputs, backend={backend.name!r})\n```",
        section("Schemes", schemes(backend)),
        section("What is quantized", placement(backend)),
        section("Operators", operators(backend.name)),
        section("Files", files(backend)),
        section("Engine and proof", proof(backend)),
        section("Rewrites", rewrites(target)),
        section("Limits", limits(backend)),
    )


def about(target: Target) -> str:
    """What the module of the target says of it, without its first line where that only repeats the name."""
    modules = [each for name, each in sys.modules.items() if name.startswith("detent.targets.")]
    home = next(each for each in modules if any(value is target for value in vars(each).values()))
    return as_markdown((inspect.getdoc(home) or "").partition("\n\n")[2])


def bits(supported: SupportedSchemes) -> str:
    return ", ".join(str(each) for each in dict.fromkeys(n for part in supported.alternatives for n in part.bits))


def schemes(backend: Backend) -> str:
    roles = {"weights": backend.weight, "activations": backend.activation, "network inputs": backend.network_input}
    rows = [
        [role if place == 0 else f"{role}, also", *_scheme_cells(part)]
        for role, supported in roles.items()
        if supported is not None
        for place, part in enumerate(supported.alternatives)
    ]
    head = ["tensors", "numbers", "bits", "codes", "zero point", "one scale", "scale", "rounding", "observer"]
    return "\n\n".join(
        [
            "The first entry of each list is the default. A recipe may ask for the others.",
            table(head, rows),
            BIAS[backend.bias],
        ]
    )


def _scheme_cells(part: SupportedSchemes) -> list[str]:
    signs = {True: "signed", False: "unsigned"}
    ranges = {True: "narrow (-127 to 127 for 8 bits)", False: "full"}
    zero = {True: "0", False: "any"}
    names = {grid: name for name, grid in GRIDS.items()}
    return [
        ", ".join(names.get(grid, grid.__name__) for grid in part.grids),
        bits(SupportedSchemes(bits=part.bits)),
        ", ".join(
            [*(signs[each] for each in part.signed), *(ranges[each] for each in part.narrow if True in part.signed)]
        ),
        ", ".join(zero[each] for each in part.symmetric),
        ", ".join(f"per {kind.__name__[3:].lower()}" for kind in part.granularities),
        ", ".join("power of two" if scale == "power_of_two" else f"any {scale}" for scale in part.scales),
        ", ".join(mode.value for mode in part.roundings),
        f"[{part.observer}](../methods/observers/{part.observer}.md)",
    ]


def placement(backend: Backend) -> str:
    both = [kind for kind, rule in backend.rules.items() if rule.output]
    inputs = [kind for kind, rule in backend.rules.items() if not rule.output]
    edges = [" + ".join(edge) for edge in backend.unquantized_edges]
    chains = [" + ".join(chain) for chain in backend.fusions]
    rows = [
        ["inputs, weights and outputs are quantized", codes(both)],
        ["inputs and weights are quantized", codes(inputs)],
        ["keep the scale of their input", codes(backend.passthrough)],
        ["all inputs share one scale", codes(backend.common_qparams)],
        ["run as one operation", codes(chains)],
        ["fused, so nothing is quantized between them", codes(edges)],
    ]
    ends = "are quantized" if backend.quantize_outputs else "stay float"
    exception = f", except those of {codes(backend.float_outputs)}, which stay float" if backend.float_outputs else ""
    return "\n\n".join(
        [
            "Kinds of operations, and what happens to them. All other kinds run in float.",
            table(["what", "kinds"], [row for row in rows if row[1] != "-"]),
            f"The outputs of the network {ends}{exception}.",
        ]
    )


def operators(name: str) -> str:
    columns = operator_table.columns()
    if name not in columns:
        return "Detent writes parameters and QDQ ONNX for this target, and does not know which operators it supports."
    cells = {op: columns[name](op) for op in OPS}
    groups = {"int": "on integers, on some grids", "float": "in float", "-": "refused: the file cannot hold them"}
    rows = [[text, codes(op for op, cell in cells.items() if cell == kind)] for kind, text in groups.items()]
    return table(["runs", "ONNX operators"], [row for row in rows if row[1] != "-"])


def files(backend: Backend) -> str:
    rows = [
        [
            f"`{name}`",
            codes(TARGETS.formats[name].files),
            f"`{TARGETS.formats[name].requires[0]}`" if TARGETS.formats[name].requires else "nothing more",
        ]
        for name in backend.files
    ]
    return "\n\n".join(
        [
            "`detent.deploy` writes these files, and `manifest.json`. [File formats](../formats.md) describes them.",
            table(["format", "files", "writing needs"], rows),
        ]
    )


def proof(backend: Backend) -> str:
    arithmetic = TARGETS.arithmetics[backend.arithmetic]
    lines = [f"The twin computes with the arithmetic `{backend.arithmetic}`. What is proven: {arithmetic(None).claim}."]
    if arithmetic.cpus:
        lines.append(f"It knows these kinds of CPU: {codes(arithmetic.cpus)} ([what they are](../cpus.md)).")
    if backend.engine is None:
        return "\n\n".join(
            ["Detent runs no engine of this target: `verify` compares the simulation with the twin.", *lines]
        )
    engine = ENGINES[backend.engine]
    alone = ", in an environment of its own" if engine.extra in OWN_ENVIRONMENT else ""
    return "\n\n".join([f"`verify` runs **{engine.name}**. To install it: `{engine.installation()}`{alone}.", *lines])


def rewrites(target: Target) -> str:
    rows = [[f"`{each.name}`", each.why, ", ".join(each.needed_for)] for each in target.rewrites]
    if not rows:
        return ""
    return "\n\n".join(
        [
            "What Detent writes in another form for this target, with the same result.",
            table(["rewrite", "why", "measured with"], rows),
        ]
    )


def limits(backend: Backend) -> str:
    return "\n".join(f"- {each}" for each in _limits(backend))


def _limits(backend: Backend) -> Iterator[str]:
    if backend.conv_axes != (1, 2, 3):
        yield f"Convolutions run on integers over {' or '.join(map(str, backend.conv_axes))} axes; others stay float."
    if backend.per_tensor_weights:
        yield f"Weights of {codes(backend.per_tensor_weights)} have one scale per tensor."
    if backend.depthwise_bits:
        yield f"Weights of depthwise convolutions have {backend.depthwise_bits} bits unless a recipe asks for more."
    if backend.first_last_bits:
        yield f"The first and the last layer have at least {backend.first_last_bits} bits."
    if backend.saturates_on:
        yield (
            f"On {codes(backend.saturates_on)} CPUs its kernels add products in pairs that saturate at 16 bits. "
            "[Detent bounds the weights](../cpus.md) so that this does not happen."
        )
    if backend.engine is not None:
        for defect in ENGINES[backend.engine].known_defects:
            yield f"{backend.engine} {', '.join(defect.versions)} {defect.what}. What to do: {defect.to_do}."
    if backend.engine in OWN_ENVIRONMENT:
        yield "[Engines with their own environment](../deploying.md#engines-with-their-own-environment) has more."
