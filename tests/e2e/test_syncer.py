# SPDX-License-Identifier: Apache-2.0
"""Goal: `yeto syncer` and `yeto _finish` as processes: refusals, files, signals, exit codes.

Method: the real executable ($YETO_BIN); where a run is needed, learners that are small programs on
the native boundary; waits are bounded and on conditions. Certificates are made with openssl.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
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


def certificate(folder: Path, uri: str) -> dict[str, str]:
    """Flags that name a new certificate for `uri`, its key and the folder's CA."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]

    def make(name: str, *more: str) -> None:
        done = subprocess.run(
            ["openssl", "req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem",
             "-subj", f"/CN={name}", *more],
            cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (folder / f"{name}.key").chmod(0o600)

    if not (folder / "ca.pem").exists():
        make("ca", "-addext", "keyUsage=keyCertSign")
    name = re.sub(r"\W+", "-", uri)
    make(name, "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", f"subjectAltName=URI:{uri}",
         "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip
    return {"tls_cert": f"{name}.pem", "tls_key": f"{name}.key", "tls_ca": "ca.pem"}


# One learner: argv is its seat; takes steps until the run drains, prints its last values.
LEARNER = """
import sys
import numpy
from yeto._core import Boundary

seat = int(sys.argv[1])
values = numpy.ones((8, 4), numpy.float32)
boundary = Boundary(
    syncer="@endpoint.json", run_id="r1", seat=seat, token_file=None, names=["layers.0.weight"],
    tensors=[values], fragments=1, streams=2, tls_cert=f"yeto-r1-seat-{seat}.pem",
    tls_key=f"yeto-r1-seat-{seat}.key", tls_ca="ca.pem", max_alone_s=20.0,
)
boundary.wait_ready(20.0)
boundary.set_phase("train")
draining = False
while not draining:
    values -= 0.01 * (seat + 1)
    draining = boundary.step(5)["draining"]
boundary.finalize("drain", 20.0)
print(values.tobytes().hex())
"""


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
        ("wire-dtype", "q8", 64, "--wire-dtype"),
        ("push-dtype", "f16", 64, "--push-dtype"),
        ("bcast-dtype", "f16", 64, "--bcast-dtype"),
        ("correction", "helico", 64, "did you mean heloco"),
        ("max-lag", "65", 64, "--max-lag"),
        ("max-buffer", "64MB", 64, "KiB, MiB, GiB"),
        ("roster", "closed", 64, "--roster"),
        ("seats", "0,1", 64, "--seats belongs to --roster fixed"),
        ("recover-timeout", "5", 64, "--recover-timeout belongs to --roster fixed"),
        ("data-epochs", "2", 64, "--data-epochs belongs to --data-leases"),
        ("http", "127.0.0.1", 64, "--http: the port is missing"),
        ("http", "0.0.0.0:0", 77, "on loopback only"),
        ("tls-cert", "c.pem", 64, "--tls-key is missing"),
        ("outer-momentum", "0.5", 64, "takes no momentum"),
        ("bind", "127.0.0.1", 64, "port"),
        ("bind", "0.0.0.0:0", 77, "--insecure"),
        ("bind", "[::]:0", 77, "--insecure"),
        ("bind", "example.org:0", 77, "--insecure"),
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


@pytest.mark.parametrize(
    ("seats", "at", "marked", "text"),
    [
        ("0,x", 2, 1, "takes seats from 0"),
        ("0,3-1", 2, 3, "takes seats from 0"),
        ("0,", 2, 1, "takes seats from 0"),
        ("0-1,1", 4, 1, "seat 1 stands there twice"),
        ("0,1,2", 0, 5, "names 3 seats, --learners 2"),
    ],
)
def test_the_wrong_seat_of_a_list_is_marked(
    syncer: Syncer, seats: str, at: int, marked: int, text: str
) -> None:
    code, error = syncer.refused(roster="fixed", seats=seats)
    assert code == 64 and text in error
    line = error.splitlines()[2]
    assert line == " " * (len("  --seats ") + at) + "^" * marked, error


def test_one_way_to_prove_a_seat_is_needed(syncer: Syncer) -> None:
    code, error = syncer.refused(token_file=None)
    assert code == 64 and "--token-file is missing" in error and "--tls-cert" in error
    files = certificate(syncer.folder, "yeto://r1/syncer")
    code, error = syncer.refused(**files)
    assert code == 64 and "--token-file and --tls-cert exclude each other" in error
    code, error = syncer.refused("--insecure", token_file=None, **files)
    assert code == 64 and "--insecure and --tls-cert exclude each other" in error


def test_certificates_that_cannot_be_used_are_named(syncer: Syncer) -> None:
    files = certificate(syncer.folder, "yeto://r1/syncer")
    other = certificate(syncer.folder, "yeto://r2/syncer")
    cases = [
        ({**files, "tls_cert": "nowhere.pem"}, 66, "--tls-cert: file does not exist"),
        ({**files, "tls_key": other["tls_key"]}, 65, "does not belong to"),
        ({**files, "tls_ca": files["tls_key"]}, 65, "there is no certificate in the file"),
        (other, 77, "does not name yeto://r1/syncer"),
    ]
    for flags, expected, text in cases:
        code, error = syncer.refused(token_file=None, **flags)
        assert (code, text in error) == (expected, True), error
    (syncer.folder / files["tls_key"]).chmod(0o644)
    code, error = syncer.refused(token_file=None, **files)
    assert code == 77 and "can be read by others" in error


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
    for part in ("effective limits:", "start 600 s", "round 900 s", "lease 3000 ms",
                 "heartbeat 600 ms", "final acknowledgement 300 s", "leave 4.5 s",
                 "first frame 16384 bytes within 10 s", "watchdog 2 s", "grace auto",
                 "checkpoint every 30 s", "up to 2 merges"):  # fmt: skip
        assert syncer.log().count(part) == 1, part


def test_settings_stand_on_the_tape(syncer: Syncer) -> None:
    syncer.start("--data-leases", roster="fixed", seats="3,5", recover_timeout="7",
                 push_dtype="q4", bcast_dtype="bf16", max_lag="1", max_buffer="64MiB",
                 correction="heloco", seed="9", data_epochs="2")  # fmt: skip
    until(lambda: syncer.tape(), "the run record")
    settings = syncer.tape()[0]["settings"]
    expected = {
        "learners": "2", "roster": "fixed", "seats": "3,5", "recover-timeout": "7",
        "push-dtype": "q4", "bcast-dtype": "bf16", "max-lag": "1", "max-buffer": "67108864",
        "correction": "heloco", "seed": "9", "data-leases": "true", "data-epochs": "2",
    }  # fmt: skip
    assert {name: settings.get(name) for name in expected} == expected
    assert "fixed roster of 2 seats, a lost one is awaited for 7 s" in syncer.log()


# --- status pages


def page(address: str, path: str, host: str | None = None) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{address}{path}")
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers["Content-Type"], refused.read().decode()


def test_status_pages_are_served(syncer: Syncer) -> None:
    syncer.start(http="127.0.0.1:0")
    address = until(
        lambda: re.search(r"status pages on http://([^/]+)/", syncer.log()), "the pages' address"
    )[1]
    until(lambda: page(address, "/status")[0] == 200, "a first status")
    code, kind, text = page(address, "/healthz")
    assert (code, kind) == (200, "application/json")
    assert json.loads(text)["ok"] is True and text.count("\n") == 1
    code, kind, text = page(address, "/status")
    assert (code, kind) == (200, "application/json")
    assert json.loads(text)["schema"] == "yeto.syncer-status/1"
    assert json.loads(text).keys() == syncer.json("status.json").keys()
    code, kind, text = page(address, "/metrics")
    assert code == 200 and kind.startswith("text/plain; version=0.0.4")
    assert '\nyeto_run_info{run_id="r1",phase="waiting"} 1\n' in text
    assert "\n# TYPE yeto_run_rounds_total counter\nyeto_run_rounds_total 0\n" in text
    assert page(address, "/")[0] == 404
    assert page(address, "/status", host="evil.example")[0] == 403


# --- addresses and certificates


def test_insecure_is_said_loudly_and_still_asks_for_proof(syncer: Syncer) -> None:
    syncer.start("--insecure", bind="0.0.0.0:0")
    assert "warn" in syncer.log() and "INSECURE: plain TCP on 0.0.0.0:0" in syncer.log()
    assert syncer.json("endpoint.json")["host"] == "127.0.0.1"
    syncer.write_token("77" * 32)
    assert "proof" in syncer.finish().stderr
    syncer.write_token("5a" * 32)
    assert syncer.finish().returncode == 0
    assert syncer.wait() == 0


def test_ipv6_is_served(syncer: Syncer) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return  # this machine has no IPv6
    syncer.start(bind="[::1]:0")
    assert syncer.json("endpoint.json")["host"] == "::1"
    assert syncer.finish().returncode == 0
    assert syncer.wait() == 0


def test_finish_over_tls_needs_the_controllers_certificate(syncer: Syncer) -> None:
    syncer.start(token_file=None, **certificate(syncer.folder, "yeto://r1/syncer"))
    assert "TLS 1.3" in syncer.log()

    def finish(uri: str) -> subprocess.CompletedProcess[str]:
        files = certificate(syncer.folder, uri)
        flags = [f"--{name.replace('_', '-')}={file}" for name, file in files.items()]
        return syncer.call("_finish", "--endpoint=endpoint.json", *flags)

    learner = finish("yeto://r1/seat/0")
    assert learner.returncode == 65
    assert "the certificate is of yeto://r1/seat/0" in learner.stderr
    other = finish("yeto://r2/controller")
    assert other.returncode == 65 and "yeto://r2/controller" in other.stderr
    assert finish("yeto://r1/controller").returncode == 0
    assert syncer.wait() == 0


def test_a_run_over_tls(syncer: Syncer) -> None:
    syncer.start(token_file=None, total_steps="6", sync_interval_steps="1", seed="1",
                 **certificate(syncer.folder, "yeto://r1/syncer"))  # fmt: skip
    learners = []
    for seat in range(2):
        certificate(syncer.folder, f"yeto://r1/seat/{seat}")
        learners.append(
            subprocess.Popen([sys.executable, "-c", LEARNER, str(seat)], cwd=syncer.folder,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )  # fmt: skip
    try:
        ended = [learner.communicate(timeout=WAIT_S) for learner in learners]
    finally:
        for learner in learners:
            learner.kill()
    assert [learner.returncode for learner in learners] == [0, 0], ended
    assert ended[0][0] == ended[1][0] != ""
    assert syncer.wait() == 0
    assert syncer.json("status.json")["global_step"] >= 6
    assert {line["seat"] for line in syncer.tape() if line["event"] == "join"} == {0, 1}
    code, error = syncer.refused("--resume", seed="2")
    assert code == 64 and "seed 1" in error and "--seed 2" in error


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
