"""Every built-in recipe on every backend: it prepares, calibrates and trains, or is refused before anything runs.

By default on as many as it takes for each recipe to meet every kind of scheme; `make test-full` runs them all, and
`pytest -s -m '' tests/planning/test_matrix.py` prints the table.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from detent.calibrating import calibrate
from detent.errors import DetentError
from detent.numerics import PerGroup
from detent.preparing import prepare
from detent.recipes import BUILTIN
from detent.targets import BACKENDS
from tests.planning.nets import Net

# What each recipe cannot have, and of whom it is asked.
AFFINE_ONLY = {"torch_x86", "snpe", "qnn", "ppl_w8a16", "ppl_dsp", "rknn", "native"}
POWERS_OF_TWO = {"vitis", "nxp", "fpga", "esp_dl"}
WITHOUT_GROUPS = {name for name, backend in BACKENDS.items() if PerGroup not in backend.weight.granularities}
REFUSED = {
    "percentile": {"nnie"},
    "kl": {"nnie", "ppl_w8a16"},  # logarithms; 16 bits
    "adaround": {"nnie"},
    "brecq": {"nnie"},
    "qdrop": {"nnie"},
    "lsq": {"nnie"},
    "lsq_plus": {"nnie"},
    "tqt": {"nnie"} | AFFINE_ONLY,
    "pact": {"nnie", "ppl_w8a16", "ppl_dsp"},  # pairs with symmetric DoReFa weights
    "dorefa": {"nnie"} | AFFINE_ONLY,
    "dsq": {"nnie"},
    "qil": {"nnie", "openvino_llm"} | AFFINE_ONLY | POWERS_OF_TWO,
    **dict.fromkeys(("apot", "seq"), set(BACKENDS) - {"academic", "academic_nlp"}),
    **dict.fromkeys(("w4g32", "w4g128", "w4g32_gptq", "w4g32_hqq", "w4g32_awq", "w4g32_autoround"), WITHOUT_GROUPS),
    "w8": WITHOUT_GROUPS | {"executorch_8da4w"},  # 8 bits by channel
    **dict.fromkeys(("q8_0", "q6_k", "q4_k_m", "q4_0"), set(BACKENDS) - {"gguf"}),
    **dict.fromkeys(("nf4", "mxfp4", "mxfp8", "nvfp4"), set(BACKENDS) - {"academic", "academic_nlp"}),
    "fp8": set(BACKENDS) - {"academic", "academic_nlp", "compressed_tensors"},
}


@pytest.fixture(scope="module")
def table():
    answers = {}
    yield answers
    width = max(map(len, BUILTIN)) + 2
    print("\n\n" + "\n".join(f"{'':{width}}{' ' * place}{name}" for place, name in enumerate(BACKENDS)))
    for recipe in BUILTIN:
        print(f"{recipe:{width}}{''.join(answers.get((recipe, backend), '?') for backend in BACKENDS)}")
    print(f"{'':{width}}. trains   x refused")


WIDTH = 128  # divides into the groups of every recipe


def small_net():
    return Net(
        lambda n, x: n.fc(F.relu(n.depthwise(y := n.relu(n.bn(n.conv(x)))) + y).mean((2, 3))),
        conv=nn.Conv2d(3, WIDTH, 3, padding=1, bias=False),
        bn=nn.BatchNorm2d(WIDTH),
        relu=nn.ReLU(),
        depthwise=nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH),
        fc=nn.Linear(WIDTH, 4),
    )


LEARN_BY_STEPS = ("adaround", "brecq", "qdrop")


def quick(recipe):
    """The recipe, with a handful of steps for what learns by them."""
    named = BUILTIN[recipe].recipe
    if recipe not in LEARN_BY_STEPS:
        return named
    return named.replace(algorithms=[{"name": recipe, "options": {"steps": 4}}])


def goals(recipe, backend, **_):
    """Each recipe and each backend, and each recipe refused, if there is a backend without it."""
    refused = backend in REFUSED.get(recipe, ())
    return [(recipe, "refused")] if refused else [recipe, backend]


@pytest.mark.slow
@pytest.mark.pairwise(goals=goals)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recipe", BUILTIN)
def test_it_trains_or_is_refused(recipe, backend, table):
    net, images, labels = small_net(), torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    if backend in REFUSED.get(recipe, ()):
        table[recipe, backend] = "x"
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        with pytest.raises(DetentError) as refusal:
            prepare(net, (images,), backend=backend, recipe=quick(recipe))
        assert repr(backend) in refusal.value.asked
        assert refusal.value.found
        assert refusal.value.to_do
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        return
    prepared = prepare(net, (images,), backend=backend, recipe=quick(recipe))
    calibrate(prepared, [images])
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.01)
    for _ in range(2):
        loss = F.cross_entropy(prepared(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    table[recipe, backend] = "."
