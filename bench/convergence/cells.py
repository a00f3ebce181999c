# SPDX-License-Identifier: Apache-2.0
"""What is compared: one factor at a time around a centre, in two regimes, with paired seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

SEEDS = (0, 1, 2)
STEPS = 192


@dataclass(frozen=True)
class Regime:
    """`library_steps` and `language_steps`: what the base model was trained on before."""

    name: str
    library_steps: int
    language_steps: int
    lr: float


# Far from the optimum: fresh in its domain. Near it: already adapted to the text.
REGIMES = (Regime("far", 400, 0, 6e-3), Regime("near", 400, 600, 1e-3))


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
CELLS = [
    CENTRE,
    *(replace(CENTRE, islands=m) for m in (2, 8, 16)),
    *(replace(CENTRE, outer=outer) for outer in ("nesterov", "sgd", "direct")),
    replace(CENTRE, alpha=0.5),
    replace(CENTRE, alpha=0.5, reference="blended"),
    replace(CENTRE, correction="heloco"),
    replace(CENTRE, correction="heloco", outer="nesterov"),
    replace(CENTRE, merge="avg"),
    *(replace(CENTRE, interval=h) for h in (8, 96)),
    replace(CENTRE, codec="q4"),
    replace(CENTRE, late=0.3),
    *(replace(CENTRE, islands=8, outer=outer) for outer in ("nesterov", "sgd", "direct")),
    replace(CENTRE, islands=8, codec="q4"),
    replace(CENTRE, islands=8, late=0.3),
]
