"""Algorithms that write codes to weights that another module shares."""

import pytest
import torch
from torch import nn

import detent
from detent.algorithms import autoround, gptq


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.words(ids)))


@pytest.mark.parametrize("algorithm", [gptq, autoround])
def test_the_table_of_words_stays_as_it_is(algorithm):
    torch.manual_seed(0)
    net = Tied().eval()
    batches = [torch.randint(0, 16, (8, 4)) for _ in range(4)]
    prepared = detent.prepare(net, (batches[0],), backend="compressed_tensors", recipe="w4g32")
    detent.calibrate(prepared, batches)
    report = algorithm(prepared, batches)
    assert [change.kept for change in report.changes] == [True]
    assert report.outputs.kept
    assert torch.equal(prepared.words.weight, net.words.weight)
    assert not torch.equal(prepared.head.parametrizations.weight.original, net.words.weight)
