# SPDX-License-Identifier: Apache-2.0
"""Data leases as docs/PROTOCOL.md states them: what was granted, trained and is settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

REQUEST, GRANT, COMPLETE, RETURN = range(4)


class Fate(Enum):
    """Of the work of a step in one fragment."""

    OPEN = 0
    SETTLED = 1
    LOST = 2


@dataclass
class Range:
    epoch: int
    first: int
    count: int


@dataclass
class Kept:
    """A delta that counts: it holds the steps in (after, until]. Its round is at most `round`."""

    after: int
    until: int
    round: int | None = None  # not known before the next HEARTBEAT

    def durable(self, step: int) -> bool:
        return self.round is not None and self.round <= step


@dataclass
class Rows:
    rows: int
    say: Callable[..., None]
    granted: list[Range] = field(default_factory=list)
    trained: list[tuple[int, Range]] = field(default_factory=list)  # with the step
    asked: bool = False
    exhausted: bool = False

    def _send(self, action: int, range_: Range) -> None:
        fields: dict[str, Any] = {**vars(range_), "action": action, "rows": self.rows}
        self.say("DATA", **fields)

    def begin_session(self) -> None:
        """What an earlier session was granted is given out again."""
        self.granted, self.trained, self.asked, self.exhausted = [], [], False, False

    def take(self, most: int, step: int) -> int:
        """Positions for this step; none: a request is under way, or nothing is left."""
        if not self.granted:
            if not self.asked and not self.exhausted:
                self.asked = True
                self._send(REQUEST, Range(0, 0, 4 * most))
            return 0
        lease = self.granted[0]
        count = min(most, lease.count)
        self.trained.append((step, Range(lease.epoch, lease.first, count)))
        self.granted[0] = Range(lease.epoch, lease.first + count, lease.count - count)
        if self.granted[0].count == 0:
            self.granted.pop(0)
        return count

    def heard(self, data: dict[str, Any]) -> None:
        assert data["action"] == GRANT
        self.asked = False
        self.exhausted = data["count"] == 0
        if data["count"]:
            self.granted.append(Range(data["epoch"], data["first"], data["count"]))

    def settle(self, fates: Callable[[int], set[Fate]]) -> None:
        """`fates` of a step: one per fragment. Its rows are complete when the deltas of all of them
        count and are durable, and go back when one of them can count no more.
        """
        open_ = []
        for step, range_ in self.trained:
            found = fates(step)
            if Fate.LOST in found:
                self._send(RETURN, range_)
                self.exhausted = False
            elif found == {Fate.SETTLED}:
                self._send(COMPLETE, range_)
            else:
                open_.append((step, range_))
        self.trained = open_

    def give_up(self) -> None:
        """No step will be made any more: what was granted and not trained goes back."""
        for range_ in self.granted:
            self._send(RETURN, range_)
        self.granted = []
