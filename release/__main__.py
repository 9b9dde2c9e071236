"""`python -m release --out DIRECTORY`: build the files of a release from a tree. See scripts/release."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from release import collection, sbom


def build(tree: Path, out: Path, epoch: int) -> list[Path]:
    """Build wheel, sdist, collection, SBOM and SHA256SUMS in `out`; return their paths.

    Their bytes depend on the tree, `epoch` (seconds, the time in the files) and the installed tools alone. Raises
    CalledProcessError.
    """
    out = out.resolve()  # hatchling runs in the tree
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="goldnode-release-") as name:
        work = Path(name)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "--directory",
                str(out),
                "--target",
                "sdist",
                "--target",
                "wheel",
            ],
            cwd=tree,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
            check=True,
            capture_output=True,
            text=True,
        )
        collection.build(tree, work, out, epoch)
    found = sorted(out.iterdir())
    version = next(path.name.split("-")[1] for path in found if path.suffix == ".whl")
    bill = out / f"goldnode-{version}.cdx.json"
    bill.write_bytes(sbom.document(version, found, epoch))
    found = sorted([*found, bill])
    sums = out / "SHA256SUMS"
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in found]
    sums.write_text("".join(lines), encoding="ascii")
    return [*found, sums]


def main() -> None:
    """Build the tree twice, compare, and print what was built."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--tree", type=Path, action="append", required=True, help="a copy of the tree; give two"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for the files; must not exist"
    )
    parser.add_argument(
        "--epoch", type=int, required=True, help="time in the files, in seconds since 1970"
    )
    options = parser.parse_args()
    first, *others = options.tree
    try:
        files = build(first, options.out, options.epoch)
        for other in others:
            with tempfile.TemporaryDirectory(prefix="goldnode-release-") as name:
                again = build(other, Path(name, "again"), options.epoch)
                differ = [
                    one.name
                    for one, two in zip(files, again, strict=True)
                    if one.read_bytes() != two.read_bytes()
                ]
            if differ:
                sys.exit(f"scripts/release: built twice, these files differ: {', '.join(differ)}")
    except subprocess.CalledProcessError as problem:
        sys.exit(
            f"scripts/release: {' '.join(map(str, problem.cmd))} failed:\n{problem.stdout}{problem.stderr}"
        )
    print((options.out / "SHA256SUMS").read_text(encoding="ascii"), end="")


if __name__ == "__main__":
    main()
