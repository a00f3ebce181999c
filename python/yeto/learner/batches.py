# SPDX-License-Identifier: Apache-2.0
"""Which rows a step trains, and their padded tensors. A function of (rows, seed, seat) alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from yeto.learner.loss import Batch
from yeto.text.encode import Encoded
from yeto.text.order import seat_rows, share_size


@dataclass(frozen=True)
class StepRows:
    """Row indices of one optimizer step, as micro-batches, and the epoch of its last row."""

    micro_batches: list[list[int]]
    epoch: int


@dataclass(frozen=True)
class Share:
    """One seat's part of the rows: `count` rows in all, `seats` islands."""

    count: int
    seed: int
    seat: int
    seats: int
    micro_batch: int
    grad_accum: int

    @property
    def size(self) -> int:
        return share_size(self.count, self.seat, self.seats)

    @property
    def step_rows(self) -> int:
        """Rows of a full step; fewer rows than that train with what there is."""
        return min(self.micro_batch * self.grad_accum, self.size)

    def total_steps(self, epochs: int) -> int:
        return -(-self.size * epochs // self.step_rows)


def plan_steps(share: Share, epochs: int | None) -> Iterator[StepRows]:
    """The steps of a seat, for ever if `epochs` is None. Steps run across the end of an epoch,
    only the very last may be short."""
    pending: list[int] = []
    epoch = 0
    while epochs is None or epoch < epochs:
        for row in seat_rows(share.count, share.seed, epoch, share.seat, share.seats):
            pending.append(row)
            if len(pending) == share.step_rows:
                yield cut_step(pending, share.micro_batch, epoch)
                pending = []
        epoch += 1
    if pending:
        yield cut_step(pending, share.micro_batch, epoch - 1)


def cut_step(rows: list[int], size: int, epoch: int) -> StepRows:
    """The rows of a step as micro-batches of at most `size`."""
    return StepRows([rows[i : i + size] for i in range(0, len(rows), size)], epoch)


def collate(rows: Sequence[Encoded]) -> Batch:
    """Rows padded on the right to the longest of them. What fills the padding is never looked at:
    targets are positions of real tokens, and causal attention does not see what comes later."""
    length = max(row.tokens for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    positions, labels = [], []
    for index, row in enumerate(rows):
        ids[index, : row.tokens] = row.ids
        targets = np.flatnonzero(row.targets)
        positions.append(index * length + targets - 1)
        labels.append(row.ids[targets])
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(np.concatenate(positions)),
        torch.from_numpy(np.concatenate(labels)),
        sum(row.tokens for row in rows),
        tuple(row.place for row in rows),
    )
