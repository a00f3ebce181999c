# SPDX-License-Identifier: Apache-2.0
"""A lossy link for each learner: TCP from a port of its own to the syncer, as a process.

    python -m bench.storm.proxy ENDPOINT.json LINKS SEED DELAY_S LOSS LOSS_DELAY_S

The first line on stdout is the list of ports. Lines on stdin: `hold N` (nothing passes link N,
either way, and what was sent waits as it would for retransmission) and `free N`. Every piece read
waits DELAY_S; a share LOSS of them waits LOSS_DELAY_S more, which is what a lost packet costs on
top of TCP. The endpoint file is read at every connect, because the syncer comes back on another
port. Ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

PIECE = 64 << 10


@dataclass(frozen=True)
class Quality:
    delay_s: float
    loss: float
    loss_delay_s: float


class Link:
    def __init__(self, endpoint: Path, quality: Quality, rng: random.Random) -> None:
        self._endpoint = endpoint
        self._quality = quality
        self._rng = rng
        self._passes = asyncio.Event()
        self._passes.set()

    def hold(self) -> None:
        self._passes.clear()

    def free(self) -> None:
        self._passes.set()

    async def listen(self) -> int:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        try:
            target = json.loads(self._endpoint.read_text())
            to_reader, to_writer = await asyncio.open_connection(target["host"], target["port"])
        except (OSError, ValueError):
            writer.close()  # no syncer there: the learner tries again
            return
        await asyncio.gather(self._pump(reader, to_writer), self._pump(to_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await self._read(reader):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """The next piece, empty at the end of the stream; either is seen only while it passes."""
        try:
            piece = await reader.read(PIECE)
        except OSError:
            piece = b""
        lost = self._rng.random() < self._quality.loss
        delay = self._quality.delay_s + (self._quality.loss_delay_s if lost else 0.0)
        if delay > 0:
            await asyncio.sleep(delay)
        await self._passes.wait()
        return piece


async def serve(endpoint: Path, count: int, seed: int, quality: Quality) -> None:
    rng = random.Random(seed)
    links = [Link(endpoint, quality, rng) for _ in range(count)]
    print(json.dumps([await link.listen() for link in links]), flush=True)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        word, number = line.decode().split()
        link = links[int(number)]
        {"hold": link.hold, "free": link.free}[word]()


def main() -> None:
    endpoint, count, seed, delay_s, loss, loss_delay_s = sys.argv[1:]
    quality = Quality(float(delay_s), float(loss), float(loss_delay_s))
    asyncio.run(serve(Path(endpoint), int(count), int(seed), quality))


if __name__ == "__main__":
    main()
