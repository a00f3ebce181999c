# SPDX-License-Identifier: Apache-2.0
"""An island from its flags to its published adapter, in the order in which it happens."""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yeto.errors import YetoError
from yeto.learner.artifact import Provenance, publish, text_digest
from yeto.learner.base import BaseFolder, load_config, open_base
from yeto.learner.batches import Share, collate, plan_steps
from yeto.learner.dataset import Dataset, build_dataset
from yeto.learner.evaluate import heldout_loss, sample_answer
from yeto.learner.exchange import Boundary, connect, contract, leased_steps
from yeto.learner.loop import End, Loop, local_total
from yeto.learner.loss import TargetLoss
from yeto.learner.metrics import NAME, Metrics, Progress, read_metrics
from yeto.learner.model import Adapted, describe, load_adapted
from yeto.learner.options import Options
from yeto.learner.signals import PREEMPTED, Preempted, StopRequest
from yeto.text.rows import content_digest


@dataclass(frozen=True)
class Parts:
    """What exists once model and data are loaded."""

    base: BaseFolder
    data: Dataset
    adapted: Adapted
    loss: TargetLoss
    base_digest: "Future[str]"
    data_digest: "Future[str]"


def run_island(options: Options) -> int:
    """Trains and publishes. Returns the exit code; errors are raised as YetoError."""
    stop = StopRequest()
    stop.install()
    if options.syncer is None and not (options.epochs or options.tokens or options.local_steps):
        options = replace(options, epochs=1)  # alone nobody else would end the run
    metrics = _open_metrics(Path(options.out_dir))
    try:
        with ThreadPoolExecutor(2, thread_name_prefix="digest") as pool:
            island = Island(options, load_parts(options, pool), metrics, stop)
            island.score_before()
            island.train()
        return 0
    except Preempted:
        sys.stdout.write("ended by a signal\n")
        return PREEMPTED
    finally:
        metrics.close()


def load_parts(options: Options, pool: ThreadPoolExecutor) -> Parts:
    """Model and data, checked and described in the log; digests are computed in `pool`."""
    import torch

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    base = open_base(options.model, fetch_weights=True)
    load_config(base)
    base_digest = pool.submit(base.digest)
    data_digest = pool.submit(content_digest, Path(options.data))
    data = build_dataset(options, base)
    for line in (*data.report.lines(), *data.heldout_report.lines()):
        print(line)
    adapted = load_adapted(options, base)
    loss = TargetLoss(adapted.model)
    print(describe(adapted, base))
    print(_describe_data(options, data))
    if not loss.agrees(collate([min(data.rows, key=lambda row: row.tokens)]).to(adapted.device)):
        print("the model's head needs its full logits: targets alone would differ")
    sys.stdout.flush()
    return Parts(base, data, adapted, loss, base_digest, data_digest)


class Island:
    """One island's run once everything is loaded. Each method is called once, in this order."""

    def __init__(self, options: Options, parts: Parts, metrics: Metrics, stop: StopRequest) -> None:
        self._options = options
        self._parts = parts
        self._metrics = metrics
        self._stop = stop

    def score_before(self) -> None:
        """Seat 0 scores the first values before it joins; the seed makes them the run's own."""
        if (self._options.seat or 0) != 0:
            return
        earlier = read_metrics(Path(self._options.out_dir) / NAME)
        done = {e.get("event") for e in earlier if e.get("when") == "before"}
        self._score("before", done)

    def train(self) -> None:
        """Joins, trains until an end, and publishes the adapter."""
        self._stop.check()
        boundary = connect(self._options, self._parts.adapted, self._contract())

        def leave() -> None:
            boundary.leave("preempted")

        try:
            with self._stop.during(leave):
                ready = boundary.wait_ready()
            self._metrics.attach(boundary)
            end = self._steps(boundary, ready)
            with self._stop.during(leave):
                final = boundary.finalize(end.reason)
            self._finish(end, final)
        except Preempted:
            leave()
            raise
        except YetoError:
            boundary.leave("error")
            raise
        finally:
            boundary.close()

    def _steps(self, boundary: Boundary, ready: dict[str, Any]) -> End:
        options, parts = self._options, self._parts
        seat = int(ready["seat"])
        share = Share(
            len(parts.data.rows),
            options.seed,
            seat % options.seats,
            options.seats,
            options.micro_batch_size,
            options.grad_accum,
        )
        progress = Progress(local_total(options, share))
        try:
            progress.say(
                f"seat {seat} begins at global step {ready['global_step']} with "
                f"{share.size} rows, {share.step_rows} a step"
            )
            plans = (
                leased_steps(boundary, share)
                if ready["data_leases"]
                else plan_steps(share, options.epochs)
            )
            loop = Loop(options, parts.adapted, parts.loss, parts.data.rows, plans)
            end = loop.run(boundary, self._metrics, progress, self._stop)
        finally:
            progress.close()
        print(
            f"steps end by {end.reason} after {end.steps} steps, {end.tokens:,} tokens, "
            f"{end.seconds:.1f} s",
            flush=True,
        )
        return end

    def _finish(self, end: End, final: dict[str, Any]) -> None:
        """The tensors hold the run's final values now: score them and publish the adapter."""
        parts = self._parts
        score = self._score("after", set()) if final["lowest"] else None
        exchanged = self._options.syncer is not None
        provenance = Provenance(
            base=parts.base,
            tokenizer=parts.data.tokenizer,
            base_sha256=parts.base_digest.result(),
            template_sha256=text_digest(parts.data.template.source),
            data_sha256=parts.data_digest.result(),
            data_rows=parts.data.report.read,
            global_step=final["global_step"] if exchanged else None,
            run_tokens=end.run_tokens,
            run_targets=None if exchanged else end.targets,
            score=score,
            trained=end.rate_was_positive,
        )
        folder = publish(Path(self._options.out_dir), parts.adapted, self._options, provenance)
        print(f"adapter saved in {folder}", flush=True)

    def _score(self, when: str, done: set[Any]) -> tuple[float, int] | None:
        """Held-out loss and the sampled answer, but what `done` names."""
        options, parts = self._options, self._parts
        score = None
        rows = parts.data.heldout[: options.eval_rows]
        if rows and "eval" not in done:
            batch_rows = max(4, options.micro_batch_size)
            score = heldout_loss(parts.adapted, parts.loss, rows, batch_rows, self._stop.check)
            event = {"event": "eval", "when": when, "loss": score[0], "targets": score[1]}
            self._metrics.emit({**event, "rows": len(rows)})
            print(f"held-out loss {when} training {score[0]:.4f} over {score[1]} targets")
        if options.sample_prompt and "sample" not in done:
            prompt = options.sample_prompt
            text = sample_answer(parts.adapted, parts.data.tokenizer, parts.data.template, prompt)
            event = {"event": "sample", "when": when, "prompt": prompt[:1000], "text": text}
            self._metrics.emit(event)
            print(f"sample {when} training: {text}")
        sys.stdout.flush()
        return score

    def _contract(self) -> dict[str, str]:
        parts = self._parts
        facts = {
            "base": parts.base_digest.result(),
            "tokenizer": parts.base.tokenizer_digest(),
            "template": text_digest(parts.data.template.source),
            "targets": ",".join(parts.adapted.targets),
            "mask": parts.data.template.method,
            "data": parts.data_digest.result(),
        }
        return contract(self._options, facts)


def _open_metrics(folder: Path) -> Metrics:
    try:
        return Metrics(folder)
    except OSError as error:
        raise YetoError(
            "E_IO",
            f"the output folder cannot be written: {error.strerror}",
            str(folder),
            "choose another --out-dir",
        ) from error


def _describe_data(options: Options, data: Dataset) -> str:
    share = 100 * data.targets / data.tokens
    warning = " (below 1 %: look at the masks)" if share < 1 else ""
    return (
        f"data {options.data}: {len(data.rows):,} of {data.report.read:,} rows, {data.tokens:,} "
        f"tokens, {data.targets:,} targets ({share:.1f} %){warning}, longest {data.longest}, "
        f"held out {len(data.heldout):,}, turns located by {data.template.method}"
    )
