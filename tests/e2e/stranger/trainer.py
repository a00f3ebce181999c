# SPDX-License-Identifier: Apache-2.0
"""A program around client.py: a quadratic per seat, whose common optimum is the mean.

Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from client import Connection, Learner, Refused
from values import Layout, Tensor, Vector

ROWS_A_STEP = 4


def cut(shapes: list[tuple[int, ...]], count: int) -> Layout:
    """All values in a row, cut evenly: fragments hold slices, tensors lie in several fragments."""
    layout = Layout([Tensor(f"layers.{i}.weight", shape) for i, shape in enumerate(shapes)])
    total = layout.values()
    starts = [0]
    for tensor in layout.tensors:
        starts.append(starts[-1] + tensor.values)
    for p in range(count):
        first, last = total * p // count, total * (p + 1) // count
        layout.fragments.append([
            (i, max(first, low) - low, min(last, high) - max(first, low))
            for i, (low, high) in enumerate(zip(starts, starts[1:], strict=False))
            if max(first, low) < min(last, high)
        ])  # fmt: skip
    return layout


def target(seat: int, total: int) -> Vector:
    at = np.arange(total, dtype=np.float32)
    return (np.sin(at * np.float32(0.1)) + np.cos(at + seat) * np.float32(0.2)).astype(np.float32)


def lose_next_frame(stream: Connection) -> None:
    """The next frame is lost, and the stream with it."""

    def send(name: str, **_: Any) -> None:
        say(event="lost", name=name)
        stream.close()

    stream.send = send  # type: ignore[method-assign]


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", type=Path, default=Path("endpoint.json"))
    parser.add_argument("--token-file", type=Path, default=Path("run.token"))
    parser.add_argument("--run-id", default="r1")
    parser.add_argument("--seat", type=int, required=True)
    parser.add_argument("--seats", type=int, default=2)
    parser.add_argument("--shapes", default="24x20,300")
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--start", type=float, help="first value (3 and the seat)")
    parser.add_argument("--step-ms", type=float, default=4.0)
    parser.add_argument("--cut-stream-at", type=int, default=0, help="step that loses stream 0")
    parser.add_argument("--cut-control-at", type=int, default=0, help="step that loses control")
    parser.add_argument("--rows", type=int, default=0, help="positions of an epoch, by data leases")
    options = parser.parse_args()
    token = bytes.fromhex(options.token_file.read_text().strip())
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    layout = cut(shapes, options.fragments)
    sizes = np.cumsum(layout.sizes())[:-1]
    total = layout.values()
    goals = np.split(target(options.seat, total), sizes)
    common = np.mean([target(seat, total) for seat in range(options.seats)], axis=0)
    first = 3 + options.seat if options.start is None else options.start
    start = np.full(total, first, np.float32)

    def find() -> tuple[str, int]:
        endpoint = json.loads(options.endpoint.read_text())
        return endpoint["host"], endpoint["port"]

    local = list(np.split(start, sizes))
    learner = Learner(find, options.run_id, token, options.seat, layout, local,
                      options.streams, report=say)  # fmt: skip

    def loss() -> float:
        flat = np.concatenate([f.local for f in learner.fragments])
        return float(np.square(flat - common).mean())

    try:
        learner.connect()
    except Refused as refused:
        say(event="refused", code=refused.code, retryable=refused.retryable, text=str(refused))
        return 1
    rows = learner.lease_rows(options.rows) if options.rows else None
    learner.wait_ready()
    say(event="ready", loss=loss())
    while not learner.finished():
        learner.serve(options.step_ms / 1000)
        if rows is not None and rows.take(ROWS_A_STEP, learner.local_step + 1) == 0:
            learner.boundary()
            if rows.exhausted and not learner.limited:
                learner.limit()
            continue
        for f, goal in zip(learner.fragments, goals, strict=True):
            f.local -= np.float32(0.05) * (f.local - goal)
        learner.step(32, options.step_ms / 1000)
        if learner.local_step == options.cut_stream_at:
            lose_next_frame(learner.data[0])
        if learner.local_step == options.cut_control_at and learner.control:
            learner.control.close()
    if rows is not None:
        rows.give_up()
    learner.drain()
    flat = np.concatenate([f.local for f in learner.fragments]).astype("<f4").tobytes()
    say(event="final", loss=loss(), steps=learner.local_step, tokens=learner.tokens,
        sha256=hashlib.sha256(flat).hexdigest(), finals=len(learner.finals))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
