"""One quantizer on ResNet-20 and CIFAR-10, in an environment that has it; benchmarks/peers.py starts this.

    python benchmarks/peer_runs.py NAME ROW.json [--images 2000] [--rounds 9]

Each tool quantizes to 8 bits with its own defaults, on the same 512 training images, and its file is run by the engine
that it is made for. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import torch
import torch.fx
from torch import Tensor, nn

from ptq_data import Task, load, training_images
from ptq_peers import write_onnx, write_static_file
from qat_step import saved_bytes, training_step
from timing import medians

CALIBRATION = 512
STEP = 64  # images of a training step
BATCH = 100  # images of a batch that is judged


class Clock:
    """CPU seconds of what is inside `with` blocks: quantizing and writing files, not importing."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


@dataclass(frozen=True)
class Made:
    """The network as the tool simulates it, as the engine `on` runs its file, and in training mode."""

    on: str
    file: Path
    engine: Callable[[Tensor], Any]
    simulated: Callable[[Tensor], Any] | None = None
    trainable: Callable[[], nn.Module] | None = None


def detent(task: Task, folder: Path, clock: Clock, *, target: str) -> Made:
    """`ptq` deployed; a step is one of `lsq`."""
    import detent
    from detent.targets.engines import ENGINES

    with clock:
        example = (task.calibration[0][:1],)
        prepared = detent.prepare(task.net, example, backend=target, recipe="ptq")
        detent.calibrate(prepared, task.calibration)
        artifact = detent.deploy(prepared, folder / "artifact")
    engine = ENGINES[artifact.manifest["engine"]].load(artifact)
    (name,) = artifact.graph.inputs

    def trainable() -> nn.Module:
        fresh = detent.prepare(copy.deepcopy(task.net), example, backend=target, recipe="lsq")
        detent.calibrate(fresh, task.calibration[:1])
        return fresh.train()

    files = [path for path in Path(artifact.folder).iterdir() if path.suffix in (".onnx", ".bin", ".tflite")]
    own = min(files, key=lambda path: (path.suffix == ".onnx", path.name))
    return Made(
        str(artifact.manifest["engine"]),
        own,
        lambda x: next(iter(engine.run({name: x.numpy()}).values())),
        prepared.eval(),
        trainable,
    )


def onnxruntime_static(task: Task, folder: Path, clock: Clock) -> Made:
    """`quantize_static`, QDQ, per channel. It has no simulation: the file with all optimizations off stands for it."""
    path = write_static_file(task, folder, per_channel=True, clock=clock)
    return Made("onnxruntime", path, _on_onnxruntime(path), _on_onnxruntime(path, optimized=False))


def nncf(task: Task, folder: Path, clock: Clock) -> Made:
    """`nncf.quantize` of the torch model with its default preset, converted to OpenVINO."""
    import nncf
    import openvino

    with clock:
        quantized = nncf.quantize(
            copy.deepcopy(task.net), nncf.Dataset(task.calibration), subset_size=len(task.calibration)
        ).eval()
        converted = openvino.convert_model(quantized, example_input=task.calibration[0][:2])
        openvino.save_model(converted, folder / "model.xml")
    return Made("openvino", folder / "model.bin", _on_openvino(folder / "model.xml"), quantized, quantized.train)


def torchao_pt2e(task: Task, folder: Path, clock: Clock) -> Made:
    """PT2E with the quantizer for Inductor on x86, exported to ONNX."""
    from torchao.quantization.pt2e import move_exported_model_to_train
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    def exported(net: nn.Module) -> nn.Module:
        shapes = ({0: torch.export.Dim("batch")},)
        return torch.export.export(net, (task.calibration[0][:2],), dynamic_shapes=shapes).module()

    def quantizer(*, training: bool) -> X86InductorQuantizer:
        return X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config(is_qat=training))

    with clock:
        prepared = prepare_pt2e(exported(task.net), quantizer(training=False))
        with torch.no_grad():
            for batch in task.calibration:
                prepared(batch)
        converted = convert_pt2e(prepared)
        write_onnx(converted, task, folder / "model.onnx")

    def trainable() -> nn.Module:
        fresh = prepare_qat_pt2e(exported(copy.deepcopy(task.net).train()), quantizer(training=True))
        move_exported_model_to_train(fresh)
        return fresh

    return Made("onnxruntime", folder / "model.onnx", _on_onnxruntime(folder / "model.onnx"), converted, trainable)


def brevitas(task: Task, folder: Path, clock: Clock) -> Made:
    """Batch norms merged, layers equalized and quantized one by one, biases corrected; exported as QCDQ. Its graph
    quantization does not know the slices of the shortcuts."""
    from brevitas.export import export_onnx_qcdq
    from brevitas.graph.calibrate import bias_correction_mode, calibration_mode
    from brevitas.graph.quantize import layerwise_quantize, preprocess_for_quantize

    with clock:
        ready = preprocess_for_quantize(
            _with_pooling_modules(task.net),
            trace_model=True,
            equalize_iters=20,
            equalize_merge_bias=True,
            merge_bn=True,
        )
        quantized = layerwise_quantize(ready)
        with torch.no_grad():
            for mode in (calibration_mode, bias_correction_mode):
                with mode(quantized):
                    for batch in task.calibration:
                        quantized(batch)
        quantized.eval()
        path = folder / "model.onnx"
        export_onnx_qcdq(
            quantized,
            args=task.calibration[0][:2],
            export_path=str(path),
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
    return Made("onnxruntime", path, _on_onnxruntime(path), quantized, quantized.train)


def _with_pooling_modules(net: nn.Module) -> nn.Module:
    """A copy with a pooling module for the mean over rows and columns: Brevitas 0.13.4 fails on such a mean."""
    graph = torch.fx.symbolic_trace(copy.deepcopy(net))
    graph.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for node in graph.graph.nodes:
        if node.op == "call_method" and node.target == "mean":
            node.op, node.target, node.args, node.kwargs = "call_module", "pool", node.args[:1], {}
    graph.recompile()
    return graph


def ai_edge_quantizer(task: Task, folder: Path, clock: Clock) -> Made:
    """`static_wi8_ai8` of the file that litert-torch converts. Its engine is the only one that runs it."""
    import litert_torch
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import quantizer, recipe

    images = torch.cat(task.calibration).split(1)
    with clock:
        litert_torch.convert(task.net, (images[0],)).export(str(folder / "float.tflite"))
        maker = quantizer.Quantizer(str(folder / "float.tflite"), recipe.static_wi8_ai8())
        signature = Interpreter(str(folder / "float.tflite")).get_signature_list()
        key, named = next(iter(signature.items()))
        samples = [{named["inputs"][0]: image.numpy()} for image in images]
        maker.quantize(maker.calibrate({key: samples})).export_model(str(folder / "model.tflite"))
    interpreter = Interpreter(str(folder / "model.tflite"), num_threads=1)
    interpreter.allocate_tensors()
    (given,), (answered,) = interpreter.get_input_details(), interpreter.get_output_details()

    def engine(x: Tensor) -> Tensor:
        """The file takes codes and gives codes."""
        answers = []
        for one in x.split(1):
            scale, zero = given["quantization"]
            codes = torch.round(one / scale + zero).clamp(-128, 127).to(torch.int8)
            interpreter.set_tensor(given["index"], codes.numpy())
            interpreter.invoke()
            scale, zero = answered["quantization"]
            answers.append((torch.from_numpy(interpreter.get_tensor(answered["index"])).float() - zero) * scale)
        return torch.cat(answers)

    return Made("litert", folder / "model.tflite", engine)


def modelopt(task: Task, folder: Path, clock: Clock) -> Made:
    """`mtq.quantize` with INT8_DEFAULT_CFG, exported by the TorchScript exporter."""
    import modelopt.torch.quantization as mtq

    def calibrate(net: nn.Module) -> None:
        for batch in task.calibration:
            net(batch)

    with clock:
        quantized = mtq.quantize(copy.deepcopy(task.net), mtq.INT8_DEFAULT_CFG, calibrate).eval()
        path = folder / "model.onnx"
        _export_script(quantized, task, path)
    return Made("onnxruntime", path, _on_onnxruntime(path), quantized, quantized.train)


def neural_compressor(task: Task, folder: Path, clock: Clock) -> Made:
    """Static quantization by PT2E with its default config. It trains no convolutional network."""
    from neural_compressor.torch.export import export
    from neural_compressor.torch.quantization import convert, get_default_static_config, prepare

    with clock:
        exported = export(
            task.net,
            example_inputs=(task.calibration[0][:2],),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
        prepared = prepare(exported, quant_config=get_default_static_config())
        with torch.no_grad():
            for batch in task.calibration:
                prepared(batch)
        converted = convert(prepared)
        write_onnx(converted, task, folder / "model.onnx")
    return Made("onnxruntime", folder / "model.onnx", _on_onnxruntime(folder / "model.onnx"), converted)


def quark(task: Task, folder: Path, clock: Clock) -> Made:
    """Eager mode, weights and activations of 8 bits, symmetric; the file has a fixed batch."""
    from quark.torch import ModelQuantizer, export_onnx
    from quark.torch.quantization.config.config import Int8PerChannelSpec, Int8PerTensorSpec, QConfig, QLayerConfig

    activations = Int8PerTensorSpec(
        observer_method="min_max", symmetric=True, scale_type="float", round_method="half_even", is_dynamic=False
    ).to_quantization_spec()
    weights = Int8PerChannelSpec(
        symmetric=True, scale_type="float", round_method="half_even", is_dynamic=False, ch_axis=0
    ).to_quantization_spec()
    config = QConfig(global_quant_config=QLayerConfig(input_tensors=activations, weight=weights))
    with clock:
        maker = ModelQuantizer(config)
        quantized = maker.quantize_model(copy.deepcopy(task.net), task.calibration)
        training = copy.deepcopy(quantized)
        frozen = maker.freeze(quantized).eval()
        export_onnx(frozen, folder, (torch.cat(task.calibration)[:BATCH],), opset_version=17)
    (path,) = folder.glob("*.onnx")
    return Made("onnxruntime", path, _on_onnxruntime(path), frozen, training.train)


def aimet(task: Task, folder: Path, clock: Clock) -> Made:
    """`QuantizationSimModel` with batch norms folded, 8 bits, exported as QDQ."""
    # It imports torchvision, whose Python code names operators that only its build for another torch would bring.
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import aimet_torch
    from aimet_torch.batch_norm_fold import fold_all_batch_norms
    from aimet_torch.quantsim import QuantizationSimModel

    example = task.calibration[0][:2]

    def calibrate(net: nn.Module) -> None:
        with torch.no_grad():
            for batch in task.calibration:
                net(batch)

    with clock:
        folded = copy.deepcopy(task.net)
        fold_all_batch_norms(folded, tuple(example.shape), example)
        simulation = QuantizationSimModel(folded, example, default_param_bw=8, default_output_bw=8)
        simulation.compute_encodings(calibrate)
        path = folder / "model.onnx"
        aimet_torch.onnx.export(
            simulation.model,
            (example,),
            str(path),
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
            dynamo=False,
        )
    return Made("onnxruntime", path, _on_onnxruntime(path), simulation.model, simulation.model.train)


RUNS: dict[str, Callable[[Task, Path, Clock], Made]] = {
    **{f"detent-{target}": partial(detent, target=target) for target in ("onnxruntime", "openvino", "litert")},
    "onnxruntime": onnxruntime_static,
    "nncf": nncf,
    "torchao": torchao_pt2e,
    "brevitas": brevitas,
    "ai-edge-quantizer": ai_edge_quantizer,
    "modelopt": modelopt,
    "neural-compressor": neural_compressor,
    "quark": quark,
    "aimet": aimet,
}


def _export_script(net: nn.Module, task: Task, path: Path) -> None:
    torch.onnx.export(
        net,
        (task.calibration[0][:2],),
        str(path),
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
        dynamo=False,
        opset_version=20,
    )


def _on_onnxruntime(path: str | Path, *, optimized: bool = True) -> Callable[[Tensor], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})[0]


def _on_openvino(path: Path) -> Callable[[Tensor], Any]:
    import openvino

    compiled = openvino.compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 1})
    return lambda x: compiled(x.numpy())[0]


def measure(name: str, *, images: int, rounds: int) -> dict[str, Any]:
    """A row: accuracies in percent, `agreement` the share of images that simulation and engine put into one class,
    `sqnr` of the engine's outputs against the simulated ones in dB."""
    torch.manual_seed(0)
    task = load("resnet20", calibration=CALIBRATION, images=images)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        forward = _forward_seconds(task)
        made = RUNS[name](task, Path(folder), clock)
        row: dict[str, Any] = {
            "engine": made.on,
            "seconds": clock.seconds,
            "forwards": clock.seconds / forward,
            "file_bytes": made.file.stat().st_size,
            "float": task.accuracy(task.predictions(task.net)),
        }
        engine = task.scores(made.engine)
        row["on_engine"] = task.accuracy(engine.argmax(1))
        if made.simulated is not None:
            simulated = task.scores(made.simulated)
            row["simulated"] = task.accuracy(simulated.argmax(1))
            row["agreement"] = 100 * float((simulated.argmax(1) == engine.argmax(1)).double().mean())
            noise = float((engine - simulated).double().square().mean())
            row["sqnr"] = 10 * math.log10(float(simulated.double().square().mean()) / noise) if noise else None
        if made.trainable is not None:
            row |= _training(task.net, made.trainable(), rounds)
    return row


def _forward_seconds(task: Task) -> float:
    def run() -> None:
        with torch.no_grad():
            for batch in task.calibration:
                task.net(batch)

    return medians({"float": run}, 3, warm_up=1, clock=time.process_time)["float"]


def _training(net: nn.Module, quantized: nn.Module, rounds: int) -> dict[str, float]:
    """The time of a step and the bytes kept for backward, as multiples of the float network's."""
    x, y = training_images(STEP)
    plain = copy.deepcopy(net).train()
    saved = saved_bytes(quantized, x) / saved_bytes(plain, x)
    found = medians(
        {"float": training_step(plain, x, y), "quantized": training_step(quantized, x, y)},
        rounds,
        warm_up=2,
        clock=time.process_time,
    )
    return {"step": found["quantized"] / found["float"], "saved": saved}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("row", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    row = measure(arguments.name, images=arguments.images, rounds=arguments.rounds)
    row["torch"] = metadata.version("torch")
    arguments.row.write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
