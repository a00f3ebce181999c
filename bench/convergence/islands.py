# SPDX-License-Identifier: Apache-2.0
"""A small Llama of which M copies are trained side by side in one process.

Every parameter has a leading dimension M, one slice per island, so that one batched matrix product
does the work of all islands; nothing else couples them. AdamW acts element by element and the
gradient is clipped per island, so each slice trains exactly as it would alone.

With `frozen` values only adapters are trained: W·x + 2·B·A·x beside every linear layer (LoRA, Hu et
al. 2021, section 4.1, with alpha twice the rank).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    width: int = 64
    layers: int = 4
    heads: int = 4
    hidden: int = 192
    context: int = 64


def parameter_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names as in a Transformers Llama, each with the shape of one island's tensor."""
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, shape.width)}
    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            out[f"{layer}.self_attn.{name}.weight"] = (shape.width, shape.width)
        out[f"{layer}.mlp.gate_proj.weight"] = (shape.hidden, shape.width)
        out[f"{layer}.mlp.up_proj.weight"] = (shape.hidden, shape.width)
        out[f"{layer}.mlp.down_proj.weight"] = (shape.width, shape.hidden)
        out[f"{layer}.input_layernorm.weight"] = (shape.width,)
        out[f"{layer}.post_attention_layernorm.weight"] = (shape.width,)
    out["model.norm.weight"] = (shape.width,)
    return out


def initial_values(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Values of one island, f32."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, size in parameter_shapes(shape).items():
        if len(size) == 1:
            out[name] = torch.ones(size)
        else:
            out[name] = torch.randn(size, generator=generator) * 0.02
    return out


LORA_SCALE = 2.0


def initial_adapters(shape: Shape, rank: int, seed: int) -> dict[str, torch.Tensor]:
    """A and B of every linear layer of one island, f32; B is zero."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, size in parameter_shapes(shape).items():
        if name.endswith("_proj.weight"):
            layer = name.removesuffix(".weight")
            bound = size[1] ** -0.5
            a = torch.rand((rank, size[1]), generator=generator) * 2 * bound - bound
            out[f"{layer}.lora_A.weight"] = a
            out[f"{layer}.lora_B.weight"] = torch.zeros(size[0], rank)
    return out


def rotary(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    half = shape.width // shape.heads // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(shape.context)[:, None] * rates[None, :]
    return angles.cos(), angles.sin()


class Islands:
    """M islands with equal or different values, their optimizers, and nothing that joins them."""

    def __init__(
        self, shape: Shape, values: dict[str, torch.Tensor], count: int, lr: float,
        frozen: dict[str, torch.Tensor] | None = None,
    ):  # fmt: skip
        self.shape, self.count, self.lr = shape, count, lr
        self.frozen = frozen or {}
        self.values = {
            name: value.expand(count, *value.shape).clone().requires_grad_()
            for name, value in values.items()
        }
        self.cos, self.sin = rotary(shape)
        decayed = [v for v in self.values.values() if v.dim() > 2]
        plain = [v for v in self.values.values() if v.dim() == 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
            lr=lr, betas=(0.9, 0.95), foreach=True,
        )  # fmt: skip

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean loss of each island, [M]; `tokens` is [M, rows, context + 1]."""
        islands, rows, _ = tokens.shape
        context = tokens.shape[2] - 1
        inputs, targets = tokens[:, :, :-1], tokens[:, :, 1:]
        embedding = self.value("model.embed_tokens.weight")
        index = inputs.reshape(islands, -1)
        x = torch.gather(embedding, 1, index[:, :, None].expand(-1, -1, self.shape.width))
        for i in range(self.shape.layers):
            x = self.layer(x, f"model.layers.{i}", rows, context)
        x = self.norm(x, "model.norm.weight")
        logits = torch.bmm(x, embedding.transpose(1, 2))
        losses = F.cross_entropy(
            logits.reshape(-1, self.shape.vocabulary), targets.reshape(-1), reduction="none"
        )
        return losses.view(islands, -1).mean(1)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return x * scale * self.value(name)[:, None, :]

    def value(self, name: str) -> torch.Tensor:
        """[M, …]; a frozen value is the same for all islands."""
        if name in self.values:
            return self.values[name]
        value = self.frozen[name]
        return value.expand(self.count, *value.shape)

    def linear(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        y = torch.bmm(x, self.value(f"{layer}.weight").transpose(1, 2))
        if f"{layer}.lora_A.weight" not in self.values:
            return y
        a, b = (self.values[f"{layer}.lora_{which}.weight"] for which in "AB")
        return y + LORA_SCALE * torch.bmm(torch.bmm(x, a.transpose(1, 2)), b.transpose(1, 2))

    def layer(self, x: torch.Tensor, name: str, rows: int, context: int) -> torch.Tensor:
        heads, size = self.shape.heads, self.shape.width // self.shape.heads
        y = self.norm(x, f"{name}.input_layernorm.weight")

        def heads_of(which: str) -> torch.Tensor:
            z = self.linear(y, f"{name}.self_attn.{which}")
            return z.view(self.count * rows, context, heads, size).transpose(1, 2)

        query, key = self.rotate(heads_of("q_proj")), self.rotate(heads_of("k_proj"))
        z = F.scaled_dot_product_attention(query, key, heads_of("v_proj"), is_causal=True)
        z = z.transpose(1, 2).reshape(self.count, rows * context, self.shape.width)
        x = x + self.linear(z, f"{name}.self_attn.o_proj")
        y = self.norm(x, f"{name}.post_attention_layernorm.weight")
        gate = F.silu(self.linear(y, f"{name}.mlp.gate_proj"))
        up = self.linear(y, f"{name}.mlp.up_proj")
        return x + self.linear(gate * up, f"{name}.mlp.down_proj")

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def step(self, tokens: torch.Tensor, lr_share: float) -> torch.Tensor:
        """One optimizer step of every island; the losses before it, [M]."""
        losses = self.loss(tokens)
        losses.sum().backward()
        self.clip(1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * lr_share
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses.detach()

    def clip(self, most: float) -> None:
        squares = sum(v.grad.flatten(1).pow(2).sum(1) for v in self.values.values())
        scale = (most / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for value in self.values.values():
            value.grad *= scale.view(-1, *[1] * (value.dim() - 1))

    @torch.no_grad()
    def held_out_loss(self, tokens: torch.Tensor, island: int = 0) -> float:
        """Of one island's values; `tokens` is [rows, context + 1]."""
        alone = Islands.__new__(Islands)
        alone.shape, alone.count, alone.frozen = self.shape, 1, self.frozen
        alone.cos, alone.sin = self.cos, self.sin
        alone.values = {n: v[island : island + 1] for n, v in self.values.items()}
        return float(alone.loss(tokens[None]).item())


def cosine_with_warmup(step: int, steps: int, warmup: int) -> float:
    """Share of the learning rate at step 0 … steps − 1."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
