# SPDX-License-Identifier: Apache-2.0
"""What does it cost to train apart? Loss of islands against one synchronous run.

    make bench BENCH=convergence
    scripts/bench convergence -- [--only WORDS] [--again] [--write]

A Llama of a quarter million parameters on the standard library of Python, one factor at a time
around a centre, three paired seeds, far from and near the optimum (cells.py). A finished run
is kept in bench/out/convergence/ and not made again: broken off, the benchmark goes on later.
A gap is (loss of the islands' final values)/(loss of the synchronous run) − 1 at equal tokens,
steps, rows and learning rate, in percent; the table shows mean and standard error over the seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bench.convergence import corpus, runs
from bench.convergence.cells import CELLS, REGIMES, SEEDS, STEPS, Cell, Regime
from bench.convergence.islands import Shape
from bench.figures import Figure, print_figure

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
OUT = ROOT / "bench" / "out" / "convergence"
PAGE = ROOT / "docs" / "LM_BENCHMARK.md"
MARKS = ("<!-- table: begin -->\n", "<!-- table: end -->")


class Book:
    """Finished runs, one JSON line each; a run is known by everything it depends on."""

    def __init__(self, path: Path, sha256: str, again: bool):
        self.path, self.sha256 = path, sha256
        self.done: dict[str, dict[str, float]] = {}
        if path.exists() and not again:
            for line in path.read_text().splitlines():
                record = json.loads(line)
                self.done[record["key"]] = record["result"]

    def key(self, kind: str, regime: Regime, seed: int, what: dict[str, object]) -> str:
        sources = [FOLDER / name for name in ("islands.py", "corpus.py", "runs.py")]
        sources += sorted((ROOT / "src" / "yeto" / "merge").glob("*.cc"))
        code = "".join(path.read_text() for path in sources if not path.stem.endswith("_test"))
        parts = [kind, asdict(regime), seed, STEPS, what, self.sha256, code]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def write(self, key: str, words: str, result: dict[str, float]) -> None:
        self.done[key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as out:
            out.write(json.dumps({"key": key, "run": words, "result": result}) + "\n")


class Bench:
    def __init__(self, task: runs.Task, book: Book):
        self.task, self.book = task, book

    def synchronous(self, regime: Regime, cell: Cell, seed: int) -> float:
        what = {"islands": cell.islands, "lora": cell.lora}
        key = self.book.key("synchronous", regime, seed, what)
        if key not in self.book.done:
            loss = runs.synchronous(self.task, regime, cell.islands, seed, cell.lora)
            words = f"synchronous {what} {regime.name} lr {regime.lr} seed {seed}"
            self.book.write(key, words, {"held_out_loss": loss})
        return self.book.done[key]["held_out_loss"]

    def gaps(self, cell: Cell, regime: Regime) -> list[float]:
        """In percent, one per seed."""
        out = []
        regime = replace(regime, lr=regime.lr * cell.lr)
        for seed in SEEDS:
            key = self.book.key("islands", regime, seed, asdict(cell))
            if key not in self.book.done:
                result = runs.islands(self.task, regime, cell, seed)
                words = f"{cell.name()} {regime.name} seed {seed}"
                self.book.write(key, words, asdict(result))
            base = self.synchronous(regime, cell, seed)
            out.append(100.0 * (self.book.done[key]["held_out_loss"] / base - 1.0))
        return out


def shown(gaps: list[float]) -> str:
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return f"{statistics.mean(gaps):+.2f} ± {error:.2f}"


def table(rows: dict[Cell, dict[str, list[float]]]) -> str:
    head = "| cell | " + " | ".join(f"{regime.name}, % above synchronous" for regime in REGIMES)
    lines = [head + " |", "|---|" + "---:|" * len(REGIMES)]
    for cell, gaps in rows.items():
        cells = " | ".join(shown(gaps[regime.name]) for regime in REGIMES)
        lines.append(f"| {cell.name()} | {cells} |")
    return "\n".join(lines)


def write_page(text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(before + MARKS[0] + text + "\n" + MARKS[1] + after, encoding="utf-8")


def print_figures(rows: dict[Cell, dict[str, list[float]]]) -> None:
    eight = replace(Cell(), islands=8)
    packed = replace(eight, codec="q4")
    for regime in REGIMES:
        if eight in rows:
            figure = Figure(f"convergence/gap_m8_{regime.name}", "% of loss", limit=0.3)
            print_figure(figure, rows[eight][regime.name])
        if eight in rows and packed in rows:
            more = zip(rows[packed][regime.name], rows[eight][regime.name], strict=True)
            figure = Figure(f"convergence/q4_more_{regime.name}", "% of loss", limit=0.1)
            print_figure(figure, [a - b for a, b in more])


def main() -> int:
    parser = argparse.ArgumentParser(prog="convergence", description="Loss of islands.")
    parser.add_argument("--only", default="", help="cells whose name has these words")
    parser.add_argument("--again", action="store_true", help="make finished runs again")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    text = corpus.load()
    task = runs.Task(text, OUT, Shape(corpus.VOCABULARY))
    bench = Bench(task, Book(OUT / "runs.jsonl", text.sha256, arguments.again))
    rows: dict[Cell, dict[str, list[float]]] = {}
    for cell in CELLS:
        if arguments.only and arguments.only not in cell.name():
            continue
        rows[cell] = {regime.name: bench.gaps(cell, regime) for regime in REGIMES}
        told = ", ".join(f"{name} {shown(gaps)} %" for name, gaps in rows[cell].items())
        print(f"{cell.name()}: {told}", flush=True)
    print(table(rows))
    if arguments.write and len(rows) == len(CELLS):
        write_page(table(rows))
    print_figures(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
