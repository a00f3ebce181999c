# SPDX-License-Identifier: Apache-2.0
"""From what a run left behind (tape, learners' lines, notes of the driver) to numbers.

All times are wall-clock seconds; the learners' monotonic ones are shifted when they are read.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A fault as it happened."""

    kind: str  # kill, pause, partition, syncer
    seat: int | None
    begin: float
    end: float  # the learner or the syncer was started again, went on, or was reachable


@dataclass
class Record:
    """One run."""

    learners: int
    lease_s: float
    begin: float  # of the time that is measured
    end: float
    faults: list[Done]
    tape: list[Line]
    events: dict[int, list[Line]]  # by seat
    ledgers: list[Line]
    recovery_s: float  # how long after a fault a lost session is still due to it
    late_s: float = 0.0  # how long the driver stood still, which the machine is to blame for

    def rounds(self) -> list[Line]:
        """Committed ones within the time that is measured."""
        return [
            line
            for line in self.tape
            if line["event"] == "round" and line["committed"] and self._within(line["ts"])
        ]

    def _within(self, ts: float) -> bool:
        return self.begin <= ts <= self.end


def merged_tokens(record: Record) -> float:
    """Fragment-tokens that reached the shared value."""
    return sum(row["tokens"] for line in record.rounds() for row in line["tokens"])


def trained_tokens(record: Record) -> float:
    """Tokens of the steps that learners took, kept or not."""
    total = 0.0
    for events in record.events.values():
        before = 0
        for line in events:
            if line["event"] == "start":
                before = 0
            elif line["event"] == "step":
                if record.begin <= line["ts"] <= record.end:
                    total += line["tokens"] - before
                before = line["tokens"]
    return total


def participation(record: Record) -> float:
    """Share of all learners, there or not, that a merge had the work of."""
    rounds = record.rounds()
    return sum(len(line["responded"]) for line in rounds) / (len(rounds) * record.learners)


def captured_participation(record: Record) -> float:
    """Share of the learners a round asked that answered it."""
    rounds = record.rounds()
    asked = sum(len(line["expected"]) for line in rounds)
    return sum(len(set(line["responded"]) & set(line["expected"])) for line in rounds) / asked


@dataclass
class Reactions:
    """Seconds, one value per fault where it applies."""

    closed_seen: list[float] = field(default_factory=list)  # kill → first launch that leaves it out
    silence_seen: list[float] = field(default_factory=list)  # silence → lost
    resumed: list[float] = field(default_factory=list)  # fault → next commit
    syncer_serving: list[float] = field(default_factory=list)  # kill → it listens again
    syncer_back: list[float] = field(default_factory=list)  # kill → its next commit
    rejoined: list[float] = field(default_factory=list)  # start of a process → values in place
    back: list[float] = field(default_factory=list)  # end of a fault → in a commit again


def first_after(times: Iterable[float], at: float) -> float | None:
    return min((time for time in times if time > at), default=None)


def add_delay(values: list[float], times: Iterable[float], at: float) -> None:
    later = first_after(times, at)
    if later is not None:
        values.append(later - at)


def reactions(record: Record) -> Reactions:
    out = Reactions()
    rounds = [line for line in record.tape if line["event"] == "round" and line["committed"]]
    commits = [line["ts"] for line in rounds]
    for fault in record.faults:
        add_delay(out.resumed, commits, fault.begin)
        if fault.seat is None:
            serving = [line["ts"] for line in record.tape if line["event"] == "run"]
            add_delay(out.syncer_serving, serving, fault.begin)
            add_delay(out.syncer_back, commits, fault.begin)
            continue
        answered = [line["ts"] for line in rounds if fault.seat in line["responded"]]
        add_delay(out.back, answered, fault.end)
        if fault.kind == "kill":
            add_delay(out.closed_seen, launches_without(record, fault.seat), fault.begin)
            ready = [e["ts"] for e in record.events[fault.seat] if e["event"] == "ready"]
            add_delay(out.rejoined, ready, fault.end)
        elif fault.end - fault.begin > 1.2 * record.lease_s:
            lost = [line["ts"] for line in lost_lines(record) if line["seat"] == fault.seat]
            add_delay(out.silence_seen, lost, fault.begin)
    return out


def launches_without(record: Record, seat: int) -> list[float]:
    """When rounds were launched that did not ask this learner. The tape has a round's own times in
    seconds since the syncer's start, and its line is written at the commit; a line that a restarted
    syncer wrote again has no times."""
    return [
        line["ts"] - (line["commit"] - line["launch"])
        for line in record.tape
        if line["event"] == "round"
        and line["committed"]
        and line["launch"] is not None
        and seat not in line["expected"]
    ]


def lost_lines(record: Record) -> list[Line]:
    return [line for line in record.tape if line["event"] == "lost"]


def explains(record: Record, fault: Done, line: Line) -> bool:
    """Whether a loss is due to a fault. A silence shorter than the lease must not cost the seat;
    the syncer's own end silences everybody until they are back."""
    if fault.seat not in (None, line["seat"]):
        return False
    silent = fault.kind in ("pause", "partition")
    if silent and fault.end - fault.begin < 0.8 * record.lease_s:
        return False
    return fault.begin <= line["ts"] <= fault.end + record.lease_s + record.recovery_s


def false_deaths(record: Record) -> list[Line]:
    """Losses of learners that no fault explains."""
    return [
        line
        for line in lost_lines(record)
        if record.begin <= line["ts"] <= record.end
        and not any(explains(record, fault, line) for fault in record.faults)
    ]


def unbalanced(ledgers: list[Line]) -> int:
    """Samples in which a pushed token is neither merged nor dropped nor waiting, or is twice."""
    return sum(
        1 for row in ledgers if row["pushed"] != row["merged"] + row["dropped"] + row["waiting"]
    )


def final_digests(record: Record) -> list[str]:
    return [
        line["digest"]
        for events in record.events.values()
        for line in events
        if line["event"] == "final"
    ]


def dropped_tokens(record: Record) -> dict[str, int]:
    """Pushes that rounds dropped, by reason."""
    counts: dict[str, int] = {}
    for line in record.tape:
        if line["event"] == "round":
            for row in line["dropped"]:
                counts[row["reason"]] = counts.get(row["reason"], 0) + 1
    return counts


def summary(values: list[float]) -> str:
    if not values:
        return "none"
    return f"median {statistics.median(values):.2f}, worst {max(values):.2f} ({len(values)})"
