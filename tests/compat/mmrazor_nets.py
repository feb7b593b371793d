"""A small classifier in the form OpenMMLab gives them, and images it can learn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.zoo import resnet18

BASE = """
model = dict(type='ImageClassifier', width=8, head=dict(type='LinearClsHead', num_classes=3))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.0001))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[100, 150], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=1)
val_cfg = dict()
"""


class ClsHead(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.fc = nn.Linear(width, 3)

    def forward(self, feats: Tensor) -> Tensor:
        return self.fc(feats)

    def loss(self, feats: Tensor, data_samples: Tensor) -> dict[str, Tensor]:
        return self._get_loss(self(feats), data_samples)

    def predict(self, feats: Tensor) -> Tensor:
        return self._get_predictions(self(feats))

    def _get_loss(self, score: Tensor, data_samples: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(score, data_samples)}

    def _get_predictions(self, score: Tensor) -> Tensor:
        return score.softmax(1)


class LevellingHead(ClsHead):
    """Its own loss wants every score to be 3, whatever the label; a second one is 0, and what is no loss is huge."""

    def _get_loss(self, score: Tensor, data_samples: Tensor) -> dict[str, object]:
        return {"loss_level": (score - 3).square(), "loss_none": [0 * score.sum()], "count": score * 1e9}


class ImageClassifier(nn.Module):
    def __init__(self, width: int = 8, head: object = None):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.head = ClsHead(width)

    def forward(self, inputs: Tensor, data_samples: object = None, mode: str = "tensor") -> object:
        feats = self.backbone(inputs).mean((2, 3))
        if mode == "loss":
            return self.head.loss(feats, data_samples)
        return self.head(feats) if mode == "tensor" else self.head.predict(feats)


class ResNetClassifier(ImageClassifier):
    """The same on top of a narrow ResNet-18, the network of the document."""

    def __init__(self, width: int = 8, head: object = None):
        super().__init__(width, head)
        net = resnet18(classes=width, width=width / 64, small_images=True)
        self.backbone = nn.Sequential(net, nn.Unflatten(1, (width, 1, 1)))


class Pictures:
    """Gray noise of pixels from 0 to 255, with a patch in the color of its class."""

    def __init__(self, count: int = 48, seed: int = 0, size: int = 8):
        draw = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        self.images = 110 + 30 * torch.randn(count, 3, size, size, generator=draw)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            image[label, 2:6, 2:6] += 80
        self.images = self.images.clamp(0, 255).round()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]
