"""Command `goldnode images derive`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from goldnode.channels.product import Location
from goldnode.commands import channel_moves as shared
from goldnode.commands.options import (
    CERTIFICATE,
    EXISTING,
    grouped,
    image_store,
    unsigned_option,
)
from goldnode.commands.output import emit, reports, say

if TYPE_CHECKING:
    from goldnode.images.store import ImageStore
    from goldnode.oci.layout import OciImage


@dataclass(frozen=True)
class DeriveRun:
    """Options of a run."""

    locked: bool = False
    upgrade: bool = False
    offline: bool = False
    twice: bool = False
    unsigned: str | None = None

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if self.upgrade and (self.locked or self.offline):
            raise click.UsageError("--upgrade excludes --locked and --offline")


@click.command()
@click.argument("place", type=EXISTING, default=Path(), metavar="[DIR|FILE]")
@image_store("store_path")
@grouped(
    "how",
    DeriveRun,
    click.option(
        "--locked",
        is_flag=True,
        help="Use the lock as it is: follow no channel, and fail if the lock is stale.",
    ),
    click.option(
        "--upgrade",
        is_flag=True,
        help="Upgrade packages and wheels to the newest versions in the archives and indexes.",
    ),
    click.option(
        "--offline",
        is_flag=True,
        help="Download nothing; the base and all packages and wheels must be in the store.",
    ),
    click.option(
        "--twice",
        is_flag=True,
        help="Build a second time, in another directory, and compare the digests.",
    ),
    unsigned_option("in `unsigned.jsonl` of the store"),
)
@shared.TRUST
@CERTIFICATE
@reports("derived-image")
def derive(
    place: Path,
    store_path: Path | None,
    how: DeriveRun,
    trust: tuple[Path, ...],
    ca: Path | None,
    *,
    form: str,
) -> None:
    """Build an image of your own on a base.

    It adds packages, wheels, files, user, entrypoint and environment. DIR has a derive.yml; its lock, derive.lock.yml, is
    written beside it. A base that is named by a channel is followed, and the differences are shown. The result
    is inspected. Only packages require an engine that builds images, as `images build` does.

    Exit status: 0 built and passed, 1 refused by the inspection or two builds differ, 2 an error.
    """
    from goldnode.core import progress
    from goldnode.core.files import second_build
    from goldnode.images.declaration import load_declaration
    from goldnode.images.derived import DerivedBuilder, twice
    from goldnode.images.deriving import DeriveOptions, prepare
    from goldnode.images.store import open_store
    from goldnode.oci import engines

    how.check()
    store = open_store(store_path)
    options = DeriveOptions(
        how.locked,
        how.upgrade,
        how.offline,
        shared.trusted(trust),
        engine=lambda: engines.choose(store=store.cache),
    )
    base = BaseSource(store, trust, ca, how.unsigned)
    with progress.downloads(each=False) as watcher:
        ready = prepare(load_declaration(place), store, options, base.pulled, watcher)
    recipe, builder = ready.recipe, DerivedBuilder(store, ready.engine)
    # Asked before the build, which returns an existing result too.
    there = builder.built(recipe)
    built = builder.build(recipe)
    for note in ready.notes:
        say(note)
    passed, lines, inspected = _inspected(store, store.layout.image(recipe.ref), recipe.ref)
    state = "unchanged" if there is not None else "built"
    content: dict[str, Any] = {
        "image": recipe.image.name,
        "ref": recipe.ref,
        "build_id": recipe.build_id,
        "digest": built.digest,
        "state": state,
        "base": {"ref": recipe.base.identity.ref, "digest": recipe.base.image.digest},
        "lock": {
            "file": str(ready.lock_file),
            "digest": recipe.lock.digest,
            "written": ready.locked,
        },
        "notes": list(ready.notes),
        "inspection": inspected,
        "passed": passed,
    }
    what = "nothing has changed" if state == "unchanged" else f"built on {recipe.base.identity.ref}"
    emit(form, content, "\n".join([*lines, f"{recipe.ref}  {built.digest}  {what}"]))
    if how.twice:
        with second_build(store.cache / "twice") as second:
            differences = twice(store, recipe, second, ready.engine)
        for row in differences:
            say(f"error: {row.image} is not the same when it is built twice: {row.what}")
            say(f"the second build is in {second}")
        if not differences:
            say(f"{recipe.ref} built twice: the digest is the same")
        passed = passed and not differences
    if not passed:
        sys.exit(1)


def _inspected(
    store: ImageStore, image: OciImage, ref: str
) -> tuple[bool, list[str], dict[str, Any]]:
    """Inspect the image and attach the results. Return the verdict, its text and its document."""
    from goldnode.gpuprogram.smoke import pack
    from goldnode.images.locked_packages import locked_in
    from goldnode.inspect import examine, policy, report, targets

    (target,) = targets.find(ref, store.layout, store.cache)
    inspection, truth = examine(target, policy.load(None), own=pack.own(), locked=locked_in(store))
    report.attach(image, inspection, truth)
    # There is no truth of targets that are no image; without one, the tag is not verified.
    passed = inspection.passed and truth is not None and truth.passed
    return passed, list(report.text(inspection, truth)), report.inspection_document(inspection)


@dataclass(frozen=True)
class BaseSource:
    """Where bases come from: the store that gets them, the keys that verify them, or why none does."""

    store: ImageStore
    trust: tuple[Path, ...]
    ca: Path | None
    unsigned: str | None

    def pulled(self, name: str) -> str:
        """Fetch a base from its registry into the store. Return its digest.

        Raises ImageError for a base that no trusted key has signed, and without a key, unless there is a reason.
        """
        from goldnode.compat.workloads import parse_reference
        from goldnode.core.errors import ImageError
        from goldnode.evidence.signatures import unsigned_reason
        from goldnode.images.pull import ImagePull, pull
        from goldnode.oci.registry import Registry, RegistryAddress, RegistryOptions, reached

        base = parse_reference(name.removeprefix("http://").removeprefix("https://"))
        wanted = base.digest or base.tag
        if base.registry is None or wanted is None:
            raise ImageError(
                f'"{name}" names no image', remedy="write it as HOST[:PORT]/NAME:TAG or …@sha256:…"
            )
        policy = shared.trust_policy(self.trust)
        reason = unsigned_reason(name, policy is not None, self.unsigned)
        place = reached(RegistryAddress(base.registry, plain_http=name.startswith("http://")))
        registry = Registry(place.host, RegistryOptions(place.plain_http, self.ca))
        roots = Location(self.store.layout.root).trusted_roots()
        how = ImagePull(policy, roots)
        done = pull(self.store.layout, registry.repository(base.name), wanted, how)
        if reason:
            shared.record_unsigned(self.store.layout, done.name, done.digest, reason)
        return done.digest
