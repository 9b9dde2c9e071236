"""`goldnode disks list`, `lock` and `build`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

_DEFINITION = click.option(
    "--definition",
    "definition_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Definition file; default: $GOLDNODE_DISK_DEFINITION, else goldnode's own.",
)
_STORE = click.option(
    "--store",
    "store_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of disk images; default: $GOLDNODE_DISKS, else .goldnode/disks.",
)


@click.command("list")
@_DEFINITION
@_STORE
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_(definition_file: Path | None, store_path: Path | None, form: str) -> None:
    """List the node classes with the lock of their disk image and the newest build."""
    from goldnode.catalog.load import load_catalog
    from goldnode.disks.definition import load_definition
    from goldnode.disks.locking import find_disk_lock, lock_file, target
    from goldnode.disks.model import builds, store_directory
    from goldnode.errors import GoldnodeError
    from goldnode.site import load_site

    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    newest = {disk.class_: disk for disk in reversed(builds(store_directory(store_path)))}
    rows = []
    for name, entry in sorted(catalog.classes.items()):
        stack = catalog.stacks[entry.item.stack].item
        row: dict[str, object] = {"class": name, "os": f"{stack.os.id} {stack.os.version}", "simulated": entry.item.simulated}
        try:
            lock = find_disk_lock(target(name, definition, catalog, site))
            row |= {"lock": f"locked {lock.resolved}", "packages": len(lock.debs), "fetched_bytes": lock.size}
        except GoldnodeError as problem:
            state = "stale" if lock_file(name, definition) is not None else "no lock"
            row |= {"lock": state, "why": str(problem), "packages": 0, "fetched_bytes": 0}
        row["build"] = newest[name].build_id if name in newest else None
        rows.append(row)
    if form == "json":
        click.echo(json.dumps(rows, indent=2, sort_keys=True, ensure_ascii=False))
        return
    table = [("class", "os", "lock", "packages", "fetched (MB)", "newest build", "")]
    for row in rows:
        table.append(
            (
                str(row["class"]),
                str(row["os"]),
                str(row["lock"]),
                str(row["packages"] or "-"),
                f"{int(str(row['fetched_bytes'])) / 1e6:.1f}" if row["fetched_bytes"] else "-",
                str(row["build"] or "-"),
                "simulated hardware" if row["simulated"] else "",
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@click.command()
@click.argument("names", nargs=-1, metavar="[CLASS]…")
@_DEFINITION
@_STORE
@click.option(
    "--check", "only_check", is_flag=True, help="Write nothing; tell what vanished or changed. Exit 1: a lock is not good as it is."
)
@click.option("--upgrade", is_flag=True, help="Let what is no part of the stack move to what the archives have now.")
@click.option("--offline", is_flag=True, help="Use the archive indexes of the cache as they are.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Directory to write to; default: where each lock is searched first."
)
def lock(
    names: tuple[str, ...],
    definition_file: Path | None,
    store_path: Path | None,
    only_check: bool,
    upgrade: bool,
    offline: bool,
    out: Path | None,
) -> None:
    """Resolve every package of the disk images of CLASSes with apt and write CLASS.lock.yml; without CLASS, all that have a lock.

    The stack's packages are at the versions of the stack's lock; a driver's modules are built, once. A lock that is good is kept as it is.
    """
    from goldnode.catalog.load import load_catalog
    from goldnode.disks import locking
    from goldnode.disks.definition import load_definition
    from goldnode.disks.store import open_store
    from goldnode.errors import DiskError, GoldnodeError
    from goldnode.site import load_site

    if only_check and upgrade:
        raise click.UsageError("--check and --upgrade exclude each other")
    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    chosen = names or tuple(name for name in sorted(catalog.classes) if locking.lock_file(name, definition) is not None)
    if not chosen:
        raise DiskError("no class has a lock of its disk image yet", file=definition.locks, remedy="name the classes")
    for name in names:
        catalog.node_class(name)
    wrong = 0
    store = None if only_check else open_store(store_path)
    for name in chosen:
        if store is None:
            problems: list[str] = []
            try:
                item = locking.target(name, definition, catalog, site)
                problems = [f"{row.kind}: {row.message}" for row in locking.check(item, locking.find_disk_lock(item), offline=offline)]
            except GoldnodeError as problem:
                problems = [str(problem)]
            for text in problems:
                click.echo(f"{name}: {text}")
            wrong += bool(problems)
            if not problems:
                click.echo(f"{name}: good")
            continue
        item = locking.target(name, definition, catalog, site)
        result = locking.relock(item, store.pool, upgrade=upgrade, offline=offline, out=out, say=lambda text: click.echo(text, err=True))
        click.echo(locking.line(result))
    if wrong:
        click.echo(f"error: {wrong} locks are not good as they are. Run `goldnode disks lock`.", err=True)
        sys.exit(1)
