"""Command `goldnode dual compare`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from goldnode.commands.dual import KEY, signing_key
from goldnode.commands.floors import TRUST, trusted
from goldnode.commands.options import EXISTING, FILE, NEW_FILE, grouped
from goldnode.commands.output import document as json_text
from goldnode.commands.output import emit, reports, say
from goldnode.core import extras
from goldnode.core.files import replace_file

STATUS = {"pass": 0, "fail": 1, "unknown": 3}  # exit status by answer


@dataclass(frozen=True)
class CompareKeys:
    """Key that signs the report, and keys that verify the records."""

    key: Path | None
    trust: tuple[Path, ...]


@click.command()
@click.argument("a", type=EXISTING, metavar="A")
@click.argument("b", type=EXISTING, metavar="B")
@click.option(
    "--tolerances",
    type=FILE,
    metavar="FILE",
    help="Tolerances of the site, over those of the facts.",
)
@click.option(
    "--html",
    type=NEW_FILE,
    metavar="FILE",
    help="Write the report as one HTML page, too.",
)
@click.option(
    "--report",
    type=NEW_FILE,
    metavar="FILE",
    help="Write the report as JSON, too, for the requirement `dual` of a rollout.",
)
@grouped("keys", CompareKeys, KEY, TRUST)
@reports("dual")
def compare(
    a: Path,
    b: Path,
    tolerances: Path | None,
    html: Path | None,
    report: Path | None,
    *,
    keys: CompareKeys,
    form: str,
) -> None:
    """Compare two records: outputs, first divergence, sampled outputs and times.

    A and B are directories that `goldnode dual record` wrote, or tar archives of them. A is the reference. With a public
    key, both must be signed.

    Exit status: 0 pass, 1 fail, 2 a record cannot be read, 3 unknown: not comparable, or inconclusive.
    """
    extras.require("floors")
    # numpy: only the extra `floors` installs it.
    from goldnode.commands.dual import text as dual_text
    from goldnode.dual import signing, store
    from goldnode.dual import tolerances as declared
    from goldnode.dual.compare import compare as compared
    from goldnode.evidence import signed_file

    bounds = declared.load(tolerances)
    # Only a report in a file can be signed, so that a site's key is not needed to look.
    key, known = signing_key(keys.key) if report is not None else None, trusted(keys.trust)
    with store.opened(a, known) as left, store.opened(b, known) as right:
        comparison = compared(left, right, bounds)
    content = comparison.model_dump(mode="json", by_alias=True)
    if report is not None:
        signed_file.write(report, f"{json_text('dual', content)}\n".encode(), key, signing.REPORT)
        say(
            f"wrote {report} ({'signed' if key is not None else 'not signed: name a key with --key'})"
        )
    if html is not None:
        replace_file(html, dual_text.html(comparison).encode())
        say(f"wrote {html}")
    emit(form, content, lambda: dual_text.text(comparison))
    sys.exit(STATUS[comparison.answer])
