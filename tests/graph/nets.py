"""What the tests of graphs share: a network and its inputs, the tensors of an output, comparing two of them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import pytest
import torch

from detent.graph import capture
from detent.numerics import PerChannel, PerTensor
from detent.planning import Backend, Rule, SupportedSchemes
from tests.models import LARGE, MODELS
from tests.networks.inline import Net

__all__ = [
    "EIGHT",
    "SIXTEEN",
    "Net",
    "assert_close",
    "backend_of",
    "captured_of",
    "every_model",
    "fresh_inputs",
    "made",
    "run",
    "tensors",
    "varied",
]

_KINDS = "conv conv_transpose linear embedding matmul add mul concat global_avgpool avgpool softmax layernorm gelu"


def backend_of(bits):
    """A target with rules for nearly everything, and one width."""
    return Backend(
        name=f"int{bits}",
        about=f"{bits} bits everywhere",
        weight=SupportedSchemes(bits=(bits,), granularities=(PerChannel, PerTensor)),
        activation=SupportedSchemes(bits=(bits,), symmetric=(False, True)),
        # At 16 bits the product of two scales times 2^31 is less than a usual bias: integers have no room for it.
        bias="int32" if bits == 8 else "float",
        rules=dict.fromkeys(_KINDS.split(), Rule(inputs=True, output=True)),
        quantize_outputs=True,
    )


EIGHT, SIXTEEN = backend_of(8), backend_of(16)

every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in LARGE else name for name in MODELS]
)


def made(name, seed=0):
    """A network of the tests in eval mode, and its inputs, from one seed."""
    torch.manual_seed(seed)
    return MODELS[name].build().eval(), MODELS[name].inputs()


def varied(model):
    """A copy with every parameter and statistic up to a tenth larger or smaller: another checkpoint of the network."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1 + 0.1 * (2 * torch.rand_like(tensor) - 1))
    return twin


def fresh_inputs(name, seed=7):
    torch.manual_seed(seed)
    return MODELS[name].inputs()


def tensors(output):
    """The tensors in an output of any of the networks, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if dataclasses.is_dataclass(output):
        output = vars(output)
    parts = output.values() if isinstance(output, Mapping) else output
    return [tensor for part in parts for tensor in tensors(part)]


def assert_close(left, right, tolerance):
    """Equal structure, and equal numbers to `tolerance`, which is absolute and relative."""
    assert type(left) is type(right)
    ours, theirs = tensors(left), tensors(right)
    assert ours
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def run(model, inputs):
    """The output on `inputs`, which are kept as they are: some networks write into theirs."""
    with torch.no_grad():
        return model(*[value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])


def captured_of(model, *inputs, **options):
    """`capture`, with the region of the whole model and its graph."""
    captured = capture(model.eval(), inputs, **options)
    region = captured.regions[""]
    return captured, region, next(iter(region.graphs.values()))
