# SPDX-License-Identifier: Apache-2.0
"""One optimizer step: gradients of the summed loss, one division by the targets, clip, AdamW.

The update does not depend on how the rows of a step are split into micro-batches. A step whose
loss or gradient norm is not finite changes no parameter and no moment.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from yeto.errors import YetoError
from yeto.learner.loss import Batch, TargetLoss
from yeto.learner.model import Adapted, gradient_norm
from yeto.learner.options import Options

SKIPS_IN_A_ROW = 3
SKIPS_IN_WINDOW = 10
SKIP_WINDOW = 1000


@dataclass(frozen=True)
class StepResult:
    """`loss` is the mean per target; `applied` is False for a step left out as non-finite."""

    applied: bool
    loss: float
    grad_norm: float
    clipped: bool
    lr: float
    tokens: int
    targets: int


class Optimizer:
    """AdamW over the adapter with a linear warm-up and a constant rate after it."""

    def __init__(self, adapted: Adapted, loss: TargetLoss, options: Options) -> None:
        self._adapted = adapted
        self._loss = loss
        self._rate = options.inner_lr
        self._warmup = options.warmup
        self._clip = options.clip
        self.steps = 0
        self.adamw = torch.optim.AdamW(
            adapted.tensors,
            lr=options.inner_lr,
            betas=options.betas,
            weight_decay=options.weight_decay,
            foreach=True,
        )

    def rate(self) -> float:
        """The learning rate of the next step."""
        if self._warmup == 0:
            return self._rate
        return self._rate * min(1.0, (self.steps + 1) / self._warmup)

    def step(self, batches: Sequence[Batch]) -> StepResult:
        """Trains the micro-batches of one step; each may hold any number of targets."""
        targets = sum(len(batch.labels) for batch in batches)
        tokens = sum(batch.tokens for batch in batches)
        self.adamw.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float32, device=self._adapted.device)
        for batch in batches:
            if len(batch.labels) == 0:
                continue
            loss = self._loss(batch.to(self._adapted.device))
            loss.backward()
            total += loss.detach()
        mean = float(total) / max(1, targets)
        norm = gradient_norm(self._adapted.tensors) / max(1, targets)
        rate = self.rate()
        if targets == 0 or not math.isfinite(mean) or not math.isfinite(norm):
            self.adamw.zero_grad(set_to_none=True)
            return StepResult(False, mean, norm, False, rate, 0, 0)
        clipped = norm > self._clip
        scale = (self._clip / norm if clipped else 1.0) / targets
        torch._foreach_mul_([t.grad for t in self._adapted.tensors if t.grad is not None], scale)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.steps += 1
        return StepResult(True, mean, norm, clipped, rate, tokens, targets)


class NonFiniteGuard:
    """Counts steps left out and says when there are too many. Holds the places of their rows."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._in_a_row: list[tuple[str, ...]] = []
        self._recent: deque[int] = deque()
        self._seen = 0
        self.skipped = 0

    def good(self) -> None:
        self._seen += 1
        self._in_a_row.clear()

    def bad(self, result: StepResult, places: tuple[str, ...]) -> str:
        """The line to log for a step left out. Raises YetoError (E_NON_FINITE) at the limit."""
        self._seen += 1
        self.skipped += 1
        self._in_a_row.append(places)
        self._recent.append(self._seen)
        while self._recent[0] <= self._seen - SKIP_WINDOW:
            self._recent.popleft()
        what = "loss" if not math.isfinite(result.loss) else "gradient norm"
        rows = ", ".join(places)
        stop = self._policy == "stop" or len(self._in_a_row) >= SKIPS_IN_A_ROW
        if stop or len(self._recent) >= SKIPS_IN_WINDOW:
            listed = ", ".join(place for step in self._in_a_row for place in step)
            count = len(self._in_a_row)
            raise YetoError(
                "E_NON_FINITE",
                f"the {what} is not finite in {count} step{'s' if count > 1 else ''} in a row "
                f"({self.skipped} in all)",
                f"rows {listed}",
                "lower --inner-lr, look at these rows, or use --dtype fp32",
            )
        return f"step left out: the {what} is not finite; rows {rows}"
