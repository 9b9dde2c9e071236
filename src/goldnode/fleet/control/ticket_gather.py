"""Gather what the ticket of a repair needs: evidence of its rungs, parts and their history, the vendor's own report.

The bundle names files that could not be read as missing. A ticket is opened all the same: a node that does not
answer needs one too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from goldnode.core import extras
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site
from goldnode.fleet.control import rma_bundle
from goldnode.fleet.control.part_offenders import parts_of, ticket_part
from goldnode.fleet.control.rma_bundle import BundleContent, WrittenBundle
from goldnode.fleet.nodes.reach import SshNode
from goldnode.fleet.rollout.ladder import RepairCase, RungRecord
from goldnode.fleet.rollout.lines import moment
from goldnode.fleet.shared import part_places
from goldnode.fleet.shared.part_places import MACHINE, PartSighting
from goldnode.fleet.store import repairs, tickets
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.repairs import LadderRecord
from goldnode.fleet.store.tickets import Ticket, TicketRequest

VENDOR = 600.0  # seconds for the vendor's report
# The script may hang on a GPU that is gone: its safe mode leaves out what does, and there is a limit.
_VENDOR = r"""
command -v nvidia-bug-report.sh >/dev/null || exit 127
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
timeout -k 10 540 nvidia-bug-report.sh --safe-mode --output-file "$dir/report.log" </dev/null >/dev/null 2>&1
cat "$dir/report.log.gz" 2>/dev/null || cat "$dir/report.log"
"""
_MOST = 256 << 20  # bytes of all evidence in a bundle


@dataclass(frozen=True)
class TicketCause:
    """Cause of a ticket: a finding of a node, since a time, and the rungs that were tried."""

    node: str
    finding: str
    why: str
    since: float
    rungs: tuple[RungRecord, ...] = ()
    transitions: tuple[Mapping[str, Any], ...] = ()


@dataclass
class _Gathered:
    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    captures: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    subjects: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class TicketGatherer:
    """A Gather over the files of this machine, the fleet's captures and, by `reach`, the node itself.

    :param class_of: class of a node; None if it is not known.
    :param data: directory of the fleet's captures.
    """

    site: Site
    store: StoreDatabase
    data: Path | None
    class_of: Callable[[str], str | None] = lambda name: None
    reach: Callable[[str], SshNode] | None = None

    def of_case(self, case: RepairCase, key: str) -> TicketRequest:
        """See Gather."""
        with self.store.read() as connection:
            record = LadderRecord()
            record.read(connection)
        rungs = tuple(
            row for row in record.state.rungs if row.node == case.node and row.at >= case.opened_at
        )
        lines = tuple(
            {"at": moment(at), "action": type(action).__name__, **asdict(action)}
            for at, action in record.lines
            if repairs.node_of(action) == case.node and at >= case.opened_at
        )
        cause = TicketCause(
            case.node,
            case.finding,
            case.why,
            case.opened_at,
            rungs=rungs,
            transitions=lines,
        )
        return self.request(cause, key)

    def request(self, cause: TicketCause, key: str) -> TicketRequest:
        """Return the request of a ticket, with its bundle on this machine."""
        node, gathered = cause.node, _Gathered()
        self._evidence(cause, gathered)
        inventory, simulated = self._parts(cause, gathered)
        self._vendor(node, gathered, bool(simulated))
        gathered.files["repair.json"] = _json(
            {
                "rungs": [_rung(row) for row in cause.rungs],
                "transitions": list(cause.transitions),
            }
        )
        blamed = self._blamed(inventory, gathered.subjects)
        with self.store.read() as connection:
            known = list(tickets.read(connection).tickets.values())
        self._history(cause, blamed, known, gathered)
        parts = tuple(map(ticket_part, blamed))
        text = self._text(cause, gathered)
        node_class = self.class_of(node)
        about = {
            "node": node,
            "class": node_class,
            "simulated": simulated,
            "finding": cause.finding,
            "why": cause.why,
            "since": moment(cause.since),
            "parts": [asdict(part) for part in parts],
        }
        gathered.files["report.txt"] = text.encode()
        name = tickets.identity(node, cause.finding, key)
        written = self._write(
            BundleContent(name, cause.since, about, gathered.files, gathered.missing)
        )
        return TicketRequest(
            node,
            cause.finding,
            cause.why,
            key,
            node_class=node_class,
            simulated=simulated,
            parts=parts,
            inventory=tuple(map(ticket_part, inventory)),
            text=text,
            bundle=str(written.file),
            bundle_sha256=written.sha256,
        )

    def _write(self, content: BundleContent) -> WrittenBundle:
        return rma_bundle.write(content, Path(self.site.tickets.bundles), known_secrets(self.site))

    # -- what is stored

    def _evidence(self, cause: TicketCause, gathered: _Gathered) -> None:
        """Add the evidence of the rungs since the case was opened."""
        place = Path(self.site.ladder.evidence) / cause.node
        total = 0
        for folder in sorted(place.glob("*")):
            about = read_object(folder / "evidence.json")
            if about is None or float(about.get("at", 0)) < cause.since:
                continue
            for file in sorted(folder.iterdir()):
                data = file.read_bytes()
                total += len(data)
                name = f"rungs/{folder.name}/{file.name}"
                if total > _MOST:
                    gathered.missing[name] = f"the evidence has more than {_MOST >> 20} MiB"
                    continue
                gathered.files[name] = data
            capture, verdict = (
                read_object(folder / "capture.json"),
                read_object(folder / "verdict.json"),
            )
            if capture is not None:
                gathered.captures.append((float(about["at"]), capture))
            for row in (verdict or {}).get("findings", ()):
                if isinstance(row, dict) and row.get("id") == cause.finding and row.get("subject"):
                    gathered.subjects.add(str(row["subject"]))
        if not gathered.files:
            gathered.missing["rungs"] = f"{place} has no evidence since {moment(cause.since)}"

    def _parts(
        self, cause: TicketCause, gathered: _Gathered
    ) -> tuple[list[PartSighting], bool | None]:
        """Return the last known part of each slot, and whether the hardware is simulated."""
        rows: list[PartSighting] = []
        for at, capture in gathered.captures:
            rows += [row for row in parts_of(capture, cause.node, at) if row.serial or row.identity]
        try:
            rows += self._sightings(nodes=[cause.node])
        except GoldnodeError as problem:
            gathered.missing["parts of earlier captures"] = str(problem)
        now = max((row.last for row in rows), default=_utc(cause.since))
        inventory = part_places.known(rows, cause.node, now)
        gathered.files["parts.json"] = _json([_sighting(row) for row in inventory])
        if not inventory:
            gathered.missing["serial numbers"] = "no capture shows a part with one"
        return inventory, any(row.simulated for row in rows) if rows else None

    def _sightings(
        self, nodes: Iterable[str] = (), names: Iterable[str] = ()
    ) -> list[PartSighting]:
        if self.data is None or not self.data.exists():
            raise GoldnodeError(
                "there are no captures of the fleet", remedy="`goldnode fleet ingest` writes them"
            )
        extras.require("report")
        from goldnode.fleet.report import part_history  # only that extra installs its packages

        return part_history.sightings(self.data, datetime.now(UTC), nodes, names)

    def _blamed(
        self, inventory: Sequence[PartSighting], subjects: Iterable[str]
    ) -> list[PartSighting]:
        """Return the parts that the finding names by their address; the machine if it names none."""
        text = " ".join(subjects).lower()
        named = [part for part in inventory if part.slot and part.slot.lower() in text]
        return named or [part for part in inventory if part.kind == MACHINE]

    def _history(
        self,
        cause: TicketCause,
        blamed: Sequence[PartSighting],
        known: Sequence[Ticket],
        gathered: _Gathered,
    ) -> None:
        """Add where these parts and the parts of these slots were, and the tickets that they had."""
        names = [name for part in blamed for name in (part.serial, part.identity) if name]
        rows: list[PartSighting] = []
        try:
            rows = self._sightings([cause.node], names)
        except GoldnodeError as problem:
            gathered.missing["history"] = str(problem)
        places = {(part.kind, part.slot) for part in blamed}
        of_slot = [one for one in rows if one.node == cause.node and (one.kind, one.slot) in places]
        of_part, all_names = part_places.history_of(rows, names)
        earlier = [
            one
            for one in known
            if one.request.node == cause.node
            or any(
                {part.serial, part.identity} & (all_names or set(names))
                for part in one.request.parts
            )
        ]
        gathered.files["history.json"] = _json(
            {
                "slot": [_sighting(one) for one in of_slot],
                "part": [_sighting(one) for one in of_part],
                "tickets": [
                    {
                        "ticket": one.id,
                        "node": one.request.node,
                        "finding": one.request.finding,
                        "opened": moment(one.opened_at),
                        "closed": moment(one.closed_at) if one.closed_at is not None else None,
                        "reason": one.closed_why,
                    }
                    for one in earlier
                ],
            }
        )

    def _vendor(self, node: str, gathered: _Gathered, simulated: bool) -> None:
        """Add the report of the vendor's own program, where the node has it."""
        name = "nvidia-bug-report.log"
        if self.reach is None:
            gathered.missing[name] = "the node was not asked"
            return
        done = self.reach(node).run("sh", "-c", _VENDOR, timeout=VENDOR)
        if done.returncode == 127:
            gathered.missing[name] = "nvidia-bug-report.sh is not installed on the node"
        elif not done.stdout:
            said = done.stderr.decode("utf-8", "replace").strip()[-200:]
            gathered.missing[name] = f"it gave nothing (status {done.returncode}): {said}"
        else:
            label = "SIMULATED-" if simulated else ""
            suffix = ".gz" if done.stdout[:2] == b"\x1f\x8b" else ""
            gathered.files[f"vendor/{label}{name}{suffix}"] = done.stdout

    def _text(self, cause: TicketCause, gathered: _Gathered) -> str:
        lines = ["Rungs that were tried:"] if cause.rungs else ["No rung was tried."]
        lines += [
            f"- {row.rung}, {moment(row.at)}: {row.outcome or 'its end is not known'}"
            for row in cause.rungs
        ]
        if gathered.subjects:
            lines.append(f"The finding names: {', '.join(sorted(gathered.subjects))}")
        return "\n".join(lines)


def known_secrets(site: Site) -> frozenset[str]:
    """Return the secrets of the site that are in files which this process may read."""
    files = [hook.webhook.secret for hook in site.events.hooks.values() if hook.webhook]
    files += [
        hook.ticket.credentials
        for hook in site.events.hooks.values()
        if hook.ticket and hook.ticket.credentials
    ]
    files += [
        hook.alertmanager.token
        for hook in site.events.hooks.values()
        if hook.alertmanager and hook.alertmanager.token
    ]
    if site.ladder.bmc is not None and site.ladder.bmc.credentials:
        files.append(site.ladder.bmc.credentials)
    values = set()
    for name in files:
        try:
            lines = site.resolve(name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue  # it cannot have been read for a log either
        # The first of two lines is a user, which is no secret.
        values |= set(lines[1:] if len(lines) > 1 and not lines[0].startswith("whsec_") else lines)
    return frozenset(line.strip() for line in values if line.strip())


def read_object(file: Path) -> dict[str, Any] | None:
    """Return a JSON object; None for a file without one, or that is absent."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _json(content: Any) -> bytes:
    return (json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _rung(row: RungRecord) -> dict[str, Any]:
    return {
        "rung": row.rung,
        "at": moment(row.at),
        "evidence": row.evidence,
        "outcome": row.outcome,
        "ended": moment(row.ended_at) if row.ended_at is not None else None,
    }


def _sighting(row: PartSighting) -> dict[str, Any]:
    return {**asdict(row), "first": f"{row.first}Z", "last": f"{row.last}Z"}


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
