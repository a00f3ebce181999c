# SPDX-License-Identifier: Apache-2.0
"""Goal: the last line of `make test` is true. Method: reports of each runner, made by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("yeto_test_stages", ROOT / "scripts" / "test.py")
assert spec and spec.loader
stages = importlib.util.module_from_spec(spec)
import sys  # noqa: E402

sys.modules[spec.name] = stages  # dataclasses look their module up
spec.loader.exec_module(stages)

CTEST = """<testsuite name="x" tests="4">
<testcase name="a" status="run"/><testcase name="b" status="fail"><failure message=""/></testcase>
<testcase name="c" status="notrun"/><testcase name="d" status="disabled"/></testsuite>"""
PYTEST = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure message=""/></testcase>
<testcase name="c"><error message=""/></testcase><testcase name="d"><skipped/></testcase>
</testsuite></testsuites>"""


def write(folder: Path, text: str) -> Path:
    path = folder / "report.xml"
    path.write_text(text)
    return path


def test_ctest_counts_what_could_not_run_as_failed(tmp_path: Path) -> None:
    count = stages.count_ctest(write(tmp_path, CTEST))
    assert (count.passed, count.failed, count.skipped) == (1, 2, 1)


def test_pytest_counts_errors_as_failed(tmp_path: Path) -> None:
    count = stages.count_pytest(write(tmp_path, PYTEST))
    assert (count.passed, count.failed, count.skipped) == (1, 2, 1)


def test_runner_that_dies_after_good_tests_has_failed() -> None:
    assert stages.agree(stages.Count(passed=3), 1).failed == 1
    assert stages.agree(stages.Count(passed=3), 0).failed == 0
    assert stages.agree(stages.Count(passed=3, failed=2), 1).failed == 2


def test_last_line_has_the_form_that_is_read_by_machines() -> None:
    assert str(stages.Count(12, 0)) == "12 passed, 0 failed"
    assert str(stages.Count(12, 1, 2)) == "12 passed, 1 failed, 2 skipped"


def test_stage_that_ran_nothing_has_failed() -> None:
    stage = stages.Stage("empty", lambda: stages.Count())
    stages.run_stage(stage, set())
    assert not stage.good and stage.note == "ran no test"


def test_stage_whose_need_was_not_built_is_not_run() -> None:
    ran: list[str] = []
    stage = stages.Stage("e2e", lambda: ran.append("x"), needs=("install",))
    stages.run_stage(stage, {"install"})
    assert not stage.good and not ran and "install" in stage.note


def test_stage_that_cannot_build_blocks_its_dependents() -> None:
    def broken() -> None:
        raise stages.StageError("no compiler")

    unbuilt: set[str] = set()
    stages.run_stage(stages.Stage("install", broken), unbuilt)
    assert unbuilt == {"install"}


def test_unknown_stage_is_refused() -> None:
    class Arguments:
        stages, check_all, tidy_all = "lint,typo", False, False

    with pytest.raises(SystemExit, match="no stage typo"):
        stages.stages_of(Arguments())


def test_fuzz_targets_are_read_from_ninja() -> None:
    listing = (
        "cmake_object_order_depends_target_b_fuzz: phony\nb_fuzz: phony\nsrc/b_fuzz: LINK\n"
        "a_fuzz: phony\nb_fuzz.cc.o: CXX\nall: phony\n"
    )
    assert stages.fuzz_names(listing) == ["a_fuzz", "b_fuzz"]


def test_fuzz_inputs_are_shared_out_in_full() -> None:
    names = ["a_fuzz", "b_fuzz", "c_fuzz", *stages.FUZZ_SLOW]
    runs = stages.fuzz_runs(names)
    assert list(runs) == names
    assert sum(runs.values()) >= stages.FUZZ_INPUTS
    assert all(runs[name] == count for name, count in stages.FUZZ_SLOW.items())
    assert sum(stages.fuzz_runs(list(stages.FUZZ_SLOW)).values()) >= stages.FUZZ_INPUTS


def test_fuzz_inputs_are_read_from_the_last_run() -> None:
    log = "stat::number_of_executed_units: 12\nx\nstat::number_of_executed_units: 345\n"
    assert stages.fuzz_inputs(log) == 345
    assert stages.fuzz_inputs("==1==ERROR: AddressSanitizer") == 0


def test_fuzz_stage_with_too_few_inputs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "fuzz_all", lambda limits: (stages.Count(passed=3), 7))
    stage = stages.Stage("fuzz-inputs", stages.stage_fuzz_inputs)
    stages.run_stage(stage, set())
    assert not stage.good and "only 7 of" in stage.note
