"""Evidence about a built image: its contents, its materials, signatures and known vulnerabilities.

Every document is attached to the image's digest (`Layout.attach`). It depends only on the image, its locks,
and the databases and keys given: never on the clock, the host or a local path. Writing it again produces the
same bytes. Only a vulnerability report states its time, because an image collects several.

Libraries, and why some are not used:

* `securesystemslib` signs and verifies (DSSE; ed25519 and ECDSA through pyca/cryptography). This package
  implements no cryptography. The import takes 0.3 s, so only `signatures` imports it.
* `cyclonedx-python-lib` writes every CycloneDX document, and validates it against the official schema before
  it is attached. The order of its lists depends on its version, so they are sorted afterwards. The import
  takes 0.3 s, so only the functions that write or validate a document load it.
* `license-expression` parses licence expressions, and has the licences and exceptions of SPDX.
* `packageurl-python` writes and reads package URLs.
* `debsbom` needs a root file system in a directory, so every image would have to be unpacked first. It
  supports only debs. Its output would have to be parsed, merged with the wheels, and sorted. This package
  reads the few dpkg status fields that an SBOM needs.
* `spdx-tools` and `in-toto-attestation` are used in tests, to parse the documents written here. At run time,
  `spdx-tools` would add an RDF library (rdflib), and `in-toto-attestation` protobuf. The latter has had no
  release since 2023. Both would serve for two JSON objects.
"""

from __future__ import annotations

INSPECTION = "application/vnd.goldnode.inspection.v1+json"
TRUTH = "application/vnd.goldnode.truth.v1+json"
SMOKE = "application/vnd.goldnode.smoke.v1+json"
CYCLONEDX = "application/vnd.cyclonedx+json"
SPDX = "application/spdx+json"
PROVENANCE = "application/vnd.in-toto+json"
VULNERABILITIES = "application/vnd.goldnode.vulnerabilities.v1+json"
SIZE = "application/vnd.goldnode.size.v1+json"
DIFF = "application/vnd.goldnode.diff.v1+json"
SIGNATURE = "application/vnd.goldnode.signature.v1+json"

# Types of documents that an image's signature covers. Channel records and approvals are signed where they are
# stored.
SIGNED = (INSPECTION, TRUTH, SMOKE, CYCLONEDX, SPDX, PROVENANCE, VULNERABILITIES, SIZE, DIFF)

SHORT = {
    INSPECTION: "inspection",
    TRUTH: "truth",
    SMOKE: "smoke",
    CYCLONEDX: "SBOM (CycloneDX)",
    SPDX: "SBOM (SPDX)",
    PROVENANCE: "provenance",
    VULNERABILITIES: "vulnerabilities",
    SIZE: "size",
    DIFF: "diff",
    SIGNATURE: "signature",
    "application/vnd.dev.cosign.artifact.sig.v1+json": "cosign signature",
    "application/vnd.dev.sigstore.bundle.v0.3+json": "attestation",
}
