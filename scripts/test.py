# SPDX-License-Identifier: Apache-2.0
"""Runs every check and test, stage by stage, and counts over all runners.

    scripts/test [--stages lint,release,…] [--check-all] [--tidy-all]

Stages of `make test`: lint, release, install, dev, python, e2e.
Stages of `make check-all`: tsan, clang, fuzz, tidy. Of `make fuzz`: fuzz-inputs.
A stage that fails does not stop the later ones, except those that need what it builds. A stage that
runs no test has failed. The last line is `N passed, N failed`. Logs lie in build/test-logs/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import lint
import setup
import tidy

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test-logs"
JOBS = str(max(2, os.cpu_count() or 2))
TAIL_LINES = 80
FUZZ_SECONDS = 30  # each target, by `make check-all`
FUZZ_INPUTS = 10_000_000  # all targets together, by `make fuzz`
# Targets whose inputs open sockets, write files or shake hands: these many each, the others share
# the rest.
FUZZ_SLOW = {
    "endpoint_fuzz": 200_000,
    "endpoint_text_fuzz": 200_000,
    "link_input_fuzz": 100_000,
    "manifest_fuzz": 200_000,
    "run_files_fuzz": 100_000,
    "server_input_fuzz": 50_000,
    "tape_fuzz": 100_000,
    "tls_engine_fuzz": 50_000,
}
TSAN_LABELS = "^(base|net|sync/server|sync/link|sync/boundary)$"


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text


@dataclass
class Stage:
    """One row of the final table."""

    name: str
    run: Callable[[], Count]
    needs: tuple[str, ...] = ()
    count: Count = field(default_factory=Count)
    seconds: float = 0.0
    note: str = ""

    @property
    def good(self) -> bool:
        return self.count.failed == 0 and self.count.passed > 0


class StageError(Exception):
    """The stage could not run its tests; the text says why."""


def environment() -> dict[str, str]:
    env = setup.build_environment()
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
    env.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1")
    env["YETO_BIN"] = str(setup.VENV / "bin" / "yeto")
    env["YETO_PYTHON"] = str(setup.PYTHON)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def logged(log: str, command: list[str], must: bool = True, cwd: Path = ROOT) -> int:
    """Runs a command into build/test-logs/LOG. On failure shows the end of the log."""
    path = LOGS / f"{log}.log"
    with open(path, "ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        code = subprocess.run(
            command,
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code != 0:
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        print("\n".join(f"  | {line}" for line in lines), flush=True)
        if must:
            raise StageError(f"exit {code}: {' '.join(command)} (log: {path.relative_to(ROOT)})")
    return code


def count_ctest(path: Path) -> Count:
    """Counts a JUnit file of ctest; a test that could not be started is a failed one."""
    count = Count()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        status = case.get("status")
        if status == "run":
            count.passed += 1
        elif status == "disabled":
            count.skipped += 1
        else:
            count.failed += 1
    return count


def count_pytest(path: Path) -> Count:
    count = Count()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        children = {child.tag for child in case}
        if children & {"failure", "error"}:
            count.failed += 1
        elif "skipped" in children:
            count.skipped += 1
        else:
            count.passed += 1
    return count


def configure_and_build(preset: str) -> Path:
    folder = ROOT / "build" / preset
    logged(preset, ["cmake", "--preset", preset])
    logged(preset, ["cmake", "--build", str(folder), "-j", JOBS])
    return folder


def ctest(preset: str, *more: str) -> Count:
    folder = configure_and_build(preset)
    report = LOGS / f"{preset}.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(folder), "--output-on-failure", "-j", JOBS]
    code = logged(preset, [*command, "--output-junit", str(report), *more], must=False)
    if not report.exists():
        raise StageError(f"ctest wrote no report (exit {code})")
    return agree(count_ctest(report), code)


def pytest(name: str, folders: list[str]) -> Count:
    present = [folder for folder in folders if (ROOT / folder).is_dir()]
    report = LOGS / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [str(setup.PYTHON), "-m", "pytest", "-q", "--durations=10", *present]
    code = logged(name, [*command, f"--junitxml={report}"], must=False)
    if not report.exists():
        raise StageError(f"pytest wrote no report (exit {code})")
    return agree(count_pytest(report), code)


def agree(count: Count, code: int) -> Count:
    """A runner that failed although every counted test passed has failed once more."""
    if code != 0 and count.failed == 0:
        count.failed += 1
    return count


def stage_lint() -> Count:
    passed, failed = lint.check_all()
    return Count(passed, failed)


def stage_install() -> Count:
    logged("install", [sys.executable, str(ROOT / "scripts" / "setup.py"), "test"])
    return pytest("install", ["tests/install"])


def stage_tsan() -> Count:
    return ctest("tsan", "-L", TSAN_LABELS)


def fuzz_targets(folder: Path) -> list[str]:
    listing = subprocess.run(
        ["ninja", "-C", str(folder), "-t", "targets", "all"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return fuzz_names(listing.stdout)


def fuzz_names(listing: str) -> list[str]:
    """Fuzz targets among ninja's; paths and CMake's own helper targets are left out."""
    names = {line.split(":")[0] for line in listing.splitlines()}
    return sorted(name for name in names if re.fullmatch(r"(?!cmake_)\w+_fuzz", name))


def fuzz_runs(names: list[str]) -> dict[str, int]:
    """How many inputs each target gets, so that together they are at least FUZZ_INPUTS."""
    slow = {name: FUZZ_SLOW[name] for name in names if name in FUZZ_SLOW}
    fast = [name for name in names if name not in slow]
    if not fast:
        return {name: max(runs, FUZZ_INPUTS // len(slow) + 1) for name, runs in slow.items()}
    share = -(-(FUZZ_INPUTS - sum(slow.values())) // len(fast))
    return {name: slow.get(name, share) for name in names}


def fuzz_inputs(log: str) -> int:
    """Inputs that libFuzzer says it ran, 0 if it did not come to say so."""
    found = re.findall(r"^stat::number_of_executed_units:\s*(\d+)", log, re.MULTILINE)
    return int(found[-1]) if found else 0


def run_fuzz(name: str, program: Path, limit: str) -> tuple[int, int]:
    """One target on its kept corpus (fuzz/corpus/TARGET, if any): exit code and inputs."""
    corpus, kept = LOGS / f"corpus-{name}", ROOT / "fuzz" / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    command = [str(program), limit, "-rss_limit_mb=2048", "-len_control=0", "-print_final_stats=1"]
    command += [f"-artifact_prefix={LOGS}/{name}-", str(corpus)]
    code = logged(name, command + ([str(kept)] if kept.is_dir() else []), must=False)
    return code, fuzz_inputs((LOGS / f"{name}.log").read_text(errors="replace"))


def fuzz_all(limits: Callable[[list[str]], dict[str, str]]) -> tuple[Count, int]:
    """Builds all targets, runs as many at once as there are cores; their count and all inputs."""
    folder = ROOT / "build" / "fuzz"
    logged("fuzz", ["cmake", "--preset", "fuzz"])
    names = fuzz_targets(folder)
    logged("fuzz", ["cmake", "--build", str(folder), "-j", JOBS, "--target", *names])
    programs = {name: next(p for p in folder.rglob(name) if p.is_file()) for name in names}
    limit = limits(names)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        results = pool.map(lambda n: run_fuzz(n, programs[n], limit[n]), names)
        ran = dict(zip(names, results, strict=True))
    count = Count()
    for name, (code, inputs) in ran.items():
        good = code == 0 and inputs > 0
        print(f"   {name:<24} {inputs:>10,} inputs{'' if good else '  FAILED'}", flush=True)
        count.add(Count(passed=good, failed=not good))
    total = sum(inputs for _, inputs in ran.values())
    print(f"   {'all together':<24} {total:>10,} inputs", flush=True)
    return count, total


def stage_fuzz() -> Count:
    return fuzz_all(lambda names: {n: f"-max_total_time={FUZZ_SECONDS}" for n in names})[0]


def stage_fuzz_inputs() -> Count:
    count, total = fuzz_all(lambda names: {n: f"-runs={r}" for n, r in fuzz_runs(names).items()})
    if total < FUZZ_INPUTS and count.failed == 0:
        raise StageError(f"only {total:,} of {FUZZ_INPUTS:,} inputs were run")
    return count


def changed_sources(everything: bool) -> list[str]:
    """Our .cc files; without `everything` those that differ from origin/main or the last commit."""
    sources = [name for name in tidy.tracked(ROOT) if name.endswith(".cc")]
    if everything:
        return sources
    for base in ("origin/main", "HEAD~1"):
        listing = subprocess.run(
            ["git", "diff", "--name-only", base],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        changed = set(listing.stdout.split())
        if listing.returncode == 0 and changed & set(sources):
            return [name for name in sources if name in changed]
    return sources


def stage_tidy(everything: bool) -> Count:
    program = next((p for p in ("clang-tidy-19", "clang-tidy-20", "clang-tidy") if which(p)), None)
    if program is None:
        raise StageError("clang-tidy was not found; scripts/setup check-all installs it as root")
    logged("tidy", ["cmake", "--preset", "clang"])
    build = str(ROOT / "build" / "clang")
    count = Count()
    for name in changed_sources(everything):
        code = logged("tidy", [program, "--quiet", "-p", build, name], must=False)
        count.add(Count(passed=code == 0, failed=code != 0))
    return count


def which(program: str) -> bool:
    return shutil.which(program) is not None


def stages_of(arguments: argparse.Namespace) -> list[Stage]:
    normal = [
        Stage("lint", stage_lint),
        Stage("release", lambda: ctest("release")),
        Stage("install", stage_install),
        Stage("dev", lambda: ctest("dev")),
        Stage("python", lambda: pytest("python", ["python/tests", "tests/house"]), ("install",)),
        Stage("e2e", lambda: pytest("e2e", ["tests/e2e"]), ("install",)),
    ]
    deep = [
        Stage("tsan", stage_tsan),
        Stage("clang", lambda: ctest("clang")),
        Stage("fuzz", stage_fuzz),
        Stage("tidy", lambda: stage_tidy(arguments.tidy_all)),
    ]
    if not arguments.stages:
        return deep if arguments.check_all else normal
    wanted = arguments.stages.split(",")
    alone = [Stage("fuzz-inputs", stage_fuzz_inputs)]
    known = {stage.name: stage for stage in normal + deep + alone}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"test: no stage {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted]


def run_stage(stage: Stage, unbuilt: set[str]) -> None:
    begin = time.monotonic()
    print(f"== {stage.name}", flush=True)
    blocked = [name for name in stage.needs if name in unbuilt]
    try:
        if blocked:
            raise StageError(f"not run: stage {blocked[0]} could not build what it needs")
        stage.count = stage.run()
        if stage.count.passed + stage.count.failed == 0:
            raise StageError("ran no test")
    except StageError as error:
        stage.count.failed += 1
        stage.note = str(error)
        unbuilt.add(stage.name)
    stage.seconds = time.monotonic() - begin
    verdict = "ok" if stage.good else "FAILED"
    note = f" ({stage.note})" if stage.note else ""
    print(f"== {stage.name}: {verdict}: {stage.count} in {stage.seconds:.0f} s{note}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every check and test.")
    parser.add_argument("--stages", help="only these, separated by commas")
    parser.add_argument("--check-all", action="store_true", help="tsan, clang, fuzz, tidy")
    parser.add_argument("--tidy-all", action="store_true", help="clang-tidy on every file")
    parser.add_argument("--setup-seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    stages = stages_of(arguments)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    total, unbuilt = Count(), set[str]()
    for stage in stages:
        run_stage(stage, unbuilt)
        total.add(stage.count)
    print(f"\n{'stage':<10} {'seconds':>8}  result")
    print(f"{'setup':<10} {arguments.setup_seconds:>8.0f}  ok")
    for stage in stages:
        mark = "ok" if stage.good else "FAILED"
        print(f"{stage.name:<10} {stage.seconds:>8.0f}  {mark}: {stage.count}")
    print(total, flush=True)
    return 0 if all(stage.good for stage in stages) else 1


if __name__ == "__main__":
    sys.exit(main())
