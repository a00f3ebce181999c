# SPDX-License-Identifier: Apache-2.0
"""Goal: the command line. Help texts, refusals with positions, every verb in every state of a run.

Method: the real executable ($YETO_BIN) against stand-ins for syncer and learner (cli_fakes.py).
Help texts are golden files; write them again with

    YETO_UPDATE_GOLDEN=1 YETO_BIN=… python -m pytest tests/e2e/test_cli.py -k golden
"""

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cli_fakes import Run, Yeto, is_alive, until  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
VERBS = ("launch", "status", "logs", "stop-run", "down", "syncer", "sim")
STATUS_KEYS = [
    "schema", "name", "run_id", "state", "phase", "exit", "global_step", "total_steps", "loss",
    "tokens_per_s", "checked_at", "islands",
]  # fmt: skip
ISLAND_KEYS = [
    "id", "state", "pid", "version_lag", "participation", "tokens", "heartbeat_age_s",
]  # fmt: skip


@pytest.fixture
def yeto(tmp_path: Path) -> Iterator[Yeto]:
    program = os.environ.get("YETO_BIN")
    assert program, "YETO_BIN must name the yeto executable (a build has it in apps/yeto/)"
    made = Yeto(str(Path(program).resolve()), tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "model").mkdir()
    yield made
    # Nothing of a test may outlive it.
    if made.runs.exists():
        for link in made.runs.iterdir():
            if link.is_symlink():
                made("down", link.name, "--timeout", "30")


LAUNCH = ["launch", "--gpu", "local:1xcpu,local:1xcpu", "--model", "model", "--data", "rows.jsonl"]


# --- help


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_golden_help(yeto: Yeto, verb: str) -> None:
    done = yeto(*([verb] if verb else []), "--help")
    assert done.returncode == 0 and done.stderr == ""
    path = GOLDEN / f"help_{verb or 'yeto'}.txt"
    if os.environ.get("YETO_UPDATE_GOLDEN"):
        path.write_text(done.stdout)
    assert path.read_text() == done.stdout, f"{path} differs; see the head of this file"
    assert "example:\n" in done.stdout


def test_bare_yeto_is_help(yeto: Yeto) -> None:
    assert yeto().stdout == yeto("--help").stdout == (GOLDEN / "help_yeto.txt").read_text()
    assert yeto("--version").stdout.startswith("yeto ")


def test_a_program_named_after_a_verb_is_that_verb(yeto: Yeto) -> None:
    link = yeto.folder / "yeto-syncer"
    link.symlink_to(yeto.program)
    other = Yeto(str(link), yeto.folder)
    assert other("--help").stdout == yeto("syncer", "--help").stdout


# --- refusals of the line


def test_a_missing_verb_shows_the_corrected_line(yeto: Yeto) -> None:
    done = yeto("--model", "m", "--gpu", "local:1xcpu")
    assert done.returncode == 64
    assert "yeto launch --model m --gpu local:1xcpu" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lanuch"], "did you mean yeto launch"),
        (["shape"], "yeto shape is not in this build"),
        (["status", "--wach"], "--watch"),
        (["down"], "needs the name of a run"),
        (["down", "a", "b"], 'does not know what "b" is'),
        (["logs", "x", "--stream", "all", "--stream", "all"], "--stream is given twice"),
        (["stop-run", "x", "--mode", "fin"], "did you mean finish"),
        (["status", "--watch", "-o", "json"], "--watch and -o json exclude each other"),
    ],
)
def test_refused_lines(yeto: Yeto, words: list[str], expected: str) -> None:
    done = yeto(*words)
    assert done.returncode == 64
    assert expected in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("flags", "code", "shown"),
    [
        (["--gpu", "local:8cpu"], "E_GPU_SYNTAX", "  --gpu local:8cpu\n               ^\n"),
        (
            ["--gpu", "local:1xcpu, awz:1xcpu"],
            "E_CLOUD_UNKNOWN",
            "  --gpu local:1xcpu, awz:1xcpu\n                     ^^^\n",
        ),
        (["--gpu", "aws:8xh100"], "E_NOT_IN_BUILD", "  --gpu aws:8xh100\n        ^^^\n"),
        (["--gpu", "local:0xcpu"], "E_GPU_COUNT", "  --gpu local:0xcpu\n              ^\n"),
        (["--seq-len", "zwölf"], "E_TYPE", "  --seq-len zwölf\n            ^^^^^\n"),
        (["--lora-r", "0"], "E_RANGE", "[1,4096]"),
        (["--tuning", "full"], "E_NOT_IN_BUILD", "--tuning is not in this build"),
        (["--total-step", "3"], "E_FLAG_UNKNOWN", "nearest: --total-steps, "),
        (["--quorum", "3"], "E_RANGE", "--gpu names 2 islands"),
        (["--cluster-prefix", "No"], "E_TYPE", "a small letter"),
        (["--output", "s3://x/y"], "E_NOT_IN_BUILD", "object stores are not in this build"),
        (["--output", "."], "E_DELIVERY", "not empty"),
        (["--val-data", "none.jsonl"], "E_DATA", "does not exist"),
        (["--model", "./none"], "E_MODEL", "the folder does not exist"),
    ],
)
def test_refused_launch_flags(yeto: Yeto, flags: list[str], code: str, shown: str) -> None:
    line = [word for word in LAUNCH]
    if flags[0] in line:
        at = line.index(flags[0])
        del line[at : at + 2]
    done = yeto(*line, *flags)
    assert done.returncode in (64, 65, 2)
    assert f"error[{code}]" in done.stderr, done.stderr
    assert shown in done.stderr, done.stderr
    assert not yeto.home.exists(), "a refused launch creates nothing"


def test_all_refusals_come_together(yeto: Yeto) -> None:
    done = yeto(
        "launch", "--gpu", "local:0xcpu", "--model", "./none", "--data", "none.jsonl",
        "--lora-r", "x", "--tuning", "full",
    )  # fmt: skip
    assert done.returncode == 64
    for code in ("E_GPU_COUNT", "E_MODEL", "E_DATA", "E_TYPE", "E_NOT_IN_BUILD"):
        assert f"error[{code}]" in done.stderr


def test_refusals_as_json(yeto: Yeto) -> None:
    done = yeto(*LAUNCH[:1], "--gpu=local:8cpu", "--model=model", "--data=rows.jsonl", "-o", "json")
    assert done.returncode == 64
    value = json.loads(done.stdout)
    assert value["schema"] == "yeto.error/1"
    (error,) = value["errors"]
    assert error["code"] == "E_GPU_SYNTAX"
    assert error["where"] == {
        "source": "argv", "flag": "--gpu", "value": "local:8cpu", "offset": 7, "length": 1,
    }  # fmt: skip


def test_data_that_cannot_be_read(yeto: Yeto) -> None:
    line = [*LAUNCH[:-1], "none.jsonl"]
    done = yeto(*line)
    assert done.returncode == 65
    assert "  --data none.jsonl\n         ^^^^^^^^^^\n" in done.stderr


def test_a_refusal_of_the_learner_is_shown_as_it_is(yeto: Yeto) -> None:
    (yeto.folder / "refused.jsonl").write_text("{}\n")
    done = yeto(*LAUNCH[:-1], "refused.jsonl")
    assert done.returncode == 65
    assert "error[E_DATA]: no row has a target\n  where: refused.jsonl:1\n" in done.stderr
    assert not yeto.home.exists()


def test_a_python_without_yeto(yeto: Yeto) -> None:
    (yeto.folder / "broken.jsonl").write_text("{}\n")
    done = yeto(*LAUNCH[:-1], "broken.jsonl")
    assert done.returncode == 11
    assert "No module named yeto" in done.stderr and "YETO_PYTHON" in done.stderr
    done = yeto(*LAUNCH, env={"YETO_PYTHON": "/no/such/python"})
    assert done.returncode == 11 and "/no/such/python" in done.stderr


# --- launch


def test_dry_run_creates_nothing_and_forwards_every_flag(yeto: Yeto) -> None:
    (yeto.folder / "template.jinja").write_text("x")
    learner = {
        "val-data": "rows.jsonl", "max-rows": "9", "max-dropped": "7",
        "chat-template": "template.jinja", "train-on": "last", "assistant-mask-mode": "spans",
        "overlong": "right", "lora-r": "8",
        "lora-alpha": "16", "lora-dropout": "0.1", "lora-targets": "q_proj,v_proj", "seq-len": "64",
        "micro-batch-size": "2", "grad-accum": "3", "inner-lr": "1e-3", "weight-decay": "0.1",
        "betas": "0.8,0.9", "clip": "0.5", "warmup": "4", "dtype": "fp32", "device": "cpu",
        "seed": "5", "nan-policy": "stop", "epochs": "2", "tokens": "3k", "local-steps": "7",
        "eval-rows": "11",
        "sample-prompt": "--really?", "log-every": "2", "fragments": "4",
        "fragment-pattern": "binpack", "matrix-merge": "avg", "streams": "2", "max-alone": "60",
    }  # fmt: skip
    syncer = {
        "total-steps": "12", "sync-interval-steps": "1", "pipeline": "1", "quorum": "all",
        "start-quorum": "1", "start-timeout": "5", "round-timeout": "70", "min-round-ms": "3",
        "grace-ms": "10", "grace-gamma": "0.5", "grace-tau": "1", "lease-ms": "3000",
        "outer": "nesterov", "outer-lr": "0.6", "outer-momentum": "0.8",
        "weights": "equal",
        "wire-dtype": "bf16", "merge-alpha": "0.5", "delta-reference": "blended",
        "durability": "interval", "checkpoint-every": "9", "final-timeout": "40",
    }  # fmt: skip
    flags = [f"--{name}={value}" for name, value in {**learner, **syncer}.items()]
    done = yeto(*LAUNCH, *flags, "--lockstep", "--output", "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not yeto.home.exists() and not (yeto.folder / "out").exists()
    plan = json.loads(done.stdout)
    assert plan["limits"] == {"total-steps": 12, "epochs": 2, "tokens": 3000, "local-steps": 7}
    assert plan["output"] == str(yeto.folder / "out")
    assert plan["flags"]["seed"] == {"value": 5, "text": "5", "origin": "argv"}
    assert plan["secrets"] == ["security/run.token", "security/seat-0.key", "security/seat-1.key"]
    for name, value in syncer.items():
        assert f"--{name}={value}" in plan["syncer"]["argv"]
    assert "--lockstep" in plan["syncer"]["argv"]
    # The learner's own parser understands its line, and gets what was given.
    sys.path.insert(0, str(ROOT / "python"))
    from yeto.learner import options

    for seat, island in enumerate(plan["islands"]):
        argv = island["argv"]
        assert argv[:3] == [str(yeto.python), "-m", "yeto.learner"]
        got = options.parse(argv[3:])
        assert (got.seat, got.seats, got.threads, got.tokens) == (seat, 2, 1, 3000)
        assert got.sample_prompt == "--really?" and got.betas == (0.8, 0.9)
        assert got.data == str(yeto.folder / "rows.jsonl")
        for name in learner:
            assert any(word.startswith(f"--{name}=") for word in argv), name
        assert "OMP_NUM_THREADS=1" in island["env"]


def test_defaults_of_the_table_are_the_learners(yeto: Yeto) -> None:
    """A flag that the user leaves out has one default, told by two programs."""
    sys.path.insert(0, str(ROOT / "python"))
    from dataclasses import asdict

    from yeto.learner import options

    plan = json.loads(yeto(*LAUNCH, "--dry-run").stdout)
    got = asdict(options.parse(plan["islands"][0]["argv"][3:]))
    plain = asdict(options.parse(["--model", "m", "--data", "d", "--out-dir", "o"]))
    wiring = {
        "model", "data", "syncer", "run_id", "seat", "seats", "token_file", "run_dir", "out_dir",
        "threads",
    }  # fmt: skip
    differing = {key for key in plain if plain[key] != got[key]} - wiring
    assert differing == {"epochs"}, "only the rule of the missing limit may differ"
    assert got["epochs"] == 1 and plan["flags"]["epochs"]["origin"] == "rule"


def test_a_short_run_lowers_the_sync_interval_and_says_so(yeto: Yeto) -> None:
    plan = json.loads(yeto(*LAUNCH, "--local-steps", "8", "--dry-run").stdout)
    assert "--sync-interval-steps=2" in plan["syncer"]["argv"]
    assert plan["flags"]["sync-interval-steps"]["origin"] == "rule"
    assert any("--sync-interval-steps 24 -> 2" in warning for warning in plan["warnings"])


def test_launch_writes_the_folder_and_returns(yeto: Yeto) -> None:
    done = yeto(*LAUNCH, "--cluster-prefix", "one", "--output", "out", "-y")
    assert done.returncode == 0, done.stderr
    for verb in ("yeto status one", "yeto logs one", "yeto stop-run one", "yeto down one"):
        assert verb in done.stdout
    assert "no limit was given: --epochs 1" in done.stdout
    assert "1 rows have no target and are left out: rows.jsonl:2" in done.stdout
    status = yeto.status("one")
    assert (status["state"], status["exit"]) == ("PENDING", None)
    folder = (yeto.runs / "one").resolve()
    assert folder.name == f"one.{status['run_id'][-6:].lower()}"
    security = folder / "security"
    assert stat.S_IMODE(security.stat().st_mode) == 0o700
    secrets = [path.read_text().strip() for path in security.iterdir()]
    assert len(secrets) == 3
    for path in security.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # The processes come up; none has a secret in its line, and no file outside security/ holds one.
    state = until(
        lambda: (
            (value := json.loads((folder / "state.json").read_text()))["syncer"]["pid"]
            and all(island["pid"] for island in value["islands"])
            and value
        ),
        "three processes",
    )
    pids = [state["syncer"]["pid"], *(island["pid"] for island in state["islands"])]
    for pid in pids:
        line = Path(f"/proc/{pid}/cmdline").read_text()
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert not any(secret in line or secret in environment for secret in secrets)
    assert yeto("down", "one").returncode == 0
    assert not any(is_alive(pid) for pid in pids)
    for path in folder.rglob("*"):
        if path.is_file() and path.parent != security:
            assert not any(secret.encode() in path.read_bytes() for secret in secrets), path


def test_launch_as_json(yeto: Yeto) -> None:
    done = yeto(*LAUNCH, "-o", "json")
    value = json.loads(done.stdout)
    assert value["schema"] == "yeto.launch/1" and value["name"] == "yeto" and value["islands"] == 2
    assert value["check"]["rows"] == 3
    assert any("no limit" in warning for warning in value["warnings"])


def test_a_busy_name_is_refused_until_it_is_free(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    before = run.state()["seq"]
    done = yeto(*LAUNCH, "--cluster-prefix", "demo")
    assert done.returncode == 73
    assert "  --cluster-prefix demo\n                   ^^^^\n" in done.stderr
    for part in (run.run_id, "RUNNING TRAINING", "ago", "yeto down demo", "--cluster-prefix OTHER"):
        assert part in done.stderr
    assert run.state()["seq"] == before
    run.put("end", "0")
    run.reach("SUCCEEDED")
    until(lambda: not (yeto.runs / "claims" / "demo").exists(), "the name is released")
    assert yeto(*LAUNCH, "--cluster-prefix", "demo", "--dry-run").returncode == 0


def test_a_stale_claim_does_not_hold_the_name(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    run.put("end", "0")
    run.reach("SUCCEEDED")
    run.controller.wait()
    run.write_claim()  # as if the controller had died between its last state and the release
    done = yeto(*LAUNCH, "--cluster-prefix", "demo")
    assert done.returncode == 0, done.stderr
    assert yeto.status("demo")["run_id"] != run.run_id
    assert yeto.status(run.folder.name)["state"] == "SUCCEEDED"


# --- every verb in every state


def make_run(yeto: Yeto, state: str) -> Run:
    if state == "PENDING":
        return Run(yeto, hold=True).reach("PENDING", "PROVISIONING")
    if state == "FAILED":
        return Run(yeto, fail=65).reach("FAILED")
    run = Run(yeto).reach("RUNNING", "TRAINING")
    if state == "SUCCEEDED":
        run.put("end", "0")
        run.reach(state)
    elif state == "STOPPED":
        assert yeto("stop-run", "demo").returncode == 0
        run.reach(state)
    elif state == "DOWN":
        assert yeto("down", "demo").returncode == 0
        run.reach(state)
    elif state == "CONTROL_LOST":
        run.lose_controller()
    return run


LIVE = {"PENDING", "RUNNING", "CONTROL_LOST"}
EXITS = {"SUCCEEDED": 0, "STOPPED": 0, "FAILED": 65}


@pytest.mark.parametrize(
    "state", ["PENDING", "RUNNING", "CONTROL_LOST", "SUCCEEDED", "STOPPED", "FAILED", "DOWN"]
)
def test_every_verb_in_every_state(yeto: Yeto, state: str) -> None:
    run = make_run(yeto, state)
    status = yeto.status("demo")
    assert list(status) == STATUS_KEYS and status["schema"] == "yeto.status/1"
    assert [list(island) for island in status["islands"]] == [ISLAND_KEYS] * 2
    assert status["state"] == ("RUNNING" if state == "CONTROL_LOST" else state)
    assert status["exit"] == EXITS.get(state)
    if state == "CONTROL_LOST":
        assert status["phase"] == "CONTROL_LOST"
        assert "take it over" in yeto("status", "demo").stdout
    if state not in LIVE:
        assert status["phase"] is None and status["tokens_per_s"] is None
        assert all(island["pid"] is None for island in status["islands"])
    assert "demo" in yeto("status").stdout and yeto("status", "demo").returncode == 0
    listed = json.loads(yeto("status", "--json").stdout)
    assert [one["name"] for one in listed] == ["demo"]

    logs = yeto("logs", "demo")
    assert logs.returncode == 0
    assert "syncer | syncer says hello" in logs.stdout and "controller | " in logs.stdout

    stop = yeto("stop-run", "demo", "--timeout", "2" if state == "CONTROL_LOST" else "30")
    if state == "CONTROL_LOST":
        assert stop.returncode == 75
        assert str(run.folder / "STOP") in stop.stderr and "yeto down demo" in stop.stderr
    else:
        assert stop.returncode == 0, stop.stderr
        assert ("is stopping" if state in LIVE else f"is over already: {state}") in stop.stdout
    for _ in range(2):
        down = yeto("down", "demo")
        assert down.returncode == 0, down.stderr
    assert run.folder.is_dir(), "the folder is kept"
    assert not any(is_alive(pid) for pid in run.pids())
    after = yeto.status("demo")["state"]
    # A run that was stopping may have reached its own end before `down` came.
    assert after in ({"DOWN", "STOPPED"} if state in LIVE else {state})
    assert not (yeto.runs / "claims" / "demo").exists()


@pytest.mark.parametrize("verb", ["status", "logs", "stop-run", "down"])
def test_an_unknown_run(yeto: Yeto, verb: str) -> None:
    done = yeto(verb, "nobody")
    assert done.returncode == 66
    assert 'there is no run "nobody"' in done.stderr and str(yeto.runs) in done.stderr
    assert not yeto.home.exists()


def test_no_runs_says_where_it_looked(yeto: Yeto) -> None:
    assert yeto("status").stdout == f"no runs in {yeto.runs}\n"
    assert json.loads(yeto("status", "-o", "json").stdout) == []
    elsewhere = yeto("status", env={"YETO_RUNS_DIR": str(yeto.folder / "other")})
    assert elsewhere.stdout == f"no runs in {yeto.folder / 'other'}\n"


# --- status and logs in detail


def test_status_shows_what_syncer_and_learners_say(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    status = yeto.status("demo")
    assert status["loss"] == 2.5 and status["tokens_per_s"] == 200.0
    assert status["global_step"] > 0 and status["total_steps"] is None
    for island in status["islands"]:
        assert island["state"] == "RUNNING" and is_alive(island["pid"])
        assert island["participation"] == 1.0 and island["version_lag"] == 0
        assert island["heartbeat_age_s"] >= 0.1 and island["tokens"] > 0
    run.put("end", "0")
    run.reach("SUCCEEDED")
    watch = yeto("status", "demo", "--watch", "0.1")
    assert watch.returncode == 0 and "SUCCEEDED" in watch.stdout
    assert f"artifact: {run.output}" in watch.stdout


def test_logs_are_chosen_by_island_stream_and_tail(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    only = yeto("logs", "demo", "--island", "1").stdout
    assert only == "island 1 a0 | island 1 says hello\n"
    assert yeto("logs", "demo", "--stream", "syncer").stdout == "syncer | syncer says hello\n"
    assert yeto("logs", "demo", "--island", "0", "--tail", "0").stdout == ""
    (run.folder / "logs" / "syncer.log").write_text("a\nb\nc\nno end")
    tail = yeto("logs", "demo", "--stream", "syncer", "--tail", "2").stdout
    assert tail == "syncer | c\nsyncer | no end\n"
    assert yeto("logs", "demo", "--island", "7").returncode == 64
    assert yeto("logs", "demo", "--island", "0", "--stream", "syncer").returncode == 64


def test_ctrl_c_in_logs_only_detaches(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    follow = yeto.start("logs", "demo", "-f")
    assert follow.stdout is not None
    for line in follow.stdout:
        if "syncer says hello" in line:
            break
    follow.send_signal(signal.SIGINT)
    rest = follow.stdout.read()
    assert follow.wait(timeout=60) == 0 and "detached" in rest
    assert yeto.status("demo")["phase"] == "TRAINING"
    assert all(is_alive(pid) for pid in run.pids())


def test_logs_follow_new_attempts_until_the_run_is_over(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    follow = yeto.start("logs", "demo", "--island", "1", "-f")
    assert follow.stdout is not None
    assert follow.stdout.readline() == "island 1 a0 | island 1 says hello\n"
    os.kill(run.state()["islands"][1]["pid"], signal.SIGKILL)
    assert follow.stdout.readline() == "island 1 a1 | island 1 says hello\n"
    run.reach("RUNNING", "TRAINING").put("end", "0")
    rest = follow.stdout.read()
    assert follow.wait(timeout=60) == 0 and "the run is over: SUCCEEDED" in rest


# --- recovery through the command line


def test_a_stopped_run_is_delivered(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    done = yeto("stop-run", "demo", "-o", "json")
    assert json.loads(done.stdout)["schema"] == "yeto.stop-run/1"
    run.reach("STOPPED")
    assert (run.output / "adapter_model.safetensors").read_text() == "weights"
    summary = json.loads((run.output / "summary.json").read_text())
    assert summary["run_id"] == run.run_id and len(summary["islands"]) == 2
    assert summary["heldout_loss_before"] is None


def test_a_new_controller_takes_a_lost_run_over(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    pids = [run.state()["syncer"]["pid"], *(island["pid"] for island in run.state()["islands"])]
    run.lose_controller()
    assert yeto.status("demo")["phase"] == "CONTROL_LOST"
    assert all(is_alive(pid) for pid in pids), "islands go on without a controller"
    second = yeto.start("_controller", str(run.folder))
    until(lambda: yeto.status("demo")["phase"] == "TRAINING", "the run has a controller again")
    state = run.state()
    assert [state["syncer"]["pid"], *(island["pid"] for island in state["islands"])] == pids
    run.put("end", "0")
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert yeto.status("demo")["state"] == "SUCCEEDED"


def test_down_ends_processes_whose_controller_and_journal_are_damaged(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    state = run.state()
    pids = [state["syncer"]["pid"], *(island["pid"] for island in state["islands"])]
    run.lose_controller()
    (run.folder / "journal.jsonl").write_text("damage\n" * 3)
    done = yeto("down", "demo")
    assert done.returncode == 0, done.stderr
    assert not any(is_alive(pid) for pid in pids)


def test_down_kills_what_does_not_listen(yeto: Yeto) -> None:
    run = Run(yeto).reach("RUNNING", "TRAINING")
    pids = [island["pid"] for island in run.state()["islands"]]
    os.kill(pids[0], signal.SIGSTOP)
    done = yeto("down", "demo")
    assert done.returncode == 0, done.stderr
    assert not any(is_alive(pid) for pid in pids)
    assert yeto.status("demo")["state"] == "DOWN"
