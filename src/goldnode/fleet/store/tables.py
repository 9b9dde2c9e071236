"""Tables of the store, as SQLAlchemy Core describes them. Both engines have the same ones.

Times are seconds since the epoch, UTC. A change here needs a migration in `migrations/versions`
that only adds, and a new version in `schema.py`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

# SQLite numbers rows by itself only where the type is INTEGER.
_SERIAL = BigInteger().with_variant(Integer(), "sqlite")
_NAME = String(255)  # the longest host name of DNS fits

SCOPES = ("class", "rack", "leaf", "cohort")  # failure domains of a node, each with limits
# One rollout of a class is in one of these. A rollout in one of the others of a direction moves late nodes only.
ACTIVE_PHASES = ("running", "rolling-back")
FORWARD_PHASES = ("running", "completed")
BACK_PHASES = ("rolling-back", "rolled-back")
_ACTIVE = text("phase IN ('running', 'rolling-back')")
_IN_FORCE = text("lifted_at IS NULL")
# States of a request of the queue that has not ended.
OPEN_REQUESTS = ("waiting", "granted", "running", "returning")
_OPEN = text(f"state IN {OPEN_REQUESTS}")

# One row. Code of version `oldest` and later can write this schema.
schema = Table(
    "goldnode_schema",
    metadata,
    Column("one", Integer, CheckConstraint("one = 1"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("oldest", Integer, nullable=False),
)

node = Table(
    "node",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("class", _NAME, nullable=False),
    Column("rack", _NAME),
    Column("leaf", _NAME),
    Column("cohort", _NAME),
    # Id with which a FleetLock client asks, if it is not the name.
    Column("machine", _NAME, unique=True),
    Column("tags", Text),  # JSON list, for pools
    Column("boot_id", _NAME),
    Column("digest", _NAME),
    Column("retired", Boolean, nullable=False, server_default=text("false")),
    *(Index(f"node_{scope}", scope) for scope in SCOPES),
)

rollout = Table(
    "rollout",
    metadata,
    Column("name", _NAME, primary_key=True),
    Column("class", _NAME, nullable=False),
    Column("target", _NAME, nullable=False),
    Column("document", Text, nullable=False),
    Column("limits", Text, nullable=False),  # of the document: JSON of FleetLimits
    Column("phase", String(32), nullable=False),
    Column("wave", Integer, nullable=False, server_default="0"),
    Column("why", Text, nullable=False, server_default=""),
    Column("back", String(32)),
    Column("author", _NAME, nullable=False),
    # The author cannot approve.
    Column("separate", Boolean, nullable=False, server_default=text("false")),
    Column("epoch", Integer, CheckConstraint("epoch >= 0"), nullable=False, server_default="0"),
    Column("holder", _NAME),  # controller that has the epoch
    Column("beat_at", Double),  # its last sign of life; safety does not depend on it
    Column("submitted_at", Double, nullable=False),
    Column("ended_at", Double),
    Index("rollout_class", "class", "submitted_at"),
    Index(
        "rollout_one_active", "class", unique=True, sqlite_where=_ACTIVE, postgresql_where=_ACTIVE
    ),
)

# Limits of a class while none of its rollouts has ever begun: JSON of FleetLimits.
class_limits = Table(
    "class_limits",
    metadata,
    Column("class", _NAME, primary_key=True),
    Column("limits", Text, nullable=False),
)

# Wave of each node of a rollout.
member = Table(
    "member",
    metadata,
    Column("rollout", _NAME, ForeignKey("rollout.name"), primary_key=True),
    Column("node", _NAME, ForeignKey("node.name"), primary_key=True),
    Column("wave", Integer, nullable=False),
    Index("member_wave", "rollout", "wave"),
)

step = Table(
    "step",
    metadata,
    Column("rollout", _NAME, ForeignKey("rollout.name"), primary_key=True),
    Column("node", _NAME, ForeignKey("node.name"), primary_key=True),
    Column("wave", Integer, nullable=False),
    Column("direction", String(16), nullable=False),
    Column("phase", String(32), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("target", _NAME),  # digest that the node moves to; NULL: its own earlier one is unknown
    Column("granted_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("prior", Text),
    Column("cause", Text),
    Column("blame", String(32)),
    Column("late", Boolean, nullable=False, server_default=text("false")),
    Column("worker", _NAME),  # controller process that works on it
    Index("step_phase", "rollout", "phase"),
)

# Reasons why a node is out of service. Persons, failures and rollouts share this ledger.
hold = Table(
    "hold",
    metadata,
    Column("node", _NAME, ForeignKey("node.name"), primary_key=True),
    Column("owner", _NAME, primary_key=True),
    Column(
        "kind",
        String(16),
        CheckConstraint("kind IN ('planned', 'failed', 'person')"),
        nullable=False,
    ),
    Column("rollout", _NAME, ForeignKey("rollout.name")),
    Column("epoch", Integer),
    Column("since", Double, nullable=False),
    Column("deadline", Double),
    Column("boot_id", _NAME),
    Column("reason", Text, nullable=False),
    CheckConstraint("kind <> 'planned' OR deadline IS NOT NULL", name="hold_deadline"),
    Index("hold_kind", "kind", "deadline"),
    Index(
        "hold_one_grant",
        "node",
        unique=True,
        sqlite_where=text("kind = 'planned'"),
        postgresql_where=text("kind = 'planned'"),
    ),
)

# Counters of each failure domain, maintained by triggers on `hold`. A limit that is NULL does not apply.
buffer = Table(
    "buffer",
    metadata,
    Column("scope", String(16), primary_key=True),
    Column("name", _NAME, primary_key=True),
    *(
        Column(
            counter, Integer, CheckConstraint(f"{counter} >= 0"), nullable=False, server_default="0"
        )
        for counter in ("planned", "failed", "person", "total")  # total: nodes, each counted once
    ),
    Column("planned_limit", Integer),
    Column("failed_limit", Integer),
    Column("total_limit", Integer),
    Column("nodes", Integer, nullable=False, server_default="0"),
)

observation = Table(
    "observation",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    Column("node", _NAME, ForeignKey("node.name"), nullable=False),
    Column("kind", String(16), nullable=False, server_default="node"),  # node or scheduler
    Column("at", Double, nullable=False),  # when the node observed it
    Column("received_at", Double, nullable=False),
    # Last line of the log before it.
    Column("log_seq", BigInteger, nullable=False, server_default="0"),
    Column("boot_id", _NAME),
    Column("digest", _NAME),
    Column("content", Text, nullable=False),
    Index("observation_node", "node", "kind", "seq"),
)

# Approvals by goldnode of schema 1: they name no document, and count for none.
approval = Table(
    "approval",
    metadata,
    Column("rollout", _NAME, ForeignKey("rollout.name"), primary_key=True),
    Column("wave", _NAME, primary_key=True),
    Column("role", _NAME, primary_key=True),
    Column("who", _NAME, nullable=False),
    Column("at", Double, nullable=False),
    # Two roles are two persons.
    Index("approval_person", "rollout", "wave", "who", unique=True),
)

# An approval counts for one text of the document.
document_approval = Table(
    "document_approval",
    metadata,
    Column("rollout", _NAME, ForeignKey("rollout.name"), primary_key=True),
    Column("document", String(64), primary_key=True),  # SHA-256 of its text
    Column("wave", _NAME, primary_key=True),
    Column("role", _NAME, primary_key=True),
    Column("who", _NAME, nullable=False),
    Column("at", Double, nullable=False),
    Index("document_approval_person", "rollout", "document", "wave", "who", unique=True),
)

frozen = Table(
    "frozen",
    metadata,
    Column("id", _NAME, primary_key=True),
    Column(
        "scope",
        String(16),
        CheckConstraint("scope IN ('all', 'class', 'rack', 'rollout')"),
        nullable=False,
    ),
    Column("subject", _NAME, nullable=False),  # class, rack or rollout; empty for all
    Column("reason", Text, nullable=False),
    Column("who", _NAME, nullable=False),
    Column("at", Double, nullable=False),
    Column("lifted_at", Double),
    Column("lifted_by", _NAME),
    Index(
        "frozen_once",
        "scope",
        "subject",
        unique=True,
        sqlite_where=_IN_FORCE,
        postgresql_where=_IN_FORCE,
    ),
)

denied = Table(
    "denied",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    Column("class", _NAME, nullable=False),
    Column("digest", _NAME, nullable=False),
    Column("reason", Text, nullable=False),
    Column("who", _NAME, nullable=False),
    Column("at", Double, nullable=False),
    Column("lifted_at", Double),
    Column("lifted_by", _NAME),
    Index(
        "denied_once",
        "class",
        "digest",
        unique=True,
        sqlite_where=_IN_FORCE,
        postgresql_where=_IN_FORCE,
    ),
)

# Requests of disruptive work for a node (goldnode.fleet.rollout.queue). One that has ended stays, as the history of the queue.
request = Table(
    "request",
    metadata,
    Column("id", _SERIAL, primary_key=True, autoincrement=True),
    Column("node", _NAME, ForeignKey("node.name")),  # NULL: of a rollout, or of a mirror
    Column("class", _NAME, nullable=False),
    Column("work", String(16), nullable=False),
    Column("needs", Text, nullable=False),  # JSON list
    Column("reason", Text, nullable=False),
    Column("who", _NAME, nullable=False),
    Column("holder", _NAME, nullable=False),  # the process that asks
    Column("token", Integer, nullable=False, server_default="1"),  # grows with each process
    Column("since", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("lease", Double, nullable=False),
    Column("time_limit", Double, nullable=False),  # seconds of its part
    Column("security", Boolean, nullable=False, server_default=text("false")),
    Column("rollout", _NAME, ForeignKey("rollout.name")),
    Column("places", Integer, nullable=False, server_default="1"),
    Column("state", String(16), nullable=False),
    Column("turn", BigInteger),  # parts of one turn of a node have the same number
    Column("under", _NAME),
    Column("offered_at", Double),
    Column("granted_at", Double),
    Column("began_at", Double),
    Column("deadline", Double),
    Column("ended_at", Double),
    Column("succeeded", Boolean),
    Column("fit", Boolean),  # the node may return, as far as this part knows
    Column("result", Text),
    Column("together", _NAME),  # requests that are granted whole have the same name
    Index("request_state", "state", "node"),
    Index("request_turn", "turn"),
    Index(
        "request_once",
        "node",
        "work",
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    ),
    sqlite_autoincrement=True,
)

# Append-only: triggers refuse UPDATE and DELETE.
log = Table(
    "log",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("who", _NAME, nullable=False),
    Column("rollout", _NAME),
    Column("epoch", Integer),
    Column("action", String(32), nullable=False),
    Column("subject", _NAME, nullable=False),
    Column("content", Text, nullable=False),
    Index("log_rollout", "rollout", "seq"),
    Index("log_subject", "subject", "seq"),
    sqlite_autoincrement=True,  # a number is never used twice
)

# Sealed heads of the log: SHA-256 over the head before it and every row up to `seq`. Append-only too.
head = Table(
    "log_head",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=False),
    Column("covers", Integer, nullable=False),  # rows between the head before it and this one
    Column("digest", String(64), nullable=False),
    Column("at", Double, nullable=False),
    Column("envelope", Text),  # DSSE envelope; NULL at a site without a key
)
