"""The demo model: a small llama with RoPE on interleaved pairs, as GGUF stores it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn


@dataclass(frozen=True)
class Shape:
    """Sizes of the network, in elements; `context` is in tokens."""

    vocab: int = 2048
    layers: int = 12
    width: int = 192
    heads: int = 3
    kv_heads: int = 1
    head_width: int = 64
    hidden: int = 448
    context: int = 1024
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    pairs = torch.arange(0, shape.head_width, 2, dtype=torch.float32)
    rates = shape.rope_base ** (-pairs / shape.head_width)
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), rates)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * cos - odd * sin, even * sin + odd * cos)
    return torch.stack(turned, dim=-1).flatten(-2)


class Attention(nn.Module):
    """Causal grouped-query attention without biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.k = nn.Linear(shape.width, kv_width, bias=False)
        self.v = nn.Linear(shape.width, kv_width, bias=False)
        self.o = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.shape.head_width).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Mix tokens; `cos` and `sin` are [tokens, head_width / 2]."""
        shape = self.shape
        q = rotate(self.split_heads(self.q(x), shape.heads), cos, sin)
        k = rotate(self.split_heads(self.k(x), shape.kv_heads), cos, sin)
        v = self.split_heads(self.v(x), shape.kv_heads)
        groups = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(-2))
        return out


class Block(nn.Module):
    """One transformer block: attention, then a SwiGLU feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.ffn_norm(x)
        out: Tensor = x + self.down(fn.silu(self.gate(h)) * self.up(h))
        return out


class Llama(nn.Module):
    """The whole network, with an output head of its own."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.output = nn.Linear(shape.width, shape.vocab, bias=False)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.draw_weights()

    def draw_weights(self) -> None:
        small = 0.02 * (2 * self.shape.layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(weight, std=small if residual else 0.04)

    def features(self, tokens: Tensor) -> Tensor:
        """Normalised states before the head, [batch, tokens, width]."""
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        out: Tensor = self.norm(x)
        return out

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.output(self.features(tokens))
        return out
