"""From a PyTorch model to every parameter file of every backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import detent
from detent.deployment import deployment_of
from detent.targets import BACKENDS
from detent.targets.acl import read_acl
from detent.targets.ascend import read_records
from detent.targets.base import Deployment
from detent.targets.base.ppq_json import read_ppq
from detent.targets.esp_dl.file import read_espdl
from detent.targets.formats import find_format
from detent.targets.nnie import read_gfpq
from detent.targets.nxp import read_nxp
from detent.targets.openppl import read_ppl
from detent.targets.qualcomm.encodings import read_overrides
from detent.targets.rknn import read_rknn
from detent.targets.stpu import read_stpu
from detent.targets.tengine import read_scales
from detent.targets.tensorrt import read_dynamic_ranges
from detent.targets.tvm.qlinear import read_qlinear
from detent.targets.vitis.quant_info import read_quant_info
from tests.models import MODELS

Files = Mapping[str, bytes]

PPL_FILE = "ppl_quantization.json"

NAMES: dict[str, Callable[[Files], Iterable[str]]] = {
    "acl": lambda files: read_acl(files["acl_tensors.json"]),
    "ascend_record": lambda files: read_records(files["ascend_record.txt"]),
    "espdl": lambda files: [value.name for value in read_espdl(files["model.espdl"]).outputs],
    "mqbench_json": lambda files: json.loads(files["clip_ranges.json"])["vitis"],
    "nnie_gfpq": lambda files: read_gfpq(files["nnie_gfpq.json"]).magnitudes,
    "nxp_ranges": lambda files: read_nxp(files["nxp.onnx"]),
    "onnx_qlinear": lambda files: [
        name for name, kind in read_qlinear(files["qlinear.onnx"]).operations.items() if kind.startswith("QLinear")
    ],
    **dict.fromkeys(("ppl_dsp_json", "ppl_json", "ppl_w8a16_json"), lambda files: read_ppl(files[PPL_FILE]).tensors),
    "ppq_json": lambda files: read_ppq(files["ppq_config.json"]).configs,
    "qualcomm_encodings": lambda files: read_overrides(files["quantization_overrides_1.0.0.json"]).activations,
    "rknn": lambda files: read_rknn(files["rknn.quantization.cfg"]),
    "stpu_minmax": lambda files: [
        n for n in read_stpu(files["stpu_minmax.json"]) if not n.endswith(("_weights", "_bias"))
    ],
    "tengine_scale": lambda files: read_scales(files["tengine.scale"]),
    "tensorrt_ranges": lambda files: read_dynamic_ranges(files["tensorrt_ranges.json"]),
    "vitis_quant_info": lambda files: read_quant_info(files["quant_info.json"]).outputs,
}
"""How to get the names of tensors or operations that a format speaks of."""

CASES = [
    (backend, name)
    for backend in BACKENDS
    for name in dict.fromkeys(
        (*BACKENDS[backend].files, *{"acl": ["acl"], "rknn": ["rknn"], "metax": ["ppq_json"]}.get(backend, []))
    )
    if name in NAMES
]


@pytest.fixture(scope="module")
def deployed() -> Callable[..., Deployment]:
    made: dict[tuple[str, str], Deployment] = {}

    def get(backend: str, network: str = "residual_cnn") -> Deployment:
        if (backend, network) not in made:
            torch.manual_seed(0)
            entry = MODELS[network]
            inputs = entry.inputs()
            prepared = detent.prepare(entry.build().eval(), inputs, backend=backend)
            detent.calibrate(prepared, [inputs])
            made[backend, network] = deployment_of(prepared)
        return made[backend, network]

    return get


@pytest.mark.parametrize(("backend", "name"), CASES, ids=lambda value: value)
def test_what_is_written_speaks_of_the_network(deployed, backend, name):
    made = deployed(backend)
    files = find_format(name).write(made).files
    for file, content in files.items():
        if file.endswith(".onnx"):
            onnx.checker.check_model(onnx.load_model_from_string(content))
    known = {tensor.name for tensor in made.model.graph.initializer}
    known |= {one for node in made.model.graph.node for one in (node.name, *node.input, *node.output)}
    found = list(NAMES[name](files))
    assert found
    assert set(found) <= known


# Linear layers on three dimensions are MatMul and Add, with the matrix the other way round; what is taken out of a
# dict is a tensor that only the file has a name for.
@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("network", ["transformer_block", "dict_io"])
@pytest.mark.parametrize(("backend", "name"), [case for case in CASES if case[1] not in ("acl", "espdl")])
def test_names_are_those_of_the_float_network_beside_the_file(deployed, backend, name, network):
    files = find_format(name).write(deployed(backend, network)).files
    content = next((files[file] for file in ("float.onnx", "nxp.onnx") if file in files), None)
    model = deployed(backend, network).model if content is None else onnx.load_model_from_string(content)
    known = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    known |= {one for node in model.graph.node for one in (node.name, *node.output)}
    assert set(NAMES[name](files)) <= known


class PassedOn(torch.nn.Module):
    """A grid that moves on over a reshape and a dropout, and a constant that is quantized."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(2)
        self.drop, self.fc = torch.nn.Dropout(), torch.nn.Linear(32, 4)
        self.position = torch.nn.Parameter(torch.randn(1, 8, 2, 2))

    def forward(self, x):
        return self.fc(self.drop(torch.flatten(self.pool(self.conv(x)) + self.position, 1)))


@pytest.mark.parametrize(("backend", "name"), [("ppl_cuda", "ppl_json"), ("qnn", "qualcomm_encodings")])
def test_grids_that_move_on_and_constants_have_names_of_the_float_network(backend, name):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = detent.prepare(PassedOn().eval(), (x,), backend=backend)
    detent.calibrate(prepared, [x])
    made = deployment_of(prepared)
    graph = onnx.load_model_from_string(find_format(name).write(made).files["float.onnx"]).graph
    known = {value.name for value in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
    assert {tensor.tensor for tensor in made.tensors} <= known
    assert {tensor.tensor: tensor.users for tensor in made.tensors}["position"] == ("add",)


def test_each_tensor_is_said_to_be_read_by_nodes_that_read_it(deployed):
    made = deployed("tensorrt", "transformer_block")
    users = {tensor.tensor: tensor.users for tensor in made.tensors}
    assert users["norm1"] == ("query/MatMul", "key/MatMul", "value/MatMul")
    assert users["query.weight"] == ("query/MatMul",)
    assert {tensor.tensor: tensor.op for tensor in made.tensors}["query.weight"] == "query/MatMul"


def test_the_products_of_a_transformer_have_records_with_the_scales_of_their_weights(deployed):
    made = deployed("ascend", "transformer_block")
    records = read_records(find_format("ascend_record").write(made).files["ascend_record.txt"])
    scales = {tensor.tensor: tensor.scale for tensor in made.tensors}
    assert set(records) == {f"{layer}/MatMul" for layer in ("query", "key", "value", "out", "fc1", "fc2")}
    assert np.float32(records["query/MatMul"].scale_d) == scales["norm1"]
    assert np.float32(records["query/MatMul"].scale_w[0]) == scales["query.weight"]


def test_products_of_a_transformer_are_dispatched_to_the_target(deployed):
    configs = read_ppq(find_format("ppq_json").write(deployed("fpga", "transformer_block")).files["ppq_config.json"])
    assert configs.platforms["query/MatMul"] == "FPGA_INT8"
    assert set(configs.configs["query/MatMul"]) == {"norm1", "query.weight"}


def test_every_activation_of_the_plan_is_in_a_table_by_tensor(deployed):
    made = deployed("tensorrt")
    ranges = read_dynamic_ranges(find_format("tensorrt_ranges").write(made).files["tensorrt_ranges.json"])
    assert {tensor.tensor for tensor in made.activations} <= set(ranges)


def test_the_qlinear_network_computes_what_the_fused_qdq_network_does(deployed):
    made = deployed("tvm")
    content = find_format("onnx_qlinear").write(made).files["qlinear.onnx"]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    inputs = {made.model.graph.input[0].name: MODELS["residual_cnn"].inputs()[0].numpy()}
    results = [
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        for model in (content, made.model.SerializeToString())
    ]
    np.testing.assert_array_equal(*results)
