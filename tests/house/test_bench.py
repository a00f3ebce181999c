# SPDX-License-Identifier: Apache-2.0
"""Goal: a figure is complete, kept, and never lost silently. Method: made programs and lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench

FIGURE = {"figure": "merge/x", "value": 1.07, "unit": "x triad", "goal": 1.0, "aim": 1.2,
          "pass": True, "n": 5, "spread": 0.06}  # fmt: skip
LESS = FIGURE | {"figure": "storm/y", "goal": None, "limit": 2.5}


def program(folder: Path, text: str, code: int = 0, seconds_max: int = 60) -> bench.Benchmark:
    path = folder / "bench_x"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    path.chmod(0o755)
    return bench.Benchmark("x", [str(path)], seconds_max, {})


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench, "OUT", tmp_path / "out")
    return tmp_path / "out"


def test_figures_are_kept_with_command_and_commit(tmp_path: Path, out: Path) -> None:
    text = f"a line for people\n{json.dumps(FIGURE)}"
    bench.run_one(program(tmp_path, text), "abc", "make bench BENCH=x")
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
        bench.run_one(program(tmp_path, text, code), "abc", "command")


def test_benchmark_that_never_ends_is_ended(tmp_path: Path, out: Path) -> None:
    endless = bench.Benchmark("x", ["cat", "/dev/zero"], 0, {})
    with pytest.raises(bench.BenchError, match="took more than 0 s"):
        bench.run_one(endless, "abc", "command")


def test_targets_are_read_from_ninja() -> None:
    listing = "bench_b: phony\nbench/bench_b: LINK\nbench_a: phony\nall: phony\n"
    assert bench.targets_of(listing) == ["a", "b"]


def test_packages_are_folders_with_a_main_module(tmp_path: Path) -> None:
    for name in ("b", "a", "no_main"):
        (tmp_path / name).mkdir()
    for name in ("b", "a"):
        (tmp_path / name / "__main__.py").touch()
    assert bench.packages_of(tmp_path) == ["a", "b"]
    assert "storm" in bench.packages_of(bench.FOLDER)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with the target `merge` and the package `storm`, where nothing is compiled."""

    def paths(names: list[str]) -> dict[str, Path]:
        return {name: Path(name) for name in names}

    monkeypatch.setattr(bench, "configure", lambda: ["merge"])
    monkeypatch.setattr(bench, "packages_of", lambda folder: ["storm"])
    monkeypatch.setattr(bench, "compile_targets", paths)
    monkeypatch.setattr(bench.setup, "set_up", lambda *arguments: None)


def test_packages_run_only_by_name(built: None) -> None:
    assert [one.command for one in bench.build([], [])] == [["bench_merge"]]
    storm = bench.build(["storm"], ["--smoke"])[0]
    assert storm.command[1:] == ["-m", "bench.storm", "--smoke"]
    assert storm.environment["YETO_BIN"] == "yeto"


def test_unknown_benchmark_is_refused_with_the_known_ones(built: None) -> None:
    with pytest.raises(bench.BenchError, match="no benchmark x; there are merge, storm"):
        bench.build(["x"], [])


def test_arguments_belong_to_one_benchmark() -> None:
    with pytest.raises(bench.BenchError, match="exactly one"):
        bench.run_all([], update=False, gate=False, arguments=["--smoke"])


def test_missed_goal_is_said() -> None:
    missed = FIGURE | {"pass": False, "commit": "abc"}
    assert "NO" in bench.table([missed])
    assert "| NO |" in bench.markdown([missed], "")


def test_limit_and_goal_have_columns_of_their_own() -> None:
    head, more, less = bench.table([FIGURE, LESS]).splitlines()
    assert head.split()[3:5] == ["limit", "goal"]
    assert more[head.index("limit") :].split()[:2] == ["–", "1"]
    assert less[head.index("limit") :].split()[:2] == ["2.5", "–"]


def test_rows_of_other_benchmarks_stay() -> None:
    def with_commit(figure: dict[str, Any], commit: str) -> dict[str, Any]:
        return figure | {"commit": commit}

    both = [with_commit(FIGURE, "one"), with_commit(FIGURE | {"figure": "merge/gone"}, "one")]
    first = bench.markdown([*both, with_commit(LESS, "one")], "")
    rows = bench.markdown([with_commit(FIGURE, "two")], first).splitlines()[2:]
    assert [(bench.row_name(row), "two" in row) for row in rows] == [
        ("merge/x", True),
        ("storm/y", False),
    ]


def test_only_the_marked_part_of_the_readme_is_written() -> None:
    text = f"head\n{bench.BEGIN}\nold\n{bench.END}\ntail\n"
    new = bench.updated_readme(text, [FIGURE | {"commit": "abc"}])
    assert new.startswith(f"head\n{bench.BEGIN}\n| figure") and new.endswith(f"{bench.END}\ntail\n")
    with pytest.raises(bench.BenchError):
        bench.updated_readme("no marks", [])


def test_readme_has_the_marks() -> None:
    assert bench.split_readme(bench.README.read_text())


@pytest.mark.parametrize(("gate", "code"), [(False, 0), (True, 1)])
def test_missed_goal_fails_only_where_asked(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, gate: bool, code: int
) -> None:
    missed = program(tmp_path, json.dumps(FIGURE | {"pass": False}))
    monkeypatch.setattr(bench, "build", lambda names, arguments: [missed])
    assert bench.run_all([], update=False, gate=gate, arguments=[]) == code
