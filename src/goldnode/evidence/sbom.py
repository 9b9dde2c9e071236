"""Software bill of materials of one image as SPDX 2.3, and what it shares with CycloneDX (`cyclonedx_bom`).

Packages have a purl and the hash of the deb or wheel they came from. A file unpacked from a wheel to another
location is listed with its own hash, and the wheel as its origin. A file of unknown origin is listed as such.
The time in the documents is that of the image. Serial number and namespace derive from its digest.

The source packages of debs are packages of their own here, because OSV-Scanner finds a source package only by
a component of its name. They are absent from CycloneDX: grype and Trivy would report each finding twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from packageurl import PackageURL

from goldnode.evidence import licences
from goldnode.evidence.contents import Contents, InstalledDeb, InstalledWheel, key
from goldnode.evidence.layers import FileEntry
from goldnode.oci.layout import OciImage, canonical

NAMESPACE = uuid.UUID(
    "5f0f6f6c-646e-5f64-9573-626f6d730001"
)  # private to goldnode; any constant works
_EPOCH = "1970-01-01T00:00:00Z"


def purl(item: InstalledDeb | InstalledWheel, contents: Contents) -> str:
    """Return the package URL: `pkg:deb/debian/NAME@VERSION?arch=…&distro=…&upstream=…` or `pkg:pypi/NAME@VERSION`.

    `upstream` is the source package, as syft writes it and grype reads it: `SOURCE` or `SOURCE@VERSION`, and
    absent if it has the name and the version of the package.
    """
    if isinstance(item, InstalledWheel):
        return PackageURL("pypi", None, item.name, item.version).to_string()
    if item.made:
        return PackageURL(
            "deb", "goldnode", item.name, item.version, {"arch": item.architecture}
        ).to_string()
    qualifiers = {"arch": item.architecture, **_distro(contents)}
    if item.source_version != item.version:
        qualifiers["upstream"] = f"{item.source}@{item.source_version}"
    elif item.source != item.name:
        qualifiers["upstream"] = item.source
    return PackageURL("deb", _family(contents), item.name, item.version, qualifiers).to_string()


def source_purl(name: str, stated: str, contents: Contents) -> str:
    """Return the package URL of a source package of the distribution. `stated` is its version."""
    qualifiers = {"arch": "source", **_distro(contents)}
    return PackageURL("deb", _family(contents), name, stated, qualifiers).to_string()


def _family(contents: Contents) -> str:
    return contents.os.get("ID", "unknown")


def _distro(contents: Contents) -> dict[str, str]:
    release = contents.os.get("VERSION_ID") or contents.os.get("VERSION_CODENAME")
    return {"distro": f"{_family(contents)}-{release}"} if release else {}


@dataclass(frozen=True)
class Subject:
    """Subject of a bill of materials.

    `digest` identifies it, `sha256` (hex) is that of its content, `created` its own time (RFC 3339). `kind`
    and `purpose` are the types that CycloneDX and SPDX use for it. `scheme` is the prefix of its reference.
    `config` is the digest of a container image's configuration, by which Trivy names the image.
    """

    name: str
    digest: str
    sha256: str
    created: str
    kind: str = "container"
    purpose: str = "CONTAINER"
    scheme: str = "oci"
    config: str = ""


def subject(image: OciImage, contents: Contents) -> Subject:
    """Return a container image as subject: its digest, and the name in its own metadata."""
    name = str(
        contents.image.get("name") or image.labels.get("org.opencontainers.image.title") or "image"
    )
    config = str(image.manifest["config"]["digest"])
    return Subject(
        name,
        contents.digest,
        contents.digest.removeprefix("sha256:"),
        _created(image),
        config=config,
    )


def spdx(
    image: OciImage | Subject,
    contents: Contents,
    more: Mapping[str, tuple[FileEntry, str | None]] | None = None,
) -> bytes:
    """Return the SPDX 2.3 document (JSON).

    `more` maps names of files outside the root file system to their entry and the key of the package they
    came from.
    """
    about = image if isinstance(image, Subject) else subject(image, contents)
    items = contents.packages
    ids = {
        key(item): "SPDXRef-" + "-".join(_safe(part) for part in key(item).split(":"))
        for item in items
    }
    sources = {
        (
            item.source,
            item.source_version,
        ): f"SPDXRef-source-{_safe(item.source)}-{_safe(item.source_version)}"
        for item in contents.debs
        if not item.made
    }
    root = "SPDXRef-image"
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", root)]
    relations += [(root, "CONTAINS", ref) for ref in ids.values()]
    relations += [
        (ids[one], "DEPENDS_ON", ids[other])
        for one, others in contents.dependencies.items()
        for other in others
    ]
    relations += [
        (ids[key(item)], "GENERATED_FROM", sources[item.source, item.source_version])
        for item in contents.debs
        if not item.made
    ]
    packages = [
        _root(about, root),
        *(_package(item, contents, ids[key(item)]) for item in items),
        *(_source(name, stated, contents, ref) for (name, stated), ref in sources.items()),
    ]
    if contents.os:
        system = _operating_system(contents.os)
        packages.append(system)
        relations.append((root, "CONTAINS", system["SPDXID"]))
    packages.sort(key=lambda row: str(row["SPDXID"]))
    files, extracted = _files(contents, ids, more or {})
    relations += extracted
    named = sorted(
        {ref for item in items if item.licence for ref in licences.references(item.licence)}
    )
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": about.name,
        "documentNamespace": (
            # A namespace is a URI that nothing else may have; it need not lead to a page.
            f"https://spdx.org/spdxdocs/{quote(about.name)}-{uuid.uuid5(NAMESPACE, f'spdx {about.digest}')}"
        ),
        "creationInfo": {
            "created": about.created,
            "creators": [f"Tool: goldnode-{version('goldnode')}"],
        },
        "packages": packages,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in sorted(set(relations))
        ],
    }
    if files:
        document["files"] = files
    if named:
        document["hasExtractedLicensingInfos"] = [_extracted(ref) for ref in named]
    return canonical(document)


def _files(
    contents: Contents, ids: Mapping[str, str], more: Mapping[str, tuple[FileEntry, str | None]]
) -> tuple[list[dict[str, Any]], list[tuple[str, str, str]]]:
    """Return the files that the document lists, and their relations to the packages they came from."""
    origins = {
        path: ids[key(wheel)] for wheel in contents.wheels if wheel.unpacked for path in wheel.files
    }
    entries = {path: contents.snapshot.entries[path] for path in {*origins, *contents.unowned}}
    for path, (entry, origin) in more.items():
        entries[path] = entry
        if origin is not None:
            origins[path] = ids[origin]
    files, relations = [], []
    for path, entry in sorted(entries.items()):
        row: dict[str, Any] = {
            "SPDXID": f"SPDXRef-file-{uuid.uuid5(NAMESPACE, path)}",
            "fileName": f"./{path}",
            "checksums": [
                {"algorithm": "SHA1", "checksumValue": entry.sha1},
                {"algorithm": "SHA256", "checksumValue": entry.sha256},
            ],
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
        }
        if path in origins:
            # Not CONTAINS: it would claim that the package was analysed file by file. A wheel unpacked to
            # another layout was not.
            relations.append((row["SPDXID"], "EXPANDED_FROM_ARCHIVE", origins[path]))
        else:
            row["comment"] = "no deb and no wheel of the image accounts for this file"
        files.append(row)
    return files, relations


_UNSTATED = {
    "downloadLocation": "NOASSERTION",
    "filesAnalyzed": False,
    "licenseConcluded": "NOASSERTION",
    "copyrightText": "NOASSERTION",
}


def _created(image: OciImage) -> str:
    """Return the creation time of the image, in UTC and whole seconds."""
    said = str(image.config.get("created") or _EPOCH)
    # SPDX allows no fraction of a second.
    return said[:19] + "Z" if len(said) >= 19 else _EPOCH


def _root(about: Subject, ref: str) -> dict[str, Any]:
    return {
        "SPDXID": ref,
        "name": about.name,
        "versionInfo": about.digest,
        "primaryPackagePurpose": about.purpose,
        "checksums": [{"algorithm": "SHA256", "checksumValue": about.sha256}],
        **_UNSTATED,
        "licenseDeclared": "NOASSERTION",
    }


def _operating_system(release: Mapping[str, str]) -> dict[str, Any]:
    """Return the distribution. Trivy recognises it by the beginning of its id."""
    family = release.get("ID", "linux")
    package = {
        "SPDXID": f"SPDXRef-OperatingSystem-{_safe(family)}",
        "name": family,
        "primaryPackagePurpose": "OPERATING-SYSTEM",
        **_UNSTATED,
        "licenseDeclared": "NOASSERTION",
    }
    return package | ({"versionInfo": release["VERSION_ID"]} if "VERSION_ID" in release else {})


def _source(name: str, stated: str, contents: Contents, ref: str) -> dict[str, Any]:
    return {
        "SPDXID": ref,
        "name": name,
        "versionInfo": stated,
        "primaryPackagePurpose": "SOURCE",
        **_UNSTATED,
        "licenseDeclared": "NOASSERTION",
        "externalRefs": [_reference(source_purl(name, stated, contents))],
    }


def _reference(locator: str) -> dict[str, str]:
    return {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": locator,
    }


def _extracted(ref: str) -> dict[str, str]:
    return {
        "licenseId": ref,
        "name": ref.removeprefix("LicenseRef-"),
        "extractedText": "Not copied here: the package's own licence file in the image has the text.",
    }


def _package(item: InstalledDeb | InstalledWheel, contents: Contents, ref: str) -> dict[str, Any]:
    package: dict[str, Any] = {
        "SPDXID": ref,
        "name": item.name,
        "versionInfo": item.version,
        **_UNSTATED,
        "licenseDeclared": item.licence or "NOASSERTION",
        "externalRefs": [_reference(purl(item, contents))],
    }
    if item.sha256 is not None:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": item.sha256}]
    if item.file is not None:
        package["packageFileName"] = item.file
    if item.summary:
        package["summary"] = item.summary
    if isinstance(item, InstalledDeb):
        # Trivy reads the source package from this text.
        package["sourceInfo"] = f"built package from: {item.source} {item.source_version}"
    return package


def _safe(text: str) -> str:
    """Encode a text for use in an SPDX id; different texts get different ids."""
    return "".join(_letters(text))


def _letters(text: str) -> Iterator[str]:
    for letter in text:
        plain = letter.isascii() and (letter.isalnum() or letter in ".-")
        yield letter if plain else f"-{ord(letter):x}-"
