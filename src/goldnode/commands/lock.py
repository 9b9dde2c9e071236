"""`goldnode lock`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("stack")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Directory of the lock to write or check.")
@click.option(
    "--on",
    "status",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Resolve on top of this dpkg status file; default: an empty system.",
)
@click.option("--offline", is_flag=True, help="Use the archive indexes of the cache as they are.")
@click.option("--check", "only_check", is_flag=True, help="Tell what of the lock left the archives; exit 1 if anything did.")
def lock(stack: str, out: Path | None, status: Path | None, offline: bool, only_check: bool) -> None:
    """Resolve STACK with apt and write STACK.lock.yml.

    Without --out it goes where a lock of STACK is searched first: $GOLDNODE_LOCKS, the site's `locks`, else beside the
    stack.
    """
    from goldnode.catalog.load import load_catalog
    from goldnode.lock import model
    from goldnode.lock.resolve import check, resolve
    from goldnode.site import load_site

    catalog, site = load_catalog(), load_site()
    entry = catalog.stack(stack)
    if only_check:
        if out is None:
            locked, path = model.find_lock(entry, site)
        else:
            path = out / model.lock_name(stack)
            locked = model.load_lock(path)
            model.check_intent(locked, path, entry)
        findings = check(locked, entry, catalog, site, offline=offline)
        for finding in findings:
            click.echo(f"{finding.kind}: {finding.message}")
        if findings:
            click.echo(
                f"error: {path}: {len(findings)} of {len(locked.packages)} locked packages. "
                f"Run `goldnode lock {stack}`, or install from a mirror that kept them.",
                err=True,
            )
            sys.exit(1)
        click.echo(f"{path}: all {len(locked.packages)} packages are in the archives, unchanged")
        return
    result = resolve(entry, catalog, site, status=status, offline=offline)
    path = model.write_lock(result, out or next(iter(site.lock_directories()), entry.file.parent))
    held = len([item for item in result.packages if item.set == "stack"])
    driver = f", driver {result.driver_version}" if result.driver_version else ""
    click.echo(f"{path}: kernel {result.kernel_release}{driver}; {held} packages in the stack set, {len(result.packages)} in all")
    if offline:
        click.echo("resolved from the indexes in the cache, which were not refreshed", err=True)
