"""Building images measured: `goldnode images build` against a plain Dockerfile per tag with the engine's own cache.

The same tags, the same packages, the same engine (buildah), in turn. See docs/benchmarks/images.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.check.__main__ import machine
from goldnode.core.site import archive_url, load_site
from goldnode.images.imagelock import LOCKS, find_lock, write_lock
from goldnode.images.matrix import MatrixRow, load_matrix

ROOT = Path(__file__).resolve().parents[2]
# Debian's packages alone, so that a Dockerfile needs nothing but apt; parents first.
NAMES = (
    "cpu-1-base-debian12",
    "cpu-1-runtime-debian12",
    "cpu-1-devel-debian12",
    "cuda-11.8.0-base-debian12",
    "rocm-distro-base-debian12",
    "oneapi-distro-base-debian12",
)
CHANGED = "oneapi-distro-base-debian12"  # nothing stands on it
SUITE, COMPONENTS = "bookworm", "main contrib non-free non-free-firmware"
STEPS = {
    "cold": "nothing is there",
    "warm": "nothing has changed",
    "change": "one image of six has changed",
}
WHAT = ("wall", "cpu")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Own:
    """goldnode: store and locks in a folder."""

    def __init__(self, folder: Path, rows: Sequence[MatrixRow]) -> None:
        self.store, self.locks, self.rows = folder / "store", folder / "locks", rows

    def build(self) -> None:
        """Build all; what is not in the pool is fetched."""
        environment = {**os.environ, "GOLDNODE_IMAGES": str(self.store), LOCKS: str(self.locks)}
        run(
            [
                str(Path(sys.executable).with_name("goldnode")),
                "images",
                "build",
                "--engine",
                "buildah",
                *NAMES,
            ],
            environment,
        )

    def change(self) -> None:
        """A new lock of one image: as if what it holds had been resolved a day later."""
        lock = find_lock(next(row for row in self.rows if row.name == CHANGED))
        later = dt.date.fromisoformat(str(lock.resolved)) + dt.timedelta(days=1)
        write_lock(lock.model_copy(update={"resolved": str(later)}), self.locks)

    def bytes(self) -> int:
        """What the images take, compressed."""
        return size(self.store / "blobs")


class Peer:
    """A Dockerfile per tag, built by buildah with its own layer cache, with the network that apt needs."""

    def __init__(self, folder: Path, rows: Sequence[MatrixRow], base: Path) -> None:
        self.folder, self.rows, self.salt = folder, rows, {row.name: 0 for row in rows}
        self.base, self.sources = base, folder / "sources.list"
        site = load_site()
        folder.mkdir()
        rows_of = [
            (archive_url(site, "debian"), SUITE),
            (archive_url(site, "debian-security"), f"{SUITE}-security"),
        ]
        self.sources.write_text(
            "".join(
                f"deb [signed-by={KEYRING}] {url} {suite} {COMPONENTS}\n" for url, suite in rows_of
            )
        )
        self.options = [
            "--root",
            str(folder / "root"),
            "--runroot",
            str(folder / "run"),
            "--storage-driver",
            "overlay",
        ]

    def build(self) -> None:
        """Build every tag; a parent is named by its tag, as in a Dockerfile."""
        if not (
            self.folder / "root"
        ).exists():  # as `docker pull` of Debian's image would have brought it
            empty = self.folder / "empty"
            empty.mkdir()
            self._build(
                empty, "debian:12", f"FROM scratch\nADD {self.base.name} /\n", self.base.parent
            )
        for row in self.rows:
            wanted = " ".join(name for name in row.debs if not name.startswith("?"))
            text = (
                f"FROM {row.image.parent or 'debian:12'}\n"
                f"LABEL change={self.salt[row.name]}\n"
                "RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
                f"{wanted} && rm -rf /var/lib/apt/lists/*\n"
            )
            self._build(self.folder, row.name, text, self.folder)

    def _build(self, folder: Path, tag: str, text: str, context: Path) -> None:
        file = folder / f"{tag.replace(':', '-')}.Dockerfile"
        file.write_text(text)
        mounted = f"{self.sources}:/etc/apt/sources.list:ro"
        options = ["--isolation", "chroot", "--layers", "--volume", mounted, "--pull-never", "-q"]
        run(
            ["buildah", *self.options, "build", *options, "-f", str(file), "-t", tag, str(context)],
            dict(os.environ),
        )

    def change(self) -> None:
        """One Dockerfile has changed."""
        self.salt[CHANGED] += 1

    def bytes(self) -> int:
        """What the images take in the engine's storage, not compressed."""
        return size(self.folder / "root/overlay")


def size(folder: Path) -> int:
    """Bytes of all files below a folder, each inode once."""
    seen: dict[tuple[int, int], int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            found = (Path(place) / name).lstat()
            seen[(found.st_dev, found.st_ino)] = found.st_blocks * 512
    return sum(seen.values())


def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a command; its output is shown when it fails."""
    done = subprocess.run(
        [*command],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
        )


def timed(step: Callable[[], None]) -> dict[str, float]:
    """Wall time, and CPU of what it started and waited for, in seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    step()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.monotonic() - started, "cpu": cpu}


def measure(runs: int) -> dict[str, Any]:
    """Return all figures."""
    rows = load_matrix(None).select(list(NAMES))
    rows = [row for row in rows if row.name in NAMES]
    taken: dict[str, dict[str, list[dict[str, float]]]] = {
        name: {step: [] for step in STEPS} for name in ("own", "peer")
    }
    load = [round(os.getloadavg()[0], 1)]
    held: dict[str, dict[str, list[int]]] = {
        name: {step: [] for step in STEPS} for name in ("own", "peer")
    }
    with tempfile.TemporaryDirectory(prefix="goldnode-images-") as name:
        folder = Path(name)
        base = folder / "debian.tar"
        run(["mmdebstrap", "--variant=minbase", SUITE, str(base)], dict(os.environ))
        for number in range(runs):
            contenders: dict[str, Own | Peer] = {
                "own": Own(folder / "own", rows),
                "peer": Peer(folder / "peer", rows, base),
            }
            (folder / "own/locks").mkdir(parents=True)
            os.environ[LOCKS] = str(folder / "own/locks")
            for which in sorted(contenders, reverse=bool(number % 2)):
                contender = contenders[which]
                for step in STEPS:
                    if step == "change":
                        contender.change()
                    taken[which][step].append(timed(contender.build))
                    held[which][step].append(contender.bytes())
                    load.append(round(os.getloadavg()[0], 1))
                    print(
                        f"run {number + 1} of {runs}: {which} {step} {taken[which][step][-1]['wall']:.1f} s",
                        flush=True,
                    )
            for which in contenders:
                shutil.rmtree(folder / which)
    git = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = {
        which: {step: _medians(found) for step, found in of.items()} for which, of in taken.items()
    }
    ratios = {
        step: {
            what: [
                peer[what] / own[what]
                for own, peer in zip(taken["own"][step], taken["peer"][step], strict=True)
            ]
            for what in WHAT
        }
        for step in STEPS
    }
    return {
        "date": str(dt.datetime.now(tz=dt.UTC).date()),
        "commit": git.stdout.strip(),
        "machine": machine(),
        "load": load,
        "runs": runs,
        "names": [row.name for row in rows],
        "seconds": seconds,
        "ratios": ratios,
        "bytes": {
            which: {step: statistics.median(found) for step, found in of.items()}
            for which, of in held.items()
        },
    }


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {what: statistics.median(row[what] for row in found) for what in WHAT}


def tables(found: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    told = found["machine"]
    low, high = min(found["load"]), max(found["load"])
    runs = (
        "one paired run" if found["runs"] == 1 else f"{found['runs']} paired runs, in turn, medians"
    )
    busy = (
        " The machine was busy with other work: its wall figures say little, CPU and the ratios more."
        if high > 2 * told["cores"]
        else ""
    )
    rows = [
        f"{found['date']}, commit `{found['commit']}`: {told['cores']} cores ({told['processor']}), kernel {told['kernel']}; load {low} to {high}, by "
        f"others and it; {runs}.{busy} {len(found['names'])} tags: {', '.join(f'`{name}`' for name in found['names'])}.",
        "",
        "A Dockerfile per tag : goldnode (above 1: goldnode is cheaper)",
        "",
        "| | wall | CPU | Dockerfile, s | goldnode, s | Dockerfile, MB on disk | goldnode, MB on disk |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for step, title in STEPS.items():
        wall, cpu = (statistics.median(found["ratios"][step][what]) for what in ("wall", "cpu"))
        own, peer = (found["seconds"][which][step]["wall"] for which in ("own", "peer"))
        mine, theirs = (found["bytes"][which][step] / 1e6 for which in ("own", "peer"))
        rows.append(
            f"| {title} | **{wall:.2f}x** | {cpu:.2f}x | {peer:.1f} | {own:.1f} | {theirs:.0f} | {mine:.0f} |"
        )
    warm = found["seconds"]["own"]["warm"]
    met = "met" if warm["wall"] <= 5 else "MISSED"
    rows += [
        "",
        f"- A run without a change within 5 s was the aim: {met}, with {warm['wall']:.1f} s ({warm['cpu']:.1f} s of CPU).",
    ]
    return "\n".join(rows) + "\n"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run images",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=2, help="measured runs of each (default 2)")
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "docs/benchmarks",
        help="where the report goes (default docs/benchmarks)",
    )
    chosen = parser.parse_args()
    found = measure(chosen.runs)
    pages.write("images", found, tables(found), chosen.out)
    print(tables(found))


if __name__ == "__main__":
    main()
