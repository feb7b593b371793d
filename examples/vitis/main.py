"""Quantization aware training by a Vitis config: train, then deploy.

    python main.py --mode=train --model_name=resnet18 --pretrained=resnet18.pth --data_dir=imagenet \
        --config_file=configs/int_pof2_tqt.json
    python main.py --mode=deploy --model_name=resnet18 --qat_ckpt=qat.pth --data_dir=imagenet \
        --config_file=configs/int_pof2_tqt.json

`--pretrained` is a state dict in torchvision's names (.pth or .safetensors). `--data_dir` has the folders `train` and
`val`, with a folder of pictures for each class. Without it, made-up pictures show that all of it runs.
"""

import argparse
import sys
from pathlib import Path

import torch
from network import MODELS, ModelWithQuantStub
from torch.nn.functional import cross_entropy

from detent.compat.vitis import QatProcessor
from detent.data import Preprocessing
from detent.errors import DetentError
from detent.training import Batches, parameter_groups
from detent.training.datasets import ImageFolder, made_up
from detent.zoo import load_pretrained


def loader(split, options):
    size = options.image_size
    if options.data_dir:
        preprocessing = Preprocessing(resize=size * 256 // 224, crop=(size, size))
        samples = ImageFolder(Path(options.data_dir), split, preprocessing)
    else:
        count = 4 * options.batch_size
        samples = made_up(split, count=count, size=size, channels=3, classes=min(size, options.classes))
    return Batches(samples, options.batch_size, shuffle=split == "train", limit=options.batches)


def train(model, train_loader, val_loader, options):
    groups = parameter_groups(model, lr=options.weight_lr, scale_lr=options.quantizer_lr, weight_decay=1e-4)
    optimizer = torch.optim.Adam(groups)
    for epoch in range(options.epochs):
        train_loader.epoch = epoch
        model.train()
        for pictures, labels in train_loader:
            loss = cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {accuracy(model, val_loader):.4f}", flush=True)


@torch.no_grad()
def accuracy(model, batches):
    model.eval()
    right = torch.cat([model(pictures).argmax(1) == labels for pictures, labels in batches])
    return right.float().mean().item()


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("train", "deploy"), required=True)
    parser.add_argument("--model_name", choices=tuple(MODELS), default="resnet18")
    parser.add_argument("--pretrained", help="float weights, which training begins with")
    parser.add_argument("--qat_ckpt", default="qat.pth", help="weights and scales: written by train, read by deploy")
    parser.add_argument("--config_file", help="a Vitis config; int8 TQT for a DPU without one")
    parser.add_argument("--data_dir")
    parser.add_argument("--output_dir", default="qat_result")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=24)
    parser.add_argument("--batches", type=int, help="at most so many of each epoch and of each evaluation")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--width", type=float, default=1.0, help="below 1 the network has fewer channels")
    parser.add_argument("--weight_lr", type=float, default=1e-5)
    parser.add_argument("--quantizer_lr", type=float, default=1e-5)
    return parser.parse_args(arguments)


def run(options):
    torch.manual_seed(0)
    network = MODELS[options.model_name](classes=options.classes, width=options.width)
    if options.pretrained:
        load_pretrained(network, options.pretrained)
    train_loader, val_loader = loader("train", options), loader("test", options)
    inputs = next(iter(train_loader))[0]

    qat_processor = QatProcessor(ModelWithQuantStub(network).eval(), inputs, config_file=options.config_file)
    quantized_model = qat_processor.trainable_model()
    if options.mode == "train":
        train(quantized_model, train_loader, val_loader, options)
        torch.save(quantized_model.state_dict(), options.qat_ckpt)
        return
    quantized_model.load_state_dict(torch.load(options.qat_ckpt, weights_only=True))
    output = Path(options.output_dir)
    deployable = qat_processor.to_deployable(quantized_model, output / "deployable")
    simulated, deployed = accuracy(quantized_model, val_loader), accuracy(deployable, val_loader)
    print(f"accuracy simulated {simulated:.4f}, deployed {deployed:.4f}")
    qat_processor.export_onnx_model(output)
    if qat_processor.config.target_device == "DPU":
        qat_processor.export_xmodel(output / "xmodel")


def main(arguments=None):
    """0, or 2 with one message for a mistake of the user's."""
    try:
        run(options_of(arguments))
    except DetentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
