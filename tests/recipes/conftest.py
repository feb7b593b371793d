"""What the files of this folder share."""

from contextlib import contextmanager

import pytest


@pytest.fixture
def refuses():
    """`with refuses(RecipeError, asked, found, to_do)`: raised, and each part says exactly that."""

    @contextmanager
    def check(error, asked, found, to_do):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the very type is compared below
            yield
        raised = caught.value
        assert (type(raised), getattr(raised, "asked", raised)) == (error, asked)
        assert (raised.found, raised.to_do) == (found, to_do)

    return check
