"""SBOMs and provenance: the same bytes each time, and valid to those who define the formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.output.json import JsonV1Dot6
from in_toto_attestation.v1.statement import Statement
from tests.unit.evidence.samples import IMAGE, LOCKS, built, sample

from goldnode.core.errors import ImageError
from goldnode.evidence import cyclonedx_bom, sbom
from goldnode.evidence.contents import InstalledDeb, InstalledWheel
from goldnode.evidence.provenance import provenance
from goldnode.evidence.write import examine
from goldnode.oci.layout import Layout, canonical


def test_cyclonedx_is_valid_and_the_same_each_time(layout: Layout, tmp_path: Path) -> None:
    digest = sample(layout)
    found, there = examine(layout, digest, LOCKS)
    document = cyclonedx_bom.cyclonedx(found, there)
    cyclonedx_bom.validate(document)
    other = Layout(tmp_path / "elsewhere")
    assert sample(other) == digest
    assert cyclonedx_bom.cyclonedx(*examine(other, digest, LOCKS, tmp_path / "cache")) == document
    data = json.loads(document)
    assert data["metadata"]["timestamp"] == "2026-11-20T00:00:00+00:00"
    assert data["metadata"]["component"]["hashes"] == [
        {"alg": "SHA-256", "content": digest.removeprefix("sha256:")}
    ]
    rows = {row["bom-ref"]: row for row in data["components"]}
    libc = rows["pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12&upstream=glibc"]
    assert libc["hashes"][0]["content"] == "1" * 64
    assert libc["supplier"] == {"name": "GNU Libc Maintainers"}
    cublas = rows["pkg:pypi/nvidia-cublas-cu12@12.4.5.8"]
    (library,) = cublas["components"]
    assert library["name"] == "/usr/local/cuda-12.4/lib64/libcublas.so.12"
    assert {"name": "goldnode:origin", "value": cublas["purl"]} in library["properties"]
    assert {
        "name": "goldnode:altered",
        "value": "usr/local/lib/python3.11/dist-packages/numpy/b.py",
    } in rows["pkg:pypi/numpy@2.0.0"]["properties"]
    assert {"name": "goldnode:origin", "value": "not known"} in rows[
        "file:/usr/local/lib/libstray.so"
    ]["properties"]
    assert (rows["os:debian"]["name"], rows["os:debian"]["version"]) == ("debian", "12")
    # An empty entry of a file would claim that it needs nothing.
    assert {row["ref"] for row in data["dependencies"]} == {
        f"oci:{digest}",
        *(ref for ref in rows if ref.startswith("pkg:")),
    }
    config = {"name": "aquasecurity:trivy:ImageID", "value": found.manifest["config"]["digest"]}
    assert config in data["metadata"]["component"]["properties"]


def test_the_order_of_the_library_does_not_show(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = examine(layout, sample(layout), LOCKS)
    document = cyclonedx_bom.cyclonedx(*read)

    def reversed_lists(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: reversed_lists(item) for name, item in value.items()}
        return (
            [reversed_lists(item) for item in reversed(value)] if isinstance(value, list) else value
        )

    written = JsonV1Dot6.output_as_string
    monkeypatch.setattr(
        JsonV1Dot6,
        "output_as_string",
        lambda self: json.dumps(reversed_lists(json.loads(written(self)))),
    )
    assert cyclonedx_bom.cyclonedx(*read) == document


def test_purl_of_a_goldnode_package_names_goldnode_not_debian(layout: Layout) -> None:
    _, there = examine(layout, sample(layout), LOCKS)
    made = InstalledDeb(
        "goldnode-driver-from-host", "1+520", "all", "goldnode-driver-from-host", "1+520", made=True
    )
    assert sbom.purl(made, there) == "pkg:deb/goldnode/goldnode-driver-from-host@1%2B520?arch=all"


def test_purl_of_a_wheel_has_the_name_as_its_specification_writes_it(layout: Layout) -> None:
    _, there = examine(layout, sample(layout), LOCKS)
    for name, purl in (("Jaraco.Text", "jaraco.text"), ("Foo_Bar", "foo-bar")):
        assert sbom.purl(InstalledWheel(name, "1"), there) == f"pkg:pypi/{purl}@1"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bomFormat": "SPDX"}, "bomFormat"),
        ({"bogus": 1}, "bogus"),
        ({"components": [{"name": "no type"}]}, "type"),
        (
            {
                "components": [
                    {
                        "type": "library",
                        "name": "x",
                        "hashes": [{"alg": "SHA-256", "content": "zz"}],
                    }
                ]
            },
            "zz",
        ),
    ],
)
def test_an_invalid_sbom_is_refused(layout: Layout, change: dict[str, Any], says: str) -> None:
    data = json.loads(cyclonedx_bom.cyclonedx(*examine(layout, sample(layout), LOCKS)))
    with pytest.raises(ImageError, match=r"the SBOM is no valid CycloneDX 1\.6") as caught:
        cyclonedx_bom.validate(canonical(data | change))
    assert says in str(caught.value)


def test_spdx_is_valid_to_its_own_tools(layout: Layout, tmp_path: Path) -> None:
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    digest = sample(layout)
    document = sbom.spdx(*examine(layout, digest, LOCKS))
    assert sbom.spdx(*examine(layout, digest, LOCKS)) == document
    file = tmp_path / "image.spdx.json"
    file.write_bytes(document)
    parsed = parse_file(str(file))
    assert [message.validation_message for message in validate_full_spdx_document(parsed)] == []
    names = {package.name for package in parsed.packages}
    debs, wheels = {"libc6", "libgcc-s1", "python3"}, {"numpy", "nvidia-cublas-cu12"}
    assert names == {IMAGE.name, "debian", *debs, *wheels, "glibc", "gcc-12"}
    assert {file.name for file in parsed.files} >= {
        "./usr/local/cuda-12.4/lib64/libcublas.so.12",
        "./usr/local/lib/libstray.so",
    }
    origin = [
        row for row in parsed.relationships if row.relationship_type.name == "EXPANDED_FROM_ARCHIVE"
    ]
    assert [row.related_spdx_element_id for row in origin] == ["SPDXRef-wheel-nvidia-cublas-cu12"]


def test_provenance_is_what_in_toto_reads(layout: Layout) -> None:
    digest = sample(layout)
    _, there = examine(layout, digest, LOCKS)
    base = {
        "org.opencontainers.image.base.digest": "sha256:" + "e" * 64,
        "org.opencontainers.image.base.name": "cuda:base",
    }
    document = provenance(IMAGE, built(digest), LOCKS, there, base=base)
    assert provenance(IMAGE, built(digest), LOCKS, there, base=base) == document
    data = json.loads(document)
    Statement.copy_from_pb(_parsed(document)).validate()
    assert data["subject"] == [
        {
            "name": "cuda:12.4.1-runtime-debian12-aaaaaaaaaaaa",
            "digest": {"sha256": digest.removeprefix("sha256:")},
        }
    ]
    definition = data["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["lock"] == {"sha256": "c" * 64}
    assert definition["internalParameters"]["recipe"] == {"sha256": "a" * 64}
    assert {"uri": "oci:cuda:base", "digest": {"sha256": "e" * 64}} in definition[
        "resolvedDependencies"
    ]
    hashes = {row["digest"]["sha256"] for row in definition["resolvedDependencies"]}
    assert hashes == {letter * 64 for letter in "123bce"}
    assert data["predicate"]["runDetails"]["builder"]["version"]["buildah"] == "1.28.2"
    assert "startedOn" not in json.dumps(data)


def _parsed(document: bytes) -> Any:
    import in_toto_attestation.v1.statement_pb2 as statement_pb2
    from google.protobuf import json_format

    return json_format.Parse(document, statement_pb2.Statement())
