# SPDX-License-Identifier: Apache-2.0
"""Goal: the storm's numbers mean what they say, and the program runs.

Method: a run that is made up line by line, and the program itself with four learners for a few
seconds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bench

STORM = bench.FOLDER / "storm"


def load(name: str) -> ModuleType:
    """A module of the package: `bench` is the script's name here."""
    spec = importlib.util.spec_from_file_location(f"storm_{name}", STORM / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


measure = load("measure")
faults = load("faults")
KILLED, PAUSED = "kill", "pause"


def merge(ts: float, responded: list[int], launch: float = 0.0, **more: Any) -> dict[str, Any]:
    line = {"event": "round", "committed": True, "ts": ts, "commit": ts, "launch": launch or ts,
            "expected": [0, 1], "responded": responded, "dropped": [],
            "tokens": [{"seat": seat, "tokens": 100} for seat in responded]}  # fmt: skip
    return line | more


def record(**more: Any) -> Any:
    values = {"learners": 2, "lease_s": 0.5, "begin": 0.0, "end": 10.0, "faults": [], "tape": [],
              "events": {}, "ledgers": [], "recovery_s": 1.0}  # fmt: skip
    return measure.Record(**(values | more))


def test_only_merges_within_the_time_count() -> None:
    run = record(tape=[merge(-1, [0, 1]), merge(1, [0, 1]), merge(2, [0]), merge(11, [0])])
    assert measure.merged_tokens(run) == 300
    assert measure.participation(run) == pytest.approx(0.75)


def test_participation_is_of_all_learners_not_of_those_asked() -> None:
    run = record(tape=[merge(1, [0], expected=[0])])
    assert measure.participation(run) == 0.5
    assert measure.captured_participation(run) == 1.0


def test_trained_tokens_begin_anew_with_each_process() -> None:
    def step(ts: float, tokens: int) -> dict[str, Any]:
        return {"event": "step", "ts": ts, "tokens": tokens}

    start = {"event": "start", "ts": 0.0}
    events = [start, step(-1, 10), step(1, 20), step(2, 30), start, step(3, 10), step(11, 20)]
    assert measure.trained_tokens(record(events={0: events})) == 30


def lost(ts: float, seat: int = 1) -> dict[str, Any]:
    return {"event": "lost", "ts": ts, "seat": seat, "reason": "silent for a lease"}


@pytest.mark.parametrize(
    ("fault", "ts", "deaths"),
    [
        (None, 5.0, 1),
        (("kill", 1, 4.6, 5.6), 5.1, 0),
        (("kill", 0, 4.6, 5.6), 5.1, 1),  # another learner's
        (("kill", 1, 4.6, 5.6), 4.5, 1),  # before it
        (("pause", 1, 4.6, 5.6), 5.1, 0),
        (("pause", 1, 4.6, 4.9), 5.1, 1),  # shorter than the lease
        (("syncer", None, 4.6, 4.6), 5.1, 0),
        (("syncer", None, 1.0, 1.0), 5.1, 1),  # long ago
    ],
)
def test_loss_without_a_reason_is_a_false_death(fault: Any, ts: float, deaths: int) -> None:
    done = [measure.Done(*fault)] if fault else []
    assert len(measure.false_deaths(record(tape=[lost(ts)], faults=done))) == deaths


def test_reactions_are_measured_from_the_fault() -> None:
    tape = [
        merge(3.9, [0, 1]),
        merge(4.1, [0], expected=[0]) | {"launch": None, "commit": None},  # written again
        merge(4.4, [0], launch=4.05),  # asked both, the killed one did not answer
        merge(4.8, [0], launch=4.3, expected=[0]),
        merge(5.5, [0, 1]),
    ]
    events = {0: [], 1: [{"event": "ready", "ts": 5.2}]}
    run = record(tape=tape, events=events, faults=[measure.Done(KILLED, 1, 4.0, 5.0)])
    seen = measure.reactions(run)
    assert seen.closed_seen == [pytest.approx(0.3)]
    assert seen.resumed == [pytest.approx(0.1)]
    assert seen.rejoined == [pytest.approx(0.2)]
    assert seen.back == [pytest.approx(0.5)]
    assert seen.silence_seen == []


def test_silence_is_seen_when_the_learner_is_lost() -> None:
    pauses = [measure.Done(PAUSED, 1, 4.0, 5.0), measure.Done(PAUSED, 1, 8.0, 8.1)]
    run = record(tape=[lost(4.45), merge(6, [0, 1])], faults=pauses)
    assert measure.reactions(run).silence_seen == [pytest.approx(0.45)]


def test_ledger_that_does_not_add_up_is_counted() -> None:
    good = {"pushed": 10, "merged": 7, "dropped": 1, "waiting": 2}
    assert measure.unbalanced([good, good | {"waiting": 3}, good | {"merged": 6}]) == 2


def weather(count: int) -> Any:
    return faults.Weather(seconds=100.0, count=count, learners=8, restart_delay=1.0,
                          outage=(0.2, 1.2), recovery=1.5)  # fmt: skip


def test_same_seed_brings_the_same_weather() -> None:
    assert faults.draw(weather(38), 7) == faults.draw(weather(38), 7)
    assert faults.draw(weather(38), 7) != faults.draw(weather(38), 8)


@pytest.mark.parametrize("count", [4, 5, 38, 200])
def test_every_kind_of_fault_comes_and_no_learner_twice_at_once(count: int) -> None:
    drawn = faults.draw(weather(count), 1)
    assert len(drawn) == count
    assert {fault.kind for fault in drawn} == set(faults.Kind)
    for seat in range(8):
        own = [fault for fault in drawn if fault.seat == seat]
        for first, second in zip(own, own[1:], strict=False):
            assert second.at >= first.at + first.duration + 1.5


def test_storm_of_a_few_seconds_keeps_its_promises(tmp_path: Path) -> None:
    programs = bench.helper_environment(bench.prepare_helpers())
    done = subprocess.run(
        [sys.executable, "-m", "bench.storm", "--smoke", "--keep", str(tmp_path / "storm")],
        cwd=bench.ROOT,
        env={**os.environ, **programs},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = [bench.figure_of(line) for line in done.stdout.splitlines()]
    values = {figure["figure"]: figure["value"] for figure in figures if figure is not None}
    assert values["storm/ledger_unbalanced_smoke"] == 0
    assert values["storm/final_digests_smoke"] == 1
    assert 0 < values["storm/tokens_kept_smoke"] < 1.5
    assert 0 < values["storm/participation_smoke"] <= 1
    # The tape of the run with faults names what happened.
    tape = [json.loads(line) for line in (tmp_path / "storm/storm/tape.jsonl").open()]
    assert len([line for line in tape if line["event"] == "run"]) == 2
