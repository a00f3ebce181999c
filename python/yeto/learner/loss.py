# SPDX-License-Identifier: Apache-2.0
"""Summed cross-entropy over target positions, with logits only where there is a target.

The head is applied to the hidden states of target positions in chunks; the loss and its gradient
to the hidden states are made in the same pass, so full logits never exist. A model whose head does
more than this file knows is found by `agrees` and then goes the plain way, through its own forward.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

_CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
_PROBE_TARGETS = 64


@dataclass(frozen=True)
class Batch:
    """A padded micro-batch: `ids` int64 [rows, length]; the token at flat position
    `positions[i] + 1` of `ids` is predicted at `positions[i]` and is `labels[i]`. Padding stands
    on the right, where a causal model's real tokens never look."""

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    tokens: int
    places: tuple[str, ...]

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.ids.to(device),
            self.positions.to(device),
            self.labels.to(device),
            self.tokens,
            self.places,
        )


class _HeadLoss(torch.autograd.Function):
    """Sum of -log p(label) of a frozen linear head over [targets, width] hidden states."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        softcap: float | None,
    ) -> torch.Tensor:
        needs_grad = hidden.requires_grad
        row_bytes = weight.shape[0] * 4
        chunk = max(1, _CHUNK_BYTES.get(hidden.device.type, 64 << 20) // row_bytes)
        grad = torch.empty_like(hidden) if needs_grad else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for begin in range(0, hidden.shape[0], chunk):
            part = slice(begin, begin + chunk)
            logits = functional.linear(hidden[part], weight, bias).float()
            bent = None
            if softcap is not None:
                bent = torch.tanh(logits / softcap)
                logits = bent * softcap
            label = labels[part].unsqueeze(1)
            log_sum = torch.logsumexp(logits, dim=1, keepdim=True)
            total += (log_sum - logits.gather(1, label)).sum()
            if grad is not None:
                logits.sub_(log_sum).exp_()
                logits.scatter_add_(1, label, torch.full_like(label, -1, dtype=logits.dtype))
                if bent is not None:
                    logits.mul_(1 - bent * bent)
                grad[part] = logits.to(weight.dtype) @ weight
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None, None, None


class TargetLoss:
    """Computes the summed loss of a micro-batch for one model. `model` is the adapted model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._decoder = base.get_decoder() if hasattr(base, "get_decoder") else None
        self._head = base.get_output_embeddings()
        text_config = base.config.get_text_config()
        self._softcap = getattr(text_config, "final_logit_softcapping", None)
        self.selective = (
            self._decoder is not None
            and self._decoder is not base
            and type(self._head) is torch.nn.Linear
        )

    def __call__(self, batch: Batch) -> torch.Tensor:
        """float32 scalar: the sum of the negative log-likelihoods of the batch's targets."""
        return self._selected(batch) if self.selective else self._plain(batch)

    def agrees(self, batch: Batch) -> bool:
        """Compares both ways on a few targets; on a difference the plain way is taken for good."""
        if not self.selective:
            return False
        limit = min(_PROBE_TARGETS, len(batch.labels))
        small = Batch(batch.ids, batch.positions[:limit], batch.labels[:limit], 0, batch.places)
        tolerance = 1e-5 if next(self._model.parameters()).dtype == torch.float32 else 1e-2
        training = self._model.training
        self._model.eval()
        with torch.no_grad():
            try:
                chosen = float(self._selected(small))
                plain = float(self._plain(small))
                self.selective = abs(chosen - plain) <= tolerance * max(1.0, abs(plain))
            except (AttributeError, TypeError):
                self.selective = False
        self._model.train(training)
        return self.selective

    def _selected(self, batch: Batch) -> torch.Tensor:
        assert self._decoder is not None
        out = self._decoder(input_ids=batch.ids, use_cache=False)
        hidden = out.last_hidden_state.flatten(0, 1).index_select(0, batch.positions)
        return _HeadLoss.apply(
            hidden.to(self._head.weight.dtype),
            self._head.weight,
            self._head.bias,
            batch.labels,
            self._softcap,
        )

    def _plain(self, batch: Batch) -> torch.Tensor:
        logits = self._model(input_ids=batch.ids, use_cache=False).logits
        chosen = logits.flatten(0, 1).index_select(0, batch.positions).float()
        return functional.cross_entropy(chosen, batch.labels, reduction="sum")
