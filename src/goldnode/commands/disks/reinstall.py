"""Command `goldnode disks reinstall`."""

from __future__ import annotations

import click

from goldnode.commands.output import emit, reports
from goldnode.core.errors import DiskError


@click.command()
@click.argument("node")
@click.option(
    "--drained",
    is_flag=True,
    help="State that nothing runs on NODE: it is switched off without a shutdown.",
)
@reports("reinstallation")
def reinstall(node: str, *, drained: bool, form: str) -> None:
    """Boot a node from the network once, to install it again.

    Its BMC does it, and the installer carries out the order of NODE. With `ladder.install` of the site file, the order
    is raised and signed first. Otherwise raise `erase` of NODE in the plan and run `goldnode disks netboot` before:
    without that, the installer leaves the disk as it is. The BMC is `ladder.bmc` of the site file (Redfish or IPMI).
    """
    from goldnode.core.site import load_site
    from goldnode.disks.netboot import InstallAgain, load_plan, order_again
    from goldnode.evidence.signatures import load_signer
    from goldnode.fleet.control.bmc import bmc_of
    from goldnode.fleet.control.bmc import netboot as boot

    site = load_site()
    if site.ladder.bmc is None:
        raise DiskError(
            "the site file has no ladder.bmc",
            remedy=f"add it, or run `goldnode-node slot netboot` on {node} and restart it",
        )
    if not drained:
        raise DiskError(
            f"{node} would be switched off while it may have work",
            remedy=f"drain it, and run `goldnode disks reinstall {node} --drained`",
        )
    bmc, own, number = bmc_of(site.ladder.bmc, node, site.resolve), site.ladder.install, None
    if own is not None:
        plan, signer = load_plan(site.resolve(own.plan)), load_signer(site.resolve(own.key))
        number, _ = order_again(plan, site.resolve(own.to), signer, InstallAgain(node, ""))
    ordered = boot(bmc)
    shown = f"{node} is on: {ordered}" + (f"; its order is erase: {number}" if number else "")
    emit(form, {"node": node, "ordered": ordered, "erase": number}, shown)
