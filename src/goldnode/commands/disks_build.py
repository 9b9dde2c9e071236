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
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.errors import GoldnodeError
    from goldnode.core.site import load_site
    from goldnode.disks.definition import load_definition
    from goldnode.disks.locking import find_disk_lock, lock_file, target
    from goldnode.disks.model import builds, store_directory

    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    definition.check(catalog)
    newest = {disk.class_: disk for disk in reversed(builds(store_directory(store_path)))}
    rows = []
    for name, entry in sorted(catalog.classes.items()):
        stack = catalog.stacks[entry.item.stack].item
        row: dict[str, object] = {
            "class": name,
            "os": f"{stack.os.id} {stack.os.version}",
            "simulated": entry.item.simulated,
        }
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
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing; tell what vanished or changed. Exit 1: a lock is not good as it is.",
)
@click.option(
    "--upgrade", is_flag=True, help="Let what is no part of the stack move to what the archives have now."
)
@click.option("--offline", is_flag=True, help="Use the archive indexes of the cache as they are.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to write to; default: where each lock is searched first.",
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
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.errors import DiskError, GoldnodeError
    from goldnode.core.site import load_site
    from goldnode.disks import locking
    from goldnode.disks.definition import load_definition
    from goldnode.disks.store import open_store

    if only_check and upgrade:
        raise click.UsageError("--check and --upgrade exclude each other")
    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    chosen = names or tuple(
        name for name in sorted(catalog.classes) if locking.lock_file(name, definition) is not None
    )
    if not chosen:
        raise DiskError(
            "no class has a lock of its disk image yet", file=definition.locks, remedy="name the classes"
        )
    for name in names:
        catalog.node_class(name)
    wrong = 0
    store = None if only_check else open_store(store_path)
    for name in chosen:
        if store is None:
            problems: list[str] = []
            try:
                item = locking.target(name, definition, catalog, site)
                problems = [
                    f"{row.kind}: {row.message}"
                    for row in locking.check(item, locking.find_disk_lock(item), offline=offline)
                ]
            except GoldnodeError as problem:
                problems = [str(problem)]
            for text in problems:
                click.echo(f"{name}: {text}")
            wrong += bool(problems)
            if not problems:
                click.echo(f"{name}: good")
            continue
        item = locking.target(name, definition, catalog, site)
        result = locking.relock(
            item,
            store.pool,
            upgrade=upgrade,
            offline=offline,
            out=out,
            say=lambda text: click.echo(text, err=True),
        )
        click.echo(locking.line(result))
    if wrong:
        click.echo(f"error: {wrong} locks are not good as they are. Run `goldnode disks lock`.", err=True)
        sys.exit(1)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="CLASS…")
@_DEFINITION
@_STORE
@click.option(
    "--format",
    "kinds",
    multiple=True,
    metavar="FORMAT",
    help="raw, raw.zst, qcow2, tar, vmlinuz, initrd; several times. Default: raw and qcow2. The raw disk is always kept.",
)
@click.option("--offline", is_flag=True, help="Fetch nothing: every package has to be in the pool already.")
@click.option(
    "--twice",
    "again",
    is_flag=True,
    help="Build a second time, elsewhere, from the pool alone, and compare. Exit 1: they differ.",
)
@click.option("--dry-run", is_flag=True, help="Tell what would be built, and build nothing.")
@click.option("--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def build(
    names: tuple[str, ...],
    definition_file: Path | None,
    store_path: Path | None,
    kinds: tuple[str, ...],
    offline: bool,
    again: bool,
    dry_run: bool,
    form: str,
) -> None:
    """Build the disk images of CLASSes from their locks into the store. Existing builds are not built again.
    Packages are fetched first; the build itself has no network. Needs root.
    """
    import time

    from goldnode.classdoc.load import load_catalog
    from goldnode.commands.images_build import _fetching, _showing
    from goldnode.core.errors import DiskError, nearest
    from goldnode.core.files import second_build
    from goldnode.core.site import load_site
    from goldnode.disks import build as building
    from goldnode.disks import locking, rootfs
    from goldnode.disks.definition import load_definition
    from goldnode.disks.evidence import authenticate
    from goldnode.disks.model import DEFAULT_FORMATS, FORMATS, MANIFEST
    from goldnode.disks.store import open_store

    started = time.monotonic()
    for kind in kinds:
        if kind not in FORMATS:
            raise DiskError(f'there is no format "{kind}" of a disk image', remedy=nearest(kind, FORMATS))
    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    # All that can be refused is refused before the first is built.
    items = [locking.target(name, definition, catalog, site) for name in names]
    recipes = [building.recipe(item, locking.find_disk_lock(item)) for item in items]
    store = open_store(store_path)
    if dry_run:
        for plan in recipes:
            there = (store.built / plan.item.name / plan.build_id / MANIFEST).is_file()
            click.echo(f"{plan.name}  {'is there' if there else 'to be built'}")
        return
    differ = 0
    for plan in recipes:
        there = (store.built / plan.item.name / plan.build_id / MANIFEST).is_file()
        if not there:
            rootfs.needs_root()
        if not there and not offline:
            with _fetching() as progress:
                locking.fetch(
                    plan.item,
                    plan.lock,
                    store.pool,
                    progress=progress,
                    say=lambda text: click.echo(text, err=True),
                )
        with _showing() as say:
            disk, made = building.build(plan, store, kinds=kinds or DEFAULT_FORMATS, say=say)
        if form == "json":
            click.echo(
                json.dumps(
                    {**disk.manifest(), "directory": str(disk.directory), "made": made},
                    indent=1,
                    sort_keys=True,
                )
            )
        else:
            click.echo(f"{disk.directory}  {'built' if made else 'is there'}")
            for item in disk.files:
                size = f"{item.size / 1e6:9.1f} MB"
                click.echo(
                    f"  {item.sha256}  {size}  {item.file}"
                    + (f" ({disk.raw.allocated / 1e6:.1f} MB on disk)" if item.format == "raw" else "")
                )
        if made and [row for row in authenticate(disk, (), content=False).rows if row.state == "refused"]:
            click.echo(
                f"what is beside {plan.name} tells of the formats it had before: `goldnode disks evidence` writes it anew",
                err=True,
            )
        if again:
            with second_build(store.cache / "twice") as place, _showing() as say:
                found = building.twice(plan, store, place, say=say)
            for text in found:
                click.echo(f"error: {plan.name} is not the same when it is built twice: {text}", err=True)
            if found:
                click.echo(f"the second build is in {place}", err=True)
            else:
                click.echo(f"{plan.name} built twice: every byte is the same", err=True)
            differ += bool(found)
    click.echo(f"{len(recipes)} disk images in {time.monotonic() - started:.1f} s", err=True)
    if differ:
        sys.exit(1)
