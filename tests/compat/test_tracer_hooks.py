"""MMRazor's CustomTracer: what a subclass overrides is called."""

from __future__ import annotations

import torch
from torch import nn

from detent.compat.mmrazor import CustomTracer, TensorRTQuantizer

IMAGES = torch.randn(2, 3, 8, 8)
SCHEME = {"qdtype": "qint8", "bit": 8, "is_symmetry": True, "is_symmetric_range": True}
QCONFIG = {
    "w_observer": {"type": "mmrazor.PerChannelMinMaxObserver"},
    "a_observer": {"type": "mmrazor.MovingAverageMinMaxObserver"},
    "w_fake_quant": {"type": "mmrazor.FakeQuantize"},
    "a_fake_quant": {"type": "mmrazor.FakeQuantize"},
    "w_qscheme": {**SCHEME, "is_per_channel": True},
    "a_qscheme": SCHEME,
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.conv(x)


class Whole(CustomTracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, Block) or super().is_leaf_module(m, module_qualified_name)


class WithoutRelu(CustomTracer):
    def trace(self, root, concrete_args=None):
        graph = super().trace(root, concrete_args)
        (relu,) = [node for node in graph.nodes if node.target == "1"]
        relu.replace_all_uses_with(relu.args[0])
        graph.erase_node(relu)
        return graph


def plan_of(tracer):
    quantizer = TensorRTQuantizer(QCONFIG, tracer)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Block())
    return quantizer.prepare(model, quantizer.tracer.trace_modes(model, (IMAGES,))).plan


def test_is_leaf_module_is_called():
    kinds = {entry.tensor: entry.kind for entry in plan_of(CustomTracer())}
    assert "2.conv.weight" in kinds
    kinds = {entry.tensor: entry.kind for entry in plan_of(Whole())}
    assert kinds["_2"] == "Block"


def test_trace_is_called():
    assert "_1" in {entry.tensor for entry in plan_of(CustomTracer())}
    assert "_1" not in {entry.tensor for entry in plan_of(WithoutRelu())}
