"""Command `goldnode xid`."""

from __future__ import annotations

import sys
from typing import Any

import click

from goldnode.commands.output import emit, reports
from goldnode.core.errors import GoldnodeError
from goldnode.node.ground.text import phrase

_NODE = {
    "none": "no fault of the node",
    "degraded": "needs inspection: the node counts as degraded",
    "drain": "a reason to drain the node",
}
UNKNOWN = "unknown: neither NVIDIA's catalog nor the driver's sources list it. Treat it as a fault, and ask NVIDIA with the line of the log."


@click.command()
@click.argument("what", nargs=-1, metavar="[CODE|TEXT]...")
@reports("xid", json_flag=True)
def xid(what: tuple[str, ...], form: str) -> None:
    """Explain NVIDIA Xid and SXid errors.

    Give a CODE, or TEXT from a kernel log or a message that quotes one; without arguments the log is read from
    standard input. The explanation has the action from the Xid catalog of NVIDIA, its blast radius, the data that a support ticket needs,
    the sources, and where other tools differ.

    Exit status: 0 explained, 1 a given CODE is unknown, 2 an error.
    """
    from goldnode.facts import xid as table

    texts = list(what)
    if not texts or texts == ["-"]:
        if sys.stdin.isatty():
            raise GoldnodeError(
                "nothing to explain",
                remedy="give a number (`goldnode xid 79`), a line, or a log on standard input",
            )
        # Enough for a kernel log; a bound against an endless stream.
        texts = [sys.stdin.read(64 << 20)]
    rows = [row for text in texts for row in table.explain(text)]
    if not rows:
        raise GoldnodeError(
            "there is no Xid or SXid in that text",
            remedy="give a number, or the line as the kernel wrote it",
        )
    emit(form, {"errors": rows}, lambda: "\n\n".join("\n".join(_lines(row)) for row in rows))
    # A log may have codes of newer drivers; only a code that was asked for must be known.
    if what and not all(row["known"] for row in rows if row["code"] is not None):
        sys.exit(1)


def _lines(row: dict[str, Any]) -> list[str]:
    """Return the lines of one explanation, one for each property it has."""
    event = row["event"]
    lines = []
    if event is not None:
        times = f", {event['count']} times" if event["count"] > 1 else ""
        about = " ".join(filter(None, (event["address"], event["mig"])))
        # Without an address there is a space before the colon.
        lines.append(f"{event['kind']} {about}{times}: {event['text']}".replace(" :", ":"))
        # A line may be an event without a number, of which the catalog has no row.
        if row["code"] is None:
            return lines
    head = f"{row['kind']} {row['code']}"
    if not row["known"]:
        return [*lines, f"{head}: {UNKNOWN}"]
    lines.append(f"{head} {row['name']}" + phrase(" (nverror.h: {})", row["driver"]))
    pairs = [
        ("means", row["means"] or ("never printed, says the catalogue" if row["unused"] else None)),
        (
            "NVIDIA",
            f"{row['action']}: {row['does']}" if row["action"] else "no action in the catalogue",
        ),
        ("then", row["then"]),
        ("node", _NODE[row["node"]]),
        ("also affects", row["blast"]),
        ("remedy", row["remedy"]),
        ("for a ticket", row["evidence"]),
        *(("others say", reported) for reported in row["conflict"]),
        *(("source", source) for source in row["sources"]),
    ]
    return [*lines, *(f"  {name + ':':14}{text}" for name, text in pairs if text)]
