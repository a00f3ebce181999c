# SPDX-License-Identifier: Apache-2.0
"""Formatters, linters and our own rules, each reported as one check.

    python scripts/lint.py [--fix]

--fix formats instead of checking the format. Run by the Python of .venv, which has the tools.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import tidy

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
PYTHON_FOLDERS = ["python", "scripts", "tests", "bench"]
# Each is checked as one program: the scripts import each other by file name.
MYPY_TARGETS = [["python/yeto"], ["scripts"], ["tests/arrows"]]


def run(command: list[str], **more: str) -> bool:
    env = dict(os.environ, **more)
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0


def cpp_files() -> list[str]:
    suffixes = (".h", ".cc", ".c", ".inc")
    return [name for name in tidy.tracked(ROOT) if name.endswith(suffixes)]


def clang_format(fix: bool) -> bool:
    files = cpp_files()
    mode = ["-i"] if fix else ["--dry-run", "--Werror"]
    return bool(files) and run([str(TOOLS / "clang-format"), *mode, *files])


def python_folders() -> list[str]:
    return [name for name in PYTHON_FOLDERS if any((ROOT / name).rglob("*.py"))]


def ruff(fix: bool) -> bool:
    mode = ["--fix"] if fix else []
    return run([str(TOOLS / "ruff"), "check", "--quiet", *mode, *python_folders()])


def ruff_format(fix: bool) -> bool:
    mode = [] if fix else ["--check"]
    return run([str(TOOLS / "ruff"), "format", "--quiet", *mode, *python_folders()])


def mypy(fix: bool) -> bool:
    del fix
    results = [
        run([str(TOOLS / "mypy"), "--no-error-summary", *target], MYPYPATH=mypy_path(target[0]))
        for target in MYPY_TARGETS
        if any((ROOT / target[0]).rglob("*.py"))
    ]
    return bool(results) and all(results)


def mypy_path(target: str) -> str:
    return "python" if target.startswith("python") else target


def own_rules(fix: bool) -> bool:
    del fix
    breaches = tidy.check(ROOT)
    for breach in breaches:
        print(breach)
    return not breaches


CHECKS: list[tuple[str, Callable[[bool], bool]]] = [
    ("clang-format", clang_format),
    ("ruff", ruff),
    ("ruff format", ruff_format),
    ("mypy", mypy),
    ("tidy", own_rules),
]


def check_all(fix: bool = False) -> tuple[int, int]:
    """(passed, failed) over all checks."""
    passed = failed = 0
    for name, function in CHECKS:
        good = function(fix)
        print(f"lint: {name}: {'ok' if good else 'FAILED'}", flush=True)
        passed, failed = passed + good, failed + (not good)
    return passed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the sources; --fix formats them.")
    parser.add_argument("--fix", action="store_true")
    _, failed = check_all(parser.parse_args().fix)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
