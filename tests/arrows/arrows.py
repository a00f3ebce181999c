# SPDX-License-Identifier: Apache-2.0
"""Checks that the rooms keep to their arrows.

    python3 tests/arrows/arrows.py ROOT BUILD/arrows.txt [--write]

arrows.txt is written by cmake/Rooms.cmake, one line per room: `room: deps | deps of its tests`.
Checked: every #include "yeto/…" follows an arrow, no cycle, every arrow points to a lower floor,
the README's Uses equals DEPS, rooms without time and input/output name none of it, and the table in
ARCHITECTURE.md says the same. --write writes that table again. Standard library only.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Lower floors first. An arrow goes down.
FLOORS: dict[str, int] = {
    "base": 0,
    "tensor": 1,
    "bridge": 1,
    "store": 2,
    "wire": 2,
    "codec": 2,
    "merge": 2,
    "net": 2,
    "weights": 3,
    "sync/session": 3,
    "sync/round": 3,
    "sync/broadcast": 3,
    "sync/core": 4,
    "sync/jobs": 5,
    "sync/client": 4,
    "sync/link": 4,
    "sync/server": 6,
    "sync/boundary": 6,
    "sync/sim": 6,
    "fleet/spec": 5,
    "fleet/run": 6,
    "fleet/providers": 7,
}
# Rooms whose decisions must replay: time is an argument, bytes are arguments.
PURE_ROOMS = ("sync/core", "sync/round", "sync/session", "merge", "wire", "codec")
IMPURE_INCLUDE = re.compile(
    r'^\s*#\s*include\s*[<"]('
    r"thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token"
    r"|chrono|ctime|time\.h|sys/time\.h|fstream|filesystem|cstdio|stdio\.h|iostream"
    r"|asio.*|unistd\.h|fcntl\.h|poll\.h|sys/.*|netinet/.*|arpa/.*|netdb\.h"
    r"|yeto/base/(files|thread|queue)\.h"
    r')[>"]'
)
IMPURE_CALL = re.compile(
    r"\b(monotonic_now|wall_now|steady_clock|system_clock|sleep_for|random_bytes|random_u64"
    r"|fopen|getenv|std::thread|std::mutex)\b"
)
YETO_INCLUDE = re.compile(r'^\s*#\s*include\s*"(yeto/[^"]+)"')
SOURCE_SUFFIXES = {".h", ".cc", ".inc", ".def"}
TABLE_BEGIN, TABLE_END = "<!-- rooms: begin -->", "<!-- rooms: end -->"
TEST_SUFFIXES = ("_test.cc", "_fuzz.cc", "_bench.cc", "_testing.h", "_testing.cc")


@dataclass
class Room:
    name: str
    deps: set[str] = field(default_factory=set)
    test_deps: set[str] = field(default_factory=set)


def parse_arrows(text: str) -> dict[str, Room]:
    rooms = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, rest = line.split(":", 1)
        deps, _, test_deps = rest.partition("|")
        rooms[name.strip()] = Room(name.strip(), set(deps.split()), set(test_deps.split()))
    return rooms


def room_of(path: str, rooms: dict[str, Room]) -> str | None:
    """The room that owns `yeto/a/b/file.h`: the longest room name that is a folder of the path."""
    folder = path.removeprefix("yeto/").rsplit("/", 1)[0] if "/" in path else ""
    while folder:
        if folder in rooms:
            return folder
        folder = folder.rpartition("/")[0]
    return None


def find_cycle(rooms: dict[str, Room]) -> list[str] | None:
    state: dict[str, int] = {}
    trail: list[str] = []

    def visit(name: str) -> list[str] | None:
        state[name] = 1
        trail.append(name)
        for dep in sorted(rooms[name].deps & rooms.keys()):
            if state.get(dep) == 1:
                return trail[trail.index(dep) :] + [dep]
            if dep not in state:
                found = visit(dep)
                if found:
                    return found
        trail.pop()
        state[name] = 2
        return None

    for name in sorted(rooms):
        if name not in state:
            found = visit(name)
            if found:
                return found
    return None


def check_graph(rooms: dict[str, Room]) -> list[str]:
    breaches = []
    for room in rooms.values():
        if room.name not in FLOORS:
            breaches.append(f"{room.name}: no floor; add it to FLOORS and to ARCHITECTURE.md")
        for dep in sorted(room.deps | room.test_deps):
            if dep not in rooms:
                breaches.append(f"{room.name}: depends on {dep}, which is no room")
        for dep in sorted(room.deps & FLOORS.keys()):
            if FLOORS[dep] >= FLOORS.get(room.name, 99):
                breaches.append(f"{room.name} → {dep}: an arrow must point to a lower floor")
    cycle = find_cycle(rooms)
    if cycle:
        breaches.append(f"cycle: {' → '.join(cycle)}")
    return breaches


def sources_of(root: Path, room: str, rooms: dict[str, Room]) -> list[Path]:
    """Source files of the room's folder that belong to no room inside it."""
    files = []
    for path in sorted((root / "src" / "yeto" / room).rglob("*")):
        inside = "yeto/" + path.relative_to(root / "src" / "yeto").as_posix()
        if path.suffix in SOURCE_SUFFIXES and path.is_file() and room_of(inside, rooms) == room:
            files.append(path)
    return files


def check_file(path: Path, where: str, room: Room, rooms: dict[str, Room]) -> list[str]:
    is_test = path.name.endswith(TEST_SUFFIXES)
    allowed = {room.name, "base"} | room.deps | (room.test_deps if is_test else set())
    pure = room.name in PURE_ROOMS and not is_test
    breaches = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{where}:{number}"
        include = YETO_INCLUDE.match(line)
        if include:
            target = room_of(include[1], rooms)
            if target is None:
                breaches.append(f"{place}: {include[1]} lies in no room")
            elif target not in allowed:
                breaches.append(f"{place}: {room.name} has no arrow to {target}")
        if pure and IMPURE_INCLUDE.match(line):
            breaches.append(f"{place}: {room.name} knows no clock, thread, socket or file")
        code = line.split("//", 1)[0]
        if pure and IMPURE_CALL.search(code):
            breaches.append(f"{place}: {room.name} knows no clock, thread, socket or file")
    return breaches


def readme_uses(text: str) -> set[str]:
    """Rooms of the line "Uses: a, b (why).   Used by: …"; a dash means none."""
    found = re.search(r"^Uses:(.*?)(?:Used by:|$)", text, re.MULTILINE)
    named = re.sub(r"\([^)]*\)", "", found[1]).strip().rstrip(".").strip() if found else ""
    words = re.split(r"[,\s]+", named)
    return {word for word in words if word not in ("", "–", "-", "—", "none")}


def check_readme(root: Path, room: Room) -> list[str]:
    path = root / "src" / "yeto" / room.name / "README.md"
    if not path.is_file():
        return [f"src/yeto/{room.name}: no README.md"]
    told = readme_uses(path.read_text(encoding="utf-8")) - {"base"}
    declared = room.deps - {"base"}
    if told != declared:
        return [f"src/yeto/{room.name}/README.md: Uses {sorted(told)}, DEPS {sorted(declared)}"]
    return []


def purpose_of(root: Path, room: str) -> str:
    """The first line of the room's README after its name."""
    path = root / "src" / "yeto" / room / "README.md"
    first = path.read_text(encoding="utf-8").partition("\n")[0] if path.is_file() else ""
    return first.partition(" — ")[2].strip()


def room_table(root: Path, rooms: dict[str, Room]) -> str:
    """The table of ARCHITECTURE.md: floors upwards, within a floor by name."""
    lines = ["| floor | room | what it is | may use (`base` is implied) |", "|---:|---|---|---|"]
    for room in sorted(rooms.values(), key=lambda room: (FLOORS.get(room.name, 99), room.name)):
        deps = sorted(room.deps - {"base"}, key=lambda name: (FLOORS.get(name, 99), name))
        uses = ", ".join(deps) or "–"
        floor = FLOORS.get(room.name, "?")
        lines.append(f"| {floor} | `{room.name}` | {purpose_of(root, room.name)} | {uses} |")
    return "\n".join(lines)


def replace_table(text: str, table: str) -> str | None:
    """The text with its table replaced; nothing if it has no place for one."""
    before, _, rest = text.partition(TABLE_BEGIN)
    _, found, after = rest.partition(TABLE_END)
    return f"{before}{TABLE_BEGIN}\n{table}\n{TABLE_END}{after}" if found else None


def check_table(root: Path, rooms: dict[str, Room]) -> list[str]:
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    if replace_table(text, room_table(root, rooms)) != text:
        return [f"ARCHITECTURE.md: the table of rooms differs; {Path(__file__).name} --write"]
    return []


def check_tree(root: Path, arrows: str) -> list[str]:
    rooms = parse_arrows(arrows)
    if not rooms:
        return ["arrows.txt names no room"]
    breaches = check_graph(rooms) + check_table(root, rooms)
    for room in rooms.values():
        breaches += check_readme(root, room)
        for path in sources_of(root, room.name, rooms):
            breaches += check_file(path, path.relative_to(root).as_posix(), room, rooms)
    return breaches


def main() -> int:
    write = sys.argv[3:] == ["--write"]
    if len(sys.argv) != 3 and not write:
        print(__doc__)
        return 64
    root, arrows = Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8")
    if write:
        page = root / "ARCHITECTURE.md"
        text = replace_table(
            page.read_text(encoding="utf-8"), room_table(root, parse_arrows(arrows))
        )
        if text is not None:
            page.write_text(text, encoding="utf-8")
    breaches = check_tree(root, arrows)
    for breach in breaches:
        print(breach)
    print(f"{len(parse_arrows(arrows))} rooms, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
