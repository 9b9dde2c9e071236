"""Software bills of materials of one image, as CycloneDX 1.6 and SPDX 2.3, built from the same data.

Packages are components with a purl and the hash of the deb or wheel they came from. A file unpacked from a
wheel to another location is listed with its own hash, and the wheel as its origin. A file of unknown origin
is listed as such. The time in the documents is that of the image. Serial number and namespace derive from its
digest.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from goldnode.core.errors import ImageError
from goldnode.evidence import licences
from goldnode.evidence.contents import Contents, InstalledDeb, InstalledWheel, key
from goldnode.evidence.layers import FileEntry
from goldnode.oci.layout import OciImage, canonical

_NAMESPACE = uuid.UUID("5f0f6f6c-646e-5f64-9573-626f6d730001")  # private to goldnode; any constant works
_EPOCH = "1970-01-01T00:00:00Z"


def purl(item: InstalledDeb | InstalledWheel, contents: Contents) -> str:
    """Return the package URL: `pkg:deb/debian/NAME@VERSION?arch=…&distro=…` or `pkg:pypi/NAME@VERSION`."""
    found = quote(item.version, safe=".-_~")
    if isinstance(item, InstalledWheel):
        return f"pkg:pypi/{quote(canonicalize_name(item.name), safe='.-_~')}@{found}"
    if item.made:
        return f"pkg:deb/goldnode/{item.name}@{found}?arch={item.architecture}"
    family = contents.os.get("ID", "unknown")
    distro = f"&distro={family}-{contents.os['VERSION_ID']}" if "VERSION_ID" in contents.os else ""
    return f"pkg:deb/{family}/{quote(item.name, safe='.-_~')}@{found}?arch={item.architecture}{distro}"


@dataclass(frozen=True)
class Subject:
    """Subject of a bill of materials.

    `digest` identifies it, `sha256` (hex) is that of its content, `created` its own time (RFC 3339). `kind`
    and `purpose` are the types that CycloneDX and SPDX use for it. `scheme` is the prefix of its reference.
    """

    name: str
    digest: str
    sha256: str
    created: str
    kind: str = "container"
    purpose: str = "CONTAINER"
    scheme: str = "oci"


def subject(image: OciImage, contents: Contents) -> Subject:
    """Return a container image as subject: its digest, and the name in its own metadata."""
    name = str(contents.image.get("name") or image.labels.get("org.opencontainers.image.title") or "image")
    return Subject(name, contents.digest, contents.digest.removeprefix("sha256:"), _created(image))


def cyclonedx(image: OciImage | Subject, contents: Contents, more: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return the CycloneDX 1.6 document. `more` are components that the root file system does not show."""
    about = image if isinstance(image, Subject) else subject(image, contents)
    refs = {key(item): purl(item, contents) for item in contents.packages}
    root = f"{about.scheme}:{about.digest}"
    given = {str(row["bom-ref"]) for row in more}
    components = [_component(item, contents, refs) for item in contents.packages] + [
        dict(row) for row in more
    ]
    components += [
        row
        for path in contents.unowned
        if (row := _file(path, contents, "not known"))["bom-ref"] not in given
    ]
    if contents.os:
        components.append(
            {
                "type": "operating-system",
                "bom-ref": f"os:{contents.os.get('ID', 'linux')}",
                "name": contents.os.get("ID", "linux"),
                "version": contents.os.get("VERSION_ID", ""),
                "description": contents.os.get("PRETTY_NAME", ""),
            }
        )
    components.sort(key=lambda row: row["bom-ref"])
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'cyclonedx {about.digest}')}",
        "version": 1,
        "metadata": {
            "timestamp": about.created,
            "tools": {
                "components": [{"type": "application", "name": "goldnode", "version": version("goldnode")}]
            },
            "component": {
                "type": about.kind,
                "bom-ref": root,
                "name": about.name,
                "version": about.digest,
                "hashes": [{"alg": "SHA-256", "content": about.sha256}],
                "properties": _properties(
                    {
                        f"goldnode:{name}": value
                        for name, value in contents.image.items()
                        if isinstance(value, str) and name != "name"
                    }
                ),
            },
        },
        "components": components,
        "dependencies": [
            {"ref": root, "dependsOn": sorted(refs.values())},
            *(
                {"ref": refs[name], "dependsOn": sorted(refs[other] for other in others)}
                for name, others in sorted(contents.dependencies.items(), key=lambda row: refs[row[0]])
            ),
        ],
    }
    return canonical(document)


def validate(document: bytes) -> None:
    """Validate a CycloneDX document against the schema bundled with its library.

    Raise ImageError with the first fault.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode())
    if fault is not None:
        data = fault.data
        where = "/".join(str(part) for part in getattr(data, "absolute_path", ()))
        raise ImageError(
            f"the SBOM is no valid CycloneDX 1.6: {where}: {getattr(data, 'message', data)}",
            remedy="report this: goldnode wrote it",
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
    ids = {key(item): "SPDXRef-" + "-".join(_safe(part) for part in key(item).split(":")) for item in items}
    root = "SPDXRef-image"
    name = about.name
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", root)]
    relations += [(root, "CONTAINS", ref) for ref in ids.values()]
    relations += [
        (ids[one], "DEPENDS_ON", ids[other])
        for one, others in contents.dependencies.items()
        for other in others
    ]
    files, origins = [], dict[str, str]()
    for wheel in contents.wheels:
        for path in wheel.files if wheel.unpacked else ():
            origins[path] = ids[key(wheel)]
    entries = {path: contents.snapshot.entries[path] for path in {*origins, *contents.unowned}}
    for path, (entry, origin) in (more or {}).items():
        entries[path] = entry
        if origin is not None:
            origins[path] = ids[origin]
    for path, entry in sorted(entries.items()):
        ref = f"SPDXRef-file-{uuid.uuid5(_NAMESPACE, path)}"
        files.append(
            {
                "SPDXID": ref,
                "fileName": f"./{path}",
                "checksums": [
                    {"algorithm": "SHA1", "checksumValue": entry.sha1},
                    {"algorithm": "SHA256", "checksumValue": entry.sha256},
                ],
                "licenseConcluded": "NOASSERTION",
                "copyrightText": "NOASSERTION",
                **(
                    {}
                    if path in origins
                    else {"comment": "no deb and no wheel of the image accounts for this file"}
                ),
            }
        )
        if path in origins:
            # Not CONTAINS: it would claim that the package was analysed file by file. A wheel unpacked to
            # another layout was not.
            relations.append((ref, "EXPANDED_FROM_ARCHIVE", origins[path]))
    packages = [
        {
            "SPDXID": root,
            "name": name,
            "versionInfo": about.digest,
            "primaryPackagePurpose": about.purpose,
            "checksums": [{"algorithm": "SHA256", "checksumValue": about.sha256}],
            **_UNSTATED,
            "licenseDeclared": "NOASSERTION",
        },
        *(_package(item, contents, ids[key(item)]) for item in items),
    ]
    packages.sort(key=lambda row: str(row["SPDXID"]))
    named = sorted({ref for item in items if item.licence for ref in licences.references(item.licence)})
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": (
            f"https://spdx.org/spdxdocs/{quote(name)}-{uuid.uuid5(_NAMESPACE, f'spdx {about.digest}')}"
        ),
        "creationInfo": {"created": about.created, "creators": [f"Tool: goldnode-{version('goldnode')}"]},
        "packages": packages,
        **({"files": files} if files else {}),
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
            for one, kind, other in sorted(set(relations))
        ],
        **(
            {
                "hasExtractedLicensingInfos": [
                    {
                        "licenseId": ref,
                        "name": ref.removeprefix("LicenseRef-"),
                        "extractedText": (
                            "Not copied here: the package's own licence file in the image has the text."
                        ),
                    }
                    for ref in named
                ]
            }
            if named
            else {}
        ),
    }
    return canonical(document)


_UNSTATED = {
    "downloadLocation": "NOASSERTION",
    "filesAnalyzed": False,
    "licenseConcluded": "NOASSERTION",
    "copyrightText": "NOASSERTION",
}


def _created(image: OciImage) -> str:
    """Return the creation time of the image, in UTC and whole seconds."""
    said = str(image.config.get("created") or _EPOCH)
    return said[:19] + "Z" if len(said) >= 19 else _EPOCH


def _component(
    item: InstalledDeb | InstalledWheel, contents: Contents, refs: dict[str, str]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": refs[key(item)],
        "name": item.name,
        "version": item.version,
        "purl": refs[key(item)],
    }
    if item.summary:
        found["description"] = item.summary
    if item.sha256 is not None:
        found["hashes"] = [{"alg": "SHA-256", "content": item.sha256}]
    if item.licence is not None:
        found["licenses"] = [{"expression": item.licence, "acknowledgement": "declared"}]
    if isinstance(item, InstalledDeb):
        if item.maintainer:
            found["supplier"] = {"name": item.maintainer.partition(" <")[0]}
        found["properties"] = _properties(
            {"goldnode:source": f"{item.source} {item.source_version}", "goldnode:file": item.file or ""}
        )
    else:
        found["properties"] = _properties(
            {
                "goldnode:file": item.file or "",
                "goldnode:unpacked": "true" if item.unpacked else "",
                "goldnode:altered": " ".join(item.altered),
            }
        )
        if item.unpacked and item.files:
            found["components"] = [_file(path, contents, refs[key(item)]) for path in item.files]
    if not found["properties"]:
        del found["properties"]
    return found


def _file(path: str, contents: Contents, origin: str) -> dict[str, Any]:
    entry = contents.snapshot.entries[path]
    return {
        "type": "file",
        "bom-ref": f"file:/{quote(path)}",
        "name": f"/{path}",
        "hashes": [{"alg": "SHA-1", "content": entry.sha1}, {"alg": "SHA-256", "content": entry.sha256}],
        "properties": _properties({"goldnode:origin": origin, "goldnode:soname": entry.soname}),
    }


def _properties(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in sorted(values.items()) if value]


def _package(item: InstalledDeb | InstalledWheel, contents: Contents, ref: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "SPDXID": ref,
        "name": item.name,
        "versionInfo": item.version,
        **_UNSTATED,
        "licenseDeclared": item.licence or "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl(item, contents),
            }
        ],
    }
    if item.sha256 is not None:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": item.sha256}]
    if item.file is not None:
        found["packageFileName"] = item.file
    if item.summary:
        found["summary"] = item.summary
    if isinstance(item, InstalledDeb):
        found["sourceInfo"] = f"built from {item.source} {item.source_version}"
    return found


def _safe(text: str) -> str:
    """Encode a text for use in an SPDX id; different texts get different ids."""
    return "".join(_letters(text))


def _letters(text: str) -> Iterator[str]:
    for letter in text:
        yield letter if letter.isascii() and (letter.isalnum() or letter in ".-") else f"-{ord(letter):x}-"
