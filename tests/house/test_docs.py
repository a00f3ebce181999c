# SPDX-License-Identifier: Apache-2.0
"""Goal: the docs say what the code says. Method: links, tables and pages against the source."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import reference
import tidy

ROOT = Path(__file__).resolve().parent.parent.parent
MESSAGES = (ROOT / "src/yeto/wire/messages.h").read_text()
PROTOCOL = (ROOT / "docs/PROTOCOL.md").read_text()
PAGES = [ROOT / name for name in tidy.tracked(ROOT) if name.endswith(".md")]
# Two directions of one type, and two types with one list of fields.
HEADER_NAMES = {"LearnerBeat": "HEARTBEAT", "SyncerBeat": "HEARTBEAT", "FinalAck": "FINAL_ACK"}
WORDS_MAX = 25


def test_reference_pages_are_made_from_the_program() -> None:
    assert reference.differing() == [], "write them again: make docs"


def test_every_verb_has_a_worked_example() -> None:
    for verb in reference.VERBS:
        assert f"yeto {verb}" in reference.help_of(verb)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def fields_in_header(struct: str) -> list[str]:
    found = re.search(rf"struct {struct} \{{(.*?)\n\}};", MESSAGES, re.DOTALL)
    assert found, struct
    return re.findall(r'\bf\("(\w+)"', found[1])


def structs() -> list[str]:
    variant = re.search(r"using Message = std::variant<(.*?)>;", MESSAGES, re.DOTALL)
    assert variant
    return re.split(r",\s*", variant[1].strip())


@pytest.mark.parametrize("struct", structs())
def test_protocol_page_has_the_fields_of_every_message(struct: str) -> None:
    plain = re.sub(r"(?<!^)(?=[A-Z])", "_", struct).upper()
    name = HEADER_NAMES.get(struct, plain)
    rows = [line for line in PROTOCOL.splitlines() if f"| {name} |" in line]
    source = "FinalState" if struct in ("Final", "FinalAck") else struct
    wanted = fields_in_header(source)
    shown = [re.findall(r"`(\w+)`", row) for row in rows]
    assert wanted in shown, f"{name}: the header has {wanted}, the page {shown}"


def test_protocol_page_has_the_numbers_of_the_types() -> None:
    enum = re.search(r"enum class Type[^{]*\{(.*?)\}", MESSAGES, re.DOTALL)
    assert enum
    for word, number in re.findall(r"k(\w+) = (\d+)", enum[1]):
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", word).upper()
        assert f"| {number} | {name} |" in PROTOCOL


# The page's word of each enumeration: the enum and the header that declares it.
ENUMERATIONS = {
    "Role": ("Role", "wire/messages.h"),
    "Phase": ("Phase", "wire/messages.h"),
    "Codec": ("CodecId", "tensor/dtype.h"),
    "Transfer kind": ("TransferKind", "wire/messages.h"),
    "Outcome": ("Outcome", "wire/messages.h"),
    "Leave reason": ("LeaveReason", "wire/messages.h"),
    "Finish mode": ("FinishMode", "wire/messages.h"),
    "Refusal code": ("RefuseCode", "wire/messages.h"),
    "Data action": ("DataAction", "wire/messages.h"),
    "dtype": ("DType", "tensor/dtype.h"),
    "Merge mode": ("MergeMode", "tensor/layout.h"),
}
SHORTER = {"broadcast": "bcast"}


def enumerators(enum: str, header: str) -> dict[int, str]:
    text = (ROOT / "src/yeto" / header).read_text()
    body = re.search(rf"enum class {enum} : [^{{]*\{{(.*?)\}}", text, re.DOTALL)
    assert body, enum
    found = {}
    for word, number in re.findall(r"k(\w+) = (\d+)", body[1]):
        plain = re.sub(r"(?<!^)(?=[A-Z])", " ", word).lower()
        found[int(number)] = SHORTER.get(plain, plain)
    return found


@pytest.mark.parametrize("word", ENUMERATIONS)
def test_protocol_page_has_every_enumeration(word: str) -> None:
    text = PROTOCOL.replace("\n", " ")
    shown = re.search(rf"\b{word}: (0 [^.;]*|1 [^.;]*)[.;]", text)
    assert shown, word
    items = [item.strip().split(" ", 1) for item in shown[1].split(",")]
    assert {int(n): name.lower() for n, name in items} == enumerators(*ENUMERATIONS[word])


def test_protocol_page_names_every_enumeration_of_the_messages() -> None:
    declared = set(re.findall(r"enum class (\w+)", MESSAGES)) - {"Type"}
    assert declared <= {enum for enum, _ in ENUMERATIONS.values()}


def test_protocol_page_has_the_settings() -> None:
    body = re.search(r"struct Settings \{(.*?)template", MESSAGES, re.DOTALL)
    assert body
    kinds = {"double": "f64", **{f"std::uint{n}_t": f"u{n}" for n in (8, 16, 32, 64)}}
    declared = re.findall(r"^  ([\w:]+) (\w+) = ", body[1], re.MULTILINE)
    line = next(row for row in PROTOCOL.splitlines() if row.startswith("`settings` is "))
    shown = re.findall(r"`(\w+)` (u\d+|f64)", line)
    assert shown == [(name, kinds[kind]) for kind, name in declared]
    assert [name for name, _ in shown] == fields_in_header("Settings")


def test_protocol_page_has_the_bounds() -> None:
    text = PROTOCOL.replace("\n", " ")
    limits = dict(re.findall(r'f\("(\w+)", s\.\w+, Max\{(\w+)\}\)', MESSAGES))
    assert f"METRIC {limits['json']}" in text and f"live seats {limits['live']}" in text
    assert f"contract {limits['contract']} pairs" in text
    assert f"run id and names {limits['run_id']}" in text
    assert f"other texts {limits['reason']}" in text
    most = re.search(r"kMaxFragments = (\d+)", (ROOT / "src/yeto/tensor/layout.h").read_text())
    assert most and f"lists of fragments {most[1]}" in text


def test_tape_page_has_every_event_and_key() -> None:
    source = (ROOT / "src/yeto/sync/server/records_json.cc").read_text()
    page = (ROOT / "docs/formats/tape.md").read_text()
    writer = source[source.index("class RecordWriter") : source.index("Json seat_json")]
    writer += source[source.index("std::string tape_run_line") : source.index("seq_of_tape_line")]
    names = re.findall(r'head_json\(head_?, "(\w+)"\)|seat_reason\("(\w+)"', writer)
    keys = re.findall(r'out\["(\w+)"\]|\{\{?"(\w+)", ', writer)
    for word in {first or second for first, second in names + keys}:
        assert f"`{word}`" in page or f'"{word}"' in page, word


def test_run_folder_page_has_every_file() -> None:
    source = (ROOT / "src/yeto/fleet/run/run_paths.h").read_text()
    page = (ROOT / "docs/formats/run_folder.md").read_text()
    for name in re.findall(r'"([\w.]+(?:\.\w+)?)"', source):
        assert name in page, name


def test_manifest_page_has_every_key() -> None:
    source = (ROOT / "python/yeto/learner/artifact.py").read_text()
    page = (ROOT / "docs/formats/manifest.md").read_text()
    body = source[source.index("def _manifest") : source.index("def _run_name")]
    for key in re.findall(r'"(\w+)":', body):
        assert f"`{key}`" in page, key


def test_glossary_is_short() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = text[text.index("## Glossary") :].splitlines()[4:]
    for row in rows:
        if row.startswith("|"):
            assert len(row.split("|")[2].split()) <= WORDS_MAX, row


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text and "make test" in text
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in set(phony[1].split()) - {"help"}:
        assert f"make {target}" in shown.stdout


def test_checkpoint_page_has_every_key() -> None:
    source = (ROOT / "src/yeto/sync/jobs/manifest_json.cc").read_text()
    source += (ROOT / "src/yeto/sync/jobs/checkpoint.cc").read_text()
    page = (ROOT / "docs/formats/checkpoint.md").read_text()
    keys = re.findall(r'json\["(\w+)"\] =|out\["(\w+)"\] =|\{"(\w+)", ', source)
    for key in {next(filter(None, groups)) for groups in keys}:
        assert f"`{key}`" in page, key
