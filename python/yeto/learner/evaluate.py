# SPDX-License-Identifier: Apache-2.0
"""Loss over held-out rows, and one sampled answer, with the values the adapter holds now."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from yeto.learner.batches import collate
from yeto.learner.loss import TargetLoss
from yeto.learner.model import Adapted
from yeto.text.encode import Encoded, begin_token
from yeto.text.template import ChatTemplate

NEW_TOKENS_MAX = 64
REPETITION_PENALTY = 1.1


def heldout_loss(
    adapted: Adapted,
    loss: TargetLoss,
    rows: Sequence[Encoded],
    batch_rows: int,
    between: Callable[[], None] = lambda: None,
) -> tuple[float, int]:
    """(mean negative log-likelihood per target, targets) over `rows`, without dropout.

    `between` is called before each batch and may raise to end the evaluation.
    """
    ordered = sorted(rows, key=lambda row: row.tokens)  # rows of like length need little padding
    adapted.model.eval()
    total, targets = 0.0, 0
    try:
        with torch.no_grad():
            for begin in range(0, len(ordered), batch_rows):
                between()
                batch = collate(ordered[begin : begin + batch_rows]).to(adapted.device)
                total += float(loss(batch))
                targets += len(batch.labels)
    finally:
        adapted.model.train()
    return total / max(1, targets), targets


def sample_answer(adapted: Adapted, tokenizer: Any, template: ChatTemplate, prompt: str) -> str:
    """The answer to `prompt` without randomness, at most NEW_TOKENS_MAX tokens.

    Small models fall into loops under plain greedy decoding: what was said is made less likely.
    """
    from transformers import GenerationConfig

    text = template.render([{"role": "user", "content": prompt}], None, True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    bos = begin_token(tokenizer)
    if bos is not None and ids[:1] != [bos]:
        ids = [bos, *ids]
    stops = sorted(template.stop_ids)
    config = GenerationConfig(
        max_new_tokens=NEW_TOKENS_MAX,
        do_sample=False,
        repetition_penalty=REPETITION_PENALTY,
        eos_token_id=stops,
        pad_token_id=stops[0],
    )
    inputs = torch.tensor([ids], device=adapted.device)
    adapted.model.eval()
    try:
        with torch.no_grad():
            out = adapted.model.generate(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), generation_config=config
            )
    finally:
        adapted.model.train()
    return str(tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)).strip()
