"""What the commands share that publish images and disks and move their channels: keys, who decides and why, and how gates are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.errors import ImageError

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from goldnode.images.evidence.signatures import Signer
    from goldnode.images.gates import Gate, Waiver

Command = Callable[..., Any]


def options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator."""

    def apply(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


def trusted(files: Sequence[Path]) -> list[SSlibKey]:
    """The public keys of the files, else the site's."""
    from goldnode.images.evidence.signatures import load_public
    from goldnode.site import load_site

    if not files:
        site = load_site()
        files = [site.resolve(site.images.public_key)] if site.images.public_key else []
    return [key for file in files for key in load_public(file)]


def signer_of(key: Path | None) -> Signer:
    """The secret key of the file, else the site's. Raises ImageError and SigningKeyError."""
    from goldnode.images.evidence.signatures import load_signer
    from goldnode.site import load_site

    if key is None:
        site = load_site()
        if site.images.signing_key is None:
            raise ImageError(
                "no key is named to sign the history with", remedy="name it with --key, or as images.signing_key in the site file"
            )
        key = site.resolve(site.images.signing_key)
    return load_signer(key)


def waivers_of(gates: Sequence[str], by: str | None, reason: str | None) -> list[Waiver]:
    """Waivers of gates. Raises ImageError where nobody said who decides, or why."""
    from goldnode.images.gates import Waiver

    return [Waiver(gate, *signed(by, reason, "--waive")) for gate in gates]


def signed(by: str | None, reason: str | None, what: str) -> tuple[str, str]:
    """Who and why, for `what`. Raises ImageError where one of them is not said."""
    if not (by or "").strip() or not (reason or "").strip():
        raise ImageError(f"{what} is recorded with who decided it and why", remedy="add --by WHO --reason WHY")
    return str(by), str(reason)


def user() -> str:
    """Who runs this. Raises ImageError where nobody knows."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ImageError("nobody knows who you are", remedy="name yourself with --by") from None


def show_gates(gates: Sequence[Gate]) -> None:
    """Print gates."""
    for gate in gates:
        who = f" (by {gate.by}: {gate.reason})" if gate.by else ""
        click.echo(f"  {gate.name:<16} {gate.state.replace('_', ' '):<10} {gate.why}{who}")


def show_stand(document: dict[str, Any], with_history: bool) -> None:
    """Print how the channels of a line stand, from what `status --format json` prints."""
    signed = "signatures verified" if document["verified"] else "signatures NOT verified: no key was given (--trust)"
    click.echo(f"{document['place']}/{document['line']}  ({signed})")
    for row in document["channels"]:
        told = {
            "ok": "",
            "unfinished": f"  UNFINISHED: the tag is {row['found']}; run the same command again, or --repair",
            "moved": f"  MOVED: the tag is {row['found']}, which the history does not say",
            "absent": "  GONE: there is no such tag; --repair brings it back",
        }[row["state"]]
        click.echo(f"  {row['channel']:<10}  {row['tag']:<44}  {row['digest'][:19]}  {row['date'][:10]}  {row['by']}{told}")
    if document["pending"]:
        click.echo(
            f"  {document['pending']} moves were made in this store and wait for the registry: the next move, or --repair, brings them there"
        )
    for row in document["history"] if with_history else []:
        waived = ", ".join(gate["gate"] for gate in row["gates"] if gate["state"] != "passed")
        click.echo(
            f"  {row['number']:>4}  {row['date']}  {row['action']} {row['channel']}: {(row['from'] or 'nothing')[:19]} -> {row['to'][:19]} ({row['tag']})"
            f"  by {row['by']}{': ' + row['reason'] if row['reason'] else ''}{'  not passed: ' + waived if waived else ''}"
        )


def human(size: int) -> str:
    """Bytes for a reader."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"
