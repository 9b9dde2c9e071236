"""Writer of the service: it runs the requests that wait in one transaction, each behind a savepoint of its own.

One flush of the disk then answers many nodes. An answer leaves only after the commit: a node never has leave that
is not in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreUnavailableError

Work = Callable[[Connection], Any]
LARGEST = 64  # requests of one transaction
WAITING = 20_000  # requests that may wait


@dataclass(frozen=True)
class _Waiting:
    work: Work
    answer: asyncio.Future[Any]


class BatchWriter:
    """A queue of works for one store. `run` is its loop; `submit` waits for the answer of one work."""

    def __init__(self, store: StoreDatabase) -> None:
        self._store = store
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(WAITING)

    async def submit(self, work: Work) -> Any:
        """Run a work in a committed transaction and return its result, or raise its GoldnodeError."""
        waiting = _Waiting(work, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(waiting)
        except asyncio.QueueFull:
            raise StoreUnavailableError(
                f"{WAITING} requests wait for the store", remedy="ask again later"
            ) from None
        return await waiting.answer

    async def run(self) -> None:
        """Serve the queue until the task is cancelled."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < LARGEST and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            works = [waiting.work for waiting in batch]
            try:
                answers: Sequence[Any] = await asyncio.to_thread(commit, self._store, works)
            except Exception as problem:  # one broken transaction must not end the service
                answers = [problem] * len(batch)
            for waiting, answer in zip(batch, answers, strict=True):
                if waiting.answer.done():  # the client has gone
                    continue
                if isinstance(answer, Exception):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)


def commit(store: StoreDatabase, works: Sequence[Work]) -> list[Any]:
    """Run works in one transaction. Return the result of each, or the error that undid it alone."""

    def all_of_them(connection: Connection) -> list[Any]:
        return [_one(store, connection, work) for work in works]

    return store.run(all_of_them)


def _one(store: StoreDatabase, connection: Connection, work: Work) -> Any:
    savepoint = connection.begin_nested()
    try:
        result = work(connection)
        savepoint.commit()
    except DBAPIError as problem:
        error = store.error(problem)
        if isinstance(error, StoreUnavailableError) or problem.connection_invalidated:
            raise  # the transaction as a whole is lost
        savepoint.rollback()
        return error
    except Exception as problem:  # one request must not undo those of other nodes
        savepoint.rollback()
        return problem
    return result
