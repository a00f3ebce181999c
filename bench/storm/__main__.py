# SPDX-License-Identifier: Apache-2.0
"""Many learners in bad weather: what is left of their work?

    make bench BENCH=storm
    scripts/bench storm -- [--learners 16] [--seconds 110] [--compression 10] [--seed 1] …

Native learner processes whose step is a timer, each behind a lossy link of its own, and a real
`yeto syncer` that makes every commit durable. One run has faults (see faults.py), then a twin run
has none; the ratios are between these two. Time is compressed: all intervals that a user would
count in seconds (step, lease, waits between attempts, restart of a machine, outages, time between
faults) are divided by the compression, what the program itself takes is not.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, print_figure
from bench.storm import measure
from bench.storm.cluster import Cluster, Programs, Setup, StormError, until
from bench.storm.faults import Fault, Kind, Weather, draw

# What is compressed, in seconds before that.
STEP_S = 1.0
LEASE_S = 5.0
RETRY_S = 0.2
ROUND_TIMEOUT_S = 900.0
RESTART_S = 10.0
OUTAGE_S = (2.0, 12.0)
RECOVERY_S = 15.0
LOSS_DELAY_S = 0.2
FAULTS_PER_HOUR = 125
# What is not.
LINK_DELAY_S = 0.001
LOSS = 0.005
# What is asked of a whole storm.
KEPT = {"goal": 0.95, "aim": 0.98}
TAKING_PART = {"goal": 0.9, "aim": 0.95}
JOIN_LIMIT_S = 60.0
END_LIMIT_S = 60.0


@dataclass(frozen=True)
class Options:
    learners: int
    seconds: float
    twin_seconds: float
    compression: float
    seed: int
    faults: int
    wire_dtype: str
    smoke: bool
    keep: Path | None


def read_options() -> Options:
    parser = argparse.ArgumentParser(prog="bench.storm", description="Learners in bad weather.")
    parser.add_argument("--learners", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=110.0, help="of the storm")
    parser.add_argument(
        "--twin-seconds", type=float, default=60.0, help="of the run without faults"
    )
    parser.add_argument("--compression", type=float, default=10.0, help="of time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults-per-hour", type=float, default=FAULTS_PER_HOUR,
                        help="in the whole fleet, in time that is not compressed")  # fmt: skip
    parser.add_argument("--wire-dtype", default="auto", help="as of yeto syncer")
    parser.add_argument("--keep", type=Path, help="folder to leave tapes and logs in")
    parser.add_argument("--smoke", action="store_true", help="four learners for a few seconds")
    given = parser.parse_args()
    if given.smoke:
        given.learners, given.seconds, given.twin_seconds = 4, 6.0, 3.0
        given.faults_per_hour = len(Kind) * 3600 / (given.seconds * given.compression)
    count = round(given.faults_per_hour * given.seconds * given.compression / 3600)
    if given.learners < 2 or given.seconds <= 0 or given.compression < 1 or count < len(Kind):
        parser.error(
            f"at least 2 learners, a time above 0, a compression of 1 or more, and {len(Kind)} "
            f"faults are needed (these are {given.learners}, {given.seconds:g} s, "
            f"{given.compression:g}, {count})"
        )
    return Options(
        learners=given.learners,
        seconds=given.seconds,
        twin_seconds=given.twin_seconds,
        compression=given.compression,
        seed=given.seed,
        faults=count,
        wire_dtype=given.wire_dtype,
        smoke=given.smoke,
        keep=given.keep,
    )


def setup_of(options: Options) -> Setup:
    c = options.compression
    return Setup(
        learners=options.learners,
        step_s=STEP_S / c,
        lease_s=LEASE_S / c,
        retry_s=RETRY_S / c,
        round_timeout_s=ROUND_TIMEOUT_S / c,
        tokens=1000,
        fragments=8,
        interval_steps=24,
        values=4096,
        link=(LINK_DELAY_S, LOSS, LOSS_DELAY_S / c),
        seed=options.seed,
        wire_dtype=options.wire_dtype,
    )


class Clock:
    """Wall time of a moment that was taken on the monotonic clock."""

    def __init__(self) -> None:
        self._shift = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._shift

    def stamp(self, lines: list[measure.Line]) -> list[measure.Line]:
        return [line | {"ts": line["t"] + self._shift} for line in lines if "t" in line]


class Run:
    """Carries out faults on a cluster and watches it."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.done: list[measure.Done] = []
        self.ledgers: list[measure.Line] = []
        self._ledger_at: object = None
        self.late_s = 0.0  # longest time in which this loop did not come round

    def go(self, faults: list[Fault], seconds: float) -> tuple[float, float]:
        """Begin and end of the time, with every fault in it healed."""
        begin = self._clock.now()
        for fault in faults:
            self._at(begin + fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        before = begin
        while (now := self._clock.now()) < begin + seconds or self._queue:
            self.late_s, before = max(self.late_s, now - before), now
            while self._queue and self._queue[0][0] <= now:
                heapq.heappop(self._queue)[2]()
            self._watch()
            time.sleep(0.005)  # between two looks at the clock and the processes
        return begin, begin + seconds

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def _strike(self, fault: Fault) -> None:
        cluster, begin = self._cluster, self._clock.now()
        if fault.seat is None:
            cluster.kill_syncer()
            cluster.start_syncer(resume=True)
            self._healed(fault, begin)
            return
        seat = fault.seat
        if fault.kind is Kind.KILL:
            cluster.signal_learner(seat, signal.SIGKILL)
            heal: Callable[[], None] = lambda: cluster.start_learner(seat)  # noqa: E731
        elif fault.kind is Kind.PAUSE:
            cluster.signal_learner(seat, signal.SIGSTOP)
            heal = lambda: cluster.signal_learner(seat, signal.SIGCONT)  # noqa: E731
        else:
            cluster.hold(seat, True)
            heal = lambda: cluster.hold(seat, False)  # noqa: E731

        def end() -> None:
            heal()
            self._healed(fault, begin)

        self._at(begin + fault.duration, end)

    def _healed(self, fault: Fault, begin: float) -> None:
        self.done.append(measure.Done(str(fault.kind), fault.seat, begin, self._clock.now()))

    def _watch(self) -> None:
        self._cluster.check()
        status = self._cluster.status()
        if status and status["updated_at"] != self._ledger_at:
            self._ledger_at = status["updated_at"]
            self.ledgers.append(status["ledger"])


def all_live(cluster: Cluster) -> bool:
    seats = cluster.status().get("seats", [])
    return sum(seat["state"] == "live" for seat in seats) == cluster.setup.learners


def measured_run(
    programs: Programs, options: Options, faults: list[Fault], seconds: float, folder: Path
) -> measure.Record:
    clock = Clock()
    setup = setup_of(options)
    with Cluster(programs, setup, folder) as cluster:
        until(lambda: all_live(cluster), "all learners' first step", JOIN_LIMIT_S)
        until(lambda: cluster.status()["global_step"] >= 2, "the second merge", JOIN_LIMIT_S)
        run = Run(cluster, clock)
        begin, end = run.go(faults, seconds)
        until(lambda: all_live(cluster), "the return of all learners", JOIN_LIMIT_S)
        cluster.finish(END_LIMIT_S)
        run.ledgers.append(cluster.status()["ledger"])
        return measure.Record(
            learners=options.learners,
            lease_s=setup.lease_s,
            begin=begin,
            end=end,
            faults=run.done,
            tape=cluster.tape(),
            events={s: clock.stamp(cluster.events(s)) for s in range(options.learners)},
            ledgers=run.ledgers,
            recovery_s=RECOVERY_S / options.compression,
            late_s=run.late_s,
        )


def rate(record: measure.Record, tokens: float) -> float:
    return tokens / (record.end - record.begin)


def print_conditions(options: Options, faults: list[Fault]) -> None:
    setup = setup_of(options)
    kinds = ", ".join(f"{sum(f.kind is kind for f in faults)} {kind}" for kind in Kind)
    print(
        f"{options.learners} learners for {options.seconds:g} s at compression "
        f"{options.compression:g} (= {options.seconds * options.compression / 60:.1f} minutes), "
        f"then {options.twin_seconds:g} s without faults; seed {options.seed}"
    )
    print(
        f"step {setup.step_s:g} s, lease {setup.lease_s:g} s, restart after "
        f"{RESTART_S / options.compression:g} s, outages {OUTAGE_S[0] / options.compression:g} to "
        f"{OUTAGE_S[1] / options.compression:g} s; {setup.fragments} fragments, H "
        f"{setup.interval_steps}, quorum auto, durability commit, wire {setup.wire_dtype}"
    )
    print(
        f"links: {setup.link[0] * 1000:g} ms one way, {setup.link[1]:.1%} of the pieces "
        f"{setup.link[2] * 1000:g} ms late; {len(faults)} faults: {kinds}",
        flush=True,
    )


def print_story(storm: measure.Record, twin: measure.Record, compression: float) -> None:
    for name, record in (("storm", storm), ("twin", twin)):
        print(
            f"{name}: {len(record.rounds())} merges, "
            f"{rate(record, measure.trained_tokens(record)):.0f} tokens/s trained, participation "
            f"of all {measure.participation(record):.3f}, of those asked "
            f"{measure.captured_participation(record):.3f}, dropped "
            f"{measure.dropped_tokens(record) or 'nothing'}; this program stood still for at most "
            f"{record.late_s:.2f} s"
        )
    seen = measure.reactions(storm)
    print(f"seconds as measured (not multiplied by the compression of {compression:g}):")
    for what, values in (
        ("killed learner left out", seen.closed_seen),
        ("silent learner lost", seen.silence_seen),
        ("fault until the next merge", seen.resumed),
        ("restarted learner joins", seen.rejoined),
        ("healed learner in a merge", seen.back),
        ("killed syncer serves", seen.syncer_serving),
        ("killed syncer merges", seen.syncer_back),
    ):
        print(f"  {what}: {measure.summary(values)}")
    if max(storm.late_s, twin.late_s) > storm.lease_s / 2:
        print("  the machine was too busy for this compression: a standstill counts as silence")
    for line in measure.false_deaths(storm):
        print(f"  false death: seat {line['seat']}: {line['reason']}")
    sys.stdout.flush()


def suffix_of(options: Options) -> str:
    """Of the figures' names where a run is not the usual one."""
    if options.smoke:
        return "_smoke"
    learners = "" if options.learners == 16 else f"_m{options.learners}"
    return learners + ("" if options.wire_dtype == "auto" else f"_{options.wire_dtype}")


def print_figures(storm: measure.Record, twin: measure.Record, options: Options) -> None:
    def ratio(count: Callable[[measure.Record], float]) -> float:
        return rate(storm, count(storm)) / rate(twin, count(twin))

    suffix, compression = suffix_of(options), options.compression

    def tell(name: str, unit: str, values: list[float], **bounds: float) -> None:
        if values:
            print_figure(Figure(f"storm/{name}{suffix}", unit, **bounds), values)

    seen = measure.reactions(storm)
    # The few seconds of a smoke run hold more faults than any weather.
    kept, taking_part = ({}, {}) if options.smoke else (KEPT, TAKING_PART)
    tell("tokens_kept", "x fault-free", [ratio(measure.merged_tokens)], **kept)
    tell("tokens_trained", "x fault-free", [ratio(measure.trained_tokens)])
    tell("participation", "of all learners", [measure.participation(storm)], **taking_part)
    tell("detect_closed", "s", seen.closed_seen, limit=1.0)
    lease = [value / storm.lease_s for value in seen.silence_seen]
    tell("detect_silence", "x lease", lease, limit=1.1, aim=1.0)
    tell("resume", "steps", [value * compression / STEP_S for value in seen.resumed])
    tell("back", "steps", [value * compression / STEP_S for value in seen.back])
    tell("rejoin", "s", seen.rejoined, limit=1.0)
    tell("syncer_serving", "s", seen.syncer_serving, limit=3.0)
    tell("syncer_back", "steps", [value * compression / STEP_S for value in seen.syncer_back])
    tell("false_deaths", "learners", [float(len(measure.false_deaths(storm)))], limit=0.0)
    tell("ledger_unbalanced", "of samples", [float(measure.unbalanced(storm.ledgers))], limit=0.0)
    distinct = float(len(set(measure.final_digests(storm))))
    tell("final_digests", "distinct", [distinct], goal=1.0, limit=1.0)


def check_ends(record: measure.Record) -> None:
    count = len(measure.final_digests(record))
    if count != record.learners:
        raise StormError(f"{count} of {record.learners} learners told their final values")
    if not record.rounds():
        raise StormError("nothing was merged in the time that is measured")


def main() -> int:
    options = read_options()
    c = options.compression
    weather = Weather(
        # Room at the end, so that the last fault heals within the time that is measured.
        seconds=max(options.seconds - (OUTAGE_S[1] + RECOVERY_S) / c, options.seconds / 2),
        count=options.faults,
        learners=options.learners,
        restart_delay=RESTART_S / c,
        outage=(OUTAGE_S[0] / c, OUTAGE_S[1] / c),
        recovery=RECOVERY_S / c,
    )
    faults = draw(weather, options.seed)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="yeto-storm-"))
    print_conditions(options, faults)
    try:
        programs = Programs.find()
        storm = measured_run(programs, options, faults, options.seconds, folder / "storm")
        twin = measured_run(programs, options, [], options.twin_seconds, folder / "twin")
        check_ends(storm)
        check_ends(twin)
    except StormError as error:
        print(f"storm: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print_story(storm, twin, c)
    print_figures(storm, twin, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
