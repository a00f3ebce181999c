# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: a syncer, learners, and the proxy between them.

Every process is ended by its own id; leaving the `with` block of a Cluster ends all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_ID = "storm"
T = TypeVar("T")


class StormError(Exception):
    """The run cannot be measured; the text says why."""


def until(condition: Callable[[], T | None], what: str, seconds: float) -> T:
    """The first true value of the condition; StormError if there is none in time."""
    limit = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        if time.monotonic() > limit:
            raise StormError(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.01)  # other processes write what the condition reads; nothing tells of it


def seat_key(token: bytes, seat: int) -> bytes:
    """HKDF-SHA256 of the run token with an empty salt, as the syncer makes it."""
    extracted = hmac.digest(bytes(32), token, hashlib.sha256)
    return hmac.digest(extracted, f"yeto-seat-{seat}".encode() + b"\x01", hashlib.sha256)


@dataclass(frozen=True)
class Programs:
    yeto: Path
    learner: Path

    @staticmethod
    def find() -> Programs:
        paths = []
        for name in ("YETO_BIN", "TIMER_LEARNER_BIN"):
            value = os.environ.get(name)
            if value is None or not Path(value).is_file():
                raise StormError(
                    f"{name} does not name a program ({value}); `make bench BENCH=storm` builds "
                    "the programs and sets it"
                )
            paths.append(Path(value).resolve())
        return Programs(*paths)


@dataclass(frozen=True)
class Setup:
    """All times in seconds of the clock."""

    learners: int
    step_s: float
    lease_s: float
    retry_s: float
    round_timeout_s: float
    tokens: int  # of a step
    fragments: int
    interval_steps: int
    values: int  # of a tensor
    link: tuple[float, float, float]  # delay, share of lost pieces, delay of a lost piece
    seed: int
    wire_dtype: str


class Cluster:
    def __init__(self, programs: Programs, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.folder = folder
        self._programs = programs
        self._syncer: subprocess.Popen[bytes] | None = None
        self._proxy: subprocess.Popen[bytes] | None = None
        self._learners: dict[int, subprocess.Popen[bytes]] = {}
        self._ports: list[int] = []
        self._token = bytes([0x5A]) * 32

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_key("run.token", self._token)
        self.start_syncer(resume=False)
        self._start_proxy()
        for seat in range(self.setup.learners):
            self._write_key(f"seat-{seat}.key", seat_key(self._token, seat))
            self.start_learner(seat)
        return self

    def __exit__(self, *exception: object) -> None:
        processes = [*self._learners.values(), self._proxy, self._syncer]
        for process in processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        if self._proxy is not None and self._proxy.stdin is not None:
            with contextlib.suppress(OSError):
                self._proxy.stdin.close()

    # ---- syncer

    def start_syncer(self, resume: bool) -> None:
        setup = self.setup
        flags = {
            "bind": "127.0.0.1:0",
            "run-id": RUN_ID,
            "learners": setup.learners,
            "token-file": "run.token",
            "checkpoint": "checkpoint",
            "endpoint": "endpoint.json",
            "status": "status.json",
            "tape": "tape.jsonl",
            "total-steps": 10**9,
            "sync-interval-steps": setup.interval_steps,
            "lease-ms": round(setup.lease_s * 1000),
            "round-timeout": setup.round_timeout_s,
            "durability": "commit",
            "wire-dtype": setup.wire_dtype,
        }
        command = [str(self._programs.yeto), "syncer"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        with (self.folder / "syncer.log").open("ab") as log:
            self._syncer = subprocess.Popen(
                command + (["--resume"] if resume else []),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        if not resume:
            until(self._serves, "the syncer's start", 30)

    def _serves(self) -> bool:
        assert self._syncer is not None
        if self._syncer.poll() is not None:
            raise StormError(f"the syncer ended with {self._syncer.returncode}: {self.log_end()}")
        return (self.folder / "endpoint.json").exists()

    def log_end(self) -> str:
        return (self.folder / "syncer.log").read_text(errors="replace")[-2000:]

    def kill_syncer(self) -> None:
        assert self._syncer is not None
        self._syncer.kill()
        self._syncer.wait()

    def check(self) -> None:
        """StormError if a process ended that nobody ended."""
        assert self._syncer is not None and self._proxy is not None
        if (code := self._syncer.poll()) is not None:
            raise StormError(f"the syncer ended with {code}: {self.log_end()}")
        if (code := self._proxy.poll()) is not None:
            raise StormError(f"the proxy ended with {code}")
        for seat, process in self._learners.items():
            if (code := process.poll()) is not None and code != -signal.SIGKILL:
                text = (self.folder / f"seat-{seat}.log").read_text(errors="replace")
                raise StormError(f"learner {seat} ended with {code}: {text[-1000:]}")

    def status(self) -> dict[str, Any]:
        """The syncer's status file; empty while there is none."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "status.json").read_text()))
        return {}

    # ---- links

    def _start_proxy(self) -> None:
        setup = self.setup
        values = [self.folder / "endpoint.json", setup.learners, setup.seed, *setup.link]
        with (self.folder / "proxy.log").open("ab") as log:
            self._proxy = subprocess.Popen(
                [sys.executable, "-m", "bench.storm.proxy", *map(str, values)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._proxy.stdout is not None
        line = self._proxy.stdout.readline()
        if not line:
            text = (self.folder / "proxy.log").read_text(errors="replace")
            raise StormError(f"the proxy did not start: {text[-1000:]}")
        self._ports = json.loads(line)

    def hold(self, seat: int, held: bool) -> None:
        assert self._proxy is not None and self._proxy.stdin is not None
        self._proxy.stdin.write(f"{'hold' if held else 'free'} {seat}\n".encode())
        self._proxy.stdin.flush()

    # ---- learners

    def start_learner(self, seat: int) -> None:
        setup = self.setup
        flags = {
            "syncer": f"127.0.0.1:{self._ports[seat]}",
            "run-id": RUN_ID,
            "seat": seat,
            "token-file": f"seat-{seat}.key",
            "step-ms": round(setup.step_s * 1000),
            "tokens": setup.tokens,
            "fragments": setup.fragments,
            "values": setup.values,
            "retry-ms": max(1, round(setup.retry_s * 1000)),
        }
        command = [str(self._programs.learner)]
        command += [f"--{name}={value}" for name, value in flags.items()]
        with (
            (self.folder / f"seat-{seat}.jsonl").open("ab") as out,
            (self.folder / f"seat-{seat}.log").open("ab") as log,
        ):
            self._learners[seat] = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=log
            )

    def signal_learner(self, seat: int, number: signal.Signals) -> None:
        self._learners[seat].send_signal(number)
        if number is signal.SIGKILL:
            self._learners[seat].wait()

    def events(self, seat: int) -> list[dict[str, Any]]:
        """What the processes of a seat told; a killed one may have left half a line."""
        return list(json_lines(self.folder / f"seat-{seat}.jsonl"))

    def tape(self) -> list[dict[str, Any]]:
        return list(json_lines(self.folder / "tape.jsonl"))

    def finish(self, seconds: float) -> None:
        """Ends the run in order: a last sweep, final values for all, every process gone."""
        assert self._syncer is not None
        done = subprocess.run(
            [str(self._programs.yeto), "_finish", "--endpoint=endpoint.json",
             "--token-file=run.token"],
            cwd=self.folder, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise StormError(f"the run could not be finished: {done.stderr}")
        processes = {"syncer": self._syncer}
        processes |= {f"learner {seat}": p for seat, p in self._learners.items()}
        limit = time.monotonic() + seconds
        for name, process in processes.items():
            try:
                code = process.wait(max(0.1, limit - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise StormError(f"{name} did not end within {seconds:g} s") from error
            if code != 0:
                raise StormError(f"{name} ended with {code}")

    def _write_key(self, name: str, key: bytes) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(key.hex() + "\n")


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value
