# SPDX-License-Identifier: Apache-2.0
"""Native parts of Yeto."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

def version() -> str:
    """The version of Yeto this module was built from."""

class BoundaryError(RuntimeError):
    """The exchange cannot go on. Its text begins with `error[CODE]` and says what to do."""

    code: str
    exit_code: int

class Boundary:
    """A learner's end of the exchange with the syncer.

    It keeps its session on own threads. Tensors are read and written, and callbacks are called,
    only inside `wait_ready`, `step` and `finalize`, which belong to one thread, the trainer's. Any
    thread, a callback and a signal handler may call `metric`, `leave` and `close`; the last two end
    a call that waits. While a call waits, signal handlers run. Errors are `BoundaryError`; after
    one, only `leave` and `close` are of use.
    """

    def __init__(
        self,
        *,
        syncer: str,
        run_id: str,
        seat: int | None,
        token_file: str | None,
        names: Sequence[str],
        tensors: list[Any],
        fragments: int,
        pattern: str = "binpack",
        matrix_merge: str = "rda",
        contract: Mapping[str, str] = ...,
        before_read: Callable[[list[int]], object] | None = None,
        after_write: Callable[[list[int]], object] | None = None,
        streams: int = 4,
        max_alone_s: float = 600.0,
        device_text: str = "",
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        insecure: bool = False,
    ) -> None:
        """Checks everything and starts to connect.

        `syncer` is HOST:PORT or @FILE of the run's endpoint.json, read at every connect;
        `token_file` holds the key of the seat; the three PEM files of TLS take its place where the
        syncer has certificates, and `insecure` allows plain TCP to another machine. `tensors` are
        CPU float32 C-contiguous writable arrays (NumPy or DLPack), updated in place and kept alive;
        `names` their canonical names, the same on all islands. `contract` names what all islands
        must agree on; only hashes of the texts travel. Where tensors mirror device memory,
        `before_read` refreshes those of the given indices from the device and `after_write` copies
        them to it. Without the syncer for `max_alone_s`, `step` pauses until it is back, and
        `wait_ready` and `finalize` give up.
        """

    def wait_ready(self, timeout_s: float = 0.0) -> dict[str, Any]:
        """Waits until the tensors hold the run's values; 0 is no limit.

        {"seat", "term", "global_step", "live": [seats], "joined_late", "data_leases": the syncer
        hands out rows}
        """

    def step(self, tokens: int) -> dict[str, Any]:
        """After each optimizer step that changed the tensors: answers pulls, applies broadcasts.

        `tokens` are the trained tokens of that step. Waits only in lockstep, and after
        `max_alone_s` without the syncer.
        {"applied": [(fragment, version, overwritten)], "pushed": [(fragment, base version, bytes)],
        "global_step", "run_tokens", "live", "versions", "staleness_max", "draining", "connected",
        "blocked_ms", "pulls_waiting"} and totals of the process {"bytes_pushed", "bytes_received",
        "merged", "carried", "dropped", "nonfinite_pushes", "late_offers", "discarded_tokens",
        "residual_norm"}. Once "draining" is true, call `finalize`.
        """

    def set_phase(self, phase: str) -> None:
        """Tells the syncer what the learner does: load, train, eval, snapshot or paused."""

    def metric(self, text: str) -> None:
        """One JSON object of at most 8 KiB on one line, for the run's tape."""

    def request_rows(self, rows: int, count: int) -> tuple[int, int, int, int]:
        """Data leases: at most `count` positions of the sample order for the next step.

        (epoch, first, count, stride); count 0: nothing is left, or the run drains. `rows` are the
        positions of an epoch, the same in all calls. Waits only if no granted position is here.
        Positions settle by themselves once the work of the step that follows is durable.
        """

    def finalize(self, reason: str = "drain", timeout_s: float = 0.0) -> dict[str, Any]:
        """No more steps: takes part in the last sweep and returns with the final values in place.

        `reason` is "drain", or "limit" where this learner has reached its own limit.
        {"global_step", "versions", "live", "lowest": this seat is the lowest live one}
        """

    def leave(self, reason: str) -> None:
        """Tells the syncer "done", "preempted" or "error" and ends the session, within 2 s."""

    def close(self) -> None:
        """Ends everything at once. May be called again."""

class StaticSplit:
    """The positions that leave `seat` when divided by `seats`, without the syncer.

    `epochs` 0: without end; `done`: where to go on, in positions of this seat.
    """

    def __init__(
        self, rows: int, seat: int, seats: int, epochs: int = 0, done: int = 0
    ) -> None: ...
    def next(self, most: int) -> tuple[int, int, int, int]:
        """(epoch, first, count, stride) of at most `most` positions of one epoch; count 0: end."""

class LeasedRows:
    """The positions that the syncer leases to this learner, behind the same call."""

    def __init__(self, boundary: Boundary, rows: int) -> None: ...
    def next(self, most: int) -> tuple[int, int, int, int]:
        """As `Boundary.request_rows`."""

def simulate(
    *,
    settings: dict[str, object],
    tensors: Sequence[tuple[str, Sequence[int]]],
    initial: Sequence[Any],
    on_step: Callable[[int, int, list[list[Any]]], None],
) -> dict[str, Any]:
    """One run of real core, jobs and clients in this process, in virtual time; for benchmarks.

    `settings`: "seed", "islands", "fragments", "sync_interval_steps", "limit_steps" (steps of each
    island), "tokens" (of a step), "quorum", "outer", "merge_alpha", "delta_reference",
    "correction", "matrix_merge", "codec", "uneven_links" (frames come up to one step late and no
    grace is given). `initial`: one flat f32 array per tensor. `on_step(island, step, values)`
    makes step 0, 1, … of an island in place: `values[island][tensor]` are flat f32 arrays, those
    of all islands as they were when the first island came to this step. The islands take each step
    in the order of their seats. Returns "values" (final, one flat f32 array per tensor), "commits",
    "pushes_merged", "pushes_carried", "pushes_dropped", "bytes_in", "bytes_out".
    ValueError for settings that cannot be, and for a run that does not end well.
    """
