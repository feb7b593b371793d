"""An observer of your own: subclass, register, use its name. Run: python examples/own_observer.py"""

import torch

import detent
from detent.numerics import IntGrid, QParams, Scheme, choose_qparams
from detent.observers import OBSERVERS, BatchByBatch


class MedianOfBatches(BatchByBatch):
    """The median over batches of each batch's ends: one odd batch changes nothing."""

    def _after(self, ends, batch):
        """What is known after a batch, which in a distributed job is put together from the parts of all ranks."""
        return [*(ends or []), torch.stack([batch.low, batch.high])]

    def _qparams(self, low, high) -> QParams:
        bottom, top = torch.stack(self._known()).median(0).values
        return choose_qparams(bottom, top, self.scheme)


detent.observers.register("median_of_batches", MedianOfBatches)

if __name__ == "__main__":
    observer = OBSERVERS["median_of_batches"](Scheme(IntGrid(8)), name="conv1.output")
    for factor in (1.0, 1.1, 50.0):
        observer.observe(factor * torch.linspace(-1, 1, 101))
    print(f"scale {observer.qparams().scale.item():.6f}")
