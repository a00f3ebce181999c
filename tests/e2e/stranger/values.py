# SPDX-License-Identifier: Apache-2.0
"""Layout and bodies as docs/PROTOCOL.md states them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import wire
import xxhash

Vector = npt.NDArray[np.float32]
BLOCK = 256
DTYPE_F32 = 0
AVG, RDA = 0, 1


@dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]
    mode: int = RDA
    dtype: int = DTYPE_F32

    @property
    def values(self) -> int:
        return math.prod(self.shape)


@dataclass
class Layout:
    tensors: list[Tensor]
    # Per fragment: (tensor, first value, count), ascending.
    fragments: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def encode(self) -> bytes:
        out = b"YLAY" + struct.pack("<II", 1, len(self.tensors))
        for tensor in self.tensors:
            name = tensor.name.encode()
            out += struct.pack("<H", len(name)) + name
            out += struct.pack("<BBB", tensor.dtype, tensor.mode, len(tensor.shape))
            out += b"".join(struct.pack("<Q", size) for size in tensor.shape)
        out += struct.pack("<I", len(self.fragments))
        for pieces in self.fragments:
            out += struct.pack("<I", len(pieces))
            out += b"".join(struct.pack("<IQQ", *piece) for piece in pieces)
        return out

    def values(self) -> int:
        return sum(tensor.values for tensor in self.tensors)

    def sizes(self) -> list[int]:
        return [sum(count for _, _, count in pieces) for pieces in self.fragments]


def digest(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


def to_bf16(values: Vector) -> bytes:
    """The upper half of f32, rounded to nearest even (finite values)."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def from_bf16(data: bytes) -> Vector:
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float32)


# The smallest ratio of levels 1 to 7: f32 of 2^(L - 7.5).
BOUNDS = np.array([2.0 ** (level - 7.5) for level in range(1, 8)], np.float32)
LEVELS = np.array([0.0] + [2.0 ** (level - 7) for level in range(1, 8)], np.float32)


def to_q4(values: Vector) -> bytes:
    blocks = -(-len(values) // BLOCK)
    padded = np.zeros((blocks, BLOCK), np.float32)
    padded.reshape(-1)[: len(values)] = values
    scales = np.abs(padded).max(axis=1)
    safe = np.where(scales > 0, scales, np.float32(1))
    ratio = np.abs(padded) / safe[:, None]
    level = np.searchsorted(BOUNDS, ratio.reshape(-1), side="right").reshape(ratio.shape)
    sign = np.signbit(padded) & (level > 0)
    nibble = (level + 8 * sign).astype(np.uint8)
    packed = nibble[:, 0::2] | nibble[:, 1::2] << 4
    parts = (scales[b].astype("<f4").tobytes() + packed[b].tobytes() for b in range(blocks))
    return b"".join(parts)


def from_q4(data: bytes, count: int) -> Vector:
    blocks = -(-count // BLOCK)
    if len(data) != blocks * (4 + BLOCK // 2):
        raise wire.WireError(f"q4: {len(data)} bytes for {count} values")
    rows = np.frombuffer(data, np.uint8).reshape(blocks, 4 + BLOCK // 2)
    scales = rows[:, :4].copy().view("<f4")
    if not np.isfinite(scales).all() or (scales < 0).any():
        raise wire.WireError("q4: a scale that is negative or not finite")
    nibble = np.empty((blocks, BLOCK), np.uint8)
    nibble[:, 0::2], nibble[:, 1::2] = rows[:, 4:] & 15, rows[:, 4:] >> 4
    size = LEVELS[nibble & 7] * scales
    return np.where(nibble > 8, -size, size).reshape(-1)[:count].astype(np.float32)


def encode(codec: int, values: Vector) -> bytes:
    if codec == wire.F32:
        return values.astype("<f4").tobytes()
    return to_bf16(values) if codec == wire.BF16 else to_q4(values)


def decode(codec: int, data: bytes, count: int) -> Vector:
    if codec == wire.Q4:
        return from_q4(data, count)
    if len(data) != count * (4 if codec == wire.F32 else 2):
        raise wire.WireError(f"codec {codec}: {len(data)} bytes for {count} values")
    return np.frombuffer(data, "<f4").copy() if codec == wire.F32 else from_bf16(data)
