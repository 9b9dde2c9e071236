"""Command `goldnode fleet monitoring`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from goldnode.commands.options import DIRECTORY
from goldnode.commands.output import emit, reports
from goldnode.core.data import data
from goldnode.core.errors import GoldnodeError
from goldnode.core.files import replace_file

# Page that the rules in the tree link to.
RUNBOOKS = "docs/how-to/alerts.md"
_PATTERNS = (
    "prometheus/*.rules.yml",
    "prometheus/*.test.yml",
    "grafana/goldnode-*.json",
    "grafana/provisioning.yml",
)


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--runbooks",
    metavar="URL",
    show_default=RUNBOOKS,
    help="Address of the page with the runbooks, for the links of alerts.",
)
@reports("fleet-monitoring")
def monitoring(directory: Path, runbooks: str | None, form: str) -> None:
    """Write rules for Prometheus and dashboards for Grafana.

    DIRECTORY/prometheus has recording rules and alerts, with their tests for promtool. DIRECTORY/grafana has the
    dashboards and a file for Grafana's provisioning. Files of an earlier version are replaced.
    """
    if runbooks is not None and not re.fullmatch(r"https?://[^\s#'\"]+", runbooks):
        raise click.UsageError(
            f"--runbooks {runbooks} is no address: give https://HOST/…/alerts.html"
        )
    top = data("integrations")
    files = [path for pattern in _PATTERNS for path in sorted(top.glob(pattern))]
    for path in files:
        content = path.read_text(encoding="utf-8")
        if runbooks is not None:
            content = content.replace(f"{RUNBOOKS}#", f"{runbooks}#")
        try:
            replace_file(directory / path.relative_to(top), content.encode())
        except OSError as problem:
            raise GoldnodeError(
                f"cannot be written: {problem.strerror}",
                file=directory / path.relative_to(top),
                remedy="name a directory that you may write to",
            ) from None
    lines = [
        f"wrote {len(files)} files below {directory}",
        f"  {directory}/prometheus/*.rules.yml  for rule_files of Prometheus",
        f"  {directory}/grafana/*.json  for Grafana (appearance not verified)",
    ]
    emit(
        form,
        {"files": [str(directory / path.relative_to(top)) for path in files]},
        "\n".join(lines),
    )
