# SPDX-License-Identifier: Apache-2.0
"""The order in which rows are visited, computed position by position without a stored array.

A keyed permutation of [0, n) per epoch: a balanced Feistel network over the next power of four,
repeated while its result lies outside the range. Equal on every machine for equal (n, seed, epoch).
"""

import hashlib
import struct
from collections.abc import Iterator

_MASK64 = (1 << 64) - 1
_ROUNDS = 8


def _finalise(value: int) -> int:
    """SplitMix64's finaliser."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


class Permutation:
    """A one-to-one map of [0, count), fixed by (seed, source, epoch)."""

    def __init__(self, count: int, seed: int, epoch: int, source: int = 0) -> None:
        if count < 1:
            raise ValueError(f"a permutation needs at least one element, not {count}")
        self._count = count
        bits = max(2, 2 * (((count - 1).bit_length() + 1) // 2))
        self._half_bits = bits // 2
        self._half_mask = (1 << self._half_bits) - 1
        keys: list[int] = []
        for block in range(2):
            message = b"yeto-order-1" + struct.pack("<QIII", seed & _MASK64, source, epoch, block)
            keys.extend(struct.unpack("<4Q", hashlib.sha256(message).digest()))
        self._keys = keys[:_ROUNDS]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self._count:
            raise IndexError(f"position {position} is outside [0, {self._count})")
        value = position
        while True:
            left, right = value >> self._half_bits, value & self._half_mask
            for key in self._keys:
                left, right = right, left ^ (_finalise(right ^ key) & self._half_mask)
            value = (left << self._half_bits) | right
            if value < self._count:
                return value


def share_size(count: int, seat: int, seats: int) -> int:
    """How many of `count` positions belong to `seat` when position i goes to seat i mod seats."""
    return (count - seat + seats - 1) // seats if seat < count else 0


def seat_rows(count: int, seed: int, epoch: int, seat: int, seats: int) -> Iterator[int]:
    """The row indices that `seat` trains in `epoch`, in order."""
    permutation = Permutation(count, seed, epoch)
    for position in range(seat, count, seats):
        yield permutation[position]


def holdout_key(digest: bytes, seed: int = 0) -> int:
    """A row's place on the scale that decides who is held out; depends on the row alone."""
    message = b"yeto-val-1" + struct.pack("<Q", seed & _MASK64) + digest
    return int.from_bytes(hashlib.sha256(message).digest()[:8], "little")


def holdout(digests: list[bytes], rows: int) -> set[int]:
    """Indices of the `rows` rows with the smallest keys. Equal rows are never on both sides, so
    a duplicate of a chosen row is chosen too."""
    if rows <= 0:
        return set()
    keys = [holdout_key(digest) for digest in digests]
    limit = sorted(keys)[min(rows, len(keys)) - 1]
    return {index for index, key in enumerate(keys) if key <= limit}
