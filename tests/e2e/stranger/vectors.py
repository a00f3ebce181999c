# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/protocol_vectors.json from the pages alone; yeto's own code must agree.

python tests/e2e/stranger/vectors.py > tests/golden/protocol_vectors.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import merge
import numpy as np
import numpy.typing as npt
import values
import wire
from values import Layout, Tensor, Vector

TOKEN = bytes(range(32))
NONCE = bytes(range(0x40, 0x60))
KEY_NAME = "yeto-seat-1"
RUN_STEPS = 100
# 300 values: the last q4 block is not full; every level of q4 and both signs occur.
LADDER = np.array(
    [(-1) ** i * 2.0 ** -(i % 9) * (1 + i % 5 / 8) for i in range(300)], np.float32
)  # fmt: skip


def layout() -> Layout:
    tensors = [
        Tensor("model.embed_tokens.weight", (6, 2), values.AVG),
        Tensor("model.layers.0.mlp.weight", (4, 3), values.RDA),
        Tensor("model.norm.bias", (5,), values.RDA),
    ]
    return Layout(tensors, [[(0, 0, 12)], [(1, 0, 8)], [(1, 8, 4), (2, 0, 5)]])


def fields_of(name: str, side: str) -> tuple[int, Any]:
    if side == "L":
        return wire.SPEAK[name]
    number = next(n for n, (known, _) in wire.HEAR.items() if known == name)
    return number, wire.HEAR[number][1]


def plain(kind: str, value: Any) -> Any:
    """A field as `wire.encode` wants it, from its JSON form."""
    if kind == "*u8" or kind.startswith("b"):
        return bytes.fromhex(value)
    if kind.startswith("*"):
        return [plain(kind[1:], one) for one in value]
    if kind.startswith("("):
        kinds = kind[1:-1].split()
        return [plain(k, v) for k, v in zip(kinds, value.values(), strict=True)]
    return value


def payload(name: str, side: str, fields: dict[str, Any]) -> tuple[int, bytes]:
    number, kinds = fields_of(name, side)
    return number, b"".join(wire.encode(kind, plain(kind, fields[f])) for f, kind in kinds)


def frame(name: str, side: str, sequence: int, **fields: Any) -> dict[str, Any]:
    number, body = payload(name, side, fields)
    made = wire.frame(number, body, sequence).hex()
    return {
        "name": name, "from": side, "sequence": sequence, "fields": fields, "frame": made,
    }  # fmt: skip


def proved(name: str, **fields: Any) -> dict[str, Any]:
    _, body = payload(name, "L", {**fields, "proof": bytes(32).hex()})
    key = wire.key_of(TOKEN, KEY_NAME)
    return {**fields, "proof": wire.hmac.digest(key, NONCE + body, hashlib.sha256).hex()}


def frames() -> list[dict[str, Any]]:
    session, run = (bytes([0xA5]) * 16).hex(), layout()
    body = values.encode(wire.F32, np.array([1, -0.5, 0.25, 0], np.float32))
    hello = proved(
        "HELLO", minor=0, run_id="demo", role=0, seat=1, incarnation=0x1122334455667788,
        session=bytes(16).hex(), layout=hashlib.sha256(run.encode()).hexdigest(),
        values=run.values(), contract=[{"name": "base model", "hash": "0102030405060708"}],
        held=[{"term": 1, "version": version} for version in (7, 6, 6)], tokens=4096,
        local_step=32, streams=2, device="cpu",
    )  # fmt: skip
    settings = {
        "sync_interval_steps": 24, "merge_alpha": 0.5, "delta_blended": 1, "lockstep": 0,
        "max_lag": 2, "total_steps": RUN_STEPS, "data_leases": 0, "fixed_roster": 0,
    }  # fmt: skip
    offer = {
        "transfer": 3, "kind": 2, "term": 2, "fragment": 1, "version": 0, "base_version": 6,
        "codec": 0, "bytes": 16, "part": 0, "parts": 1, "first_value": 0, "digest": bytes(16).hex(),
        "round": 20, "attempt": 1, "c_steps": 8, "c_tokens": 1024, "norm": 1.5,
    }  # fmt: skip
    digests = [hashlib.sha256(bytes([p])).hexdigest() for p in range(3)]
    final = {"global_step": 103, "versions": [35, 34, 34], "digests": digests}
    return [
        frame("CHALLENGE", "S", 0, nonce=NONCE.hex(), term=2, minor=0),
        frame("HELLO", "L", 0, **hello),
        frame("WELCOME", "S", 1, seat=1, session=session, resumed=0, broadcast_codec=2,
              push_codec=2, chunk_bytes=1 << 20, heartbeat_ms=1000, lease_ms=5000, term=2,
              valid=[6, 6, 6], versions=[6, 6, 6], global_step=18, durable_step=18,
              seat_tokens=4096, settings=settings),
        frame("REFUSED", "S", 1, code=5, retryable=0, text="the layout differs",
              tensors=["0011223344556677"]),
        frame("ATTACH", "L", 0, **proved("ATTACH", session=session, stream=1, rank=0)),
        frame("ATTACHED", "S", 1, stream=1),
        frame("PULL", "S", 7, term=2, fragment=1, round=20, attempt=1, base_version=6, at_step=0,
              sweep=0),
        frame("CANCEL", "S", 8, round=20, attempt=0),
        frame("VERDICT", "S", 9, term=2, fragment=1, round=20, attempt=1, outcome=2, reason="lag"),
        frame("HEARTBEAT", "L", 1, local_step=40, tokens=5120, phase=1, step_time_s=0.125),
        frame("HEARTBEAT", "S", 10, term=2, global_step=19, durable_step=18, run_tokens=9216,
              live=[0, 1]),
        frame("LEAVE", "L", 2, reason=1, notice_ms=30000),
        frame("FINISH", "L", 1, mode=0, reason="enough"),
        frame("LIMIT", "L", 3, local_step=800, tokens=102400),
        frame("FINAL", "S", 11, **final),
        frame("FINAL_ACK", "L", 4, **final),
        frame("GOODBYE", "S", 12, reason="the run ended"),
        frame("OFFER", "L", 5, **offer),
        frame("HAVE", "S", 13, transfer=3, accept=1, reason="", chunks="05"),
        frame("DONE", "S", 14, transfer=3, ok=1),
        frame("DATA", "S", 15, action=1, epoch=0, first=128, count=64, rows=1000),
        frame("METRIC", "L", 6, json='{"loss": 2.5}'),
        frame("CHUNK", "L", 1, transfer=3, index=0, bytes=body.hex()),
    ]  # fmt: skip


def hexed(x: Vector) -> str:
    return values.encode(wire.F32, np.asarray(x, np.float32)).hex()


def ties() -> npt.NDArray[np.uint32]:
    """Half way between two values of bf16, and the ends."""
    return np.array([0x3F808000, 0x3F818000, 0x3F7FFFFF, 0x00000001, 0x80000000], "<u4")


def codecs() -> list[dict[str, Any]]:
    lists: dict[str, Vector] = {
        "four": np.array([1, -0.5, 0.25, 0], np.float32),
        "eight": np.array([3, -3, 1.5, 0.75, -0.375, 0.1875, 0.09375, 0.046875], np.float32),
        "ties of bf16": ties().view("<f4").astype(np.float32),
        "zeros": np.zeros(3, np.float32),
        "ladder": LADDER,
        "just below the bounds": np.concatenate(
            ([np.float32(1)], np.nextafter(values.BOUNDS, np.float32(0)), values.BOUNDS)
        ).astype(np.float32),
    }
    out = []
    for name, x in lists.items():
        for codec in (wire.F32, wire.BF16, wire.Q4):
            body = values.encode(codec, x)
            decoded = hexed(values.decode(codec, body, len(x)))
            out.append({
                "name": name, "codec": codec, "values": hexed(x), "body": body.hex(),
                "decoded": decoded, "digest": values.digest(body).hex(),
            })  # fmt: skip
    return out


def public() -> list[dict[str, Any]]:
    """A q4 broadcast: the master moved, the image leads from the old public value to the new."""
    old = values.to_bf16(np.linspace(-1, 1, 300).astype(np.float32))
    master = values.from_bf16(old) + np.float32(0.01) * LADDER
    image = values.to_q4(master - values.from_bf16(old))
    new = values.to_bf16(values.from_bf16(old) + values.from_q4(image, 300))
    return [{
        "master": hexed(master), "old": old.hex(), "image": image.hex(), "new": new.hex(),
        "digest": values.digest(new).hex(),
    }]  # fmt: skip


def feedback() -> list[dict[str, Any]]:
    delta, residual = (
        LADDER[::-1].copy(),
        values.from_bf16(values.to_bf16(LADDER * np.float32(1 / 16))),
    )
    change = delta + residual
    image = values.to_q4(change)
    rest = values.to_bf16(change - values.from_q4(image, len(change)))
    return [{
        "delta": hexed(delta), "residual": hexed(residual), "image": image.hex(),
        "new_residual": rest.hex(),
    }]  # fmt: skip


def merges() -> list[dict[str, Any]]:
    rng = np.random.default_rng(7)
    small = [np.array(x, np.float32) for x in ([3, 4], [0, 1])]
    large = [rng.standard_normal(40).astype(np.float32) for _ in range(3)]
    apart = [np.array(x, np.float32) for x in ([4, 0], [-2, 0])]
    out = []
    for mode, deltas, tokens, steps, rule in [
        (values.RDA, small, [3, 1], [1, 1], "tokens"),
        (values.AVG, small, [3, 1], [1, 1], "tokens"),
        (values.RDA, apart, [1, 1], [1, 1], "equal"),
        (values.RDA, large, [640, 512, 768], [10, 8, 9], "tokens2"),
        (values.AVG, large, [640, 512, 768], [10, 8, 9], "tokens2"),
    ]:
        pushes = [
            merge.Push(delta, s, t) for delta, s, t in zip(deltas, steps, tokens, strict=True)
        ]
        delta = merge.average(pushes, mode, rule)
        theta, b = np.linspace(-1, 1, len(delta), dtype=np.float32), np.float32(0.25) * deltas[0]
        new, momentum = merge.nesterov(theta, b, delta)
        out.append({
            "mode": mode, "weights": rule, "outer": "nesterov", "theta": hexed(theta),
            "momentum": hexed(b), "pushes": [
                {"seat": seat, "c_steps": p.c_steps, "c_tokens": p.c_tokens,
                 "delta": hexed(p.delta)} for seat, p in enumerate(pushes)
            ], "delta": hexed(delta), "new_theta": hexed(new), "new_momentum": hexed(momentum),
        })  # fmt: skip
    return out


def make() -> dict[str, Any]:
    run = layout()
    return {
        "frames": frames(),
        "key": {
            "token": TOKEN.hex(), "name": KEY_NAME, "nonce": NONCE.hex(),
            "key": wire.key_of(TOKEN, KEY_NAME).hex(),
        },
        "layout": {
            "tensors": [
                {"name": t.name, "shape": t.shape, "dtype": t.dtype, "mode": t.mode}
                for t in run.tensors
            ],
            "fragments": run.fragments,
            "encoding": run.encode().hex(),
            "fingerprint": hashlib.sha256(run.encode()).hexdigest(),
        },
        "codecs": codecs(),
        "public": public(),
        "feedback": feedback(),
        "merges": merges(),
    }  # fmt: skip


def text() -> str:
    return json.dumps(make(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
