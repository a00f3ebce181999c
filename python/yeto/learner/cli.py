# SPDX-License-Identifier: Apache-2.0
"""Entry point of the learner: flags, then a check or an island; errors become exit codes."""

import os
import sys
import warnings
from collections.abc import Sequence

from yeto.errors import EXIT_CODES, YetoError
from yeto.learner.options import parse

# What the wheel does not bring along (the extra `train` of pyproject.toml).
_TRAIN_EXTRA = frozenset({"numpy", "peft", "safetensors", "tokenizers", "torch", "transformers"})


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the process exit code; the error's text goes to stderr."""
    try:
        options = parse(argv)
        _quiet_libraries()
        if options.check:
            from yeto.learner.check import run_check

            print(run_check(options))
            return 0
        from yeto.learner.island import run_island

        return run_island(options)
    except YetoError as error:
        sys.stdout.flush()
        sys.stderr.write(error.text())
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _TRAIN_EXTRA:
            raise
        sys.stderr.write(_missing_extra(str(error.name)).text())
        return EXIT_CODES["E_SETUP"]
    except RuntimeError as error:
        # The native boundary's errors carry their code; anything else is a bug and keeps its trace.
        exit_code = getattr(error, "exit_code", None)
        if exit_code is None:
            raise
        sys.stdout.flush()
        code = getattr(error, "code", "E_INTERNAL")
        text = str(error)
        sys.stderr.write(text if text.startswith("error[") else f"error[{code}]: {text}")
        sys.stderr.write("" if text.endswith("\n") else "\n")
        return int(exit_code)


def _missing_extra(module: str) -> YetoError:
    return YetoError(
        "E_SETUP",
        f"this Python has no module {module}",
        sys.executable,
        "install what training needs: pip install 'yeto[train]'",
    )


def _quiet_libraries() -> None:
    """Libraries print bars and advice of their own; a log should hold the run's lines only."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"(peft|transformers)\.")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
