# ruff: noqa: S608 - every statement is made of constants of this file
"""Triggers that hold the limits in the database itself, whatever program writes to it.

Both engines have the same guards. A guard aborts the transaction with the message `goldnode:NAME`.
On PostgreSQL a guard first takes the lock that every writer takes, so that it also serialises a
program that does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Connection

from goldnode.fleet.shared.person import BLANKS

# Key of PostgreSQL's advisory lock that writers of the ledger take; any number, the same in every version.
LEDGER_LOCK = 0x676F6C64

# Name of a guard -> the sentence for a person.
MEANINGS = {
    "planned": "the planned buffer of a failure domain is full",
    "failed": "more nodes of a failure domain have failed than its limit",
    "total": "too many nodes of a failure domain are out of service, for all reasons",
    "frozen": "a freeze is in force",
    "epoch": "another controller has taken over the rollout",
    "phase": "the rollout is not running",
    "twice": "the owner holds the node already",
    "out": "the node is out of service already",
    "document": "no document is in force for the class of the node",
    "denied": "the digest is on the deny list of the class",
    "kind": "only a rollout that goes back may move a node from the failed to the planned buffer",
    "moved": "a node with a grant cannot move to another class, rack, leaf or cohort",
    "backwards": "an epoch never decreases",
    "author": "the author of the rollout cannot approve it",
    "turn": "the node has a turn of the queue already",
    "append": "the log, its heads and the approvals are append-only",
}


class _Guard(NamedTuple):
    """One trigger: its table, when it runs, and (guard name, SQL condition) pairs that abort, or statements."""

    name: str
    table: str
    when: str
    aborts: tuple[tuple[str, str], ...] = ()
    statements: tuple[str, ...] = ()


_KINDS = ("planned", "failed", "person")
_SCOPES = ("class", "rack", "leaf", "cohort")


def _domains(row: str) -> str:
    """Return the condition that selects the buffers of the node in `row`."""
    return " OR ".join(
        f"(buffer.scope = '{scope}' AND buffer.name = {row}.\"{scope}\")" for scope in _SCOPES
    )


def _one(condition: str) -> str:
    return f"CASE WHEN {condition} THEN 1 ELSE 0 END"


def _update(sets: dict[str, str], where: str) -> str:
    return f"UPDATE buffer SET {', '.join(f'{name} = {name} {change}' for name, change in sets.items())} WHERE {where}"


def _update_domains(sets: dict[str, str], row: str) -> tuple[str, ...]:
    """Return the statements that change the buffers of the node of a hold, one for each scope.

    In one statement with OR, PostgreSQL reads the whole table for each hold if it planned while the
    table was small.
    """
    return tuple(
        _update(
            sets,
            f"buffer.scope = '{scope}' AND buffer.name = (SELECT n.\"{scope}\" FROM node n WHERE n.name = {row}.node)",
        )
        for scope in _SCOPES
    )


def _others(row: str) -> str:
    """Return the condition that the node has no hold besides `row`."""
    return f"NOT EXISTS (SELECT 1 FROM hold h WHERE h.node = {row}.node AND h.owner <> {row}.owner)"


def _counted(row: str, sign: str) -> tuple[str, ...]:
    """Return the statements that add the hold `row` to the counters, or subtract it."""
    kinds = {kind: f"{sign} {_one(f'{row}.kind = {chr(39)}{kind}{chr(39)}')}" for kind in _KINDS}
    return _update_domains({**kinds, "total": f"{sign} {_one(_others(row))}"}, row)


# Both kinds in one statement: a hold that stays planned must not count as a new one.
_KIND_CHANGED = _update_domains(
    {
        kind: f"+ {_one(f'NEW.kind = {chr(39)}{kind}{chr(39)}')} - {_one(f'OLD.kind = {chr(39)}{kind}{chr(39)}')}"
        for kind in _KINDS
    },
    "NEW",
)
_MOVED = " OR ".join(f'NEW."{scope}" IS DISTINCT FROM OLD."{scope}"' for scope in _SCOPES)
_GRANTED = "EXISTS (SELECT 1 FROM hold h WHERE h.node = NEW.name AND h.kind = 'planned')"


def _node_moved(sign: str, row: str) -> str:
    """Return the statement that moves the holds of a node that has changed its failure domains."""
    held = "(SELECT count(*) FROM hold h WHERE h.node = NEW.name{})"
    kinds = {
        kind: f"{sign} {held.format(f' AND h.kind = {chr(39)}{kind}{chr(39)}')}"
        for kind in _KINDS[1:]
    }
    out = f"{sign} {_one('EXISTS (SELECT 1 FROM hold h WHERE h.node = NEW.name)')}"
    return _update({**kinds, "total": out}, f"({_MOVED}) AND ({_domains(row)})")


_FROZEN = (
    "EXISTS (SELECT 1 FROM frozen f, node n WHERE n.name = NEW.node AND f.lifted_at IS NULL AND (f.scope = 'all' "
    "OR (f.scope = 'class' AND f.subject = n.\"class\") OR (f.scope = 'rack' AND f.subject = n.rack) "
    "OR (f.scope = 'rollout' AND f.subject = NEW.rollout)))"
)
_NO_DOCUMENT = (
    "NOT EXISTS (SELECT 1 FROM buffer b, node n WHERE n.name = NEW.node AND b.scope = 'class' "
    'AND b.name = n."class" AND b.planned_limit IS NOT NULL)'
)
_DENIED = (
    'EXISTS (SELECT 1 FROM denied d, node n WHERE n.name = NEW.node AND d."class" = n."class" '
    "AND d.digest = NEW.target AND d.lifted_at IS NULL)"
)


def _rollout(column: str) -> str:
    return f"(SELECT r.{column} FROM rollout r WHERE r.name = NEW.rollout)"


def _grant(condition: str) -> str:
    return f"NEW.kind = 'planned' AND {condition}"


_TURN = "('granted', 'running', 'returning')"


def _in_turn(row: str, more: str = "") -> str:
    """Return the condition that the node of `row` is in a turn of the queue."""
    return (
        f"EXISTS (SELECT 1 FROM request q WHERE q.node = {row}.node AND q.state IN {_TURN}{more})"
    )


_ROLLOUTS = (
    ("frozen", _grant(_FROZEN)),
    (
        "epoch",
        _grant(f"NEW.rollout IS NOT NULL AND NEW.epoch IS DISTINCT FROM {_rollout('epoch')}"),
    ),
)
# A completed rollout still moves nodes that were away, as does one that was rolled back.
_FORWARD, _BACK = "'running', 'completed'", "'rolling-back', 'rolled-back'"
_BECOMES = "NEW.kind = 'planned' AND OLD.kind <> 'planned'"

_APPEND_ONLY = ("log", "log_head", "approval", "document_approval")

_GUARDS = (
    _Guard(
        "hold_grant",
        "hold",
        "BEFORE INSERT",
        (
            ("out", _grant("EXISTS (SELECT 1 FROM hold h WHERE h.node = NEW.node)")),
            ("turn", _grant(_in_turn("NEW"))),
            ("document", _grant(_NO_DOCUMENT)),
            *_ROLLOUTS,
            (
                "phase",
                _grant(
                    f"NEW.rollout IS NOT NULL AND {_rollout('phase')} NOT IN ({_FORWARD}, {_BACK})"
                ),
            ),
        ),
    ),
    # A rollout that goes back may take a node that its change broke out of the failed buffer; nothing else may.
    _Guard(
        "hold_kind",
        "hold",
        "BEFORE UPDATE",
        (
            ("kind", "NEW.node <> OLD.node OR NEW.owner <> OLD.owner"),
            (
                "kind",
                f"{_BECOMES} AND (OLD.kind <> 'failed' OR NEW.rollout IS NULL OR NEW.owner <> NEW.rollout "
                f"OR {_rollout('phase')} NOT IN ({_BACK}))",
            ),
            ("out", f"{_BECOMES} AND NOT {_others('NEW')}"),
            ("turn", f"{_BECOMES} AND {_in_turn('NEW')}"),
            *((name, f"{_BECOMES} AND {condition}") for name, condition in _ROLLOUTS),
        ),
    ),
    # BEFORE: of several rows in one statement, each sees those before it. After it, PostgreSQL shows all of them.
    _Guard(
        "hold_added",
        "hold",
        "BEFORE INSERT",
        (
            (
                "twice",
                "EXISTS (SELECT 1 FROM hold h WHERE h.node = NEW.node AND h.owner = NEW.owner)",
            ),
        ),
        _counted("NEW", "+"),
    ),
    _Guard("hold_removed", "hold", "BEFORE DELETE", (), _counted("OLD", "-")),
    _Guard("hold_changed", "hold", "AFTER UPDATE", (), _KIND_CHANGED),
    _Guard(
        "buffer_limit",
        "buffer",
        "BEFORE UPDATE",
        tuple(
            (kind, f"NEW.planned > OLD.planned AND NEW.{kind} > NEW.{kind}_limit{more}")
            for kind, more in (
                ("planned", ""),
                ("failed", ""),
                ("total", " AND NEW.total > OLD.total"),
            )
        ),
    ),
    _Guard("node_moves", "node", "BEFORE UPDATE", (("moved", f"({_MOVED}) AND {_GRANTED}"),)),
    _Guard(
        "node_moved", "node", "AFTER UPDATE", (), (_node_moved("-", "OLD"), _node_moved("+", "NEW"))
    ),
    *(
        _Guard(
            f"request_{event.lower()}",
            "request",
            f"BEFORE {event}",
            (
                (
                    "turn",
                    f"NEW.node IS NOT NULL AND NEW.state IN {_TURN} "
                    f"AND {_in_turn('NEW', ' AND q.turn IS DISTINCT FROM NEW.turn AND q.id <> NEW.id')}",
                ),
            ),
        )
        for event in ("INSERT", "UPDATE")
    ),
    _Guard("step_new", "step", "BEFORE INSERT", (("denied", _DENIED),)),
    _Guard("step_retried", "step", "BEFORE UPDATE OF target", (("denied", _DENIED),)),
    *(
        _Guard(
            f"step_epoch_{event.lower()}",
            "step",
            f"BEFORE {event}",
            (("epoch", f"NEW.epoch IS DISTINCT FROM {_rollout('epoch')}"),),
        )
        for event in ("INSERT", "UPDATE")
    ),
    _Guard("rollout_epoch", "rollout", "BEFORE UPDATE", (("backwards", "NEW.epoch < OLD.epoch"),)),
    *(
        _Guard(f"{table}_{event.lower()}", table, f"BEFORE {event}", (("append", "1 = 1"),))
        for table in _APPEND_ONLY
        for event in ("UPDATE", "DELETE")
    ),
    # Writers of these serialise with grants: the next grant sees a freeze that has returned.
    *(_Guard(f"{table}_serial", table, "BEFORE INSERT") for table in ("frozen", "denied")),
)


def _approval_authors(postgresql: bool) -> Iterator[_Guard]:
    """Yield the guards against an author's own approval, by the rule of :func:`goldnode.fleet.shared.person.same_person`.

    Without an extension, SQLite lowers ASCII letters only, and PostgreSQL others as the database's
    locale has them. So the guard lowers ASCII on both, and the code alone compares the case of
    other letters.
    """
    find, letters = ("strpos", ' COLLATE "C"') if postgresql else ("instr", "")

    def user(identity: str) -> str:
        name = f"substr({identity}, 1, {find}({identity} || '@', '@') - 1)"
        bare = f"substr({name}, {find}({name}, '\\') + 1)"
        return f"lower(trim({bare}, '{BLANKS}'){letters})"

    same = f"{user(_rollout('author'))} = {user('NEW.who')}"
    for table in ("approval", "document_approval"):
        yield _Guard(
            f"{table}_author",
            table,
            "BEFORE INSERT",
            (("author", f"{_rollout('separate')} AND {same}"),),
        )


# Tables whose writers take the lock inside the trigger.
_SERIAL = {"hold", "buffer", "frozen", "denied", "request"}


def install(connection: Connection) -> None:
    """Create the guards."""
    postgresql = connection.dialect.name == "postgresql"
    for guard in (*_GUARDS, *_approval_authors(postgresql)):
        for statement in _postgresql(guard) if postgresql else [_sqlite(guard)]:
            connection.exec_driver_sql(statement)
    if postgresql:
        for table in _APPEND_ONLY:
            connection.exec_driver_sql(
                f"CREATE TRIGGER {table}_truncate BEFORE TRUNCATE ON {table} EXECUTE FUNCTION goldnode_{table}_delete()"
            )


def remove(connection: Connection) -> None:
    """Drop the guards of any version, for a restore or a migration that installs them again in its transaction."""
    if connection.dialect.name == "postgresql":
        names = connection.exec_driver_sql(
            "SELECT proname FROM pg_proc WHERE left(proname, 9) = 'goldnode_' "
            "AND pronamespace = current_schema()::regnamespace"
        )
        for name in names.scalars().all():
            connection.exec_driver_sql(f"DROP FUNCTION {name}() CASCADE")
        return
    names = connection.exec_driver_sql(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND substr(name, 1, 9) = 'goldnode_'"
    )
    for name in names.scalars().all():
        connection.exec_driver_sql(f"DROP TRIGGER {name}")


def _sqlite(guard: _Guard) -> str:
    # IS DISTINCT FROM came with SQLite 3.39; IS NOT means the same in every version.
    lines = [
        f"SELECT RAISE(ABORT, 'goldnode:{name}') WHERE {condition};"
        for name, condition in guard.aborts
    ]
    lines += [f"{statement};" for statement in guard.statements]
    lines = lines or ["SELECT 1;"]
    body = " ".join(lines).replace("IS DISTINCT FROM", "IS NOT")
    return f"CREATE TRIGGER goldnode_{guard.name} {guard.when} ON {guard.table} FOR EACH ROW BEGIN {body} END"


def _postgresql(guard: _Guard) -> list[str]:
    lines = [f"PERFORM pg_advisory_xact_lock({LEDGER_LOCK});"] if guard.table in _SERIAL else []
    lines += [
        f"IF {condition} THEN RAISE EXCEPTION 'goldnode:{name}'; END IF;"
        for name, condition in guard.aborts
    ]
    lines += [f"{statement};" for statement in guard.statements]
    lines.append("RETURN OLD;" if "DELETE" in guard.when else "RETURN NEW;")
    function = f"goldnode_{guard.name}"
    return [
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {' '.join(lines)} END $$",
        f"CREATE TRIGGER {function} {guard.when} ON {guard.table} FOR EACH ROW EXECUTE FUNCTION {function}()",
    ]
