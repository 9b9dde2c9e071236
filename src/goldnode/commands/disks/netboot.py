"""Command `goldnode disks netboot`."""

from __future__ import annotations

from pathlib import Path

import click

from goldnode.channels.product import Location
from goldnode.commands import channel_moves as shared
from goldnode.commands.options import FILE, disk_store, grouped, options, published_disks
from goldnode.commands.output import emit, reports, say
from goldnode.core.errors import DiskError

_AT = shared.location(
    options(
        disk_store(),
        published_disks(exists=True),
        click.option(
            "--ca",
            type=FILE,
            metavar="FILE",
            help="CA that signed the certificate of the web server, PEM. Only for https.",
        ),
    )
)


@click.command()
@click.argument("plan", type=FILE, metavar="PLAN")
@_AT
@grouped("keys", shared.Keys, shared.TRUST, shared.KEY)
@click.option(
    "--installer",
    "image",
    required=True,
    metavar="DIR|NAME|CLASS",
    help="Disk image whose kernel and programs install the machines, built with --image-format vmlinuz and initrd.",
)
@click.option(
    "--config",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    show_default="directory of PLAN",
    help="Directory for dnsmasq.conf and nginx.conf.",
)
@reports("netboot")
def netboot(
    plan: Path, location: Location, keys: shared.Keys, image: str, config: Path | None, *, form: str
) -> None:
    """Write the files that install machines from the network.

    PLAN lists the machines.

    Writes the installer, the boot script and the signed orders to the published directory, and the configurations of
    dnsmasq and nginx. Run it again after each change of PLAN, and before the orders expire.
    """
    from goldnode.disks.installer import InstallerKeys
    from goldnode.disks.netboot import ServedFolders, load_plan, write
    from goldnode.disks.product import DiskProduct
    from goldnode.evidence.signatures import site_keys
    from goldnode.fleet.nodes.disk_update import authentic
    from goldnode.node.ground.signature import public_pem

    wanted = load_plan(plan)
    product = DiskProduct(location)
    place = product.directory()
    signer, trust = shared.signer_of(keys.key), [*shared.trusted(keys.trust)]
    roots = location.trusted_roots()
    if len(roots) != 1:
        raise DiskError(
            f"an installer starts from one root document of the channels, and {len(roots)} are named",
            remedy=f"name the newest: --root {place.root}/metadata/1.root.json",
        )
    if wanted.address.startswith("https://") and location.ca is None:
        raise DiskError(
            "the installer has no certificates, and the address begins with https",
            remedy="name the CA of the web server with --ca",
        )

    def pem(*given: object) -> bytes:
        rows = [public_pem(key.to_dict()) for key in given]  # type: ignore[attr-defined]
        return "".join(row[0] for row in rows if row).encode()

    trusted = InstallerKeys(
        images=pem(*(trust or [signer.public])),
        orders=pem(signer.public),
        root=roots[0].read_bytes(),
        ca=location.ca.read_bytes() if location.ca else None,
    )
    served = ServedFolders(place.root, config or plan.parent)
    disk = product.build(image)
    authentic(disk, site_keys())
    written = write(wanted, served, disk, signer, trusted)
    for note in written.notes:
        say(f"note: {note}")
    rows = {
        "files": dict(written.sizes),
        "machines": len(wanted.machines),
        "notes": list(written.notes),
    }

    folder = place.root / "netboot"
    lines = [f"{folder}/{name}  {size / 1e6:.1f} MB" for name, size in written.sizes.items()]
    machines, days = len(wanted.machines), wanted.valid_days
    lines.append(f"{folder}/orders.json  {machines} machines, valid {days} days")
    lines.append(f"{served.config}/dnsmasq.conf, nginx.conf")
    emit(form, rows, "\n".join(lines))
