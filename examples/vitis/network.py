"""ResNet and MobileNetV2, with quantization marked by stubs. Parameters have torchvision's names under `_model.`."""

from torch import nn

from detent.compat.vitis import DeQuantStub, QuantStub


def conv_bn(inputs, outputs, kernel, stride=1, groups=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    def __init__(self, inputs, planes, stride):
        super().__init__()
        self.conv1, self.bn1 = conv_bn(inputs, planes, 3, stride)
        self.conv2, self.bn2 = conv_bn(planes, planes, 3)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential(*conv_bn(inputs, planes, 1, stride)) if stride > 1 or inputs != planes else None

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes=1000, width=64, depths=(2, 2, 2, 2)):
        super().__init__()
        self.conv1, self.bn1 = conv_bn(3, width, 7, 2)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        inputs = width
        for index, depth in enumerate(depths):
            planes = width << index
            strides = [1 if index == 0 else 2] + [1] * (depth - 1)
            blocks = [BasicBlock(inputs if i == 0 else planes, planes, stride) for i, stride in enumerate(strides)]
            self.add_module(f"layer{index + 1}", nn.Sequential(*blocks))
            inputs = planes
        self.depths, self.avgpool, self.fc = depths, nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for index in range(len(self.depths)):
            x = self.get_submodule(f"layer{index + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        hidden = inputs * expand
        first = [nn.Sequential(*conv_bn(inputs, hidden, 1), nn.ReLU6())] if expand > 1 else []
        depthwise = nn.Sequential(*conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6())
        self.conv = nn.Sequential(*first, depthwise, *conv_bn(hidden, outputs, 1))
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.conv(x) if self.skips else self.conv(x)


STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class MobileNetV2(nn.Module):
    def __init__(self, classes=1000, stages=STAGES, first=32, last=1280):
        super().__init__()
        features, inputs = [nn.Sequential(*conv_bn(3, first, 3, 2), nn.ReLU6())], first
        for expand, outputs, depth, stride in stages:
            for index in range(depth):
                features.append(InvertedResidual(inputs, outputs, stride if index == 0 else 1, expand))
                inputs = outputs
        features.append(nn.Sequential(*conv_bn(inputs, last, 1), nn.ReLU6()))
        self.features, self.avgpool = nn.Sequential(*features), nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class ModelWithQuantStub(nn.Module):
    def __init__(self, model):
        super().__init__()
        self._model, self.quant_stub, self.dequant_stub = model, QuantStub(), DeQuantStub()

    def forward(self, imgs):
        return self.dequant_stub(self._model(self.quant_stub(imgs)))


TINY = {
    "resnet18": lambda classes: ResNet18(classes, width=8, depths=(1, 1)),
    "MobileNetV2": lambda classes: MobileNetV2(classes, stages=((1, 8, 1, 1), (2, 12, 2, 2)), first=8, last=32),
}
FULL = {"resnet18": ResNet18, "MobileNetV2": MobileNetV2}
