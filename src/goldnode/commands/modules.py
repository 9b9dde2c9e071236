"""`goldnode modules`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.commands.output import OFFLINE_INDEXES, WAIT, emit, out_directory, reports, say


@click.group(no_args_is_help=True)
def modules() -> None:
    """Build kernel modules once and package them for the mirror."""


_ON = click.option(
    "--on",
    "base",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    show_default="mmdebstrap creates one",
    help="Tar archive of the root to build in, with a compiler and DKMS (see `goldnode lock --on`).",
)


@modules.command()
@click.argument("stack")
@_ON
@OFFLINE_INDEXES
@out_directory("next to the lock")
@WAIT
@reports("built-modules")
def build(stack: str, base: Path | None, offline: bool, out: Path | None, wait: float, form: str) -> None:
    """Build the kernel modules of a stack's lock and publish their package.

    The package goes into the mirror, and STACK.modules.yml next to the lock. Cached modules are not built again.
    With `secure_boot: true` in the stack, modules are signed outside of the build root with the key
    `module_signing` of the site file. Requires root.
    """
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock.builder import Base
    from goldnode.lock.modulebuild import BuildSettings, build_stack

    catalog, site = load_catalog(), load_site()
    root = Base.read(base) if base is not None else None
    settings = BuildSettings(say, root, offline)
    made = build_stack(catalog.stack(stack), catalog, site, settings, out=out, wait=wait)
    row = made.modules.package
    emit(
        form,
        {
            "stack": stack,
            "file": made.file,
            "modules": made.modules.names,
            "kernel": made.result.kernel,
            "package": {"name": row.name, "version": row.version},
            "publication": made.publication,
            "replaces": made.modules.replaces,
        },
        f"{made.file}: {', '.join(made.modules.names)} for {made.result.kernel}\n"
        f"{row.name} {row.version} in {made.publication}; it replaces {len(made.modules.replaces)} packages on nodes",
    )
    if site.modules != "prebuilt":
        say("Nodes still build their own modules: set `modules: prebuilt` in the site file.")


@modules.command()
@click.argument("stacks", nargs=-1, metavar="[STACK]...")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="RELEASE",
    show_default="the locked kernel",
    help="Build for this kernel release. Repeatable.",
)
@click.option(
    "--flavour",
    "flavours",
    multiple=True,
    type=click.Choice(["open", "proprietary"]),
    show_default="that of the stack",
    help="Build this flavour of the driver's modules. Repeatable.",
)
@reports("module-matrix", "markdown")
@_ON
@OFFLINE_INDEXES
def matrix(
    stacks: tuple[str, ...],
    kernels: tuple[str, ...],
    flavours: tuple[str, ...],
    form: str,
    base: Path | None,
    offline: bool,
) -> None:
    """Build all combinations of kernel and driver flavour, and report which ones build.

    Without STACK, all stacks are used that have a lock and build a module. Combinations that do not build are
    listed with the compiler's error. Cached results are used where the inputs are the same.
    """
    from dataclasses import asdict

    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.lock import modulebuild
    from goldnode.lock.builder import Base

    catalog, site = load_catalog(), load_site()
    chosen = [catalog.stack(name) for name in dict.fromkeys(stacks)] or modulebuild.locked(catalog, site)
    root = Base.read(base) if base is not None else None
    results = modulebuild.build_combinations(
        modulebuild.Combinations(chosen, kernels, flavours, everywhere=not stacks),
        catalog,
        site,
        modulebuild.BuildSettings(say, root, offline),
    )
    if form == "markdown":
        click.echo(modulebuild.markdown(results), nl=False)
    else:
        emit(form, {"results": [asdict(item) for item in results]}, lambda: modulebuild.table(results))
