"""Command `goldnode verify-release`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldnode.commands.options import EXISTING, FILE
from goldnode.commands.output import emit, reports

if TYPE_CHECKING:
    from goldnode.evidence.release_files import VerifiedRelease


@click.command("verify-release")
@click.argument("files", nargs=-1, required=True, type=EXISTING, metavar="FILE|DIR...")
@click.option(
    "--key",
    type=FILE,
    required=True,
    metavar="FILE",
    help="Public key of the project, from elsewhere than the release.",
)
@click.option(
    "--on",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Compare the program on this node with that of the release, over ssh. May be repeated.",
)
@reports("verify-release")
def verify_release(files: tuple[Path, ...], key: Path, hosts: tuple[str, ...], form: str) -> None:
    """Verify files of a release of goldnode.

    Each FILE must be one that SHA256SUMS in its directory names, with the same bytes, and SHA256SUMS must be
    signed by the key. A provenance in the directory must be by the same key, and about the same files. A DIR is
    all of its files. Standard tools do the same: `openssl dgst -sha256 -verify KEY -signature SHA256SUMS.sig
    SHA256SUMS && sha256sum --check SHA256SUMS`.

    Exit status: 0 as released, 1 another file, another key or another program, 2 wrong usage.
    """
    from goldnode.evidence import release_files

    rows: list[dict[str, str]] = []
    notes: list[str] = []
    paths = [one for path in files for one in _named(path)]
    for directory in dict.fromkeys(path.parent for path in paths):
        try:
            release = release_files.verify(directory, key)
        except release_files.ReleaseError as problem:
            rows += [_row(path, "", str(problem)) for path in paths if path.parent == directory]
            continue
        about = "with its provenance" if release.attested else "without a signed provenance"
        notes.append(f"{directory}: signed by key {release.key[:16]}…, {about}")
        here = [path for path in paths if path.parent == directory]
        rows += [_row(*row) for row in release_files.verify_all(release, here)]
        rows += [_on(release, host) for host in hosts]
    bad = [row for row in rows if row["problem"]]
    lines = [*notes, *(f"{row['what']}: {row['problem'] or row['found']}" for row in rows)]
    emit(form, {"as_released": not bad, "files": rows}, "\n".join(lines))
    sys.exit(1 if bad else 0)


def _named(path: Path) -> list[Path]:
    from goldnode.evidence import release_files

    return release_files.members(path) if path.is_dir() else [path]


def _row(path: Path, digest: str, problem: str) -> dict[str, str]:
    return {"what": str(path), "found": f"as released ({digest[:16]}…)", "problem": problem}


def _on(release: VerifiedRelease, host: str) -> dict[str, str]:
    from goldnode.evidence import release_files

    try:
        answer, problem = release_files.compare_program(release, host), ""
    except release_files.ReleaseError as refusal:
        answer, problem = "", str(refusal)
    return {"what": host, "found": answer, "problem": problem}
