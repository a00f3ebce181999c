# SPDX-License-Identifier: Apache-2.0
"""`python -m yeto.bridge NAME`: serves one kind of SDK on stdin and stdout until stdin ends."""

import importlib
import sys

from yeto.bridge.rpc import serve

# Imported only when asked for: each needs SDKs that the others do not.
PARTS = {"store": "yeto.bridge.store"}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PARTS:
        names = ", ".join(sorted(PARTS))
        sys.stderr.write(f"usage: python -m yeto.bridge NAME, one of: {names}\n")
        return 64
    serve(lambda: importlib.import_module(PARTS[arguments[0]]).METHODS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
