"""What a process keeps of models it has prepared, deployed and verified: nothing, but for what torch.fx keeps."""

from __future__ import annotations

import gc
import linecache
from pathlib import Path

import torch
from torch import nn

import detent

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def deploy_and_verify(folder: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    prepared = detent.prepare(net, (X,), backend="native", recipe="ptq")
    detent.calibrate(prepared, [X])
    detent.deploy(prepared, folder / "out").verify([X], latency=False)


def test_rounds_leave_nothing_behind(tmp_path: Path) -> None:
    """torch.fx keeps the source of every graph module that it compiles, 0.5 KB each here, for tracebacks: an entry of
    `linecache`, of three objects. Nothing else is left."""
    for _ in range(4):
        deploy_and_verify(tmp_path)
    gc.collect()
    before, entries, rounds = len(gc.get_objects()), len(linecache.cache), 6
    for _ in range(rounds):
        deploy_and_verify(tmp_path)
    gc.collect()
    compiled = len(linecache.cache) - entries
    assert compiled <= 6 * rounds
    assert len(gc.get_objects()) - before - 3 * compiled < 5 * rounds
