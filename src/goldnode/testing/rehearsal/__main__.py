"""Program of `goldnode cve rehearse`: a rehearsal in a folder of its own, on nodes in containers."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from docker.errors import APIError

from goldnode.core.errors import GoldnodeError
from goldnode.testing.rehearsal.errors import RehearsalError
from goldnode.testing.rehearsal.lane import CVE, MODULE, CveRehearsal
from goldnode.testing.rehearsal.machines import REAL, SIMULATED, LabMachines

LAB = "cve-rehearsal"


@click.command()
@click.argument("cve", default=CVE)
@click.option("--module", default=MODULE)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--keep", is_flag=True)
def main(cve: str, module: str, out: Path, keep: bool) -> None:
    """Rehearse the lane of a vulnerability."""
    if out.exists() and any(out.iterdir()):
        raise RehearsalError(f"{out} is not empty", remedy="name a new folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    folder = out.absolute()
    machines = LabMachines(LAB, folder / ".goldnode", click.echo)
    click.echo(f"real: {REAL}\nSIMULATED: {SIMULATED}\nfolder: {folder}")
    rehearsal = CveRehearsal(folder, machines, click.echo, cve, module)
    rehearsal.go()
    for title, seconds in rehearsal.seconds.items():
        click.echo(f"{seconds:6.0f} s  {title}")
    if keep:
        click.echo(
            f"the nodes run on; end them in {folder}: python -m goldnode.testing.lab down {LAB}"
        )
    else:
        machines.end()
    click.echo(f"the rehearsal of {cve} is complete; its kernels were SIMULATED")


if __name__ == "__main__":
    try:
        main()
    except APIError as error:
        click.echo(f"error: the Docker engine refuses: {error.explanation}", err=True)
        sys.exit(2)
    except GoldnodeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
