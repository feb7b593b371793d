"""The float networks of the document, with quantization marked by stubs; parameters have torchvision's names."""

from torch import nn

from detent.graph import DeQuantStub, QuantStub
from detent.zoo import mobilenet_v2, resnet18

MODELS = {"resnet18": resnet18, "MobileNetV2": mobilenet_v2}


class ModelWithQuantStub(nn.Module):
    def __init__(self, model):
        super().__init__()
        self._model, self.quant_stub, self.dequant_stub = model, QuantStub(), DeQuantStub()

    def forward(self, imgs):
        return self.dequant_stub(self._model(self.quant_stub(imgs)))
