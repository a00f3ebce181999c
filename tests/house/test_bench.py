# SPDX-License-Identifier: Apache-2.0
"""Goal: a figure is complete, kept, and never lost silently. Method: made programs and lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bench

FIGURE = {"figure": "merge/x", "value": 1.07, "unit": "x triad", "goal": 1.0, "aim": 1.2,
          "pass": True, "n": 5, "spread": 0.06}  # fmt: skip


def program(folder: Path, text: str, code: int = 0) -> Path:
    path = folder / "bench_x"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench, "OUT", tmp_path / "out")
    return tmp_path / "out"


def test_figures_are_kept_with_command_and_commit(tmp_path: Path, out: Path) -> None:
    text = f"a line for people\n{json.dumps(FIGURE)}"
    bench.run_one("x", program(tmp_path, text), "abc")
    kept = json.loads((out / "x.jsonl").read_text())
    assert kept == FIGURE | {"command": "make bench BENCH=x", "commit": "abc"}


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("nothing", 0, "printed no figure"),
        (json.dumps(FIGURE), 3, "ended with 3"),
        ('{"figure": "x", "value": 1}', 0, "lacks unit, goal"),
        ('{"figure": ', 0, "not a JSON object"),
    ],
)
def test_incomplete_benchmark_is_refused(
    tmp_path: Path, out: Path, text: str, code: int, reason: str
) -> None:
    with pytest.raises(bench.BenchError, match=reason):
        bench.run_one("x", program(tmp_path, text, code), "abc")


def test_targets_are_read_from_ninja() -> None:
    listing = "bench_b: phony\nbench/bench_b: LINK\nbench_a: phony\nall: phony\n"
    assert bench.targets_of(listing) == ["a", "b"]


def test_missed_goal_is_said() -> None:
    assert "NO" in bench.table([FIGURE | {"pass": False}])
    assert "| NO |" in bench.markdown([FIGURE | {"pass": False}], "abc")


def test_only_the_marked_part_of_the_readme_is_written() -> None:
    text = f"head\n{bench.BEGIN}\nold\n{bench.END}\ntail\n"
    assert bench.replace_table(text, "new") == f"head\n{bench.BEGIN}\nnew\n{bench.END}\ntail\n"
    with pytest.raises(bench.BenchError):
        bench.replace_table("no marks", "new")


def test_readme_has_the_marks() -> None:
    assert bench.replace_table(bench.README.read_text(), "x")


@pytest.mark.parametrize(("gate", "code"), [(False, 0), (True, 1)])
def test_missed_goal_fails_only_where_asked(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, gate: bool, code: int
) -> None:
    missed = program(tmp_path, json.dumps(FIGURE | {"pass": False}))
    monkeypatch.setattr(bench, "build", lambda names: {"x": missed})
    assert bench.run_all([], update=False, gate=gate) == code
