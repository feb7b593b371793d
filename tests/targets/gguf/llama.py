"""Llama, Qwen2 and Qwen3 with the names and the config of transformers, without that package."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detent

WORDS, LENGTH = 40, 12
TOKENS = torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % WORDS


class Config:
    def __init__(self, **changes: object):
        self.said = {
            "model_type": "llama", "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 288,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 64, "rope_parameters": {"rope_theta": 10000.0}, **changes,
        }  # fmt: skip

    def to_dict(self):
        return self.said


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, family: str):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        biased = family == "qwen2"
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=biased), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, kv_heads * self.size, bias=biased) for _ in range(2))
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        if family == "qwen3":
            self.q_norm, self.k_norm = (nn.RMSNorm(self.size, 1e-5) for _ in range(2))
        angle = torch.outer(torch.arange(LENGTH), 10000.0 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cos", torch.cat([angle, angle], -1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], -1).sin())
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e9).triu(1))

    def _turned(self, x: Tensor) -> Tensor:
        first, second = x[..., : self.size // 2], x[..., self.size // 2 :]
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        def split(y: Tensor, heads: int) -> Tensor:
            return y.reshape(-1, LENGTH, heads, self.size).transpose(1, 2)

        q = self._turned(self.q_norm(split(self.q_proj(x), self.heads)))
        k = self._turned(self.k_norm(split(self.k_proj(x), self.kv_heads)))
        k = k.repeat_interleave(self.heads // self.kv_heads, 1)
        v = split(self.v_proj(x), self.kv_heads).repeat_interleave(self.heads // self.kv_heads, 1)
        weights = torch.softmax(q @ k.transpose(2, 3) * self.size**-0.5 + self.mask, -1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(-1, LENGTH, self.heads * self.size))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        said = config.said
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(said["hidden_size"], 1e-5) for _ in range(2))
        heads = (said["num_attention_heads"], said["num_key_value_heads"])
        self.self_attn = Attention(said["hidden_size"], *heads, said["model_type"])
        self.mlp = Mlp(said["hidden_size"], said["intermediate_size"])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, *, tied: bool = False, words: int = WORDS, **changes: object):
        super().__init__()
        self.config = Config(**changes)
        width = self.config.said["hidden_size"]
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Layer(self.config) for _ in range(self.config.said["num_hidden_layers"])])
        self.norm, self.lm_head = nn.RMSNorm(width, 1e-5), nn.Linear(width, words, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def deployed(folder, recipe, **changes):
    torch.manual_seed(0)
    prepared = detent.prepare(Llama(**changes).eval(), (TOKENS,), backend="gguf", recipe=recipe)
    detent.calibrate(prepared, [TOKENS])
    return detent.deploy(prepared, folder)
