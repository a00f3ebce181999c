# SPDX-License-Identifier: Apache-2.0
"""Everything a fresh clone needs before it can run, build or test; safe to repeat.

    scripts/setup [run|test|lint|check-all] [--quiet]

run        system packages, .venv with the training packages, `yeto` built and installed into it
test       run, and the packages of the tests and linters
lint       only the packages of the linters
check-all  test, and clang 19 with its tools

Each step leaves a stamp: a digest of what it was made from. A step whose stamp still fits is not
done again, so a second start takes about a second. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "yeto-stamps"
CMAKE_MIN = (3, 24)

# Debian's names. `a|b` is the first of these that the distribution has. A package whose program is
# already on PATH (third column) is not asked for again.
APT_BUILD = [
    ("g++", "c++ compiler", None),
    ("cmake", "build files", "cmake"),
    ("ninja-build", "build", "ninja"),
    ("ccache", "compiler cache", "ccache"),
    ("libasio-dev", "sockets", None),
    ("libssl-dev", "digests", None),
    ("nlohmann-json3-dev", "JSON", None),
    ("libfmt-dev", "text", None),
    ("libspdlog-dev", "log", None),
    ("libexpected-dev", "results", None),
    ("libxxhash-dev", "checksums", None),
]
APT_TEST = [
    ("libgtest-dev", "C++ tests", None),
    ("procps", "process tests", "ps"),
    ("openssl", "certificates of tests", "openssl"),
]
APT_CHECK_ALL = [
    ("clang-19|clang-20|clang", "second compiler", None),
    ("libclang-rt-19-dev|libclang-rt-20-dev|libclang-rt-dev", "its sanitizers", None),
    ("clang-tidy-19|clang-tidy-20|clang-tidy", "static analysis", None),
]
PIP_BUILD = ["pip>=24", "scikit-build-core>=1.0", "nanobind>=2.15"]
# What the wheel is made from; tests and READMEs of rooms are not part of it.
WHEEL_INPUTS = [
    "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "cmake", "include", "src", "apps",
    "python/src", "python/yeto",
]  # fmt: skip


class SetupError(Exception):
    """A step failed in a way that the reader can mend; the text says how."""


class Reporter:
    """Prints one line per step. Quiet: only steps that do something."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def ready(self, what: str) -> None:
        if not self.quiet:
            print(f"setup: {what}: ready", flush=True)

    def doing(self, what: str) -> None:
        print(f"setup: {what}", flush=True)


def run(command: list[str], what: str, env: dict[str, str] | None = None) -> None:
    """Runs a command with its output kept; shows the output only if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-60:])
        raise SetupError(f"{what} failed (exit {done.returncode}): {' '.join(command)}\n{tail}")


def digest_of(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def digest_of_files(names: list[str]) -> str:
    """SHA-256 over the paths and contents of the files under the given names, tests left out."""
    total = hashlib.sha256()
    for name in names:
        top = ROOT / name
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for path in files:
            relative = path.relative_to(ROOT).as_posix()
            if "__pycache__" in relative or relative.endswith(("_test.cc", "_fuzz.cc")):
                continue
            if relative.endswith("README.md") and relative != "README.md":
                continue
            total.update(relative.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def stamp_fits(name: str, digest: str) -> bool:
    path = STAMPS / name
    return path.is_file() and path.read_text() == digest


def write_stamp(name: str, digest: str) -> None:
    STAMPS.mkdir(parents=True, exist_ok=True)
    temporary = STAMPS / f".{name}.new"
    temporary.write_text(digest)
    temporary.replace(STAMPS / name)


# --- system packages ----------------------------------------------------------------------------


def installed_packages() -> set[str]:
    query = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}\n"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pairs = (line.split() for line in query.stdout.splitlines())
    return {pair[0] for pair in pairs if len(pair) > 1 and pair[1].startswith("ii")}


def missing_packages(wanted: list[tuple[str, str, str | None]]) -> list[str]:
    """Entries (with their alternatives) that are neither installed nor on PATH."""
    have = installed_packages()
    missing = []
    for names, _, program in wanted:
        if program and shutil.which(program):
            continue
        if not any(name in have for name in names.split("|")):
            missing.append(names)
    return missing


def choose_available(names: str) -> str:
    """The first alternative that apt knows, or the first one, so that apt says what is wrong."""
    for name in names.split("|"):
        known = subprocess.run(["apt-cache", "show", name], capture_output=True, check=False)
        if known.returncode == 0 and known.stdout:
            return name
    return names.split("|")[0]


def system_packages(wanted: list[tuple[str, str, str | None]], say: Reporter) -> None:
    if shutil.which("dpkg-query") is None:
        say.ready("system packages (no dpkg here; CMake names what it does not find)")
        return
    missing = missing_packages(wanted)
    if not missing:
        say.ready("system packages")
        return
    first = [names.split("|")[0] for names in missing]
    if os.geteuid() != 0:
        if missing == ["ccache"]:
            say.ready("system packages (without ccache, so builds are not cached)")
            return
        raise SetupError(
            f"these system packages are missing: {' '.join(first)}\n"
            f"  Install them with: sudo apt-get install {' '.join(first)}\n"
            "  Then run the same command again."
        )
    say.doing(f"installing system packages: {' '.join(first)}")
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    run(["apt-get", "update", "-qq"], "apt-get update", env)
    chosen = [choose_available(names) for names in missing]
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *chosen],
        "apt-get install", env)  # fmt: skip


# --- Python packages ----------------------------------------------------------------------------


def make_venv(say: Reporter) -> None:
    identity = f"{sys.version}\n{os.path.realpath(sys.base_prefix)}"
    marker = VENV / "yeto-python"
    if PYTHON.exists() and marker.is_file() and marker.read_text() == identity:
        say.ready(".venv")
        return
    say.doing(f"making .venv with Python {platform.python_version()}")
    if VENV.exists():
        shutil.rmtree(VENV)
    run([sys.executable, "-m", "venv", str(VENV)], "making the virtual environment")
    marker.write_text(identity)


def cmake_on_path() -> bool:
    """Whether a cmake of at least CMAKE_MIN is on PATH; an older one is replaced by pip's."""
    program = shutil.which("cmake")
    if program is None:
        return False
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.(\d+)", text.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= CMAKE_MIN


def extras(names: list[str]) -> list[str]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        table = tomllib.load(file)["project"]["optional-dependencies"]
    return [requirement for name in names for requirement in table[name]]


def python_packages(stamp: str, requirements: list[str], say: Reporter) -> None:
    digest = digest_of(requirements)
    if stamp_fits(stamp, digest):
        say.ready(f"Python packages ({stamp})")
        return
    say.doing(f"installing Python packages ({stamp}): {' '.join(requirements)}")
    run([str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check",
         *requirements], "pip install")  # fmt: skip
    write_stamp(stamp, digest)


# --- yeto itself --------------------------------------------------------------------------------


def build_environment() -> dict[str, str]:
    env = dict(os.environ)
    env["PATH"] = f"{VENV / 'bin'}{os.pathsep}{env.get('PATH', '')}"
    if shutil.which("ccache"):
        env.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
        env.setdefault("CMAKE_C_COMPILER_LAUNCHER", "ccache")
        # A clone in another folder then finds the same objects in the compiler cache.
        env.update(CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="1")
    # One name of the compiler for every build: the compiler cache tells c++ and g++ apart.
    if shutil.which("cc") and shutil.which("c++"):
        env.setdefault("CC", "cc")
        env.setdefault("CXX", "c++")
    # Two jobs fit the smallest machine we support; ninja would take cores + 2.
    env.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(max(2, os.cpu_count() or 2)))
    return env


def install_yeto(warnings_are_errors: bool, say: Reporter) -> None:
    digest = digest_of_files(WHEEL_INPUTS)
    if stamp_fits("yeto", digest):
        say.ready("yeto")
        return
    say.doing("building yeto (a few minutes the first time) and installing it into .venv")
    begin = time.monotonic()
    dist = ROOT / "dist"
    if dist.exists():
        shutil.rmtree(dist)
    define = f"--config-settings=cmake.define.YETO_WERROR={'ON' if warnings_are_errors else 'OFF'}"
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", define, "-w", str(dist), "."],
        "building the wheel", build_environment())  # fmt: skip
    wheels = sorted(dist.glob("yeto-*.whl"))
    if len(wheels) != 1:
        raise SetupError(f"expected one wheel in dist/, found {[w.name for w in wheels]}")
    run([*pip, "install", "--no-deps", "--force-reinstall", str(wheels[0])],
        "installing the wheel")  # fmt: skip
    write_stamp("yeto", digest)
    say.doing(f"yeto installed ({time.monotonic() - begin:.0f} s)")


def set_up(profile: str, build_yeto: bool, say: Reporter) -> None:
    wanted = list(APT_BUILD)
    if profile in ("test", "check-all"):
        wanted += APT_TEST
    if profile == "check-all":
        wanted += APT_CHECK_ALL
    if profile != "lint":
        system_packages(wanted, say)
    make_venv(say)
    if profile != "lint":
        build = PIP_BUILD + ([] if cmake_on_path() else ["cmake>=3.24"])
        build += [] if shutil.which("ninja") else ["ninja"]
        python_packages("train", build + extras(["train", "plot"]), say)
    if profile == "lint":
        python_packages("lint", extras(["dev"]), say)
    elif profile in ("test", "check-all"):
        python_packages("test", extras(["object-store", "test", "dev"]), say)
    if profile != "lint" and build_yeto:
        install_yeto(profile != "run", say)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sets up a fresh clone of Yeto.")
    parser.add_argument("profile", nargs="?", default="run",
                        choices=["run", "test", "lint", "check-all"])  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print only what is being done")
    parser.add_argument("--no-build", action="store_true", help="do not build yeto itself")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        # Two set-ups at once (two terminals) would write into one .venv.
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_up(arguments.profile, not arguments.no_build, Reporter(arguments.quiet))
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
