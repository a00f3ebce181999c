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
from yeto.learner.batches import Share, collate
from yeto.learner.dataset import Dataset, build_dataset
from yeto.learner.evaluate import heldout_loss, sample_answer
from yeto.learner.exchange import connect, contract
from yeto.learner.loop import End, Loop, local_total
from yeto.learner.loss import TargetLoss
from yeto.learner.metrics import NAME, Metrics, Progress, read_metrics
from yeto.learner.model import Adapted, describe, load_adapted
from yeto.learner.options import Options
from yeto.learner.signals import PREEMPTED, Preempted, StopRequest
from yeto.text.rows import content_digest


@dataclass
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
            parts = _load(options, pool)
            _evaluate_before(options, parts, metrics, stop)
            return _train(options, parts, metrics, stop)
    except Preempted:
        sys.stdout.write("ended by a signal\n")
        return PREEMPTED
    finally:
        metrics.close()


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


def _load(options: Options, pool: ThreadPoolExecutor) -> Parts:
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


def _describe_data(options: Options, data: Dataset) -> str:
    share = 100 * data.targets / data.tokens
    warning = " (below 1 %: look at the masks)" if share < 1 else ""
    return (
        f"data {options.data}: {len(data.rows):,} of {data.report.read:,} rows, {data.tokens:,} "
        f"tokens, {data.targets:,} targets ({share:.1f} %){warning}, longest {data.longest}, "
        f"held out {len(data.heldout):,}, turns located by {data.template.method}"
    )


def _evaluate_before(options: Options, parts: Parts, metrics: Metrics, stop: StopRequest) -> None:
    """Seat 0 scores the first values before it joins; the seed makes them the run's own."""
    if (options.seat or 0) != 0:
        return
    earlier = read_metrics(Path(options.out_dir) / NAME)
    done = {e.get("event") for e in earlier if e.get("when") == "before"}
    _score(options, parts, metrics, stop, "before", done)


def _score(
    options: Options, parts: Parts, metrics: Metrics, stop: StopRequest, when: str, done: set[Any]
) -> tuple[float, int] | None:
    score = None
    rows = parts.data.heldout[: options.eval_rows]
    if rows and "eval" not in done:
        batch_rows = max(4, options.micro_batch_size)
        score = heldout_loss(parts.adapted, parts.loss, rows, batch_rows, stop.check)
        metrics.emit(
            {
                "event": "eval",
                "when": when,
                "loss": score[0],
                "targets": score[1],
                "rows": len(rows),
            }
        )
        print(f"held-out loss {when} training {score[0]:.4f} over {score[1]} targets")
    if options.sample_prompt and "sample" not in done:
        text = sample_answer(
            parts.adapted, parts.data.tokenizer, parts.data.template, options.sample_prompt
        )
        metrics.emit(
            {"event": "sample", "when": when, "prompt": options.sample_prompt[:1000], "text": text}
        )
        print(f"sample {when} training: {text}")
    sys.stdout.flush()
    return score


def _contract(options: Options, parts: Parts) -> dict[str, str]:
    return contract(
        options,
        {
            "base": parts.base_digest.result(),
            "tokenizer": parts.base.tokenizer_digest(),
            "template": text_digest(parts.data.template.source),
            "targets": ",".join(parts.adapted.targets),
            "mask": parts.data.template.method,
            "data": parts.data_digest.result(),
        },
    )


def _train(options: Options, parts: Parts, metrics: Metrics, stop: StopRequest) -> int:
    stop.check()
    boundary = connect(options, parts.adapted, _contract(options, parts))
    progress: Progress | None = None

    def leave() -> None:
        boundary.leave("preempted")

    try:
        with stop.during(leave):
            ready = boundary.wait_ready()
        metrics.attach(boundary)
        seat = int(ready["seat"])
        share = Share(
            len(parts.data.rows),
            options.seed,
            seat % options.seats,
            options.seats,
            options.micro_batch_size,
            options.grad_accum,
        )
        loop = Loop(options, parts.adapted, parts.loss, parts.data.rows, share)
        progress = Progress(local_total(options, share))
        progress.say(
            f"seat {seat} begins at global step {ready['global_step']} with "
            f"{share.size} rows, {share.step_rows} a step"
        )
        end = loop.run(boundary, metrics, progress, stop)
        progress.close()
        print(
            f"steps end by {end.reason} after {end.steps} steps, {end.tokens:,} tokens, "
            f"{end.seconds:.1f} s",
            flush=True,
        )
        with stop.during(leave):
            final = boundary.finalize(end.reason)
        _finish(options, parts, metrics, stop, end, final)
        return 0
    except Preempted:
        leave()
        raise
    except YetoError:
        boundary.leave("error")
        raise
    finally:
        if progress is not None:
            progress.close()
        boundary.close()


def _finish(
    options: Options,
    parts: Parts,
    metrics: Metrics,
    stop: StopRequest,
    end: End,
    final: dict[str, Any],
) -> None:
    """The tensors hold the run's final values now: score them and publish the adapter."""
    score = None
    if final["lowest"]:
        score = _score(options, parts, metrics, stop, "after", set())
    exchanged = options.syncer is not None
    folder = publish(
        Path(options.out_dir),
        parts.adapted,
        parts.data.tokenizer,
        parts.base,
        options,
        Provenance(
            base_sha256=parts.base_digest.result(),
            template_sha256=text_digest(parts.data.template.source),
            data_sha256=parts.data_digest.result(),
            data_rows=parts.data.report.read,
            global_step=final["global_step"] if exchanged else None,
            run_tokens=end.run_tokens,
            run_targets=None if exchanged else end.targets,
            score=score,
            trained=end.rate_was_positive,
        ),
    )
    print(f"adapter saved in {folder}", flush=True)
