# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers, chat templates of well-known shapes, tiny models and a boundary for tests.

Everything is made here; nothing is fetched.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import ByteLevel as ByteLevelProcessor
from tokenizers.processors import Sequence, TemplateProcessing
from transformers import PreTrainedTokenizerFast

# One character of the byte-level alphabet stands for each byte; a few merges make longer tokens.
_MERGES = ["h e", "he l", "hel l", "hell o", "Ġ t", "Ġt h", "i n", "Ċ Ċ", "e r", "a n", ". Ċ"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TAGGED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ m['content'] }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The answer alone is marked: its stop token stands just behind the tag.
CHATML_TAGGED_SHORT = CHATML_TAGGED.replace(
    "<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>"
)
# The end mark of a turn and the line break after it are both marked.
CHATML_TAGGED_LONG = CHATML_TAGGED.replace(
    "<|im_end|>{% endgeneration %}{% else %}", "<|im_end|>\n{% endgeneration %}{% else %}"
).replace("{% endif %}\n{% endfor %}", "\n{% endif %}{% endfor %}")
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>"
    "\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA3_TAGGED = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>"
    "\n\n{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim }}<|eot_id|>"
    "{% endgeneration %}{% else %}{{ m['content'] | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# Thinking is shown only after the last question, where an empty block stands for none.
QWEN3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set text = m['content'] %}{% set thought = '' %}"
    "{% if m['role'] == 'assistant' %}{% if m['reasoning_content'] %}"
    "{% set thought = m['reasoning_content'] %}{% elif '</think>' in text %}"
    "{% set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n{% if loop.index0 > ns.last %}<think>\n{{ thought }}\n</think>\n\n"
    "{% endif %}{{ text }}<|im_end|>\n{% else %}<|im_start|>{{ m['role'] }}\n{{ text }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Knows no system role, and no two turns of one role in a row.
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "chatml-tag": CHATML_TAGGED,
    "chatml-tag-short": CHATML_TAGGED_SHORT,
    "chatml-tag-long": CHATML_TAGGED_LONG,
    "llama3": LLAMA3,
    "llama3-tag": LLAMA3_TAGGED,
    "qwen3": QWEN3,
    "strict": STRICT,
}
METHODS = {
    "chatml": "prefix",
    "chatml-tag": "tag",
    "chatml-tag-short": "tag",
    "chatml-tag-long": "tag",
    "llama3": "prefix",
    "llama3-tag": "tag",
    "qwen3": "probe",
    "strict": "prefix",
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "chatml": {
        "specials": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "eos": "<|im_end|>",
        "bos": None,
        "pad": "<|im_end|>",
    },
    "qwen3": {
        "specials": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "eos": "<|im_end|>",
        "bos": None,
        "pad": "<|endoftext|>",
        "plain": ["<think>", "</think>"],
        "nfc": True,
    },
    "llama3": {
        "specials": [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ],
        "eos": "<|end_of_text|>",
        "bos": "<|begin_of_text|>",
        "pad": "<|end_of_text|>",
    },
    "strict": {
        "specials": ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"],
        "eos": "<eos>",
        "bos": "<bos>",
        "pad": "<pad>",
    },
}


def make_tokenizer(shape: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the special tokens and the template of `shape`."""
    family = _FAMILIES[shape.split("-")[0]]
    vocabulary = {
        symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    merges = []
    for merge in _MERGES:
        left, right = merge.split(" ")
        merges.append((left, right))
        vocabulary.setdefault(left + right, len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    if family.get("nfc"):
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in family["specials"]])
    backend.add_tokens([AddedToken(t, normalized=False) for t in family.get("plain", [])])
    steps: list[Any] = [ByteLevelProcessor(trim_offsets=False)]
    if family["bos"]:
        bos = family["bos"]
        steps.append(
            TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A $B",
                special_tokens=[(bos, backend.token_to_id(bos))],
            )
        )
    backend.post_processor = Sequence(steps)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=family["eos"],
        bos_token=family["bos"],
        pad_token=family["pad"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATES[shape]
    return tokenizer


def make_model(folder: Path, shape: str = "llama3", seed: int = 0, **changes: Any) -> Path:
    """A tiny random causal language model with its tokenizer, saved as an ordinary folder."""
    import torch
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    tokenizer = make_tokenizer(shape)
    settings: dict[str, Any] = dict(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    settings.update(changes)
    torch.manual_seed(seed)
    model: Any
    if shape.startswith("qwen3"):
        model = Qwen3ForCausalLM(Qwen3Config(**settings))
    elif shape == "strict":
        model = Gemma2ForCausalLM(Gemma2Config(**settings))
    else:
        model = LlamaForCausalLM(LlamaConfig(**settings))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def talk(*turns: str, system: str | None = None) -> list[dict[str, Any]]:
    """Messages of a conversation: user and assistant by turns, the user first."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    roles = ("user", "assistant")
    messages.extend({"role": roles[i % 2], "content": text} for i, text in enumerate(turns))
    return messages


def write_rows(path: Path, conversations: list[list[dict[str, Any]]]) -> Path:
    lines = [json.dumps({"messages": c}, ensure_ascii=False) for c in conversations]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class FakeBoundary:
    """A scripted boundary: records the calls, drains after `drain_after` steps, and at the end
    overwrites the tensors by `final` (a function of the tensor's index) if given."""

    def __init__(
        self,
        tensors: list[Any],
        drain_after: int | None = None,
        seat: int = 0,
        final: Any = None,
        lowest: bool = True,
    ) -> None:
        self.tensors = tensors
        self.drain_after = drain_after
        self.seat = seat
        self.final = final
        self.lowest = lowest
        self.calls: list[tuple[Any, ...]] = []
        self.metrics: list[dict[str, Any]] = []
        self.steps = 0
        self.tokens = 0

    def wait_ready(self, timeout_s: float = 0.0) -> dict[str, Any]:
        self.calls.append(("wait_ready",))
        return {
            "seat": self.seat,
            "term": 1,
            "global_step": 0,
            "live": [0, 1],
            "joined_late": False,
            "data_leases": False,
        }

    def step(self, tokens: int) -> dict[str, Any]:
        self.steps += 1
        self.tokens += tokens
        self.calls.append(("step", tokens))
        return {
            "applied": [(0, self.steps, False)],
            "pushed": [(0, self.steps, 100)],
            "global_step": self.steps,
            "run_tokens": 2 * self.tokens,
            "live": [0, 1],
            "versions": [self.steps, 0],
            "staleness_max": 1,
            "draining": self.drain_after is not None and self.steps >= self.drain_after,
            "connected": True,
            "blocked_ms": 0.5,
            "bytes_pushed": 100 * self.steps,
            "bytes_received": 100 * self.steps,
            "pulls_waiting": 0,
        }

    def set_phase(self, phase: str) -> None:
        self.calls.append(("phase", phase))

    def metric(self, text: str) -> None:
        self.metrics.append(json.loads(text))

    def finalize(self, reason: str = "drain", timeout_s: float = 0.0) -> dict[str, Any]:
        self.calls.append(("finalize", reason))
        if self.final is not None:
            for index, tensor in enumerate(self.tensors):
                tensor[...] = self.final(index, tensor)
        return {"global_step": 7, "versions": [7], "live": [0, 1], "lowest": self.lowest}

    def leave(self, reason: str) -> None:
        self.calls.append(("leave", reason))

    def close(self) -> None:
        self.calls.append(("close",))
