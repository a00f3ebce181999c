# SPDX-License-Identifier: Apache-2.0
"""Goal: the wheel works alone on a clean machine.

Method: a new virtual environment that gets only the wheel of dist/, without its extras.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# What every Linux has; everything else must be inside the executable.
PLAIN_LIBRARIES = {"linux-vdso", "libc", "libm", "libgcc_s", "libpthread", "libdl", "ld-linux",
                   "ld-linux-x86-64", "ld-linux-aarch64"}  # fmt: skip


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "."), **more}
    return subprocess.run(
        [str(word) for word in command], env=env, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel() -> Path:
    wheels = sorted((ROOT / "dist").glob("yeto-*.whl"))
    assert len(wheels) == 1, "scripts/setup builds exactly one wheel into dist/"
    return wheels[0]


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.EnvBuilder(with_pip=False).create(folder)
    done = run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install",
               "-q", "--no-deps", "--no-index", wheel)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def version() -> str:
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_executable_tells_its_version(clean: Path) -> None:
    done = run(clean / "yeto", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert version() in done.stdout


def test_bare_executable_prints_help(clean: Path) -> None:
    done = run(clean / "yeto")
    assert done.returncode == 0 and "launch" in done.stdout


def test_executable_needs_only_plain_libraries(clean: Path) -> None:
    listing = run("ldd", clean / "yeto").stdout
    names = {Path(line.split()[0]).name.split(".so")[0] for line in listing.splitlines() if line}
    assert names - PLAIN_LIBRARIES == set(), listing


def test_executable_is_native_and_stripped(clean: Path) -> None:
    data = (clean / "yeto").read_bytes()
    assert data[:4] == b"\x7fELF"
    assert b".debug_info" not in data


def test_import_is_light(clean: Path) -> None:
    code = "import sys, json, yeto; print(json.dumps(sorted(sys.modules)))"
    done = run(clean / "python", "-c", code)
    assert done.returncode == 0, done.stderr
    modules = set(json.loads(done.stdout))
    heavy = {"torch", "numpy", "transformers", "peft", "safetensors", "yeto._core"}
    assert not heavy & modules


def test_native_module_has_the_boundary(clean: Path) -> None:
    code = (
        "from yeto._core import Boundary, BoundaryError; print(BoundaryError.__mro__[1].__name__)"
    )
    done = run(clean / "python", "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "RuntimeError"), done.stderr


def test_python_module_is_the_same_program(clean: Path) -> None:
    done = run(clean / "python", "-m", "yeto", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(clean / "yeto", "--version").stdout


def test_learner_says_which_extra_is_missing(clean: Path, tmp_path: Path) -> None:
    flags = ["--check", "--model", tmp_path, "--data", tmp_path / "rows.jsonl"]
    done = run(clean / "yeto", "learner", *flags)
    assert done.returncode == 11
    assert "yeto[train]" in done.stderr and "Traceback" not in done.stderr


def test_wheel_holds_no_tests_and_no_sources(wheel: Path) -> None:
    import zipfile

    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".cc", ".h", "_test.py", "README.md"))]
    assert any(name.endswith(".data/scripts/yeto") for name in names)


def test_ldd_is_there() -> None:
    """Without it the test of libraries would look at nothing."""
    assert shutil.which("ldd")
