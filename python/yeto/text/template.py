# SPDX-License-Identifier: Apache-2.0
"""Renders a conversation by the tokenizer's own chat template and finds the assistant's turns.

A row is rendered once, whole; no message is ever rendered alone to build training text. The spans
are found by the first method that works for the template, and that method serves all rows:
  tag     the template marks what the assistant generates;
  prefix  the rendering of the beginning of the conversation is a prefix of the whole;
  probe   two renderings with replaced answers show where the answer stands. For templates whose
          text of a turn depends on later turns.
Spans are character ranges [begin, end) of the rendered text; an end includes the stop token.
"""

import re
from dataclasses import dataclass
from typing import Any, cast

from yeto.errors import YetoError
from yeto.text.rows import Message, RowRefused

METHODS = ("tag", "prefix", "probe")
_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
# Same length, no common first or last character, and nothing a template would treat specially.
_PROBES = ("Qxzv1Jr", "Zkwp8Mt")


class NoSpan(Exception):
    """A method does not find the turn; the text says why."""


@dataclass(frozen=True)
class Rendered:
    """The text of one row, and the span of each trained message in the order of the messages."""

    text: str
    spans: list[tuple[int, int]]


class ChatTemplate:
    """A tokenizer's chat template with the method that locates assistant turns in its text."""

    def __init__(
        self, tokenizer: Any, stop_ids: set[int], mode: str = "auto", template: str | None = None
    ) -> None:
        """`stop_ids` are the end tokens known from the model; the template's own turn end is added.

        `mode` is auto, native (only the template's tag) or spans (never the tag). `template`
        replaces the tokenizer's. Raises YetoError (E_MODEL) if no method works.
        """
        self._tokenizer = tokenizer
        self.source: str = template if template is not None else _own_template(tokenizer)
        self.knows_developer = "developer" in self.source
        self._has_tag = bool(_GENERATION_TAG.search(self.source))
        self._special = {
            token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()
        }
        self.stop_ids = {token_id for token_id in stop_ids if token_id is not None}
        self._generation_prompt = self._find_generation_prompt()
        turn_end = self._find_turn_end()
        if turn_end is not None:
            self.stop_ids.add(turn_end)
        self._stop_texts = sorted(
            {self._special.get(i) or tokenizer.decode([i]) for i in self.stop_ids} - {""}
        )
        self.method = self._find_method(mode)

    def render(
        self,
        messages: list[Message],
        tools: list[Message] | None = None,
        generation_prompt: bool = False,
    ) -> str:
        """The template's text for `messages`; its own refusal is RowRefused("template")."""
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                chat_template=self.source,
                add_generation_prompt=generation_prompt,
            )
        except Exception as error:  # jinja raises whatever the template's expressions raise
            reason = str(error).strip() or type(error).__name__
            raise RowRefused("template", f"the chat template refuses the row: {reason}") from error

    def locate(
        self, messages: list[Message], tools: list[Message] | None, trained: tuple[int, ...]
    ) -> Rendered:
        """Renders a row and finds the spans of its `trained` messages. Raises RowRefused."""
        try:
            if self.method == "tag":
                text, ranges = self._tagged(messages, tools)
                spans = [ranges[index] for index in trained if index in ranges]
                if len(spans) != len(trained):
                    raise NoSpan("the template does not mark every assistant turn")
                rough = dict(zip(trained, spans, strict=True))
            else:
                text = self.render(messages, tools)
                find = self._prefix_span if self.method == "prefix" else self._probe_span
                rough = {index: find(text, messages, tools, index) for index in trained}
            out = [
                (self._skip_lead(text, messages, tools, index, span), span[1])
                for index, span in rough.items()
            ]
            self._check(text, messages, trained, out)
        except NoSpan as problem:
            raise RowRefused("mask", f"the assistant turn is not located: {problem}") from problem
        return Rendered(text, out)

    # -- methods ---------------------------------------------------------------------------------

    def _tagged(
        self, messages: list[Message], tools: list[Message] | None
    ) -> tuple[str, dict[int, tuple[int, int]]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        clean = [{k: v for k, v in message.items() if v is not None} for message in messages]
        try:
            result: Any = render_jinja_template(
                conversations=[clean],
                tools=cast(Any, tools),
                chat_template=self.source,
                return_assistant_tokens_mask=True,
                add_generation_prompt=False,
                **self._tokenizer.special_tokens_map,
            )
        except Exception as error:  # as in render()
            reason = str(error).strip() or type(error).__name__
            raise RowRefused("template", f"the chat template refuses the row: {reason}") from error
        text: str = result[0][0]
        merged: list[tuple[int, int]] = []
        for begin, end in result[1][0]:
            if end <= begin:
                continue
            if merged and merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        assistants = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if len(merged) != len(assistants):
            raise NoSpan(f"{len(merged)} marked ranges for {len(assistants)} assistant turns")
        closed = [self._close_tagged(text, span) for span in merged]
        return text, dict(zip(assistants, closed, strict=True))

    def _close_tagged(self, text: str, span: tuple[int, int]) -> tuple[int, int]:
        """A range that ends just before its stop token takes it in; white space after it goes."""
        begin, end = span
        inner = self._last_stop(text, begin, end)
        if inner is not None and not text[inner:end].strip():
            return begin, inner
        rest = text[end:]
        skipped = len(rest) - len(rest.lstrip())
        for stop in self._stop_texts:
            if text.startswith(stop, end + skipped):
                return begin, end + skipped + len(stop)
        return begin, end

    def _prefix_span(
        self, text: str, messages: list[Message], tools: list[Message] | None, index: int
    ) -> tuple[int, int]:
        if index == 0:  # nothing stands before it, so there is no prefix to render
            return self._probe_span(text, messages, tools, index)
        before = self.render(messages[:index], tools, generation_prompt=True)
        if not text.startswith(before):
            raise NoSpan("the conversation up to the turn is rendered differently on its own")
        begin = len(before)
        if not self._generation_prompt:
            begin = self._edges(text, messages, tools, index)[0]
        up_to = self.render(messages[: index + 1], tools)
        if not text.startswith(up_to):
            raise NoSpan("the conversation with the turn is rendered differently on its own")
        end = self._last_stop(text, begin, len(up_to))
        if end is None:
            end = self._stop_at(text, len(up_to))
        return begin, end

    def _probe_span(
        self, text: str, messages: list[Message], tools: list[Message] | None, index: int
    ) -> tuple[int, int]:
        first, last = self._edges(text, messages, tools, index)
        begin = first
        if self._generation_prompt:
            found = text.rfind(self._generation_prompt, 0, first)
            if found >= 0:
                begin = found + len(self._generation_prompt)
        stops = [
            place + len(stop) for stop in self._stop_texts if (place := text.find(stop, last)) >= 0
        ]
        if not stops:
            raise NoSpan("no stop token follows the answer")
        return begin, min(stops)

    def _edges(
        self, text: str, messages: list[Message], tools: list[Message] | None, index: int
    ) -> tuple[int, int]:
        """Where the message's own strings begin and end in `text`, by two replaced renderings."""
        one, two = (
            self.render(
                [*messages[:index], _replaced(messages[index], probe), *messages[index + 1 :]],
                tools,
            )
            for probe in _PROBES
        )
        head = _common(one, two)
        tail = _common(one[::-1], two[::-1])
        if head == len(one):
            raise NoSpan("the template does not show the answer")
        if text[:head] != one[:head] or (tail and text[-tail:] != one[-tail:]):
            raise NoSpan("the text around the answer depends on the answer")
        if head + tail > len(text):
            raise NoSpan("the template does not show the answer")
        return head, len(text) - tail

    # -- edges and checks ------------------------------------------------------------------------

    def _skip_lead(
        self,
        text: str,
        messages: list[Message],
        tools: list[Message] | None,
        index: int,
        span: tuple[int, int],
    ) -> int:
        """What the template puts at the head of a turn without a field in the row (an empty
        thinking block) is context, not answer."""
        message = messages[index]
        begin, end = span
        if message.get("reasoning_content") or message.get("tool_calls"):
            return begin
        if text[begin:end].lstrip().startswith(message["content"].strip()):
            return begin
        first, _ = self._edges(text, messages, tools, index)
        return first if begin <= first < end else begin

    def _check(
        self,
        text: str,
        messages: list[Message],
        trained: tuple[int, ...],
        spans: list[tuple[int, int]],
    ) -> None:
        previous = 0
        for index, (begin, end) in zip(trained, spans, strict=True):
            if not previous <= begin < end <= len(text):
                raise NoSpan("turns overlap or are empty")
            previous = end
            if not any(text.endswith(stop, begin, end) for stop in self._stop_texts):
                raise NoSpan("the turn does not end with a stop token")
            if visible_text(messages[index]) not in text[begin:end]:
                raise NoSpan("the span does not hold the answer")

    def _last_stop(self, text: str, begin: int, end: int) -> int | None:
        """The place just after the last stop token inside [begin, end)."""
        ends = [
            place + len(stop)
            for stop in self._stop_texts
            if (place := text.rfind(stop, begin, end)) >= 0
        ]
        return max(ends) if ends else None

    def _stop_at(self, text: str, place: int) -> int:
        for stop in self._stop_texts:
            if text.startswith(stop, place):
                return place + len(stop)
        raise NoSpan("the turn does not end with a stop token")

    # -- facts about the template ----------------------------------------------------------------

    def _find_generation_prompt(self) -> str:
        question = [{"role": "user", "content": _PROBES[0]}]
        try:
            without, with_prompt = self.render(question), self.render(question, None, True)
        except RowRefused as refused:
            raise YetoError(
                "E_MODEL",
                f"the chat template fails on a single user turn: {refused}",
                hint="give a working one with --chat-template FILE",
            ) from refused
        return with_prompt[len(without) :] if with_prompt.startswith(without) else ""

    def _find_turn_end(self) -> int | None:
        """The first added token that follows an answer: what closes the assistant's turn."""
        talk = [
            {"role": "user", "content": _PROBES[0]},
            {"role": "assistant", "content": _PROBES[1]},
        ]
        try:
            text = self.render(talk)
        except RowRefused:
            return None
        place = text.rfind(_PROBES[1])
        if place < 0:
            return None
        tail = text[place + len(_PROBES[1]) :]
        found = [
            (at, -len(content), token_id)
            for token_id, content in self._special.items()
            if content.strip() and (at := tail.find(content)) >= 0
        ]
        return min(found)[2] if found else None

    def _find_method(self, mode: str) -> str:
        reasons = []
        for method in METHODS:
            if method == "tag" and (mode == "spans" or not self._has_tag):
                continue
            if method != "tag" and mode == "native":
                continue
            self.method = method
            try:
                for talk in _TALKS:
                    trained = tuple(i for i, m in enumerate(talk) if m["role"] == "assistant")
                    self.locate([dict(m) for m in talk], None, trained)
                return method
            except RowRefused as refused:
                reasons.append(f"{method}: {refused}")
        if not reasons:
            reasons = ["native: the template has no {% generation %} tag"]
        raise YetoError(
            "E_MODEL",
            "no method finds the assistant's turns in the chat template",
            "; ".join(reasons),
            "give a template that closes each turn with a stop token by --chat-template FILE, "
            "or try --assistant-mask-mode spans",
        )


# Made-up conversations a method must handle: one turn, two turns, white space at the edges.
_TALKS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "How far?"}, {"role": "assistant", "content": "Two miles."}),
    (
        {"role": "user", "content": "How far?"},
        {"role": "assistant", "content": "Two miles."},
        {"role": "user", "content": "And back?"},
        {"role": "assistant", "content": "Two more."},
    ),
)


def visible_text(message: Message) -> str:
    """The part of an answer every template shows: without reasoning, without outer white space."""
    return message["content"].rsplit("</think>", 1)[-1].strip()


def _own_template(tokenizer: Any) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError as error:
        raise YetoError(
            "E_MODEL",
            "the tokenizer has no chat template",
            str(tokenizer.name_or_path),
            "take an instruction-tuned model, or give a template with --chat-template FILE",
        ) from error


def _replaced(message: Message, probe: str) -> Message:
    """`message` with its strings replaced by `probe`, keeping its shape."""
    out = dict(message)
    if "</think>" in out["content"]:
        out["content"] = f"<think>\n{probe}\n</think>\n\n{probe}"
    elif out["content"]:
        out["content"] = probe
    if out.get("reasoning_content"):
        out["reasoning_content"] = probe
    if out.get("tool_calls"):
        out["tool_calls"] = [
            {**call, "function": {**call["function"], "name": probe, "arguments": {probe: probe}}}
            for call in out["tool_calls"]
        ]
    return out


def _common(one: str, two: str) -> int:
    """Length of the common beginning."""
    limit = min(len(one), len(two))
    low, high = 0, limit
    while low < high:  # the longest equal prefix, by bisection: slices compare at memory speed
        middle = (low + high + 1) // 2
        if one[:middle] == two[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
