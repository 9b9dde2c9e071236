"""Command `goldnode cve rehearse`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from goldnode.commands.cve import facts as shared


@click.command()
@click.argument("name", metavar="[CVE]", required=False)
@click.option(
    "--module",
    metavar="NAME",
    help="Kernel module with the vulnerable code, which the mitigation keeps out. Needed with CVE.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("cve-rehearsal"),
    show_default=True,
    metavar="DIR",
    help="New folder for the site of the rehearsal.",
)
@click.option("--keep", is_flag=True, help="Leave the nodes running at the end.")
def rehearse(name: str | None, *, module: str | None, out: Path, keep: bool) -> None:
    """Run all steps as an exercise on nodes in containers.

    Three nodes have a vulnerability of the past, and it is taken out of them up to the signed proof.

    The steps are those of the lane: show, mitigate, prepare, roll out and prove. Each prints its commands, and is
    compared with the state that is read then. The packages are Debian's, and the data are made from their changelogs.
    The kernels that run are simulated, since a container has the one of its host. Nothing of your site is used or changed.

    It needs the extra `test`, a Docker engine and Debian's archives, and takes about ten minutes.

    Exit status: 0 each step did what it shows, 2 one did not, or an error.
    """
    from goldnode.core import extras

    extras.require("test", "report", "ansible", "fleet")
    given = []
    if name is not None:
        if module is None:
            raise click.UsageError("name the module of the vulnerability with --module")
        given = [shared.checked(name), "--module", module]
    elif module is not None:
        raise click.UsageError("--module is for a CVE that is named")
    # The lab is above the commands, so that it is a program of its own.
    argv = [sys.executable, "-m", "goldnode.testing.rehearsal", *given, "--out", str(out)]
    sys.exit(subprocess.run([*argv, *(["--keep"] if keep else [])], check=False).returncode)
