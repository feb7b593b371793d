"""Networks with one thing each that a capture may stumble over."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import conv_bn, lively


class SignGate(nn.Module):
    """Which conv runs depends on the numbers in the input."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Conv2d(8, 8, 3, padding=1)
        self.negative = nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.positive(x)
        return self.negative(x)


class ControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = conv_bn(3, 8)
        self.project = nn.Conv2d(8, 8, 1)
        self.gate = SignGate()
        self.after = conv_bn(8, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(self.gate(self.project(self.before(x))))
        return self.fc(x.mean(dim=(2, 3)))


def control_flow() -> ControlFlow:
    return lively(ControlFlow())


class ReusedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(x))
        x = self.relu(self.conv(x))
        return self.fc(x.mean(dim=(2, 3)))


def reused_module() -> ReusedModule:
    return lively(ReusedModule())


class FunctionalOps(nn.Module):
    """One meaning spelled in several ways, keyword arguments, and work in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(input=x)
        x *= 0.5
        y = torch.add(x, self.conv2(input=x))
        z = operator.add(x, y)
        z = F.relu(z + 1.0, inplace=True)
        pooled = torch.cat(tensors=[y, z], dim=1).mean(dim=(2, 3))
        return self.fc(input=pooled)


def functional_ops() -> FunctionalOps:
    return lively(FunctionalOps())


class DictIo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.side = nn.Linear(6, 8)
        self.fc = nn.Linear(8, 5)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        features = self.relu(self.conv(batch["image"])).mean(dim=(2, 3)) + self.side(batch["side"])
        return {"features": features, "logits": self.fc(features)}


def dict_io() -> DictIo:
    return lively(DictIo())


@dataclass(frozen=True)
class Prediction:
    logits: Tensor
    features: Tensor


class DataclassIo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Prediction:
        features = self.relu(self.conv(x)).mean(dim=(2, 3))
        return Prediction(logits=self.fc(features), features=features)


def dataclass_io() -> DataclassIo:
    return lively(DataclassIo())


class Conv1d3d(nn.Module):
    """A sequence and a volume, each through a conv of its rank."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(4, 8, 3, padding=1, bias=False)
        self.bn1d = nn.BatchNorm1d(8)
        self.conv3d = nn.Conv3d(2, 6, 3, padding=1, bias=False)
        self.bn3d = nn.BatchNorm3d(6)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(14, 5)

    def forward(self, sequence: Tensor, volume: Tensor) -> Tensor:
        sequence = self.relu(self.bn1d(self.conv1d(sequence))).mean(dim=2)
        volume = self.relu(self.bn3d(self.conv3d(volume))).mean(dim=(2, 3, 4))
        return self.fc(torch.cat((sequence, volume), dim=1))


def conv1d_3d() -> Conv1d3d:
    return lively(Conv1d3d())


class ConvTransposeBn(nn.Module):
    """Transposed convs keep their output channels in dimension 1 of the weight, and there per group."""

    def __init__(self) -> None:
        super().__init__()
        self.up1 = nn.ConvTranspose2d(8, 12, 2, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.relu = nn.ReLU()
        self.up2 = nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1, groups=4)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.up2(self.relu(self.bn1(self.up1(x)))))


def conv_transpose_bn() -> ConvTransposeBn:
    return lively(ConvTransposeBn())


class LinearBn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 24)
        self.bn = nn.BatchNorm1d(24)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.bn(self.fc1(x))))


def linear_bn() -> LinearBn:
    return lively(LinearBn())


class SeveralModes(nn.Module):
    """One set of weights, three graphs: "tensor" gives logits, "predict" probabilities, "loss" needs labels."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 8, 3, stride=2), conv_bn(8, 8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor, mode: str = "tensor", labels: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        logits = self.fc(self.backbone(x).mean(dim=(2, 3)))
        if mode == "tensor":
            return logits
        if mode == "predict":
            return self._predict(logits)
        if mode == "loss" and labels is not None:
            return self._loss(logits, labels)
        raise ValueError(f"mode {mode!r} with labels {labels!r}: give tensor, predict, or loss with labels")

    def _predict(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1)

    def _loss(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(logits, labels)}


def several_modes() -> SeveralModes:
    return lively(SeveralModes())
