from contextlib import contextmanager

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_one_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def refuses():
    """All three sentences of an error."""

    @contextmanager
    def check(error, asked, found, to_do):
        with pytest.raises(error) as caught:
            yield
        raised = caught.value
        assert (raised.asked, raised.found, raised.to_do) == (asked, found, to_do)

    return check
