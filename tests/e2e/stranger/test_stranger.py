# SPDX-License-Identifier: Apache-2.0
"""Goal: a learner written from docs/PROTOCOL.md and docs/DESIGN.md alone takes part in a run.

Method: the real `yeto syncer` ($YETO_BIN) on loopback, and trainer.py as processes; what they
report is held against the tape, and against the merge computed from the page. Waits are bounded.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import client
import merge
import numpy as np
import pytest
import trainer
import values
import wire
from client import Learner, Refused
from values import Layout

WAIT_S = 60.0
TOKEN = "5a" * 32
TRAINER = Path(trainer.__file__)
Event = dict[str, Any]

# A learner on yeto's own boundary: prints its last values' SHA-256.
BOUNDARY = """
import hashlib, time
import numpy
from yeto._core import Boundary

values = numpy.full((24, 20), 5, numpy.float32)
goal = numpy.linspace(-1, 1, 480, dtype=numpy.float32).reshape(24, 20)
boundary = Boundary(
    syncer="@endpoint.json", run_id="r1", seat=1, token_file="seat1.key",
    names=["layers.0.weight"], tensors=[values], fragments=1, streams=2, max_alone_s=30.0,
)
boundary.wait_ready(30.0)
boundary.set_phase("train")
draining = False
while not draining:
    time.sleep(0.004)  # stands for the time a step takes; nothing waits for it
    values -= numpy.float32(0.05) * (values - goal)
    draining = boundary.step(32)["draining"]
boundary.finalize("drain", 30.0)
print(hashlib.sha256(values.tobytes()).hexdigest())
"""


class Run:
    """A syncer and its learners in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("YETO_BIN")
        assert program, "YETO_BIN must name the yeto executable (a build has it in apps/yeto/)"
        self.program = str(Path(program).resolve())
        self.folder = folder
        token = folder / "run.token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        self.processes: list[subprocess.Popen[str]] = []

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        limit = time.monotonic() + WAIT_S
        while time.monotonic() < limit:
            if value := condition():
                return value
            failed = [p for p in self.processes if (p.poll() or 0) > 0]
            assert not failed, f"{failed[0].args!r} has failed\n{self.errors()}"
            time.sleep(0.01)  # other processes write what the condition reads
        raise AssertionError(f"{what}: not within {WAIT_S} s\n{self.errors()}")

    def errors(self) -> str:
        return "\n".join(f"{p.name}:\n{p.read_text()}" for p in self.folder.glob("*.err"))

    def spawn(self, name: str, *command: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.out").open("w") as out:
            with (self.folder / f"{name}.err").open("w") as err:
                process = subprocess.Popen(
                    command, cwd=self.folder, stdout=out, stderr=err, text=True
                )
        self.processes.append(process)
        return process

    def start(self, *flags: str) -> None:
        self.syncer = self.spawn(
            "syncer", self.program, "syncer", "--bind=127.0.0.1:0", "--run-id=r1", "--learners=2",
            "--token-file=run.token", "--checkpoint=checkpoint", "--endpoint=endpoint.json",
            "--tape=tape.jsonl", "--sync-interval-steps=4", *flags,
        )  # fmt: skip
        self.until((self.folder / "endpoint.json").exists, "listening")

    def restart(self, *flags: str) -> None:
        """Kills the syncer and starts one that goes on from its checkpoint."""
        self.syncer.kill()
        self.syncer.wait()
        self.processes.remove(self.syncer)
        (self.folder / "endpoint.json").unlink()
        self.start("--resume", *flags)

    def address(self) -> tuple[str, int]:
        endpoint = json.loads((self.folder / "endpoint.json").read_text())
        return endpoint["host"], endpoint["port"]

    def stranger(self, seat: int, *flags: str, name: str = "") -> subprocess.Popen[str]:
        name = name or f"seat{seat}"
        return self.spawn(name, sys.executable, "-B", str(TRAINER), f"--seat={seat}", *flags)

    def events(self, name: str, event: str) -> list[Event]:
        lines = (self.folder / f"{name}.out").read_text().split("\n")[:-1]
        return [made for made in map(json.loads, lines) if made["event"] == event]

    def wait(self, *processes: subprocess.Popen[str]) -> None:
        self.until(lambda: all(p.poll() is not None for p in processes), "the end")
        assert all(p.returncode == 0 for p in processes), self.errors()

    def tape(self, event: str) -> list[Event]:
        lines = (self.folder / "tape.jsonl").read_text().splitlines()
        return [made for made in map(json.loads, lines) if made["event"] == event]

    def commits(self) -> dict[tuple[int, int], str]:
        rounds = [made for made in self.tape("round") if made["committed"]]
        return {(made["fragment"], made["version"]): made["digest"] for made in rounds}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def publics(run: Run, name: str) -> dict[tuple[int, int], str]:
    events = run.events(name, "public")
    return {(event["fragment"], event["version"]): event["digest"] for event in events}


def check_digests(run: Run, *names: str) -> None:
    """Whatever a learner holds is what the syncer wrote down at that commit."""
    commits = run.commits()
    assert commits
    for name in names:
        held = {key: digest for key, digest in publics(run, name).items() if key[1] > 0}
        assert held
        assert {key: commits[key] for key in held} == held


def check_ends(run: Run, *names: str) -> None:
    ends = [run.events(name, "final")[-1] for name in names]
    assert len({end["sha256"] for end in ends}) == 1
    first = max(run.events(name, "ready")[-1]["loss"] for name in names)
    assert ends[0]["loss"] < first / 2, (first, ends[0]["loss"])


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("codec", ["f32", "bf16", "q4"])
def test_two_strangers_train_and_hold_the_same_bytes(run: Run, codec: str, fragments: int) -> None:
    run.start(f"--wire-dtype={codec}", f"--total-steps={12 * fragments}")
    learners = [run.stranger(seat, f"--fragments={fragments}") for seat in range(2)]
    run.wait(*learners, run.syncer)
    check_digests(run, "seat0", "seat1")
    check_ends(run, "seat0", "seat1")
    number = ["f32", "bf16", "q4"].index(codec)
    images = [event["codec"] for event in run.events("seat0", "public") if event["version"] > 0]
    assert number in images
    assert set(images) <= {number, min(number, 1)}
    outcomes = {event["outcome"] for event in run.events("seat1", "verdict")}
    assert 0 in outcomes


def test_alpha_and_blended_references_end_equal(run: Run) -> None:
    run.start("--merge-alpha=0.5", "--delta-reference=blended", "--total-steps=24",
              "--wire-dtype=q4")  # fmt: skip
    learners = [run.stranger(seat, "--fragments=3") for seat in range(2)]
    run.wait(*learners, run.syncer)
    check_digests(run, "seat0", "seat1")
    check_ends(run, "seat0", "seat1")


def lockstep_by_the_page(layout: Layout, rounds: int, interval: int) -> tuple[dict[Any, str], str]:
    """Both seats of a lockstep run in one process: the digest of each commit, the last values."""
    count, total = len(layout.fragments), layout.values()
    cuts = np.cumsum(layout.sizes())[:-1]
    theta = np.split(np.full(total, 3, np.float32), cuts)  # the donor is one of both: see the test
    momentum = [np.zeros_like(x) for x in theta]
    goals = [np.split(trainer.target(seat, total), cuts) for seat in range(2)]
    local = [[x.copy() for x in theta] for _ in range(2)]
    taken = [0] * count
    digests: dict[Any, str] = {}

    def commit(p: int, version: int, step: int) -> None:
        at, new, taken[p] = 0, [], step
        for tensor, _, size in layout.fragments[p]:
            part = slice(at, at + size)
            pushes = [merge.Push(theta[p][part] - local[seat][p][part]) for seat in range(2)]
            delta = merge.average(pushes, layout.tensors[tensor].mode, "equal")
            made, momentum[p][part] = merge.nesterov(theta[p][part], momentum[p][part], delta)
            new.append(made)
            at += size
        theta[p] = np.concatenate(new)
        for seat in range(2):
            local[seat][p] = theta[p].copy()
        digests[p, version] = values.digest(values.encode(0, theta[p])).hex()

    t, last = 1, -(-rounds * interval // count)
    for step in range(1, last + 1):
        for seat in range(2):
            for p in range(count):
                x = local[seat][p]
                x -= np.float32(0.05) * (x - goals[seat][p])
        while t <= rounds and -(-t * interval // count) == step:
            commit((t - 1) % count, (t - 1) // count + 1, step)
            t += 1
    for sweep in range(rounds, rounds + count):
        if taken[sweep % count] < last:
            commit(sweep % count, sweep // count + 1, last)
    return digests, hashlib.sha256(b"".join(values.encode(0, x) for x in theta)).hexdigest()


def test_lockstep_equals_the_merge_of_the_page_bit_for_bit(run: Run) -> None:
    rounds, fragments = 12, 3
    run.start("--lockstep", "--weights=equal", "--outer=nesterov", f"--total-steps={rounds}",
              "--wire-dtype=f32")  # fmt: skip
    # Both begin with the same values, so that it does not matter who is asked for them.
    flags = [f"--fragments={fragments}", "--start=3"]
    learners = [run.stranger(seat, *flags) for seat in range(2)]
    run.wait(*learners, run.syncer)
    layout = trainer.cut([(24, 20), (300,)], fragments)
    digests, sha256 = lockstep_by_the_page(layout, rounds, 4)
    assert run.commits() == digests
    assert {run.events(f"seat{seat}", "final")[-1]["sha256"] for seat in range(2)} == {sha256}


@pytest.mark.parametrize("codec", ["f32", "q4"])
def test_a_stranger_beside_our_own_boundary(run: Run, codec: str) -> None:
    run.start(f"--wire-dtype={codec}", "--total-steps=16")
    key = run.folder / "seat1.key"
    key.write_text(wire.key_of(bytes.fromhex(TOKEN), "yeto-seat-1").hex() + "\n")
    key.chmod(0o600)
    stranger = run.stranger(0, "--shapes=24x20")
    ours = run.spawn("ours", sys.executable, "-c", BOUNDARY)
    run.wait(stranger, ours, run.syncer)
    check_digests(run, "seat0")
    last = run.events("seat0", "final")[-1]["sha256"]
    assert (run.folder / "ours.out").read_text().strip() == last
    both = [made for made in run.tape("round") if made["responded"] == [0, 1]]
    assert both


def test_a_killed_stranger_rejoins_and_is_overwritten(run: Run) -> None:
    run.start("--wire-dtype=q4", "--total-steps=1000000", "--min-round-ms=20")
    first, other = run.stranger(0, "--fragments=3"), run.stranger(1, "--fragments=3")
    run.until(lambda: run.events("seat0", "verdict"), "a push of seat 0 is merged")
    first.kill()
    first.wait()
    run.until(lambda: run.tape("round")[-1]["responded"] == [1], "seat 1 goes on alone")
    again = run.stranger(0, "--fragments=3", name="again")
    run.until(lambda: run.events("again", "verdict"), "the new process pushes")
    client.finish(run.address(), "r1", bytes.fromhex(TOKEN))
    run.wait(again, other, run.syncer)
    check_digests(run, "again", "seat1")
    check_ends(run, "again", "seat1")
    assert run.events("again", "welcome")[0]["resumed"] == 0
    # It came without a base, so the first it got of each fragment was the public value itself.
    whole = {event["fragment"]: event["codec"] for event in run.events("again", "public")[::-1]}
    assert whole == {0: 1, 1: 1, 2: 1}


def test_a_lost_data_stream_attaches_again_and_its_chunk_is_sent_again(run: Run) -> None:
    run.start("--wire-dtype=q4", "--total-steps=24")
    cut, other = (
        run.stranger(0, "--fragments=3", "--cut-stream-at=20"),
        run.stranger(1, "--fragments=3"),
    )
    run.wait(cut, other, run.syncer)
    assert {event["name"] for event in run.events("seat0", "lost")} == {"CHUNK"}
    assert run.events("seat0", "attached") == [{"event": "attached", "stream": 0}]
    assert len(run.events("seat0", "welcome")) == 1
    assert [made["dropped"] for made in run.tape("round") if made["dropped"]] == []
    check_digests(run, "seat0", "seat1")
    check_ends(run, "seat0", "seat1")


def test_a_lost_control_stream_resumes_the_session(run: Run) -> None:
    run.start("--wire-dtype=q4", "--total-steps=24")
    cut, other = (
        run.stranger(0, "--fragments=3", "--cut-control-at=20"),
        run.stranger(1, "--fragments=3"),
    )
    run.wait(cut, other, run.syncer)
    assert [event["resumed"] for event in run.events("seat0", "welcome")] == [0, 1]
    check_digests(run, "seat0", "seat1")
    check_ends(run, "seat0", "seat1")


def test_strangers_go_on_with_the_next_term_of_a_killed_syncer(run: Run) -> None:
    flags = ["--wire-dtype=q4", "--total-steps=1000000", "--min-round-ms=20"]
    run.start(*flags)
    learners = [run.stranger(seat, "--fragments=3") for seat in range(2)]
    run.until(lambda: len(run.events("seat0", "verdict")) > 5, "some merges")
    run.restart(*flags)
    later = [made for made in run.tape("round") if made["term"] == 1]
    names = ("seat0", "seat1")
    run.until(lambda: all(len(run.events(n, "welcome")) > 1 for n in names), "new sessions")
    run.until(lambda: len(run.tape("round")) > len(later) + 6, "merges of the next term")
    client.finish(run.address(), "r1", bytes.fromhex(TOKEN))
    run.wait(*learners, run.syncer)
    for name in names:
        again = run.events(name, "welcome")[1]
        assert (again["resumed"], again["term"]) == (0, 2)
        assert {event["term"] for event in run.events(name, "public")} == {1, 2}
    check_digests(run, "seat0", "seat1")
    check_ends(run, "seat0", "seat1")


def test_every_row_of_a_data_lease_is_completed_once(run: Run) -> None:
    rows = 600
    run.start("--data-leases", "--data-epochs=1", "--total-steps=1000000")
    learners = [run.stranger(seat, "--fragments=3", f"--rows={rows}") for seat in range(2)]
    run.wait(*learners, run.syncer)
    done = [made for made in run.tape("data") if made["what"] == "complete"]
    assert {made["seat"] for made in done} == {0, 1}
    positions = sorted(at for m in done for at in range(m["first"], m["first"] + m["count"]))
    assert positions == list(range(rows))
    check_digests(run, "seat0", "seat1")
    assert len({run.events(f"seat{seat}", "final")[-1]["sha256"] for seat in range(2)}) == 1


def test_chunks_go_over_control_when_no_data_stream_is_wanted(run: Run) -> None:
    run.start("--total-steps=8")
    learners = [run.stranger(seat, "--streams=0") for seat in range(2)]
    run.wait(*learners, run.syncer)
    check_digests(run, "seat0", "seat1")
    check_ends(run, "seat0", "seat1")


@pytest.mark.parametrize(("what", "code"), [("token", 3), ("run_id", 2), ("seat", 3)])
def test_a_wrong_greeting_is_refused_by_number(run: Run, what: str, code: int) -> None:
    run.start("--total-steps=8")
    layout = trainer.cut([(4, 4)], 1)
    learner = Learner(
        run.address,
        "another" if what == "run_id" else "r1",
        bytes(32) if what == "token" else bytes.fromhex(TOKEN),
        0,
        layout,
        [np.zeros(16, np.float32)],
    )
    if what == "seat":
        learner.seat = 1  # the key is that of seat 0
    with pytest.raises(Refused) as refused:
        learner.connect()
    assert (refused.value.code, refused.value.retryable) == (code, False)
    assert str(refused.value)
