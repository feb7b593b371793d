"""Mixed precision: which steps compute in half precision, and what is kept out of it.

| name | forward and backward | gradients |
|---|---|---|
| "32" | float32 | as they are |
| "bf16" | bfloat16 where torch's autocast has it | as they are |
| "16" | float16 where torch's autocast has it | of a scaled loss, so that small ones stay |

With "16" a step whose gradients overflow is left out. Parameters, scales, optimizer state and averages are float32 in
all of them. Quantizers compute in float32 and round their result once. Ranges are measured, and models validated, in
float32: that is how they are deployed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from detent.errors import EngineError, RecipeError
from detent.graph import FoldedBatchNorm
from detent.processes import python_command

__all__ = ["Precision", "PrecisionName"]

PrecisionName = Literal["32", "bf16", "16"]

_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16}
# Strategies that divide by the statistics of the batch: in half precision these would be off by a part in 256.
_WHOLE = (2, 3)
_CHOSEN = "ONEDNN_MAX_CPU_ISA"  # what torch's kernels may use, if somebody has said
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.{dtype}); torch.nn.functional.linear(a, a)"


class Precision:
    """The precision of a training step; the scale of the loss is its only state."""

    def __init__(self, name: PrecisionName = "32", device: torch.device = torch.device("cpu")):
        if name not in get_args(PrecisionName):
            raise RecipeError(
                f"precision {name!r}", f"not one of {', '.join(get_args(PrecisionName))}", "use one of these"
            )
        self.name, self.device = name, device
        self._dtype = _DTYPES.get(name)
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "16")
        if self._dtype is not None and device.type == "cpu":
            _refuse_broken_kernels(self._dtype)

    @contextmanager
    def forward(self, prepared: nn.Module) -> Iterator[None]:
        """The block in which `prepared`, or its wrapper, is called."""
        if self._dtype is None:
            yield
            return
        whole = [m for m in prepared.modules() if isinstance(m, FoldedBatchNorm) and m.strategy in _WHOLE]
        before = [module.in_float32 for module in whole]
        for module in whole:
            module.in_float32 = True
        try:
            with torch.autocast(self.device.type, self._dtype):
                yield
        finally:
            for module, in_float32 in zip(whole, before, strict=True):
                module.in_float32 = in_float32

    def step(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """The backward pass and the optimizer's step."""
        optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse the state of another precision, because training would not continue as before."""
        if state["name"] != self.name:
            raise RecipeError(
                f"resume in precision {self.name!r}",
                f"the checkpoint was trained in {state['name']!r}",
                f"say precision: {state['name']}, or start anew from its weights",
            )
        self._scaler.load_state_dict(state["scaler"])


def _refuse_broken_kernels(dtype: torch.dtype) -> None:
    """Try it in another process first: on some virtual machines whose CPU reports AMX, it kills the process."""
    if _CHOSEN in os.environ or not _names_amx():
        return
    probe = _PROBE.format(dtype=str(dtype).removeprefix("torch."))
    done = subprocess.run(python_command(probe), capture_output=True)
    if done.returncode < 0:
        raise EngineError(
            f"train in {dtype} on this CPU",
            f"torch's kernels for it end the process by signal {-done.returncode}",
            f"start Python with {_CHOSEN}=AVX512_CORE_FP16 in its environment, or use precision 32",
        )


def _names_amx() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.is_file() and "amx_tile" in cpu.read_text()
