"""`goldnode modules`."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.group(no_args_is_help=True)
def modules() -> None:
    """Build kernel modules once, in a clean root, as a package for the site's mirror; and report which pairs
    build.
    """


_ON = click.option(
    "--on",
    "base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tar of the root that the lock was resolved on (lock --on), with a compiler and DKMS in it; default: mmdebstrap makes one.",
)
_OFFLINE = click.option("--offline", is_flag=True, help="Use the archive indexes of the cache as they are.")


def _say(text: str) -> None:
    click.echo(text, err=True)


@modules.command()
@click.argument("stack")
@_ON
@_OFFLINE
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of STACK.modules.yml; default: beside the lock.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0,
    help="Seconds to wait for another run on this mirror; default: refuse.",
)
def build(stack: str, base: Path | None, offline: bool, out: Path | None, wait: float) -> None:
    """Build the modules of STACK's lock, put their package into the mirror, publish it, and write STACK.modules.yml.

    Only what is not in the cache is compiled. Needs root. With `secure_boot: true` in the stack they are signed with the site's
    `module_signing` key, outside of the builder.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock.builder import Base
    from goldnode.lock.modulebuild import build_stack

    catalog, site = load_catalog(), load_site()
    root = Base.read(base) if base is not None else None
    made = build_stack(
        catalog.stack(stack), catalog, site, say=_say, base=root, offline=offline, out=out, wait=wait
    )
    row = made.modules.package
    click.echo(f"{made.file}: {', '.join(made.modules.names)} for {made.result.kernel}")
    click.echo(
        f"{row.name} {row.version} in {made.publication}; {len(made.modules.replaces)} packages leave nodes with it"
    )
    if site.modules != "prebuilt":
        click.echo("Nodes go on building their own until the site file says modules: prebuilt.", err=True)


@modules.command()
@click.argument("stacks", nargs=-1, metavar="[STACK]…")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="RELEASE",
    help="Build for this release instead of the locked one.",
)
@click.option(
    "--flavour",
    "flavours",
    multiple=True,
    type=click.Choice(["open", "proprietary"]),
    help="Instead of the stack's own.",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True
)
@_ON
@_OFFLINE
def matrix(
    stacks: tuple[str, ...],
    kernels: tuple[str, ...],
    flavours: tuple[str, ...],
    form: str,
    base: Path | None,
    offline: bool,
) -> None:
    """Build every kernel x driver flavour, and print which pairs build and the compiler's error for those
    that do not.

    Without STACK: every stack that has a lock and builds a module. A pair that was built from the same inputs
    is not built again.
    """
    from dataclasses import asdict

    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import modulebuild
    from goldnode.lock.builder import Base

    catalog, site = load_catalog(), load_site()
    chosen = [catalog.stack(name) for name in dict.fromkeys(stacks)] or modulebuild.locked(catalog, site)
    root = Base.read(base) if base is not None else None
    results = modulebuild.matrix(
        chosen,
        catalog,
        site,
        kernels=kernels,
        flavours=flavours,
        everywhere=not stacks,
        base=root,
        offline=offline,
        say=_say,
    )
    if form == "json":
        click.echo(json.dumps([asdict(item) for item in results], indent=1))
    elif form == "markdown":
        click.echo(modulebuild.markdown(results), nl=False)
    else:
        click.echo(modulebuild.table(results), nl=False)
