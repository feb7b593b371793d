"""Insert a fusion barrier between a max or min reduction and its quantizer."""

from __future__ import annotations

from detent.ir import Trait, ops_with
from detent.rewrites import Editing, rewrite
from detent.rewrites.editing import Found
from detent.rewrites.original import attributes_of
from detent.targets.openvino.rewrites.fusion_barrier import fusion_barrier

__all__ = ["barrier_after_minmax_reduction"]

_EXTREMES = ops_with(Trait.EXTREME | Trait.REDUCES) | {"GlobalMaxPool"}
# What the plugin runs in the kernel of a reduction too, and shapes, which it takes for an option of it.
_TAKEN_IN = (
    ops_with(Trait.ARITHMETIC)
    | ops_with(Trait.RESHAPES)
    | {"Abs", "Clip", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "PRelu", "Relu", "Round"}
    | {"Sigmoid", "Softplus", "Sqrt", "Tanh"}
)


@rewrite(
    why=(
        "OpenVINO fuses the quantizer into a max or min reduction and accumulates in the integer type before "
        "scaling, so that negative values become 0: up to 255 LSB off"
    ),
    needed_for=("openvino<=2026.4.1",),
)
def barrier_after_minmax_reduction(editing: Editing) -> None:
    """Matches a max or min reduction whose result is quantized, perhaps behind elementwise functions."""
    for node in editing.nodes:
        if node.op_type not in _EXTREMES or editing.is_gone(node) or not _is_quantized(editing, node.output[0]):
            continue
        stem = node.output[0]
        made = editing.write(node.op_type, list(node.input), stem, name=node.name, **attributes_of(node))
        fusion_barrier(editing, made, stem)
        editing.replace(Found((node,), node.input[0], (), stem, ()))


def _is_quantized(editing: Editing, tensor: str) -> bool:
    return any(
        reader.op_type == "QuantizeLinear" or (reader.op_type in _TAKEN_IN and _is_quantized(editing, reader.output[0]))
        for reader in editing.readers(tensor)
    )
