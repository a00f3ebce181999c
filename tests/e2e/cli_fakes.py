# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for syncer, learner, finish and plot that keep the contract of the run folder's files.

They train nothing and wait for files that a test writes into the run folder, so that a test decides
when a run goes on. `hold` keeps the syncer in the phase "waiting", `end` (an exit code) ends it.
"""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SYNCER = r"""#!/bin/sh
for arg in "$@"; do case "$arg" in --status=*) dir=$(dirname "${arg#--status=}");; esac; done
n=0
status() {
  n=$((n + 1))
  seats=""
  for seat in 0 1; do
    pid=$(cat "$dir/up.$seat" 2>/dev/null) || continue
    seats="$seats${seats:+,}{\"seat\":$seat,\"state\":\"live\",\"incarnation\":\"$pid\",\"phase\":\"train\",
      \"local_step\":$n,\"tokens\":$((n * 10)),\"version_lag\":0,\"participation\":1.0,
      \"heartbeat_age_s\":0.1}"
  done
  printf '{"phase":"%s","global_step":%s,"total_steps":null,"run_tokens":%s,"pid":%s,"exit":%s,
    "updated_at":%s,"seats":[%s]}' "$1" "$n" $((n * 20)) "$$" "${2:-null}" "$(date +%s.%N)" \
    "$seats" > "$dir/status.tmp"
  mv "$dir/status.tmp" "$dir/status.json"
}
echo "syncer says hello"
while [ ! -e "$dir/end" ]; do
  if [ -e "$dir/hold" ]; then status waiting; else status training; fi
  sleep 0.05
done
code=$(cat "$dir/end")
touch "$dir/final"
status ended "$code"
exit "$code"
"""

LEARNER = r"""#!/bin/sh
for arg in "$@"; do case "$arg" in
  --run-dir=*) dir=${arg#--run-dir=};;
  --seat=*) seat=${arg#--seat=};;
  --out-dir=*) out=${arg#--out-dir=};;
esac; done
[ -e "$dir/fail" ] && exit "$(cat "$dir/fail")"
trap 'exit 81' TERM
echo "island $seat says hello"
echo $$ > "$dir/up.$seat.tmp"; mv "$dir/up.$seat.tmp" "$dir/up.$seat"
echo '{"step": 1, "loss": 2.5, "targets": 4, "tok_s": 100.0, "ts": 1.0}' >> "$out/metrics.jsonl"
while [ ! -e "$dir/final" ]; do sleep 0.05; done
mkdir -p "$out/adapter.tmp"
printf weights > "$out/adapter.tmp/adapter_model.safetensors"
printf '{"files":{"adapter_model.safetensors":{"bytes":7,"sha256":"%s"}}}' \
  "$(printf weights | sha256sum | cut -c1-64)" > "$out/adapter.tmp/yeto_manifest.json"
mv "$out/adapter.tmp" "$out/adapter"
"""

FINISH = r"""#!/bin/sh
for arg in "$@"; do case "$arg" in --endpoint=*) dir=$(dirname "${arg#--endpoint=}");; esac; done
echo 0 > "$dir/end.tmp"; mv "$dir/end.tmp" "$dir/end"
"""

# A "Python" for `yeto launch`: answers --check, else is a learner that never joins.
PYTHON = r"""#!/bin/sh
case "$*" in
  *yeto.learner.plot*) exit 0;;
  *--check*)
    case "$*" in
      *refused.jsonl*)
        printf 'error[E_DATA]: no row has a target\n  where: refused.jsonl:1\n' >&2; exit 65;;
      *broken.jsonl*) echo "No module named yeto" >&2; exit 1;;
    esac
    echo '{"schema": "yeto.check/1", "rows": 3, "trainable_rows": 2, "tokens": 30, "targets": 12,
      "rows_without_target": 1, "rows_without_target_listed": ["rows.jsonl:2"],
      "mask_method": "tag", "heldout_rows": 0, "heldout_targets": 0, "model_type": "llama",
      "model_parameters": 1000, "vocabulary": 320}';;
  *) trap 'exit 81' TERM; echo waiting; while :; do sleep 0.1; done;;
esac
"""

LIMIT_S = 60.0


def write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Waits for a true value. The limit only bounds a failure."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


class Yeto:
    """The executable with a home of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.home = folder / "home"
        self.runs = self.home / "runs"
        self.python = write_program(folder / "fakepython", PYTHON)
        self.env: dict[str, str] = {
            **{key: value for key, value in os.environ.items() if not key.startswith("YETO_")},
            "YETO_HOME": str(self.home),
            "YETO_PYTHON": str(self.python),
        }

    def __call__(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *args],
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def status(self, name: str) -> dict[str, Any]:
        done = self("status", name, "-o", "json")
        assert done.returncode == 0, done.stderr
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value


class Run:
    """A run of fakes: its folder, and its controller as a detached process."""

    def __init__(
        self, yeto: Yeto, name: str = "demo", *, hold: bool = False, fail: int = 0
    ) -> None:
        self.yeto = yeto
        self.name = name
        self.run_id = f"01ARZ3NDEKTSV4RRFFQ69{name.upper():Z>5.5}"
        self.folder = yeto.runs / f"{name}.{self.run_id[-6:].lower()}"
        self.output = yeto.folder / f"out-{name}"
        for part in ("logs/learner", "events", "syncer", "islands", "security"):
            (self.folder / part).mkdir(parents=True)
        (yeto.runs / "claims").mkdir(exist_ok=True)
        (yeto.runs / name).symlink_to(self.folder.name)
        self.write_claim()
        programs = {
            role: ["/bin/sh", str(write_program(yeto.folder / role, text))]
            for role, text in (("syncer", SYNCER), ("learner", LEARNER), ("finish", FINISH))
        }
        self.put("run.json", json.dumps({
            "schema": "yeto.run/1", "name": name, "run_id": self.run_id, "created_at": time.time(),
            "versions": {"yeto": "0"}, "flags": {},
            "islands": [{"seat": seat, "slot": "local:1x1xcpu"} for seat in (0, 1)],
            "programs": {**programs, "plot": []}, "output": str(self.output), "check": None,
        }))  # fmt: skip
        if hold:
            self.put("hold", "")
        if fail:
            self.put("fail", str(fail))
        self.controller = subprocess.Popen(
            [yeto.program, "_controller", str(self.folder)],
            env=yeto.env,
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "logs/controller.log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def write_claim(self) -> None:
        (self.yeto.runs / "claims" / self.name).write_text(
            json.dumps({"run_id": self.run_id, "folder": self.folder.name, "at": time.time()})
        )

    def put(self, name: str, text: str) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(text)
        part.rename(self.folder / name)

    def state(self) -> dict[str, Any]:
        try:
            value = json.loads((self.folder / "state.json").read_text())
        except FileNotFoundError:
            return {}
        assert isinstance(value, dict)
        return value

    def reach(self, state: str, phase: str | None = None) -> "Run":
        def there() -> bool:
            self.controller.poll()
            now = self.state()
            return now.get("state") == state and phase in (None, now.get("phase"))

        until(there, f"{state} {phase} of {self.name}; now {self.state()}")
        return self

    def pids(self) -> list[int]:
        """Of every process that the journal or controller.json names."""
        out = []
        for line in (self.folder / "journal.jsonl").read_text().splitlines():
            entry = json.loads(line[:-9])
            out += [entry["pid"]] if "pid" in entry else []
        return sorted(set(out))

    def lose_controller(self) -> None:
        self.controller.send_signal(signal.SIGKILL)
        self.controller.wait()
