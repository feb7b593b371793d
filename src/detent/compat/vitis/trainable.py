"""What `trainable_model` gives: a prepared model with the two lists of parameters that Vitis AI's has."""

from __future__ import annotations

from torch import nn

from detent.graph import PreparedModel, quantizers_of

__all__ = ["TrainableModel"]


class TrainableModel(PreparedModel):
    """A prepared model whose parameters can be had in two groups, each for a learning rate of its own."""

    @classmethod
    def of(cls, prepared: PreparedModel) -> TrainableModel:
        """The same model: its parts are those of `prepared`, which is not to be used any more."""
        made = cls(
            prepared.untraced or prepared,
            plan=prepared.plan,
            backend=prepared.backend,
            recipe=prepared.recipe,
            example=prepared.example,
            float_names=prepared.float_names,
        )
        return made.train(prepared.training)

    def quantizer_parameters(self) -> list[nn.Parameter]:
        """The scales and thresholds that are learned; none where they follow statistics."""
        found = [one for quantizer in quantizers_of(self) for one in quantizer.parameters(recurse=False)]
        return list(dict.fromkeys(found))

    def non_quantizer_parameters(self) -> list[nn.Parameter]:
        """All other parameters: those of the network."""
        learned = set(self.quantizer_parameters())
        return [one for one in self.parameters() if one not in learned]
