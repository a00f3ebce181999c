# SPDX-License-Identifier: Apache-2.0
"""Two islands of Yeto beside two replicas of torchft 0.2.0 that do the same work.

    make bench BENCH=torchft
    scripts/bench torchft -- [--steps 480] [--runs 3] [--wire-dtype f32] [--smoke]

Both train the same small Llama on the same rows with AdamW, one thread a replica, the same H and
the same fragments; torchft's `DiLoCo` (SGD 0.7 with Nesterov momentum 0.9; no overlap,
its default) over gloo with a lighthouse, Yeto with a real `yeto syncer` and its defaults. Runs
alternate; the first steps, in which everything is loaded and connected, are not timed. torchft is
installed into build/bench-torchft, beside the packages of the Python that runs this; it needs the
network once.

A kill is `kill -9` of the second replica when the first is half way; it is started again at once.
Both sides may go on alone (torchft: min_replicas 1). Time lost is what the first replica did not
step, and what it had to undo. A dead one is noticed after 5 s at the latest on both sides
(torchft's heartbeat_timeout_ms and Yeto's lease, both by default).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.convergence import corpus
from bench.figures import Figure, print_figure
from bench.torchft.sides import SideError, Torchft, Yeto, run_pair
from bench.torchft.task import SHAPE, Task

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "bench-torchft"
TORCHFT = "torchft==0.2.0"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.torchft", description="Yeto beside torchft.")
    parser.add_argument("--steps", type=int, default=480, help="of each replica")
    parser.add_argument("--runs", type=int, default=3, help="of each side, alternating")
    parser.add_argument("--rows", type=int, default=8, help="of 64 tokens a step")
    parser.add_argument("--wire-dtype", default="f32", help="of Yeto; torchft sends f32 on a CPU")
    parser.add_argument(
        "--overlap", type=int, default=0, choices=[0, 1, 2],
        help="steps that torchft takes during a merge: fragment_sync_delay",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder to leave logs in")
    parser.add_argument("--smoke", action="store_true", help="one short run of each side")
    options = parser.parse_args()
    if options.smoke:
        options.steps, options.runs = 96, 1
    if options.steps < 96 or options.steps % 24 or options.runs < 1:
        parser.error("--steps is a multiple of 24 from 96 on, and --runs at least 1")
    return options


def torchft_python() -> Path:
    """A Python that has torchft, and everything else from the Python that runs this."""
    python = FOLDER / "bin" / "python"
    own = next(path for path in sys.path if path.endswith("site-packages"))
    if not (FOLDER / "complete").exists():
        print(f"installing {TORCHFT} into {FOLDER.relative_to(ROOT)}", flush=True)
        shutil.rmtree(FOLDER, ignore_errors=True)
        venv.create(FOLDER, with_pip=True)
        site = next((FOLDER / "lib").glob("python3.*")) / "site-packages"
        (site / "project.pth").write_text(own + "\n")
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", TORCHFT],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SideError(f"{TORCHFT} could not be installed: {done.stderr[-1500:]}")
        (FOLDER / "complete").touch()
    return python


def make_task(options: argparse.Namespace, folder: Path) -> tuple[Task, str]:
    text = corpus.load()
    data = folder / "data.pt"
    torch.save({"train": text.code, "held_out": text.held_out}, data)
    task = Task(
        data=str(data), seed=options.seed, steps=options.steps, warmup=48, rows=options.rows,
        interval=24, fragments=8, lr=2e-3,
    )  # fmt: skip
    return task, text.sha256


def parameters_count() -> int:
    from bench.convergence.islands import initial_values

    return sum(value.numel() for value in initial_values(SHAPE, 0).values())


def print_conditions(task: Task, options: argparse.Namespace, sha256: str) -> None:
    print(
        f"Llama of {parameters_count()} parameters, {task.rows} × {SHAPE.context} tokens a step, "
        f"{task.steps} steps of each of 2 replicas ({task.warmup} of them not timed), H "
        f"{task.interval}, {task.fragments} fragments; text {sha256[:12]}"
    )
    print(
        f"torch {torch.__version__}, one thread a replica, {os.cpu_count()} cores; Yeto: wire "
        f"{options.wire_dtype}, defaults (every commit durable on disk); {TORCHFT}: gloo, f32, "
        f"overlap {options.overlap}, nothing on disk",
        flush=True,
    )


def per_sync(moved: dict[str, int], task: Task) -> float:
    """Bytes through one replica's network port for each parameter and merge of all fragments."""
    syncs = moved["merges"] / task.fragments
    return (moved["sent"] + moved["received"]) / syncs / parameters_count()


def healthy(task: Task, sides: list[Any], runs: int) -> dict[str, list[dict[str, float]]]:
    out: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for run in range(runs):
        for side in sides:
            result = run_pair(side, replace(task, seed=task.seed + run), kill=False)
            cycles = (task.steps - task.warmup) / task.interval
            row = {
                "steps_per_s": result.steps_per_s(),
                "syncs": result.moved[0]["merges"] / task.fragments / cycles,
                "bytes": statistics.mean(per_sync(moved, task) for moved in result.moved),
                "loss": result.losses[0],
            }
            out[side.name].append(row)
            print(
                f"{side.name}: {row['steps_per_s']:.1f} steps/s, {row['bytes']:.2f} bytes a "
                f"parameter and sync, {row['syncs']:.2f} syncs in H steps, held-out loss "
                f"{row['loss']:.4f}",
                flush=True,
            )
    return out


def killed(task: Task, sides: list[Any], runs: int) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {side.name: [] for side in sides}
    for run in range(runs):
        for side in sides:
            result = run_pair(side, replace(task, seed=task.seed + run), kill=True)
            lost = result.time_lost(side.steps_of_abort(task))
            out[side.name].append(lost.seconds)
            print(f"{side.name}: after kill -9 {lost.text}", flush=True)
    return out


def print_figures(plain: dict[str, list[dict[str, float]]], kills: dict[str, list[float]]) -> None:
    def ratios(key: str) -> list[float]:
        pairs = zip(plain["yeto"], plain["torchft"], strict=True)
        return [ours[key] / theirs[key] for ours, theirs in pairs]

    print_figure(Figure("torchft/steps_per_s", "x torchft", goal=1.0), ratios("steps_per_s"))
    print_figure(Figure("torchft/bytes_per_sync", "x torchft", limit=1.05), ratios("bytes"))
    print_figure(Figure("torchft/held_out_loss", "x torchft", limit=1.0), ratios("loss"))
    pairs = zip(kills["yeto"], kills["torchft"], strict=True)
    lost = [ours / max(theirs, 1e-3) for ours, theirs in pairs]
    print_figure(Figure("torchft/time_lost_per_kill", "x torchft", limit=1.0), lost)


def main() -> int:
    # A driver that is told to end ends its processes too (the `with` blocks in sides.py).
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = read_options()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="yeto-torchft-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        python = torchft_python()
        task, sha256 = make_task(options, folder)
        print_conditions(task, options, sha256)
        ours = Yeto(folder, Path(sys.executable), options.wire_dtype)
        sides = [ours, Torchft(folder, python, ours, options.overlap)]
        plain = healthy(task, sides, options.runs)
        kills = killed(task, sides, options.runs)
    except SideError as error:
        print(f"torchft: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print_figures(plain, kills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
