# SPDX-License-Identifier: Apache-2.0
"""Goal: the example learner in C learns, together with a second one, over a real syncer.

Method: three processes, as its README says; both islands must end with equal weights and a loss far
below the first. usage: example_test.py YETO C_LEARNER
"""

import hashlib
import hmac
import json
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 240.0


def seat_key(token: bytes, seat: int) -> str:
    """HKDF-SHA256 with an empty salt, one block."""
    extracted = hmac.new(bytes(32), token, hashlib.sha256).digest()
    info = f"yeto-seat-{seat}".encode() + b"\x01"
    return hmac.new(extracted, info, hashlib.sha256).hexdigest()


def secret_file(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def run(yeto: str, learner: str, folder: Path, *syncer_flags: str) -> list[dict[str, str]]:
    folder.mkdir()
    token = secrets.token_bytes(32)
    secret_file(folder / "run.token", token.hex())
    flags = ["--run-id=demo", "--learners=2", "--total-steps=40", "--sync-interval-steps=8",
             "--outer=direct", "--bind=127.0.0.1:0", "--token-file=run.token",
             "--endpoint=endpoint.json", "--checkpoint=checkpoint", "--tape=tape.jsonl",
             *syncer_flags]  # fmt: skip
    processes = []
    try:
        with (folder / "log").open("w") as log:
            syncer = subprocess.Popen([yeto, "syncer", *flags], cwd=folder, stderr=log)
        processes.append(syncer)
        learners = []
        for seat in range(2):
            secret_file(folder / f"seat-{seat}.key", seat_key(token, seat))
            words = [learner, "--syncer", "@endpoint.json", "--run-id", "demo", "--token-file",
                     f"seat-{seat}.key", "--seat", str(seat), "--seats", "2"]  # fmt: skip
            pipe = subprocess.PIPE
            learners.append(
                subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True)
            )
        processes += learners
        lines = []
        for process in learners:
            out, error = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, error + (folder / "log").read_text()
            words = out.split()
            lines.append(dict(zip(words[::2], words[1::2], strict=True)))
        assert syncer.wait(timeout=LIMIT_S) == 0, (folder / "log").read_text()
        return lines
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def check_leases(tape: Path) -> None:
    """No position is granted twice in an epoch, and what was trained is told to be complete."""
    granted: dict[tuple[int, int], int] = {}
    complete = returned = 0
    for line in tape.read_text().splitlines():
        event = json.loads(line)
        if event["event"] != "data":
            continue
        places = [(event["epoch"], event["first"] + i) for i in range(event["count"])]
        if event["what"] == "grant":
            for place in places:
                assert granted.get(place, 0) <= 0, (place, "is out already")
                granted[place] = 1
        elif event["what"] in ("return", "lost"):
            returned += len(places)
            granted.update(dict.fromkeys(places, 0))
        else:
            complete += len(places)
            assert all(granted.get(place) == 1 for place in places), event
            granted.update(dict.fromkeys(places, 2))
    assert complete > 4 * returned, "work was lost in a run without faults"
    print(f"leased: {len(granted)} positions granted, {complete} complete, {returned} returned")


def main() -> None:
    yeto, learner = (str(Path(word).resolve()) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as scratch:
        for name, flags in {"split": [], "leased": ["--data-leases"]}.items():
            first, second = run(yeto, learner, Path(scratch) / name, *flags)
            for key in ("global_step", "loss_after", "bias", "weight0"):
                assert first[key] == second[key], (name, key, first, second)
            before, after = float(first["loss_before"]), float(first["loss_after"])
            assert after < before / 20, (name, first)
            print(f"{name}: loss {before} -> {after}")
        check_leases(Path(scratch) / "leased" / "tape.jsonl")


if __name__ == "__main__":
    main()
