# SPDX-License-Identifier: Apache-2.0
"""Goal: the vectors are what the pages say, and docs/PROTOCOL.md shows some of them as they are.

Method: the stranger makes and reads each of them; a C++ test holds yeto's own code against it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import values
import vectors
import wire

ROOT = Path(__file__).resolve().parent.parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "protocol_vectors.json"
ALL: dict[str, Any] = json.loads(GOLDEN.read_text())


def test_the_file_is_what_the_pages_give() -> None:
    assert GOLDEN.read_text() == vectors.text(), vectors.__doc__


@pytest.mark.parametrize("frame", ALL["frames"], ids=lambda f: f"{f['name']}-{f['from']}")
def test_frames_are_read_back(frame: dict[str, Any]) -> None:
    data = bytes.fromhex(frame["frame"])
    head = wire.HEADER.unpack(data[:24])
    payload = data[24:]
    assert head[:2] == (b"YETO", 1) and head[4:] == (
        len(payload), wire.crc32c(payload), frame["sequence"],
    )  # fmt: skip
    number, kinds = vectors.fields_of(frame["name"], frame["from"])
    assert head[2] == number
    reader = wire.Reader(payload)
    for field, kind in kinds:
        again = wire.encode(kind, reader.value(kind))
        assert again == wire.encode(kind, vectors.plain(kind, frame["fields"][field])), field
    assert reader.at == len(payload)


def test_an_image_of_q4_says_what_bf16_cannot_round_away() -> None:
    one = ALL["public"][0]
    old, new = (values.from_bf16(bytes.fromhex(one[key])) for key in ("old", "new"))
    master = np.frombuffer(bytes.fromhex(one["master"]), "<f4")
    assert np.abs(master - new).max() < np.abs(master - old).max()


def test_the_page_shows_vectors_of_the_file() -> None:
    page = (ROOT / "docs" / "PROTOCOL.md").read_text()
    section = page[page.index("\n## Vectors") :]
    words = re.findall(r"\b[0-9a-f]{8,}\b", section)
    rows = re.findall(r"^[0-9a-f ]{16,}$", section, re.MULTILINE)
    known = GOLDEN.read_text() + "123456789 e3069283 1122334455667788"
    known += " ".join(bits.byteswap().tobytes().hex() for bits in vectors.ties())
    for word in [*words, *(row.replace(" ", "") for row in rows)]:
        assert word in known, f"{word} is not in the file"
    shown = re.sub(r"\s", "", "".join(re.findall(r"```(.*?)```", section, re.DOTALL)))
    for frame in ALL["frames"]:
        if frame["name"] in ("CHALLENGE", "HELLO", "ATTACH", "PULL", "CHUNK"):
            assert frame["frame"] in shown, frame["name"]
    for whole in (ALL["layout"]["encoding"], ALL["layout"]["fingerprint"], ALL["key"]["key"]):
        assert whole in shown


def test_crc_32c_of_the_usual_digits() -> None:
    assert wire.crc32c(b"123456789") == 0xE3069283
