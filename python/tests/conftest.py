# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures. The package is taken from the source tree, offline, on few threads."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
_HERE = Path(__file__).resolve().parent
for _folder in (_HERE, _HERE.parent):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import pytest  # noqa: E402
from chat_fixtures import make_model, talk, write_rows  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("yeto", max_examples=60, deadline=None, print_blob=True)
settings.load_profile("yeto")


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "llama", "llama3")


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen", "qwen3")


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve one-turn rows and one of two turns, lengths that differ."""
    rows = [talk(f"say {i} " + "please " * (i % 3), f"number {i} " + "na" * i) for i in range(12)]
    rows.append(talk("hello there", "hello", "and then?", "the end", system="be short"))
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", rows)


@pytest.fixture(scope="session")
def heldout_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [talk(f"tell {i}", f"number {i} is here") for i in range(5)]
    return write_rows(tmp_path_factory.mktemp("data") / "heldout.jsonl", rows)
