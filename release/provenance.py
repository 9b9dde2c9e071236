"""The provenance of a release: an in-toto statement with a SLSA v1 predicate, and its signatures.

The statement follows from the tree, the commit and the tools, so that a second build writes the same bytes. The
signature of SHA256SUMS is a bare ECDSA P-256 one, which openssl and cosign verify; the one of the provenance is in a
DSSE envelope. Signing does not change a file that SHA256SUMS names: it can be done later, on a machine with the key.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from goldnode.core.errors import SigningKeyError
from goldnode.evidence.provenance import PREDICATE
from goldnode.evidence.release_files import ATTESTATION, PROVENANCE, SIGNATURE, SUMS
from goldnode.evidence.signatures import EnvelopeSigner, load_signer, statement

BUILD_TYPE, BUILDER = "urn:goldnode:release:1", "urn:goldnode:scripts/release"
# Packages that make the files; nvidia-ml-py is inside the program of nodes.
TOOLS = ("ansible-core", "hatchling", "nvidia-ml-py")
_SCHEME = "ecdsa-sha2-nistp256"


def document(files: dict[str, str], tree: Path, commit: str, epoch: int) -> bytes:
    """Return the unsigned statement about `files` (name -> SHA-256), built from the commit of `tree`."""
    locked = (tree / "requirements/dev.lock").read_bytes()
    dependencies = [
        {"uri": "urn:goldnode:source", "digest": {"gitCommit": commit}},
        {
            "uri": "urn:goldnode:source:requirements/dev.lock",
            "digest": {"sha256": hashlib.sha256(locked).hexdigest()},
        },
        *({"uri": f"pkg:pypi/{name}@{version(name)}"} for name in TOOLS),
    ]
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"commit": commit, "epoch": epoch},
            "internalParameters": {"python": platform.python_version(), "system": sys.platform},
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": BUILDER, "version": {"goldnode": version("goldnode")}}},
    }
    (first, digest), *others = sorted(files.items())
    return statement(first, digest, PREDICATE, predicate, dict(others)) + b"\n"


def signer(key: Path) -> EnvelopeSigner:
    """Read the secret key of releases. Raise SigningKeyError, also for a key that is not ECDSA P-256."""
    found = load_signer(key)
    if found.public.scheme != _SCHEME:
        raise SigningKeyError(
            f"the key of releases is {found.public.scheme}, expected ECDSA P-256, which `openssl dgst` verifies",
            file=key,
            remedy="make one with `goldnode keys make release --out KEY.pem`",
        )
    return found


def sign(out: Path, key: EnvelopeSigner) -> list[Path]:
    """Sign SHA256SUMS and the provenance in `out`; return the files with the signatures."""
    signature = out / SIGNATURE
    signature.write_bytes(key.sign_bytes((out / SUMS).read_bytes()))
    found = [signature]
    for path in sorted(out.glob(f"*{PROVENANCE}")):
        envelope = path.with_name(path.name.removesuffix(PROVENANCE) + ATTESTATION)
        envelope.write_bytes(key.sign(path.read_bytes()) + b"\n")
        found.append(envelope)
    return found
