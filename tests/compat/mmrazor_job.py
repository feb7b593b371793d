"""An epoch of MMRazor's LSQ loop on as many processes as `torchrun` started; the first one writes the state.

torchrun --nproc-per-node 2 tests/compat/mmrazor_job.py FILE
"""

from __future__ import annotations

import os
import sys

import torch
from safetensors.torch import save_file

from detent.compat.mmrazor import MMArchitectureQuant, Runner
from tests.compat.mmrazor_nets import ImageClassifier, Pictures

LSQ = {"type": "LearnableFakeQuantize"}
QCONFIG = {
    "w_observer": {"type": "LSQPerChannelObserver"},
    "a_observer": {"type": "LSQObserver"},
    "w_fake_quant": LSQ,
    "a_fake_quant": LSQ,
    "w_qscheme": {"qdtype": "qint8", "bit": 8, "is_symmetry": True, "is_symmetric_range": True},
    "a_qscheme": {"qdtype": "quint8", "bit": 8, "is_symmetry": True},
}
HEAD = "tests.compat.mmrazor_nets.ClsHead"


def trained(batch_size: int) -> dict[str, torch.Tensor]:
    """The state after six batches, which are of `batch_size` on each process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tracer = {"skipped_methods": [f"{HEAD}._get_loss", f"{HEAD}._get_predictions"]}
    quantizer = {"type": "OpenVINOQuantizer", "global_qconfig": QCONFIG, "tracer": tracer}
    preprocessor = {"type": "ClsDataPreprocessor", "mean": [110.0] * 3, "std": [40.0] * 3}
    model = MMArchitectureQuant(ImageClassifier(), quantizer, data_preprocessor=preprocessor, input_shapes=(2, 3, 8, 8))
    data = {"dataset": Pictures(), "batch_size": batch_size, "sampler": {"shuffle": True}}
    optimizer = {"optimizer": {"type": "SGD", "lr": 5e-4, "momentum": 0.9}}
    runner = Runner(model, train_dataloader=data, val_dataloader=data, optim_wrapper=optimizer, device="cpu")
    runner.train_cfg = {"type": "LSQEpochBasedLoop", "max_epochs": 1}
    runner.train()
    return {name: value.contiguous() for name, value in model.prepared.state_dict().items()}


if __name__ == "__main__":
    state = trained(4)
    if os.environ["RANK"] == "0":
        save_file(state, sys.argv[1])
