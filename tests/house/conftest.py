# SPDX-License-Identifier: Apache-2.0
"""The scripts are programs, not a package; the tests import them by file name."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
