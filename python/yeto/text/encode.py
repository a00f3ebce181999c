# SPDX-License-Identifier: Apache-2.0
"""Turns rows into token ids with a mask of targets, each row checked by decoding what is trained.

The rendered text is tokenised once, with character offsets and without added special tokens. A
token is a target if it begins inside a trained span; position 0 never is, nothing predicts it.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from yeto.text.rows import Report, Row, RowRefused
from yeto.text.template import ChatTemplate, Rendered, visible_text

_BATCH_ROWS = 256


@dataclass(frozen=True)
class Encoded:
    """One row ready to train: `ids` int64 [tokens], `targets` bool [tokens], True where the token
    is predicted with loss."""

    place: str
    digest: bytes
    ids: np.ndarray
    targets: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def target_count(self) -> int:
        return int(self.targets.sum())


class Encoder:
    """Renders, tokenises and masks rows. Not thread-safe; holds no rows."""

    def __init__(self, tokenizer: Any, template: ChatTemplate, train_on: str) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._train_on = train_on
        self._bos = begin_token(tokenizer)
        self.knows_developer = template.knows_developer
        self.straddling = 0  # tokens that begin before a span and end inside it: never targets

    def encode(self, rows: Iterable[Row], report: Report) -> Iterator[Encoded]:
        """Yields the rows that can be trained, in order; the others go into `report`."""
        source = iter(rows)
        while batch := list(islice(source, _BATCH_ROWS)):
            rendered: list[tuple[Row, Rendered]] = []
            for row in batch:
                try:
                    rendered.append((row, self._render(row)))
                except RowRefused as refused:
                    report.drop(refused.rule, row.place, str(refused))
            if not rendered:
                continue
            tokens = self._tokenizer(
                [item.text for _, item in rendered],
                add_special_tokens=False,
                return_offsets_mapping=True,
                return_attention_mask=False,
                verbose=False,
            )
            for number, (row, item) in enumerate(rendered):
                try:
                    yield self._mask(
                        row, item, tokens["input_ids"][number], tokens["offset_mapping"][number]
                    )
                except RowRefused as refused:
                    report.drop(refused.rule, row.place, str(refused))

    def _render(self, row: Row) -> Rendered:
        if self._train_on == "all":
            return Rendered(self._template.render(row.messages, row.tools), [])
        return self._template.locate(row.messages, row.tools, row.trained)

    def _mask(
        self, row: Row, item: Rendered, ids: list[int], offsets: list[tuple[int, int]]
    ) -> Encoded:
        array = np.asarray(ids, dtype=np.int64)
        starts = np.asarray([begin for begin, _ in offsets], dtype=np.int64)
        ends = np.asarray([end for _, end in offsets], dtype=np.int64)
        if self._train_on == "all":
            targets = np.ones(len(array), dtype=bool)
        else:
            targets = np.zeros(len(array), dtype=bool)
            for index, (begin, end) in zip(row.trained, item.spans, strict=True):
                chosen = (starts >= begin) & (starts < end)
                self.straddling += int(((starts < begin) & (ends > begin)).sum())
                self._check_turn(row, index, item.text[begin:end], array[chosen], starts[chosen])
                targets |= chosen
        if self._bos is not None and (len(array) == 0 or array[0] != self._bos):
            array = np.concatenate([np.asarray([self._bos], dtype=np.int64), array])
            targets = np.concatenate([np.asarray([False]), targets])
        if len(targets):
            targets[0] = False
        if not targets.any():
            raise RowRefused("no-target", "no token of the row is a target")
        return Encoded(row.place, row.digest, array, targets)

    def _check_turn(
        self, row: Row, index: int, span: str, ids: np.ndarray, starts: np.ndarray
    ) -> None:
        """The trained tokens, decoded, are the answer and end with a stop token."""
        if len(ids) == 0 or int(ids[-1]) not in self._template.stop_ids:
            raise RowRefused("mask", "the trained tokens of a turn do not end with a stop token")
        decoded = _plain(
            self._tokenizer.decode(
                ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        answer = _plain(visible_text(row.messages[index]))
        # Where the header's last token reaches into the answer, that token is not trained, so the
        # answer's own beginning is missing from what is decoded.
        if answer not in decoded and not _plain(span).endswith(decoded):
            raise RowRefused("mask", "the trained tokens do not decode to the answer")


def begin_token(tokenizer: Any) -> int | None:
    """The id the tokenizer itself puts in front of a text, or None if it puts none."""
    if tokenizer.bos_token_id is None:
        return None
    ids = tokenizer("a", add_special_tokens=True)["input_ids"]
    return tokenizer.bos_token_id if ids[:1] == [tokenizer.bos_token_id] else None


def _plain(text: str) -> str:
    """Composed and stripped: tokenizers may compose characters and trim outer white space."""
    return unicodedata.normalize("NFC", text).strip()
