# SPDX-License-Identifier: Apache-2.0
"""The processes of each side, and what a pair of replicas did.

Every process is ended by its own id. All waits are bounded.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.torchft.task import Task

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT_S = 300.0
TOKEN = "5a" * 32


class SideError(Exception):
    """A side cannot be run; the text says why."""


class Process:
    """A child whose stdout is JSON lines, read by a thread as they come."""

    def __init__(self, command: list[str], log: Path) -> None:
        env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONUNBUFFERED="1")
        self.log = log
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        with log.open("ab") as errors:
            self.child = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith("{"):
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        limit = time.monotonic() + WAIT_S
        seen = 0
        with self._changed:
            while True:
                for line in self.lines[seen:]:
                    if wanted(line):
                        return line
                seen = len(self.lines)
                if self.child.poll() is not None and not self._reader.is_alive():
                    raise SideError(f"{what}: the process ended with {self.child.returncode}: "
                                    f"{self.log_end()}")  # fmt: skip
                if time.monotonic() > limit:
                    raise SideError(f"{what} did not happen within {WAIT_S:g} s: {self.log_end()}")
                self._changed.wait(0.5)

    def event(self, name: str) -> dict[str, Any]:
        return self.wait_for(lambda line: line["event"] == name, f"{self.log.stem}: {name}")

    def steps(self) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == "step"]

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self._reader.join(5.0)
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


class Side(Protocol):
    name: str

    def open(self, task: Task, kill: bool) -> None: ...
    def replica(self, number: int) -> Process: ...
    def close(self) -> None: ...
    def steps_of_abort(self, task: Task) -> float: ...


class Yeto:
    name = "yeto"

    def __init__(self, folder: Path, python: Path, wire: str) -> None:
        program = os.environ.get("YETO_BIN")
        if program is None or not Path(program).is_file():
            raise SideError(f"YETO_BIN does not name the yeto program ({program})")
        self._program, self._python, self._wire = program, python, wire
        self._base = folder
        self._runs = 0
        self.fragments: list[list[str]] = []  # names of the tensors, after the first run

    def open(self, task: Task, kill: bool) -> None:
        from bench.storm.cluster import seat_key

        self._runs += 1
        self._folder = self._base / f"yeto-{self._runs}"
        self._folder.mkdir()
        task.write(self._folder / "task.json")
        keys = {"run.token": TOKEN}
        keys |= {f"seat-{i}.key": seat_key(bytes.fromhex(TOKEN), i).hex() for i in range(2)}
        for name, text in keys.items():
            (self._folder / name).touch(mode=0o600)
            (self._folder / name).write_text(text + "\n")
        self._finalize = "0" if kill else "1"
        flags = {
            "bind": "127.0.0.1:0",
            "run-id": "bench",
            "learners": 2,
            "token-file": self._folder / "run.token",
            "checkpoint": self._folder / "checkpoint",
            "endpoint": self._folder / "endpoint.json",
            "tape": self._folder / "tape.jsonl",
            "sync-interval-steps": task.interval,
            "wire-dtype": self._wire,
        }
        command = [self._program, "syncer"] + [f"--{name}={value}" for name, value in flags.items()]
        self._syncer = Process(command, self._folder / "syncer.log")
        limit = time.monotonic() + 30.0
        while not (self._folder / "endpoint.json").exists():
            if self._syncer.child.poll() is not None or time.monotonic() > limit:
                raise SideError(f"the syncer does not serve: {self._syncer.log_end()}")
            time.sleep(0.02)  # the file is another process's; nothing tells of it

    def replica(self, number: int) -> Process:
        more = {
            "syncer": f"@{self._folder / 'endpoint.json'}",
            "token": self._folder / f"seat-{number}.key",
            "finalize": self._finalize,
        }
        return worker(self._python, "ours", self._folder, number, more)

    def close(self) -> None:
        self._syncer.end()
        if not self.fragments:
            self.fragments = fragment_names(self._folder / "checkpoint")

    def steps_of_abort(self, task: Task) -> float:
        return 0.0  # a push that is dropped takes nothing back from the island


class Torchft:
    name = "torchft"

    def __init__(self, folder: Path, python: Path, ours: Yeto, overlap: int) -> None:
        self._base, self._python, self._ours, self._overlap = folder, python, ours, overlap
        self._runs = 0

    def open(self, task: Task, kill: bool) -> None:
        self._runs += 1
        self._folder = self._base / f"torchft-{self._runs}"
        self._folder.mkdir()
        task.write(self._folder / "task.json")
        (self._folder / "fragments.json").write_text(json.dumps(self._ours.fragments))
        # Where nobody is killed both wait for the other, so that none merges alone.
        least = "1" if kill else "2"
        command = [str(self._python), "-m", "bench.torchft.theirs", "lighthouse", least]
        self._lighthouse = Process(command, self._folder / "lighthouse.log")
        self._address = self._lighthouse.event("lighthouse")["address"]

    def replica(self, number: int) -> Process:
        more = {
            "lighthouse": self._address,
            "fragments": self._folder / "fragments.json",
            "overlap": self._overlap,
        }
        return worker(self._python, "theirs", self._folder, number, more)

    def close(self) -> None:
        self._lighthouse.end()

    def steps_of_abort(self, task: Task) -> float:
        return task.interval / task.fragments  # the steps since the last merge are undone


def worker(python: Path, module: str, folder: Path, number: int, more: dict[str, Any]) -> Process:
    command = [str(python), "-m", f"bench.torchft.{module}", str(folder / "task.json"), str(number)]
    command += [f"{key}={value}" for key, value in more.items()]
    return Process(command, folder / f"replica-{number}.log")


def fragment_names(checkpoint: Path) -> list[list[str]]:
    """Tensors of each fragment, from the heads of the checkpoint's files."""
    found: dict[int, list[str]] = {}
    for path in sorted(checkpoint.glob("fragment-*.safetensors")):
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            about = json.loads(file.read(size))["__metadata__"]
        pieces = json.loads(about["pieces"])
        if any(piece["count"] != math.prod(piece["shape"]) for piece in pieces):
            raise SideError(f"{path.name} has a slice of a tensor, which torchft cannot merge")
        found[int(about["fragment"])] = [piece["tensor"] for piece in pieces]
    if not found:
        raise SideError(f"{checkpoint} has no fragments")
    return [found[index] for index in sorted(found)]


@dataclass
class Lost:
    seconds: float
    text: str


@dataclass
class Result:
    """What a pair of replicas did; of a kill only the first one's."""

    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    moved: list[dict[str, int]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    warmup: int = 0
    killed_at: float = 0.0

    def steps_per_s(self) -> float:
        rates = []
        for steps in self.steps:
            timed = [line["t"] for line in steps if line["step"] >= self.warmup]
            rates.append((len(timed) - 1) / (timed[-1] - timed[0]))
        return statistics.mean(rates)

    def time_lost(self, steps_of_abort: float) -> Lost:
        """Of the first replica from the kill on: pauses longer than three usual steps, less a usual
        step, and the time of the steps that were undone."""
        steps = self.steps[0]
        gaps = [
            (after["t"], after["t"] - before["t"])
            for before, after in zip(steps, steps[1:], strict=False)
            if before["step"] >= self.warmup
        ]
        usual = statistics.median(gap for at, gap in gaps if at < self.killed_at)
        waits = [gap - usual for at, gap in gaps if at >= self.killed_at and gap > 3 * usual]
        aborted = steps[-1].get("aborted", 0)
        undone = aborted * steps_of_abort
        seconds = sum(waits) + undone * usual
        longest = max(waits, default=0.0)
        text = (
            f"{seconds:.2f} s lost: {sum(waits):.2f} s without a step (longest {longest:.2f} s), "
            f"{undone:g} steps undone; a usual step takes {usual:.3f} s"
        )
        return Lost(seconds, text)


def run_pair(side: Side, task: Task, kill: bool) -> Result:
    result = Result(warmup=task.warmup)
    side.open(task, kill)
    processes: list[Process] = []
    try:
        processes = [side.replica(0), side.replica(1)]
        if kill:
            middle = task.steps // 2
            processes[0].wait_for(
                lambda line: line["event"] == "step" and line["step"] >= middle, "the middle"
            )
            if processes[1].child.poll() is not None:
                raise SideError(
                    f"the second replica of {side.name} ended before the first's middle"
                )
            processes[1].end()
            result.killed_at = time.monotonic()
            processes.append(side.replica(1))
        counted = processes[:1] if kill else processes
        for process in counted:
            result.moved.append(process.event("moved"))
            result.losses.append(process.event("final")["loss"])
            result.steps.append(process.steps())
            if process.child.wait(WAIT_S) != 0:
                raise SideError(f"a replica of {side.name} failed: {process.log_end()}")
    finally:
        for process in processes:
            process.end()
        side.close()
    return result
