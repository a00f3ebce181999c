# SPDX-License-Identifier: Apache-2.0
"""Rows: what passes, what is dropped by which rule, and what stops the reading, with FILE:ROW."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_fixtures import talk

from yeto.errors import YetoError
from yeto.text.rows import Report, Row, read_rows


def read(tmp_path: Path, *lines: Any, **options: Any) -> tuple[list[Row], Report]:
    path = tmp_path / "rows.jsonl"
    raw = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode()
        for line in lines
    )
    path.write_bytes(raw)
    report = Report()
    return list(read_rows(str(path), report, **options)), report


def messages(*turns: str) -> dict[str, Any]:
    return {"messages": talk(*turns)}


def test_blank_lines_crlf_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    one = json.dumps(messages("a", "b")).encode()
    rows, _ = read(tmp_path, b"\xef\xbb\xbf" + one + b"\r", b"", b"  ", one)
    assert [row.number for row in rows] == [1, 4]
    assert rows[0].digest == rows[1].digest
    assert rows[1].place.endswith("rows.jsonl:4")


@pytest.mark.parametrize(
    "line, text",
    [
        (b'{"messages": [', "not one complete JSON object"),
        (b'{"a": 1} x', "not one complete JSON object"),
        (b"[1, 2]", "not a JSON object but a list"),
        (b'"text"', "not a JSON object but a string"),
        (b'{"messages": "\xff"}', "is not UTF-8"),
        (b'{"messages": "\\ud83d"}', "half of a surrogate pair"),
        (b'{"messages": "a\\u0000b"}', "NUL"),
        (b'{"messages": "\x00"}', "NUL"),
    ],
)
def test_damage_stops_with_file_and_row(tmp_path: Path, line: bytes, text: str) -> None:
    with pytest.raises(YetoError) as caught:
        read(tmp_path, messages("a", "b"), line)
    assert caught.value.exit_code == 65
    assert caught.value.what.startswith(f"{tmp_path}/rows.jsonl:2: ")
    assert text in caught.value.what


def test_the_byte_position_of_bad_utf8_counts_from_the_start_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"messages": []}\n{"x": "\xff"}\n')
    with pytest.raises(YetoError, match="byte 24 of the file"):
        list(read_rows(str(path), Report()))


def test_utf16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"messages": []}'.encode("utf-16"))
    with pytest.raises(YetoError, match="UTF-16"):
        list(read_rows(str(path), Report()))


def test_an_escaped_backslash_is_no_nul(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, messages("what is \\u0000?", "an escape"))
    assert len(rows) == 1


@pytest.mark.parametrize(
    "record, rule, text",
    [
        ({"text": "x"}, "schema", "keys seen: text"),
        ({"chosen": [], "rejected": []}, "schema", "preference pair"),
        ({"messages": []}, "schema", "it is empty"),
        ({"messages": {}}, "schema", "it is an object"),
        ({"messages": ["x"]}, "schema", "message 1 must be an object"),
        ({"messages": [{"content": "x"}]}, "schema", "no string `role`"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "role", "'critic'"),
        ({"messages": [{"role": "user", "content": 3}]}, "schema", "it is a number"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "media",
            "image_url",
        ),
        ({"messages": talk("a")}, "no-target", "no assistant message"),
        ({"messages": talk("a", "")}, "empty-answer", "message 2 is empty"),
        ({"messages": talk("a", "b", "c", " \n ")}, "empty-answer", "message 4 is empty"),
        ({"messages": talk("a", "", "c", "d")}, "empty-answer", "message 2 is empty"),
        (
            {"messages": [*talk("a"), {"role": "assistant", "content": "b", "train": False}]},
            "no-target",
            "is to be trained",
        ),
        (
            {"messages": [*talk("a"), {"role": "assistant", "content": "b", "train": 1}]},
            "schema",
            "true or false",
        ),
        (
            {"messages": [*talk("a"), {"role": "assistant", "content": "b", "weight": 2}]},
            "schema",
            "0 or 1",
        ),
        (
            {"messages": [*talk("a"), {"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "tool-shape",
            "without a name",
        ),
        (
            {
                "messages": [
                    *talk("a"),
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}],
                    },
                ]
            },
            "tool-shape",
            "no JSON object",
        ),
        ({"messages": talk("a", "b"), "tools": "{"}, "tool-shape", "not JSON"),
    ],
)
def test_a_bad_row_is_dropped_by_its_rule(
    tmp_path: Path, record: dict[str, Any], rule: str, text: str
) -> None:
    rows, report = read(tmp_path, messages("a", "b"), record, messages("c", "d"))
    assert [row.number for row in rows] == [1, 3]
    assert report.read == 3 and report.dropped == {rule: 1}
    assert report.places[rule] == [f"{tmp_path}/rows.jsonl:2"]
    assert text in report.texts[rule][0]


def test_content_forms_of_equal_meaning_are_one_row(tmp_path: Path) -> None:
    rows, _ = read(
        tmp_path,
        {"messages": [{"role": " User", "content": "a b"}, {"role": "assistant", "content": "c"}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}],
                },
                {"role": "ASSISTANT", "content": "c", "tool_calls": None},
            ],
            "extra": 1,
        },
    )
    assert rows[0].digest == rows[1].digest
    assert rows[0].messages == rows[1].messages


def test_tool_arguments_of_equal_meaning_are_one_row(tmp_path: Path) -> None:
    forms: list[Any] = [{"t": "5"}, '{"t":"5"}', json.dumps('{"t":"5"}')]
    rows, _ = read(
        tmp_path,
        *(
            {
                "messages": [
                    *talk("a"),
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"type": "function", "function": {"name": "f", "arguments": form}}
                        ],
                    },
                ]
            }
            for form in forms
        ),
    )
    assert len({row.digest for row in rows}) == 1 and len(rows) == 3
    assert rows[0].messages[1]["content"] == ""


def test_which_turns_are_trained(tmp_path: Path) -> None:
    record = messages("a", "b", "c", "d")
    switched = {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": 0},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ]
    }
    rows, _ = read(tmp_path, record, switched)
    assert [row.trained for row in rows] == [(1, 3), (3,)]
    assert rows[0].digest != rows[1].digest
    rows, _ = read(tmp_path, record, train_on="last")
    assert rows[0].trained == (3,)
    rows, _ = read(tmp_path, messages("only a question"), train_on="all")
    assert len(rows) == 1


def test_the_tail_is_cut_and_noted(tmp_path: Path) -> None:
    rows, report = read(tmp_path, messages("a", "b", "c"))
    assert [m["content"] for m in rows[0].messages] == ["a", "b"]
    assert report.notes == {"tail": 1}


def test_unusual_order_is_noted_and_kept(tmp_path: Path) -> None:
    two_users = {"messages": [*talk("a"), *talk("b", "c")]}
    assistant_first = {"messages": [{"role": "assistant", "content": "x"}, *talk("b", "c")]}
    stray_tool = {"messages": [{"role": "tool", "content": "x"}, *talk("b", "c")]}
    rows, report = read(tmp_path, two_users, assistant_first, stray_tool)
    assert len(rows) == 3 and report.notes == {"order": 3}


def test_developer_becomes_system_unless_the_template_knows_it(tmp_path: Path) -> None:
    record = {"messages": [{"role": "developer", "content": "x"}, *talk("b", "c")]}
    assert read(tmp_path, record)[0][0].messages[0]["role"] == "system"
    rows, _ = read(tmp_path, record, developer_role=True)
    assert rows[0].messages[0]["role"] == "developer"


def test_max_rows_counts_rows_that_were_looked_at(tmp_path: Path) -> None:
    rows, report = read(tmp_path, {"x": 1}, messages("a", "b"), messages("c", "d"), max_rows=2)
    assert len(rows) == 1 and report.read == 2


def test_only_the_first_places_are_listed(tmp_path: Path) -> None:
    _, report = read(tmp_path, *([{"x": 1}] * 30))
    assert report.dropped == {"schema": 30} and len(report.places["schema"]) == 20
    assert any("and 10 more" in line for line in report.lines())


@pytest.mark.parametrize(
    "name, text",
    [
        ("none.jsonl", "cannot be read"),
        ("x.parquet", "JSON lines only"),
        (".", "cannot be read"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(YetoError, match=text) as caught:
        list(read_rows(str(tmp_path / name), Report()))
    assert caught.value.exit_code == 65 and str(tmp_path) in caught.value.where
