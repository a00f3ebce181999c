# SPDX-License-Identifier: Apache-2.0
"""Goal: a broken tree is seen. Method: small trees in a temporary folder, one breach each."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import arrows

README = "# {room} — x\nIn: –\nOut: –\nUses: {uses}        Used by: –\n"


class Tree(unittest.TestCase):
    """A sound tree of four rooms; each test breaks one thing."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        self.lines = {
            "base": "base:  | ",
            "tensor": "tensor: base | ",
            "merge": "merge: tensor base | codec",
            "codec": "codec: tensor base | ",
        }
        for room, uses in (
            ("base", "–"),
            ("tensor", "base."),
            ("merge", "tensor"),
            ("codec", "tensor"),
        ):
            self.write(f"{room}/README.md", README.format(room=room, uses=uses))
            self.write(f"{room}/{room}.h", '#include "yeto/base/base.h"\n')
        self.write("merge/merge.cc", '#include <vector>\n#include "yeto/tensor/tensor.h"\n')

        self.write_page()

    def write_page(self) -> None:
        """ARCHITECTURE.md as --write would leave it."""
        rooms = arrows.parse_arrows("\n".join(self.lines.values()))
        table = arrows.room_table(self.root, rooms)
        page = f"{arrows.TABLE_BEGIN}\n{table}\n{arrows.TABLE_END}\n"
        (self.root / "ARCHITECTURE.md").write_text(page, encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        path = self.root / "src" / "yeto" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def breaches(self) -> list[str]:
        return arrows.check_tree(self.root, "\n".join(self.lines.values()) + "\n")

    def assert_breach(self, part: str) -> None:
        found = self.breaches()
        self.assertTrue(any(part in breach for breach in found), f"{part!r} not in {found}")

    def test_sound_tree_has_no_breach(self) -> None:
        self.assertEqual(self.breaches(), [])

    def test_include_without_arrow_is_a_breach(self) -> None:
        self.write("merge/merge.cc", '#include "yeto/codec/codec.h"\n')
        self.assert_breach("merge.cc:1: merge has no arrow to codec")

    def test_a_test_may_use_its_test_deps(self) -> None:
        self.write("merge/merge_test.cc", '#include "yeto/codec/codec.h"\n')
        self.assertEqual(self.breaches(), [])

    def test_a_test_may_not_use_other_rooms(self) -> None:
        self.write("codec/codec_test.cc", '#include "yeto/merge/merge.h"\n')
        self.assert_breach("codec has no arrow to merge")

    def test_include_of_no_room_is_a_breach(self) -> None:
        self.write("merge/merge.cc", '#include "yeto/nowhere/x.h"\n')
        self.assert_breach("yeto/nowhere/x.h lies in no room")

    def test_cycle_is_named(self) -> None:
        self.lines["tensor"] = "tensor: merge base | "
        self.assert_breach("cycle: tensor → merge → tensor")

    def test_arrow_upwards_is_a_breach(self) -> None:
        self.lines["tensor"] = "tensor: codec base | "
        self.assert_breach("tensor → codec: an arrow must point to a lower floor")

    def test_arrow_along_a_floor_is_a_breach(self) -> None:
        self.lines["merge"] = "merge: tensor codec base | "
        self.assert_breach("merge → codec: an arrow must point to a lower floor")

    def test_unknown_room_needs_a_floor(self) -> None:
        self.lines["drawer"] = "drawer: base | "
        self.assert_breach("drawer: no floor")

    def test_arrow_to_no_room_is_a_breach(self) -> None:
        self.lines["merge"] = "merge: tensor ghost base | codec"
        self.assert_breach("merge: depends on ghost, which is no room")

    def test_readme_must_tell_deps(self) -> None:
        self.write("merge/README.md", README.format(room="merge", uses="tensor, codec"))
        self.assert_breach("merge/README.md: Uses ['codec', 'tensor'], DEPS ['tensor']")

    def test_readme_may_say_why_in_brackets(self) -> None:
        self.write("merge/README.md", README.format(room="merge", uses="tensor (layout only)."))
        self.assertEqual(self.breaches(), [])

    def test_missing_readme_is_a_breach(self) -> None:
        (self.root / "src/yeto/codec/README.md").unlink()
        self.assert_breach("src/yeto/codec: no README.md")

    def test_pure_room_names_no_thread_clock_socket_or_file(self) -> None:
        for include in ("<thread>", "<chrono>", "<fstream>", "<asio/ip/tcp.hpp>", "<unistd.h>",
                        '"yeto/base/files.h"'):  # fmt: skip
            with self.subTest(include=include):
                self.write("merge/merge.cc", f"#include {include}\n")
                self.assert_breach("merge.cc:1: merge knows no clock, thread, socket or file")

    def test_pure_room_calls_no_clock(self) -> None:
        self.write("merge/merge.cc", "auto t = monotonic_now();\n")
        self.assert_breach("merge.cc:1: merge knows no clock")

    def test_comment_about_a_clock_is_fine(self) -> None:
        self.write("merge/merge.cc", "// never monotonic_now() here\n")
        self.assertEqual(self.breaches(), [])

    def test_room_inside_a_room_owns_its_files(self) -> None:
        self.lines["sync/round"] = "sync/round: base | "
        self.lines["sync/core"] = "sync/core: sync/round base | "
        self.write("sync/round/README.md", README.format(room="sync/round", uses="base"))
        self.write("sync/core/README.md", README.format(room="sync/core", uses="sync/round"))
        self.write("sync/core/core.cc", '#include "yeto/sync/round/round.h"\n')
        self.write_page()
        self.assertEqual(self.breaches(), [])

    def test_page_must_show_the_same_arrows(self) -> None:
        self.lines["merge"] = "merge: base | codec"
        self.assert_breach("ARCHITECTURE.md: the table of rooms differs")

    def test_page_without_a_table_is_a_breach(self) -> None:
        (self.root / "ARCHITECTURE.md").write_text("no table\n", encoding="utf-8")
        self.assert_breach("ARCHITECTURE.md: the table of rooms differs")

    def test_table_has_floor_purpose_and_arrows(self) -> None:
        rooms = arrows.parse_arrows("\n".join(self.lines.values()))
        self.assertIn("| 2 | `merge` | x | tensor |", arrows.room_table(self.root, rooms))

    def test_empty_arrows_file_is_a_breach(self) -> None:
        self.assertEqual(arrows.check_tree(self.root, ""), ["arrows.txt names no room"])


if __name__ == "__main__":
    unittest.main()
