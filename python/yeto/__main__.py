# SPDX-License-Identifier: Apache-2.0
"""`python -m yeto …` is the native `yeto` command: it replaces this process by it."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def find_executable() -> Path | None:
    """The native executable: next to this interpreter, in the user's scheme, or on PATH."""
    schemes = [sysconfig.get_path("scripts")]
    user_scheme = sysconfig.get_preferred_scheme("user")
    schemes.append(sysconfig.get_path("scripts", scheme=user_scheme))
    # `pip install --target DIR` puts scripts into DIR/bin, beside the package itself.
    schemes.append(str(Path(__file__).resolve().parent.parent / "bin"))
    for folder in schemes:
        candidate = Path(folder) / "yeto"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which("yeto")
    return Path(found) if found else None


def main() -> int:
    executable = find_executable()
    if executable is None:
        sys.stderr.write(
            "error[E_NOT_FOUND]: the native yeto executable was not found\n"
            "  where: the scripts folder of this Python and PATH\n"
            "  hint: install the wheel, or put the folder of a CMake build on PATH\n"
        )
        return 66
    os.execv(executable, [str(executable), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
