"""`python -m release --out DIRECTORY`: build the files of a release from a tree, and sign them. See scripts/release."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from goldnode.core.errors import GoldnodeError
from goldnode.evidence.release_files import PROGRAMS, PROVENANCE, SUMS
from release import collection, provenance, sbom

NO_COMMIT = "0" * 40  # of a tree that is no commit, as in tests
LOCKS = ("base.lock", "all.lock")
FIGURES = Path("docs/benchmarks/ledger.json")


def build(tree: Path, out: Path, epoch: int, commit: str = NO_COMMIT) -> list[Path]:
    """Build wheel, sdist, collection, program, locks, figures, SBOM, provenance and SHA256SUMS in `out`; return their paths.

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
    version = next(path.name.split("-")[1] for path in out.iterdir() if path.suffix == ".whl")
    for name, writer in zip(PROGRAMS, (False, True), strict=True):
        _program(tree, out / name, writer)
    for name in LOCKS:
        (out / f"goldnode-{version}-{name}").write_bytes(
            (tree / "requirements" / name).read_bytes()
        )
    (out / f"goldnode-{version}-{FIGURES.name}").write_bytes((tree / FIGURES).read_bytes())
    found = sorted(out.iterdir())
    bill = out / f"goldnode-{version}.cdx.json"
    bill.write_bytes(sbom.document(version, found, epoch, tree))
    digests = _digests([*found, bill])
    origin = out / f"goldnode-{version}{PROVENANCE}"
    origin.write_bytes(provenance.document(digests, tree, commit, epoch))
    found = sorted([*found, bill, origin])
    sums = out / SUMS
    lines = [f"{digest}  {name}\n" for name, digest in _digests(found).items()]
    sums.write_text("".join(lines), encoding="ascii")
    return [*found, sums]


def _program(tree: Path, file: Path, writer: bool) -> None:
    """Write the program of nodes. A process of its own, because the sources are those of the tree."""
    script = (
        "import sys; from goldnode.core.program_file import build; "
        f"sys.stdout.buffer.write(build(writer={writer}))"
    )
    # The sources of the tree come first; the packages may be where the caller has them.
    places = [str(tree.resolve() / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    command = [sys.executable, "-B", "-c", script]
    done = subprocess.run(command, env=environment, check=True, capture_output=True)
    file.write_bytes(done.stdout)
    file.chmod(0o755)


def _digests(paths: list[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


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
    parser.add_argument("--commit", default=NO_COMMIT, help="id of the commit that the trees are")
    parser.add_argument("--key", type=Path, help="sign with this secret key, ECDSA P-256 in PEM")
    options = parser.parse_args()
    first, *others = options.tree
    try:
        # A wrong key must not cost a build.
        signer = provenance.signer(options.key) if options.key else None
        files = build(first, options.out, options.epoch, options.commit)
        for other in others:
            with tempfile.TemporaryDirectory(prefix="goldnode-release-") as name:
                again = build(other, Path(name, "again"), options.epoch, options.commit)
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
    except GoldnodeError as problem:
        sys.exit(f"scripts/release: {problem}")
    if signer is None:
        print(
            "not signed: give --key FILE, or sign later with `python -m release.sign DIRECTORY --key FILE`"
        )
    else:
        provenance.sign(options.out, signer)
        print(f"signed by key {signer.keyid}")
    print((options.out / "SHA256SUMS").read_text(encoding="ascii"), end="")


if __name__ == "__main__":
    main()
