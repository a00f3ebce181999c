# SPDX-License-Identifier: Apache-2.0
"""One run of a cell: all islands in this process, joined by the real client, core and jobs.

`yeto._core.simulate` gives each island its tensors and asks for one optimizer step at a time; the
exchange between the steps is the product's own, in virtual time. All islands step at the same
times, so their steps are computed together (see islands.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.convergence.cells import STEPS, Cell, Regime
from bench.convergence.corpus import Corpus
from bench.convergence.islands import (
    Islands,
    Shape,
    cosine_with_warmup,
    initial_adapters,
    initial_values,
)
from yeto import _core

ROWS = 8  # of one island's step
BASE_ROWS = 32
WARMUP = 10
EVALUATED_ROWS = 512


@dataclass(frozen=True)
class Result:
    held_out_loss: float
    late_share: float  # of the pushes that were merged: what was carried
    bytes_pushed: int
    bytes_broadcast: int


class Task:
    """The model, its data and the two base models; all of it follows from the seed of a run."""

    def __init__(self, corpus: Corpus, cache: Path, shape: Shape):
        self.corpus, self.cache, self.shape = corpus, cache, shape

    def rows(self, data: torch.Tensor, generator: torch.Generator, count: int) -> torch.Tensor:
        first = torch.randint(0, len(data) - self.shape.context - 1, (count,), generator=generator)
        return data[first[:, None] + torch.arange(self.shape.context + 1)]

    def held_out(self) -> torch.Tensor:
        data, context = self.corpus.held_out, self.shape.context
        first = torch.arange(EVALUATED_ROWS) * ((len(data) - context - 1) // EVALUATED_ROWS)
        return data[first[:, None] + torch.arange(context + 1)]

    def base(self, regime: Regime) -> dict[str, torch.Tensor]:
        """Values that a run of this regime starts from; made once, kept in the cache."""
        name = f"{regime.prose_steps}-{regime.code_steps}-{self.corpus.sha256[:12]}.pt"
        path = self.cache / name
        if path.exists():
            return torch.load(path)
        values = initial_values(self.shape, seed=0)
        generator = torch.Generator().manual_seed(7)
        stages = ((self.corpus.prose, regime.prose_steps, 3e-3),
                  (self.corpus.code, regime.code_steps, 2e-3))  # fmt: skip
        for data, steps, lr in stages:
            model = Islands(self.shape, values, 1, lr)
            for step in range(steps):
                rows = self.rows(data, generator, BASE_ROWS)
                model.step(rows[None], cosine_with_warmup(step, steps, 20))
            values = {name: value[0].detach().clone() for name, value in model.values.items()}
        self.cache.mkdir(parents=True, exist_ok=True)
        torch.save(values, path)
        return values

    def model(self, regime: Regime, islands: int, lora: int) -> Islands:
        """Islands before their first step."""
        base = self.base(regime)
        if lora == 0:
            return Islands(self.shape, base, islands, regime.lr)
        adapters = initial_adapters(self.shape, lora, seed=0)
        return Islands(self.shape, adapters, islands, regime.lr, frozen=base)


def synchronous(task: Task, regime: Regime, islands: int, seed: int, lora: int) -> float:
    """Held-out loss of one model that sees the rows of all islands in each step."""
    model = task.model(regime, 1, lora)
    generator = torch.Generator().manual_seed(1000 + seed)
    for step in range(STEPS):
        rows = task.rows(task.corpus.code, generator, islands * ROWS)
        model.step(rows[None], cosine_with_warmup(step, STEPS, WARMUP))
    return model.held_out_loss(task.held_out())


class Trainer:
    """The optimizer steps of all islands, as `simulate` asks for them."""

    def __init__(self, task: Task, regime: Regime, cell: Cell, seed: int):
        self.task = task
        self.model = task.model(regime, cell.islands, cell.lora)
        self.generator = torch.Generator().manual_seed(1000 + seed)
        self.steps_done = 0
        self.trained: dict[str, torch.Tensor] = {}

    def step(self, island: int, step: int, tensors: list[list[Any]]) -> None:
        """Step `step` (0, 1, …) of an island; `tensors[m]` are island m's flat f32 arrays."""
        names = list(self.model.values)
        if step == self.steps_done:  # the first island that comes to this step
            with torch.no_grad():
                for index, name in enumerate(names):
                    for m in range(self.model.count):
                        value = self.model.values[name][m]
                        value.copy_(torch.from_numpy(tensors[m][index]).view_as(value))
            share = cosine_with_warmup(min(step, STEPS - 1), STEPS, WARMUP)
            rows = self.task.rows(self.task.corpus.code, self.generator, self.model.count * ROWS)
            self.model.step(rows.view(self.model.count, ROWS, -1), share)
            self.steps_done += 1
        for index, name in enumerate(names):
            value = self.model.values[name][island].detach()
            torch.from_numpy(tensors[island][index]).copy_(value.reshape(-1))


def islands(task: Task, regime: Regime, cell: Cell, seed: int) -> Result:
    """Held-out loss of the final values of a run of the cell."""
    trainer = Trainer(task, regime, cell, seed)
    start = task.model(regime, 1, cell.lora)
    first = {name: value[0].detach() for name, value in start.values.items()}
    report = _core.simulate(
        settings={
            "seed": seed,
            "islands": cell.islands,
            "fragments": cell.fragments,
            "sync_interval_steps": cell.interval,
            "limit_steps": STEPS,
            "outer": cell.outer,
            "merge_alpha": cell.alpha,
            "delta_reference": cell.reference,
            "correction": cell.correction,
            "matrix_merge": cell.merge,
            "codec": cell.codec,
            "tokens": ROWS * task.shape.context,
            # Late pushes: the round closes with the first ones, and links are uneven.
            "quorum": max(1, math.floor(cell.islands * (1 - cell.late))),
            "uneven_links": cell.late > 0,
        },
        tensors=[(name, list(value.shape)) for name, value in first.items()],
        initial=[value.reshape(-1).numpy() for value in first.values()],
        on_step=trainer.step,
    )
    values = {
        name: torch.from_numpy(flat).view_as(value)
        for (name, value), flat in zip(first.items(), report["values"], strict=True)
    }
    final = Islands(task.shape, values, 1, regime.lr, frozen=start.frozen)
    merged = report["pushes_merged"]
    return Result(
        final.held_out_loss(task.held_out()),
        report["pushes_carried"] / merged if merged else 0.0,
        report["bytes_in"],
        report["bytes_out"],
    )
