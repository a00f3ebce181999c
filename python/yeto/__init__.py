# SPDX-License-Identifier: Apache-2.0
"""Yeto: post-training on islands that exchange weights through an asynchronous syncer.

Importing this package pulls in no framework; the rooms below it do so when they are used.
"""

from importlib import metadata


def version() -> str | None:
    """The installed version of Yeto, or None when it runs from a source tree."""
    try:
        return metadata.version("yeto")
    except metadata.PackageNotFoundError:
        return None
