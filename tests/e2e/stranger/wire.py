# SPDX-License-Identifier: Apache-2.0
"""Frames and messages as docs/PROTOCOL.md states them; knows nothing of yeto's own code."""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

MAGIC, MAJOR, MINOR = b"YETO", 1, 0
HEADER = struct.Struct("<4sBBHIIQ")
NUMBERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "f64": "<d"}
NO_SEAT = 0xFFFFFFFF
ALL_FRAGMENTS = 0xFFFFFFFF
LAYOUT, INIT, PUSH, BCAST, FINAL = range(5)
F32, BF16, Q4 = range(3)
MERGED, CARRIED, DROPPED = range(3)

# The table of the page, row by row: `*kind` is a list, `(a b)` a struct, `bN` N bytes.
TABLE = """
1  S CHALLENGE  nonce b32, term u64, minor u16
2  L HELLO      minor u16, run_id text, role u8, seat u32, incarnation u64, session b16, proof b32, layout b32, values u64, contract *(text b8), held *(u64 u64), tokens u64, local_step u64, streams u16, device text
3  S WELCOME    seat u32, session b16, resumed u8, broadcast_codec u8, push_codec u8, chunk_bytes u32, heartbeat_ms u32, lease_ms u32, term u64, valid *u64, versions *u64, global_step u64, durable_step u64, seat_tokens u64, settings (u32 f64 u8 u8 u32 u64 u8 u8)
4  S REFUSED    code u16, retryable u8, text text, tensors *b8
5  L ATTACH     session b16, proof b32, stream u16, rank u16
6  S ATTACHED   stream u16
7  S PULL       term u64, fragment u32, round u64, attempt u32, base_version u64, at_step u64, sweep u8
8  S CANCEL     round u64, attempt u32
9  S VERDICT    term u64, fragment u32, round u64, attempt u32, outcome u8, reason text
10 L HEARTBEAT  local_step u64, tokens u64, phase u8, step_time_s f64
10 S HEARTBEAT  term u64, global_step u64, durable_step u64, run_tokens u64, live *u32
11 L LEAVE      reason u8, notice_ms u32
12 L FINISH     mode u8, reason text
13 L LIMIT      local_step u64, tokens u64
14 S FINAL      global_step u64, versions *u64, digests *b32
15 L FINAL_ACK  global_step u64, versions *u64, digests *b32
16 S GOODBYE    reason text
17 B OFFER      transfer u64, kind u8, term u64, fragment u32, version u64, base_version u64, codec u8, bytes u64, part u16, parts u16, first_value u64, digest b16, round u64, attempt u32, c_steps u64, c_tokens u64, norm f64
18 B HAVE       transfer u64, accept u8, reason text, chunks *u8
19 B DONE       transfer u64, ok u8
20 B DATA       action u8, epoch u64, first u64, count u64, rows u64
21 L METRIC     json text
22 B CHUNK      transfer u64, index u32, bytes *u8
"""  # noqa: E501
SETTINGS = (
    "sync_interval_steps", "merge_alpha", "delta_blended", "lockstep", "max_lag", "total_steps",
    "data_leases", "fixed_roster",
)  # fmt: skip

Fields = dict[str, Any]


class WireError(Exception):
    """The peer broke a rule of the page."""


class Closed(Exception):
    """The connection has ended."""


def _parse_table() -> tuple[dict[str, tuple[int, Any]], dict[int, tuple[str, Any]]]:
    speak: dict[str, tuple[int, Any]] = {}
    hear: dict[int, tuple[str, Any]] = {}
    for row in TABLE.strip().splitlines():
        number, side, name, rest = row.split(maxsplit=3)
        fields = [tuple(field.split(" ", 1)) for field in rest.split(", ")]
        if side in "LB":
            speak[name] = (int(number), fields)
        if side in "SB":
            hear[int(number)] = (name, fields)
    return speak, hear


SPEAK, HEAR = _parse_table()


def encode(kind: str, value: Any) -> bytes:
    if kind in NUMBERS:
        return struct.pack(NUMBERS[kind], value)
    if kind == "text":
        data = value.encode()
        return struct.pack("<H", len(data)) + data
    if kind == "*u8":
        return struct.pack("<I", len(value)) + bytes(value)
    if kind[0] == "*":
        return struct.pack("<I", len(value)) + b"".join(encode(kind[1:], one) for one in value)
    if kind[0] == "(":
        kinds = kind[1:-1].split()
        return b"".join(encode(k, v) for k, v in zip(kinds, value, strict=True))
    if len(value) != int(kind[1:]):
        raise ValueError(f"{kind}: {len(value)} bytes")
    return bytes(value)


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise WireError("the payload is too short")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind: str) -> Any:
        form = NUMBERS[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, kind: str) -> Any:
        if kind in NUMBERS:
            return self.number(kind)
        if kind == "text":
            return self.take(self.number("u16")).decode()
        if kind == "*u8":
            return self.take(self.number("u32"))
        if kind[0] == "*":
            return [self.value(kind[1:]) for _ in range(self.number("u32"))]
        if kind[0] == "(":
            return tuple(self.value(k) for k in kind[1:-1].split())
        return self.take(int(kind[1:]))


def encode_message(name: str, fields: Fields) -> tuple[int, bytes]:
    number, kinds = SPEAK[name]
    return number, b"".join(encode(kind, fields[field]) for field, kind in kinds)


def decode_message(number: int, payload: bytes) -> tuple[str, Fields]:
    if number not in HEAR:
        raise WireError(f"message type {number}")
    name, kinds = HEAR[number]
    reader = Reader(payload)
    fields = {field: reader.value(kind) for field, kind in kinds}
    if name == "WELCOME":
        fields["settings"] = dict(zip(SETTINGS, fields["settings"], strict=True))
    return name, fields


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(number: int, payload: bytes, sequence: int) -> bytes:
    head = HEADER.pack(MAGIC, MAJOR, number, 0, len(payload), crc32c(payload), sequence)
    return head + payload


def key_of(token: bytes, name: str) -> bytes:
    """HKDF-SHA256 with an empty salt, one block."""
    fresh = hmac.digest(bytes(32), token, hashlib.sha256)
    return hmac.digest(fresh, name.encode() + b"\x01", hashlib.sha256)


def proved(name: str, fields: Fields, key: bytes, nonce: bytes) -> Fields:
    _, payload = encode_message(name, {**fields, "proof": bytes(32)})
    return {**fields, "proof": hmac.digest(key, nonce + payload, hashlib.sha256)}


@dataclass
class Heard:
    """One message, or the end of its connection (name is empty)."""

    connection: Connection
    name: str
    fields: Fields


class Connection:
    """One stream. `send` may be called from any thread, `read` from one."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()
        self.sent = self.received = 0
        self.index = -1  # of a data stream; control has none
        name, self.challenge = self.read()
        if name != "CHALLENGE":
            raise WireError(f"{name} where CHALLENGE was due")

    def send(self, name: str, **fields: Any) -> None:
        number, payload = encode_message(name, fields)
        with self.lock:
            data = frame(number, payload, self.sent)
            self.sent += 1
            try:
                self.socket.sendall(data)
            except OSError as error:
                raise Closed(str(error)) from error

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(min(count - len(parts), 1 << 16))
            except OSError as error:
                raise Closed(str(error)) from error
            if not part:
                raise Closed("closed by the syncer")
            parts += part
        return bytes(parts)

    def read(self) -> tuple[str, Fields]:
        head = HEADER.unpack(self._exactly(HEADER.size))
        magic, major, number, flags, size, crc, sequence = head
        if (magic, major, flags) != (MAGIC, MAJOR, 0) or sequence != self.received:
            raise WireError(f"frame header {head}")
        self.received += 1
        payload = self._exactly(size)
        if crc32c(payload) != crc:
            raise WireError("CRC-32C of a payload")
        return decode_message(number, payload)

    def close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was first
        self.socket.close()
