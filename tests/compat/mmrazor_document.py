"""The configs and the code of document 000, MMRazor's "Customize Quantization algorithms", with imports changed.

Where the document leaves a body empty, MMRazor's own source has filled it.
"""

from __future__ import annotations

import math
from typing import Dict, List, Optional, Tuple, Union  # noqa: UP035, as in the document

import torch
from torch.nn.parameter import Parameter
from torch.utils.data import DataLoader

from detent.compat.mmrazor import (
    LOOPS,
    MODELS,
    FakeQuantizeBase,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QATEpochBasedLoop,
    sync_tensor,
)

OVERALL = """
global_qconfig = dict(
    w_observer=dict(),
    a_observer=dict(),
    w_fake_quant=dict(),
    a_fake_quant=dict(),
    w_qscheme=dict(),
    a_qscheme=dict(),
)
model = dict(
    type='mmrazor.MMArchitectureQuant',
    architecture=resnet,
    quantizer=dict(
        type='mmrazor.OpenvinoQuantizer',
        global_qconfig=global_qconfig,
        tracer=dict()))
train_cfg = dict(type='mmrazor.LSQEpochBasedLoop')
"""

FIRST = "_base_ = ['mmcls::resnet/resnet18_8xb16_cifar10.py']\n"
GAPS = """
resnet = _base_.model
float_ckpt = {checkpoint!r}
"""
DOCUMENT = """
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
    _delete_=True,
    _scope_='mmrazor',
    type='MMArchitectureQuant',
    data_preprocessor=dict(
        type='mmcls.ClsDataPreprocessor',
        num_classes=1000,
        # RGB format normalization parameters
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        # convert image from BGR to RGB
        to_rgb=True),
    architecture=resnet,
    float_checkpoint=float_ckpt,
    quantizer=dict(
        type='mmrazor.OpenVINOQuantizer',
        is_qat=True,
        global_qconfig=global_qconfig,
        tracer=dict(
            type='mmrazor.CustomTracer',
            skipped_methods=[
                'mmcls.models.heads.ClsHead._get_loss',
                'mmcls.models.heads.ClsHead._get_predictions'
            ])))

# learning policy
optim_wrapper = dict()
param_scheduler = dict()
model_wrapper_cfg = dict()

# train, val, test setting
train_cfg = dict(type='mmrazor.LSQEpochBasedLoop')
val_cfg = dict()
test_cfg = val_cfg
"""

MMCLS = {
    "resnet/resnet18_8xb16_cifar10.py": """
_base_ = [
    '../_base_/models/resnet18_cifar.py', '../_base_/datasets/cifar10_bs16.py',
    '../_base_/schedules/cifar10_bs128.py', '../_base_/default_runtime.py'
]
""",
    "_base_/models/resnet18_cifar.py": """
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet_CIFAR', depth=18, num_stages=4, out_indices=(3, ), style='pytorch'),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead', num_classes=10, in_channels=512, loss=dict(type='CrossEntropyLoss', loss_weight=1.0)))
""",
    "_base_/datasets/cifar10_bs16.py": """
dataset_type = 'CIFAR10'
data_preprocessor = dict(
    num_classes=10, mean=[125.307, 122.961, 113.8575], std=[51.5865, 50.847, 51.255], to_rgb=False)
train_pipeline = [
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=2,
    dataset=dict(type=dataset_type, data_root='data/cifar10', split='train', pipeline=train_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=True),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=2,
    dataset=dict(type=dataset_type, data_root='data/cifar10/', split='test', pipeline=test_pipeline),
    sampler=dict(type='DefaultSampler', shuffle=False),
)
val_evaluator = dict(type='Accuracy', topk=(1, ))
test_dataloader = val_dataloader
test_evaluator = val_evaluator
""",
    "_base_/schedules/cifar10_bs128.py": """
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.0001))
param_scheduler = dict(type='MultiStepLR', by_epoch=True, milestones=[100, 150], gamma=0.1)
train_cfg = dict(by_epoch=True, max_epochs=200, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=128)
""",
    "_base_/default_runtime.py": """
default_scope = 'mmpretrain'
default_hooks = dict(timer=dict(type='IterTimerHook'), checkpoint=dict(type='CheckpointHook', interval=1))
env_cfg = dict(cudnn_benchmark=False, dist_cfg=dict(backend='nccl'))
vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=None, deterministic=False)
""",
}
"""mmcls's config that the document's is based on, and its four bases."""

CHECKPOINT = "https://download.openmmlab.com/mmclassification/v0/resnet/resnet18_8xb32_in1k_20210831-fbbb1da6.pth"

QAT = """
resnet = _base_.model
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=0.0001, momentum=0.9, weight_decay=0.0001))

# learning policy
param_scheduler = dict(
    _delete_=True, type='ConstantLR', factor=1.0, by_epoch=True)

model_wrapper_cfg = dict(
    type='mmrazor.MMArchitectureQuantDDP',
    broadcast_buffers=False,
    find_unused_parameters=False)

# train, val, test setting
train_cfg = dict(
    _delete_=True,
    type='mmrazor.QATEpochBasedLoop',
    max_epochs=10,
    val_interval=1)
val_cfg = dict(_delete_=True, type='mmrazor.QATValLoop')
default_hooks = dict(sync=dict(type='SyncBuffersHook'))
"""
"""What the config that the document links to has behind its model."""

PTQ = """
_base_ = ['mmcls::resnet/resnet18_8xb16_cifar10.py', './deploy_cfg.py']

_base_.val_dataloader.batch_size = 32

test_cfg = dict(
    type='mmrazor.PTQLoop',
    calibrate_dataloader=_base_.val_dataloader,
    calibrate_steps=32,
)

global_qconfig = dict(
    w_observer=dict(type='mmrazor.PerChannelMinMaxObserver'),
    a_observer=dict(type='mmrazor.MovingAverageMinMaxObserver'),
    w_fake_quant=dict(type='mmrazor.FakeQuantize'),
    a_fake_quant=dict(type='mmrazor.FakeQuantize'),
    w_qscheme=dict(
        qdtype='qint8', bit=8, is_symmetry=True, is_symmetric_range=True),
    a_qscheme=dict(
        qdtype='quint8', bit=8, is_symmetry=True, averaging_constant=0.1),
)

model = dict(
    _delete_=True,
    type='mmrazor.MMArchitectureQuant',
    architecture=_base_.model,
    deploy_cfg=_base_.deploy_cfg,
    quantizer=dict(
        type='mmrazor.OpenVINOQuantizer',
        global_qconfig=global_qconfig,
        tracer=dict(
            type='mmrazor.CustomTracer',
            skipped_methods=[
                'mmcls.models.heads.ClsHead._get_loss',
                'mmcls.models.heads.ClsHead._get_predictions'
            ])))

model_wrapper_cfg = dict(type='mmrazor.MMArchitectureQuantDDP', )
"""
DEPLOY = """
deploy_cfg = dict(
    onnx_config=dict(
        type='onnx',
        save_file='end2end.onnx',
        input_names=['input'],
        output_names=['output'],
        input_shape=None,
        dynamic_axes=dict(
            input=dict({
                0: 'batch',
                2: 'height',
                3: 'width'
            }),
            output=dict({0: 'batch'}))),
    backend_config=dict(
        type='openvino',
        model_inputs=[dict(opt_shapes=dict(input=[1, 3, 8, 8]))]),
    codebase_config=dict(type='mmcls', task='Classification'),
    function_record_to_pop=[
        'mmcls.models.classifiers.ImageClassifier.forward',
    ],
)
"""
"""MMRazor's PTQ config of a ResNet-18 and the deploy config in its base."""


def learnable_kernel(x, scale, zero_point, axis, quant_min, quant_max, grad_factor):
    """What torch's private kernels for learned scales compute; they take scales of shape (1,) or one per channel."""
    assert scale.ndim == zero_point.ndim == 1
    scale = scale * grad_factor + (scale - scale * grad_factor).detach()
    shape = [1] * x.ndim
    if axis is not None:
        shape[axis] = -1
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    codes = (x / scale + zero_point).clamp(quant_min, quant_max)
    return (codes + (codes.round() - codes).detach() - zero_point) * scale


def register_fake_quant() -> type:
    """## 4. Develop new fakequant method: the document's class, as MMRazor's `fake_quants/lsq.py` finishes it."""

    @MODELS.register_module()
    class LearnableFakeQuantize(FakeQuantizeBase):
        def __init__(self,
                    observer,
                    quant_min=0,
                    quant_max=255,
                    scale=1.,
                    zero_point=0.,
                    use_grad_scaling=True,
                    zero_point_trainable=False,
                    **observer_kwargs):  # fmt: skip
            super(LearnableFakeQuantize, self).__init__()  # noqa: UP008
            self.quant_min, self.quant_max = quant_min, quant_max
            # also pass quant_min and quant_max to observer
            observer_kwargs["quant_min"] = quant_min
            observer_kwargs["quant_max"] = quant_max
            self.use_grad_scaling = use_grad_scaling
            self.scale = Parameter(torch.tensor([scale]))
            self.zero_point_trainable = zero_point_trainable
            if zero_point_trainable:
                self.zero_point = Parameter(torch.tensor([zero_point]))
            else:
                self.register_buffer("zero_point", torch.tensor([zero_point]))
            self.activation_post_process = observer(**observer_kwargs)
            assert torch.iinfo(self.activation_post_process.dtype).min <= quant_min, "quant_min out of bound"
            assert quant_max <= torch.iinfo(self.activation_post_process.dtype).max, "quant_max out of bound"
            self.dtype = self.activation_post_process.dtype
            self.qscheme = self.activation_post_process.qscheme
            self.ch_axis = getattr(self.activation_post_process, "ch_axis", -1)
            self.register_buffer("static_enabled", torch.tensor([1], dtype=torch.uint8))
            self.register_buffer("learning_enabled", torch.tensor([0], dtype=torch.uint8))
            self.register_buffer("eps", torch.tensor([torch.finfo(torch.float32).eps]))

        def enable_param_learning(self):
            self.toggle(learning=True, static=False)

        def enable_static_estimate(self):
            self.toggle(learning=False, static=True)

        def enable_val(self):
            self.toggle(learning=False, static=False)

        def toggle(self, learning, static):
            self.learning_enabled[0], self.static_enabled[0] = int(learning), int(static)
            self.scale.requires_grad = learning

        def observe_quant_params(self):
            print(f"LearnableFakeQuantize Scale: {self.scale.detach()}")
            print(f"LearnableFakeQuantize Zero Point: {self.zero_point.detach()}")

        def calculate_qparams(self):
            self.scale.data.clamp_(min=self.eps.item())
            zero_point = self.zero_point.detach().round().clamp(self.quant_min, self.quant_max).long()
            return self.scale.detach(), zero_point

        def forward(self, X):  # noqa: N803
            per_channel = self.qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
            if self.static_enabled[0] == 1:
                self.activation_post_process(X.detach())
                scale, zero_point = self.activation_post_process.calculate_qparams()
                if per_channel:
                    self.scale.data = torch.ones_like(scale)
                    self.zero_point.data = torch.zeros_like(zero_point.float())
                self.scale.data.copy_(scale)
                self.zero_point.data.copy_(zero_point)
            else:
                self.scale.data.clamp_(min=self.eps.item())
            if self.fake_quant_enabled[0] == 1:
                factor = 1.0 / (X.numel() * self.quant_max) ** 0.5 if self.use_grad_scaling else 1.0
                X = learnable_kernel(  # noqa: N806
                    X, self.scale, self.zero_point, self.ch_axis if per_channel else None, self.quant_min,
                    self.quant_max, factor
                )  # fmt: skip
            return X

    return LearnableFakeQuantize


class LSQObserverMixIn:
    """## 5. Develop new observer"""

    def __init__(self):
        self.tensor_norm = None

    @torch.jit.export
    def _calculate_scale(self):
        scale = 2 * self.tensor_norm / math.sqrt(self.quant_max)
        sync_tensor(scale)
        return scale


def register_observer() -> type:
    @MODELS.register_module()
    class LSQObserver(MinMaxObserver, LSQObserverMixIn):
        """LSQ observer.
        Paper: Learned Step Size Quantization. <https://arxiv.org/abs/1902.08153>
        """

        def __init__(self, *args, **kwargs):
            MinMaxObserver.__init__(self, *args, **kwargs)
            LSQObserverMixIn.__init__(self)

        def forward(self, x_orig):
            """Records the running minimum, maximum and tensor_norm of ``x``."""
            if x_orig.numel() == 0:
                return x_orig
            x = x_orig.detach()  # avoid keeping autograd tape
            x = x.to(self.min_val.dtype)
            self.tensor_norm = x.abs().mean()
            min_val_cur, max_val_cur = torch.aminmax(x)
            min_val = torch.min(min_val_cur, self.min_val)
            max_val = torch.max(max_val_cur, self.max_val)
            self.min_val.copy_(min_val)
            self.max_val.copy_(max_val)
            return x_orig

        @torch.jit.export
        def calculate_qparams(self):
            """Calculates the quantization parameters."""
            _, zero_point = MinMaxObserver.calculate_qparams(self)
            scale = LSQObserverMixIn._calculate_scale(self)
            return scale, zero_point

    return LSQObserver


def register_channel_observer() -> type:
    """The other class of MMRazor's `observers/lsq.py`, which the document's config names."""

    @MODELS.register_module()
    class LSQPerChannelObserver(PerChannelMinMaxObserver, LSQObserverMixIn):
        def __init__(self, *args, **kwargs):
            PerChannelMinMaxObserver.__init__(self, *args, **kwargs)
            LSQObserverMixIn.__init__(self)

        def forward(self, x_orig):
            x = x_orig.detach()
            axes = list(range(x.ndim))
            axes[self.ch_axis], axes[0] = 0, self.ch_axis
            y = torch.flatten(x.permute(axes).to(self.min_val.dtype), start_dim=1)
            self.tensor_norm = y.abs().mean(1)
            min_val, max_val = torch.aminmax(y, dim=1)
            if self.min_val.numel():
                min_val, max_val = torch.min(min_val, self.min_val), torch.max(max_val, self.max_val)
            self.min_val.resize_(min_val.shape)
            self.max_val.resize_(max_val.shape)
            self.min_val.copy_(min_val)
            self.max_val.copy_(max_val)
            return x_orig

        @torch.jit.export
        def calculate_qparams(self):
            _, zero_point = PerChannelMinMaxObserver.calculate_qparams(self)
            scale = LSQObserverMixIn._calculate_scale(self)
            return scale, zero_point

    return LSQPerChannelObserver


def register_loop() -> type:
    """## 6. Select loop or develop new loop: as it stands in the document."""

    @LOOPS.register_module()
    class LSQEpochBasedLoop(QATEpochBasedLoop):
        def __init__(
                self,
                runner,
                dataloader: Union[DataLoader, Dict],  # noqa: UP006, UP007
                max_epochs: int,
                val_begin: int = 1,
                val_interval: int = 1,
                freeze_bn_begin: int = -1,
                dynamic_intervals: Optional[List[Tuple[int, int]]] = None) -> None:  # noqa: UP006, UP045  # fmt: skip
            super().__init__(
                runner,
                dataloader,
                max_epochs,
                val_begin,
                val_interval,
                freeze_bn_begin=freeze_bn_begin,
                dynamic_intervals=dynamic_intervals)  # fmt: skip

            self.is_first_batch = True

        def prepare_for_run_epoch(self):
            pass

        def prepare_for_val(self):
            pass

        def run_epoch(self) -> None:
            pass

    return LSQEpochBasedLoop
