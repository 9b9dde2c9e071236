"""`python -m release.sign DIRECTORY --key FILE`: sign a release that is built, for instance on a machine without a network."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from release import provenance


def main() -> None:
    """Sign SHA256SUMS and the provenance in a directory."""
    parser = argparse.ArgumentParser(prog="python -m release.sign", description=__doc__)
    parser.add_argument("directory", type=Path, help="directory of the release")
    parser.add_argument("--key", type=Path, required=True, help="secret key, ECDSA P-256 in PEM")
    options = parser.parse_args()
    try:
        key = provenance.signer(options.key)
        files = provenance.sign(options.directory, key)
    except (GoldnodeError, OSError) as problem:
        sys.exit(f"python -m release.sign: {problem}")
    print(f"signed by key {key.keyid}: {', '.join(path.name for path in files)}")


if __name__ == "__main__":
    main()
