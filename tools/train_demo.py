"""Trains the network of `detent demo` and writes its weights and images into the package.

The data is Fashion-MNIST (MIT license), as the Debian package `dataset-fashion-mnist` installs it:

    python tools/train_demo.py --data /usr/share/datasets/fashion-mnist
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from detent.demo import DemoNet, normalized

TARGET = Path(__file__).resolve().parents[1] / "src" / "detent" / "demo"
CALIBRATION, TEST = 256, 1000


def idx(path: Path) -> np.ndarray:
    """An array in the idx format, compressed or not."""
    packed = path.with_name(path.name + ".gz")
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def moved(images: torch.Tensor) -> torch.Tensor:
    """Each image mirrored or not, and shifted by up to two pixels: both look like other clothes of the kind."""
    mirrored = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    padded = F.pad(mirrored, (2, 2, 2, 2), value=float(normalized(np.zeros(1, np.uint8))))
    y, x = (int(offset) for offset in torch.randint(0, 5, (2,)))
    return padded[:, :, y : y + 28, x : x + 28]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    torch.manual_seed(0)
    train, test = (normalized(idx(options.data / f"{part}-images-idx3-ubyte")) for part in ("train", "t10k"))
    train_labels, test_labels = (
        torch.from_numpy(idx(options.data / f"{part}-labels-idx1-ubyte").astype(np.int64)) for part in ("train", "t10k")
    )
    net = DemoNet()
    steps = options.epochs * (len(train) // 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
    start = time.time()
    for epoch in range(options.epochs):
        net.train()
        for chosen in torch.randperm(len(train))[: len(train) // 128 * 128].split(128):
            loss = F.cross_entropy(net(moved(train[chosen])), train_labels[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.no_grad():
            right = torch.cat([net(part).argmax(1) for part in test.split(1000)]) == test_labels
        print(f"epoch {epoch + 1}: test {100 * right.float().mean():.2f} %, {time.time() - start:.0f} s", flush=True)
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, TARGET / "weights.safetensors")
    images = idx(options.data / "train-images-idx3-ubyte"), idx(options.data / "t10k-images-idx3-ubyte")
    np.savez_compressed(
        TARGET / "images.npz",
        calibration=images[0][:CALIBRATION],
        calibration_labels=train_labels[:CALIBRATION].numpy().astype(np.uint8),
        test=images[1][:TEST],
        test_labels=test_labels[:TEST].numpy().astype(np.uint8),
    )


if __name__ == "__main__":
    main()
