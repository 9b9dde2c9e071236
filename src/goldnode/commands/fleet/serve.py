"""Command `goldnode fleet nodes` and `goldnode fleet serve`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from goldnode.commands.fleet.common import STORE, key_file, opened
from goldnode.commands.options import DIRECTORY, FILE, options
from goldnode.commands.output import emit, reports, say
from goldnode.core import extras
from goldnode.core.site import load_site


@click.command()
@click.argument("file", type=FILE, metavar="FILE")
@STORE
@reports("fleet-nodes")
def nodes(file: Path, where: str | None, form: str) -> None:
    """Write the nodes and limits of classes to the store.

    FILE lists the nodes of each class with their rack, leaf and cohort, in YAML. Limits are in force at once, unless a
    rollout of the class has begun: from then on, those of the document of its last rollout are.
    Nodes of these classes that are not in FILE are removed; one that is out of service is an error.
    """
    with opened(where, create=True) as store:
        # sqlalchemy: only the extra `fleet` installs it.
        from goldnode.fleet.shared.person import person
        from goldnode.fleet.store import limits
        from goldnode.fleet.store.fleet_file import load
        from goldnode.fleet.store.nodes import put

        members = load(file)
        change = store.run(
            lambda connection: put(connection, members.nodes, members.limits, person(), time.time())
        )
        with store.read() as connection:
            # The limits of a rollout win: a person who edits the file alone would wait in vain.
            others = {name: limits.rollout_of(connection, name) for name in members.limits}
    for name, rollout in others.items():
        if rollout is not None:
            say(
                f"the limits of class {name} in {file} are not in force: those of rollout {rollout} are. "
                "Change its document and submit it again; after its end, submit another rollout."
            )
    counts = ", ".join(
        f"{len(getattr(change, kind))} {kind}" for kind in ("added", "changed", "retired")
    )
    content = {"added": change.added, "changed": change.changed, "retired": change.retired}
    emit(form, content, f"{len(members.nodes)} nodes in {len(members.limits)} classes: {counts}")


@click.command()
@options(
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="Address to listen on.",
    ),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=9180,
        show_default=True,
        metavar="PORT",
        help="Port.",
    ),
    click.option(
        "--tls-certificate",
        "certificate",
        type=FILE,
        metavar="FILE",
        help="Certificate chain, PEM.",
    ),
    click.option(
        "--tls-key", "key", type=FILE, metavar="FILE", help="Secret key of the certificate, PEM."
    ),
    click.option(
        "--client-ca",
        type=FILE,
        metavar="FILE",
        help="Authority of the certificates of nodes: a node may then ask only for itself.",
    ),
    click.option(
        "--client-crl",
        type=FILE,
        metavar="FILE",
        help="Certificates of nodes that are revoked, PEM; read again when it changes.",
    ),
    click.option(
        "--data",
        type=DIRECTORY,
        metavar="DIRECTORY",
        show_default="$GOLDNODE_FLEET_DATA, else the site file's fleet.data",
        help="Accept captures of nodes, and write them to the fleet's data here.",
    ),
    click.option(
        "--plain-http",
        "plain",
        is_flag=True,
        help="Allow HTTP without TLS on another address than the loopback.",
    ),
    click.option(
        "--any-client",
        is_flag=True,
        help="Allow TLS without --client-ca there: any machine that reaches it can then ask for any node.",
    ),
)
@STORE
def serve(where: str | None, **given: Any) -> None:
    """Run the lock service (FleetLock) in front of the store.

    Any number of services may share one store. The service stops on SIGTERM, after the requests in progress.
    """
    site = load_site()
    # Only a declared one: the default is relative to the working directory of the service.
    given["data"] = given["data"] or site.declared_fleet_data()
    if given["data"]:
        extras.require("report")
    with opened(where, create=True) as store:
        # sqlalchemy: only the extra `fleet` installs it.
        from goldnode.fleet.service.server import Listen
        from goldnode.fleet.service.server import serve as run

        run(store, Listen(**given), key_file(site, "signing_key"))
