"""What the files of this folder share."""

from contextlib import contextmanager

import pytest


@pytest.fixture
def refuses():
    """`with refuses(SchemeError, asked=..., found=..., to_do=...)`: raised, and each part says that much."""

    @contextmanager
    def check(error, *, asked, found, to_do):
        with pytest.raises(error) as caught:
            yield
        assert type(caught.value) is error
        parts = {"asked": caught.value.asked, "found": caught.value.found, "to do": caught.value.to_do}
        for part, expected in zip(parts.values(), (asked, found, to_do), strict=True):
            assert expected in part
        assert str(caught.value) == "\n".join(f"{name}: {part}" for name, part in parts.items())

    return check
