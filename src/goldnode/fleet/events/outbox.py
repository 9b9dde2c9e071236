"""The outbox: events in order, how far each source was read, and how far each hook has them. SQLite.

An event and the place after it in its source are written in one transaction: a collection that is
killed loses and repeats nothing. A hook's place moves after its delivery: a delivery that is killed
is repeated, with the same id.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.documents.event import EventDocument
from goldnode.fleet.events.event import FleetEvent, body

VERSION = 2  # of the tables
_BUSY = 30.0  # seconds to wait for another writer
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0  # seconds before a failed delivery is tried again
KEPT = 30 * 86400.0  # seconds for which a delivered event stays, for `goldnode events list`

DIRECTORY = "directory "  # a source that is a directory of channels
_TABLES = """
CREATE TABLE event (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, at REAL NOT NULL,
  kind TEXT NOT NULL, document BLOB NOT NULL, collected REAL NOT NULL);
CREATE TABLE source (name TEXT PRIMARY KEY, place TEXT NOT NULL);
CREATE TABLE hook (name TEXT PRIMARY KEY, seq INTEGER NOT NULL, failures INTEGER NOT NULL DEFAULT 0,
  error TEXT, again REAL NOT NULL DEFAULT 0, delivered REAL, repeated REAL NOT NULL DEFAULT 0);
CREATE TABLE alert (hook TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (hook, key));
CREATE TABLE node (name TEXT PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL);
"""
# Since version 2: records in trackers, and comments whose sending began.
_TICKET_TABLES = """
CREATE TABLE ticket (hook TEXT NOT NULL, ticket TEXT NOT NULL, begun REAL NOT NULL, remote TEXT, url TEXT,
  PRIMARY KEY (hook, ticket));
CREATE TABLE ticket_comment (hook TEXT NOT NULL, event TEXT NOT NULL, begun REAL NOT NULL, PRIMARY KEY (hook, event));
"""


class OutboxError(GoldnodeError):
    """The outbox cannot be used."""


@dataclass(frozen=True)
class HookState:
    """The place of one hook, and why it does not move. `seq` is the last event that it has."""

    name: str
    seq: int
    failures: int = 0
    error: str | None = None
    again: float = 0.0  # when a failed delivery is tried again
    delivered: float | None = None
    repeated: float = 0.0  # when alerts that are active were sent again


@dataclass(frozen=True)
class TrackerRecord:
    """A ticket in the tracker of a hook. `remote` is its id there; None while its sending has no known end."""

    hook: str
    ticket: str
    begun: float
    remote: str | None = None
    url: str | None = None


class Outbox:
    """One outbox. Each call opens the file: several threads and processes may use it."""

    def __init__(self, file: Path) -> None:
        self.file = file.absolute()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction that commits at the end of the block. Raises OutboxError."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.file, timeout=_BUSY, isolation_level=None)
        except (OSError, sqlite3.Error) as problem:
            raise self._unusable(problem) from problem
        with contextlib.closing(connection):
            try:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("BEGIN IMMEDIATE")
                self._tables(connection)
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as problem:
                raise self._unusable(problem) from problem

    def _unusable(self, problem: Exception) -> OutboxError:
        return OutboxError(
            f"the outbox of events cannot be used: {problem}",
            file=self.file,
            remedy="correct who may write it and its directory, or name another one as events.outbox in the site file",
        )

    def _tables(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            return
        if version > VERSION:
            raise OutboxError(
                f"the outbox has version {version}, and this goldnode reads {VERSION}",
                file=self.file,
                remedy="upgrade goldnode on this machine",
            )
        tables = _TICKET_TABLES if version == 1 else _TABLES + _TICKET_TABLES
        for statement in tables.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")

    # Events

    def add(self, connection: sqlite3.Connection, events: Iterable[FleetEvent], now: float) -> int:
        """Add events in order. One that is there already stays as it is. Return the number of new ones."""
        added = 0
        seq = self.newest(connection)
        for event in events:
            if connection.execute("SELECT 1 FROM event WHERE id = ?", (event.id,)).fetchone():
                continue
            seq += 1
            content = body(event.document(seq))
            row = (seq, event.id, event.at, event.kind, content, now)
            connection.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?, ?)", row)
            added += 1
        return added

    def newest(self, connection: sqlite3.Connection) -> int:
        """Return the number of the last event that was ever added."""
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event'").fetchone()
        return int(row[0]) if row else 0

    def events(self, after: int = 0, limit: int = 100) -> list[EventDocument]:
        """Return events after a number, oldest first."""
        with self.write() as connection:
            rows = connection.execute(
                "SELECT document FROM event WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
            ).fetchall()
        return [EventDocument.model_validate_json(row[0]) for row in rows]

    def last(self, limit: int) -> list[EventDocument]:
        """Return the last events, oldest first."""
        with self.write() as connection:
            newest = self.newest(connection)
        return self.events(max(0, newest - limit), limit)

    def prune(self, now: float) -> None:
        """Remove old events that every hook has."""
        with self.write() as connection:
            connection.execute(
                "DELETE FROM event WHERE collected < ? AND seq <= (SELECT COALESCE(MIN(seq), 0) FROM hook)",
                (now - KEPT,),
            )

    # Sources

    def place(self, connection: sqlite3.Connection, source: str) -> str | None:
        """Return how far a source was read; None for a new one."""
        row = connection.execute("SELECT place FROM source WHERE name = ?", (source,)).fetchone()
        return None if row is None else str(row[0])

    def put_place(self, connection: sqlite3.Connection, source: str, place: str) -> None:
        """Store how far a source was read."""
        connection.execute("INSERT OR REPLACE INTO source VALUES (?, ?)", (source, place))

    def directories(self) -> list[Path]:
        """Return the directories of channels that were read."""
        with self.write() as connection:
            rows = connection.execute("SELECT name FROM source").fetchall()
        return [
            Path(row[0].removeprefix(DIRECTORY)) for row in rows if row[0].startswith(DIRECTORY)
        ]

    # Hooks

    def hooks(self, names: Iterable[str] = ()) -> dict[str, HookState]:
        """Return the state of all hooks. Those in `names` that are new begin after the last event."""
        with self.write() as connection:
            newest = self.newest(connection)
            for name in names:
                connection.execute(
                    "INSERT OR IGNORE INTO hook (name, seq) VALUES (?, ?)", (name, newest)
                )
            rows = connection.execute("SELECT * FROM hook ORDER BY name").fetchall()
        return {row["name"]: HookState(**dict(row)) for row in rows}

    def forget(self, name: str) -> None:
        """Remove the state of a hook that the site no longer has."""
        with self.write() as connection:
            connection.execute("DELETE FROM hook WHERE name = ?", (name,))
            connection.execute("DELETE FROM alert WHERE hook = ?", (name,))

    def delivered(
        self,
        name: str,
        seq: int,
        now: float | None,
        more: Callable[[sqlite3.Connection], None] = lambda connection: None,
    ) -> None:
        """Record that a hook has the events up to a number. `now` None: the last ones were not for it."""
        with self.write() as connection:
            self.delivered_in(connection, name, seq, now)
            more(connection)

    def delivered_in(
        self, connection: sqlite3.Connection, name: str, seq: int, now: float | None
    ) -> None:
        """Record the same in a transaction."""
        connection.execute(
            "UPDATE hook SET seq = MAX(seq, ?), failures = 0, error = NULL, again = 0, "
            "delivered = COALESCE(?, delivered) WHERE name = ?",
            (seq, now, name),
        )

    def failed(self, name: str, error: str, now: float) -> HookState:
        """Record a failed delivery. The pause until the next one doubles each time."""
        with self.write() as connection:
            row = connection.execute("SELECT failures FROM hook WHERE name = ?", (name,)).fetchone()
            failures = (row[0] if row else 0) + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 20))
            connection.execute(
                "UPDATE hook SET failures = ?, error = ?, again = ? WHERE name = ?",
                (failures, error, now + pause, name),
            )
            failing = connection.execute("SELECT * FROM hook WHERE name = ?", (name,)).fetchone()
        return HookState(**dict(failing))

    def skip(self, name: str) -> None:
        """Put a hook behind the last event."""
        with self.write() as connection:
            self.delivered_in(connection, name, self.newest(connection), None)

    def alerts(self, name: str) -> list[str]:
        """Return the active alerts that a hook has raised, as JSON."""
        with self.write() as connection:
            rows = connection.execute(
                "SELECT content FROM alert WHERE hook = ? ORDER BY key", (name,)
            ).fetchall()
        return [str(row[0]) for row in rows]

    def repeated(self, name: str, now: float) -> None:
        """Record that active alerts were sent again."""
        with self.write() as connection:
            connection.execute("UPDATE hook SET repeated = ? WHERE name = ?", (now, name))

    # Trackers

    def tracker(self, hook: str, ticket: str) -> TrackerRecord | None:
        """Return the record of a ticket in the tracker of a hook; None if its sending has not begun."""
        with self.write() as connection:
            row = connection.execute(
                "SELECT begun, remote, url FROM ticket WHERE hook = ? AND ticket = ?",
                (hook, ticket),
            ).fetchone()
        return None if row is None else TrackerRecord(hook, ticket, *row)

    def trackers(self, ticket: str) -> list[TrackerRecord]:
        """Return the records of a ticket in all trackers."""
        with self.write() as connection:
            rows = connection.execute(
                "SELECT hook, ticket, begun, remote, url FROM ticket WHERE ticket = ? ORDER BY hook",
                (ticket,),
            ).fetchall()
        return [TrackerRecord(*row) for row in rows]

    def put_tracker(self, record: TrackerRecord) -> None:
        """Store the record of a ticket: before it is sent, and with its id once that is known."""
        with self.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO ticket VALUES (?, ?, ?, ?, ?)",
                (record.hook, record.ticket, record.begun, record.remote, record.url),
            )

    def begin_comment(self, hook: str, event: str, now: float) -> float | None:
        """Store that a comment is being sent. Return when that began before; None if this is the first time."""
        with self.write() as connection:
            row = connection.execute(
                "SELECT begun FROM ticket_comment WHERE hook = ? AND event = ?", (hook, event)
            ).fetchone()
            connection.execute(
                "INSERT OR REPLACE INTO ticket_comment VALUES (?, ?, ?)", (hook, event, now)
            )
        return None if row is None else float(row[0])

    @contextmanager
    def delivery(self) -> Iterator[bool]:
        """Yield whether this process may deliver: one at a time does."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            lock = self.file.with_name(f"{self.file.name}.lock").open("a")
        except OSError as problem:
            raise self._unusable(problem) from problem
        with lock as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
