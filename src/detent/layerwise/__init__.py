"""Language models a layer at a time: memory for one layer and its activations, whatever the size of the model."""

from detent.layerwise.quantize import LayerwiseResult, quantize_checkpoint, why_not

__all__ = ["LayerwiseResult", "quantize_checkpoint", "why_not"]
