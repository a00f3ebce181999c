# SPDX-License-Identifier: Apache-2.0
"""A learner written from docs/PROTOCOL.md and docs/DESIGN.md alone.

One thread reads each connection into a queue; everything else happens in the thread that calls
`serve` and `step`.
"""

from __future__ import annotations

import hashlib
import queue
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import values
import wire
from rows import Kept, Rows
from state import Fragment, Incoming, Lent, Outgoing, Public
from values import Layout, Vector
from wire import Closed, Connection, Fields, Heard, WireError

CONNECT_S = 10.0
ALONE_S = 40.0
PAUSE_S = 0.1
IDLE_CHUNK_S = 15.0
LOAD, TRAIN = 0, 1


class Refused(Exception):
    def __init__(self, fields: Fields) -> None:
        super().__init__(fields["text"])
        self.code, self.retryable = fields["code"], bool(fields["retryable"])


class Learner:
    def __init__(
        self, find: Callable[[], tuple[str, int]], run_id: str, token: bytes, seat: int | None,
        layout: Layout, local: list[Vector], streams: int = 2,
        contract: list[tuple[str, bytes]] | None = None,
        report: Callable[..., None] = lambda **_: None,
    ) -> None:  # fmt: skip
        self.find, self.run_id, self.layout = find, run_id, layout
        self.contract, self.report, self.wanted = contract or [], report, streams
        name = "any" if seat is None else str(seat)
        self.seat, self.key = seat, wire.key_of(token, f"yeto-seat-{name}")
        self.fragments = [
            Fragment(size, value.astype(np.float32))
            for size, value in zip(layout.sizes(), local, strict=True)
        ]
        self.incarnation = secrets.randbits(64)
        self.session = bytes(16)
        self.local_step = self.tokens = 0
        self.step_time_s = 0.0
        self.phase = LOAD
        self.heard: queue.Queue[Heard] = queue.Queue()
        self.data: dict[int, Connection] = {}
        self.incoming: dict[int, Incoming] = {}
        self.outgoing: dict[int, Outgoing] = {}
        self.next_transfer = 1
        self.sweeping = self.over = self.limited = False
        self.rows: Rows | None = None
        self.final: Fields | None = None
        self.finals: dict[int, Vector] = {}
        self.control: Connection | None = None
        self.beat_at = self.idle_at = 0.0

    # --- greeting

    def connect(self) -> None:
        self.address = self.find()
        control = Connection(self.address, CONNECT_S)
        held = [(f.anchor.term, f.anchor.version) for f in self.fragments if f.anchor is not None]
        hello: Fields = {
            "minor": wire.MINOR, "run_id": self.run_id, "role": 0,
            "seat": wire.NO_SEAT if self.seat is None else self.seat,
            "incarnation": self.incarnation, "session": self.session,
            "layout": hashlib.sha256(self.layout.encode()).digest(),
            "values": self.layout.values(), "contract": self.contract,
            "held": held if len(held) == len(self.fragments) else [], "tokens": self.tokens,
            "local_step": self.local_step, "streams": self.wanted, "device": "numpy",
        }  # fmt: skip
        nonce = control.challenge["nonce"]
        control.send("HELLO", **wire.proved("HELLO", hello, self.key, nonce))
        name, welcome = control.read()
        if name == "REFUSED":
            control.close()
            raise Refused(welcome)
        if name != "WELCOME":
            raise WireError(f"{name} where WELCOME was due")
        self.control, self.welcome, self.settings = control, welcome, welcome["settings"]
        self.session, self.term = welcome["session"], welcome["term"]
        # Transfers end with the control stream they were offered on. Whether a push arrived is
        # learned later: its VERDICT comes, or its PULL once more.
        self.incoming, self.outgoing, self.next_transfer = {}, {}, 1
        if not welcome["resumed"]:
            self._begin_session(welcome)
        self._listen(control)
        for index in range(self.wanted):
            self._attach(index)
        kept = [not f.overwrite for f in self.fragments]
        self.report(
            event="welcome", resumed=welcome["resumed"], seat=welcome["seat"], term=self.term,
            kept=kept,
        )  # fmt: skip

    def _begin_session(self, welcome: Fields) -> None:
        """Nothing of the last session counts; what is not current will be overwritten."""
        if self.rows is not None:
            self.rows.begin_session()
        self.tokens = max(self.tokens, welcome["seat_tokens"])
        for p, f in enumerate(self.fragments):
            f.pull = f.ready = None
            current = welcome["versions"][p] if p < len(welcome["versions"]) else None
            valid = welcome["valid"][p] if p < len(welcome["valid"]) else 0
            anchor = f.anchor
            f.overwrite = anchor is None or anchor.version > valid or anchor.version != current
            f.lent.clear()
            if f.overwrite:
                f.residual = None
            elif anchor is not None:
                anchor.term = welcome["term"]

    def _listen(self, connection: Connection) -> None:
        connection.socket.settimeout(None)

        def read() -> None:
            try:
                while True:
                    self.heard.put(Heard(connection, *connection.read()))
            except (Closed, WireError) as error:
                self.heard.put(Heard(connection, "", {"error": str(error)}))

        threading.Thread(target=read, daemon=True).start()

    def _attach(self, index: int) -> None:
        stream = Connection(self.address, CONNECT_S)
        stream.index = index
        attach = {"session": self.session, "stream": index, "rank": 0}
        stream.send("ATTACH", **wire.proved("ATTACH", attach, self.key, stream.challenge["nonce"]))
        name, fields = stream.read()
        if name == "REFUSED":
            stream.close()
            raise Refused(fields)
        if name != "ATTACHED" or fields["stream"] != index:
            raise WireError(f"{name} {fields} where ATTACHED was due")
        self.data[index] = stream
        self._listen(stream)

    # --- what is heard

    def serve(self, timeout_s: float) -> None:
        """Handles what comes until the time is over; keeps the lease alive."""
        until = time.monotonic() + timeout_s
        while not self.over:
            self._tick()
            try:
                heard = self.heard.get(timeout=min(max(until - time.monotonic(), 0), 0.05))
            except queue.Empty:
                if time.monotonic() >= until:
                    return
                continue
            if heard.name == "":
                self._lost(heard.connection)
            elif heard.connection is self.control or heard.connection in self.data.values():
                getattr(self, f"_on_{heard.name.lower()}")(heard.fields)

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self.beat_at:
            self.beat_at = now + self.welcome["heartbeat_ms"] / 1000
            self._say(
                "HEARTBEAT", local_step=self.local_step, tokens=self.tokens, phase=self.phase,
                step_time_s=self.step_time_s,
            )  # fmt: skip
            for transfer in self.incoming.values():
                if now - transfer.heard_at > self.welcome["lease_ms"] / 1000:
                    transfer.heard_at = now
                    self._have(transfer)
        if now >= self.idle_at:
            self.idle_at = now + IDLE_CHUNK_S
            for stream in list(self.data.values()):
                self._say("CHUNK", stream, transfer=0, index=0, bytes=b"")

    def _say(self, name: str, stream: Connection | None = None, **fields: Any) -> None:
        """A connection that is gone is noticed by its reader."""
        to = stream or self.control
        assert to is not None
        try:
            to.send(name, **fields)
        except Closed:
            to.close()

    def _lost(self, connection: Connection) -> None:
        connection.close()
        if self.over:
            return
        if connection is self.control:
            for stream in self.data.values():
                stream.close()
            self.data.clear()
            self._reconnect()
        elif self.data.get(connection.index) is connection:
            del self.data[connection.index]
            try:
                self._attach(connection.index)
            except (OSError, Closed, Refused):
                return  # the session or the syncer is gone; control will say so
            self.report(event="attached", stream=connection.index)
            for transfer in self.incoming.values():
                self._have(transfer)

    def _reconnect(self) -> None:
        """A syncer that is gone may come back, elsewhere and as another term."""
        limit = time.monotonic() + ALONE_S
        while True:
            try:
                return self.connect()
            except Refused as refused:
                if not refused.retryable or time.monotonic() > limit:
                    raise
            except (OSError, Closed):
                if time.monotonic() > limit:
                    raise
            time.sleep(PAUSE_S)  # between two attempts, as any client waits

    def _on_heartbeat(self, beat: Fields) -> None:
        self._durable(beat["global_step"], beat["durable_step"])

    def _durable(self, global_step: int, durable_step: int) -> None:
        for f in self.fragments:
            for kept in f.kept:
                kept.round = global_step if kept.round is None else kept.round
        if self.rows is not None:
            self.rows.settle(lambda step: {f.fate(step, durable_step) for f in self.fragments})

    def _on_goodbye(self, _: Fields) -> None:
        self.over = True

    def lease_rows(self, rows: int) -> Rows:
        """From now on the samples are those that the syncer grants."""
        self.rows = Rows(rows, self._say)
        return self.rows

    def _on_data(self, data: Fields) -> None:
        if self.rows is None:
            raise WireError("DATA without a request")
        self.rows.heard(data)

    def _on_pull(self, pull: Fields) -> None:
        if pull["round"] > 0:
            f = self.fragments[pull["fragment"]]
            self._take_back(f, pull)
            f.pull = pull
            self.sweeping = self.sweeping or bool(pull["sweep"])
        elif pull["fragment"] == wire.ALL_FRAGMENTS:
            self._offer(wire.LAYOUT, pull, self.layout.encode(), digest=bytes(16))
        else:
            body = values.encode(wire.F32, self.fragments[pull["fragment"]].local)
            self._offer(wire.INIT, pull, body, digest=values.digest(body))

    def _on_cancel(self, cancel: Fields) -> None:
        for f in self.fragments:
            self._take_back(f, cancel)
            if f.pull and all(f.pull[key] == cancel[key] for key in ("round", "attempt")):
                f.pull = None

    def _on_verdict(self, verdict: Fields) -> None:
        f = self.fragments[verdict["fragment"]]
        if verdict["outcome"] == wire.DROPPED:
            self._take_back(f, verdict)
        elif lent := f.lent.get((verdict["round"], verdict["attempt"])):
            self._add_residual(f, lent.if_kept)
            lent.if_kept = lent.taken = None
            if verdict["outcome"] == wire.MERGED:
                del f.lent[verdict["round"], verdict["attempt"]]
                f.kept.append(Kept(lent.until - lent.steps, lent.until))
        self.report(event="verdict", **verdict)

    def _add_residual(self, f: Fragment, residual: Vector | None) -> None:
        if residual is not None:
            total = residual if f.residual is None else f.residual + residual
            f.residual = values.from_bf16(values.to_bf16(total))

    def _on_final(self, final: Fields) -> None:
        self.final = final
        # What FINAL names is in the checkpoint.
        self._durable(final["global_step"], final["global_step"])
        self._acknowledge()

    # --- transfers

    def _offer(self, kind: int, pull: Fields, body: bytes, **fields: Any) -> None:
        offer: Fields = {
            "transfer": self.next_transfer, "kind": kind, "term": pull["term"],
            "fragment": pull["fragment"], "version": 0, "base_version": 0, "codec": wire.F32,
            "bytes": len(body), "part": 0, "parts": 1, "first_value": 0, "round": pull["round"],
            "attempt": pull["attempt"], "c_steps": 0, "c_tokens": 0, "norm": 0.0, **fields,
        }  # fmt: skip
        self.next_transfer += 1
        self.outgoing[offer["transfer"]] = Outgoing(offer, body)
        self._say("OFFER", **offer)
        if kind == wire.PUSH:
            self._send_chunks(offer["transfer"], set())

    def _send_chunks(self, transfer: int, held: set[int]) -> None:
        out, size = self.outgoing[transfer], self.welcome["chunk_bytes"]
        for index in range(-(-len(out.body) // size)):
            assert self.control is not None
            living = [*self.data.values()] or [self.control]
            if index in held or out.given.get(index) in living:
                continue
            stream = living[index % len(living)]
            out.given[index] = stream
            body = out.body[index * size : (index + 1) * size]
            self._say("CHUNK", stream, transfer=transfer, index=index, bytes=body)

    def _have(self, transfer: Incoming, accept: int = 1, reason: str = "") -> None:
        chunks = transfer.bitmap() if accept else b""
        number = transfer.offer["transfer"]
        self._say("HAVE", transfer=number, accept=accept, reason=reason, chunks=chunks)

    def _on_have(self, have: Fields) -> None:
        out = self.outgoing.get(have["transfer"])
        if out is None:
            return
        if have["accept"]:
            bits = have["chunks"]
            held = {i for i in range(8 * len(bits)) if bits[i // 8] >> i % 8 & 1}
            self._send_chunks(have["transfer"], held)
        else:
            self._end_push(have["transfer"])
            self.report(event="refused", reason=have["reason"], kind=out.offer["kind"])

    def _on_done(self, done: Fields) -> None:
        if done["ok"]:
            self.outgoing.pop(done["transfer"], None)
        else:
            self._end_push(done["transfer"])

    def _end_push(self, transfer: int) -> None:
        """A push that never arrived: its residual comes back, its work counts in the next one."""
        out = self.outgoing.pop(transfer, None)
        if out is None or out.offer["kind"] != wire.PUSH:
            return
        self._take_back(self.fragments[out.offer["fragment"]], out.offer)

    def _take_back(self, f: Fragment, push: Fields) -> None:
        """A delta that does not count; the next one against the same anchor holds its work."""
        lent = f.lent.pop((push["round"], push["attempt"]), None)
        if lent is None:
            return
        self._add_residual(f, lent.taken)
        if f.anchor is not None and f.anchor.version == lent.base_version:
            f.steps_taken -= lent.steps
            f.tokens_taken -= lent.tokens

    def _on_offer(self, offer: Fields) -> None:
        number, kind = offer["transfer"], offer["kind"]
        if offer["parts"] == 0:
            self.incoming.pop(number, None)
            return
        size = self.welcome["chunk_bytes"]
        chunks = -(-offer["bytes"] // size)
        transfer = Incoming(offer, bytearray(offer["bytes"]), chunks, heard_at=time.monotonic())
        if kind == wire.BCAST and offer["codec"] == wire.Q4 and self._base(offer) is None:
            self._have(transfer, 0, "base not held")
            return
        self.incoming[number] = transfer
        self._have(transfer)

    def _base(self, offer: Fields) -> Public | None:
        base = self.fragments[offer["fragment"]].newest()
        fits = base is not None and base.version == offer["base_version"]
        return base if fits else None

    def _on_chunk(self, chunk: Fields) -> None:
        transfer = self.incoming.get(chunk["transfer"])
        if transfer is None or chunk["index"] in transfer.held:
            return
        at = chunk["index"] * self.welcome["chunk_bytes"]
        transfer.body[at : at + len(chunk["bytes"])] = chunk["bytes"]
        transfer.held.add(chunk["index"])
        transfer.heard_at = time.monotonic()
        if len(transfer.held) == transfer.chunks:
            del self.incoming[chunk["transfer"]]
            ok = self._received(transfer.offer, bytes(transfer.body))
            self._say("DONE", transfer=chunk["transfer"], ok=int(ok))
            self._acknowledge()

    def _received(self, offer: Fields, body: bytes) -> bool:
        p, f = offer["fragment"], self.fragments[offer["fragment"]]
        value = values.decode(offer["codec"], body, f.size)
        if offer["kind"] == wire.FINAL:
            self.finals[p] = value
            return values.digest(body) == offer["digest"]
        if offer["codec"] == wire.Q4:
            base = self._base(offer)
            if base is None:
                return False
            value = values.from_bf16(values.to_bf16(base.values + value))
        anchor_codec = wire.F32 if self.welcome["broadcast_codec"] == wire.F32 else wire.BF16
        got = values.digest(values.encode(anchor_codec, value))
        if got != offer["digest"]:
            return False
        f.ready = Public(offer["term"], offer["version"], value)
        self.report(
            event="public", fragment=p, term=offer["term"], version=offer["version"],
            codec=offer["codec"], digest=got.hex(),
        )  # fmt: skip
        return True

    def _acknowledge(self) -> None:
        if self.final is None or len(self.finals) < len(self.fragments):
            return
        digests = []
        for p, f in enumerate(self.fragments):
            f.local, f.ready, f.pull = self.finals[p], None, None
            digests.append(hashlib.sha256(values.encode(wire.F32, f.local)).digest())
        if digests == self.final["digests"]:
            self._say("FINAL_ACK", **{**self.final, "digests": digests})

    # --- the step boundary

    def step(self, tokens: int, step_time_s: float) -> None:
        """One optimizer step was made on the local values."""
        self.local_step += 1
        self.tokens += tokens
        self.step_time_s = step_time_s
        self.boundary()
        if self.settings["lockstep"]:
            self._wait_for_rounds()

    def boundary(self) -> None:
        for p, f in enumerate(self.fragments):
            self._answer(p, f)
            self._apply(f)

    def _wait_for_rounds(self) -> None:
        h, count = self.settings["sync_interval_steps"], len(self.fragments)
        first, last = count * (self.local_step - 1) // h, count * self.local_step // h
        for t in range(first + 1, min(last, self.settings["total_steps"]) + 1):
            f, version = self.fragments[(t - 1) % count], (t - 1) // count + 1
            while not self.over and (f.anchor is None or f.anchor.version < version):
                self.serve(0.005)
                self.boundary()

    def _answer(self, p: int, f: Fragment) -> None:
        pull, anchor = f.pull, f.anchor
        if pull is None or anchor is None or f.overwrite:
            return
        base = pull["base_version"]
        if base < anchor.version or pull["term"] != anchor.term:
            f.pull = None
            return
        steps, tokens = self.local_step - f.steps_taken, self.tokens - f.tokens_taken
        if base > anchor.version or self.local_step < pull["at_step"]:
            return
        if steps == 0 and not pull["sweep"] and not self.limited:
            return
        f.pull = None
        if steps == 0:
            self._offer(wire.PUSH, pull, b"", base_version=base, codec=self.welcome["push_codec"],
                        digest=bytes(16))  # fmt: skip
            return
        f.steps_taken, f.tokens_taken = self.local_step, self.tokens
        self._push(p, f, pull, (steps, tokens))

    def _push(self, p: int, f: Fragment, pull: Fields, work: tuple[int, int]) -> None:
        codec = self.welcome["push_codec"]
        f.pushed = f.local.copy()
        assert f.reference is not None
        change = f.reference - f.pushed
        lent, rest = f.residual, None
        if codec == wire.Q4:
            if lent is not None:
                change = change + lent
            body = values.to_q4(change)
            rest = change - values.from_q4(body, f.size)
            f.residual = None
        else:
            body = values.encode(codec, change)
        taken = lent if codec == wire.Q4 else None
        f.lent[pull["round"], pull["attempt"]] = Lent(
            pull["base_version"], taken, rest, *work, self.local_step
        )
        norm = float(np.sqrt(np.square(change.astype(np.float64)).sum()))
        self._offer(
            wire.PUSH, pull, body, base_version=pull["base_version"], codec=codec,
            digest=bytes(16), c_steps=work[0], c_tokens=work[1], norm=norm,
        )  # fmt: skip

    def _apply(self, f: Fragment) -> None:
        if f.ready is None:
            return
        new, alpha = f.ready.values, np.float32(self.settings["merge_alpha"])
        kept = new
        if f.overwrite:
            f.local, f.residual = new.copy(), None
            f.steps_taken, f.tokens_taken = self.local_step, self.tokens
        elif f.pushed is not None:
            kept = new + alpha * (f.pushed - new)
            f.local = kept + (f.local - f.pushed)
        else:
            kept = new + alpha * (f.local - new)
            f.local = kept.copy()
            if alpha == 0 or self.settings["delta_blended"]:  # nothing of the work is left
                f.steps_taken, f.tokens_taken = self.local_step, self.tokens
        f.reference = kept if self.settings["delta_blended"] else new
        f.anchor, f.ready, f.pushed, f.overwrite = f.ready, None, None, False

    def finished(self) -> bool:
        """No step is to be made any more; in lockstep none after that of the last round."""
        set_ = self.settings
        last = -(-set_["total_steps"] * set_["sync_interval_steps"] // len(self.fragments))
        done = bool(set_["lockstep"]) and self.local_step >= last
        return self.sweeping or self.over or self.final is not None or done

    def limit(self) -> None:
        """This learner has nothing more to train."""
        self.limited = True
        self._say("LIMIT", local_step=self.local_step, tokens=self.tokens)

    def wait_ready(self) -> None:
        while any(f.overwrite for f in self.fragments) and not self.over:
            self.serve(0.005)
            self.boundary()
        self.phase, self.beat_at = TRAIN, 0.0

    def drain(self) -> None:
        while not self.over:
            self.serve(0.02)
            self.boundary()


def finish(address: tuple[str, int], run_id: str, token: bytes) -> None:
    """What a controller says."""
    control = Connection(address, CONNECT_S)
    hello: Fields = {
        "minor": wire.MINOR, "run_id": run_id, "role": 1, "seat": wire.NO_SEAT,
        "incarnation": secrets.randbits(64), "session": bytes(16), "layout": bytes(32),
        "values": 0, "contract": [], "held": [], "tokens": 0, "local_step": 0, "streams": 0,
        "device": "",
    }  # fmt: skip
    key = wire.key_of(token, "yeto-controller")
    control.send("HELLO", **wire.proved("HELLO", hello, key, control.challenge["nonce"]))
    name, fields = control.read()
    if name != "WELCOME":
        raise WireError(f"{name} {fields} where WELCOME was due")
    control.send("FINISH", mode=0, reason="the stranger says so")
    while control.read()[0] != "GOODBYE":
        pass
    control.close()
