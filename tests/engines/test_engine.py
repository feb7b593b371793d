"""What every engine says of itself."""

import pytest

from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_names_an_arithmetic_of_its_backends(name):
    """A backend may name another that the engine has kernels for: LiteRT's reference kernels for microcontrollers."""
    arithmetic = ENGINES[name].arithmetic
    assert arithmetic in ARITHMETICS
    assert arithmetic in {backend.arithmetic for backend in BACKENDS.values() if backend.engine == name}


def test_they_are_those_of_the_kernels_that_a_user_gets():
    assert (ENGINES["litert"].arithmetic, ENGINES["torch"].arithmetic) == ("xnnpack", "fbgemm")
