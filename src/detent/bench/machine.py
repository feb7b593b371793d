"""Versions, CPU and threads, which may explain why two results differ."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from detent.cpus import here

__all__ = ["machine_facts"]

_PACKAGES = ("detent", "torch", "numpy", "onnx", "onnxruntime", "openvino", "ai-edge-litert", "ncnn")


def machine_facts() -> dict[str, object]:
    """Plain JSON: package versions, the CPU and its kind, the number of threads."""
    return {**_lasting_facts(), "threads": torch.get_num_threads()}


@cache
def _lasting_facts() -> dict[str, object]:
    """Facts that do not change while a process runs, cached because a worker asks for them with every cell."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "cpu": _cpu_name(),
        "cpu_kind": here().name,
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
