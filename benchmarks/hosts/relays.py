"""Ports of this machine, each relayed to the ssh port of one of a few nodes: every name then has a server and a handshake of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

ADDRESS = "127.0.0.1"
PIECE = 65536  # bytes


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(PIECE):
            target.write(piece)
            await target.drain()
    target.close()


async def _relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        node_reader, node_writer = await asyncio.open_connection(ADDRESS, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, node_writer), _copy(node_reader, writer))


@contextmanager
def relays(ports: Sequence[int], count: int) -> Iterator[list[int]]:
    """Yield `count` ports, each relayed to one of `ports` in turn, from a thread of this process, whose time is not counted."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def started() -> list[asyncio.Server]:
        return [
            await asyncio.start_server(
                partial(_relay, ports[one % len(ports)]),
                ADDRESS,
                0,
            )
            for one in range(count)
        ]

    servers = asyncio.run_coroutine_threadsafe(started(), loop).result()

    async def stop() -> None:
        for server in servers:
            server.close()
        # Connections of a command that has ended may still be open.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    try:
        yield [server.sockets[0].getsockname()[1] for server in servers]
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
