# SPDX-License-Identifier: Apache-2.0
"""`yeto sim` from the command line: a search over seeds, a plan of a fleet, refusals.

The rules themselves are tested in src/yeto/sync/sim.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

PLAN = ["--learners", "6", "--params", "40M", "--codec", "q4", "--link", "100Mbit,80ms"]


def sim(*args: str) -> subprocess.CompletedProcess[str]:
    program = os.environ.get("YETO_BIN")
    assert program, "YETO_BIN must name the yeto executable (a build has it in apps/yeto/)"
    return subprocess.run(
        [program, "sim", *args], capture_output=True, text=True, timeout=300, check=False
    )


def test_search_over_seeds_finds_no_broken_rule() -> None:
    done = sim("--seeds", "1..40", "-o", "json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["failed"], found["worlds"]) == (0, 0, 40), found["failures"]
    assert found["schema"] == "yeto.sim-search/1" and found["commit"] and found["commits"] > 100


def test_trace_shows_rounds_and_replays() -> None:
    first, second = (sim("--seeds", "7", "--trace", "round,world") for _ in range(2))
    lines = first.stdout.splitlines()
    assert first.returncode == 0 and any("committed" in line for line in lines)
    assert lines[:-1] == second.stdout.splitlines()[:-1]


def test_plan_reports_rates_and_draws_a_timeline(tmp_path: Path) -> None:
    html, png = tmp_path / "plan.html", tmp_path / "plan.png"
    more = ["--mtbf", "20m", "--hours", "0.5", "--step", "0.5s"]
    done = sim(*PLAN, *more, "--timeline", str(html), "-o", "json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["schema"] == "yeto.sim/1" and plan["violation"] is None
    assert 0.3 < plan["goodput"] <= 1.0 and 0.5 < plan["participation"] <= 1.0
    assert 0.0 < plan["round_p50_s"] <= plan["round_p99_s"]
    assert "<svg" in html.read_text() and "goodput" in html.read_text()
    assert sim(*PLAN, *more, "--timeline", str(png)).returncode == 0
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_failures_cost_goodput() -> None:
    hour = ["--hours", "1", "-o", "json"]
    fine = json.loads(sim(*PLAN, *hour).stdout)
    failing = json.loads(sim(*PLAN, *hour, "--mtbf", "5m", "--restart", "2m").stdout)
    assert fine["faults"] == 0 < failing["faults"]
    assert failing["goodput"] < fine["goodput"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "--seeds"),
        (["--seeds", "1", "--params", "1M"], "exclude"),
        (["--seeds", "9..3"], "no range of seeds"),
        (["--seeds", "1", "--trace", "kitchen"], "rooms"),
        (["--params", "many"], "9e9"),
        (["--params", "1M", "--link", "fast"], "round trip"),
        (["--params", "1M", "--link", "1Gbyte,1ms"], "--link"),
        (["--params", "1M", "--mtbf", "2 hours"], "--mtbf"),
        (["--params", "1M", "--timeline", "plan.pdf"], ".html"),
    ],
)
def test_refusals_say_what_to_write(args: list[str], words: str) -> None:
    done = sim(*args)
    assert done.returncode == 64 and words in done.stderr and not done.stdout
