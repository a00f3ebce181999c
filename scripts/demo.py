# SPDX-License-Identifier: Apache-2.0
"""The demo: two islands on this machine fine-tune a small model on questions about Yeto.

    make demo

Starts an ordinary run with `yeto launch`, follows it with `yeto status -o json`, and reports from
the run's own summary.json. Fails if the run fails, or if the held-out loss falls by less than a
fifth. Nothing here is known to the product: each step is a command that a user could type.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "examples" / "data"
PROMPT = "What is an island in Yeto?"
DROP_MIN = 0.20
NAMES = ["demo", *(f"demo{number}" for number in range(2, 10))]
NAME_TAKEN = 73
TERMINAL = ("SUCCEEDED", "STOPPED", "FAILED", "DOWN")
POLL_SECONDS = 1.0
LINE_SECONDS = 5.0
# A status that cannot be read now and then is no failure of the run.
FAILED_POLLS_MAX = 20

# Small enough for one core per island and about four minutes; everything else is the default.
TRAINING_FLAGS = [
    "--seq-len", "256", "--grad-accum", "1", "--micro-batch-size", "4",
    "--sync-interval-steps", "8", "--fragments", "4", "--total-steps", "32",
    "--lora-r", "8", "--lora-alpha", "16", "--lora-targets", "all-linear",
    "--inner-lr", "1e-3", "--warmup", "5",
]  # fmt: skip


class DemoError(Exception):
    """The demo cannot go on or did not show what it should; the text is for the user."""


def yeto_program() -> str:
    return os.environ.get("YETO_BIN") or str(ROOT / ".venv" / "bin" / "yeto")


def shown(path: Path | str) -> str:
    """A path as the user would type it from here."""
    try:
        return os.path.relpath(path, Path.cwd()) if Path(path).is_relative_to(ROOT) else str(path)
    except ValueError:
        return str(path)


def make_model() -> Path:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo_model.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    for line in lines[:-1]:
        print(line)
    if done.returncode != 0 or not lines:
        raise DemoError("the model could not be made; the lines above say why")
    return Path(lines[-1])


def launch(model: Path, out_root: Path) -> tuple[str, Path]:
    """Starts the run under the first free name. Returns the name and the output folder."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for name in NAMES:
        output = out_root / f"{name}-{stamp}"
        command = [yeto_program(), "launch", "--gpu", "local:1xcpu,local:1xcpu"]
        command += ["--model", str(model), "--data", str(DATA / "yeto_faq.jsonl")]
        command += ["--val-data", str(DATA / "yeto_faq_heldout.jsonl"), "--output", str(output)]
        command += ["--cluster-prefix", name, *TRAINING_FLAGS, "--sample-prompt", PROMPT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == NAME_TAKEN:
            print(f"demo: the name {name} is taken by a run that is alive; trying the next one")
            continue
        if done.returncode != 0:
            raise DemoError(f"yeto launch ended with {done.returncode}\n{done.stdout}{done.stderr}")
        print(f"$ {shlex.join(shown(word) for word in command)}\n{done.stdout.rstrip()}\n")
        return name, output
    raise DemoError(f"all names from {NAMES[0]} to {NAMES[-1]} are taken; end one with yeto down")


def read_status(name: str) -> dict[str, Any] | None:
    done = subprocess.run(
        [yeto_program(), "status", name, "-o", "json"], capture_output=True, text=True, check=False
    )
    try:
        status = json.loads(done.stdout)
    except ValueError:
        return None
    return status if done.returncode == 0 and isinstance(status, dict) else None


def number(value: float | int | None, form: str = "{:,.0f}") -> str:
    return "unknown" if value is None else form.format(value)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def progress_line(status: dict[str, Any], seconds: float, width: int = 20) -> str:
    step, total = status.get("global_step"), status.get("total_steps")
    share = min(1.0, step / total) if step is not None and total else 0.0
    bar = "#" * round(share * width)
    islands = " ".join(
        f"{island.get('id')}:{str(island.get('state', 'unknown')).lower()}"
        for island in status.get("islands", [])
    )
    return (
        f"[{bar:-<{width}}] {clock(seconds)}  round {number(step)}/{number(total)}  "
        f"loss {number(status.get('loss'), '{:.3f}')}  "
        f"{number(status.get('tokens_per_s'))} tokens/s  islands {islands}"
    )


class Progress:
    """One redrawn line on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.begin = time.monotonic()
        self.last_line = -LINE_SECONDS

    def show(self, status: dict[str, Any]) -> None:
        now = time.monotonic() - self.begin
        line = progress_line(status, now)
        if self.terminal:
            room = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:room]:<{room}}", end="", flush=True)
        elif now - self.last_line >= LINE_SECONDS:
            self.last_line = now
            print(line, flush=True)

    def end(self) -> None:
        if self.terminal:
            print()


def follow(name: str) -> dict[str, Any]:
    """Polls the status until the run has ended; returns the last one."""
    progress, failed_polls = Progress(), 0
    while True:
        status = read_status(name)
        failed_polls = failed_polls + 1 if status is None else 0
        if failed_polls > FAILED_POLLS_MAX:
            raise DemoError(f"`yeto status {name}` gives no answer any more")
        if status is not None:
            progress.show(status)
            if status.get("state") in TERMINAL:
                progress.end()
                return status
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Drop:
    before: float
    after: float

    @property
    def share(self) -> float:
        return 1.0 - self.after / self.before


def heldout_drop(summary: dict[str, Any]) -> Drop:
    before, after = summary.get("heldout_loss_before"), summary.get("heldout_loss_after")
    if not isinstance(before, int | float) or not isinstance(after, int | float) or before <= 0:
        raise DemoError(f"the held-out loss is unknown: before {before}, after {after}")
    return Drop(float(before), float(after))


def megabytes(value: float | None) -> str:
    return "unknown" if value is None else f"{value / 1e6:.1f} MB"


def indent(text: str | None) -> str:
    return " ".join((text or "unknown").split())


def report(summary: dict[str, Any], drop: Drop) -> list[str]:
    lines = [
        "",
        f"Held-out loss  {drop.before:.3f} → {drop.after:.3f}  ({-drop.share:+.0%})",
        f"Training       {number(summary.get('train_seconds'))} s, "
        f"{number(summary.get('tokens'))} tokens, {number(summary.get('commits'))} commits",
    ]
    for island in summary.get("islands", []):
        lines.append(
            f"  island {island.get('id')}     {number(island.get('tokens'))} tokens, "
            f"{number(island.get('pushes'))} pushes, {megabytes(island.get('bytes_pushed'))} "
            f"pushed, {megabytes(island.get('bytes_received'))} received"
        )
    lines += [
        "",
        f"Asked          {summary.get('prompt') or PROMPT}",
        f"  before       {indent(summary.get('sample_before'))}",
        f"  after        {indent(summary.get('sample_after'))}",
        "",
    ]
    return lines


def run_folder(name: str) -> Path:
    """Where the product keeps the newest run of that name (docs/formats/run_folder.md)."""
    home = os.environ.get("YETO_HOME") or str(Path.home() / ".yeto")
    runs = os.environ.get("YETO_RUNS_DIR") or str(Path(home) / "runs")
    return (Path(runs) / name).resolve()


def files(name: str, output: Path) -> list[str]:
    """Where everything lies; only what exists is named."""
    places = [
        ("adapter", output),
        ("summary", output / "summary.json"),
        ("loss plot", output / "loss.png"),
        ("", output / "loss.html"),
        ("tape", run_folder(name) / "events" / "syncer.jsonl"),
    ]
    return [f"{what:<15}{shown(path)}" for what, path in places if path.exists()]


def run_demo() -> None:
    model = make_model()
    name, output = launch(model, ROOT / "demo-out")
    try:
        status = follow(name)
    except KeyboardInterrupt:
        yeto = shown(yeto_program())
        print(
            f"\nThe run goes on. Follow it:  {yeto} status {name}   or  {yeto} logs {name} -f\n"
            f"Finish it, keep the result:  {yeto} stop-run {name}\n"
            f"End it:                      {yeto} down {name}"
        )
        raise
    if status.get("state") != "SUCCEEDED":
        yeto = shown(yeto_program())
        raise DemoError(
            f"the run ended as {status.get('state')} (exit {status.get('exit')}); "
            f"read why: {yeto} logs {name} --tail 40"
        )
    try:
        summary = json.loads((output / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise DemoError(f"the run delivered no readable summary: {error}") from error
    drop = heldout_drop(summary)
    print("\n".join(report(summary, drop) + files(name, output)))
    if drop.share < DROP_MIN:
        raise DemoError(
            f"the held-out loss fell by {drop.share:.1%}, expected at least {DROP_MIN:.0%}"
        )


def main() -> int:
    os.chdir(ROOT)
    try:
        run_demo()
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
