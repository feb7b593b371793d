"""What all tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from detent.backends import BACKENDS
from detent.deploy import FILES
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS

# The same examples on every run: a suite that fails once in fifty runs tells nobody anything.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


@pytest.fixture(autouse=True, scope="module")
def _what_a_module_registers_goes_with_it() -> Iterator[None]:
    """Some tests compare the tables with what a fresh process has."""
    tables = [table._table for table in (BACKENDS, OBSERVERS, QUANTIZERS)] + [FILES]
    before = [dict(table) for table in tables]
    yield
    for table, held in zip(tables, before, strict=True):
        table.clear()
        table.update(held)
