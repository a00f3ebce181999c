# SPDX-License-Identifier: Apache-2.0
"""The one form of a figure, for the benchmarks that are Python packages (see bench/figure.h)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`goal` is the least that is asked; where less is better, `limit` is the most. Neither: the
    figure is only told."""

    name: str  # "storm/tokens_kept"
    unit: str
    goal: float | None = None
    limit: float | None = None
    aim: float | None = None

    def met(self, value: float) -> bool | None:
        if self.goal is None and self.limit is None:
            return None
        reaches = self.goal is None or value >= self.goal
        return reaches and (self.limit is None or value <= self.limit)

    def line(self, values: Sequence[float]) -> str:
        """The median of `values` and the distance of the quartiles divided by it."""
        if not values:
            raise ValueError(f"no value for {self.name}")
        value = statistics.median(values)
        width = 0.0
        if len(values) > 1:
            low, _, high = statistics.quantiles(values, n=4, method="inclusive")
            width = high - low
        return json.dumps(
            {
                "figure": self.name,
                "value": float(f"{value:.4g}"),
                "unit": self.unit,
                "limit": self.limit,
                "goal": self.goal,
                "aim": self.aim,
                "pass": self.met(value),
                "n": len(values),
                "spread": float(f"{width / value if value else 0.0:.2g}"),
            }
        )


def print_figure(figure: Figure, values: Sequence[float]) -> None:
    print(figure.line(values), flush=True)
