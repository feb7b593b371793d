"""Quantization aware training by a Vitis config: train, then deploy.

    python main.py --mode=train --model_name=resnet18 --pretrained=resnet18.pth --data_dir=imagenet \
        --config_file=configs/int_pof2_tqt.json
    python main.py --mode=deploy --model_name=resnet18 --qat_ckpt=qat.pth --data_dir=imagenet \
        --config_file=configs/int_pof2_tqt.json

`--data_dir` is a folder of .npz files with the arrays `imgs` and `labels`. Without it, made-up pictures show that
all of it runs.
"""

import argparse
from pathlib import Path

import torch
from network import FULL, TINY, ModelWithQuantStub
from torch.nn.functional import cross_entropy

from detent.compat.vitis import QatProcessor
from detent.data import Folder
from detent.training import parameter_groups


class Images:
    """Batches of pictures and labels: from .npz files, or made up."""

    def __init__(self, options):
        self.options = options

    def __iter__(self):
        options = self.options
        shape = ("batch", 3, options.image_size, options.image_size)
        if options.data_dir:
            for pictures, labels in Folder(options.data_dir, {"imgs": shape}, batch_size=options.batch_size):
                yield torch.from_numpy(pictures), torch.from_numpy(labels)
            return
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            labels = torch.randint(options.classes, (options.batch_size,), generator=generator)
            noise = torch.randn(options.batch_size, *shape[1:], generator=generator)
            yield 0.3 * noise + labels.reshape(-1, 1, 1, 1) / options.classes, labels  # brighter from class to class


def train(model, loader, options):
    groups = parameter_groups(model, lr=options.weight_lr, scale_lr=options.quantizer_lr)
    optimizer = torch.optim.Adam(groups)
    model.train()
    for epoch in range(options.epochs):
        for pictures, labels in loader:
            loss = cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {accuracy(model, loader):.4f}")


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = torch.cat([model(pictures).argmax(1) == labels for pictures, labels in loader])
    model.train()
    return right.float().mean().item()


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("train", "deploy"), required=True)
    parser.add_argument("--model_name", choices=tuple(FULL), default="resnet18")
    parser.add_argument("--pretrained", help="float weights")
    parser.add_argument("--qat_ckpt", default="qat.pth", help="weights and scales: written by train, read by deploy")
    parser.add_argument("--config_file", help="a Vitis config; int8 TQT for a DPU without one")
    parser.add_argument("--data_dir")
    parser.add_argument("--output_dir", default="qat_result")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=24)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--weight_lr", type=float, default=1e-5)
    parser.add_argument("--quantizer_lr", type=float, default=1e-2)
    parser.add_argument("--tiny", action="store_true", help="a few layers of the network, to try it out")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    network = (TINY if options.tiny else FULL)[options.model_name](options.classes)
    if options.pretrained:
        network.load_state_dict(torch.load(options.pretrained, weights_only=True))
    model = ModelWithQuantStub(network).eval()
    loader = Images(options)
    inputs = next(iter(loader))[0]

    qat_processor = QatProcessor(model, inputs, config_file=options.config_file)
    quantized_model = qat_processor.trainable_model()
    if options.mode == "train":
        train(quantized_model, loader, options)
        torch.save(quantized_model.state_dict(), options.qat_ckpt)
        return
    quantized_model.load_state_dict(torch.load(options.qat_ckpt, weights_only=True))
    deployable = qat_processor.to_deployable(quantized_model, Path(options.output_dir) / "deployable")
    print(f"accuracy simulated {accuracy(quantized_model, loader):.4f}, deployed {accuracy(deployable, loader):.4f}")
    qat_processor.export_onnx_model(options.output_dir)
    if qat_processor.config.target_device == "DPU":
        qat_processor.export_xmodel(Path(options.output_dir) / "xmodel")


if __name__ == "__main__":
    main()
