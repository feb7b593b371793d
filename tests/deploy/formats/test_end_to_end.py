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
from detent.backends import BACKENDS
from detent.deploy import Deployment, deployment_of
from detent.deploy.formats import FORMATS
from detent.deploy.formats.acl import read_acl
from detent.deploy.formats.ascend_record import read_records
from detent.deploy.formats.espdl import read_espdl
from detent.deploy.formats.nnie_gfpq import read_gfpq
from detent.deploy.formats.nxp_ranges import read_nxp
from detent.deploy.formats.onnx_qlinear import read_qlinear
from detent.deploy.formats.ppl_json import read_ppl
from detent.deploy.formats.ppq_json import read_ppq
from detent.deploy.formats.qualcomm_encodings import read_overrides
from detent.deploy.formats.rknn import read_rknn
from detent.deploy.formats.stpu_minmax import read_stpu
from detent.deploy.formats.tengine_scale import read_scales
from detent.deploy.formats.tensorrt_ranges import read_dynamic_ranges
from detent.deploy.formats.vitis_quant_info import read_quant_info
from tests.models import MODELS

Files = Mapping[str, bytes]

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
    "ppl_json": lambda files: read_ppl(files["ppl_quantization.json"]).tensors,
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
    if name in FORMATS
]


@pytest.fixture(scope="module")
def deployed() -> Callable[[str], Deployment]:
    made: dict[str, Deployment] = {}

    def get(backend: str) -> Deployment:
        if backend not in made:
            torch.manual_seed(0)
            entry = MODELS["residual_cnn"]
            inputs = entry.inputs()
            prepared = detent.prepare(entry.build().eval(), inputs, backend=backend)
            detent.calibrate(prepared, [inputs])
            made[backend] = deployment_of(prepared)
        return made[backend]

    return get


@pytest.mark.parametrize(("backend", "name"), CASES, ids=lambda value: value)
def test_what_is_written_speaks_of_the_network(deployed, backend, name):
    made = deployed(backend)
    files = FORMATS[name](made)
    for file, content in files.items():
        if file.endswith(".onnx"):
            onnx.checker.check_model(onnx.load_model_from_string(content))
    known = {tensor.name for tensor in made.model.graph.initializer}
    known |= {one for node in made.model.graph.node for one in (node.name, *node.input, *node.output)}
    found = list(NAMES[name](files))
    assert found
    assert set(found) <= known


def test_every_activation_of_the_plan_is_in_a_table_by_tensor(deployed):
    made = deployed("tensorrt")
    ranges = read_dynamic_ranges(FORMATS["tensorrt_ranges"](made)["tensorrt_ranges.json"])
    assert {tensor.tensor for tensor in made.activations} <= set(ranges)


def test_the_qlinear_network_computes_what_the_fused_qdq_network_does(deployed):
    made = deployed("tvm")
    content = FORMATS["onnx_qlinear"](made)["qlinear.onnx"]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    inputs = {made.model.graph.input[0].name: MODELS["residual_cnn"].inputs()[0].numpy()}
    results = [
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        for model in (content, made.model.SerializeToString())
    ]
    np.testing.assert_array_equal(*results)
