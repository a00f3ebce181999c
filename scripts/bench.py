# SPDX-License-Identifier: Apache-2.0
"""Builds the benchmarks, runs them one after the other, and shows their figures.

    make bench [BENCH=name]
    scripts/bench [name …] [--update] [--gate] [-- arguments of the one benchmark]

A benchmark is a target bench_NAME, or a Python package bench/NAME (run as `python -m bench.NAME`).
The targets are the short set, which runs when no name is given; the packages take longer and run
only by name. A benchmark prints one JSON object per figure on stdout: {"figure", "value", "unit",
"goal", "aim", "pass", "n", "spread"}, and "limit" where less is better; other lines are for people.
Command and commit are added here, and the lines go to bench/out/NAME.jsonl.
--update writes the rows of what was measured into bench/README.md. Exits with 1 if a benchmark
fails; with --gate also if a figure misses its goal or limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import setup

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
FOLDER = ROOT / "bench"
OUT = FOLDER / "out"
README = FOLDER / "README.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
FIELDS = ("figure", "value", "unit", "goal", "aim", "pass", "n", "spread")
COLUMNS = ("figure", "value", "unit", "limit", "goal", "aim", "spread", "n", "met")
SECONDS_MAX = 600
PACKAGE_SECONDS_MAX = 24 * 3600
# Programs that the packages run beside Python.
HELPERS = ("yeto", "timer_learner")


class BenchError(Exception):
    """A benchmark cannot be built or run; the text says why."""


@dataclass(frozen=True)
class Benchmark:
    name: str
    command: list[str]
    seconds_max: int
    environment: dict[str, str]


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


def packages_of(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/__main__.py"))


def configure() -> list[str]:
    """Names of the benchmarks that are targets."""
    run_tool("cmake", "--preset", "release", "-DYETO_BENCH=ON")
    have = targets_of(run_tool("ninja", "-C", str(BUILD), "-t", "targets", "all"))
    if not have:
        raise BenchError("this build has no benchmark")
    return have


def compile_targets(names: list[str]) -> dict[str, Path]:
    """Builds targets that are programs; returns name → executable."""
    run_tool("cmake", "--build", str(BUILD), "--target", *names)
    found = {}
    for name in names:
        paths = [path for path in BUILD.rglob(name) if path.is_file()]
        if len(paths) != 1:
            raise BenchError(f"target {name} made {len(paths)} programs of that name")
        found[name] = paths[0]
    return found


def helper_environment(programs: dict[str, Path]) -> dict[str, str]:
    """YETO_BIN, TIMER_LEARNER_BIN: where the packages find their programs."""
    return {f"{name.upper()}_BIN": str(path) for name, path in programs.items()}


def prepare_helpers() -> dict[str, Path]:
    configure()
    return compile_targets(list(HELPERS))


def build(names: list[str], arguments: list[str]) -> list[Benchmark]:
    """Builds the named benchmarks, or the short set."""
    have, packages = configure(), packages_of(FOLDER)
    unknown = [name for name in names if name not in have + packages]
    if unknown:
        known = ", ".join(have + packages)
        raise BenchError(f"no benchmark {', '.join(unknown)}; there are {known}")
    wanted = names or have
    programs = [f"bench_{name}" for name in wanted if name in have]
    paths = compile_targets(programs) if programs else {}
    helpers = {}
    if set(wanted) & set(packages):
        # Packages import yeto from .venv and run programs of the build.
        setup.set_up("test", True, setup.Reporter(quiet=True))
        helpers = helper_environment(prepare_helpers())
    made = []
    for name in wanted:
        if name in have:
            command = [str(paths[f"bench_{name}"]), *arguments]
            made.append(Benchmark(name, command, SECONDS_MAX, {}))
        else:
            command = [str(setup.PYTHON), "-m", f"bench.{name}", *arguments]
            made.append(Benchmark(name, command, PACKAGE_SECONDS_MAX, helpers))
    return made


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


def lines_of(benchmark: Benchmark) -> list[str]:
    """Runs it; lines for people are shown as they come, the others are returned."""
    expired = threading.Event()
    kept = []
    with subprocess.Popen(
        benchmark.command, cwd=ROOT, env={**os.environ, **benchmark.environment},
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None

        def expire() -> None:
            expired.set()
            process.kill()

        timer = threading.Timer(benchmark.seconds_max, expire)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    kept.append(line.rstrip("\n"))
                else:
                    print(f"  {line}", end="", flush=True)
            process.wait()
        finally:
            timer.cancel()
            process.kill()
    if expired.is_set():
        raise BenchError(f"bench {benchmark.name} took more than {benchmark.seconds_max} s")
    if process.returncode != 0:
        raise BenchError(f"bench {benchmark.name} ended with {process.returncode}")
    return kept


def command_text(benchmark: Benchmark, arguments: list[str]) -> str:
    if not arguments:
        return f"make bench BENCH={benchmark.name}"
    return f"scripts/bench {benchmark.name} -- {shlex.join(arguments)}"


def run_one(benchmark: Benchmark, head: str, command: str) -> list[dict[str, Any]]:
    print(f"bench: {benchmark.name}", flush=True)
    figures = []
    for line in lines_of(benchmark):
        figure = figure_of(line)
        if figure is not None:
            figures.append(figure | {"command": command, "commit": head})
    if not figures:
        raise BenchError(f"bench {benchmark.name} printed no figure")
    OUT.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(figure) + "\n" for figure in figures)
    (OUT / f"{benchmark.name}.jsonl").write_text(text)
    print(text, end="", flush=True)
    return figures


def shown(value: float | int | None) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def verdict(figure: dict[str, Any]) -> str:
    return {True: "yes", False: "NO", None: "–"}[figure["pass"]]


def cells(figure: dict[str, Any]) -> list[str]:
    numbers = {name: shown(figure.get(name)) for name in COLUMNS[1:-1] if name != "unit"}
    return [
        str(figure["figure"]), numbers["value"], str(figure["unit"]), numbers["limit"],
        numbers["goal"], numbers["aim"], numbers["spread"], numbers["n"], verdict(figure),
    ]  # fmt: skip


def table(figures: list[dict[str, Any]]) -> str:
    rows = [list(COLUMNS), *(cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def row_name(row: str) -> str | None:
    """`merge/mean_m8` of a row of the table in README.md; nothing for its head."""
    return row.split("`")[1] if row.startswith("| `") else None


def markdown(figures: list[dict[str, Any]], before: str) -> str:
    """The table with these figures; rows of other benchmarks stay as they are in `before`."""
    measured = {figure["figure"].split("/")[0] for figure in figures}
    rows = {}
    for row in before.splitlines():
        name = row_name(row)
        if name is not None and name.split("/")[0] not in measured:
            rows[name] = row
    machine = f"{os.cpu_count()} × {platform.machine()}"
    for figure in figures:
        name, *rest = cells(figure)
        rows[name] = f"| `{name}` | {' | '.join(rest)} | {figure['commit']} | {machine} |"
    head = [
        f"| {' | '.join(COLUMNS)} | commit | cores |",
        "|---|---:|---|" + "---:|" * 5 + "---|" * 3,
    ]
    return "\n".join(head + [rows[name] for name in sorted(rows)])


def split_readme(text: str) -> tuple[str, str, str]:
    before, _, rest = text.partition(BEGIN)
    inside, found, after = rest.partition(END)
    if not found:
        raise BenchError(f"{README.name} lacks the marks {BEGIN} and {END}")
    return before, inside, after


def updated_readme(text: str, figures: list[dict[str, Any]]) -> str:
    before, inside, after = split_readme(text)
    return f"{before}{BEGIN}\n{markdown(figures, inside)}\n{END}{after}"


def run_all(names: list[str], update: bool, gate: bool, arguments: list[str]) -> int:
    if arguments and len(names) != 1:
        raise BenchError("arguments after -- belong to exactly one benchmark: name it")
    benchmarks = build(names, arguments)
    head = commit()
    figures = []
    for benchmark in benchmarks:
        figures += run_one(benchmark, head, command_text(benchmark, arguments))
    print(f"\n{table(figures)}")
    if update:
        README.write_text(updated_readme(README.read_text(), figures))
    return 1 if gate and any(figure["pass"] is False for figure in figures) else 0


def main() -> int:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description="Runs the benchmarks.")
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--update", action="store_true", help="write bench/README.md's rows")
    parser.add_argument("--gate", action="store_true", help="a missed goal or limit is a failure")
    arguments = parser.parse_args(given[:cut])
    try:
        return run_all(arguments.names, arguments.update, arguments.gate, given[cut + 1 :])
    except (BenchError, setup.SetupError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
