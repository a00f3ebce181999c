# SPDX-License-Identifier: Apache-2.0
"""Writes the pages of docs/reference that follow from the program itself.

    .venv/bin/python scripts/reference.py [--write]

cli.md is the help of every verb, errors.md the table src/yeto/base/errors.def. Without --write it
says which page differs and exits with 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
# In the order in which a user meets them; `syncer` is started by launch. `learner` is left out: its
# help is laid out by Python's argparse, whose form changes with the Python version.
VERBS = ["launch", "status", "logs", "stop-run", "down", "syncer", "sim"]

CLI_HEAD = """\
# Command line

Made from `yeto … --help` by `make docs`; a test keeps it true. Exit codes are in
[errors.md](errors.md). `yeto learner --help` prints the flags of one island's process, which launch
passes on.
"""
ERRORS_HEAD = """\
# Errors and exit codes

Made from `src/yeto/base/errors.def` by `make docs`; a test keeps it true.

A refusal says what, where, why and what to do:

```
error[E_GPU_UNKNOWN]: no card of the name "gpu"
  local:1xgpu
          ^^^
why: …
hint: …
```

| exit | when |
|---:|---|
| 0 | success; answered "no"; detached from a log |
| 1 | the run failed, or the operating system reported an error |
| 130 | interrupted before anything was made |

The others follow from the error code:

| code | exit | meaning |
|---|---:|---|
"""
ERRORS_FOOT = """
A learner also ends with 81: it was asked to end (TERM), finished its step and left; start it again
to continue. The controller does not start an island again after 64, 65, 80 or 82.
"""


class PageError(Exception):
    """A page cannot be made; the text says why."""


def program() -> str:
    return os.environ.get("YETO_BIN") or str(ROOT / ".venv" / "bin" / "yeto")


def help_of(*verb: str) -> str:
    env = dict(os.environ, COLUMNS="100", NO_COLOR="1")
    done = subprocess.run(
        [program(), *verb, "--help"], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PageError(f"`yeto {' '.join(verb)} --help` ended with {done.returncode}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def cli_page() -> str:
    parts = [CLI_HEAD, f"```\n{help_of()}\n```\n"]
    parts += [f"## yeto {verb}\n\n```\n{help_of(verb)}\n```\n" for verb in VERBS]
    return "\n".join(parts)


def errors_page() -> str:
    table = (ROOT / "src" / "yeto" / "base" / "errors.def").read_text()
    rows = re.findall(r'YETO_ERROR\(\w+, "(E_\w+)", (\d+),\s*"([^"]+)"\)', table)
    if not rows:
        raise PageError("errors.def has no row")
    lines = [f"| `{code}` | {exit_code} | {meaning} |" for code, exit_code, meaning in rows]
    return ERRORS_HEAD + "\n".join(lines) + "\n" + ERRORS_FOOT


def pages() -> dict[str, str]:
    return {"cli.md": cli_page(), "errors.md": errors_page()}


def differing() -> list[str]:
    """Names of the pages that are not what the program says."""
    out = []
    for name, text in pages().items():
        path = PAGES / name
        if not path.is_file() or path.read_text() != text:
            out.append(name)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes docs/reference from the program.")
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    try:
        if write:
            PAGES.mkdir(parents=True, exist_ok=True)
            for name, text in pages().items():
                (PAGES / name).write_text(text)
            return 0
        old = differing()
    except PageError as error:
        print(f"reference: {error}", file=sys.stderr)
        return 1
    for name in old:
        print(f"docs/reference/{name} differs from the program; write it again: make docs")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
