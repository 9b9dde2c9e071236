"""`goldnode lock`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("stack")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the lock to keep, write or check.",
)
@click.option(
    "--on",
    "status",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Resolve on top of this dpkg status file; default: an empty system.",
)
@click.option("--offline", is_flag=True, help="Use the archive indexes of the cache as they are.")
@click.option("--upgrade", is_flag=True, help="Let everything move to what the archives have now.")
@click.option(
    "--upgrade-package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Let this package move, and what is bound to it; repeatable.",
)
@click.option(
    "--security",
    is_flag=True,
    help="Move kernel and driver module as a pair to the newest security kernel it builds on.",
)
@click.option(
    "--allow-unknown",
    is_flag=True,
    help="With --security: take a pair of which nobody knows whether it builds.",
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing; tell what moved, vanished or waits. Exit 1: not good as it is.",
)
@click.option("--dry-run", is_flag=True, help="Write nothing; show what would change.")
@click.option(
    "--diff",
    "before",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show what differs between this lock file and the lock in force; asks no archive.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to tell it.",
)
def lock(
    stack: str,
    out: Path | None,
    status: Path | None,
    offline: bool,
    upgrade: bool,
    packages: tuple[str, ...],
    security: bool,
    allow_unknown: bool,
    only_check: bool,
    dry_run: bool,
    before: Path | None,
    form: str,
) -> None:
    """Resolve STACK with apt and write STACK.lock.yml.

    A lock that is there is kept: versions move only where they left the archives or the stack asks for something else, and a lock that
    is good is not touched. --upgrade moves everything. Every change is shown for review: from, to, why, bytes, reboot.

    Without --out it goes where a lock of STACK is searched first: $GOLDNODE_LOCKS, the site's `locks`, else beside the stack.

    Exit status: 0 done, nothing is wrong; 1 --check found something, or --security could not reach the newest kernel; 2 an error,
    and the lock is as it was. --check fails on what makes a lock unusable (edited, another intent, vanished, other bytes, a known
    hole in the container toolkit); with --upgrade or --security also on what those would move.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import model
    from goldnode.lock import update as updates

    _refuse(upgrade, packages, security, allow_unknown, only_check, dry_run, before, status)
    catalog, site = load_catalog(), load_site()
    entry = catalog.stack(stack)
    mode = updates.Mode.UPGRADE if upgrade else updates.Mode.SECURITY if security else updates.Mode.KEEP
    if before is not None:
        path = out / model.lock_name(stack) if out is not None else model.find_lock(entry, site)[1]
        diff = updates.compare_files(before, path)
        _tell(
            form,
            {"schema": updates.REPORT, "stack": stack, "diff": diff.data()},
            [diff.text() or "the two locks are the same"],
        )
        return
    if only_check:
        _check(
            updates.check(
                entry, catalog, site, mode=mode, out=out, offline=offline, allow_unknown=allow_unknown
            ),
            stack,
            mode,
            form,
        )
        return
    done = updates.update(
        entry,
        catalog,
        site,
        mode=mode,
        packages=packages,
        out=out,
        status=status,
        offline=offline,
        write=not dry_run,
        allow_unknown=allow_unknown,
    )
    lines = list(done.notes)
    if done.lane is not None:
        lines += done.lane.lines()
    if done.action == "kept":
        lines.append(f"{done.file}: kept as it is, resolved {done.lock.resolved}; {_summary(done.lock)}")
    else:
        if done.old is not None:
            lines.append(done.diff.text() or "no package moved")
        lines.append(f"{'would write ' if dry_run else ''}{done.file}: {_summary(done.lock)}")
    _tell(form, done.data(), lines)
    if offline:
        click.echo("resolved from the indexes in the cache, which were not refreshed", err=True)
    if done.lane is not None and done.lane.state == "held-back":
        sys.exit(1)


def _refuse(
    upgrade: bool,
    packages: tuple[str, ...],
    security: bool,
    allow_unknown: bool,
    only_check: bool,
    dry_run: bool,
    before: Path | None,
    status: Path | None,
) -> None:
    """Options that contradict each other. Raises click.UsageError."""
    chosen = [
        name
        for name, given in (("--upgrade", upgrade), ("--upgrade-package", packages), ("--security", security))
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other")
    if allow_unknown and not security:
        raise click.UsageError("--allow-unknown belongs to --security")
    told = [
        name for name, given in (("--check", only_check), ("--dry-run", dry_run), ("--diff", before)) if given
    ]
    if len(told) > 1:
        raise click.UsageError(f"{' and '.join(told)} exclude each other")
    if only_check and (packages or status):
        raise click.UsageError("--check goes with neither --upgrade-package nor --on")
    if before is not None and chosen:
        raise click.UsageError(f"--diff compares files, {chosen[0]} resolves")


def _check(found: Any, stack: str, mode: Any, form: str) -> None:
    lines = [f"{problem.kind}: {problem.message}" for problem in found.problems]
    if found.needed:
        lines += [f"`goldnode lock {stack}` would change:", found.needed.text()]
    if found.lane is not None:
        lines += found.lane.lines()
    count = len(found.lock.packages)
    if not any(problem.kind in ("vanished", "changed") for problem in found.problems):
        lines.append(f"{found.file}: all {count} packages are in the archives, unchanged")
    _tell(form, found.data(), lines)
    if found.wrong:
        option = {"upgrade": " --upgrade", "security": " --security"}.get(mode.value, "")
        gone = len({problem.package for problem in found.wrong if problem.kind in ("vanished", "changed")})
        what = (
            f"{gone} of {count} locked packages"
            if gone
            else "; ".join(dict.fromkeys(problem.kind for problem in found.wrong))
        )
        remedy = f"Run `goldnode lock {stack}{option}`{', or install from a mirror that kept them' if gone else ''}."
        if found.lane is not None and found.lane.state == "held-back" and found.lane.taken is None:
            remedy = "The reasons are above."
        click.echo(f"error: {found.file}: {what}. {remedy}", err=True)
        sys.exit(1)


def _summary(lock: Any) -> str:
    held = len([item for item in lock.packages if item.set == "stack"])
    driver = f", driver {lock.driver_version}" if lock.driver_version else ""
    return (
        f"kernel {lock.kernel_release}{driver}; {held} packages in the stack set, {len(lock.packages)} in all"
    )


def _tell(form: str, data: dict[str, Any], lines: list[str]) -> None:
    if form == "json":
        click.echo(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False))
    else:
        for line in lines:
            click.echo(line)
