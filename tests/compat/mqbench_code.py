"""The classes of MQBench's two documents, as the documents have them; what these leave out is filled in."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import Parameter

from detent.compat.mqbench import LinearQuantizer_process, ModelQuantizer, ObserverBase, QuantizeBase

# ---- Add a backend: the quantization function ----


def f_1(x, s, z, n, p):
    return torch.clamp(torch.round(x / s) + z, n, p)


def f_2_to_6(x, q, s, z, n, p, grad_outputs):
    v = torch.round(x / s) + z
    inside = (v >= n) & (v <= p)
    grad_s = (grad_outputs * torch.where(inside, q - z - x / s, q - z)).sum().reshape(s.shape)
    return grad_outputs * inside, grad_s, torch.zeros_like(z), None, None


class ExampleQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s, z, n, p):
        q = f_1(x, s, z, n, p)
        ctx.save_for_backward(x, q, s, z)  # of tensors only: n and p are numbers
        ctx.n, ctx.p = n, p
        qx = (q - z) * s
        return qx  # noqa: RET504

    @staticmethod
    def backward(ctx, grad_outputs):
        x, q, s, z = ctx.saved_tensors
        grad_x, grad_s, grad_z, grad_n, grad_p = f_2_to_6(x, q, s, z, ctx.n, ctx.p, grad_outputs)
        return grad_x, grad_s, grad_z, grad_n, grad_p

    @staticmethod
    def symbolic(g, x, scale, zero_point, quant_min, quant_max):
        return g.op("::ExampleQuant", x, scale, zero_point, quant_min_i=quant_min, quant_max_i=quant_max)


class ExampleFakeQuantize(QuantizeBase):
    def __init__(self, observer, scale=1.0, zero_point=0.0, use_grad_scaling=True, **observer_kwargs):
        super(ExampleFakeQuantize, self).__init__(observer, **observer_kwargs)  # noqa: UP008
        self.scale = Parameter(torch.tensor([scale]))
        self.zero_point = Parameter(torch.tensor([zero_point]))

    def forward(self, X):  # noqa: N803
        # Learnable fake quantize have to zero_point.float() to make it learnable.
        if self.observer_enabled[0] == 1:
            self.activation_post_process(X.detach())
            _scale, _zero_point = self.activation_post_process.calculate_qparams()
            self.scale.data.copy_(_scale)
            self.zero_point.data.copy_(_zero_point.float())
        if self.fake_quant_enabled[0] == 1:
            X = ExampleQuant.apply(X, self.scale, self.zero_point, self.quant_min, self.quant_max)  # noqa: N806
        return X


# ---- Observer ----


class ExampleObserver(ObserverBase):
    def __init__(self, dtype=torch.quint8, qscheme=torch.per_tensor_affine,
                reduce_range=False, quant_min=None, quant_max=None, ch_axis=-1, pot_scale=False,
                factory_kwargs=None):  # fmt: skip
        super(ExampleObserver, self).__init__(dtype, qscheme, reduce_range, quant_min, quant_max,  # noqa: UP008
                                            ch_axis, pot_scale, factory_kwargs)  # fmt: skip

    def forward(self, x_orig):
        r"""Records the running minimum and maximum of ``x``."""
        x = x_orig.to(self.min_val.dtype)
        self.collected = self.g(x)
        return x

    def g(self, x):
        """Nine tenths of the greatest value, so that the test can tell it from every observer of our own."""
        return 0.9 * x.abs().max() / self.quant_max, torch.tensor(0), self.quant_min, self.quant_max

    def calculate_qparams(self):
        s, z, n, q = self.collected
        return s, z, n, q


# ---- Add quantization nodes ----


class ExampleMod(nn.Module):
    """A module of the user's own, of which Detent knows nothing."""

    def forward(self, x):
        return x * torch.sigmoid(x)


def example_func(x):
    """A function of the user's own."""
    return torch.tanh(x) - 0.5 * x


class ExampleQuantizer(ModelQuantizer):
    @property
    def module_type_to_quant_input(self) -> tuple:
        return (  # noqa: RUF005
            nn.Conv2d,
            # Example Module
            ExampleMod
        ) + self.additional_module_typ  # fmt: skip

    @property
    def function_type_to_quant_input(self) -> list:
        return [  # noqa: RUF005
            torch.add,
            example_func
        ] + self.additional_function_type  # fmt: skip


class ExampleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.mod, self.fc = nn.Conv2d(3, 4, 3), nn.ReLU(), ExampleMod(), nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(example_func(self.mod(self.relu(self.conv(x)))).flatten(1))


# ---- Deploy ----


def do_translate(model, context):
    return [node.op_type for node in model.graph.node], context


class ExampleProcess(LinearQuantizer_process):
    def remove_fakequantize_and_collect_params(self, onnx_path, model_name, backend):
        model, context = super().remove_fakequantize_and_collect_params(onnx_path, model_name, backend)
        if backend == 'example':  # fmt: skip
            # model is the onnx, context
            # context is the quantization info'd dict
            example_model = do_translate(model, context)
        return example_model


# ---- Benchmark: LSQ of one's own ----


def pot_quantization(tensor: torch.Tensor):
    log2t = torch.log2(tensor)
    log2t = (torch.round(log2t)-log2t).detach() + log2t  # fmt: skip
    return 2 ** log2t  # fmt: skip


class MyLsq(QuantizeBase):
    def __init__(self, observer, scale=1.0, zero_point=0.0, use_grad_scaling=True, **observer_kwargs):
        super().__init__(observer, **observer_kwargs)
        self.use_grad_scaling = use_grad_scaling
        self.scale = Parameter(torch.tensor([scale]))
        self.zero_point = Parameter(torch.tensor([zero_point]))

    def forward(self, X):  # noqa: N803
        if self.ada_sign and X.min() >= 0:
            self.quant_max = self.activation_post_process.quant_max = 2 ** self.bitwidth - 1  # fmt: skip
            self.quant_min = self.activation_post_process.quant_min = 0
            self.activation_post_process.adjust_sign = True
        symmetric = self.qscheme in (torch.per_channel_symmetric, torch.per_tensor_symmetric)
        if symmetric:
            self.zero_point.data.zero_()
        scale, zero_point = pot_quantization(self.scale) if self.pot_scale else self.scale, self.zero_point
        if self.is_per_channel:
            shape = [-1 if axis == self.ch_axis else 1 for axis in range(X.ndim)]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        grad_factor = (X.numel() * self.quant_max) ** -0.5 if self.use_grad_scaling else 1.0
        scale = (scale - scale * grad_factor).detach() + scale * grad_factor
        v = X / scale
        v = torch.clamp((v.round() - v).detach() + v + zero_point.round(), self.quant_min, self.quant_max)
        return (v - zero_point.round()) * scale


class MyLsqObserver(ObserverBase):
    def forward(self, x):
        axes = [axis for axis in range(x.ndim) if axis != self.ch_axis]
        self.min_val, self.max_val = x.amin(axes), x.amax(axes)
        return x


# ---- a network for either ----


class SmallNet(nn.Module):
    classes = 2

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        return self.fc(self.pool(x + self.second(x)).flatten(1))

    def predict(self, x):
        return self(x).argmax(1)


def small_net() -> SmallNet:
    torch.manual_seed(3)
    return SmallNet().eval()
