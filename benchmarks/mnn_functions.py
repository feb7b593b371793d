"""How far MNN's float functions are from the exact ones.

    .venv-mnn/bin/python benchmarks/mnn_functions.py

For each, the largest difference from float64 is printed, of the larger of 1 and the exact result; `at` is where. The
numbers are every 4,001st that float32 has up to 2**10, of both signs, and a million evenly spaced from -20 to 20. What
is beyond a few units of the last place has to be in `detent.twin`: of these, GELU (`mnn_gelu`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from detent.ir import read_qdq, write_qdq
from detent.rewrites import float_model
from detent.targets.mnn.engine import Mnn
from detent.targets.mnn.gelu import gelu
from detent.targets.mnn.model import mnn_network

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": lambda x: torch.exp(-torch.abs(x)),
    "erf": torch.erf,
    "gelu": F.gelu,
    "gelu, as the twin": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "sqrt": lambda x: torch.sqrt(torch.abs(x)),
    "softmax": lambda x: torch.softmax(x, -1),
}
LARGEST = 2.0**10  # beyond, products within a function overflow, and exp ends at 87
WIDTH = 8  # of a row: softmax is taken along it


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def numbers() -> Tensor:
    every = np.arange(0, 2**32, 4001, dtype=np.uint64).astype(np.uint32).view(np.float32)
    held = np.concatenate([every[np.abs(every) < LARGEST], np.linspace(-20, 20, 10**6, dtype=np.float32)])
    return torch.from_numpy(held[: len(held) // WIDTH * WIDTH].reshape(-1, WIDTH).copy())


def main() -> None:
    torch.set_num_threads(1)
    x = numbers()
    for name, function in FUNCTIONS.items():
        exported = torch.onnx.export(Function(function).eval(), (x,), dynamo=True, verbose=False)
        assert exported is not None
        model = float_model(exported.model_proto)
        graph = read_qdq(model)
        (given,) = graph.inputs
        (output,) = graph.outputs
        engine = Mnn(write_qdq(mnn_network(graph)).SerializeToString(), None, graph)
        found = torch.from_numpy(engine.run({given: x.numpy()})[output.name].reshape(x.shape)).double()
        exact = gelu(graph.ops[0], x.double()) if name.endswith("twin") else function(x.double())
        apart = (found - exact).abs() / exact.abs().clamp_min(1)
        apart[(exact.abs() > torch.finfo(torch.float32).max) | (exact == found)] = 0
        worst = int(apart.nan_to_num(torch.inf).argmax())
        most, where = float(apart.flatten()[worst]), float(x.flatten()[worst])
        print(f"{name:20} {most:.3g} (2**{np.log2(most):.1f}) at {where:.6g}", flush=True)


if __name__ == "__main__":
    main()
