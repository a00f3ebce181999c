# SPDX-License-Identifier: Apache-2.0
"""The one exception of the Python side: a code, what, where, and what to do about it."""

# The same table as the native side's; only the codes that Python raises itself.
EXIT_CODES = {
    "E_USAGE": 64,
    "E_FLAG_UNKNOWN": 64,
    "E_TYPE": 64,
    "E_RANGE": 64,
    "E_CONFLICT": 64,
    "E_NOT_IN_BUILD": 64,
    "E_CONFIG": 65,
    "E_DATA": 65,
    "E_MODEL": 65,
    "E_NOT_FOUND": 66,
    "E_SETUP": 11,
    "E_UNREACHABLE": 69,
    "E_PROTOCOL": 69,
    "E_INTERNAL": 70,
    "E_CREDENTIALS": 77,
    "E_NON_FINITE": 80,
    "E_PREEMPTED": 81,
    "E_DAMAGED": 82,
    "E_IO": 1,
}


class YetoError(Exception):
    """An error whose text a user can act on. `exit_code` is the process exit code it ends with."""

    def __init__(self, code: str, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.where = where
        self.hint = hint
        self.exit_code = EXIT_CODES[code]

    def text(self) -> str:
        """`error[E_DATA]: what`, then `where` and `hint` lines; empty parts are left out."""
        lines = [f"error[{self.code}]: {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines) + "\n"
