# SPDX-License-Identifier: Apache-2.0
"""Goal: islands in one process exchange by the real rules. Method: quadratics with known minima."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from yeto import _core

SHAPES = [("layers.0.w", [12, 4]), ("layers.1.w", [30])]
SETTINGS: dict[str, object] = {
    "seed": 1,
    "islands": 3,
    "fragments": 2,
    "sync_interval_steps": 4,
    "limit_steps": 40,
    "tokens": 16,
    "quorum": 3,
    "outer": "direct",
    "merge_alpha": 0.0,
    "delta_reference": "raw",
    "correction": "none",
    "matrix_merge": "avg",
    "codec": "f32",
    "uneven_links": False,
}


class Trainer:
    """Island m pulls every value towards m; the islands' mean is their number's middle."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def step(self, island: int, step: int, values: list[list[Any]]) -> None:
        self.steps.append((island, step))
        for value in values[island]:
            value -= 0.2 * (value - island)


def run(**changes: object) -> tuple[dict[str, Any], Trainer]:
    trainer = Trainer()
    initial = [np.full(np.prod(shape), 8.0, dtype=np.float32) for _, shape in SHAPES]
    report = _core.simulate(
        settings=SETTINGS | changes, tensors=SHAPES, initial=initial, on_step=trainer.step
    )
    return report, trainer


def test_islands_end_at_the_mean_of_their_minima() -> None:
    report, trainer = run()
    for values in report["values"]:
        assert np.abs(values - 1.0).max() < 0.2
    assert report["commits"] >= 16 and report["pushes_carried"] == 0
    steps = [(m, s) for s in range(40) for m in range(3)]
    assert trainer.steps[: len(steps)] == steps


def test_the_same_seed_gives_the_same_bits() -> None:
    first, second = run(codec="q4")[0], run(codec="q4")[0]
    for a, b in zip(first["values"], second["values"], strict=True):
        assert a.tobytes() == b.tobytes()


def test_late_pushes_are_carried() -> None:
    report, _ = run(quorum=2, uneven_links=True)
    assert report["pushes_carried"] > 0
    for values in report["values"]:
        assert np.abs(values - 1.0).max() < 1.0


@pytest.mark.parametrize(
    ("changes", "words"), [({"outer": "newton"}, "newton"), ({"codec": "f8"}, "f8")]
)
def test_unknown_settings_are_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(**changes)
