# SPDX-License-Identifier: Apache-2.0
"""What a learner keeps: of each fragment, of its pushes, of transfers both ways."""

from __future__ import annotations

from dataclasses import dataclass, field

from rows import Fate, Kept
from values import Vector
from wire import Connection, Fields


@dataclass
class Public:
    """A public value: what deltas are taken against once it is applied."""

    term: int
    version: int
    values: Vector


@dataclass
class Lent:
    """What a push took with it: the residual, and what becomes of it if the push counts."""

    base_version: int
    taken: Vector | None
    if_kept: Vector | None
    steps: int
    tokens: int
    until: int  # the step after which it was taken


@dataclass
class Fragment:
    size: int
    local: Vector
    anchor: Public | None = None
    reference: Vector | None = None
    overwrite: bool = True
    pushed: Vector | None = None  # P of the page
    steps_taken: int = 0
    tokens_taken: int = 0
    pull: Fields | None = None
    ready: Public | None = None
    residual: Vector | None = None
    lent: dict[tuple[int, int], Lent] = field(default_factory=dict)  # by (round, attempt)

    kept: list[Kept] = field(default_factory=list)  # deltas that count

    def fate(self, step: int, durable_step: int) -> Fate:
        for kept in self.kept:
            if kept.after < step <= kept.until:
                return Fate.SETTLED if kept.durable(durable_step) else Fate.OPEN
        if any(lent.until - lent.steps < step <= lent.until for lent in self.lent.values()):
            return Fate.OPEN
        return Fate.LOST if step <= self.steps_taken else Fate.OPEN

    def newest(self) -> Public | None:
        return self.ready or self.anchor


@dataclass
class Incoming:
    offer: Fields
    body: bytearray
    chunks: int
    held: set[int] = field(default_factory=set)
    heard_at: float = 0.0

    def bitmap(self) -> bytes:
        out = bytearray(-(-self.chunks // 8)) if self.held else bytearray()
        for index in self.held:
            out[index // 8] |= 1 << index % 8
        return bytes(out)


@dataclass
class Outgoing:
    offer: Fields
    body: bytes
    given: dict[int, Connection] = field(default_factory=dict)
