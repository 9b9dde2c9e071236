"""Command `goldnode cve mitigate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.commands.cve import facts as shared
from goldnode.commands.cve import sources as given
from goldnode.commands.cve.sources import CveSources
from goldnode.commands.fleet.ingest import DATA
from goldnode.commands.options import grouped
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    import datetime as dt

    from goldnode.classdoc.mitigations import Mitigation


@dataclass(frozen=True)
class _Settings:
    """The mitigation as it is given."""

    classes: tuple[str, ...]
    deny: tuple[str, ...]
    sysctl: tuple[str, ...]
    boot: tuple[str, ...]
    reason: str | None
    owner: str | None
    expires: dt.datetime | None


@click.command()
@shared.CVE_NAME
@grouped(
    "settings",
    _Settings,
    shared.CLASSES,
    click.option("--deny", multiple=True, metavar="MODULE", help="Module to keep out. Repeatable."),
    click.option(
        "--sysctl", multiple=True, metavar="KEY=VALUE", help="Kernel parameter. Repeatable."
    ),
    click.option(
        "--boot",
        multiple=True,
        metavar="WORD",
        help="Word of the kernel command line, in force after a boot. Repeatable.",
    ),
    click.option("--reason", metavar="TEXT", help="Why it is needed, for instance the advisory."),
    click.option("--owner", metavar="NAME", help="Person or team who decided it."),
    click.option(
        "--expires",
        type=click.DateTime(["%Y-%m-%d"]),
        metavar="DATE",
        help="The last day on which it is in force.",
    ),
)
@click.option("--lift", is_flag=True, help="Remove it, if no node of its classes is left.")
@shared.WRITE
@given.SOURCES
@DATA
def mitigate(
    name: str,
    *,
    settings: _Settings,
    lift: bool,
    write: bool,
    sources: CveSources,
    data: Path | None,
) -> None:
    """Mitigate a vulnerability on the nodes of classes until the fix runs.

    The mitigation is a file of the site. Its settings become part of the class documents: the next run of site.yml or
    the signed channel applies them, and the health check judges them. They go after the last day, and with the lock whose
    kernel has the fix: then at the boot of that kernel. --lift removes the
    file, and refuses while a node of its classes has the vulnerability or may have it.
    """
    read = shared.judged(name, sources, data)
    if lift:
        _lift(read, write=write)
        return
    row = _given(read.facts.cve, settings, read)
    text = _text(row)
    record = read.facts.record
    if not write:
        click.echo(f"would write {record.mitigation}:\n\n{text}")
        for class_ in row.classes:
            nodes = [node for node in read.facts.nodes if node.class_ == class_]
            click.echo(f"{class_}: {len(nodes)} nodes by their last captures")
        click.echo("add --write to do it")
        return
    from goldnode.core.files import replace_file
    from goldnode.cve.record import event
    from goldnode.fleet.shared.person import person

    by = person()
    for class_ in row.classes:
        record.add(event(read.facts.at, by, "mitigate", "begun", row.reason, class_=class_))
    replace_file(record.mitigation, text.encode())
    click.echo(f"wrote {record.mitigation}")
    for class_ in row.classes:
        click.echo(f"apply it: ansible-playbook site.yml --limit {class_}")
    click.echo(f"read what nodes have: goldnode cve lane {read.facts.cve}")


def _given(cve: str, settings: _Settings, read: shared.JudgedVulnerability) -> Mitigation:
    """Return the mitigation. Raises click.UsageError and GoldnodeError for invalid values."""
    from pydantic import ValidationError

    from goldnode.classdoc.mitigations import SCHEMA, Mitigation
    from goldnode.cve.lane import kernel_fix

    classes = shared.require_classes(read, settings.classes)
    missing = [key for key in ("reason", "owner", "expires") if getattr(settings, key) is None]
    if missing:
        raise click.UsageError(f"a mitigation has --{missing[0]}")
    values: dict[str, str] = {}
    for pair in settings.sysctl:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f'--sysctl "{pair}" has no "="; write KEY=VALUE')
        values[key.strip()] = value.strip()
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "cve": cve,
        "classes": list(classes),
        "deny": list(settings.deny),
        "sysctl": values,
        "cmdline": list(settings.boot),
        "reason": settings.reason,
        "owner": settings.owner,
        "expires": settings.expires.date() if settings.expires is not None else None,
        "fixed": kernel_fix(read.facts, classes),
    }
    try:
        row = Mitigation.model_validate(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        fault, _, remedy = first["msg"].removeprefix("Value error, ").partition(" | ")
        raise GoldnodeError(
            f"{where or 'the mitigation'}: {fault}", remedy=remedy or "correct the value"
        ) from problem
    if row.expires < read.facts.at.date():
        raise GoldnodeError(f"{row.expires} is past", remedy="name a later day with --expires")
    return row


def _text(row: Mitigation) -> str:
    import yaml

    content = row.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(content, sort_keys=False)


def _lift(read: shared.JudgedVulnerability, *, write: bool) -> None:
    """Remove the mitigation. Raises GoldnodeError while a node of its classes is left, or none was read."""
    row, record = read.facts.mitigation, read.facts.record
    if row is None:
        click.echo(f"{read.facts.cve} has no mitigation")
        return
    left, unread = read.facts.left(), read.facts.unread()
    for class_ in row.classes:
        nodes = [node.name for node in read.facts.nodes if node.class_ == class_]
        still = sorted({name for name in nodes if name in left or name in unread})
        if read.facts.entry is None or not nodes:
            raise GoldnodeError(
                f"it is not known whether nodes of {class_} still have {read.facts.cve}",
                remedy="name data with --feed, and collect captures of its nodes",
            )
        if still:
            raise GoldnodeError(
                f"{len(still)} nodes of {class_} still have {read.facts.cve}, or may have it: {still[0]}",
                remedy=f"see goldnode cve lane {read.facts.cve}",
            )
    if not write:
        click.echo(f"would remove {record.mitigation}: no node of its classes is left; add --write")
        return
    from goldnode.cve.record import event
    from goldnode.fleet.shared.person import person

    for class_ in row.classes:
        record.add(event(read.facts.at, person(), "mitigate", "begun", "lifted", class_=class_))
    record.mitigation.unlink()
    click.echo(f"removed {record.mitigation}; the next run of site.yml removes its settings")
