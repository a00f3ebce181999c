# SPDX-License-Identifier: Apache-2.0
"""The first values of an adapter: a function of (seed, tensor name, shape) and nothing else.

A is uniform in ±1/√in from a counter generator keyed by SHA-256 of seed and name; B is zero. The
numbers are made on the host in 32-bit integers, so every island and device starts from equal bits.
"""

import hashlib
import math
import struct

import numpy as np


def initial_values(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 values of the LoRA tensor `name`; `lora_A` is drawn, everything else is zero."""
    if ".lora_A." not in name and ".lora_embedding_A." not in name:
        return np.zeros(shape, dtype=np.float32)
    key = hashlib.sha256(b"yeto-lora-1" + struct.pack("<Q", seed) + name.encode()).digest()
    count = math.prod(shape)
    generator = np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8"), counter=0)
    words = generator.random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
    # 24 bits fill a float32 exactly: k·2⁻²³ - 1 for k < 2²⁴ is uniform in [-1, 1).
    unit = (words >> 8).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    bound = np.float32(1.0 / math.sqrt(shape[-1]))
    return (unit * bound).reshape(shape)
