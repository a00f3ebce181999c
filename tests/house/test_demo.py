# SPDX-License-Identifier: Apache-2.0
"""Goal: the demo shows the run's own figures and fails when it should.

Method: the real scripts/demo.py against a small stand-in for `yeto` that plays one run per
`launch`: a few status answers, then a delivered summary.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

STAND_IN = """#!{python}
import json, os, pathlib, sys
state = pathlib.Path(os.environ["STAND_IN"])
play = json.loads((state / "play.json").read_text())
arguments = sys.argv[1:]
with open(state / "calls", "a") as file:
    file.write(json.dumps(arguments) + "\\n")
def value(flag):
    return arguments[arguments.index(flag) + 1]
if arguments[0] == "launch":
    name = value("--cluster-prefix")
    if name in play["taken"]:
        sys.exit(73)
    if play["launch"]:
        sys.stderr.write("error[E_DATA]: the reason")
        sys.exit(play["launch"])
    output = pathlib.Path(value("--output"))
    output.mkdir(parents=True)
    if play["summary"] is not None:
        (output / "summary.json").write_text(json.dumps(play["summary"]))
    (state / "polls").write_text("0")
    print("run", name, "started")
elif arguments[0] == "status":
    polls = int((state / "polls").read_text())
    (state / "polls").write_text(str(polls + 1))
    answer = play["status"][min(polls, len(play["status"]) - 1)]
    if answer is None:
        sys.exit(1)
    print(json.dumps(answer))
"""

SUMMARY = {
    "heldout_loss_before": 3.0,
    "heldout_loss_after": 2.1,
    "train_seconds": 230.5,
    "tokens": 40960,
    "commits": 36,
    "islands": [
        {"id": 0, "tokens": 20480, "pushes": 36, "bytes_pushed": 4e6, "bytes_received": 5e6},
        {"id": 1, "tokens": 20480, "pushes": 35, "bytes_pushed": 4e6, "bytes_received": None},
    ],
    "prompt": "What is an island?",
    "sample_before": "An island is land.",
    "sample_after": "An island is one\ntraining job.",
}
RUNNING = {"state": "RUNNING", "global_step": 9, "total_steps": 36, "loss": None,
           "tokens_per_s": 170.2, "islands": [{"id": 0, "state": "RUNNING"}]}  # fmt: skip
DONE = RUNNING | {"state": "SUCCEEDED", "exit": 0, "global_step": 36}


class Demo:
    """A folder with the stand-in and a play; runs the demo's own functions in a child process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "yeto"
        self.program.write_text(STAND_IN.replace("{python}", sys.executable))
        self.program.chmod(0o755)
        self.play: dict[str, Any] = {
            "taken": [],
            "launch": 0,
            "summary": SUMMARY,
            "status": [RUNNING, DONE],
        }

    def start(self, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        (self.folder / "play.json").write_text(json.dumps(self.play))
        code = (
            "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import demo\n"
            "demo.ROOT = pathlib.Path(sys.argv[2]); demo.POLL_SECONDS = 0.01\n"
            "demo.make_model = lambda: pathlib.Path('model'); sys.exit(demo.main())\n"
        )
        command = [sys.executable, "-c", code, str(ROOT / "scripts"), str(self.folder)]
        return subprocess.Popen(
            command,
            env=dict(os.environ, YETO_BIN=str(self.program), STAND_IN=str(self.folder)),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores the signal, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def run(self) -> tuple[int, str]:
        process = self.start()
        out, err = process.communicate(timeout=60)
        return process.returncode, out + err

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def test_shows_losses_samples_and_bytes_per_island(demo: Demo) -> None:
    code, text = demo.run()
    assert code == 0, text
    for part in (
        "3.000 → 2.100  (-30%)",
        "36 commits",
        "island 0     20,480 tokens, 36 pushes, 4.0 MB pushed, 5.0 MB received",
        "island 1     20,480 tokens, 35 pushes, 4.0 MB pushed, unknown received",
        "before       An island is land.",
        "after        An island is one training job.",
        "summary.json",
        "round 9/36  loss unknown  170 tokens/s  islands 0:running",
    ):
        assert part in text


def test_terminal_gets_one_redrawn_line(demo: Demo) -> None:
    demo.play["status"] = [RUNNING] * 3 + [DONE]
    ours, theirs = pty.openpty()
    process = demo.start(stdout=theirs)
    os.close(theirs)
    text = ""
    with open(ours, "rb", buffering=0) as terminal:
        try:
            while part := terminal.read(65536):
                text += part.decode(errors="replace")
        except OSError:  # how Linux says that the other end is closed
            pass
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    progress = [line for line in text.split("\r\n") if "round 36/36" in line]
    assert len(progress) == 1 and progress[0].count("\r") >= 4


def test_launches_the_run_it_names(demo: Demo) -> None:
    demo.run()
    launch = demo.calls()[0]
    assert launch[launch.index("--gpu") + 1] == "local:1xcpu,local:1xcpu"
    assert launch[launch.index("--cluster-prefix") + 1] == "demo"
    for flag in ("--data", "--val-data"):
        assert Path(launch[launch.index(flag) + 1]).is_file()


def test_takes_the_next_name_if_one_is_alive(demo: Demo) -> None:
    demo.play["taken"] = ["demo", "demo2"]
    code, text = demo.run()
    assert code == 0, text
    assert demo.calls()[-1][:2] == ["status", "demo3"]


def test_loss_that_falls_too_little_is_a_failure(demo: Demo) -> None:
    demo.play["summary"] = SUMMARY | {"heldout_loss_after": 2.41}
    code, text = demo.run()
    assert code == 1
    assert "fell by 19.7%, expected at least 20%" in text


def test_unknown_loss_is_a_failure(demo: Demo) -> None:
    demo.play["summary"] = SUMMARY | {"heldout_loss_after": None}
    code, text = demo.run()
    assert code == 1 and "the held-out loss is unknown" in text


def test_failed_run_is_a_failure(demo: Demo) -> None:
    demo.play["status"] = [RUNNING, RUNNING | {"state": "FAILED", "exit": 4}]
    code, text = demo.run()
    assert code == 1 and "ended as FAILED (exit 4)" in text and "logs demo" in text


def test_refused_launch_shows_the_refusal(demo: Demo) -> None:
    demo.play["launch"] = 65
    code, text = demo.run()
    assert code == 1 and "ended with 65" in text and "E_DATA" in text


def test_run_without_summary_is_a_failure(demo: Demo) -> None:
    demo.play["summary"] = None
    code, text = demo.run()
    assert code == 1 and "no readable summary" in text


def test_status_that_fails_now_and_then_is_no_failure(demo: Demo) -> None:
    demo.play["status"] = [RUNNING, None, None, RUNNING, DONE]
    code, text = demo.run()
    assert code == 0, text


def test_status_that_never_answers_ends_the_demo(demo: Demo) -> None:
    demo.play["status"] = [None]
    code, text = demo.run()
    assert code == 1 and "gives no answer any more" in text


def test_ctrl_c_tells_how_to_go_on(demo: Demo) -> None:
    demo.play["status"] = [RUNNING]
    process = demo.start()
    assert process.stdout
    for line in process.stdout:
        if "round 9/36" in line:
            break
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "yeto stop-run demo" in rest.replace(str(demo.program), "yeto")
    assert "yeto down demo" in rest.replace(str(demo.program), "yeto")
