# SPDX-License-Identifier: Apache-2.0
"""Goal: each rule of scripts/tidy.py sees its breach, and only that. Method: one text per rule."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tidy

HEAD = f"// {tidy.SPDX}\n"
# Written in halves, because these files are checked too.
WORK = "/wo" + "rk/main/x"
MARK = "// TO" + "DO later\n"
SKIP = "GTEST_" + "SKIP();\n"


def rules(breaches) -> str:
    return "\n".join(str(breach) for breach in breaches)


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("src/a.cc", "int a;\n", "the first lines must hold"),
        ("src/a.cc", HEAD + MARK, "an unfinished mark"),
        ("src/a.cc", HEAD + f'open("{WORK}");\n', "a path of one machine"),
        ("docs/a.md", f"see {WORK}\n", "a path of one machine"),
        ("src/a_test.cc", HEAD + SKIP, "a skipped or empty test"),
        ("src/a.cc", HEAD + "int a; \n", "blanks at the end"),
        ("src/a.cc", HEAD + "int a;", "no newline at the end"),
        ("src/a.cc", HEAD + "\n" * tidy.LINES_MAX, "more than 1000 lines"),
    ],
)
def test_text_rule_sees_its_breach(name: str, text: str, rule: str) -> None:
    assert rule in rules(tidy.check_text(name, text))


@pytest.mark.parametrize(
    "text",
    ["see https://example.org/work/x\n", "runs in ${HOME}/work/x\n", "docs/work/x.md\n"],
)
def test_ordinary_paths_are_fine(text: str) -> None:
    assert rules(tidy.check_text("docs/a.md", text)) == ""


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("src/a.h", HEAD, "#pragma once"),
        ("src/a.h", HEAD + "#pragma once\n#include <nlohmann/json.hpp>\n", "a heavy header"),
        ("src/a.h", HEAD + "#pragma once\n#include <asio/ip/tcp.hpp>\n", "a heavy header"),
        ("src/a.cc", HEAD + "co_await run([&x] { });\n", "co_await"),
    ],
)
def test_cpp_rule_sees_its_breach(name: str, text: str, rule: str) -> None:
    assert rule in rules(tidy.check_cpp(name, text))


def test_light_headers_and_plain_awaits_are_fine() -> None:
    text = HEAD + "#pragma once\n#include <fmt/core.h>\nco_await timer.async_wait(token);\n"
    assert rules(tidy.check_cpp("src/a.h", text)) == ""


def test_third_parties_are_named_in_one_file() -> None:
    text = "find_package(OpenSSL)\n"
    assert "Dependencies.cmake only" in rules(tidy.check_build("src/CMakeLists.txt", text))
    assert rules(tidy.check_build("cmake/Dependencies.cmake", text)) == ""


def test_room_readme_has_a_form() -> None:
    good = "# merge — pure\n" + "".join(f"{section} x\n" for section in tidy.README_SECTIONS)
    assert rules(tidy.check_room_readme("r", good, "merge")) == ""
    assert "first line must be" in rules(tidy.check_room_readme("r", good, "codec"))
    assert "'Out:' is missing" in rules(
        tidy.check_room_readme("r", good.replace("Out:", "Outside"), "merge")
    )
    assert "more than 40" in rules(tidy.check_room_readme("r", good + "\n" * 40, "merge"))


def test_room_without_readme_is_seen(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "CMakeLists.txt").write_text("yeto_room(merge SOURCES a.cc)\n")
    assert "room merge has no README.md" in rules(tidy.check_room(tmp_path, "src/CMakeLists.txt"))


def test_versions_must_agree(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CMakeLists.txt").write_text("project(yeto VERSION 1.2.2 LANGUAGES CXX)\n")
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.2\n")
    found = rules(tidy.check_versions(tmp_path))
    assert "VERSION differs" in found and "no section '## 1.2.3'" in found


def test_ignored_files_are_not_looked_at(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("out/\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.cc").write_text("x")
    (tmp_path / "b.cc").write_text("x")
    assert tidy.tracked(tmp_path) == [".gitignore", "b.cc"]
