"""Command `goldnode classes`, and `goldnode class export` and `bless`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from goldnode.commands.options import FILE, NEW_FILE, grouped
from goldnode.commands.output import dumps, emit, reports, say, table
from goldnode.nodepackage.platforms import ANY, PLATFORMS


@click.command()
@reports("classes")
def classes(form: str) -> None:
    """List the node classes."""
    from goldnode.classdoc.load import load_catalog  # start-up time: it loads pydantic

    catalog = load_catalog()
    rows, lines = [], [("class", "backend", "gpu", "stack", "exercised", "")]
    for name, entry in sorted(catalog.classes.items()):
        item, gpu, stack = entry.item, entry.item.gpu, catalog.stacks[entry.item.stack].item
        rows.append(
            {
                "class": name,
                "backend": item.backend,
                "gpu": None if gpu is None else {"model": gpu.model, "count": gpu.count},
                "stack": item.stack,
                "exercised": stack.exercised,
                "simulated": item.simulated,
            }
        )
        lines.append(
            (
                name,
                item.backend,
                f"{gpu.count} x {gpu.model}" if gpu is not None else "-",
                item.stack,
                stack.exercised,
                "simulated hardware" if item.simulated else "",
            )
        )
    emit(form, {"classes": rows}, table(lines))


@click.group("class", no_args_is_help=True)
def class_() -> None:
    """Export the document of a node class, print user data, propose its baseline."""


@class_.command()
@click.argument("name", metavar="CLASS")
def export(name: str) -> None:
    """Print the class document of CLASS as JSON."""
    from goldnode.classdoc.compile import class_document
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site

    click.echo(dumps(class_document(name, load_catalog(), load_site())))


@dataclass(frozen=True)
class UserDataOptions:
    """Options of `class user-data`."""

    platform: str
    address: str | None
    embed: bool
    files: tuple[Path, ...]
    accept: tuple[int, ...]
    no_reboot: bool
    multipart: bool
    compress: bool


@class_.command("user-data")
@click.argument("name", metavar="CLASS")
@grouped(
    "wanted",
    UserDataOptions,
    click.option(
        "--platform",
        type=click.Choice([ANY.name, *PLATFORMS]),
        default=ANY.name,
        show_default="any: the smallest limit of all",
        help="Platform whose limit the user data has to keep.",
    ),
    click.option(
        "--program",
        "address",
        metavar="URL",
        show_default="the package in the site's mirror",
        help="Address of the file that `goldnode node-program` of this version writes.",
    ),
    click.option(
        "--embed", is_flag=True, help="Put the node program into the user data: about 1 MiB."
    ),
    click.option(
        "--part",
        "files",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="Also deliver this user data of yours, such as a cloud-config. Repeatable.",
    ),
    click.option(
        "--accept",
        type=click.IntRange(1, 4),
        multiple=True,
        metavar="CODE",
        help="Also accept this exit status of the check at the end. Repeatable.",
    ),
    click.option(
        "--no-reboot", is_flag=True, help="Leave a reboot that the plan needs to a person."
    ),
    click.option(
        "--multipart",
        is_flag=True,
        help="Print a multi-part message (MIME), for what merges it with parts of its own.",
    ),
    click.option(
        "--gzip", "compress", is_flag=True, help="Compress it also where it fits without."
    ),
)
@click.option(
    "--out", type=NEW_FILE, metavar="FILE", show_default="print it", help="File to write."
)
def user_data(name: str, wanted: UserDataOptions, out: Path | None) -> None:
    """Print user data with which a vendor's image becomes a member of CLASS.

    cloud-init in the image fetches goldnode-node, verifies its digest, shows the plan, applies it, reboots if the plan
    needs it, and checks the machine. `cloud-init status` is an error if any of that fails.

    User data is no secret: private keys and logins are refused.
    """
    from goldnode.classdoc.compile import class_document  # start-up time, as below
    from goldnode.classdoc.load import load_catalog
    from goldnode.core.site import load_site
    from goldnode.nodepackage import user_data as making

    if wanted.address and wanted.embed:
        raise click.UsageError("Use either --program or --embed.")
    site = load_site()
    document = class_document(name, load_catalog(), site)
    making.check_document(document)
    program = making.EMBEDDED
    if not wanted.embed:
        program = making.at_address(wanted.address) if wanted.address else making.in_mirror(site)
    words = [word for code in wanted.accept for word in ("--accept", str(code))]
    if wanted.no_reboot:
        words.append("--no-reboot")
    parts = [*map(making.own_part, wanted.files), making.script(document, program, words)]
    platform = PLATFORMS.get(wanted.platform, ANY)
    text = making.message(parts, multipart=wanted.multipart)
    content = making.fitted(text, platform, compress=wanted.compress)
    if out is None:
        click.echo(content, nl=False)
        return
    out.write_bytes(content)
    limit = "no limit known" if platform.limit is None else f"limit {platform.limit}"
    click.echo(f"wrote {out}: {platform.size(content)} bytes, {limit} ({platform.name})")


@class_.command()
@click.argument(
    "captures",
    nargs=-1,
    required=True,
    type=FILE,
    metavar="CAPTURE...",
)
@click.option(
    "-c",
    "--class",
    "name",
    metavar="CLASS",
    help="Print the change to the file of this class, as a diff.",
)
@click.option(
    "--reason",
    metavar="TEXT",
    help="Accept links and sizes that differ from the facts, for this reason.",
)
@reports("baseline-proposal")
def bless(captures: tuple[Path, ...], name: str | None, reason: str | None, form: str) -> None:
    """Propose the baseline of a class from captures of healthy nodes.

    `goldnode-node capture` writes a CAPTURE. Review the proposal before you copy it into the class file.
    """
    from goldnode.classdoc import bless as blessing
    from goldnode.classdoc.load import load_catalog

    catalog = load_catalog()
    proposal = blessing.bless(captures, catalog, name, reason)
    # Without a class there is no file to change: the baseline is printed alone.
    patch = None if name is None else blessing.patch(proposal, catalog.node_class(name).file)
    emit(
        form,
        {"class": name, "baseline": proposal.baseline, "patch": patch, "notes": proposal.notes},
        patch if patch is not None else blessing.text(proposal),
    )
    for note in proposal.notes:
        say(f"review: {note}")
