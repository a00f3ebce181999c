# SPDX-License-Identifier: Apache-2.0
"""Reads JSONL rows of OpenAI-style `messages` and brings them into one form.

Every message about a row begins FILE:ROW, ROW being the physical line. A row either passes, is
dropped by a named rule, or stops the reading (damaged bytes, damaged JSON). No framework is used.
"""

import codecs
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yeto.errors import YetoError

ROLES = ("system", "developer", "user", "assistant", "tool")
LISTED_PER_RULE = 20
# Rules that are a property of good data as much as of bad; they never count as damage.
HARMLESS_RULES = frozenset({"too-long", "no-target", "empty-answer", "held-out"})
_UNREADABLE_SUFFIXES = (".parquet", ".arrow", ".csv", ".tsv", ".gz", ".zst", ".zip", ".txt", ".bin")

Message = dict[str, Any]


class RowRefused(Exception):
    """One row cannot be used; `rule` names why. The other rows go on."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule


@dataclass(frozen=True)
class Row:
    """One conversation in normal form. `trained` holds the indices of the trained messages."""

    file: str
    number: int
    messages: list[Message]
    tools: list[Message] | None
    trained: tuple[int, ...]
    digest: bytes

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass
class Report:
    """What happened to the rows of a run: counts by rule, and the first places of each rule."""

    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, rule: str, place: str, text: str) -> None:
        self._count(self.dropped, rule, place, text)

    def note(self, rule: str, place: str, text: str) -> None:
        self._count(self.notes, rule, place, text)

    def damaged(self) -> int:
        """Rows dropped by rules that speak of broken data."""
        return sum(n for rule, n in self.dropped.items() if rule not in HARMLESS_RULES)

    def lines(self) -> list[str]:
        """Readable lines: a head for each rule, then its first places."""
        out = []
        for verdict, counts in (("dropped", self.dropped), ("noted", self.notes)):
            for rule, count in sorted(counts.items()):
                out.append(f"{count} rows {verdict} by rule {rule}")
                out.extend(f"  {text}" for text in self.texts[rule])
                if count > len(self.texts[rule]):
                    out.append(f"  … and {count - len(self.texts[rule])} more")
        return out

    def _count(self, counts: dict[str, int], rule: str, place: str, text: str) -> None:
        counts[rule] = counts.get(rule, 0) + 1
        if len(self.places.setdefault(rule, [])) < LISTED_PER_RULE:
            self.places[rule].append(place)
            self.texts.setdefault(rule, []).append(f"{place}: {text}")


def content_digest(path: Path) -> str:
    """SHA-256 over the file's size (u64 little-endian) and its SHA-256; the name is no part."""
    inner = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            inner.update(block)
        size = handle.tell()
    return hashlib.sha256(size.to_bytes(8, "little") + inner.digest()).hexdigest()


def read_rows(
    path: str,
    report: Report,
    *,
    train_on: str = "assistant",
    max_rows: int | None = None,
    developer_role: bool = False,
) -> Iterator[Row]:
    """Yields the usable rows of `path` in order and fills `report` with the others.

    `max_rows` limits the rows that are looked at. `developer_role` keeps that role for templates
    that know it; otherwise it becomes `system`. Raises YetoError where reading must stop.
    """
    for number, text in _lines(path):
        if max_rows is not None and report.read >= max_rows:
            return
        report.read += 1
        place = f"{path}:{number}"
        record = _parse(place, text)
        try:
            row = _normalise(path, number, record, train_on, developer_role)
        except RowRefused as refused:
            report.drop(refused.rule, place, str(refused))
            continue
        for rule, note in _order_notes(row.messages):
            report.note(rule, place, note)
        tail = _tail(row.messages)
        if tail:
            report.note("tail", place, f"{tail} messages after the last assistant turn are cut off")
            del row.messages[-tail:]
        yield row


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """(physical line number, text) of every line that is not blank."""
    if path.endswith(_UNREADABLE_SUFFIXES):
        raise YetoError(
            "E_DATA",
            "this build reads JSON lines only",
            path,
            "convert the file to .jsonl with one object of `messages` a line",
        )
    try:
        handle = open(path, "rb")
    except OSError as error:
        raise YetoError(
            "E_DATA",
            f"the data cannot be read: {error.strerror}",
            path,
            "--data takes the path of a readable .jsonl file",
        ) from error
    with handle:
        offset = 0
        try:
            for number, raw in enumerate(handle, start=1):
                text = _decode(f"{path}:{number}", raw, offset, first=number == 1)
                offset += len(raw)
                if text.strip():
                    yield number, text
        except OSError as error:
            raise YetoError("E_DATA", f"the data cannot be read: {error.strerror}", path) from error


def _decode(place: str, raw: bytes, offset: int, first: bool) -> str:
    if first:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in raw[:4]:
            raise YetoError(
                "E_DATA",
                f"{place}: the file looks like UTF-16 or UTF-32, not UTF-8",
                "",
                "save the file as UTF-8",
            )
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise YetoError(
            "E_DATA",
            f"{place}: byte {offset + error.start} of the file is not UTF-8",
            "",
            "save the file as UTF-8, or remove that row",
        ) from error
    if "\0" in text:
        raise YetoError("E_DATA", f"{place}: the line holds a NUL byte", "", "remove that row")
    return text


def _parse(place: str, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        where = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        hint = "each line must be one complete JSON object"
        if text.lstrip().startswith("["):
            hint += "; this looks like one JSON array, write its elements one a line"
        raise YetoError(
            "E_DATA", f"{place}: not one complete JSON object: {what}{where}", "", hint
        ) from error
    except RecursionError as error:
        raise YetoError("E_DATA", f"{place}: the JSON is nested too deeply") from error
    if not isinstance(record, dict):
        raise YetoError(
            "E_DATA",
            f"{place}: not a JSON object but {_kind(record)}",
            "",
            "each line must be one complete JSON object",
        )
    try:
        text.encode("utf-8")
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise YetoError(
            "E_DATA", f"{place}: a \\u escape is half of a surrogate pair", "", "repair that row"
        ) from error
    if "\\u0000" in text and _holds_nul(record):
        raise YetoError("E_DATA", f"{place}: a string holds a NUL character", "", "repair that row")
    return record


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(key) or _holds_nul(item) for key, item in value.items())
    return isinstance(value, list) and any(_holds_nul(item) for item in value)


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)


def _normalise(
    path: str, number: int, record: dict[str, Any], train_on: str, developer_role: bool
) -> Row:
    if "messages" not in record:
        if "chosen" in record or "rejected" in record:
            raise RowRefused("schema", "a preference pair; this learner takes `messages` only")
        keys = ", ".join(sorted(record)[:8]) or "none"
        raise RowRefused("schema", f"no `messages` list; keys seen: {keys}")
    raw_messages = record["messages"]
    if not isinstance(raw_messages, list) or not raw_messages:
        kind = "empty" if raw_messages == [] else _kind(raw_messages)
        raise RowRefused("schema", f"`messages` must be a list of messages, it is {kind}")
    messages = [
        _message(index, raw, developer_role) for index, raw in enumerate(raw_messages, start=1)
    ]
    tools = _tools(record.get("tools"))
    canonical = json.dumps(
        {"messages": messages, "tools": tools},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    trained = _trained(messages, train_on)
    if train_on != "all":
        _check_answers(messages, trained)
    for message in messages:
        message.pop("train", None)
    digest = hashlib.sha256(canonical.encode("utf-8")).digest()
    return Row(path, number, messages, tools, trained, digest)


def _message(index: int, raw: Any, developer_role: bool) -> Message:
    if not isinstance(raw, dict):
        raise RowRefused("schema", f"message {index} must be an object, it is {_kind(raw)}")
    role = raw.get("role")
    if not isinstance(role, str):
        raise RowRefused("schema", f"message {index} has no string `role`")
    role = role.strip().lower()
    role = "tool" if role == "function" else role
    if role not in ROLES:
        raise RowRefused("role", f"message {index} has the unknown role {role!r}")
    if role == "developer" and not developer_role:
        role = "system"
    message: Message = {"role": role, "content": _content(index, raw.get("content"))}
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(raw.get(name), str) and raw[name]:
            message["reasoning_content"] = raw[name]
            break
    for name in ("name", "tool_call_id"):
        if isinstance(raw.get(name), str):
            message[name] = raw[name]
    if raw.get("tool_calls"):
        message["tool_calls"] = _tool_calls(index, raw["tool_calls"])
    train = _train_switch(index, raw)
    if train is not None:
        message["train"] = train
    return message


def _content(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowRefused(
            "schema", f"message {index}: `content` must be a string, it is {_kind(content)}"
        )
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise RowRefused("media", f"message {index} holds a part of type {kind!r}, not text")
        if not isinstance(part.get("text"), str):
            raise RowRefused("schema", f"message {index} holds a text part without `text`")
        parts.append(part["text"])
    return "".join(parts)


def _train_switch(index: int, raw: Message) -> bool | None:
    if "train" in raw and raw["train"] is not None:
        if not isinstance(raw["train"], bool):
            raise RowRefused("schema", f"message {index}: `train` must be true or false")
        return raw["train"]
    if "weight" in raw and raw["weight"] is not None:
        if raw["weight"] not in (0, 1):
            raise RowRefused("schema", f"message {index}: `weight` must be 0 or 1")
        return bool(raw["weight"])
    return None


def _tool_calls(index: int, calls: Any) -> list[Message]:
    if not isinstance(calls, list):
        raise RowRefused("tool-shape", f"message {index}: `tool_calls` must be a list")
    out = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowRefused("tool-shape", f"message {index} holds a tool call without a name")
        arguments = function.get("arguments", {})
        # Some writers encode the arguments once, some twice; the template gets one object.
        for _ in range(2):
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments) if arguments.strip() else {}
                except ValueError:
                    break
        if not isinstance(arguments, dict):
            raise RowRefused("tool-shape", f"message {index}: tool arguments are no JSON object")
        clean: Message = {
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments},
        }
        if isinstance(call.get("id"), str):
            clean["id"] = call["id"]
        out.append(clean)
    return out


def _tools(tools: Any) -> list[Message] | None:
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise RowRefused("tool-shape", "`tools` is a string that is not JSON") from error
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowRefused("tool-shape", "`tools` must be a list of objects")
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict):
            function.setdefault("parameters", {"type": "object", "properties": {}})
    return tools


def _trained(messages: list[Message], train_on: str) -> tuple[int, ...]:
    """Indices of the assistant messages that carry loss; `train`/`weight` has the last word."""
    assistants = [index for index, m in enumerate(messages) if m["role"] == "assistant"]
    if train_on == "last":
        chosen = set(assistants[-1:])
    else:
        chosen = set(assistants)
    for index in assistants:
        if "train" in messages[index]:
            chosen.add(index) if messages[index]["train"] else chosen.discard(index)
    return tuple(sorted(chosen))


def _check_answers(messages: list[Message], trained: tuple[int, ...]) -> None:
    if not trained:
        if any(message["role"] == "assistant" for message in messages):
            raise RowRefused("no-target", "no assistant message of the row is to be trained")
        raise RowRefused("no-target", "the row has no assistant message")
    for index in trained:
        message = messages[index]
        said = message["content"].strip() or message.get("reasoning_content", "").strip()
        if not said and not message.get("tool_calls"):
            raise RowRefused("empty-answer", f"the assistant message {index + 1} is empty")


def _order_notes(messages: list[Message]) -> list[tuple[str, str]]:
    notes = []
    talk = [m["role"] for m in messages if m["role"] not in ("system", "developer")]
    if talk[:1] == ["assistant"]:
        notes.append(("order", "the conversation begins with the assistant"))
    if any(pair == ("user", "user") for pair in zip(talk, talk[1:], strict=False)):
        notes.append(("order", "two user turns in a row"))
    known: set[str] = set()
    calls = 0
    for message in messages:
        for call in message.get("tool_calls", []):
            calls += 1
            known.add(call.get("id", ""))
        if message["role"] == "tool":
            wanted = message.get("tool_call_id")
            if calls == 0 or (wanted is not None and wanted not in known):
                notes.append(("order", "a tool result without a matching call"))
                break
    return notes[:1]


def _tail(messages: list[Message]) -> int:
    """How many messages stand after the last assistant turn; 0 if there is no such turn."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "assistant":
            return len(messages) - 1 - index
    return 0
