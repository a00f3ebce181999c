# SPDX-License-Identifier: Apache-2.0
"""What is compared: one factor at a time around a centre, in two regimes, with paired seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

SEEDS = (0, 1, 2)
STEPS = 192


@dataclass(frozen=True)
class Regime:
    """`prose_steps` and `code_steps`: what the base model was trained on before."""

    name: str
    prose_steps: int
    code_steps: int
    lr: float


# Far from the optimum: fresh in its domain. Near it: already adapted to the text.
# The synchronous run of 4 islands' rows is at its best at 3e-3 far and at 1e-4 near; the cells
# with another `lr` are there for what depends on it.
REGIMES = (Regime("far", 1500, 0, 1e-3), Regime("near", 1500, 1500, 3e-4))


@dataclass(frozen=True)
class Cell:
    islands: int = 4
    outer: str = "auto"
    alpha: float = 0.0
    reference: str = "raw"
    correction: str = "none"
    merge: str = "rda"
    interval: int = 24
    codec: str = "bf16"
    late: float = 0.0  # share of the pushes that come after their round has closed
    fragments: int = 4
    lr: float = 1.0  # times that of the regime, of the synchronous run too
    lora: int = 0  # rank; 0: all values are trained

    def name(self) -> str:
        """What differs from the centre: `centre`, `islands=8 outer=sgd` …"""
        plain = Cell()
        parts = [
            f"{field}={value}"
            for field, value in vars(self).items()
            if value != getattr(plain, field)
        ]
        return " ".join(parts) or "centre"


CENTRE = Cell()
EIGHT = replace(CENTRE, islands=8)
CELLS = [
    CENTRE,
    *(replace(CENTRE, outer=outer) for outer in ("nesterov", "sgd", "direct")),
    EIGHT,
    *(replace(EIGHT, outer=outer) for outer in ("nesterov", "sgd", "direct")),
    replace(EIGHT, codec="q4"),
    *(replace(CENTRE, islands=m) for m in (2, 16)),
    *(replace(CENTRE, interval=h) for h in (8, 96)),
    replace(CENTRE, alpha=0.5),
    replace(CENTRE, alpha=0.5, reference="blended"),
    replace(CENTRE, correction="heloco"),
    replace(CENTRE, merge="avg"),
    replace(CENTRE, codec="q4"),
    replace(CENTRE, late=0.3),
    *(replace(CENTRE, lr=3.0, outer=outer) for outer in ("auto", "nesterov", "direct")),
    *(replace(CENTRE, lora=8, lr=3.0, outer=outer) for outer in ("auto", "nesterov", "direct")),
    # What no outer rule can be blamed for: plain averages, seldom and after every step.
    *(replace(EIGHT, outer="direct", merge="avg", interval=h) for h in (24, 4)),
]
