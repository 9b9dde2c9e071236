"""Command `goldnode package`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import DIRECTORY, NEW_FILE, WAIT

if TYPE_CHECKING:
    from goldnode.nodepackage.contents import Words


@click.group(no_args_is_help=True)
def package() -> None:
    """Make the node program a package for Debian, RPM or Kubernetes, and publish it.

    The package is for machines without Ansible. On a node that site.yml has set up, it changes nothing: the class
    has its own program and its own units.
    """


_OUT = click.option(
    "--out",
    type=DIRECTORY,
    default=".",
    show_default="the working directory",
    metavar="DIR",
    help="Directory to write the package to.",
)
_REVISION = click.option(
    "--revision",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Revision of the package: raise it for other content of the same version of goldnode.",
)
_MAINTAINER = click.option(
    "--maintainer",
    default="goldnode <goldnode@packages.invalid>",
    show_default=True,
    metavar="NAME <ADDRESS>",
    help="Who answers for the package, for its control file.",
)


@package.command()
@_OUT
@_REVISION
@_MAINTAINER
def deb(out: Path, revision: int, maintainer: str) -> None:
    """Write the package for Debian and Ubuntu.

    The same goldnode writes the same bytes on each machine. dpkg is not needed.
    """
    from goldnode.nodepackage import debian

    name, content = debian.build(_words(), revision, maintainer)
    out.mkdir(parents=True, exist_ok=True)
    (out / name).write_bytes(content)
    _wrote(out / name)


@package.command()
@_OUT
@_REVISION
def rpm(out: Path, revision: int) -> None:
    """Write the package for systems with RPM; needs rpmbuild.

    The same goldnode and rpmbuild write the same bytes. The package is not signed: `rpmsign` does it with your key.
    """
    from goldnode.nodepackage import rpm as rpm_package

    out.mkdir(parents=True, exist_ok=True)
    _wrote(rpm_package.build(_words(), revision, out))


@package.command()
@_REVISION
@_MAINTAINER
@WAIT
def publish(revision: int, maintainer: str, wait: float) -> None:
    """Publish the Debian package in the site's mirror, signed with its key.

    It is a repository of its own, `stacks/goldnode-node/current`. `goldnode mirror status` lists it, and
    `goldnode mirror verify` verifies it.
    """
    from goldnode.core.site import load_site
    from goldnode.nodepackage import debian
    from goldnode.nodepackage.publish import publish as to_mirror

    site = load_site()
    name, content = debian.build(_words(), revision, maintainer)
    published = to_mirror(name, content, site, wait)
    click.echo(f"{name}: {published.directory}, signed by {published.fingerprint}")


@package.command()
@_OUT
@click.option(
    "--image",
    required=True,
    metavar="IMAGE",
    help="Container image with Python 3.9 or newer, by digest.",
)
@click.option(
    "--class",
    "document",
    type=NEW_FILE,
    metavar="FILE",
    help="Class document (`goldnode class export`) for nodes that have none of their own.",
)
def kubernetes(out: Path, image: str, document: Path | None) -> None:
    """Write the check of a Kubernetes cluster as a Kustomize base, with the program.

    Apply it with `kubectl apply --server-side -k DIR`. It is for nodes that neither ssh nor Ansible reaches.
    """
    from goldnode.classdoc.record import document_in
    from goldnode.core.errors import GoldnodeError
    from goldnode.nodepackage.kubernetes import write

    if document is not None:
        try:
            document_in(str(document))  # each pod would report that it could not check
        except GoldnodeError as problem:
            problem.remedy = "write the file with `goldnode class export CLASS > class.json`"
            raise
    write(out, image, document)
    click.echo(f"wrote {out}: kubectl apply --server-side -k {out}")


def _words() -> Words:
    """Return man page and completion of the node program. Late, for the start of the other commands."""
    from goldnode.lock.publication import NODE_PACKAGE
    from goldnode.nodepackage.completion import SHELLS, script
    from goldnode.nodepackage.contents import Words
    from goldnode.nodepackage.manpages import man, of_node

    entries = of_node()
    return Words(man(entries), {shell: script(shell, NODE_PACKAGE, entries) for shell in SHELLS})


def _wrote(file: Path) -> None:
    from goldnode.core.files import sha256_of

    file.chmod(0o644)
    click.echo(f"wrote {file} (sha256:{sha256_of(file)})")
