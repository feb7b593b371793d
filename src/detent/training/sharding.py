"""FSDP2: shards the parameters of a prepared model over processes, for your own training loop."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from detent.errors import EngineError, NotCalibratedError
from detent.graph import PreparedModel, quantizers_of
from detent.graph.region import Region

__all__ = ["shard", "whole_state_dict"]


def shard(prepared: PreparedModel, **options: Any) -> None:
    """Share the parameters of a calibrated model out over the processes that have joined, in place.

    Each module that the model calls once is a unit of `torch.distributed.fsdp.fully_shard`, which takes `options`; the
    model itself is the unit of what is left. Scales, and what else quantizers learn, stay whole on every process: FSDP
    takes no parameter without axes. Their gradients are averaged as those of the others are.
    """
    if not dist.is_initialized():
        raise EngineError("shard a model", "no processes have joined", "start it with torchrun, and init_process_group")
    missing = sorted(quantizer.name for quantizer in quantizers_of(prepared) if not quantizer.calibrated)
    if missing:
        raise NotCalibratedError("shard a model", f"{missing[0]} has no scale", "calibrate it first, while it is whole")
    whole = {parameter for quantizer in quantizers_of(prepared) for parameter in quantizer.parameters()}
    for parameter in whole:
        parameter.register_post_accumulate_grad_hook(_average_gradient)  # type: ignore[no-untyped-call]
    for unit in _units(prepared, whole):
        fully_shard(unit, ignored_params=whole, **options)
    fully_shard(prepared, ignored_params=whole, **options)


def whole_state_dict(prepared: PreparedModel) -> dict[str, Tensor]:
    """The state dict of a model that is sharded, as one process would have it: on the first process, in the memory of
    its CPU; the others, which must call this too, get an empty one. Load it into the model prepared anew to deploy."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return cast("dict[str, Tensor]", get_model_state_dict(prepared, options=options))


def _average_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def _units(prepared: PreparedModel, whole: set[nn.Parameter]) -> list[nn.Module]:
    """Modules that the graphs call once and whose parameters belong to no other: FSDP gathers a unit when it is called,
    and allows a parameter in one unit only."""
    calls: set[nn.Module] = set()
    again: set[nn.Module] = set()
    for region in (module for module in prepared.modules() if isinstance(module, Region)):
        for runner in region.runners.values():
            targets = [str(node.target) for node in runner.graph.nodes if node.op == "call_module"]
            counted = Counter(region.get_submodule(target) for target in targets)
            calls.update(counted)
            again.update(module for module, count in counted.items() if count > 1)
    held = {module: set(module.parameters()) - whole for module in calls if not isinstance(module, Region)}
    owners = Counter(parameter for parameters in held.values() for parameter in parameters)
    return [
        module
        for module, parameters in held.items()
        if parameters and module not in again and all(owners[parameter] == 1 for parameter in parameters)
    ]
