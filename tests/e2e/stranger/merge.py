# SPDX-License-Identifier: Apache-2.0
"""The merge as docs/DESIGN.md states it, to the bit; f32 steps are rounded one by one by numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from values import AVG, Vector

LANES = 16
LEAST_DIRECTION = 1e-12


@dataclass
class Push:
    delta: Vector
    c_steps: int = 1
    c_tokens: int = 1


def square(x: Vector) -> float:
    """Element i to lane i mod 16, the lanes folded pairwise, in f64."""
    rows = np.zeros((-(-len(x) // LANES), LANES))
    rows.reshape(-1)[: len(x)] = x
    lanes = np.zeros(LANES)
    for row in rows:
        lanes += row * row
    width = LANES
    while width > 1:
        width //= 2
        lanes = lanes[:width] + lanes[width : 2 * width]
    return float(lanes[0])


def shares(pushes: list[Push], rule: str) -> list[float]:
    made = {
        "tokens2": [push.c_tokens**2 / push.c_steps for push in pushes],
        "tokens": [float(push.c_tokens) for push in pushes],
        "equal": [1.0 for _ in pushes],
    }[rule]
    total = sum(made)
    return [weight / total if total else 1 / len(made) for weight in made]


def weighted(pushes: list[Push], factors: list[float]) -> Vector:
    out = np.float32(factors[0]) * pushes[0].delta
    for push, factor in zip(pushes[1:], factors[1:], strict=True):
        out = out + np.float32(factor) * push.delta
    return out


def average(pushes: list[Push], mode: int, rule: str) -> Vector:
    """Of one piece; `pushes` by ascending seat."""
    share = shares(pushes, rule)
    if mode == AVG:
        return weighted(pushes, share)
    norms = [math.sqrt(square(push.delta)) for push in pushes]
    longest = max(norms)
    unit = 2.0 ** (math.frexp(longest)[1] - 1) if longest else 1.0
    length = sum(s * norm for s, norm in zip(share, norms, strict=True))
    direction = weighted(
        pushes, [s * unit / norm if norm else 0.0 for s, norm in zip(share, norms, strict=True)]
    )
    size = math.sqrt(square(direction))
    if size < LEAST_DIRECTION * unit:
        return weighted(pushes, share)
    return np.float32(length / size) * direction


def nesterov(theta: Vector, b: Vector, delta: Vector) -> tuple[Vector, Vector]:
    lr, mu = np.float32(0.7), np.float32(0.9)
    b = (mu * b + delta).astype(np.float32)
    return (theta - lr * (delta + mu * b)).astype(np.float32), b
