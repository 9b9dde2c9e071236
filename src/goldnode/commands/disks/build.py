"""Command `goldnode disks list`, `lock` and `build`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import (
    DEFINITION,
    IMAGE_FORMAT,
    OFFLINE_INDEXES,
    BuildOptions,
    LockOptions,
    build_options,
    disk_store,
    lock_options,
    out_directory,
)
from goldnode.commands.output import emit, reports, say, table
from goldnode.core import progress
from goldnode.core.errors import DiskError, GoldnodeError, nearest


@click.command("list")
@DEFINITION
@disk_store("store_path")
@reports("disks")
def list_(definition_file: Path | None, store_path: Path | None, form: str) -> None:
    """List the node classes with the locks and builds of their disk images."""
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.disks.definition import load_definition
    from goldnode.disks.locking import find_disk_lock, lock_file, target
    from goldnode.disks.model import builds, store_directory

    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    definition.check(catalog)
    # The builds are sorted newest first, and the last assignment of a class wins.
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
            row |= {
                "lock": f"locked {lock.resolved}",
                "packages": len(lock.debs),
                "fetched_bytes": lock.size,
            }
        except GoldnodeError as problem:
            state = "stale" if lock_file(name, definition) is not None else "no lock"
            row |= {"lock": state, "why": str(problem), "packages": 0, "fetched_bytes": 0}
        row["build"] = newest[name].build_id if name in newest else None
        rows.append(row)
    lines = [("class", "os", "lock", "packages", "fetched (MB)", "newest build", "")]
    for row in rows:
        lines.append(
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
    emit(form, {"classes": rows}, table(lines))


@click.command()
@click.argument("names", nargs=-1, metavar="[CLASS]...")
@DEFINITION
@disk_store("store_path")
@lock_options(
    "Upgrade the packages outside of the stack to the newest versions in the archives.",
    OFFLINE_INDEXES,
)
@out_directory("where each lock is searched first")
@reports("disk-locks")
def lock(
    names: tuple[str, ...],
    definition_file: Path | None,
    store_path: Path | None,
    how: LockOptions,
    out: Path | None,
    *,
    form: str,
) -> None:
    """Resolve the packages of disk images and write their locks.

    Without CLASS, all classes are locked that have a lock. The stack's packages have the versions of the stack's
    lock; kernel modules are built once. A usable lock is not changed.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.disks import locking
    from goldnode.disks.definition import load_definition
    from goldnode.disks.store import open_store

    how.check()
    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    chosen = names or tuple(
        name for name in sorted(catalog.classes) if locking.lock_file(name, definition) is not None
    )
    if not chosen:
        raise DiskError(
            "no class has a lock of its disk image yet",
            file=definition.locks,
            remedy="name the classes",
        )
    # A misspelt class fails before the first lock is written.
    for name in names:
        catalog.node_class(name)
    rows: list[dict[str, Any]] = []
    # A check must not create the store.
    store = None if how.only_check else open_store(store_path)
    for name in chosen:
        if store is None:
            problems: list[str] = []
            try:
                item = locking.target(name, definition, catalog, site)
                problems = [
                    f"{row.kind}: {row.message}"
                    for row in locking.check(
                        item, locking.find_disk_lock(item), offline=how.offline
                    )
                ]
            except GoldnodeError as problem:
                problems = [str(problem)]
            rows.append({"class": name, "problems": problems})
            if form == "text":
                click.echo("\n".join(f"{name}: {text}" for text in problems or ["good"]))
            continue
        item = locking.target(name, definition, catalog, site)
        result = locking.relock(
            item,
            store.pool,
            upgrade=how.upgrade,
            offline=how.offline,
            out=out,
        )
        rows.append({"class": name, "changed": result.changed, "digest": result.lock.digest})
        if form == "text":
            click.echo(locking.line(result))
    emit(form, {"locks": rows})
    wrong = sum(bool(row.get("problems")) for row in rows)
    if wrong:
        say(f"error: {wrong} locks are unusable. Run `goldnode disks lock`.")
        sys.exit(1)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="CLASS...")
@DEFINITION
@disk_store("store_path")
@click.option(
    "--image-format",
    "kinds",
    multiple=True,
    metavar="FORMAT",
    show_default="raw and qcow2",
    help="Format to write besides raw: raw.zst, qcow2, tar, vmlinuz, initrd, vhd, vmdk, gce, squashfs, oci or "
    "containerdisk. Repeatable.",
)
@build_options("images")
@reports("disk-builds", hint=IMAGE_FORMAT)
def build(
    names: tuple[str, ...],
    definition_file: Path | None,
    store_path: Path | None,
    kinds: tuple[str, ...],
    how: BuildOptions,
    *,
    form: str,
) -> None:
    """Build disk images from their locks, without a network.

    Existing builds are not built again. Downloads come before the build. Requires root.

    Exit status: 0 built, 1 two builds differ (with --twice), 2 an error.
    """
    import time

    from goldnode.classdoc.load import load_catalog
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
            raise DiskError(
                f'there is no format "{kind}" of a disk image', remedy=nearest(kind, FORMATS)
            )
    definition, catalog, site = load_definition(definition_file), load_catalog(), load_site()
    # Report all errors before the first image is built.
    items = [locking.target(name, definition, catalog, site) for name in names]
    recipes = [building.recipe(item, locking.find_disk_lock(item)) for item in items]
    store = open_store(store_path)
    known = {
        plan.name: (store.built / plan.item.name / plan.build_id / MANIFEST).is_file()
        for plan in recipes
    }
    if how.dry_run:
        emit(
            form,
            {
                "dry_run": True,
                "disks": [{"name": name, "built": there} for name, there in known.items()],
            },
            "\n".join(
                f"{name}  {'is there' if there else 'to be built'}" for name, there in known.items()
            ),
        )
        return
    rows: list[dict[str, Any]] = []
    differ = 0
    for plan in recipes:
        there = known[plan.name]
        if not there:
            rootfs.needs_root()
        # Downloads first: the build itself runs without a network.
        if not there and not how.offline:
            with progress.downloads(each=False) as watcher:
                locking.fetch(
                    plan.item,
                    plan.lock,
                    store.pool,
                    progress=watcher,
                    say=say,
                )
        with progress.steps() as show:
            disk, made = building.build(plan, store, kinds=kinds or DEFAULT_FORMATS, say=show)
        rows.append({**disk.manifest(), "directory": disk.directory, "made": made})
        if form == "text":
            click.echo(f"{disk.directory}  {'built' if made else 'is there'}")
            for item in disk.files:
                size = f"{item.size / 1e6:9.1f} MB"
                on_disk = f" ({disk.raw.allocated / 1e6:.1f} MB on disk)"
                more = on_disk if item.format == "raw" else ""
                click.echo(f"  {item.sha256}  {size}  {item.file}{more}")
        # New formats of an existing build leave evidence that does not cover them.
        if made and [
            row for row in authenticate(disk, (), content=False).rows if row.state == "refused"
        ]:
            say(
                f"the evidence of {plan.name} describes its previous formats: write it again with `goldnode "
                f"disks evidence {plan.name}`"
            )
        if how.twice:
            with second_build(store.cache / "twice") as place, progress.steps() as show:
                differing = building.twice(plan, store, place, say=show)
            for text in differing:
                click.echo(
                    f"error: {plan.name} is not the same when it is built twice: {text}", err=True
                )
            if differing:
                click.echo(f"the second build is in {place}", err=True)
            else:
                click.echo(f"{plan.name} built twice: every byte is the same", err=True)
            # All images are built and compared; the exit status comes at the end.
            differ += bool(differing)
    emit(form, {"dry_run": False, "disks": rows})
    click.echo(f"{len(recipes)} disk images in {time.monotonic() - started:.1f} s", err=True)
    if differ:
        sys.exit(1)
