"""Command `goldnode lock`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import DIRECTORY, DRY_RUN, FILE, OFFLINE_INDEXES, grouped
from goldnode.commands.output import emit, reports
from goldnode.node.ground.text import phrase


@dataclass(frozen=True)
class _ResolveOptions:
    """The options of `goldnode lock` that say how to resolve."""

    status: Path | None
    offline: bool
    upgrade: bool
    packages: tuple[str, ...]
    security: bool
    allow_unknown: bool
    only_check: bool
    dry_run: bool


@dataclass(frozen=True)
class _NotesOptions:
    """The options of `goldnode lock` about notes for a reviewer."""

    notes: bool
    feeds: tuple[str, ...]


_NOTES = grouped(
    "noting",
    _NotesOptions,
    click.option(
        "--notes",
        is_flag=True,
        help="With --diff, add changelogs, findings of the classes, and vulnerabilities. Fetches a package of each source.",
    ),
    click.option(
        "--feed",
        "feeds",
        multiple=True,
        metavar="KIND=FILE|URL[@DATE]",
        help="With --notes, vulnerability data as for `goldnode cve`. Repeatable.",
    ),
)


@click.command()
@click.argument("stack")
@click.option(
    "--out",
    type=DIRECTORY,
    metavar="DIR",
    show_default="$GOLDNODE_LOCKS, else `locks` of the site file, else next to the stack",
    help="Directory of the lock to update, write or check.",
)
@click.option(
    "--on",
    "status",
    type=FILE,
    metavar="FILE",
    show_default="an empty system",
    help="Resolve on top of the packages in this dpkg status file.",
)
@OFFLINE_INDEXES
@click.option(
    "--upgrade", is_flag=True, help="Upgrade all packages to the newest versions in the archives."
)
@click.option(
    "--upgrade-package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Upgrade this package, and those that depend on its version. Repeatable.",
)
@click.option(
    "--security",
    is_flag=True,
    help="Upgrade kernel and driver module together to the newest security kernel that the driver builds on.",
)
@click.option(
    "--allow-unknown",
    is_flag=True,
    help="With --security, accept a kernel of which it is unknown whether the driver builds on it.",
)
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Write nothing. Report changed, vanished and upgradable packages; exit with 1 if the lock is unusable.",
)
@DRY_RUN
@click.option(
    "--diff",
    "before",
    type=FILE,
    metavar="FILE",
    help="Show the differences between this lock file and the current lock. Reads no archive.",
)
@_NOTES
@reports("lock-report")
def lock(
    stack: str,
    out: Path | None,
    before: Path | None,
    noting: _NotesOptions,
    form: str,
    **given: Any,
) -> None:
    """Resolve the packages of a stack and write its lock.

    An existing lock is changed only where a version has left the archives or the stack asks for something else.
    --upgrade upgrades everything. Each change is listed for review: versions, reason, size, reboot.

    --check fails if a lock is unusable: edited, resolved for another intent, with vanished or changed packages,
    or with a known vulnerability in the container toolkit. With --upgrade or --security it also fails if they
    would change the lock.

    Exit status: 0 success, 1 --check found something or --security did not reach the newest kernel, 2 an error;
    the lock is unchanged then.
    """
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic
    from goldnode.core.site import load_site
    from goldnode.lock import model
    from goldnode.lock import update as updates

    options = _ResolveOptions(**given)
    _refuse(options, before)
    if noting.notes and before is None:
        raise click.UsageError("--notes belongs to --diff")
    if noting.feeds and not noting.notes:
        raise click.UsageError("--feed belongs to --notes")
    catalog, site = load_catalog(), load_site()
    entry = catalog.stack(stack)
    if options.upgrade:
        mode = updates.UpdateMode.UPGRADE
    elif options.security:
        mode = updates.UpdateMode.SECURITY
    else:
        mode = updates.UpdateMode.KEEP
    if before is not None:
        path = out / model.lock_name(stack) if out is not None else model.find_lock(entry, site)[1]
        diff = updates.compare_files(before, path)
        content = {"stack": stack, "diff": diff.data()}
        text = diff.text() or "the two locks are the same"
        if noting.notes:
            from goldnode.commands.lock_notes import notes  # start-up time

            noted = notes(
                diff,
                model.load_lock(before),
                model.load_lock(path),
                catalog=catalog,
                site=site,
                feeds=noting.feeds,
            )
            content["notes"] = noted.data()
            text = f"{text}\n\n{noted.text()}"
        emit(form, content, text)
        return
    request = updates.LockRequest(
        mode=mode,
        packages=options.packages,
        out=out,
        status=options.status,
        offline=options.offline,
        write=not options.dry_run,
        allow_unknown=options.allow_unknown,
    )
    if options.only_check:
        _check(updates.check(entry, catalog, site, request), stack, mode, form)
        return
    done = updates.update(entry, catalog, site, request)
    lines = list(done.notes)
    if done.security is not None:
        lines += done.security.lines()
    if done.action == "kept":
        lines.append(
            f"{done.file}: kept as it is, resolved {done.lock.resolved}; {_summary(done.lock)}"
        )
    else:
        if done.old is not None:
            lines.append(done.diff.text() or "no package moved")
        lines.append(
            f"{'would write ' if options.dry_run else ''}{done.file}: {_summary(done.lock)}"
        )
    emit(form, done.data(), "\n".join(lines))
    # Indexes of the cache may be old, and so the lock.
    if options.offline:
        click.echo("resolved from the indexes in the cache, which were not refreshed", err=True)
    if done.security is not None and done.security.state == "held-back":
        sys.exit(1)


def _refuse(options: _ResolveOptions, before: Path | None) -> None:
    """Refuse options that contradict each other. Raises click.UsageError."""
    chosen = [
        name
        for name, given in (
            ("--upgrade", options.upgrade),
            ("--upgrade-package", options.packages),
            ("--security", options.security),
        )
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other")
    if options.allow_unknown and not options.security:
        raise click.UsageError("--allow-unknown belongs to --security")
    actions = [
        name
        for name, given in (
            ("--check", options.only_check),
            ("--dry-run", options.dry_run),
            ("--diff", before),
        )
        if given
    ]
    if len(actions) > 1:
        raise click.UsageError(f"{' and '.join(actions)} exclude each other")
    if options.only_check and (options.packages or options.status):
        raise click.UsageError("--check goes with neither --upgrade-package nor --on")
    if before is not None and chosen:
        raise click.UsageError(f"--diff compares files, {chosen[0]} resolves")


def _check(checked: Any, stack: str, mode: Any, form: str) -> None:
    lines = [f"{problem.kind}: {problem.message}" for problem in checked.problems]
    if checked.needed:
        lines += [f"`goldnode lock {stack}` would change:", checked.needed.text()]
    if checked.security is not None:
        lines += checked.security.lines()
    count = len(checked.lock.packages)
    if not any(problem.kind in ("vanished", "changed") for problem in checked.problems):
        lines.append(f"{checked.file}: all {count} packages are in the archives, unchanged")
    emit(form, checked.data(), "\n".join(lines))
    if checked.wrong:
        # The command that would do what was checked.
        option = {"upgrade": " --upgrade", "security": " --security"}.get(mode.value, "")
        gone = len(
            {
                problem.package
                for problem in checked.wrong
                if problem.kind in ("vanished", "changed")
            }
        )
        if gone:
            what = f"{gone} of {count} locked packages"
        else:
            what = "; ".join(dict.fromkeys(problem.kind for problem in checked.wrong))
        remedy = f"Run `goldnode lock {stack}{option}`{', or install from a mirror that kept them' if gone else ''}."
        if (
            # Running it without --check would change nothing: the kernel is held back.
            checked.security is not None
            and checked.security.state == "held-back"
            and checked.security.taken is None
        ):
            remedy = "The reasons are above."
        click.echo(f"error: {checked.file}: {what}. {remedy}", err=True)
        sys.exit(1)


def _summary(lock: Any) -> str:
    held = len([item for item in lock.packages if item.set == "stack"])
    driver = phrase(", driver {}", lock.driver_version)
    return f"kernel {lock.kernel_release}{driver}; {held} packages in the stack set, {len(lock.packages)} in all"
