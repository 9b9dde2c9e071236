"""Command `goldnode check-catalog`."""

from __future__ import annotations

import sys

import click

from goldnode.commands.options import REQUIRE_LOCK
from goldnode.commands.output import emit, reports, say


@click.command("check-catalog")
@REQUIRE_LOCK
@reports("catalog-check")
def check_catalog(require_lock: bool, form: str) -> None:
    """Check the catalog, the site file, the facts and all locks.

    Classes are checked as by `goldnode check`. The files that the site file names must exist. Only the first
    error of each file is shown.

    Exit status: 0 no errors, 1 a class has no lock (with --require-lock), 2 errors.
    """
    from goldnode.commands.check.catalog_report import check  # start-up time: it loads pydantic
    from goldnode.compat.report import not_applicable

    report = check()
    catalog = report.catalog
    sizes = {
        kind: len(getattr(catalog, kind)) for kind in ("classes", "stacks", "platforms", "archives")
    }
    lines = list(report.notes)
    if not report.wrong:
        lines.append(
            f"{sizes['classes']} classes, {sizes['stacks']} stacks, {sizes['platforms']} platforms and "
            f"{sizes['archives']} archives: no errors. {not_applicable(report.unlocked)}".rstrip(
                ". "
            )
        )
    emit(
        form,
        {
            "counts": sizes,
            "errors": [
                {
                    "error": fault.message,
                    "file": fault.file,
                    "line": fault.line,
                    "remedy": fault.remedy,
                }
                for fault in report.wrong
            ],
            "messages": report.notes,
            "unlocked": [
                {"class": name, "stack": stack, "why": why} for name, stack, why in report.unlocked
            ],
        },
        "\n".join(lines),
    )
    for fault in report.wrong:
        say(f"error: {fault}")
    # Errors first: 1 means that only locks are missing.
    if report.wrong:
        sys.exit(2)
    if require_lock and report.unlocked:
        sys.exit(1)
