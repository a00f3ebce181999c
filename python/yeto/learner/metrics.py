# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl, and the progress that people see. Their failure never stops a run."""

import json
import math
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from yeto.learner.exchange import METRIC_BYTES_MAX, Boundary

NAME = "metrics.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics file or tape; a missing file is empty, a torn line is left out."""
    out = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            out.append(value)
    return out


class Metrics:
    """Appends objects to metrics.jsonl and sends them to the tape, in that order.

    Objects emitted before `attach` are sent when the boundary is there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NAME
        _repair_tail(path)
        self._file: TextIO | None = open(path, "a", encoding="utf-8")
        self._boundary: Boundary | None = None
        self._waiting: list[str] = []

    def attach(self, boundary: Boundary) -> None:
        self._boundary = boundary
        for line in self._waiting:
            self._send(line)
        self._waiting.clear()

    def emit(self, values: dict[str, Any]) -> None:
        """Writes one object; None and non-finite numbers are left out, as absent values are."""
        clean = {
            key: value
            for key, value in {"ts": round(time.time(), 3), **values}.items()
            if value is not None and not (isinstance(value, float) and not _finite(value))
        }
        line = json.dumps(clean, ensure_ascii=False, separators=(",", ":"))
        if self._file is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError as error:
                sys.stderr.write(f"warning: {NAME} cannot be written any more: {error}\n")
                self._file = None
        if self._boundary is None:
            self._waiting.append(line)
        else:
            self._send(line)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _send(self, line: str) -> None:
        assert self._boundary is not None
        if len(line.encode()) > METRIC_BYTES_MAX:
            return
        try:
            self._boundary.metric(line)
        except RuntimeError as error:  # the session may be over; the file has the object
            sys.stderr.write(f"note: a metric did not reach the tape: {error}\n")


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _repair_tail(path: Path) -> None:
    """A process killed while writing leaves half a line; it is cut off before more is appended."""
    if not path.exists():
        return
    with open(path, "rb+") as handle:
        data = handle.read()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            handle.truncate(end)


@dataclass
class Window:
    """What happened since the last line of metrics.jsonl."""

    steps: int = 0
    loss_sum: float = 0.0
    targets: int = 0
    tokens: int = 0
    padded: int = 0
    clipped: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    boundary_ms: float = 0.0
    blocked_ms: float = 0.0
    pushes: int = 0
    push_bytes: int = 0
    applied: int = 0
    started: float = field(default_factory=time.monotonic)


def memory_bytes(device_type: str) -> int | None:
    """Resident bytes of this process, or peak allocated bytes of the device."""
    if device_type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    try:
        with open("/proc/self/statm", encoding="ascii") as handle:
            return int(handle.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def clock_text(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    text = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{hours}:{text}" if hours else text


class Progress:
    """A bar on a terminal, one line a step otherwise. `total` is None where it is not known."""

    def __init__(self, total: int | None, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream if stream is not None else sys.stdout
        self._begun = time.monotonic()
        self._bar: Any = None
        if self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, file=self._stream, unit="step", dynamic_ncols=True, leave=True
            )

    def say(self, text: str) -> None:
        """A line beside the progress."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def step(self, line: dict[str, Any], live: int, versions: list[int]) -> None:
        """`line` is the object of metrics.jsonl for this step."""
        step = line["step"]
        parts = [
            f"loss {line['loss']:.4f}",
            f"lr {line['lr']:.2e}",
            f"targets/s {line['target_tok_s']:.1f}",
            f"tokens {line['tokens']:,}",
        ]
        tail = [f"islands {live}", f"global {line['global_step']}"]
        if versions:
            tail.append("versions " + ",".join(str(version) for version in versions))
        if self._bar is not None:
            self._bar.n = step
            self._bar.set_postfix_str(" ".join(parts + tail))
            return
        elapsed = time.monotonic() - self._begun
        head = f"step {step}"
        clock = [f"elapsed {clock_text(elapsed)}"]
        if self._total:
            head += f"/{self._total} {100 * step // self._total}%"
            clock.append(f"eta {clock_text(elapsed / step * (self._total - step))}")
        self.say(" ".join([head, *parts, *clock, *tail]))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
