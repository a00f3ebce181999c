# SPDX-License-Identifier: Apache-2.0
"""The far side of the native program's bridge: one child process per kind of SDK."""
