"""Command `goldnode matrix`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import NEW_FILE
from goldnode.commands.output import document, html_page, reports
from goldnode.core.errors import GoldnodeError

if TYPE_CHECKING:
    from goldnode.classdoc.blessed_combinations import CombinationProof
    from goldnode.core.site import Site


@click.command()
@reports("matrix", "markdown", "html")
@click.option(
    "--out",
    type=NEW_FILE,
    metavar="FILE",
    show_default="print it",
    help="File to write.",
)
@click.option(
    "--modules",
    is_flag=True,
    help="Show the measured builds of driver packages on kernels instead.",
)
def matrix(form: str, out: Path | None, modules: bool) -> None:
    """Show the compatibility matrix of all stacks and classes.

    The day of reference is the date of the compatibility facts, so the same catalog, locks and facts give the
    same matrix.
    """
    if modules:
        _write(_modules(form), out)
        return
    from goldnode.classdoc import blessed_combinations as tables  # start-up time: it loads pydantic
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site

    site = load_site()
    combinations = tables.blessed_combinations(load_catalog(), site)
    if form == "json":
        content = {
            "date": combinations.date,
            "tables": [asdict(item) for item in combinations.tables],
        }
        shown = document("matrix", content) + "\n"
    elif form == "html":
        from goldnode.facts import module_builds

        proofs = _proofs(site, [row.name for row in combinations.tables[1].rows])
        shown = tables.html(replace(combinations, proofs=proofs), module_builds.builds())
    else:
        shown = {"text": tables.text, "markdown": tables.markdown}[form](combinations)
    _write(shown, out)


def _proofs(site: Site, classes: list[str]) -> dict[str, list[CombinationProof]] | None:
    """Return the evidence about classes; None if the site names no key that verifies it."""
    if not (site.evidence.public_key or site.fleet.public_key):
        return None
    place = site.resolve(site.evidence.directory)
    proved_classes = [name for name in classes if (place / name).is_dir()]
    if not proved_classes:
        return {}
    # Optional packages: a site without statements needs none of them.
    from goldnode.classdoc.blessed_combinations import CombinationProof
    from goldnode.commands.evidence import hardware_text
    from goldnode.evidence import proved
    from goldnode.fleet.control import evidence as control

    trust, rows = proved.trust(site), {}
    for name in proved_classes:
        try:
            statuses = proved.statuses(place / name, control.present(name, site), trust)
        # A class that cannot be compiled must not keep the others from the page.
        except GoldnodeError as problem:
            why = f"the class cannot be read: {problem.message}"
            rows[name] = [CombinationProof("of any kind", "could not check", "-", "-", why)]
            continue
        rows[name] = [
            CombinationProof(
                status.kind or "unknown",
                status.state,
                status.proof.predicate.time if status.proof is not None else "not read",
                hardware_text(status),
                status.why,
            )
            for status in statuses
        ]
    return rows


def _modules(form: str) -> str:
    from goldnode.facts import build_table, module_builds

    listed = module_builds.builds()
    if form == "json":
        return document("matrix", {"modules": [asdict(one) for one in listed]}) + "\n"
    if form == "html":
        return html_page("module_builds.html.j2", found=listed, tables=build_table)
    return {"text": build_table.text, "markdown": build_table.markdown}[form](listed)


def _write(shown: str, out: Path | None) -> None:
    if out is None:
        click.echo(shown, nl=False)
        return
    out.write_text(shown, encoding="utf-8")
    click.echo(f"wrote {out}")
