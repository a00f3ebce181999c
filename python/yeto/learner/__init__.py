# SPDX-License-Identifier: Apache-2.0
"""The learner of one island: `python -m yeto.learner`."""
