# SPDX-License-Identifier: Apache-2.0
"""Real text that every machine with Python has: the standard library.

Two domains: `prose`, its docstrings and the topics of pydoc's help, and `code`, its modules without
their docstrings and comments. A model is pretrained on the first and adapted to the second.
"""

from __future__ import annotations

import ast
import hashlib
import pydoc_data.topics
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
HELD_OUT_EACH = 20  # every twentieth module of `code`
NOT_READ = {
    "test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages",
    "turtledemo", "distutils", "ensurepip", "__pycache__",
}  # fmt: skip
Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Corpus:
    """Token ids (int64, one dimension) of each domain; the held-out part is never trained on."""

    prose: torch.Tensor
    code: torch.Tensor
    held_out: torch.Tensor  # of `code`
    sha256: str  # of all text, so that figures name what they were measured on


def modules() -> Iterator[ast.Module]:
    """Of the standard library, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if NOT_READ & set(path.relative_to(root).parts):
            continue
        try:
            yield ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue


def read_domains() -> tuple[list[str], list[str]]:
    """Prose and code, as lists of texts."""
    prose, code = [], []
    for tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, Documented) and (text := ast.get_docstring(node)):
                prose.append(text)
                node.body = node.body[1:] or [ast.Pass()]
        code.append(ast.unparse(tree))
    topics = pydoc_data.topics.topics
    return prose + [topics[name] for name in sorted(topics)], code


def load() -> Corpus:
    prose, code = read_domains()
    held = code[HELD_OUT_EACH // 2 :: HELD_OUT_EACH]
    kept = [text for i, text in enumerate(code) if i % HELD_OUT_EACH != HELD_OUT_EACH // 2]
    texts = ["\n\n".join(part) for part in (prose, kept, held)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:2], trainer)
    ids = [torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64) for text in texts]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return Corpus(ids[0], ids[1], ids[2], digest)
