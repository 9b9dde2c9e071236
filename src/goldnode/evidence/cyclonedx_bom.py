"""Bill of materials of one image as CycloneDX 1.6, written and validated by `cyclonedx-python-lib`.

The properties `aquasecurity:trivy:…` are what Trivy reads from a CycloneDX document: it finds advisories of
Debian by `SrcName` and the version of the source, and does not read the qualifier `upstream` of a purl.

The time in the document is that of the image, and the serial number derives from its digest. The order of
lists does not depend on the version of the library.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.bom_ref import BomRef
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from goldnode.core.errors import ImageError
from goldnode.evidence.contents import Contents, InstalledDeb, InstalledWheel, key
from goldnode.evidence.layers import FileEntry
from goldnode.evidence.sbom import NAMESPACE, Subject, purl, subject
from goldnode.oci.layout import OciImage, canonical

_TRIVY = "aquasecurity:trivy:"


def cyclonedx(
    image: OciImage | Subject, contents: Contents, more: Sequence[Component] = ()
) -> bytes:
    """Return the CycloneDX document. `more` are components that the root file system does not show."""
    about = image if isinstance(image, Subject) else subject(image, contents)
    refs = {key(item): purl(item, contents) for item in contents.packages}
    root = Component(
        type=ComponentType(about.kind),
        bom_ref=f"{about.scheme}:{about.digest}",
        name=about.name,
        version=about.digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=about.sha256)],
        properties=_properties(_described(about, contents)),
    )
    given = {row.bom_ref.value for row in more}
    components = [_component(item, contents, refs) for item in contents.packages]
    components += more
    components += [
        file_component(
            f"/{path}", contents.snapshot.entries[path], {"goldnode:origin": "not known"}
        )
        for path in contents.unowned
        if file_ref(path) not in given
    ]
    if contents.os:
        components.append(_operating_system(contents.os))
    graph = {str(root.bom_ref.value): set(refs.values())}
    for name, others in contents.dependencies.items():
        graph[refs[name]] = {refs[other] for other in others}
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, f"cyclonedx {about.digest}"),
        metadata=BomMetaData(
            timestamp=dt.datetime.fromisoformat(about.created),
            tools=ToolRepository(
                components=[
                    Component(
                        type=ComponentType.APPLICATION, name="goldnode", version=version("goldnode")
                    )
                ]
            ),
            component=root,
        ),
        components=components,
        dependencies=[
            Dependency(BomRef(one), [Dependency(BomRef(other)) for other in others])
            for one, others in graph.items()
        ],
    )
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # The library adds an empty entry for every component. For a file, it would claim that nothing is needed.
    document["dependencies"] = [row for row in document["dependencies"] if row["ref"] in graph]
    return canonical(_sorted(document))


def validate(document: bytes) -> None:
    """Validate a CycloneDX document against the schema bundled with its library.

    Raise ImageError with the first fault.
    """
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode())
    if fault is not None:
        data = fault.data
        where = "/".join(str(part) for part in getattr(data, "absolute_path", ()))
        raise ImageError(
            f"the SBOM is no valid CycloneDX 1.6: {where}: {getattr(data, 'message', data)}",
            remedy="report this: goldnode wrote it",
        )


def file_ref(path: str) -> str:
    """Return the reference of a file of the root file system."""
    return f"file:/{quote(path)}"


def file_component(
    name: str,
    entry: FileEntry,
    properties: Mapping[str, str],
    *,
    ref: str = "",
    kind: str = "file",
    stated: str = "",
) -> Component:
    """Return the component of one file. `stated` is its version, `""` if it has none."""
    return Component(
        type=ComponentType(kind),
        bom_ref=ref or file_ref(name.lstrip("/")),
        name=name,
        version=stated or None,
        hashes=[
            HashType(alg=HashAlgorithm.SHA_1, content=entry.sha1),
            HashType(alg=HashAlgorithm.SHA_256, content=entry.sha256),
        ],
        properties=_properties({**properties, "goldnode:soname": entry.soname}),
    )


def _described(about: Subject, contents: Contents) -> dict[str, str]:
    """Return the properties of the root: its own description, and the digest by which Trivy names it."""
    own = {
        f"goldnode:{name}": value
        for name, value in contents.image.items()
        if isinstance(value, str) and name != "name"
    }
    return {**own, f"{_TRIVY}ImageID": about.config}


def _operating_system(release: Mapping[str, str]) -> Component:
    family = release.get("ID", "linux")
    return Component(
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref=f"os:{family}",
        name=family,
        version=release.get("VERSION_ID") or None,
        description=release.get("PRETTY_NAME") or None,
        properties=_properties({f"{_TRIVY}Class": "os-pkgs", f"{_TRIVY}Type": family}),
    )


def _component(
    item: InstalledDeb | InstalledWheel, contents: Contents, refs: Mapping[str, str]
) -> Component:
    ref = refs[key(item)]
    files: list[Component] = []
    supplier = ""
    if isinstance(item, InstalledDeb):
        supplier = item.maintainer.partition(" <")[0]
        properties = _of_deb(item, contents)
    else:
        properties = {
            "goldnode:unpacked": "true" if item.unpacked else "",
            "goldnode:altered": " ".join(item.altered),
            f"{_TRIVY}PkgType": "python-pkg",
        }
        files = [
            file_component(f"/{path}", contents.snapshot.entries[path], {"goldnode:origin": ref})
            for path in (item.files if item.unpacked else ())
        ]
    return Component(
        type=ComponentType.LIBRARY,
        bom_ref=ref,
        name=item.name,
        version=item.version,
        purl=PackageURL.from_string(ref),
        description=item.summary or None,
        supplier=OrganizationalEntity(name=supplier) if supplier else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=item.sha256)] if item.sha256 else (),
        licenses=[
            LicenseExpression(licence, acknowledgement=LicenseAcknowledgement.DECLARED)
            for licence in [item.licence]
            if licence
        ],
        properties=_properties({"goldnode:file": item.file or "", **properties}),
        components=files,
    )


def _of_deb(item: InstalledDeb, contents: Contents) -> dict[str, str]:
    properties = {"goldnode:source": f"{item.source} {item.source_version}"}
    if item.made:
        return properties
    # Trivy takes a version of Debian in three parts.
    epoch, _, rest = item.source_version.rpartition(":")
    upstream, _, revision = rest.rpartition("-")
    return properties | {
        f"{_TRIVY}PkgID": f"{item.name}@{item.version}",
        f"{_TRIVY}PkgType": contents.os.get("ID", ""),
        f"{_TRIVY}SrcName": item.source,
        f"{_TRIVY}SrcVersion": upstream or rest,
        f"{_TRIVY}SrcRelease": revision if upstream else "",
        f"{_TRIVY}SrcEpoch": epoch.lstrip("0"),
    }


def _properties(values: Mapping[str, str]) -> list[Property]:
    return [Property(name=name, value=value) for name, value in values.items() if value]


def _sorted(value: Any) -> Any:
    """Return a document with every list in the order of its elements: in CycloneDX, none has a meaning."""
    if isinstance(value, dict):
        return {name: _sorted(item) for name, item in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(item) for item in value), key=_order)
    return value


def _order(item: Any) -> tuple[str, bytes]:
    named = isinstance(item, dict)
    return (str(item.get("bom-ref") or item.get("ref") or "") if named else "", canonical(item))
