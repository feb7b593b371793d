"""The networks of `architectures.py`: random weights, small sizes where the package has a configuration for them.

A network is a function without arguments that gives a model and what to call it with. Packages are imported when one
of theirs is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ARCHITECTURES", "Case"]


@dataclass(frozen=True)
class Case:
    """A model, and how to make arguments for it: the same twice for the same seed."""

    model: nn.Module
    arguments: Callable[[], tuple[Any, ...]] = field(default=lambda: (torch.randn(2, 3, 64, 64),))
    named: Callable[[], Mapping[str, Any]] = field(default=dict)


def images(size: int, *, batch: int = 2, depth: int | None = None) -> Callable[[], tuple[Tensor]]:
    shape = (batch, 3, size, size) if depth is None else (batch, 3, depth, size, size)
    return lambda: (torch.randn(shape),)


def tokens(length: int = 12, *, vocabulary: int = 100) -> Callable[[], Mapping[str, Tensor]]:
    def made() -> Mapping[str, Tensor]:
        ids = torch.randint(1, vocabulary, (2, length))
        mask = torch.ones_like(ids)
        mask[1, length - 3 :] = 0
        return {"input_ids": ids, "attention_mask": mask}

    return made


# --- torchvision ---------------------------------------------------------------------------------------------


def torchvision_models() -> Any:
    """`torchvision.models`, also beside a build of torch that its wheel was not made for."""
    # The CPU build of torch lacks what torchvision's wheel for another build registers by itself.
    for operator in ("nms", "qnms"):
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", signature)
    return importlib.import_module("torchvision.models")


def torchvision_classifier(name: str, size: int = 64) -> Case:
    options: dict[str, Any] = {"weights": None}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": True, "aux_logits": False}
    if name.startswith("vit"):
        options["image_size"] = size
    return Case(getattr(torchvision_models(), name)(**options), images(size))


def torchvision_segmenter(name: str, size: int = 64) -> Case:
    return Case(getattr(torchvision_models().segmentation, name)(weights=None, weights_backbone=None), images(size))


def torchvision_video(name: str, size: int = 56) -> Case:
    return Case(getattr(torchvision_models().video, name)(weights=None), images(size, batch=1, depth=8))


# --- timm, segmentation_models_pytorch, ultralytics, open_clip, diffusers --------------------------------------


def timm_classifier(name: str, size: int = 64, **options: Any) -> Case:
    torchvision_models()  # which it imports, as the others do
    return Case(importlib.import_module("timm").create_model(name, pretrained=False, **options), images(size))


def smp_segmenter(name: str, encoder: str) -> Case:
    torchvision_models()
    made = getattr(importlib.import_module("segmentation_models_pytorch"), name)
    return Case(made(encoder, encoder_weights=None, classes=3), images(64))


def ultralytics_detector(name: str) -> Case:
    torchvision_models()
    model: nn.Module = importlib.import_module("ultralytics").YOLO(f"{name}.yaml", verbose=False).model
    return Case(model, images(64))


def open_clip_vision() -> Case:
    torchvision_models()
    transformer = importlib.import_module("open_clip.transformer")
    options = {"image_size": 64, "patch_size": 16, "width": 64, "layers": 2, "heads": 4, "mlp_ratio": 4.0}
    return Case(transformer.VisionTransformer(output_dim=32, **options), images(64))


def diffusers_unet() -> Case:
    torchvision_models()
    made = importlib.import_module("diffusers").UNet2DModel
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = made(sample_size=16, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, **blocks)
    return Case(model, lambda: (torch.randn(2, 3, 16, 16), torch.tensor([3, 7])))


# --- transformers --------------------------------------------------------------------------------------------

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def _transformers() -> Any:
    torchvision_models()  # which it imports
    return importlib.import_module("transformers")


def huggingface(config: str, model: str, given: Callable[[], Mapping[str, Any]], **options: Any) -> Case:
    package = _transformers()
    made = getattr(package, config)(**options)
    return Case(getattr(package, model)(made), tuple, given)


def language(family: str, kind: str = "Model", **options: Any) -> Case:
    sizes = {"vocab_size": 100, **_SMALL, **options}
    return huggingface(f"{family}Config", f"{family}{kind}", tokens(), **sizes)


def pixels(size: int = 32) -> Callable[[], Mapping[str, Tensor]]:
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


_DECODER = {"num_key_value_heads": 2, "use_cache": False}
_GPT2 = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}
_T5 = {"vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
_DISTIL = {"vocab_size": 100, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
_CLIP = {**_SMALL, "image_size": 32, "patch_size": 8}
_WHISPER = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 32, 48, 64],
    "num_attention_heads": [1, 2, 3, 4],
    "decoder_hidden_size": 32,
}
_WAV2VEC = {
    **_SMALL,
    "conv_dim": (32, 32),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 16,
}


def whisper_encoder() -> Case:
    package = _transformers()
    module = importlib.import_module("transformers.models.whisper.modeling_whisper")
    config = package.WhisperConfig(vocab_size=100, num_mel_bins=16, max_source_positions=40, **_WHISPER)
    return Case(module.WhisperEncoder(config), tuple, lambda: {"input_features": torch.randn(2, 16, 80)})


# --- torch.nn alone ------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.embed, self.head = nn.Linear(width, width), nn.Linear(width, 10)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class Encoder(nn.Module):
    def __init__(self, width: int = 64, *, norm_first: bool = False, activation: str = "relu"):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 128, batch_first=True, norm_first=norm_first, activation=activation
        )
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean(1))


class CausalEncoder(Encoder):
    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.head(self.layers(x, mask=mask, is_causal=True))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU]):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(50, 32), kind(32, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cell(self.embed(ids))[0][:, -1])


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h, c = x.new_zeros(x.size(0), 32), x.new_zeros(x.size(0), 32)
        for step in range(x.size(1)):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


class Positions(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.register_buffer("pe", torch.randn(1, 64, width))
        self.register_buffer("tril", torch.tril(torch.ones(64, 64)))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        q, k, v = self.qkv(x + self.pe[:, :length]).chunk(3, dim=-1)
        scores = (q @ k.transpose(-2, -1) * 0.2).masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return self.out(scores.softmax(-1) @ v)


class Einsum(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(0.35).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(-2))


def sequences(length: int = 12, width: int = 64) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(2, length, width),)


def _ids() -> tuple[Tensor]:
    return (torch.randint(0, 50, (2, 12)),)


def transformer() -> Case:
    model = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
    return Case(model, lambda: (torch.randn(2, 6, 32), torch.randn(2, 5, 32)))


_TORCHVISION = """
    vgg11_bn squeezenet1_1 resnet18 resnet50 resnet101 resnext50_32x4d wide_resnet50_2 densenet121 googlenet
    mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet1_0 shufflenet_v2_x1_0 efficientnet_b0
    efficientnet_v2_s regnet_y_400mf convnext_tiny swin_t swin_v2_t vit_b_16
"""
_TIMM = """
    efficientnet_b4 mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050 mobileone_s0 repvgg_a0 ghostnet_100
    hrnet_w18_small poolformer_s12 fastvit_t8 nfnet_l0 resnetv2_50 resnest14d cspresnet50 dla34 dpn68
    edgenext_xx_small hardcorenas_a inception_next_atto lcnet_050 res2net50_26w_4s rexnet_100 selecsls42
    tf_efficientnet_lite0 tinynet_e
"""
ARCHITECTURES: Mapping[str, Callable[[], Case]] = {
    **{f"torchvision.{name}": partial(torchvision_classifier, name) for name in _TORCHVISION.split()},
    "torchvision.alexnet": partial(torchvision_classifier, "alexnet", 96),
    "torchvision.maxvit_t": partial(torchvision_classifier, "maxvit_t", 224),
    "torchvision.inception_v3": partial(torchvision_classifier, "inception_v3", 96),
    "torchvision.lraspp": partial(torchvision_segmenter, "lraspp_mobilenet_v3_large"),
    "torchvision.deeplabv3": partial(torchvision_segmenter, "deeplabv3_mobilenet_v3_large"),
    "torchvision.fcn": partial(torchvision_segmenter, "fcn_resnet50"),
    "torchvision.r3d_18": partial(torchvision_video, "r3d_18"),
    **{f"timm.{name}": partial(timm_classifier, name) for name in _TIMM.split()},
    "timm.resnetv2_50x1_bit": partial(timm_classifier, "resnetv2_50x1_bit"),
    "timm.efficientformer_l1": partial(timm_classifier, "efficientformer_l1", 224),
    "timm.levit_128s": partial(timm_classifier, "levit_128s", 224),
    "timm.vit_tiny": partial(timm_classifier, "vit_tiny_patch16_224", img_size=64),
    "timm.deit_tiny": partial(timm_classifier, "deit_tiny_patch16_224", img_size=64),
    "timm.mixer_s32": partial(timm_classifier, "mixer_s32_224", img_size=64),
    "timm.eva02_tiny": partial(timm_classifier, "eva02_tiny_patch14_224", 56, img_size=56),
    "timm.xcit_nano": partial(timm_classifier, "xcit_nano_12_p16_224", img_size=64),
    "smp.unet": partial(smp_segmenter, "Unet", "resnet18"),
    "smp.fpn": partial(smp_segmenter, "FPN", "resnet18"),
    "smp.deeplabv3plus": partial(smp_segmenter, "DeepLabV3Plus", "mobilenet_v2"),
    "ultralytics.yolov8n": partial(ultralytics_detector, "yolov8n"),
    "ultralytics.yolo11n": partial(ultralytics_detector, "yolo11n"),
    "open_clip.vision": open_clip_vision,
    "diffusers.unet2d": diffusers_unet,
    "transformers.bert": partial(language, "Bert", "ForSequenceClassification"),
    "transformers.bert_eager": partial(language, "Bert", attn_implementation="eager"),
    "transformers.roberta": partial(language, "Roberta", "ForSequenceClassification"),
    "transformers.electra": partial(language, "Electra", embedding_size=64),
    "transformers.albert": partial(language, "Albert", embedding_size=64),
    "transformers.llama": partial(language, "Llama", "ForCausalLM", **_DECODER),
    "transformers.mistral": partial(language, "Mistral", "ForCausalLM", **_DECODER),
    "transformers.qwen2": partial(language, "Qwen2", "ForCausalLM", **_DECODER),
    "transformers.opt": partial(language, "OPT", ffn_dim=128, word_embed_proj_dim=64, use_cache=False),
    "transformers.distilbert": partial(huggingface, "DistilBertConfig", "DistilBertModel", tokens(), **_DISTIL),
    "transformers.gpt2": partial(huggingface, "GPT2Config", "GPT2LMHeadModel", tokens(), **_GPT2),
    "transformers.t5_encoder": partial(huggingface, "T5Config", "T5EncoderModel", tokens(), **_T5),
    "transformers.vit": partial(huggingface, "ViTConfig", "ViTForImageClassification", pixels(), **_CLIP),
    "transformers.deit": partial(huggingface, "DeiTConfig", "DeiTModel", pixels(), **_CLIP),
    "transformers.clip_vision": partial(huggingface, "CLIPVisionConfig", "CLIPVisionModel", pixels(), **_CLIP),
    "transformers.dinov2": partial(
        huggingface, "Dinov2Config", "Dinov2Model", pixels(), image_size=32, patch_size=8, **_SMALL
    ),
    "transformers.swin": partial(huggingface, "SwinConfig", "SwinModel", pixels(), **_SWIN),
    "transformers.segformer": partial(
        huggingface, "SegformerConfig", "SegformerForSemanticSegmentation", pixels(64), **_SEGFORMER
    ),
    "transformers.convnext": partial(
        huggingface, "ConvNextConfig", "ConvNextModel", pixels(64), hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]
    ),
    "transformers.whisper_encoder": whisper_encoder,
    "transformers.wav2vec2": partial(
        huggingface, "Wav2Vec2Config", "Wav2Vec2Model", lambda: {"input_values": torch.randn(2, 2000)}, **_WAV2VEC
    ),
    "torch.multihead_attention": lambda: Case(Attention(), sequences()),
    "torch.transformer_encoder": lambda: Case(Encoder(), sequences()),
    "torch.transformer_encoder_norm_first": lambda: Case(Encoder(norm_first=True, activation="gelu"), sequences()),
    "torch.transformer_encoder_causal": lambda: Case(CausalEncoder(), sequences()),
    "torch.transformer": transformer,
    "torch.lstm": lambda: Case(Recurrent(nn.LSTM), _ids),
    "torch.gru": lambda: Case(Recurrent(nn.GRU), _ids),
    "torch.lstm_cell_loop": lambda: Case(CellLoop(), sequences(6, 16)),
    "torch.positions": lambda: Case(Positions(), sequences(12, 32)),
    "torch.einsum": lambda: Case(Einsum(), sequences(12, 32)),
}
