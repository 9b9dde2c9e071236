"""Evidence about a built image: what is in it, what it was made from, who says so, what is known to be wrong with it.

Every document is attached to the image's digest (`Layout.attach`) and depends on nothing but the image, its locks and the databases
and keys that were named: no clock, no host, no path of the machine. Written again, it is the same bytes.

What is taken from libraries, and what is not:

* `securesystemslib` signs and verifies (DSSE; ed25519 and ECDSA by pyca/cryptography): cryptography is never written here. It costs
  0.3 s to import and is imported by `signatures` alone.
* `cyclonedx-python-lib` carries the official CycloneDX schemas and the list of SPDX licence ids; every SBOM is held against that
  schema before it is attached. Its object model is not used: 3,000 files take it 2.7 s, plain dictionaries 0.05 s, and what order
  its lists come out in is a matter of its version.
* `debsbom` reads a directory as root file system, so that every image would be unpacked first, and knows debs only; what it writes
  would have to be read, merged with the wheels, and sorted. The few fields of dpkg's status that an SBOM needs are read here.
* `spdx-tools` and `in-toto-attestation` read back in the tests what is written here. At run time the one brings an RDF library
  (rdflib) and the other protobuf, and has had no release since 2023, for two JSON objects.
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

# What a signature covers. Records of channels and approvals are signed where they are kept.
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
}
