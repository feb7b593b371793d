"""The block in which batch norms compute over all ranks leaves nothing behind, and puts back what was there."""

import pytest
import torch
from torch import nn

from detent.training.synced_norms import synced_batch_norms


def test_blocks_nest_and_restore():
    norm = nn.BatchNorm2d(3).eval()
    x = torch.randn(2, 3, 4, 4)
    plain = norm(x)
    with synced_batch_norms(norm, 2):
        outer = vars(norm)["forward"]
        with pytest.raises(ZeroDivisionError), synced_batch_norms(norm, 2):
            raise ZeroDivisionError
        assert vars(norm)["forward"] is outer
        assert torch.equal(norm(x), plain)
    assert "forward" not in vars(norm)


def test_one_rank_is_left_alone():
    norm = nn.BatchNorm2d(3)
    with synced_batch_norms(norm, 1):
        assert "forward" not in vars(norm)
