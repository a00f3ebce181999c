# SPDX-License-Identifier: Apache-2.0
"""What both sides train: one model, one stream of rows per replica, one schedule.

A worker prints JSON lines with the monotonic time of the machine; the driver reads them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.convergence.islands import Islands, Shape, cosine_with_warmup, initial_values


@dataclass(frozen=True)
class Task:
    data: str  # file of {"train", "held_out"}: token ids, one dimension
    seed: int
    steps: int
    warmup: int  # steps before anything is timed
    rows: int  # of a step
    interval: int  # steps between merges of one fragment (H)
    fragments: int
    lr: float

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Task:
        return Task(**json.loads(path.read_text()))


SHAPE = Shape(vocabulary=512)


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "t": time.monotonic(), **fields}), flush=True)


class Learner:
    """Model, optimizer and data of one replica."""

    def __init__(self, task: Task, replica: int) -> None:
        torch.set_num_threads(1)
        self.task, self.replica = task, replica
        values = initial_values(SHAPE, task.seed)
        self.islands = Islands(SHAPE, values, 1, task.lr)
        self._make_parameters()
        data = torch.load(task.data)
        self._train, self._held_out = data["train"], data["held_out"]
        self.tokens = task.rows * SHAPE.context
        self.steps = 0

    def _make_parameters(self) -> None:
        """The same memory as nn.Parameters, which modules can hold."""
        own = self.islands.values
        made = {name: nn.Parameter(value.detach()) for name, value in own.items()}
        by_id = {id(own[name]): parameter for name, parameter in made.items()}
        for group in self.islands.optimizer.param_groups:
            group["params"] = [by_id[id(value)] for value in group["params"]]
        self.islands.values = made

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return self.islands.values

    def rows(self, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(
            (self.task.seed * 1009 + self.replica) * 1_000_003 + step
        )
        last = len(self._train) - SHAPE.context - 1
        starts = torch.randint(last, (self.task.rows,), generator=generator)
        return torch.stack([self._train[s : s + SHAPE.context + 1] for s in starts.tolist()])

    def step(self) -> None:
        """One optimizer step. The schedule is cut where a replica began late."""
        at = min(self.steps, self.task.steps - 1)
        share = cosine_with_warmup(at, self.task.steps, self.task.warmup)
        self.islands.step(self.rows(self.steps)[None], share)
        self.steps += 1

    @torch.no_grad()
    def held_out_loss(self) -> float:
        count = min(64, (len(self._held_out) - 1) // SHAPE.context)
        rows = [
            self._held_out[i * SHAPE.context : (i + 1) * SHAPE.context + 1] for i in range(count)
        ]
        return self.islands.held_out_loss(torch.stack(rows))


# struct tcp_info of Linux: tcpi_bytes_acked and tcpi_bytes_received.
ACKED_AT, RECEIVED_AT, INFO_BYTES = 120, 128, 192


def socket_bytes() -> dict[int, tuple[int, int]]:
    """Bytes sent (and acknowledged) and received so far, by inode, of the process's TCP sockets,
    whoever opened them."""
    out = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type != socket.SOCK_STREAM or one.family == socket.AF_UNIX:
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
                inode = os.fstat(one.fileno()).st_ino
        except OSError:
            continue
        if len(info) >= RECEIVED_AT + 8:
            sent, received = struct.unpack_from("<QQ", info, ACKED_AT)
            out[inode] = (sent, received)
    return out


def moved(before: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Bytes sent and received since `before`, over the sockets that are open now."""
    sent = received = 0
    for inode, (out, back) in socket_bytes().items():
        was = before.get(inode, (0, 0))
        sent, received = sent + out - was[0], received + back - was[1]
    return sent, received


def worker_arguments() -> tuple[Task, int, dict[str, str]]:
    """TASK.json REPLICA key=value …"""
    path, replica, *rest = sys.argv[1:]
    return Task.read(Path(path)), int(replica), dict(pair.split("=", 1) for pair in rest)
