"""A backend of your own: a value, register, use its name. Run: python examples/own_backend.py"""

from collections import OrderedDict

import torch
from torch import nn

import detent
from detent.numerics import Rounding
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io

# A chip that shifts instead of multiplying: symmetric int8 with one power-of-two scale for each tensor, rounding half
# away from zero, and float biases. What a recipe does not ask for is the first of each list.
POWERS = SupportedSchemes(scales=("power_of_two",), roundings=(Rounding.HALF_AWAY,), observer="pow2_sse")

NPU = Backend(
    name="my_npu",
    about="a made-up NPU",
    weight=POWERS,
    activation=POWERS,
    bias="float",
    rules=quantize_io("conv", "linear", "add", "avgpool", "global_avgpool"),  # these get and give integers
    fusions=(*FUSED, *chains(("add",))),  # conv + batch norm + ReLU, and add + ReLU, run as one
    passthrough=MOVES,  # max pooling, reshaping, ... keep the scale of their input
    quantize_outputs=True,
)
detent.targets.register(NPU)

if __name__ == "__main__":
    conv, fc = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(8, 2)
    net = nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU(), pool=nn.MaxPool2d(2), flat=nn.Flatten(), fc=fc)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.6, parameter.numel()).reshape(parameter.shape))
    image = torch.linspace(-1, 1, 16).reshape(1, 1, 4, 4)

    prepared = detent.prepare(net, (image,), backend="my_npu")
    detent.calibrate(prepared, [image])
    print(f"{len(prepared.plan.quantized)} tensors quantized, output {prepared(image).tolist()}")
