"""Connections to the store: SQLite or PostgreSQL, write transactions, and errors of the database as StoreError.

Writers of the ledger are serial: `BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL. A
grant exists only once its transaction has committed; every error before that leaves nothing behind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidatePoolError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from goldnode.core import extras
from goldnode.fleet.store import guards, schema
from goldnode.fleet.store.errors import (
    GrantRefusedError,
    RefusalKind,
    StaleEpochError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
)
from goldnode.node.ground.json_lines import as_text

_BUSY_SECONDS = 10  # for SQLite's lock, and for a connection to a server
_IDLE_SECONDS = 1.0  # after which a connection is tried before it is used
_STOPPED_SECONDS = (
    30  # after which a server ends the transaction of a process that gives no sign of life
)
_RETRIES = 4  # attempts of a transaction
# Serialization failure, deadlock: the transaction did nothing and may run again.
_RETRIED = {"40001", "40P01"}
_T = TypeVar("_T")

# Guard -> kind of the refusal. Other guards are errors of the program.
_REFUSALS = {
    "planned": RefusalKind.FULL,
    "total": RefusalKind.FULL,
    "failed": RefusalKind.FAILED_BUFFER,
    "frozen": RefusalKind.FROZEN,
    "document": RefusalKind.NO_DOCUMENT,
    "denied": RefusalKind.DENIED,
    "phase": RefusalKind.NOT_YOUR_TURN,
    "out": RefusalKind.OUT_ALREADY,
    "turn": RefusalKind.OUT_ALREADY,
}


def open_engine(where: str) -> Engine:
    """Return an engine for a path of SQLite or an address `postgresql://…`. Raises StoreError for another one."""
    if "://" not in where:
        where = f"sqlite:///{Path(where).expanduser().absolute()}"
    try:
        url = make_url(where)
    except ArgumentError as problem:
        raise StoreError(
            "the address of the store cannot be read",
            remedy="use a path, or postgresql://USER@HOST/DATABASE",
        ) from problem
    if url.get_backend_name() == "sqlite":
        return _sqlite(url)
    if url.get_backend_name() == "postgresql":
        return _postgresql(url)
    raise StoreError(
        f"the store cannot be on {url.get_backend_name()}",
        remedy="use a path (SQLite), or postgresql://USER@HOST/DATABASE",
    )


def _sqlite(url: URL) -> Engine:
    path = Path(url.database or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # goldnode begins transactions itself
        # WAL: readers do not wait for the writer. FULL: a commit is on the disk when it returns, so
        # that a power cut forgets no grant. trusted_schema: functions in the schema of a foreign
        # file cannot have side effects.
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "trusted_schema=OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes the lock at once: it cannot lose a race after it has read.
        connection.exec_driver_sql("BEGIN" if _kind(connection) == "read" else "BEGIN IMMEDIATE")

    return engine


def _postgresql(url: URL) -> Engine:
    extras.require("postgresql")
    url = url.set(drivername="postgresql+psycopg")
    engine = create_engine(
        url,
        connect_args={
            "autocommit": True,  # goldnode begins transactions itself, with the lock in the same message
            "connect_timeout": _BUSY_SECONDS,
            # A process that was stopped inside of a transaction has the lock of the ledger.
            "options": "-c lock_timeout=10s -c synchronous_commit=on "
            f"-c idle_in_transaction_session_timeout={_STOPPED_SECONDS}s",
        },
    )

    @event.listens_for(engine, "checkin")
    def _used(_: object, record: ConnectionPoolEntry) -> None:
        record.info["used"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _try(connection: Any, record: ConnectionPoolEntry, _: object) -> None:
        """Try a connection that was idle: the server may have been replaced. `run` covers one in use."""
        if time.monotonic() - record.info.get("used", time.monotonic()) > _IDLE_SECONDS:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as problem:
                raise InvalidatePoolError from problem

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # The lock is a statement of its own, so that the next one sees what its last holder has committed.
        begins = {
            "read": "BEGIN ISOLATION LEVEL REPEATABLE READ",
            "unlocked": "BEGIN",
            "write": f"BEGIN; SELECT pg_advisory_xact_lock({guards.LEDGER_LOCK})",
        }
        connection.exec_driver_sql(
            begins[_kind(connection)], execution_options={"no_parameters": True}
        )

    return engine


def _kind(connection: Connection) -> str:
    """Return what a transaction is for: read, unlocked or write."""
    return str(connection.get_execution_options().get("goldnode_transaction", "write"))


class StoreDatabase:
    """One store. Safe for several threads; each transaction has a connection of its own."""

    def __init__(self, where: str) -> None:
        self.engine = open_engine(where)
        self.name = self.engine.url.render_as_string(hide_password=True)

    @property
    def postgresql(self) -> bool:
        """Return whether the engine is PostgreSQL."""
        return self.engine.dialect.name == "postgresql"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection with one consistent view of the store."""
        with self._errors(), self.engine.connect() as connection:
            yield connection.execution_options(goldnode_transaction="read")

    @contextmanager
    def unlocked(self) -> Iterator[Connection]:
        """Yield a connection for a write that touches no limit, without the lock of the ledger."""
        with self._errors(), self.engine.connect() as connection:
            connection = connection.execution_options(goldnode_transaction="unlocked")
            with connection.begin():
                yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection in a write transaction, which commits at the end of the block."""
        with self._errors(), self.engine.begin() as connection:
            yield connection

    def run(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in a write transaction, again if the database asks for that, or if none could begin."""
        for attempt in range(_RETRIES):
            begun = False
            try:
                with self.write() as connection:
                    begun = True
                    return work(connection)
            except StoreUnavailableError as problem:
                lost = not begun and getattr(problem.__cause__, "connection_invalidated", False)
                if attempt == _RETRIES - 1 or not (lost or _state(problem.__cause__) in _RETRIED):
                    raise
                time.sleep(0.02 * 2**attempt)
        raise AssertionError  # the last attempt returns or raises

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as problem:
            raise self.error(problem) from problem
        except SQLAlchemyError as problem:
            raise StoreUnavailableError(
                f"the store cannot be used: {problem}", file=self.name
            ) from problem

    def error(self, problem: DBAPIError) -> StoreError:
        """Return the error for people of an error of the database."""
        text = str(problem.orig)
        guard = re.search(r"goldnode:([a-z]+)", text)
        if guard:
            return guarded(guard[1])
        for pattern, message, remedy in _PROBLEMS:
            if re.search(pattern, f"{_state(problem) or ''} {text}", re.IGNORECASE):
                return StoreUnavailableError(
                    f"{message}. Nothing was granted", file=self.name, remedy=remedy
                )
        if re.search("malformed|not a database|disk image", text):
            return StoreDamagedError(
                f"the store is damaged: {_line(text)}",
                file=self.name,
                remedy="restore a backup: `goldnode fleet store restore FILE`",
            )
        return StoreError(f"the store refused a statement: {_line(text)}", file=self.name)


def guarded(name: str) -> StoreError:
    """Return the error of a guard that aborted a transaction."""
    message = guards.MEANINGS.get(name, f"the guard {name} refused it")
    if name == "epoch":
        return StaleEpochError(message, remedy="stop this controller; the other one goes on")
    if name in _REFUSALS:
        return GrantRefusedError(_REFUSALS[name], message)
    return StoreError(message)


# Patterns of SQLSTATE and message, what happened, and the remedy.
_PROBLEMS = (
    (
        r"readonly|read-only|25006",
        "the store is read-only",
        "let this user write the file and its directory; on PostgreSQL, connect to the primary",
    ),
    (
        r"disk is full|53100|no space left",
        "the disk of the store is full",
        "free space on it; what was granted before stays",
    ),
    (
        r"locked|55P03|busy",
        "another writer has locked the store for too long",
        "find the process that holds it: `fuser FILE`, or pg_locks",
    ),
    (r"40001|40P01", "the store could not serialise a transaction", "try again"),
    (
        r"unable to open|connection|57P0[123]|08\d\d\d|could not connect|terminat|no such file|disk i/o|53300",
        "the store cannot be reached",
        "check that it exists and runs; nodes wait until it is back",
    ),
)


def _state(problem: BaseException | None) -> str | None:
    origin = getattr(problem, "orig", None)
    return as_text(getattr(origin, "sqlstate", None))


def _line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def open_store(where: str, *, create: bool = False) -> StoreDatabase:
    """Return the store at an address, with tables that this code can write. Raise StoreError for another one.

    With `create`, an empty store gets its tables: SQLite needs no set-up.
    """
    if "://" not in where and not create and not Path(where).expanduser().exists():
        raise StoreError(
            "there is no store yet", file=where, remedy="create it: `goldnode fleet nodes FILE`"
        )
    store = StoreDatabase(where)
    try:
        with store.read() as connection:
            empty = schema.version(connection) == 0
        if empty and create:
            store.run(schema.migrate)
        with store.read() as connection:
            schema.check(connection)
    except StoreError:
        store.close()
        raise
    return store
