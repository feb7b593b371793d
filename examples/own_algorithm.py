"""An algorithm of your own: a function, registered, named in a recipe. Run: python examples/own_algorithm.py"""

import torch

import detent
from detent.algorithms import Algorithm, Change, Report, all_layers, record
from detent.numerics import QParams
from detent.recipes import Recipe


def shrink_scales(prepared, batches, *, least: float = 0.7, tries: int = 31) -> Report:  # noqa: ARG001
    """Clips the largest weights of a layer where that brings the others closer to their float values."""
    changes, skipped = [], {}
    for layer in all_layers(prepared):
        if layer.quantizer is None:
            skipped[layer.name] = "its weight is float"
            continue
        now = layer.quantizer.qparams()
        start = QParams(now.scale.clone(), now.zero_point.clone())  # `initialize` writes into the tensors of `now`
        errors = {}
        for factor in torch.linspace(1, least, tries).tolist():
            layer.quantizer.initialize(QParams(start.scale * factor, start.zero_point))
            errors[factor] = float((layer.quantized_weight() - layer.weight.detach()).square().sum())
        best = min(errors, key=errors.get)
        layer.quantizer.initialize(QParams(start.scale * best, start.zero_point))
        changes.append(Change(place=layer.name, before=errors[1.0], after=errors[best], kept=True))
    report = Report(algorithm="shrink_scales", metric="error of weights", changes=tuple(changes), skipped=skipped)
    return record(prepared, report)


detent.algorithms.register("shrink_scales", Algorithm(shrink_scales, "after calibration", "scales that clip"))

if __name__ == "__main__":
    layer = torch.nn.Linear(16, 1, bias=False)
    layer.weight.data = torch.tensor([[1.2] + [0.3] * 15])
    x = torch.ones(1, 16)
    rule = {"match": {"name": "0"}, "weight": {"bits": 3, "granularity": "per_tensor"}}
    recipe = Recipe.from_dict({"name": "mine", "rules": [rule], "algorithms": [{"name": "shrink_scales"}]})
    prepared = detent.prepare(torch.nn.Sequential(layer), (x,), backend="academic", recipe=recipe)
    detent.calibrate(prepared, [x])
    print(prepared.algorithm_notes[0])
