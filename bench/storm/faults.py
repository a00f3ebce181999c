# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a storm, drawn from one seed before it begins."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    KILL = "kill"  # kill -9 of a learner, which is started again after the duration
    PAUSE = "pause"  # SIGSTOP until SIGCONT
    PARTITION = "partition"  # nothing passes the learner's link, either way
    SYNCER = "syncer"  # kill -9 of the syncer, which is started again at once


# Share of each kind. What ends or cuts off a learner is the common case.
SHARES = {Kind.KILL: 0.45, Kind.PAUSE: 0.2, Kind.PARTITION: 0.2, Kind.SYNCER: 0.15}


@dataclass(frozen=True)
class Fault:
    kind: Kind
    at: float  # seconds after the storm's begin
    duration: float  # seconds
    seat: int | None  # none: the syncer


@dataclass(frozen=True)
class Weather:
    """All times in seconds of the clock."""

    seconds: float
    count: int
    learners: int
    restart_delay: float  # of a killed learner
    outage: tuple[float, float]  # shortest and longest pause or partition
    recovery: float  # a learner is left alone for so long after a fault


def kinds_of(count: int) -> list[Kind]:
    """`count` kinds in the given shares, each at least once where the count allows it."""
    exact = {kind: share * count for kind, share in SHARES.items()}
    whole = {kind: max(int(value), 1) for kind, value in exact.items()}
    kinds = [kind for kind in Kind for _ in range(whole[kind])]
    by_rest = sorted(Kind, key=lambda kind: whole[kind] - exact[kind])
    for i in range(count - len(kinds)):
        kinds.append(by_rest[i % len(by_rest)])
    return kinds[:count]


def draw(weather: Weather, seed: int) -> list[Fault]:
    """Faults in the order of their times. They come independently of each other, as the times of a
    Poisson process do, but a learner is not hit again before it had time to recover."""
    rng = random.Random(seed)
    kinds = kinds_of(weather.count)
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0, weather.seconds) for _ in kinds)
    busy_until = dict.fromkeys(range(weather.learners), 0.0)
    faults = []
    for kind, at in zip(kinds, times, strict=True):
        if kind is Kind.SYNCER:
            faults.append(Fault(kind, at, 0.0, None))
            continue
        free = [seat for seat, until in busy_until.items() if until <= at]
        seat = rng.choice(free or list(busy_until))
        if not free:
            at = busy_until[seat]
        kill = kind is Kind.KILL
        duration = weather.restart_delay if kill else rng.uniform(*weather.outage)
        busy_until[seat] = at + duration + weather.recovery
        faults.append(Fault(kind, at, duration, seat))
    return sorted(faults, key=lambda fault: fault.at)
