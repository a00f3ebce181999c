# SPDX-License-Identifier: Apache-2.0
"""`python -m yeto.learner`."""

import sys

from yeto.learner.cli import main

if __name__ == "__main__":
    sys.exit(main())
