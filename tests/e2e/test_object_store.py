# SPDX-License-Identifier: Apache-2.0
"""Goal: a run's checkpoints are at an object store, and another machine goes on from them.

Method: the real executable ($YETO_BIN), its bridge to obstore, a real S3 server on loopback (moto,
which checks signatures), and a learner that is a small program on the native boundary.
"""

import hashlib
import hmac
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s3_server import S3, s3

__all__ = ["s3"]  # a fixture

WAIT_S = 60.0
TOKEN = bytes(range(32))

# Takes steps until the run drains, prints its last values.
LEARNER = """
import numpy
from yeto._core import Boundary

values = numpy.ones((8, 4), numpy.float32)
boundary = Boundary(
    syncer="@endpoint.json", run_id="r1", seat=0, token_file="seat.key",
    names=["layers.0.weight"], tensors=[values], fragments=1, streams=1, max_alone_s=20.0,
)
boundary.wait_ready(20.0)
boundary.set_phase("train")
draining = False
while not draining:
    values -= 0.01
    draining = boundary.step(5)["draining"]
boundary.finalize("drain", 20.0)
print(values.tobytes().hex())
"""


class Machine:
    """A folder in which a syncer and its learner run."""

    def __init__(self, folder: Path, s3: S3, **credentials: str) -> None:
        folder.mkdir()
        self.folder = folder
        program = os.environ.get("YETO_BIN")
        assert program, "YETO_BIN must name the yeto executable (a build has it in apps/yeto/)"
        self.program = str(Path(program).resolve())
        self.secret("run.token", TOKEN.hex())
        extracted = hmac.new(bytes(32), TOKEN, hashlib.sha256).digest()
        key = hmac.new(extracted, b"yeto-seat-0\x01", hashlib.sha256).hexdigest()
        self.secret("seat.key", key)
        self.environment = s3.environment(**credentials) | {
            "YETO_PYTHON": os.environ.get("YETO_PYTHON", sys.executable),
            "TMPDIR": str(folder),
        }

    def secret(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)

    def syncer(self, *flags: str) -> subprocess.Popen[str]:
        words = [self.program, "syncer", "--learners=1", "--bind=127.0.0.1:0"]
        if not any(flag.startswith("--run-id") for flag in flags):
            words.append("--run-id=r1")
        words += ["--token-file=run.token", "--endpoint=endpoint.json", "--status=status.json"]
        words += ["--tape=tape.jsonl", "--sync-interval-steps=4", *flags]
        return subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )

    def refused(self, *flags: str) -> tuple[int, str]:
        process = self.syncer(*flags)
        _, error = process.communicate(timeout=WAIT_S)
        return process.returncode, error

    def run(self, *flags: str) -> str:
        """A run to its end; the learner's last values."""
        syncer = self.syncer(*flags)
        learner = None
        try:
            assert syncer.stderr
            log = ""
            while "effective limits" not in log:
                line = syncer.stderr.readline()
                assert line, log
                log += line
            learner = subprocess.run(
                [sys.executable, "-c", LEARNER],
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            _, rest = syncer.communicate(timeout=WAIT_S)
            assert (learner.returncode, syncer.returncode) == (0, 0), learner.stderr + log + rest
            return learner.stdout.strip()
        finally:
            if syncer.poll() is None:
                syncer.kill()
                syncer.communicate()

    def status(self) -> dict:
        return json.loads((self.folder / "status.json").read_text())


@pytest.mark.parametrize("flag", ["checkpoint-copy", "checkpoint"])
def test_another_machine_goes_on_from_the_store(s3: S3, tmp_path: Path, flag: str) -> None:
    url = f"--{flag}=s3://runs/{flag}/a"
    folder = [] if flag == "checkpoint" else ["--checkpoint=checkpoint"]
    first = Machine(tmp_path / "first", s3)
    first.run(url, *folder, "--total-steps=5")
    step = first.status()["global_step"]
    assert first.status()["checkpoint_copy"]["global_step"] == step
    assert first.status()["checkpoint_copy"]["error"] is None
    keys = s3.keys(f"{flag}/a")
    assert f"term-{1:020}.step-{step:020}.MANIFEST.json" in keys
    assert f"term-{1:020}.claim" in keys
    assert len(keys) == 4, "claim, layout, one fragment, manifest: older ones are gone"
    second = Machine(tmp_path / "second", s3)
    code, error = second.refused(url, *folder, "--total-steps=9")
    assert code == 64
    assert "--resume" in error
    # The run had ended; its checkpoint says so, and the second machine only has to hand it over.
    code, error = second.refused(url, *folder, "--resume", "--run-id=r2", "--total-steps=9")
    assert code == 64
    assert "belongs to run r1, not to r2" in error
    assert not [p for p in second.folder.iterdir() if p.name.startswith("yeto-")], "no scratch left"


def test_places_and_credentials_that_do_not_work_are_named(s3: S3, tmp_path: Path) -> None:
    wrong = Machine(tmp_path / "wrong", s3, AWS_SECRET_ACCESS_KEY="wrong")
    for flags in (
        ["--checkpoint=s3://runs/b"],
        ["--checkpoint=checkpoint", "--checkpoint-copy=s3://runs/b"],
    ):
        code, error = wrong.refused(*flags)
        assert code == 77, error
        assert "credentials" in error
        assert "s3://runs/b" in error
        assert s3.key_id not in error
    right = Machine(tmp_path / "right", s3)
    code, error = right.refused("--checkpoint=s3://no-such-bucket/b")
    assert code == 65, error
    assert "bucket" in error
    code, error = right.refused("--checkpoint=gopher://b")
    assert code == 65, error
    assert "gopher" in error
