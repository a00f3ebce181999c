# SPDX-License-Identifier: Apache-2.0
"""The step boundary as the loop sees it: the native client, or an island that trains alone."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from yeto.learner.batches import Share, StepRows, cut_step
from yeto.learner.model import Adapted
from yeto.learner.options import Options
from yeto.text.order import Permutation

METRIC_BYTES_MAX = 8 << 10


class Boundary(Protocol):
    """What the loop calls. `yeto._core.Boundary` has this shape."""

    def wait_ready(self, timeout_s: float = 0.0) -> dict[str, Any]: ...
    def step(self, tokens: int) -> dict[str, Any]: ...
    def set_phase(self, phase: str) -> None: ...
    def metric(self, text: str) -> None: ...
    def request_rows(self, rows: int, count: int) -> tuple[int, int, int, int]: ...
    def finalize(self, reason: str = "drain", timeout_s: float = 0.0) -> dict[str, Any]: ...
    def leave(self, reason: str) -> None: ...
    def close(self) -> None: ...


class Alone:
    """The boundary of an island without a syncer: nothing is exchanged, nothing ever drains."""

    def __init__(self, seat: int) -> None:
        self._seat = seat
        self._tokens = 0

    def wait_ready(self, timeout_s: float = 0.0) -> dict[str, Any]:
        return {
            "seat": self._seat,
            "term": 0,
            "global_step": 0,
            "live": [self._seat],
            "joined_late": False,
            "data_leases": False,
        }

    def step(self, tokens: int) -> dict[str, Any]:
        self._tokens += tokens
        return {
            "applied": [],
            "pushed": [],
            "global_step": 0,
            "run_tokens": self._tokens,
            "live": [self._seat],
            "versions": [],
            "staleness_max": 0,
            "draining": False,
            "connected": False,
            "blocked_ms": 0.0,
            "bytes_pushed": 0,
            "bytes_received": 0,
            "pulls_waiting": 0,
        }

    def set_phase(self, phase: str) -> None:
        pass

    def metric(self, text: str) -> None:
        pass

    def request_rows(self, rows: int, count: int) -> tuple[int, int, int, int]:
        raise RuntimeError("an island that trains alone splits its rows itself")

    def finalize(self, reason: str = "drain", timeout_s: float = 0.0) -> dict[str, Any]:
        return {"global_step": 0, "versions": [], "live": [self._seat], "lowest": True}

    def leave(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Mirrors:
    """Pinned host copies of device tensors, kept equal by the two callbacks of the boundary.

    Both are called on the thread that calls `step`, `wait_ready` or `finalize`, so no step is
    running while a tensor is copied.
    """

    device: list[torch.nn.Parameter]
    host: list[torch.Tensor]
    wait: Callable[[], None]  # until the copies that were ordered are done

    def refresh(self, indices: list[int]) -> None:
        """Device to host, before the boundary reads."""
        for index in indices:
            self.host[index].copy_(self.device[index].detach(), non_blocking=True)
        self.wait()

    def push(self, indices: list[int]) -> None:
        """Host to device, after the boundary has written."""
        with torch.no_grad():
            for index in indices:
                self.device[index].copy_(self.host[index], non_blocking=True)
        # The host copy may be written again as soon as this returns.
        self.wait()


def host_views(adapted: Adapted) -> tuple[list[Any], Mirrors | None]:
    """Arrays the native side may read and write in place, and the mirrors behind them.

    On the CPU they are the parameters' own memory, so an applied broadcast needs no copy.
    """
    if adapted.device.type == "cpu":
        return [tensor.detach().numpy() for tensor in adapted.tensors], None
    host = [
        torch.empty(tensor.shape, dtype=torch.float32, pin_memory=True)
        for tensor in adapted.tensors
    ]
    mirrors = Mirrors(adapted.tensors, host, lambda: torch.cuda.current_stream().synchronize())
    mirrors.refresh(list(range(len(host))))
    return [tensor.numpy() for tensor in host], mirrors


def connect(options: Options, adapted: Adapted, contract: dict[str, str]) -> Boundary:
    """The boundary of this island; it begins to join at once."""
    if options.syncer is None:
        return Alone(options.seat or 0)
    from yeto._core import Boundary as NativeBoundary

    views, mirrors = host_views(adapted)
    return NativeBoundary(
        syncer=options.syncer,
        run_id=options.run_id,
        seat=options.seat,
        token_file=options.token_file,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        tls_ca=options.tls_ca,
        insecure=options.insecure,
        names=adapted.names,
        tensors=views,
        fragments=options.fragments,
        pattern=options.fragment_pattern,
        matrix_merge=options.matrix_merge,
        contract=contract,
        before_read=mirrors.refresh if mirrors else None,
        after_write=mirrors.push if mirrors else None,
        streams=options.streams,
        max_alone_s=options.max_alone,
        device_text=options.device_text or str(adapted.device),
    )


def leased_steps(boundary: Boundary, share: Share) -> Iterator[StepRows]:
    """The steps of an island whose rows the syncer hands out, until nothing is left.

    A position leads to the same row on every island: rows are permuted per epoch by the seed.
    """
    full = min(share.micro_batch * share.grad_accum, share.count)
    permutation, of_epoch = None, -1
    while True:
        rows: list[int] = []
        while len(rows) < full:
            epoch, first, count, stride = boundary.request_rows(share.count, full - len(rows))
            if count == 0:
                break
            if permutation is None or epoch != of_epoch:
                permutation, of_epoch = Permutation(share.count, share.seed, epoch), epoch
            rows += [permutation[first + i * stride] for i in range(count)]
        if not rows:
            return
        yield cut_step(rows, share.micro_batch, of_epoch)


def contract(options: Options, facts: dict[str, str]) -> dict[str, str]:
    """What all islands of a run must have in common, by name; `facts` holds the digests."""
    recipe = {
        "type": "lora",
        "r": options.lora_r,
        "alpha": options.lora_alpha,
        "dropout": options.lora_dropout,
        "targets": facts["targets"],
        "seed": options.seed,
        "train_on": options.train_on,
        "mask": facts["mask"],
        "overlong": options.overlong,
    }
    return {
        "base-model": facts["base"],
        "tokenizer": facts["tokenizer"],
        "template": facts["template"],
        "recipe": json.dumps(recipe, sort_keys=True),
        "data": facts["data"],
        "seq-len": str(options.seq_len),
        "loss": "cross_entropy",
    }
