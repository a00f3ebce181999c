# SPDX-License-Identifier: Apache-2.0
"""Goal: whole runs of real processes. Syncer, controller and learners of `yeto launch` on a tiny
model, with processes killed and stopped while they work.

Method: the real executable ($YETO_BIN) and the real learner ($YETO_PYTHON); what happened is read
from the run folder: status, tape, adapters.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(ROOT / "python" / "tests"))

from chat_fixtures import make_model, talk, write_rows  # noqa: E402
from cli_fakes import until  # noqa: E402

# Imports of the learner's libraries by several processes on two cores take their time.
LIMIT_S = 240.0


class Islands:
    """`yeto` with a home of its own and the real learner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.env = dict(os.environ, YETO_HOME=str(self.home), TOKENIZERS_PARALLELISM="false")
        self.env.pop("YETO_RUNS_DIR", None)
        self.program = os.environ["YETO_BIN"]
        self.launched = 0
        self.model = make_model(folder / "model")
        rows = [talk(f"Question {i}?", f"Answer number {i}, said in full.") for i in range(48)]
        self.rows = write_rows(folder / "rows.jsonl", rows)
        self.heldout = write_rows(folder / "heldout.jsonl", [talk("Question 7?", "Answer 7.")] * 2)

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def launch(self, name: str, islands: int, *flags: str) -> "RunOf":
        self.launched += 1
        output = self.folder / f"out-{self.launched}"
        done = self(
            "launch", "--gpu", f"{islands}*local:1xcpu", "--cluster-prefix", name,
            "--model", str(self.model), "--data", str(self.rows), "--val-data", str(self.heldout),
            "--output", str(output), "--seq-len", "128",
            "--micro-batch-size", "2", "--grad-accum", "1", "--lora-r", "4", "--fragments", "4",
            "--sync-interval-steps", "4", *flags,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return RunOf(self, name, output)


class RunOf:
    def __init__(self, islands: Islands, name: str, output: Path) -> None:
        self.islands = islands
        self.name = name
        self.folder = (islands.home / "runs" / name).resolve()
        self.output = output

    def json(self, file: str) -> dict[str, Any]:
        try:
            return json.loads((self.folder / file).read_text())
        except (OSError, ValueError):
            return {}

    def status(self) -> dict[str, Any]:
        done = self.islands("status", self.name, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def island(self, seat: int) -> dict[str, Any]:
        return next(row for row in self.status()["islands"] if row["id"] == seat)

    def step(self) -> int:
        return self.json("status.json").get("global_step") or 0

    def tape(self, event: str) -> list[dict[str, Any]]:
        lines = (self.folder / "events" / "syncer.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["event"] == event]

    def wait_for_step(self, step: int) -> None:
        self.until(lambda: self.step() >= step, f"global step {step}")

    def wait_for_end(self) -> dict[str, Any]:
        ended = ("SUCCEEDED", "STOPPED", "FAILED", "DOWN")
        return self.until(lambda: (s := self.status())["state"] in ended and s, "the end")

    def until(self, condition: Any, what: str) -> Any:
        try:
            return until(condition, what, LIMIT_S)
        except AssertionError as failure:
            logs = self.islands("logs", self.name, "--stream", "all", "--tail", "60").stdout
            raise AssertionError(f"{failure}\n{self.json('status.json')}\n{logs}") from None

    def digest(self, seat: int) -> str:
        weights = self.folder / "islands" / str(seat) / "adapter" / "adapter_model.safetensors"
        return hashlib.sha256(weights.read_bytes()).hexdigest()

    def expect_honest_books(self) -> None:
        """Ledger, versions and rounds of the tape agree."""
        ledger = self.json("status.json")["ledger"]
        assert ledger["pushed"] == ledger["merged"] + ledger["dropped"] + ledger["waiting"]
        assert ledger["waiting"] == 0
        last: dict[int, tuple[int, int]] = {}
        for row in self.tape("round"):
            if not row["committed"]:
                continue
            assert row["responded"], row
            term, version = last.get(row["fragment"], (1, 0))
            # A killed syncer may repeat a commit in its next term, or have made one durable
            # without having written its line.
            steps = (0, 1, 2) if row["term"] != term else (1,)
            assert row["version"] - version in steps, row
            last[row["fragment"]] = (row["term"], row["version"])


@pytest.fixture
def islands(tmp_path: Path) -> Iterator[Islands]:
    made = Islands(tmp_path)
    yield made
    runs = made.home / "runs"
    for link in runs.iterdir() if runs.exists() else ():
        if link.is_symlink():
            made("down", link.name, "--timeout", "30")


def test_run_survives_killed_and_stopped_processes(islands: Islands) -> None:
    run = islands.launch(
        "storm", 3, "--total-steps", "60", "--min-round-ms", "1000", "--lease-ms", "2000"
    )
    run.wait_for_step(3)

    # kill -9 of a learner: it is started again in its seat and rejoins.
    victim = run.island(1)["pid"]
    os.kill(victim, signal.SIGKILL)
    run.until(
        lambda: (
            (row := run.island(1))["pid"] not in (None, victim) and row["version_lag"] is not None
        ),
        "island 1 is back",
    )

    # kill -9 of the syncer: it comes back in a new term from its checkpoint.
    before = run.step()
    os.kill(run.json("status.json")["pid"], signal.SIGKILL)
    run.until(lambda: run.json("status.json").get("term") == 2, "term 2")
    run.wait_for_step(before + 3)

    # SIGSTOP of a learner: the others go on without it, and it comes back.
    sleeper = run.island(2)["pid"]
    os.kill(sleeper, signal.SIGSTOP)
    run.until(lambda: any(row["seat"] == 2 for row in run.tape("lost")), "seat 2 is lost")
    before = run.step()
    run.wait_for_step(before + 2)
    os.kill(sleeper, signal.SIGCONT)

    status = run.wait_for_end()
    assert status["state"] == "SUCCEEDED", run.json("state.json")
    assert status["exit"] == 0
    assert run.json("status.json")["exit"] == 0
    run.expect_honest_books()
    finals = run.tape("final")[-1]
    assert finals["acknowledged"], finals
    assert len({run.digest(seat) for seat in finals["acknowledged"]}) == 1, "one final state"

    delivered = hashlib.sha256((run.output / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert delivered == run.digest(finals["acknowledged"][0])
    summary = json.loads((run.output / "summary.json").read_text())
    assert summary["commits"] >= 60
    assert summary["heldout_loss_before"] is not None
    assert summary["heldout_loss_after"] is not None
    assert summary["islands"][1]["restarts"] == 1
    assert summary["tokens"] > 0


def test_stop_run_sweeps_delivers_and_stops(islands: Islands) -> None:
    run = islands.launch("endless", 2, "--epochs", "100000", "--min-round-ms", "200")
    run.wait_for_step(3)
    done = islands("stop-run", "endless", "--timeout", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    status = run.wait_for_end()
    assert (status["state"], status["exit"]) == ("STOPPED", 0)
    assert any(row["sweep"] for row in run.tape("round"))
    run.expect_honest_books()
    assert run.digest(0) == run.digest(1)
    assert (run.output / "adapter_config.json").exists()
    manifest = json.loads((run.output / "yeto_manifest.json").read_text())
    assert manifest["schema"] == "yeto.manifest/1"
    assert (run.output / "loss.html").stat().st_size > 0
    # The name is free again, and the old run is still there to be read.
    assert islands("status", "endless").returncode == 0
    again = islands.launch("endless", 2, "--local-steps", "6", "--no-island-relaunch")
    assert again.wait_for_end()["state"] == "SUCCEEDED"
    assert [row["local_step"] for row in again.json("status.json")["seats"]] == [6, 6]


def test_down_ends_every_process_of_the_run(islands: Islands) -> None:
    run = islands.launch("gone", 2, "--epochs", "100000", "--min-round-ms", "200")
    run.wait_for_step(1)
    pids = [run.json("status.json")["pid"], *(row["pid"] for row in run.status()["islands"])]
    assert islands("down", "gone").returncode == 0
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert run.status()["state"] == "DOWN"
    assert islands("down", "gone").returncode == 0, "down is idempotent"


def test_secrets_stay_in_their_files(islands: Islands) -> None:
    run = islands.launch("secret", 2, "--local-steps", "4")
    run.wait_for_end()
    secrets = [path.read_text().strip() for path in (run.folder / "security").iterdir()]
    assert len(secrets) == 3
    for path in (run.folder / "security").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    for path in run.folder.rglob("*"):
        if path.is_file() and path.parent.name != "security":
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in secrets), path
