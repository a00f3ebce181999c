# SPDX-License-Identifier: Apache-2.0
"""The training loop of an island: steps, the boundary after each, limits, and how steps end."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from yeto.learner.batches import Share, StepRows, collate
from yeto.learner.exchange import Boundary
from yeto.learner.loss import Batch, TargetLoss
from yeto.learner.metrics import Metrics, Progress, Window, memory_bytes
from yeto.learner.model import Adapted
from yeto.learner.optimize import NonFiniteGuard, Optimizer, StepResult
from yeto.learner.options import Options
from yeto.learner.signals import StopRequest
from yeto.text.encode import Encoded


@dataclass(frozen=True)
class End:
    """How the steps ended: `reason` is drain (the run ends) or limit (this island's own end)."""

    reason: str
    steps: int
    tokens: int
    targets: int
    run_tokens: int
    seconds: float
    rate_was_positive: bool


def local_total(options: Options, share: Share) -> int | None:
    """Steps this island will do at most, where its own flags decide that."""
    limits = []
    if options.epochs is not None:
        limits.append(share.total_steps(options.epochs))
    if options.local_steps is not None:
        limits.append(options.local_steps)
    return min(limits) if limits else None


class Loop:
    """Runs steps until the run drains or a limit of this island is reached. Used once."""

    def __init__(
        self,
        options: Options,
        adapted: Adapted,
        loss: TargetLoss,
        rows: list[Encoded],
        plans: Iterator[StepRows],
    ) -> None:
        self._options = options
        self._adapted = adapted
        self._rows = rows
        self._plans = plans
        self._optimizer = Optimizer(adapted, loss, options)
        self._guard = NonFiniteGuard(options.nan_policy)
        self._window = Window()
        self._tokens = 0
        self._targets = 0
        self._rate_was_positive = False

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    def run(
        self,
        boundary: Boundary,
        metrics: Metrics,
        progress: Progress,
        stop: StopRequest,
    ) -> End:
        """Trains. A signal is looked for between steps: then Preempted is raised."""
        begun = time.monotonic()
        reason, run_tokens = "limit", 0
        boundary.set_phase("train")
        for plan, batches in self._steps():
            stop.check()
            step_begun = time.monotonic()
            result = self._optimizer.step(batches)
            if not result.applied:
                boundary.set_phase("train")
                progress.say(self._guard.bad(result, _places(batches)))
                continue
            self._guard.good()
            trained = time.monotonic()
            with stop.during(lambda: boundary.leave("preempted")):
                report = boundary.step(result.tokens)
            self._account(result, batches, report, trained - step_begun)
            self._window.boundary_ms += 1000 * (time.monotonic() - trained)
            run_tokens = max(report["run_tokens"], self._tokens)
            ends = report["draining"] or self._limit_reached(run_tokens)
            if ends or self._optimizer.steps % self._options.log_every == 0:
                self._log(plan, result, report, metrics, progress)
            if report["draining"]:
                reason = "drain"
                break
            if ends:
                break
        stop.check()
        return End(
            reason,
            self._optimizer.steps,
            self._tokens,
            self._targets,
            run_tokens,
            time.monotonic() - begun,
            self._rate_was_positive,
        )

    def _steps(self) -> Iterator[tuple[StepRows, list[Batch]]]:
        for plan in self._plans:
            begun = time.monotonic()
            batches = [collate([self._rows[i] for i in rows]) for rows in plan.micro_batches]
            self._window.data_seconds += time.monotonic() - begun
            yield plan, batches

    def _limit_reached(self, run_tokens: int) -> bool:
        options = self._options
        if options.local_steps is not None and self._optimizer.steps >= options.local_steps:
            return True
        return options.tokens is not None and run_tokens >= options.tokens

    def _account(
        self, result: StepResult, batches: list[Batch], report: dict[str, Any], seconds: float
    ) -> None:
        self._tokens += result.tokens
        self._targets += result.targets
        self._rate_was_positive = self._rate_was_positive or result.lr > 0
        window = self._window
        window.steps += 1
        window.loss_sum += result.loss * result.targets
        window.targets += result.targets
        window.tokens += result.tokens
        window.padded += sum(batch.ids.numel() for batch in batches)
        window.clipped += result.clipped
        window.seconds += seconds
        window.blocked_ms += report["blocked_ms"]
        window.pushes += len(report["pushed"])
        window.push_bytes += sum(size for _, _, size in report["pushed"])
        window.applied += len(report["applied"])

    def _log(
        self,
        plan: StepRows,
        result: StepResult,
        report: dict[str, Any],
        metrics: Metrics,
        progress: Progress,
    ) -> None:
        window, self._window = self._window, Window()
        wall = max(1e-9, time.monotonic() - window.started)
        line: dict[str, Any] = {
            "step": self._optimizer.steps,
            "global_step": report["global_step"],
            "tokens": self._tokens,
            "targets": self._targets,
            "tokens_global": report["run_tokens"],
            "loss": window.loss_sum / window.targets,
            "lr": result.lr,
            "grad_norm": result.grad_norm,
            "clip_share": window.clipped / window.steps,
            "tok_s": window.tokens / wall,
            "target_tok_s": window.targets / wall,
            "step_s": window.seconds / window.steps,
            "data_wait_s": window.data_seconds,
            "boundary_ms": window.boundary_ms,
            "mem_bytes": memory_bytes(self._adapted.device.type),
            "fill": window.tokens / window.padded,
            "epoch": plan.epoch,
            "nan_steps": self._guard.skipped,
            "micro_batch": self._options.micro_batch_size,
        }
        if window.pushes or window.applied:
            line.update(
                versions=report["versions"],
                staleness_max=report["staleness_max"],
                pushes=window.pushes,
                push_bytes=window.push_bytes,
                pulls_waiting=report["pulls_waiting"],
                blocked_ms=window.blocked_ms,
            )
        metrics.emit(line)
        progress.step(line, len(report["live"]), report["versions"])


def _places(batches: list[Batch]) -> tuple[str, ...]:
    return tuple(place for batch in batches for place in batch.places)
