# SPDX-License-Identifier: Apache-2.0
"""Goal: `yeto syncer` and `yeto _finish` as processes: refusals, files, signals, exit codes.

Method: the real executable ($YETO_BIN) without learners; waits are bounded and on conditions.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 30.0


def until(condition: Callable[[], Any], what: str) -> Any:
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {WAIT_S} s")


class Syncer:
    """The executable in a folder of its own, with a token file."""

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("YETO_BIN")
        assert program, "YETO_BIN must name the yeto executable (a build has it in apps/yeto/)"
        self.program = str(Path(program).resolve())
        self.folder = folder
        self.token = folder / "run.token"
        self.write_token("5a" * 32 + "\n")
        self.process: subprocess.Popen[str] | None = None

    def write_token(self, text: str, mode: int = 0o600) -> None:
        self.token.write_text(text)
        self.token.chmod(mode)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def flags(self, **changes: str | None) -> list[str]:
        values: dict[str, str | None] = {
            "bind": "127.0.0.1:0",
            "run-id": "r1",
            "learners": "2",
            "token-file": "run.token",
            "checkpoint": "checkpoint",
            "endpoint": "endpoint.json",
            "status": "status.json",
            "tape": "tape.jsonl",
        }
        values.update({name.replace("_", "-"): value for name, value in changes.items()})
        return [f"--{name}={value}" for name, value in values.items() if value is not None]

    def refused(self, *extra: str, **changes: str | None) -> tuple[int, str]:
        done = self.call("syncer", *self.flags(**changes), *extra)
        assert done.stdout == ""
        return done.returncode, done.stderr

    def start(self, *extra: str, **changes: str | None) -> None:
        (self.folder / "endpoint.json").unlink(missing_ok=True)
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [self.program, "syncer", *self.flags(**changes), *extra],
                cwd=self.folder,
                stderr=log,
                text=True,
            )
        until((self.folder / "endpoint.json").exists, "listening")

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=WAIT_S)

    def finish(self, *extra: str) -> subprocess.CompletedProcess[str]:
        return self.call("_finish", "--endpoint=endpoint.json", "--token-file=run.token", *extra)

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def tape(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "tape.jsonl").read_text().splitlines()]

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[Syncer]:
    made = Syncer(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


# --- refusals


@pytest.mark.parametrize(
    ("flag", "value", "code", "text"),
    [
        ("run-id", "a b", 64, "--run-id a b"),
        ("run-id", "x" * 65, 64, "1 to 64"),
        ("learners", "0", 64, "--learners"),
        ("start-quorum", "3", 64, "above --learners 2"),
        ("lease-ms", "199", 64, "--lease-ms"),
        ("grace-ms", "soon", 64, "--grace-ms"),
        ("quorum", "most", 64, "--quorum"),
        ("wire-dtype", "q4", 64, "--wire-dtype"),
        ("outer-momentum", "0.5", 64, "takes no momentum"),
        ("bind", "127.0.0.1", 64, "port"),
        ("bind", "0.0.0.0:0", 64, "TLS is not in this build"),
        ("bind", "example.org:0", 64, "TLS is not in this build"),
        ("token-file", "nowhere", 66, "nowhere"),
    ],
)
def test_bad_value_is_refused(syncer: Syncer, flag: str, value: str, code: int, text: str) -> None:
    got, error = syncer.refused(**{flag: value})
    assert (got, text in error) == (code, True), error
    assert error.startswith("error[E_")
    assert not (syncer.folder / "endpoint.json").exists()


def test_all_flag_errors_come_together(syncer: Syncer) -> None:
    code, error = syncer.refused("--lockstep", quorum="2", start_quorum="9", run_id="?")
    assert code == 64
    assert error.count("error[") == 3, error


def test_token_file_that_others_can_read_is_refused(syncer: Syncer) -> None:
    syncer.write_token("5a" * 32, mode=0o644)
    code, error = syncer.refused()
    assert code == 77 and "chmod 600" in error


def test_token_file_that_is_no_token_is_refused(syncer: Syncer) -> None:
    syncer.write_token("hello")
    code, error = syncer.refused()
    assert code == 65 and "64 hex digits" in error


def test_taken_port_is_named(syncer: Syncer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, error = syncer.refused(bind=f"127.0.0.1:{port}")
    assert code != 0 and str(port) in error


def test_folder_with_other_files_is_left_alone(syncer: Syncer) -> None:
    (syncer.folder / "checkpoint").mkdir()
    (syncer.folder / "checkpoint" / "thesis.txt").write_text("mine")
    code, error = syncer.refused()
    assert code == 64 and "thesis.txt" in error
    assert (syncer.folder / "checkpoint" / "thesis.txt").read_text() == "mine"


def test_tape_of_something_else_is_refused(syncer: Syncer) -> None:
    (syncer.folder / "tape.jsonl").write_text("dear diary\n")
    code, error = syncer.refused()
    assert code == 82 and "byte 0" in error
    assert (syncer.folder / "tape.jsonl").read_text() == "dear diary\n"


# --- life


def test_files_and_limits_are_told_at_start(syncer: Syncer) -> None:
    syncer.start(lease_ms="3000")
    endpoint = syncer.json("endpoint.json")
    assert endpoint["schema"] == "yeto.endpoint/1"
    assert endpoint["run_id"] == "r1" and endpoint["term"] == 1
    assert syncer.process is not None and endpoint["pid"] == syncer.process.pid
    with socket.create_connection((endpoint["host"], endpoint["port"]), timeout=WAIT_S) as peer:
        assert peer.recv(4) == b"YETO"
    until((syncer.folder / "status.json").exists, "a status file")
    status = syncer.json("status.json")
    assert status["schema"] == "yeto.syncer-status/1"
    assert status["phase"] == "waiting" and status["exit"] is None
    for part in ("start 600 s", "round 900 s", "lease 3000 ms", "heartbeat 600 ms",
                 "final acknowledgement 300 s"):  # fmt: skip
        assert part in syncer.log()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_it_in_time(syncer: Syncer, number: signal.Signals, code: int) -> None:
    syncer.start()
    assert syncer.process is not None
    began = time.monotonic()
    syncer.process.send_signal(number)
    assert syncer.wait() == code
    assert time.monotonic() - began < 5
    assert syncer.json("status.json")["exit"] == code


def test_finish_ends_a_run_that_has_not_begun(syncer: Syncer) -> None:
    syncer.start()
    done = syncer.finish("--reason=enough")
    assert (done.returncode, done.stderr) == (0, "")
    assert syncer.wait() == 0
    status = syncer.json("status.json")
    assert (status["phase"], status["exit"]) == ("ended", 0)
    assert [line["event"] for line in syncer.tape()] == ["run", "finish"]
    assert syncer.tape()[1]["reason"] == "enough"


def test_finish_with_another_token_is_refused(syncer: Syncer) -> None:
    syncer.start()
    syncer.write_token("77" * 32)
    done = syncer.finish()
    assert done.returncode == 65 and "proof" in done.stderr
    assert syncer.process is not None and syncer.process.poll() is None


def test_finish_without_a_syncer_is_unreachable(syncer: Syncer) -> None:
    syncer.start()
    syncer.finish()
    syncer.wait()
    done = syncer.finish()
    assert done.returncode == 69 and "127.0.0.1" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["--endpoint=e"], ["--endpoint=e", "--token-file=t", "--mode=later"], ["--what=1"],
     ["--endpoint=e", "--endpoint=f", "--token-file=t"], ["--endpoint"]],
)  # fmt: skip
def test_finish_refuses_bad_flags(syncer: Syncer, arguments: list[str]) -> None:
    done = syncer.call("_finish", *arguments)
    assert done.returncode == 64 and done.stderr.startswith("error[E_")


def test_second_life_raises_the_term_and_goes_on_with_the_tape(syncer: Syncer) -> None:
    syncer.start()
    assert syncer.process is not None
    until(lambda: len(syncer.tape()) == 1, "the run record")
    syncer.process.kill()
    syncer.wait()
    with (syncer.folder / "tape.jsonl").open("a") as tape:
        tape.write('{"ts":1.0,"seq":1,"te')
    syncer.start("--resume")
    assert syncer.json("endpoint.json")["term"] == 2
    assert "starts from the beginning" in syncer.log()
    assert "cut off" in syncer.log()
    until(lambda: len(syncer.tape()) == 2, "a second run record")
    assert [(line["seq"], line["term"]) for line in syncer.tape()] == [(0, 1), (1, 2)]
