# SPDX-License-Identifier: Apache-2.0
"""Real text that every machine with Python has: the language's own documentation.

Two domains: `library`, the docstrings of the standard library, and `language`, the topics of
pydoc's help. A model is pretrained on the first and adapted to the second.
"""

from __future__ import annotations

import ast
import hashlib
import pydoc_data.topics
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
HELD_OUT_SHARE = 0.1


@dataclass(frozen=True)
class Corpus:
    """Token ids (int64, one dimension) of each domain; the held-out part is never trained on."""

    library: torch.Tensor
    language: torch.Tensor
    held_out: torch.Tensor  # of `language`
    sha256: str  # of all text, so that figures name what they were measured on


def library_text() -> str:
    """Docstrings of the modules of the standard library, in the order of their paths."""
    parts = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    parts.append(text)
    return "\n\n".join(parts)


def language_text() -> str:
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def load() -> Corpus:
    texts = [library_text(), language_text()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    library, language = (
        torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64) for text in texts
    )
    kept = int(len(language) * (1 - HELD_OUT_SHARE))
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return Corpus(library, language[:kept], language[kept:], digest)
