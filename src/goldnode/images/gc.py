"""Garbage collection of the store and of a registry.

These images stay: the target of a channel; an image in the history of any line (the store's copies
and the registry's own); an image that a class of the catalog names; an image that a lock of the
matrix would build; an image younger than `days`. An image that cannot be read, or whose age is
unknown, stays too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldnode.channels.gc import (
    UNNEEDED,
    Collected,
    Collection,
    Gone,
    NeededContent,
    named_at,
    named_here,
)
from goldnode.channels.locks import lane
from goldnode.compat.workloads import parse_reference
from goldnode.images import platform_index
from goldnode.images.channels import RegistryPlace
from goldnode.images.cosign_tags import SUFFIXES
from goldnode.images.requirements import PUBLICATION
from goldnode.node.ground.json_lines import as_dict
from goldnode.oci.identity import IMMUTABLE
from goldnode.oci.layout import REF, Descriptor, Layout, OciImage
from goldnode.oci.model import LABELS
from goldnode.oci.registry import INDEXES, Repository, referrers_tag

if TYPE_CHECKING:
    from goldnode.catalog.load import Catalog


def needed(
    layout: Layout,
    catalog: Catalog | None = None,
    locks: Mapping[str, str] | None = None,
) -> NeededContent:
    """Return the images that the store's copies of histories and the classes of the catalog name.

    `locks` maps digests of locks to their owners. Raises GoldnodeError if a history cannot be read:
    no image is removed on incomplete information.
    """
    content = NeededContent(named_here(layout), locks=dict(locks or {}))
    for name, entry in sorted(catalog.classes.items()) if catalog is not None else []:
        for image in entry.item.images:
            reference = parse_reference(image.ref)
            if reference.digest is not None:
                content.digests.setdefault(reference.digest, f"class {name}")
            if reference.tag is not None:
                content.names.setdefault(
                    f"{reference.name.rpartition('/')[2]}:{reference.tag}", f"class {name}"
                )
    return content


def collect(layout: Layout, keeps: NeededContent, how: Collection | None = None) -> Collected:
    """Remove unneeded names from the store, then blobs that no remaining name reaches.

    Waits for builds, publications, promotions and pulls. Raises ImageError, and removes nothing, if
    a manifest that stays cannot be read.
    """
    how = how or Collection()
    edge = how.edge.timestamp()
    with lane(layout, "", name="gc"):
        keeps = replace(
            keeps, digests=keeps.digests | named_here(layout)
        )  # includes promotions made while this run waited for the lock
        gone: list[Gone] = []
        stays: dict[str, str] = {}
        leaving: list[str] = []
        digests: set[str] = set()
        rows = layout.index()
        for row in rows:
            name = row.get("annotations", {}).get(REF)
            if name is None and "io.goldnode.subject" in row.get("annotations", {}):
                continue  # evidence follows its subject
            path = layout.path(row["digest"])
            age = how.young(path.stat().st_mtime) if path.is_file() else None
            why = _needed(layout, name, row["digest"], keeps) or age
            if why is None and name is not None:
                leaving.append(name)
                gone.append(Gone(name, UNNEEDED))
            else:
                stays[name or row["digest"]] = why or "it has no name that goldnode gave"
                digests.add(row["digest"])
        evidence = [row for row in rows if "io.goldnode.subject" in row.get("annotations", {})]
        detached = [
            row["digest"]
            for row in evidence
            if row["annotations"]["io.goldnode.subject"] not in digests
        ]
        digests |= {row["digest"] for row in evidence} - set(detached)
        used = _reach(layout, digests)
        files = [
            path
            for path in sorted((layout.root / "blobs/sha256").iterdir())
            if f"sha256:{path.name}" not in used
        ]
        files += sorted((layout.root / "partial").glob("*"))
        # Younger blobs stay: an interrupted build or pull continues with them.
        doomed = [path for path in files if path.stat().st_mtime <= edge]
        gone += [
            Gone(str(path), "nothing that stays names it", path.stat().st_size) for path in doomed
        ]
        if not how.dry_run:
            # Names first: an interruption leaves unnamed blobs for the next run, never a name
            # without its blobs.
            for name in leaving:
                layout.drop_ref(name)
            for digest in detached:
                layout.detach(digest)
            # Check again by the index as it is now, in case a name was added since the scan.
            still = _reach(layout, {row["digest"] for row in layout.index()})
            for path in doomed:
                if (
                    f"sha256:{path.name}" not in still
                    and path.exists()
                    and path.stat().st_mtime <= edge
                ):
                    path.unlink()
    return gone, stays


def _needed(layout: Layout, name: str | None, digest: str, keeps: NeededContent) -> str | None:
    if digest in keeps.digests:
        return keeps.digests[digest]
    if name is not None and name in keeps.names:
        return keeps.names[name]
    if not keeps.locks or not layout.has(digest):
        return None
    document = layout.document(digest)
    if "layers" not in document or "config" not in document:
        return None
    return keeps.locks.get(OciImage(layout, digest).labels.get(f"{LABELS}lock", ""))


def _reach(layout: Layout, digests: Iterable[str]) -> set[str]:
    """Return the digests of all blobs that manifests and indexes lead to."""
    reached: set[str] = set()
    todo = list(digests)
    while todo:
        digest = todo.pop()
        if digest in reached:
            continue
        reached.add(digest)
        if not layout.has(digest):
            continue
        document = layout.document(digest)
        reached |= {
            row["digest"] for row in (document.get("config"), *document.get("layers", [])) if row
        }
        todo += [row["digest"] for row in document.get("manifests", [])]
    return reached


def collect_registry(
    place: RegistryPlace,
    layout: Layout,
    repositories: Sequence[str],
    keeps: NeededContent,
    roots: Sequence[Path] = (),
    *,
    how: Collection | None = None,
) -> Collected:
    """Delete unneeded images from a registry, along with the documents that refer to them.

    Only images whose tags are all immutable tags of goldnode are candidates. The channels of
    the registry are verified first, and read again right before the image is deleted. An image without a publication record stays,
    because its age is unknown. The registry's own garbage collection frees the space.

    Waits for builds, publications, promotions and pulls of this store. Raises ImageError.
    """
    how = how or Collection()
    gone: list[Gone] = []
    stays: dict[str, str] = {}
    with lane(layout, "", name="gc"):
        wanted = keeps.digests | named_here(layout)
        wanted |= named_at(place, layout, roots)
        for repository in repositories:
            target = place.registry.repository(place.where.repository(repository))
            tags: dict[str, list[str]] = {}
            for tag in target.tags():
                # Fallback tag for referrers, from the OCI distribution specification, and the tags
                # of cosign.
                subject = re.fullmatch(r"sha256-([0-9a-f]{64})(?:\.(?:sig|att|sbom))?", tag)
                if subject is not None and target.manifest(f"sha256:{subject[1]}") is None:
                    gone.append(
                        Gone(f"{target}:{tag}", "documents about an image that is not there")
                    )
                    if not how.dry_run:
                        _delete(target, f"sha256:{subject[1]}")
                if subject is not None or tag.endswith("-history"):  # of goldnode 0.x
                    continue
                if (digest := target.digest(tag)) is not None:
                    tags.setdefault(digest, []).append(tag)
            others = {
                digest: names
                for digest, names in tags.items()
                if not any(map(IMMUTABLE.fullmatch, names))
            }
            wanted |= platform_index.listed(target, others)
            for digest, names in sorted(tags.items()):
                label = f"{target}:{names[0]}"
                foreign = [name for name in names if IMMUTABLE.fullmatch(name) is None]
                why = wanted.get(digest) or next(
                    (
                        keeps.names[f"{repository}:{name}"]
                        for name in names
                        if f"{repository}:{name}" in keeps.names
                    ),
                    None,
                )
                if why is None and foreign:
                    why = f"the tag {foreign[0]} points to it"
                why = (
                    why
                    or _locked(target, digest, keeps)
                    or how.published(_publications(target, digest))
                )
                if why is not None:
                    stays[label] = why
                    continue
                # The scan takes long and others may promote meanwhile, so read the channels again.
                wanted |= named_at(place, layout, roots)
                if digest in wanted:
                    stays[label] = wanted[digest]
                    continue
                gone.append(Gone(label, UNNEEDED))
                if not how.dry_run:
                    _delete(target, digest)
    return gone, stays


def _locked(target: Repository, digest: str, keeps: NeededContent) -> str | None:
    manifest = target.manifest(digest)
    if manifest is None or not keeps.locks or manifest.media_type in INDEXES:
        return None
    return keeps.locks.get(manifest.document.get("annotations", {}).get(f"{LABELS}lock", ""))


def _publications(target: Repository, digest: str) -> Iterator[str]:
    """Yield the times of the publication records of an image."""
    for row in target.referrers(digest)[0]:
        if (
            row.get("artifactType") == PUBLICATION
            and (manifest := target.manifest(row["digest"])) is not None
        ):
            yield _blob(target, manifest.document)["published"]


def _blob(target: Repository, manifest: Mapping[str, Any]) -> dict[str, Any]:
    return as_dict(json.loads(target.read_blob(Descriptor.of(manifest["layers"][0]))))


def _delete(target: Repository, digest: str) -> None:
    """Delete an image, then its evidence.

    The image comes first: an interruption may leave evidence without its image, never an image
    without evidence.
    """
    rows = target.referrers(digest)[0]
    tag = referrers_tag(digest)
    lists = [target.digest(name) for name in (tag, *(f"{tag}.{suffix}" for suffix in SUFFIXES))]
    target.delete(digest)
    for row in rows:
        target.delete(row["digest"])
    for listed in lists:
        if listed is not None:
            target.delete(listed)
