# SPDX-License-Identifier: Apache-2.0
"""Rules of STYLE.md that no other tool checks. Prints FILE:LINE: rule for each breach.

    python3 scripts/tidy.py [ROOT]

Looks at the files git knows or would take (ignored ones are left out). Standard library only.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SPDX = "SPDX-License-Identifier: Apache-2.0"
CODE_SUFFIXES = {".h", ".cc", ".c", ".inc", ".def", ".py", ".cmake", ".sh", ".toml"}
CODE_NAMES = {"CMakeLists.txt", "Makefile", "run", "setup", "demo", "test", "bench"}
# A longer file should be two, each with its own meaning. Tests are lists and may be longer.
LINES_MAX = 1000
TEST_LINES_MAX = 1500
README_LINES_MAX = 40
README_SECTIONS = (
    "In:",
    "Out:",
    "Uses:",
    "Used by:",
    "Holds:",
    "Rules that always hold:",
    "Try it:",
)

# Written in two halves, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|not imple" + r"mented)\b")
NOT_DONE = "NotImple" + "mentedError"
SKIPS = re.compile(r"GTEST_" + r"SKIP|pytest\.(mark\.)?sk" + r"ip|assert " + r"True\b")
ONE_MACHINE = re.compile(r"(?<![\w.$}/-])/(wo" + r"rk|ro" + r"ot|home/\w+)/")
FAST_MATH = "-ffast-" + "math"
LAMBDA_AWAIT = re.compile(r"co_await[^;\n]*\[[&=\w, ]*\]\s*[({]")
HEAVY = re.compile(r"#include [<\"](nlohmann/json\.hpp|asio(\.hpp|/)|CLI/|spdlog/|fmt/(?!core\.h))")


@dataclass(frozen=True)
class Breach:
    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def tracked(root: Path) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(set(listing.stdout.split("\0")) - {""})
    return [name for name in names if (root / name).is_file()]


def text_of(path: Path) -> str | None:
    """The file's text, or nothing for one that is not UTF-8 text."""
    data = path.read_bytes()
    if b"\0" in data[:4096]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def is_code(name: str) -> bool:
    path = Path(name)
    return path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES


def check_text(name: str, text: str) -> Iterator[Breach]:
    lines = text.splitlines()
    if is_code(name) and not any(SPDX in line for line in lines[:3]):
        yield Breach(name, 1, f"the first lines must hold '{SPDX}'")
    limit = TEST_LINES_MAX if "_test." in name or "test_" in name else LINES_MAX
    if is_code(name) and len(lines) > limit:
        yield Breach(name, limit, f"more than {limit} lines: split the file by meaning")
    if text and not text.endswith("\n"):
        yield Breach(name, len(lines), "no newline at the end of the file")
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line) or NOT_DONE in line:
            yield Breach(name, number, "an unfinished mark: finish it or refuse with a clear error")
        if ONE_MACHINE.search(line):
            yield Breach(name, number, "a path of one machine: use a relative or temporary path")
        if SKIPS.search(line):
            yield Breach(name, number, "a skipped or empty test: tests here always check something")
        if line.rstrip() != line and not name.endswith(".md"):
            yield Breach(name, number, "blanks at the end of the line")


def check_cpp(name: str, text: str) -> Iterator[Breach]:
    if name.endswith(".h") and "#pragma once" not in text and not name.startswith("include/"):
        yield Breach(name, 1, "a header needs '#pragma once'")
    for number, line in enumerate(text.splitlines(), 1):
        # net/*_impl.h is the inside of that room, seen by its own .cc files only.
        inside = name.startswith("src/yeto/net/") and name.endswith("_impl.h")
        if name.endswith(".h") and not inside and HEAVY.search(line):
            yield Breach(name, number, "a heavy header belongs into a .cc file behind a facade")
        if LAMBDA_AWAIT.search(line):
            yield Breach(name, number, "co_await of an expression that holds a lambda (g++ 12)")


def check_build(name: str, text: str) -> Iterator[Breach]:
    for number, line in enumerate(text.splitlines(), 1):
        if FAST_MATH in line:
            yield Breach(name, number, f"{FAST_MATH}: results must be the same bits everywhere")
        if (
            "find_package(" in line
            and "Python3" not in line
            and not name.endswith("cmake/Dependencies.cmake")
        ):
            yield Breach(name, number, "third parties are named in cmake/Dependencies.cmake only")


def check_room(root: Path, name: str) -> Iterator[Breach]:
    """A folder that declares rooms explains them (Uses = DEPS is checked by tests/arrows)."""
    for call in re.finditer(r"yeto_room\((\S+?)[\s)]", (root / name).read_text()):
        readme_name = (Path(name).parent / "README.md").as_posix()
        if not (root / readme_name).is_file():
            yield Breach(readme_name, 1, f"room {call[1]} has no README.md")
        else:
            yield from check_room_readme(readme_name, (root / readme_name).read_text(), call[1])


def check_room_readme(name: str, readme: str, room: str) -> Iterator[Breach]:
    lines = readme.splitlines()
    if len(lines) > README_LINES_MAX:
        yield Breach(name, README_LINES_MAX, f"more than {README_LINES_MAX} lines")
    if not lines or not lines[0].startswith(f"# {room} "):
        yield Breach(name, 1, f"the first line must be '# {room} — what it is for'")
    for section in README_SECTIONS:
        if section not in readme:
            yield Breach(name, 1, f"the line '{section}' is missing")


def check_versions(root: Path) -> Iterator[Breach]:
    """One version, said three times: CMake, the wheel, the Python package."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    cmake = re.search(r"project\(yeto VERSION (\S+)", (root / "CMakeLists.txt").read_text())
    if not cmake or cmake[1] != project:
        yield Breach("CMakeLists.txt", 1, f"VERSION differs from pyproject.toml's {project}")
    changelog = (root / "CHANGELOG.md").read_text()
    if f"## {project}" not in changelog:
        yield Breach("CHANGELOG.md", 1, f"no section '## {project}'")


def check(root: Path) -> list[Breach]:
    breaches: list[Breach] = []
    for name in tracked(root):
        text = text_of(root / name)
        if text is None:
            continue
        breaches += check_text(name, text)
        if name.endswith((".h", ".cc", ".inc")):
            breaches += check_cpp(name, text)
        if name.endswith(("CMakeLists.txt", ".cmake")):
            breaches += check_build(name, text)
        if name.startswith("src/yeto/") and name.endswith("/CMakeLists.txt"):
            breaches += check_room(root, name)
    return breaches + list(check_versions(root))


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    breaches = check(root)
    for breach in breaches:
        print(breach)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
