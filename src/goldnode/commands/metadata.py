"""Rotation of the keys of a published directory, and `sign-metadata`: both of `goldnode rollout` and `goldnode facts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from goldnode.commands.options import FILE, RotationKeys, TwoMachines, key_option
from goldnode.commands.output import emit, reports
from goldnode.node.ground.json_lines import as_dict
from goldnode.node.ground.text import clean


@click.command("sign-metadata")
@click.argument("file", type=FILE, metavar="FILE")
@key_option(
    "--key", "keys", "Secret key of the root, of targets, or of a delegated role.", required=True
)
@reports("metadata-signature")
def sign_metadata(file: Path, keys: tuple[Any, ...], form: str) -> None:
    """Sign a release or a root document that was prepared on another machine.

    FILE is what --prepare wrote. The signature is added to FILE. All that is signed is listed: compare it with what
    you want to release.
    """
    from goldnode.channels import updates  # start-up time; so below
    from goldnode.channels.keys import signers

    document = updates.sign(updates.read_document(file), signers(keys))
    updates.write_document(file, document)
    signed = document.signed
    files = {
        name: {"length": target.length, **target.hashes}
        for name, target in getattr(signed, "targets", {}).items()
    }
    roles = getattr(signed, "roles", None) or {}
    content = {
        "file": str(file),
        "type": signed.type,
        "version": signed.version,
        "expires": f"{signed.expires:%Y-%m-%dT%H:%M:%SZ}",
        "signatures": sorted(document.signatures),
        "files": files,
        "roles": {
            name: {"threshold": role.threshold, "keys": list(role.keyids)}
            for name, role in roles.items()
        },
    }
    lines = [f"{signed.type} version {signed.version}, until {signed.expires:%Y-%m-%d}:"]
    lines += [
        f"  {name}  {about['length']} bytes, sha256 {about['sha256']}{_last_move(signed.targets[name])}"
        for name, about in files.items()
    ]
    lines += [
        f"  {name}: {role.threshold} of {', '.join(key[:12] for key in role.keyids)}"
        for name, role in roles.items()
    ]
    lines.append(f"{file} has {len(document.signatures)} signatures now")
    emit(form, content, "\n".join(lines))


def _last_move(target: Any) -> str:
    """Return the last move of a channel of images in words; empty for another file."""
    moves = as_dict(target.unrecognized_fields.get("custom")).get("moves")
    last = as_dict(moves[-1]) if isinstance(moves, list) and moves else {}
    shown = clean(
        f"{last.get('action')} to {last.get('tag')} by {last.get('by')}, {last.get('date')}"
    )
    return f", {shown}" if last else ""


def rotate_published(
    directory: Path, change: RotationKeys, machines: TwoMachines, form: str
) -> None:
    """Replace the keys of a published directory, or prepare its next root, and print what was written."""
    from goldnode.channels import keys, updates  # start-up time
    from goldnode.core import files

    if machines.prepare is None:
        files.readable_by_others()  # nodes read the root
    following = keys.RepositoryKeys(
        change.keys,
        change.targets_keys,
        change.new_keys,
        root_threshold=change.threshold,
        targets_threshold=change.targets_threshold,
    )
    if machines.signed is not None:
        done = keys.accept_root(directory, updates.read_document(machines.signed))
    elif machines.prepare is not None:
        updates.write_document(machines.prepare, updates.next_root(directory, following.roles()))
        written = str(machines.prepare)
        emit(form, {"prepared": written}, f"wrote {written}, without signatures")
        return
    else:
        done = keys.rotate(directory, following, change.root_keys)
    emit(
        form,
        done.content(),
        f"wrote {done.root}{done.thresholds()}; now publish again with --targets-key",
    )
