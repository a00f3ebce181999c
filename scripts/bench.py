# SPDX-License-Identifier: Apache-2.0
"""Builds the benchmarks, runs them one after the other, and shows their figures.

    make bench [BENCH=name]      scripts/bench [name …] [--update] [--gate]

A benchmark is a target bench_NAME. It prints one JSON object per figure on stdout:
{"figure", "value", "unit", "goal", "aim", "pass", "n", "spread"}; other lines are for people.
Command and commit are added here, and the lines go to bench/out/NAME.jsonl.
--update writes the table of bench/README.md from what was measured. Exits with 1 if a benchmark
fails; with --gate also if a figure misses its goal.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import setup

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
OUT = ROOT / "bench" / "out"
README = ROOT / "bench" / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
FIELDS = ("figure", "value", "unit", "goal", "aim", "pass", "n", "spread")
SECONDS_MAX = 600


class BenchError(Exception):
    """A benchmark cannot be built or run; the text says why."""


def run_tool(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=setup.build_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} failed\n{done.stdout[-4000:]}")
    return done.stdout


def targets_of(listing: str) -> list[str]:
    """Benchmark names in ninja's list of targets (`bench_merge: phony`)."""
    names = (line.split(":")[0] for line in listing.splitlines())
    return sorted({name.removeprefix("bench_") for name in names if name.startswith("bench_")})


def build(names: list[str]) -> dict[str, Path]:
    """Builds the named benchmarks, or all; returns name → executable."""
    run_tool("cmake", "--preset", "release", "-DYETO_BENCH=ON")
    have = targets_of(run_tool("ninja", "-C", str(BUILD), "-t", "targets", "all"))
    if not have:
        raise BenchError("this build has no benchmark")
    unknown = [name for name in names if name not in have]
    if unknown:
        raise BenchError(f"no benchmark {', '.join(unknown)}; there are {', '.join(have)}")
    wanted = names or have
    run_tool("cmake", "--build", str(BUILD), "--target", *(f"bench_{name}" for name in wanted))
    found = {}
    for name in wanted:
        paths = [path for path in BUILD.rglob(f"bench_{name}") if path.is_file()]
        if len(paths) != 1:
            raise BenchError(f"target bench_{name} made {len(paths)} programs of that name")
        found[name] = paths[0]
    return found


def commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = "+changed" if git("status", "--porcelain", "--untracked-files=no") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def figure_of(line: str) -> dict[str, Any] | None:
    """The figure of a line of output, or nothing for a line meant for people."""
    if not line.startswith("{"):
        return None
    try:
        figure = json.loads(line)
    except ValueError as error:
        raise BenchError(f"not a JSON object: {line[:200]}") from error
    missing = [field for field in FIELDS if field not in figure]
    if missing:
        raise BenchError(f"figure {figure.get('figure')} lacks {', '.join(missing)}")
    return figure


def run_one(name: str, program: Path, head: str) -> list[dict[str, Any]]:
    print(f"bench: {name}", flush=True)
    try:
        done = subprocess.run(
            [str(program)], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"bench_{name} took more than {SECONDS_MAX} s") from error
    figures = []
    for line in done.stdout.splitlines():
        figure = figure_of(line)
        if figure is None:
            print(f"  {line}")
        else:
            figures.append(figure | {"command": f"make bench BENCH={name}", "commit": head})
    if done.returncode != 0:
        raise BenchError(f"bench_{name} ended with {done.returncode}")
    if not figures:
        raise BenchError(f"bench_{name} printed no figure")
    OUT.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(figure) + "\n" for figure in figures)
    (OUT / f"{name}.jsonl").write_text(text)
    print(text, end="", flush=True)
    return figures


def shown(value: float | int | None) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def verdict(figure: dict[str, Any]) -> str:
    return {True: "yes", False: "NO", None: "–"}[figure["pass"]]


def table(figures: list[dict[str, Any]]) -> str:
    rows = [("figure", "value", "unit", "goal", "aim", "spread", "n", "meets goal")]
    for figure in figures:
        numbers = [shown(figure[key]) for key in ("value", "goal", "aim", "spread", "n")]
        value, goal, aim, spread, count = numbers
        unit = str(figure["unit"])
        rows.append((figure["figure"], value, unit, goal, aim, spread, count, verdict(figure)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def markdown(figures: list[dict[str, Any]], head: str) -> str:
    lines = [
        f"Last measured at commit {head} on {os.cpu_count()} cores, {platform.machine()}.",
        "",
        "| figure | value | unit | goal | aim | spread | n | meets goal |",
        "|---|---:|---|---:|---:|---:|---:|---|",
    ]
    for figure in figures:
        numbers = [shown(figure[key]) for key in ("value", "goal", "aim", "spread", "n")]
        value, goal, aim, spread, count = numbers
        lines.append(
            f"| `{figure['figure']}` | {value} | {figure['unit']} | {goal} | {aim} | {spread} "
            f"| {count} | {verdict(figure)} |"
        )
    return "\n".join(lines)


def replace_table(text: str, new: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise BenchError(f"{README.name} lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def run_all(names: list[str], update: bool, gate: bool) -> int:
    programs = build(names)
    head = commit()
    figures = [figure for name in programs for figure in run_one(name, programs[name], head)]
    print(f"\n{table(figures)}")
    if update:
        README.write_text(replace_table(README.read_text(), markdown(figures, head)))
    return 1 if gate and any(figure["pass"] is False for figure in figures) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the benchmarks.")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--update", action="store_true", help="write bench/README.md's table")
    parser.add_argument("--gate", action="store_true", help="a missed goal is a failure")
    arguments = parser.parse_args()
    try:
        return run_all(arguments.names, arguments.update, arguments.gate)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
