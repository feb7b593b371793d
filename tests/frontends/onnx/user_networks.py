"""Networks as users' ONNX files have them, each with operators that `tests/models.py` has not; seeded by the caller.

Activations and norms are written as their authors write them (modules, functions, single steps), because exporters
take each of these ways apart differently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.networks.parts import conv_bn, lively

__all__ = ["USER_NETWORKS", "UserNetwork"]


class ConvNextBlock(nn.Module):
    """Depthwise 7x7, channels last, GELU, layer scale."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 4, stride=4)
        self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.rand(dim) + 0.1)
        self.head = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        x = x + y.permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


class EfficientNetBlock(nn.Module):
    """An inverted bottleneck with swish written out and squeeze-excite."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        hidden = 4 * dim
        self.stem = conv_bn(3, dim, 3, stride=2, act=nn.SiLU)
        self.expand = conv_bn(dim, hidden, 1, act=None)
        self.depthwise = conv_bn(hidden, hidden, 5, groups=hidden, act=None)
        self.reduce, self.excite = nn.Conv2d(hidden, 4, 1), nn.Conv2d(4, hidden, 1)
        self.project = conv_bn(hidden, dim, 1, act=None)
        self.classifier = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.expand(x)
        y = y * torch.sigmoid(y)
        y = self.depthwise(y)
        y = y * torch.sigmoid(y)
        s = F.adaptive_avg_pool2d(y, 1)
        s = torch.sigmoid(self.excite(F.silu(self.reduce(s))))
        x = x + self.project(y * s)
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


class YoloV8Head(nn.Module):
    """C2f with split and concat, a detection head with distribution focal loss and anchors as constants."""

    def __init__(self, dim: int = 8, classes: int = 3, bins: int = 4) -> None:
        super().__init__()
        self.bins, self.classes = bins, classes
        self.stem = conv_bn(3, dim, 3, stride=2, act=nn.SiLU)
        self.cv1 = conv_bn(dim, 2 * dim, 1, act=nn.SiLU)
        self.inner = conv_bn(dim, dim, act=nn.SiLU)
        self.cv2 = conv_bn(3 * dim, dim, 1, act=nn.SiLU)
        self.down = conv_bn(dim, dim, 3, stride=2, act=nn.SiLU)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.sppf = conv_bn(3 * dim, dim, 1, act=nn.SiLU)
        self.boxes = nn.ModuleList(nn.Conv2d(dim, 4 * bins, 1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(dim, classes, 1) for _ in range(2))
        self.register_buffer("weights", torch.arange(bins, dtype=torch.float32).view(1, bins, 1, 1))
        points = [
            torch.stack(torch.meshgrid(torch.arange(n) + 0.5, torch.arange(n) + 0.5, indexing="xy")).reshape(2, -1)
            for n in (16, 8)
        ]
        self.register_buffer("anchors", torch.cat(points, 1)[None])
        self.register_buffer("strides", torch.cat([torch.full((1, 256), 2.0), torch.full((1, 64), 4.0)], 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.cv1(self.stem(x)).chunk(2, 1)
        fine = self.cv2(torch.cat([a, b, self.inner(b)], 1))
        coarse = self.down(fine)
        once = self.pool(coarse)
        coarse = self.sppf(torch.cat([coarse, once, self.pool(once)], 1))
        fine = fine + F.interpolate(coarse, scale_factor=2, mode="nearest")
        both = [
            torch.cat([box(level), score(level)], 1).flatten(2)
            for level, box, score in zip((fine, coarse), self.boxes, self.scores, strict=True)
        ]
        box, score = torch.cat(both, 2).split((4 * self.bins, self.classes), 1)
        distances = box.view(box.shape[0], 4, self.bins, -1).transpose(2, 1).softmax(1)
        left_top, right_bottom = F.conv2d(distances, self.weights).view(box.shape[0], 4, -1).chunk(2, 1)
        low, high = self.anchors - left_top, self.anchors + right_bottom
        found = torch.cat([(low + high) / 2, high - low], 1) * self.strides
        return torch.cat([found, score.sigmoid()], 1)


class MobileVitBlock(nn.Module):
    """Unfold to patches by reshape and transpose, a transformer over them, fold back."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.local = conv_bn(3, dim, 3, act=nn.SiLU)
        self.norm, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.fuse = conv_bn(2 * dim, dim, 3, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        x = self.local(x)
        b, c, h, w = x.shape
        p = x.reshape(b * c * (h // 2), 2, w // 2, 2).transpose(1, 2)
        p = p.reshape(b, c, (h // 2) * (w // 2), 4).transpose(1, 3).reshape(b * 4, -1, c)
        q, k, v = self.qkv(self.norm(p)).reshape(b * 4, -1, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        p = p + self.out(y.transpose(1, 2).reshape(b * 4, -1, c))
        p = p + self.down(F.silu(self.up(self.norm2(p))))
        p = p.reshape(b, 4, (h // 2) * (w // 2), c).transpose(1, 3)
        p = p.reshape(b * c * (h // 2), w // 2, 2, 2).transpose(1, 2).reshape(b, c, h, w)
        return self.fuse(torch.cat([x, p], 1))


class SpeechEncoder(nn.Module):
    """wav2vec's feature extractor: convolutions of a signal, group norm, GELU, a positional convolution."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(1, dim, 10, stride=5, bias=False)
        self.group_norm = nn.GroupNorm(dim, dim)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, bias=False)
        self.conv3 = nn.Conv1d(dim, dim, 2, stride=2, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.project = nn.Linear(dim, 24)
        self.positions = nn.Conv1d(24, 24, 4, padding=2, groups=4)
        self.head = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.group_norm(self.conv1(x)))
        x = F.gelu(self.conv3(F.gelu(self.conv2(x))))
        x = self.project(self.norm(x.transpose(1, 2)))
        x = x + F.gelu(self.positions(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        return F.log_softmax(self.head(x), dim=-1)


class GruTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 12)
        self.gru = nn.GRU(12, 10, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(20, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.gru(self.embedding(ids))[0])


class ResizeUnet(nn.Module):
    """A U-Net with bilinear upsampling and a transposed convolution, reflected borders and instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.norm = nn.InstanceNorm2d(8, affine=True)
        self.down1, self.down2 = conv_bn(8, 12, 3, stride=2), conv_bn(12, 16, 3, stride=2)
        self.up = nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1)
        self.mix1, self.mix2 = conv_bn(24, 12), conv_bn(20, 8)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.norm(self.first(x)), 0.1)
        b = self.down1(a)
        c = self.mix1(torch.cat([F.relu(self.up(self.down2(b))), b], 1))
        c = F.interpolate(c, scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.last(self.mix2(torch.cat([c, a], 1))))


class SwinBlock(nn.Module):
    """Windows, shifted by a roll, with a table of relative positions and a mask."""

    def __init__(self, dim: int = 16, size: int = 8, window: int = 4) -> None:
        super().__init__()
        self.size, self.window, self.heads = size, window, 2
        self.patch = nn.Conv2d(3, dim, 4, stride=4)
        self.norm, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(4 * dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.merge = nn.Linear(4 * dim, 2 * dim, bias=False)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, self.heads) * 0.1)
        places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("apart", (apart[..., 0] * (2 * window - 1) + apart[..., 1]).reshape(-1))
        regions = torch.zeros(1, size, size, 1)
        cuts = (slice(0, -window), slice(-window, -2), slice(-2, None))
        for index, (rows, columns) in enumerate(itertools.product(cuts, cuts)):
            regions[:, rows, columns] = index
        of_windows = self.windows(regions).reshape(-1, window * window)
        self.register_buffer("mask", (of_windows[:, None] != of_windows[:, :, None]).float() * -100.0)

    def windows(self, x: Tensor) -> Tensor:
        n, w = self.size // self.window, self.window
        return x.view(-1, n, w, n, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        y = self.windows(torch.roll(self.norm(x), (-2, -2), (1, 2)))
        q, k, v = self.qkv(y).reshape(-1, y.shape[1], 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.apart].view(y.shape[1], y.shape[1], self.heads).permute(2, 0, 1)
        scores = scores + bias.unsqueeze(0)
        scores = scores.view(b, -1, self.heads, y.shape[1], y.shape[1]) + self.mask.unsqueeze(1).unsqueeze(0)
        y = (scores.view(-1, self.heads, y.shape[1], y.shape[1]).softmax(-1) @ v).transpose(1, 2).reshape(y.shape)
        n = self.size // self.window
        y = self.out(y).view(b, n, n, self.window, self.window, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (2, 2), (1, 2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.merge(self.norm3(x)).mean((1, 2))


class RotaryBlock(nn.Module):
    """A decoder of today: RMS norm in single steps, rotary positions, causal mask, gated SiLU."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.heads, self.dim = 2, dim
        self.embedding = nn.Embedding(40, dim)
        self.scale1, self.scale2 = (nn.Parameter(torch.rand(dim) + 0.5) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down, self.head = nn.Linear(2 * dim, dim, bias=False), nn.Linear(dim, 40, bias=False)
        half = dim // self.heads // 2
        angles = torch.arange(8)[:, None] / 100 ** (torch.arange(half) / half)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        b, t, c = x.shape
        y = self.norm(x, self.scale1)
        q, k, v = (part(y).view(b, t, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        future = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        scores = scores.masked_fill(future, float("-inf"))
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        y = self.norm(x, self.scale2)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.head(x)


class Activations(nn.Module):
    """Functions that exporters take apart, one behind the other, on images."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if index == 0 else 6, 6, 3, padding=1) for index in range(9))
        self.prelu = nn.PReLU(6)

    def forward(self, x: Tensor) -> Tensor:
        functions: tuple[Callable[[Tensor], Tensor], ...] = (
            F.mish,
            lambda y: y * F.relu6(y + 3) / 6,
            lambda y: 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
            lambda y: y * torch.sigmoid(1.702 * y),
            F.softplus,
            self.prelu,
            lambda y: F.hardsigmoid(y) * y,
            lambda y: y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0))),
            lambda y: F.elu(y, 0.7),
        )
        for conv, function in zip(self.convs, functions, strict=True):
            x = function(conv(x))
        return x


class Embedder(nn.Module):
    """A face or speaker embedding: batch norm of vectors, dropout, an L2 norm at the end, in both spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv_bn(3, 8, 3, stride=2)
        self.fc = nn.Linear(8, 12)
        self.bn = nn.BatchNorm1d(12)
        self.proxies = nn.Linear(12, 5, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.dropout(self.conv(x).mean((2, 3)), training=self.training)
        x = F.normalize(self.bn(self.fc(x)), dim=1)
        return x, F.linear(x / x.norm(dim=1, keepdim=True), F.normalize(self.proxies.weight))


class Padded(nn.Module):
    """Borders of every mode, steps in slices, tiles, and channels shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, padding_mode="replicate")
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2)
        self.conv3 = nn.Conv2d(8, 8, 1, groups=2)
        self.conv4 = nn.Conv2d(16, 8, 3, padding=1, padding_mode="circular")
        self.shift = nn.Parameter(torch.randn(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(F.pad(x, (0, 1, 0, 1))))
        b, c, h, w = x.shape
        y = self.conv3(x).view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        y = torch.where(y > 0, y, 0.1 * y) + self.shift.expand(b, c, h, w)
        x = self.conv4(torch.cat([x, y.clamp(min=-1.0)], 1))
        return F.pixel_shuffle(x, 2)[:, :, ::2, 1::2] + F.avg_pool2d(x, 3, 1, 1)[:, :2].repeat(1, 1, 1, 1)


@dataclass(frozen=True)
class UserNetwork:
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]


def _images(size: int, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(2, channels, size, size) + torch.randn(2, channels, 1, 1),)


def _built(network: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: lively(network())


USER_NETWORKS: dict[str, UserNetwork] = {
    "convnext": UserNetwork(_built(ConvNextBlock), _images(32)),
    "efficientnet": UserNetwork(_built(EfficientNetBlock), _images(16)),
    "yolov8": UserNetwork(_built(YoloV8Head), _images(32)),
    "mobilevit": UserNetwork(_built(MobileVitBlock), _images(8)),
    "speech": UserNetwork(_built(SpeechEncoder), lambda: (torch.randn(2, 1, 200),)),
    "gru_tagger": UserNetwork(_built(GruTagger), lambda: (torch.randint(0, 40, (2, 7)),)),
    "resize_unet": UserNetwork(_built(ResizeUnet), _images(16)),
    "swin": UserNetwork(_built(SwinBlock), _images(32)),
    "rotary": UserNetwork(_built(RotaryBlock), lambda: (torch.randint(0, 40, (2, 8)),)),
    "activations": UserNetwork(_built(Activations), _images(8)),
    "embedder": UserNetwork(_built(Embedder), _images(16)),
    "padded": UserNetwork(_built(Padded), _images(12)),
}
