"""Int8 against float32 latency of ResNet-18 in each engine that is installed.

    python benchmarks/latency.py            [onnxruntime openvino litert ncnn torch_x86] [--json]
    python benchmarks/latency.py --peer     [onnxruntime openvino]
    .venv-mnn/bin/python benchmarks/latency.py mnn      (MNN has an environment and a process of its own)

1x3x224x224, one thread, the same engine for both, in turns of three runs behind one that does not count; fastest of 60
runs, and medians. Run it alone. How far integers are ahead of floats depends on the processor; which of two files is
faster depends on it less. So `--peer` measures, in the same process and in the same way, the file that onnxruntime's
quantize_static makes of the same network.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import detent
from detent.rewrites import float_model
from detent.targets.base.latency import Latency
from detent.targets.base.latency import compare as compare_latency
from detent.targets.engines import ENGINES
from tests.models import resnet18

Inputs = Mapping[str, Any]
REPEATS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=["onnxruntime", "openvino", "litert", "ncnn", "torch_x86"])
    parser.add_argument("--peer", action="store_true", help="measure quantize_static's file too, where it can be run")
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON")
    asked = parser.parse_args()
    ratios: dict[str, float] = {}

    def tell(what: str, found: Latency) -> None:
        ratios[what] = round(found.ratio, 3)
        if not asked.json:
            print(f"{what}: {found}", flush=True)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = resnet18().eval(), torch.randn(1, 3, 224, 224)
    for backend in asked.backends:
        with tempfile.TemporaryDirectory() as folder:
            prepared = detent.prepare(model, (x,), backend=backend)
            detent.calibrate(prepared, [x])
            artifact = detent.deploy(prepared, f"{folder}/deployed")
            engine = ENGINES[artifact.manifest["engine"]]
            if engine.version() is None:
                print(f"{backend}: not installed", file=sys.stderr)
                continue
            inputs = {next(iter(artifact.graph.inputs)): x.numpy()}
            plain = engine.load(artifact, as_float=True)
            tell(backend, compare_latency(engine.fastest(artifact), plain, inputs, repeats=REPEATS))
            if asked.peer and backend in RUNNERS:
                path = statically_quantized(float_model(artifact.model), inputs, Path(folder))
                peer = Runner(RUNNERS[backend](path))
                tell(f"{backend}, quantize_static", compare_latency(peer, plain, inputs, repeats=REPEATS))
    if asked.json:
        print(json.dumps(ratios, indent=2))


# --- the other file ------------------------------------------------------------------------------------------


def statically_quantized(network: onnx.ModelProto, inputs: Inputs, folder: Path) -> Path:
    """As its users write it: QDQ, u8 activations, s8 weights with a scale for each channel."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Once(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = [dict(inputs)]

        def get_next(self) -> dict[str, Any] | None:
            return self._left.pop() if self._left else None

    given, ready, made = (folder / name for name in ("float.onnx", "ready.onnx", "quantized.onnx"))
    onnx.save(network, given)
    quant_pre_process(str(given), str(ready))
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(str(ready), str(made), Once(), per_channel=True, **types)
    return made


def in_onnxruntime(path: Path) -> Callable[[Inputs], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))


def in_openvino(path: Path) -> Callable[[Inputs], object]:
    from openvino import Core

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "PERFORMANCE_HINT": "LATENCY"}
    core = Core()
    network = core.read_model(str(path))
    network.reshape([1, 3, 224, 224])
    request = core.compile_model(network, "CPU", options).create_infer_request()
    return lambda inputs: request.infer(dict(inputs), share_inputs=True)


RUNNERS = {"onnxruntime": in_onnxruntime, "openvino": in_openvino}


class Runner:
    """What `compare_latency` asks of an engine."""

    def __init__(self, run: Callable[[Inputs], object]):
        self.run = run


if __name__ == "__main__":
    main()
