"""The Plan of three small networks on every backend, as a table to read: plans/<backend>/<network>.txt.

DETENT_UPDATE_PLANS=1 writes them anew; look at the difference before you keep it.
"""

import os
from pathlib import Path

import pytest

from detent.backends import BACKENDS, plan
from tests.backends.nets import DEFAULT, captured_model

PLANS = Path(__file__).parent / "plans"
NETWORKS = ("residual_cnn", "mobile_cnn", "transformer_block")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_plan_is_the_one_on_file(backend, network):
    target = BACKENDS[backend]
    found = f"{plan(captured_model(network, target.batch_norm), target, DEFAULT)}\n"
    file = PLANS / backend / f"{network}.txt"
    if os.environ.get("DETENT_UPDATE_PLANS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)
    assert file.read_text() == found


def test_no_plan_is_left_of_a_backend_or_network_that_is_gone():
    on_file = {(file.parent.name, file.stem) for file in PLANS.rglob("*.txt")}
    assert on_file == {(backend, network) for backend in BACKENDS for network in NETWORKS}
