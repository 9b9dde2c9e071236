"""Writer of the service: it answers the requests that wait in one transaction.

One flush of the disk then answers many nodes, and requests of one kind share their statements. An
answer leaves only after the commit: a node never has leave that is not in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from goldnode.fleet.store import grants
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.errors import StoreUnavailableError
from goldnode.fleet.store.grants import LeaveRequest


@dataclass(frozen=True)
class SharedRequest:
    """A request of a node, and the function that answers any number of its kind with the same statements."""

    together: Callable[[Connection, Sequence[LeaveRequest]], Sequence[Any]]
    request: LeaveRequest

    def __call__(self, connection: Connection) -> Any:
        """Answer this request alone."""
        (answer,) = self.together(connection, [self.request])
        return answer


Work = Callable[[Connection], Any]  # a `SharedRequest` is one too
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
    """Run works in one transaction. Return the result of each, or the error that undid it alone.

    Requests of one kind are answered together, returns before grants: all of them wait, so their
    order is free.
    """
    groups: dict[Any, list[int]] = {grants.give_back_all: []}
    for number, work in enumerate(works):
        groups.setdefault(work.together if isinstance(work, SharedRequest) else number, []).append(
            number
        )

    def all_of_them(connection: Connection) -> list[Any]:
        answers: dict[int, Any] = {}
        for numbers in groups.values():
            some = [works[number] for number in numbers]
            answers |= zip(numbers, _group(store, connection, some), strict=True)
        return [answers[number] for number in range(len(works))]

    return store.run(all_of_them)


def _group(store: StoreDatabase, connection: Connection, works: Sequence[Work]) -> Sequence[Any]:
    """Return the answers to requests of one kind. If together they fail, each is answered alone."""
    first = next(iter(works), None)
    if isinstance(first, SharedRequest) and len(works) > 1:
        together, requests = (
            first.together,
            [work.request for work in works if isinstance(work, SharedRequest)],
        )
        answers = _one(store, connection, lambda inner: together(inner, requests))
        if not isinstance(answers, Exception):
            return list(answers)
    return [_one(store, connection, work) for work in works]


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
