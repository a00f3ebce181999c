# SPDX-License-Identifier: Apache-2.0
"""From flags to encoded rows: training rows, held-out rows, and the report on the rest."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yeto.errors import YetoError
from yeto.learner.base import BaseFolder, load_tokenizer, stop_ids
from yeto.learner.options import Options
from yeto.text.encode import Encoded, Encoder
from yeto.text.order import holdout, share_size
from yeto.text.rows import HARMLESS_RULES, Report, read_rows
from yeto.text.template import ChatTemplate


@dataclass
class Dataset:
    """Encoded rows in file order, equal on all islands of a run."""

    tokenizer: Any
    template: ChatTemplate
    rows: list[Encoded] = field(default_factory=list)
    heldout: list[Encoded] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    heldout_report: Report = field(default_factory=Report)
    longest: int = 0
    straddling: int = 0

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def targets(self) -> int:
        return sum(row.target_count for row in self.rows)


def build_dataset(options: Options, base: BaseFolder) -> Dataset:
    """Reads, renders, masks and checks all rows. Raises YetoError (E_DATA or E_MODEL)."""
    tokenizer = load_tokenizer(base)
    template = ChatTemplate(
        tokenizer, stop_ids(base, tokenizer), options.assistant_mask_mode, _template_text(options)
    )
    data = Dataset(tokenizer, template)
    encoder = Encoder(tokenizer, template, options.train_on)
    rows = _encode(options, encoder, options.data, data.report)
    if options.val_data:
        heldout = _encode(options, encoder, options.val_data, data.heldout_report)
        held_digests = {row.digest for row in heldout}
        rows = _without(rows, held_digests, data.report)
    else:
        chosen = holdout([row.digest for row in rows], options.val_rows)
        heldout = [row for index, row in enumerate(rows) if index in chosen]
        rows = [row for index, row in enumerate(rows) if index not in chosen]
    data.straddling = encoder.straddling
    data.longest = max((row.tokens for row in (*rows, *heldout)), default=0)
    data.rows = _fit(rows, options, data.report)
    data.heldout = _fit(heldout, options, data.heldout_report)
    _refuse_unusable(options, data)
    return data


def _template_text(options: Options) -> str | None:
    if options.chat_template is None:
        return None
    try:
        return Path(options.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise YetoError(
            "E_DATA", f"the chat template cannot be read: {error}", "--chat-template"
        ) from error


def _encode(options: Options, encoder: Encoder, path: str, report: Report) -> list[Encoded]:
    rows = read_rows(
        path,
        report,
        train_on=options.train_on,
        max_rows=options.max_rows if path == options.data else None,
        developer_role=encoder.knows_developer,
    )
    encoded = list(encoder.encode(rows, report))
    if report.read == 0:
        raise YetoError("E_DATA", f"{path} holds no rows", "", "give a JSONL file with messages")
    damaged = report.damaged()
    if damaged and (damaged == report.read or damaged > options.max_dropped * report.read):
        listed = [
            line
            for rule in sorted(set(report.dropped) - HARMLESS_RULES)
            for line in report.texts[rule]
        ]
        shown = "\n    ".join(listed[:20])
        raise YetoError(
            "E_DATA",
            f"{listed[0]} ({damaged} of {report.read} rows of {path} cannot be used)",
            shown,
            f"repair the rows, or allow more with --max-dropped "
            f"(now {100 * options.max_dropped:g}%)",
        )
    return encoded


def _without(rows: Iterable[Encoded], digests: set[bytes], report: Report) -> list[Encoded]:
    kept = []
    for row in rows:
        if row.digest in digests:
            report.drop("held-out", row.place, "the same row is held out")
        else:
            kept.append(row)
    return kept


def _fit(rows: list[Encoded], options: Options, report: Report) -> list[Encoded]:
    """Applies --seq-len by --overlong; a row left without targets is listed and leaves."""
    kept = []
    for row in rows:
        if row.tokens <= options.seq_len:
            kept.append(row)
            continue
        text = f"{row.tokens} tokens are more than --seq-len {options.seq_len}"
        if options.overlong == "error":
            raise YetoError(
                "E_DATA",
                f"{row.place}: {text}",
                "",
                "raise --seq-len, or choose --overlong drop or right",
            )
        if options.overlong == "drop":
            report.drop("too-long", row.place, text)
            continue
        cut = Encoded(
            row.place, row.digest, row.ids[: options.seq_len], row.targets[: options.seq_len]
        )
        if cut.target_count:
            report.note("too-long", row.place, f"{text}; the first tokens are kept")
            kept.append(cut)
        else:
            report.drop("no-target", row.place, f"{text}; what is kept holds no target")
    return kept


def _refuse_unusable(options: Options, data: Dataset) -> None:
    report = data.report
    if not data.rows:
        listed = [text for texts in report.texts.values() for text in texts]
        causes = (
            "no assistant turn is left: look at `role` in the rows, or use --train-on all",
            f"rows are longer than --seq-len {options.seq_len} under --overlong "
            f"{options.overlong}: raise it",
            f"the template hides the answers: the turns were located by {data.template.method}, "
            "try --assistant-mask-mode or --chat-template FILE",
        )
        raise YetoError(
            "E_DATA",
            f"{options.data} holds no token to train on ({report.read} rows read)",
            "\n    ".join(listed[:20]),
            "three likely causes:\n    " + "\n    ".join(causes),
        )
    if options.val_data and not data.heldout:
        raise YetoError(
            "E_DATA",
            f"{options.val_data} holds no token to evaluate on",
            "",
            "held-out rows need an assistant turn within --seq-len",
        )
    if options.seat is not None and share_size(len(data.rows), options.seat, options.seats) == 0:
        raise YetoError(
            "E_DATA",
            f"{len(data.rows)} trainable rows for {options.seats} islands: seat "
            f"{options.seat} gets none",
            options.data,
            "use fewer islands or more rows",
        )
