"""MMRazor's example, LSQ on OpenVINO, on the network its config names: ResNet-18 on CIFAR-10.

    python benchmarks/lsq_openvino.py                      # some minutes on one core
    python benchmarks/lsq_openvino.py --width 0.25 --train 640 --test 200

A float ResNet-18 (3x3 first convolution, no pooling) is trained for a short while, then by the document's config with
learned scales; the deployed model runs in OpenVINO. What is compared is the accuracy on test images of the simulation
and of the engine, image by image. How accurate so short a training is says nothing; that both agree does.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from detent.compat.mmrazor import MODELS, Config, Runner
from detent.targets.engines import ENGINES
from detent.training.datasets import cifar10
from detent.zoo import resnet18

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("DETENT_DATA", ROOT.parent / "shared" / "data"))

CONFIG = """
resnet = dict(type='ResNet18', width={width})
float_ckpt = {checkpoint!r}
global_qconfig = dict(
    w_observer=dict(type='mmrazor.LSQPerChannelObserver'),
    a_observer=dict(type='mmrazor.LSQObserver'),
    w_fake_quant=dict(type='mmrazor.LearnableFakeQuantize'),
    a_fake_quant=dict(type='mmrazor.LearnableFakeQuantize'),
    w_qscheme=dict(
        qdtype='qint8', bit=8, is_symmetry=True, is_symmetric_range=True),
    a_qscheme=dict(qdtype='quint8', bit=8, is_symmetry=True),
)
model = dict(
    type='mmrazor.MMArchitectureQuant',
    architecture=resnet,
    float_checkpoint=float_ckpt,
    input_shapes=(2, 3, 32, 32),
    quantizer=dict(
        type='mmrazor.OpenVINOQuantizer',
        global_qconfig=global_qconfig,
        tracer=dict(type='mmrazor.CustomTracer')))
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.001, momentum=0.9, weight_decay=0.0001))
train_cfg = dict(type='mmrazor.LSQEpochBasedLoop', max_epochs=1)
"""


@MODELS.register_module()
class ResNet18(nn.Module):
    """In the form of OpenMMLab's classifiers."""

    def __init__(self, width: float):
        super().__init__()
        self.net = resnet18(classes=10, width=width, small_images=True)

    def forward(self, inputs: Tensor, data_samples: Any = None, mode: str = "tensor") -> Any:
        score = self.net(inputs)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(score, data_samples)}
        return score if mode == "tensor" else score.softmax(1)


def train_float(model: ResNet18, samples: Any, epochs: int) -> None:
    batches = torch.utils.data.DataLoader(samples, batch_size=32, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
    for _ in range(epochs):
        for images, labels in batches:
            loss = model(images, labels, mode="loss")["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--train", type=int, default=4000, help="images of the float training; half of them for LSQ")
    parser.add_argument("--float-epochs", type=int, default=2)
    parser.add_argument("--test", type=int, default=500)
    options = parser.parse_args()
    if not (DATA / "cifar10").is_dir():
        print(f"no {DATA / 'cifar10'}: set DETENT_DATA", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    train, test = (cifar10(DATA / "cifar10", split) for split in ("train", "test"))
    images, labels = zip(*(test[index] for index in range(options.test)), strict=True)
    pictures, answers = torch.stack(images), torch.stack(labels)
    with tempfile.TemporaryDirectory() as folder:
        plain = ResNet18(options.width)
        train_float(plain, Subset(train, range(options.train)), options.float_epochs)
        torch.save(plain.state_dict(), Path(folder) / "float.pth")
        config = Path(folder) / "lsq_openvino_resnet18.py"
        config.write_text(CONFIG.format(width=options.width, checkpoint=str(Path(folder) / "float.pth")))
        loader = {"dataset": Subset(train, range(options.train // 2)), "batch_size": 32, "sampler": {"shuffle": True}}
        val = {"dataset": Subset(test, range(32)), "batch_size": 32}
        runner = Runner.from_cfg(Config.fromfile(config), train_dataloader=loader, val_dataloader=val)
        runner.train()
        model = runner.model.eval()
        artifact = model.deploy(Path(folder) / "out")
        engine = ENGINES["openvino"].load(artifact)
        with torch.no_grad():
            simulated = torch.cat([model(part).argmax(1) for part in pictures.split(50)])
            floats = torch.cat([plain.eval()(part).argmax(1) for part in pictures.split(50)])
        ran = [next(iter(engine.run({"inputs": part.numpy()}).values())) for part in pictures.split(50)]
        deployed = torch.cat([torch.from_numpy(part).argmax(1) for part in ran])
    print(f"ResNet-18, width {options.width:g}, {options.test} test images of CIFAR-10, top-1 in percent:")
    for name, found in (("float, before LSQ", floats), ("LSQ simulated", simulated), ("LSQ in OpenVINO", deployed)):
        print(f"  {name:18} {100 * float((found == answers).float().mean()):.1f}")
    print(f"  answers that differ between the two: {int((simulated != deployed).sum())} of {options.test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
