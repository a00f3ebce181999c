# SPDX-License-Identifier: Apache-2.0
"""TERM and INT: the first asks for the end of the running step, the second ends at once."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PREEMPTED = 81


class Preempted(Exception):
    """A signal asked this process to end."""


class StopRequest:
    """Installed once, on the main thread. `check` raises Preempted after the first signal."""

    def __init__(self) -> None:
        self.requested = False
        self._wake: Callable[[], None] | None = None

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def check(self) -> None:
        if self.requested:
            raise Preempted

    @contextmanager
    def during(self, wake: Callable[[], None]) -> Iterator[None]:
        """Around a call that may wait for long: a signal calls `wake`, which ends the wait. The
        RuntimeError the call then raises becomes Preempted."""
        self.check()
        self._wake = wake
        try:
            yield
        except RuntimeError as error:
            if self.requested:
                raise Preempted from error
            raise
        finally:
            self._wake = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            os._exit(PREEMPTED)
        self.requested = True
        if self._wake is not None:
            self._wake()
