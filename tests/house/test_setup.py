# SPDX-License-Identifier: Apache-2.0
"""Goal: set-up does a step once, and says what is missing. Method: its functions on made inputs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import setup


@pytest.fixture
def quiet() -> setup.Reporter:
    return setup.Reporter(quiet=True)


def test_stamp_fits_only_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "STAMPS", tmp_path / "stamps")
    assert not setup.stamp_fits("train", "a")
    setup.write_stamp("train", "a")
    assert setup.stamp_fits("train", "a")
    assert not setup.stamp_fits("train", "b")


def test_packages_are_not_installed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: setup.Reporter
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(setup, "STAMPS", tmp_path / "stamps")
    monkeypatch.setattr(setup, "run", lambda command, what, env=None: calls.append(command))
    for requirements in (["torch"], ["torch"], ["torch", "peft"]):
        setup.python_packages("train", requirements, quiet)
    assert [command[-1] for command in calls] == ["torch", "peft"]


def test_wheel_digest_follows_sources_but_not_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    (tmp_path / "src").mkdir()
    source, test = tmp_path / "src" / "a.cc", tmp_path / "src" / "a_test.cc"
    source.write_text("1")
    first = setup.digest_of_files(["src"])
    test.write_text("1")
    assert setup.digest_of_files(["src"]) == first
    source.write_text("2")
    assert setup.digest_of_files(["src"]) != first


def test_missing_packages_are_named_to_a_normal_user(
    monkeypatch: pytest.MonkeyPatch, quiet: setup.Reporter
) -> None:
    monkeypatch.setattr(setup, "installed_packages", lambda: {"g++"})
    monkeypatch.setattr(setup.shutil, "which", lambda name: "/x" if name == "dpkg-query" else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    wanted = [("g++", "", None), ("libasio-dev", "", None), ("clang-19|clang", "", None)]
    with pytest.raises(setup.SetupError) as caught:
        setup.system_packages(wanted, quiet)
    assert "sudo apt-get install libasio-dev clang-19\n" in str(caught.value)


def test_root_installs_only_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, quiet: setup.Reporter, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(setup, "installed_packages", lambda: {"g++"})
    monkeypatch.setattr(setup.shutil, "which", lambda name: "/x" if name == "dpkg-query" else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "choose_available", lambda names: names.split("|")[-1])
    monkeypatch.setattr(setup, "run", lambda command, what, env=None: calls.append(command))
    setup.system_packages([("g++", "", None), ("clang-19|clang", "", None)], quiet)
    assert [command[1] for command in calls] == ["update", "install"]
    assert calls[1][-1] == "clang"
    assert "installing system packages: clang-19" in capsys.readouterr().out


def test_a_program_on_path_stands_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "installed_packages", set)
    monkeypatch.setattr(setup.shutil, "which", lambda name: "/x" if name == "ninja" else None)
    wanted = [("ninja-build", "", "ninja"), ("cmake", "", "cmake")]
    assert setup.missing_packages(wanted) == ["cmake"]


def test_a_failing_step_shows_its_output() -> None:
    with pytest.raises(setup.SetupError, match=r"making x failed \(exit 3\)[\s\S]*the reason"):
        setup.run(["sh", "-c", "echo the reason; exit 3"], "making x")


def test_every_extra_that_setup_installs_exists() -> None:
    assert setup.extras(["train", "plot", "test", "dev"])


def test_bash_part_refuses_without_python(tmp_path: Path) -> None:
    """A PATH without Python, for a user who is not root: the message says what to install."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"id": "#!/bin/sh\necho 1000\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    script = (setup.ROOT / "scripts" / "setup").read_text()
    probe = script.replace("usable() {", "usable() { return 1; }\nunused() {")
    target = tmp_path / "setup"
    target.write_text(probe)
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(target)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "apt-get install python3 python3-venv python3-dev" in done.stderr
