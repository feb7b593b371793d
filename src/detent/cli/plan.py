"""`detent plan`: what would be quantized, how, and why not, before anything is done."""

from __future__ import annotations

import json as json_format

from detent.cli.crash_guard import go_on_in_child
from detent.cli.exclude import without
from detent.cli.input_options import Set, StandInSize, parse_free_sizes, parse_values
from detent.cli.interrupts import nothing_written, on_interrupt
from detent.cli.options import MOST_BYTES, AsJson, Backend, Cpu, Exclude, MaxTensorBytes, OnnxFile, RecipeName

__all__ = ["plan"]


@on_interrupt(nothing_written)
def plan(
    model: OnnxFile,
    backend: Backend,
    recipe: RecipeName = "ptq",
    exclude: Exclude = None,
    cpu: Cpu = None,
    size: StandInSize = None,
    values: Set = None,
    max_tensor_bytes: MaxTensorBytes = MOST_BYTES,
    json: AsJson = False,
) -> None:
    """Print the plan of an ONNX model: the scheme of each tensor, or why it stays float, and how each operation runs.

    Example: detent plan model.onnx --backend tensorrt --exclude '/head/*' --exclude Softmax
    """
    go_on_in_child(f"plan {model}")
    from detent.errors import RunError
    from detent.frontends.onnx import example_inputs, ports_of
    from detent.loading import load
    from detent.preparing import prepare
    from detent.recipes import find

    named, alone = parse_free_sizes(size)
    network, request = load(model, sizes=named, values=parse_values(values)), find(recipe)
    request = without(request, exclude or ())
    free = sorted({name for shape in ports_of(network).values() for name in shape if isinstance(name, str)})
    try:
        example = example_inputs(network, free=alone)
        prepared = prepare(
            network, example, backend=backend, recipe=request, cpu=cpu, max_tensor_bytes=max_tensor_bytes
        )
    except RunError as error:
        if not free:
            raise
        say = " ".join(f"--size {name}=64" for name in free)
        raise RunError(error.asked, error.found, f"give sizes that the network accepts, such as {say}") from None
    if json:
        print(json_format.dumps(prepared.plan.to_dict(), indent=2))
    else:
        print(prepared.plan, prepared.plan.dispatch(), sep="\n\n")
