"""What holds for the Plan of every network on every backend."""

import pytest

from detent.backends import BACKENDS, plan
from detent.backends.view import views
from detent.errors import RecipeError
from detent.graph import KINDS, FloatTensor
from tests.backends.nets import DEFAULT, captured_model
from tests.models import MODELS

# Nothing in these has a rule there: linear layers on tvm, convolutions on academic_nlp, transposed ones on several.
EMPTY = {
    "tvm": {"lstm_tagger", "linear_bn", "conv_transpose_bn"},
    "academic_nlp": {"yolo_head", "unet", "conv_transpose_bn"},
    **dict.fromkeys(("onnxruntime", "ncnn", "mnn", "ppl_cuda", "nxp", "rknn", "metax"), {"conv_transpose_bn"}),
}


@pytest.mark.parametrize("network", MODELS)
def test_every_network_has_a_plan_on_every_backend(network):
    for backend in BACKENDS.values():
        # One capture for all: with batch norms left alone instead of merged, `academic` has more float tensors.
        captured = captured_model(network, 0)
        if network in EMPTY.get(backend.name, ()):
            with pytest.raises(RecipeError, match="nothing in it would be quantized"):
                plan(captured, backend, DEFAULT)
            continue
        found = plan(captured, backend, DEFAULT)
        each_tensor_is_in_it_once(found, captured, backend)
        what_is_shared_has_one_quantizer(found)
        what_is_off_a_grid_has_a_reason(found)
        tensors_that_carry_no_numbers_are_not_in_it(found, captured, backend)


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


def tensors_that_carry_no_numbers_are_not_in_it(found, captured, backend):
    for view in views(captured, backend.fusions):
        users = {user.name for node in view.graph.nodes for user in node.users}
        for entry in found.quantized:
            if entry.region == view.path:
                assert set(entry.users) <= users
