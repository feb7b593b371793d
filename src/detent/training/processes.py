"""The processes of a job, started by `torchrun`, or the single one."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from detent.errors import EngineError

__all__ = ["Processes", "joined_processes", "refuse_sharded"]

_KEEP_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the number of processes, and the device it computes on."""

    rank: int = 0
    count: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def parallel(self, model: nn.Module, *, some_unused: bool) -> nn.Module:
        """`model` with its gradients averaged over the processes; the model itself if there is only one process.

        Buffers are not broadcast: batch norms and moving ranges are reduced where they are computed, so they are
        already equal. `some_unused` says that a parameter has no part in the loss.
        """
        if self.count == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        # Newer releases have another word for it, and warn of the older one.
        known = inspect.signature(DistributedDataParallel).parameters
        kept: dict[str, Any] = {next(word for word in _KEEP_BUFFERS if word in known): False}
        return DistributedDataParallel(model, device_ids=ids, find_unused_parameters=some_unused, **kept)

    def total(self, values: Tensor) -> Tensor:
        """The sum of `values` over the processes, on each of them."""
        if self.count == 1:
            return values
        summed = values.clone()
        dist.all_reduce(summed)
        return summed

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any process, returned on each of them: if one must stop, all must."""
        return bool(self.total(torch.tensor(float(flag), device=self.device)) > 0)

    def wait(self) -> None:
        """Wait until all processes get here."""
        if self.count > 1:
            dist.barrier()


def refuse_sharded(model: nn.Module) -> None:
    """The loops keep whole parameters on every process; a model sharded by FSDP has none."""
    from torch.distributed.tensor import DTensor

    sharded = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    if sharded:
        raise EngineError(
            f"train a model whose parameters are sharded, {sharded[0]} and {len(sharded) - 1} others",
            "the loops keep whole parameters on every process and average gradients",
            "give the model as `detent.prepare` made it, or train the sharded one in a loop of your own"
            " (`detent.training.sharding`)",
        )


def _lost_another(error: BaseException | None) -> str | None:
    """The message of the communication library, if it raised this exception or one that caused it."""
    while error is not None:
        lines = [line for line in str(error).splitlines() if "/gloo/" in line]
        if lines or isinstance(error, dist.DistError):
            message = lines[0].rpartition("] ")[2] if lines else str(error)
            return message.partition(". ")[0]
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def joined_processes(device: str | None = None, *, timeout: timedelta | None = None) -> Iterator[Processes]:
    """The processes that `torchrun` started (nccl on GPUs, gloo on CPUs), joined inside the block; otherwise this one
    alone.

    `device` is "cpu" or "cuda"; by default a GPU is used if there is one. If a process ends, or does not respond for
    `timeout` (torch's default: 10 minutes on GPUs, 30 on CPUs), the others raise an EngineError.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EngineError("train on the device 'cuda'", "torch sees no GPU", "use device: cpu")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Processes(device=torch.device(kind))
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timeout)
    here = Processes(dist.get_rank(), dist.get_world_size(), place)
    try:
        yield here
    except Exception as error:
        message = _lost_another(error)
        if message is None:
            raise
        raise EngineError(
            f"train on {here.count} processes",
            f"process {here.rank} waited for another one in vain: {message}",
            "see why the other one ended; then start all of them again, and resume",
        ) from error
    finally:
        dist.destroy_process_group()
