"""What holds for the Plan of every network on every backend."""

import copy

import pytest
import torch

from detent.graph import KINDS, FloatTensor, insert, observing, quantizers_of
from detent.planning import plan
from detent.planning.view import views
from detent.targets import BACKENDS
from tests.graph.nets import made, tensors
from tests.models import LARGE, MODELS, SMALL
from tests.planning.nets import DEFAULT, captured_model

# All of these is float there: linear layers on tvm, convolutions on academic_nlp, transposed ones on several; what has
# no linear layer or table that divides into groups of 32.
IN_GROUPS = {
    *("yolo_head", "unet", "lstm_tagger", "residual_cnn", "mobile_cnn", "control_flow", "reused_module"),
    *("functional_ops", "dict_io", "dataclass_io", "conv1d_3d", "conv_transpose_bn", "linear_bn", "several_modes"),
}
EMPTY = {
    "tvm": {"lstm_tagger", "linear_bn", "conv_transpose_bn"},
    **dict.fromkeys(
        ("onnxruntime_genai", "onnxruntime_genai_a8", "openvino_llm", "gguf", "compressed_tensors", "executorch_8da4w"),
        IN_GROUPS,
    ),
    "academic_nlp": {"yolo_head", "unet", "conv_transpose_bn"},
    **{name: {"conv_transpose_bn"} for name in ("ncnn", "mnn", "ppl_cuda", "nxp", "rknn", "metax")},
}

WHOLE = ("mobile_cnn", "residual_cnn", "transformer_block")  # these meet every backend by default
RUN = ("onnxruntime", "openvino", "litert", "ncnn", "academic")  # as far apart as they come, and quick to calibrate
OTHERS = tuple(name for name in BACKENDS if name not in RUN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "backends"),
    [
        *(pytest.param(name, tuple(BACKENDS) if name in WHOLE else RUN, id=name) for name in SMALL),
        *(pytest.param(name, RUN, id=name, marks=pytest.mark.full) for name in LARGE),
        *(
            pytest.param(name, OTHERS, id=f"{name}-others", marks=pytest.mark.full)
            for name in MODELS
            if name not in WHOLE
        ),
    ],
)
def test_every_network_has_a_plan_on_every_backend(network, backends):
    for backend in map(BACKENDS.__getitem__, backends):
        # One capture for all: with batch norms left alone instead of merged, `academic` has more float tensors.
        captured = captured_model(network, 0)
        if network in EMPTY.get(backend.name, ()):
            found = plan(captured, backend, DEFAULT)
            assert not found.quantized
            assert found.notes[0] == f"nothing is quantized: {backend.name} runs all of this network in float"
            what_is_off_a_grid_has_a_reason(found)
            continue
        found = plan(captured, backend, DEFAULT)
        assert found.quantized
        each_tensor_is_in_it_once(found, captured, backend)
        what_is_shared_has_one_quantizer(found)
        what_is_off_a_grid_has_a_reason(found)
        users_are_of_the_graph(found, captured, backend)
        it_can_be_carried_out(found, captured, inputs=made(network)[1] if backend.name in RUN else None)


def each_tensor_is_in_it_once(found, captured, backend):
    names = [entry.tensor for entry in found]
    assert len(names) == len(set(names))
    for view in views(captured, backend.fusions):
        for node in view.graph.nodes:
            stored = node.op != "output" and view.is_tensor(node) and not view.is_inside(node)
            assert stored == (view.tensor(node) in names), f"{backend.name}: {node}"
        for node, kind in view.kinds.items():
            if kind.weight and node.op == "call_module":
                assert f"{view.layer(node)}.weight" in names


def what_is_shared_has_one_quantizer(found):
    for entry in found.quantized:
        if entry.shares:
            root = found[entry.shares]
            assert root.shares is None
            assert (root.scheme, root.quantizer, root.observer) == (entry.scheme, entry.quantizer, entry.observer)
            # `insert` leaves out what only moves numbers: these must really come on a grid, for all users.
            assert not (entry.users and KINDS[entry.kind].moves)


def what_is_off_a_grid_has_a_reason(found):
    assert all(entry.reason for entry in found if isinstance(entry, FloatTensor))


def users_are_of_the_graph(found, captured, backend):
    for view in views(captured, backend.fusions):
        nodes = {node.name for node in view.graph.nodes}
        assert all(nodes.issuperset(entry.users) for entry in found.quantized if entry.region == view.path)


def it_can_be_carried_out(found, captured, inputs):
    """Inserted into a copy; with inputs, that copy is calibrated on them and run."""
    twin = copy.deepcopy(captured)
    insert(twin, found)
    if inputs is None:
        return
    with torch.no_grad():
        with observing(twin.module):
            twin.module(*inputs)
        assert all(quantizer.calibrated for quantizer in quantizers_of(twin.module))
        assert all(torch.isfinite(tensor).all() for tensor in tensors(twin.module(*inputs)))
