"""One thread, one seed, and the three sentences of an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from detent.errors import DetentError


@pytest.fixture(autouse=True)
def one_thread_and_one_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def refuses() -> Callable[..., AbstractContextManager[None]]:
    """The error, with words that each of its sentences must hold."""

    @contextmanager
    def check(error: type[DetentError], *, asked: str = "", found: str = "", to_do: str = "") -> Iterator[None]:
        with pytest.raises(error) as caught:
            yield
        raised = caught.value
        assert asked in raised.asked
        assert found in raised.found
        assert to_do in raised.to_do

    return check
