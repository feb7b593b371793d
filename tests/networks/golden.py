"""Three small networks whose plans are written out in tests: a name or an order changed here changes those."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import lively


class ResidualCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(8)
        self.relu3 = nn.ReLU()
        self.left = nn.Conv2d(8, 4, 1)
        self.right = nn.Conv2d(8, 12, 3, padding=1)
        self.avgpool = nn.AvgPool2d(2)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu1(self.bn1(self.conv1(x))))
        y = self.relu2(self.bn2(self.conv2(x)))
        y = self.bn3(self.conv3(y))
        x = self.relu3(x + y)
        x = torch.cat((self.left(x), self.right(x)), dim=1)
        x = F.adaptive_avg_pool2d(self.avgpool(x), (1, 1))
        return self.fc(torch.flatten(x, 1))


def residual_cnn() -> ResidualCnn:
    return lively(ResidualCnn())


class MobileCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.act1 = nn.Hardswish()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.act2 = nn.Hardswish()
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(8, 4, 1)
        self.relu = nn.ReLU()
        self.fc2 = nn.Conv2d(4, 8, 1)
        self.hardsigmoid = nn.Hardsigmoid()
        self.pointwise = nn.Conv2d(8, 16, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(16)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.act2(self.bn2(self.depthwise(x)))
        scale = self.hardsigmoid(self.fc2(self.relu(self.fc1(self.squeeze(x)))))
        x = self.bn3(self.pointwise(scale * x))
        return self.fc(torch.flatten(self.pool(x), 1))


def mobile_cnn() -> MobileCnn:
    return lively(MobileCnn())


class TransformerBlock(nn.Module):
    heads: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(16)
        self.query = nn.Linear(16, 16)
        self.key = nn.Linear(16, 16)
        self.value = nn.Linear(16, 16)
        self.out = nn.Linear(16, 16)
        self.norm2 = nn.LayerNorm(16)
        self.fc1 = nn.Linear(16, 32)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = self.split(self.query(y)), self.split(self.key(y)), self.split(self.value(y))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(16 // self.heads)
        y = torch.matmul(torch.softmax(scores, dim=-1), v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.heads, 16 // self.heads).transpose(1, 2)


def transformer_block() -> TransformerBlock:
    return lively(TransformerBlock())
