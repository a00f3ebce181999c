# SPDX-License-Identifier: Apache-2.0
"""Goal: the demo's data is what the demo promises. Method: every row of both files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent.parent / "examples" / "data"
# Two hundred tokens of a small English tokenizer are about 700 characters; ours stay far below.
CHARACTERS_MAX = 480


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def questions(name: str) -> list[str]:
    return [row["messages"][0]["content"] for row in rows(name)]


@pytest.mark.parametrize(
    ("name", "least"), [("yeto_faq.jsonl", 150), ("yeto_faq_heldout.jsonl", 20)]
)
def test_rows_are_short_conversations(name: str, least: int) -> None:
    assert len(rows(name)) >= least
    for row in rows(name):
        assert list(row) == ["messages"]
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and roles
        text = "".join(message["content"] for message in row["messages"])
        assert all(m["content"] == m["content"].strip() != "" for m in row["messages"]), text
        assert len(text) <= CHARACTERS_MAX, text


def test_questions_are_asked_once_and_never_held_out_too() -> None:
    first = [json.dumps(row["messages"][:3]) for row in rows("yeto_faq.jsonl")]
    assert len(set(first)) == len(first)
    assert not set(questions("yeto_faq.jsonl")) & set(questions("yeto_faq_heldout.jsonl"))
