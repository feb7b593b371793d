"""Small networks that quantizing hurts, so that an algorithm has something to do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Convs(nn.Module):
    """conv - bn - relu - depthwise - bn - relu - 1x1 - bn, a residual add, mean, linear."""

    def __init__(self, act=nn.ReLU):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(12)
        self.expand = nn.Conv2d(12, 24, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(24)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False)
        self.bn2 = nn.BatchNorm2d(24)
        self.project = nn.Conv2d(24, 12, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(12)
        self.act0, self.act1, self.act2 = act(), act(), act()
        self.fc = nn.Linear(12, 5)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.3)
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, x):
        x = self.act0(self.bn0(self.stem(x)))
        y = self.act1(self.bn1(self.expand(x)))
        y = self.act2(self.bn2(self.depthwise(y)))
        x = F.relu(x + self.bn3(self.project(y)))
        return self.fc(x.mean((2, 3)))


class Mlp(nn.Module):
    """A norm before two linear layers that share its output, then a plain chain."""

    def __init__(self, dim=16):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.left, self.right = nn.Linear(dim, 24), nn.Linear(dim, 24)
        self.down = nn.Linear(24, dim)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.gelu(self.left(y)) * self.right(y))


class Chain(nn.Module):
    """Residual blocks whose branches are small beside the trunk, as those of deep networks are."""

    def __init__(self, blocks=12):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.branches = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(blocks)])
        with torch.no_grad():
            for branch in self.branches:
                branch.weight.mul_(0.2)

    def forward(self, x):
        x = torch.relu(self.stem(x)) + 1
        for branch in self.branches:
            x = torch.relu(x + branch(x))
        return x
