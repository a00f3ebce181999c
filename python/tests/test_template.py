# SPDX-License-Identifier: Apache-2.0
"""Masks: on templates of every shape the decoded targets are the answers, and nothing else is."""

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chat_fixtures import CHATML, LLAMA3, METHODS, QWEN3, TEMPLATES, make_tokenizer, talk
from hypothesis import given
from hypothesis import strategies as st

from yeto.errors import YetoError
from yeto.text.encode import Encoded, Encoder
from yeto.text.rows import Report, read_rows
from yeto.text.template import ChatTemplate

SHAPES = sorted(TEMPLATES)
STOPS = {
    "chatml": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "strict": "<end_of_turn>",
}


@cache
def parts(shape: str, mode: str = "auto") -> tuple[Any, ChatTemplate]:
    tokenizer = make_tokenizer(shape)
    return tokenizer, ChatTemplate(tokenizer, {tokenizer.eos_token_id}, mode)


def stop_of(shape: str) -> str:
    return STOPS[shape.split("-")[0]]


def encode(
    tmp_path: Path, shape: str, *records: Any, mode: str = "auto", train_on: str = "assistant"
) -> tuple[list[Encoded], Report]:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(r if isinstance(r, dict) else {"messages": r}) for r in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    tokenizer, template = parts(shape, mode)
    report = Report()
    rows = read_rows(str(path), report, train_on=train_on)
    return list(Encoder(tokenizer, template, train_on).encode(rows, report)), report


def pieces(shape: str, row: Encoded) -> list[str]:
    """The decoded runs of targets: one for each trained turn, as turns never touch."""
    tokenizer, _ = parts(shape)
    runs: list[list[int]] = []
    previous = False
    for token, target in zip(row.ids.tolist(), row.targets.tolist(), strict=True):
        if target and not previous:
            runs.append([])
        if target:
            runs[-1].append(token)
        previous = target
    return [tokenizer.decode(run, skip_special_tokens=False) for run in runs]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_method_of_each_shape(shape: str) -> None:
    assert parts(shape)[1].method == METHODS[shape]


@pytest.mark.parametrize("shape", SHAPES)
def test_one_turn(tmp_path: Path, shape: str) -> None:
    (row,), report = encode(tmp_path, shape, talk("2+2?", "4"))
    assert pieces(shape, row) == ["4" + stop_of(shape)]
    assert report.dropped == {}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_turn_ends_with_its_stop_token(tmp_path: Path, shape: str) -> None:
    (row,), _ = encode(tmp_path, shape, talk("one", "two", "three", "four", "five", "six"))
    assert pieces(shape, row) == [answer + stop_of(shape) for answer in ("two", "four", "six")]


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - {"strict"}))
def test_system_text_is_context(tmp_path: Path, shape: str) -> None:
    (row,), _ = encode(tmp_path, shape, talk("hello", "hi", system="assistant hi"))
    assert pieces(shape, row) == ["hi" + stop_of(shape)]
    assert "assistant hi" in parts(shape)[0].decode(row.ids)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "answer",
    [
        "😀 ok",
        "👩‍👩‍👧‍👦",
        "e\u0301tude",
        "नमस्ते",
        "a\n\nb",
        "tabs\there",
        "hello hello",
        "<|x|>",
        "{{ x }}",
        "assistant",
        "user",
        "\u200b.",
        "ﬃ",
    ],
)
def test_unicode_and_odd_answers(tmp_path: Path, shape: str, answer: str) -> None:
    (row,), report = encode(tmp_path, shape, talk("?" + answer, answer, answer, answer + "!"))
    shown = [unicodedata.normalize("NFC", piece) for piece in pieces(shape, row)]
    wanted = [unicodedata.normalize("NFC", text) for text in (answer, answer + "!")]
    assert shown == [text + stop_of(shape) for text in wanted], report.lines()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["auto", "spans"])
def test_all_modes_find_the_same_targets(tmp_path: Path, shape: str, mode: str) -> None:
    (row,), _ = encode(tmp_path, shape, talk("a", "bb", "c", "dd"), mode=mode)
    assert pieces(shape, row) == ["bb" + stop_of(shape), "dd" + stop_of(shape)]


def test_spans_mode_never_uses_the_tag() -> None:
    assert parts("llama3-tag", "spans")[1].method == "prefix"


def test_native_mode_without_a_tag_is_refused() -> None:
    with pytest.raises(YetoError, match="no method") as caught:
        parts("chatml", "native")
    assert caught.value.code == "E_MODEL" and "generation" in caught.value.where


words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=24
).filter(lambda text: text.strip() and "<" not in text)


@pytest.mark.parametrize("shape", SHAPES)
@given(turns=st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_decoded_targets_equal_the_answers(
    tmp_path_factory: Any, shape: str, turns: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("row")
    flat = [text for turn in turns for text in turn]
    (row,), report = encode(folder, shape, talk(*flat))
    shown = [unicodedata.normalize("NFC", piece) for piece in pieces(shape, row)]
    assert len(shown) == len(turns), report.lines()
    for piece, (_, answer) in zip(shown, turns, strict=True):
        assert piece.endswith(stop_of(shape))
        body = piece.removesuffix(stop_of(shape))
        # Templates may strip an answer; a line break at its head may belong to the header's token.
        assert body.strip() == unicodedata.normalize("NFC", answer).strip()


def test_trained_and_untrained_pieces_make_the_whole_row(tmp_path: Path) -> None:
    tokenizer, template = parts("qwen3")
    messages = talk("a", "b 😀", "c", "d")
    (row,), _ = encode(tmp_path, "qwen3", messages)
    text = template.render(messages)
    assert tokenizer.decode(row.ids, skip_special_tokens=False) == text
    assert row.ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_an_empty_thinking_block_is_no_target(tmp_path: Path) -> None:
    (row,), _ = encode(tmp_path, "qwen3", talk("q", "answer"))
    assert "<think>\n\n</think>\n\nanswer" in parts("qwen3")[0].decode(row.ids)
    assert pieces("qwen3", row) == ["answer<|im_end|>"]


def test_reasoning_of_the_row_is_a_target(tmp_path: Path) -> None:
    field = [*talk("q"), {"role": "assistant", "content": "answer", "reasoning_content": "why"}]
    inline = talk("q", "<think>\nwhy\n</think>\n\nanswer")
    rows, report = encode(tmp_path, "qwen3", field, inline)
    wanted = ["<think>\nwhy\n</think>\n\nanswer<|im_end|>"]
    assert [pieces("qwen3", row) for row in rows] == [wanted, wanted], report.lines()


def test_reasoning_that_the_template_hides_is_not_trained(tmp_path: Path) -> None:
    messages = talk("q", "<think>\nwhy\n</think>\n\nfirst", "r", "second")
    (row,), _ = encode(tmp_path, "qwen3", messages)
    assert pieces("qwen3", row) == ["first<|im_end|>", "second<|im_end|>"]


@pytest.mark.parametrize("shape", ["llama3", "strict"])
def test_the_begin_token_stands_once_when_the_template_writes_it(
    tmp_path: Path, shape: str
) -> None:
    (row,), _ = encode(tmp_path, shape, talk("a", "b"))
    assert row.ids.tolist().count(parts(shape)[0].bos_token_id) == 1
    assert row.ids[0] == parts(shape)[0].bos_token_id


def test_the_begin_token_stands_once_when_the_template_leaves_it_out(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("llama3")
    template = ChatTemplate(
        tokenizer, {tokenizer.eos_token_id}, template=LLAMA3.replace("{{ bos_token }}", "")
    )
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"messages": talk("a", "b")}))
    report = Report()
    (row,) = Encoder(tokenizer, template, "assistant").encode(read_rows(str(path), report), report)
    assert row.ids[0] == tokenizer.bos_token_id
    assert row.ids.tolist().count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(row.ids[row.targets]) == "b<|eot_id|>"


def test_the_turn_end_is_a_stop_token_though_the_tokenizer_names_another() -> None:
    tokenizer, template = parts("llama3")
    assert tokenizer.eos_token == "<|end_of_text|>"
    assert tokenizer.convert_tokens_to_ids("<|eot_id|>") in template.stop_ids


def test_a_stop_token_that_is_also_the_padding_token_is_trained(tmp_path: Path) -> None:
    tokenizer, _ = parts("chatml")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    (row,), _ = encode(tmp_path, "chatml", talk("a", "b"))
    assert row.ids[row.targets].tolist()[-1] == tokenizer.pad_token_id


def test_a_template_without_generation_prompt_trains_no_header(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("chatml")
    bare = CHATML.split("{% if add_generation_prompt %}")[0]
    template = ChatTemplate(tokenizer, {tokenizer.eos_token_id}, template=bare)
    rendered = template.locate(talk("a", "b", "c", "d"), None, (1, 3))
    assert [rendered.text[b:e] for b, e in rendered.spans] == ["b<|im_end|>", "d<|im_end|>"]


def test_an_end_mark_that_opens_the_next_header_closes_the_turn() -> None:
    tokenizer = make_tokenizer("chatml")
    opening = (
        "{% for m in messages %}{{ '<|im_start|>' if m['role'] == 'assistant' else "
        "'<|im_end|>' }}{{ m['content'] }}{% endfor %}<|im_end|>"
    )
    template = ChatTemplate(tokenizer, {tokenizer.eos_token_id}, template=opening)
    rendered = template.locate(talk("a", "b", "c", "d"), None, (1, 3))
    assert [rendered.text[b:e] for b, e in rendered.spans] == ["b<|im_end|>", "d<|im_end|>"]


def test_last_and_all(tmp_path: Path) -> None:
    (row,), _ = encode(tmp_path, "chatml", talk("a", "b", "c", "d"), train_on="last")
    assert pieces("chatml", row) == ["d<|im_end|>"]
    (row,), _ = encode(tmp_path, "chatml", talk("a", "b"), train_on="all")
    assert row.targets.tolist() == [False] + [True] * (row.tokens - 1)


def test_a_row_that_the_template_refuses_is_dropped(tmp_path: Path) -> None:
    rows, report = encode(tmp_path, "strict", talk("a", "b", system="s"), talk("a", "b"))
    assert len(rows) == 1 and report.dropped == {"template": 1}
    assert "no system role" in report.texts["template"][0]


def test_an_assistant_that_speaks_first_is_found(tmp_path: Path) -> None:
    (row,), _ = encode(
        tmp_path, "chatml", [{"role": "assistant", "content": "hi"}, *talk("a", "b")]
    )
    assert pieces("chatml", row) == ["hi<|im_end|>", "b<|im_end|>"]


def test_tool_calls_are_targets_and_results_are_not(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("chatml")
    source = CHATML.replace(
        "{{ m['content'] }}",
        "{{ m['content'] }}{% for c in m['tool_calls'] or [] %}"
        "{{ c['function']['name'] }}({{ c['function']['arguments'] | tojson }}){% endfor %}",
    )
    template = ChatTemplate(tokenizer, {tokenizer.eos_token_id}, template=source)
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "sky", "arguments": {"t": 5}}}
            ],
        },
        {"role": "tool", "content": "blue"},
        {"role": "assistant", "content": "It is blue."},
    ]
    rendered = template.locate(messages, None, (1, 3))
    assert [rendered.text[b:e] for b, e in rendered.spans] == [
        'sky({"t": 5})<|im_end|>',
        "It is blue.<|im_end|>",
    ]


@pytest.mark.parametrize(
    "source, text",
    [
        ("{% for m in messages %}{{ m['content'] }} {% endfor %}", "no method finds"),
        ("{{ messages[5]['content'].foo }}", "no method finds|fails on a single"),
        ("{% for m in messages %}{{ m.content }", "fails on a single user turn"),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            "no method finds",
        ),
    ],
)
def test_templates_that_cannot_serve_are_refused(source: str, text: str) -> None:
    tokenizer = make_tokenizer("chatml")
    with pytest.raises(YetoError, match=text) as caught:
        ChatTemplate(tokenizer, {tokenizer.eos_token_id}, template=source)
    assert caught.value.code == "E_MODEL" and "--chat-template" in caught.value.hint


def test_a_tokenizer_without_template_is_refused() -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = None
    with pytest.raises(YetoError, match="no chat template"):
        ChatTemplate(tokenizer, {tokenizer.eos_token_id})
    assert ChatTemplate(tokenizer, {tokenizer.eos_token_id}, template=QWEN3).method == "probe"


def test_a_header_token_that_reaches_into_the_answer_is_counted_and_not_trained(
    tmp_path: Path,
) -> None:
    tokenizer = make_tokenizer("chatml")
    # The line break of the header and the first one of the answer are one token.
    template = ChatTemplate(tokenizer, {tokenizer.eos_token_id})
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"messages": talk("a", "\n\nb")}))
    encoder = Encoder(tokenizer, template, "assistant")
    report = Report()
    (row,) = encoder.encode(read_rows(str(path), report), report)
    assert encoder.straddling == 1
    assert tokenizer.decode(row.ids[row.targets]) == "\nb<|im_end|>"
