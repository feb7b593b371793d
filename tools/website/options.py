"""What the options of observers, quantizers and algorithms mean: a line for each, for the tables of the site."""

from __future__ import annotations

ABOUT = {
    "absorb": "whether high biases before a ReLU move into the next layer",
    "act_order": "whether columns with large inputs are quantized first",
    "alpha": "how soft the staircase is, at most 0.5",
    "axis": "the axis of the classes",
    "batch": "samples per step",
    "bins": "bins of the histogram, a power of two; by default as many as the grid needs",
    "bound": "the range of the published method, 1; by default the calibrated range",
    "candidates": "how many exponents are compared",
    "convs": "whether convolutions are quantized too",
    "damping": "added to the diagonal of the second moments, relative to its mean",
    "drop": "the share of inputs that stay float while a block is learned",
    "gradient_scale": "what the gradient of the scale is multiplied by",
    "grid": "how many strengths are compared",
    "high": "the upper end of the range",
    "learn_alpha": "whether `alpha` is trained",
    "learn_gamma": "whether the exponent g is trained, for weights",
    "low": "the lower end of the range",
    "method": "`empirical` measures with data, `analytic` uses the statistics of batch norms",
    "momentum": "the weight of the past in the moving average",
    "most": "how many samples are kept",
    "norm": "the power of the error that is summed",
    "normalize": "whether weights are standardized first, as in the paper",
    "penalty": "the strength of the penalty that makes roundings hard",
    "percentile": "the share of values inside the range, in percent",
    "probability": "the share of elements that are quantized in training",
    "rate": "the learning rate; of roundings, where scales have a rate of their own",
    "relu6": "whether layers are equalized through ReLU6 too, which becomes a ReLU",
    "rescale": "whether outputs keep the range of the weights; false is the paper's [-1, 1]",
    "rounds": "how often all pairs of layers are visited",
    "scale_rate": "the learning rate of scales",
    "seed": "of the random numbers",
    "sigmas": "the range in standard deviations, on each side of the mean",
    "steps": "learning steps for each layer or block",
    "warm_up": "the share of the steps before the penalty begins",
    "weight_rate": "the learning rate of weights and biases",
}

OF = {
    ("smoothquant", "alpha"): "how much of the outliers moves into the weights, 0 to 1; by default searched per layer"
}
"""Where a name means something else in one place: (observer, quantizer or algorithm; option)."""


def about(owner: str, option: str) -> str:
    return OF.get((owner, option)) or ABOUT[option]
