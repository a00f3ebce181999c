# SPDX-License-Identifier: Apache-2.0
"""`--check`: model and data are validated from config, tokenizer and rows alone."""

import json
from typing import Any

from yeto.errors import YetoError
from yeto.learner.base import BaseFolder, load_config, open_base
from yeto.learner.dataset import Dataset, build_dataset
from yeto.learner.options import Options
from yeto.learner.targets import check_suffixes
from yeto.text.order import share_size
from yeto.text.rows import LISTED_PER_RULE, Report

_NO_TARGET = ("no-target", "empty-answer")


def run_check(options: Options) -> str:
    """The findings as one JSON object. Raises YetoError where a run would be refused."""
    base = open_base(options.model, fetch_weights=False)
    config = load_config(base)
    check_suffixes(options.lora_targets, base.tensors)
    data = build_dataset(options, base)
    if options.seats > len(data.rows):
        raise YetoError(
            "E_DATA",
            f"{len(data.rows)} trainable rows for {options.seats} islands",
            options.data,
            "use fewer islands or more rows",
        )
    return json.dumps(_findings(options, base, config.model_type, data), ensure_ascii=False)


def _findings(options: Options, base: BaseFolder, kind: str, data: Dataset) -> dict[str, Any]:
    without = _without_target(data.report)
    return {
        "schema": "yeto.check/1",
        "rows": data.report.read,
        "trainable_rows": len(data.rows),
        "rows_without_target": sum(data.report.dropped.get(rule, 0) for rule in _NO_TARGET),
        "rows_without_target_listed": without[:LISTED_PER_RULE],
        "rows_per_seat": [
            share_size(len(data.rows), seat, options.seats) for seat in range(options.seats)
        ],
        "dropped": data.report.dropped,
        "notes": data.report.notes,
        "listed": data.report.texts,
        "tokens": data.tokens,
        "targets": data.targets,
        "mask_method": data.template.method if options.train_on != "all" else "all",
        "straddling_tokens": data.straddling,
        "longest_row": data.longest,
        "seq_len": options.seq_len,
        "heldout_rows": len(data.heldout),
        "heldout_targets": sum(row.target_count for row in data.heldout),
        "model_type": kind,
        "model_parameters": base.parameters,
        "vocabulary": base.vocabulary,
        "max_length": base.config.get("max_position_embeddings"),
    }


def _without_target(report: Report) -> list[str]:
    return [p for rule in _NO_TARGET for p in report.places.get(rule, [])]
