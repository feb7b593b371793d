"""A network of linear layers and a table, and the blocks that targets of language models store their weights in."""

from pathlib import Path

import torch
from torch import Tensor, nn

import detent
from detent.recipes import Recipe

TOKENS = torch.arange(28).reshape(4, 7) % 50


class Net(nn.Module):
    """A table, products with and without bias, on three axes and on two; 50 inputs divide into no groups."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.up, self.down = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        self.norm, self.words, self.last = nn.LayerNorm(64), nn.Linear(64, 50), nn.Linear(50, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.norm(x + self.down(torch.relu(self.up(x))))
        return self.last(self.words(x.mean(1)))


def deployed(folder: Path, backend: str, recipe: str | Recipe = "w4g32"):
    torch.manual_seed(0)
    prepared = detent.prepare(Net().eval(), (TOKENS,), backend=backend, recipe=recipe)
    detent.calibrate(prepared, [TOKENS])
    return detent.deploy(prepared, folder)


def asked(**weight: object) -> Recipe:
    parts = {"weight": {"quantizer": "fixed", **weight}, "activation": {"quantize": False}}
    return Recipe.from_dict({"name": "blocks", **parts})


SCHEMES = {
    "w4g32": "w4g32",
    "w8": "w8",
    "w4g16-affine": asked(bits=4, symmetric=False, granularity={"per_group": 16}),
    "w8g64-affine": asked(bits=8, symmetric=False, granularity={"per_group": 64}),
}
