"""Builder of the stand-in packages, and publisher of any part of them as signed apt repositories."""

from __future__ import annotations

import atexit
import email.utils
import fcntl
import fnmatch
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml
from tests.simulators.apt_archive import content
from tests.simulators.apt_archive.debs import Deb

KEY = "goldnode-standin.asc"
KEYS = ("good", "wrong")
_COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
_UBUNTU_COMPONENTS = ("main", "restricted", "universe", "multiverse")
_LABELS = {
    content.DEBIAN: ("Debian", "Debian"),
    content.SECURITY: ("Debian", "Debian-Security"),
    content.UBUNTU: ("Ubuntu", "Ubuntu"),
    **dict.fromkeys(content.NVIDIA.values(), ("NVIDIA", "NVIDIA CUDA")),
    content.TOOLKIT: ("NVIDIA", "NVIDIA container toolkit"),
    content.DOCA: ("NVIDIA", "DOCA"),
}


def cache_directory() -> Path:
    """Return the cache of built packages and throw-away keys: $XDG_CACHE_HOME/goldnode/standin."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goldnode" / "standin"


@dataclass(frozen=True)
class Archive:
    """A published stand-in archive: the directory to serve, and the fingerprint of its signing key."""

    directory: Path
    fingerprint: str

    @property
    def key(self) -> Path:
        """Return the path of the armoured public key, which is published alongside the repositories."""
        return self.directory / KEY

    def entry(self, url: str, repository: str) -> dict[str, object]:
        """Return the site entry for one repository served below `url`. The path of the key is absolute."""
        return {
            "url": f"{url.rstrip('/')}/{repository}",
            "key": str(self.key),
            "fingerprints": [self.fingerprint],
        }

    def site(
        self, url: str, *, release: str = "bookworm", locks: str | None = None
    ) -> dict[str, object]:
        """Return a site configuration (see goldnode.core.site) for this archive served at `url`.

        A site has one address for NVIDIA's flat repository; `release` selects it.
        """
        places = {content.DEBIAN: content.DEBIAN, content.SECURITY: content.SECURITY}
        places |= dict.fromkeys(("ubuntu", "ubuntu-updates", "ubuntu-security"), content.UBUNTU)
        places |= {
            "nvidia-cuda": content.NVIDIA[release],
            "nvidia-container-toolkit": content.TOOLKIT,
        }
        places["nvidia-doca"] = content.DOCA
        archives = {name: self.entry(url, path) for name, path in places.items()}
        return {"archives": archives, **({"locks": locks} if locks else {})}

    def write_site(
        self, path: Path, url: str, *, release: str = "bookworm", locks: str | None = None
    ) -> Path:
        """Write `site(url, …)` to `path` and return the path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            yaml.safe_dump(self.site(url, release=release, locks=locks), sort_keys=False),
            encoding="utf-8",
        )
        return path

    def sources(self, url: str, codename: str, *, nvidia: bool = False) -> str:
        """Return deb822 apt sources for a node of `codename`.

        The keyring must be /etc/apt/keyrings/goldnode-standin.asc.
        """
        rows = [(content.DEBIAN, codename), (content.SECURITY, f"{codename}-security")]
        components = _COMPONENTS
        if codename == "noble":
            rows = [(content.UBUNTU, suite) for suite in content.SUITES[content.UBUNTU]]
            components = _UBUNTU_COMPONENTS
        text = "".join(
            f"Types: deb\nURIs: {url}/{repository}\nSuites: {suite}\nComponents: {' '.join(components)}\n"
            f"Signed-By: /etc/apt/keyrings/{KEY}\n\n"
            for repository, suite in rows
        )
        if nvidia:
            text += (
                f"Types: deb\nURIs: {url}/{content.NVIDIA[codename]}/\nSuites: ./\n"
                f"Signed-By: /etc/apt/keyrings/{KEY}\n"
            )
        return text


def build() -> tuple[Path, dict[str, str]]:
    """Build all packages unless they are cached. Return the pool, and the index paragraphs by package file.

    The pool is named after a hash of this package's source code, so a change to the content creates a new
    pool.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(
        b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in sources)
    ).hexdigest()
    pool = cache_directory() / digest[:16]

    def make() -> None:
        with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="new-") as directory:
            fresh = Path(directory) / "pool"
            fresh.mkdir()

            def one(deb: Deb) -> tuple[str, str]:
                target = fresh / place(deb)
                target.parent.mkdir(parents=True, exist_ok=True)
                deb.build(target)
                return place(deb), deb.stanza(target, "@FILE@")

            with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
                index = dict(workers.map(one, content.debs()))
            (fresh / "index.json").write_text(json.dumps(index), encoding="utf-8")
            fresh.rename(pool)

    _once(pool, make)
    return pool, json.loads((pool / "index.json").read_text(encoding="utf-8"))


def place(deb: Deb) -> str:
    """Return the path of a package file below the published root: the pool of its repository, one directory
    per suite.
    """
    if deb.suite == "/":
        return f"{deb.repository}/{deb.filename}"
    return f"{deb.repository}/pool/{deb.suite}/{deb.component}/{deb.filename}"


def publish(
    directory: Path,
    *,
    groups: Collection[str] = content.DEFAULT,
    withdraw: Iterable[str] = (),
    key: str = "good",
) -> Archive:
    """Publish the archive in `directory`, replacing an earlier one; a server may be running there.

    `groups` are the optional parts (content.GROUPS) to include. `withdraw` are globs on `NAME_VERSION` (for
    example `*_535.309.01-*`) of packages to remove from both index and pool. `key` is "good" or "wrong". With
    "wrong", the signatures are by a key other than the published one.
    """
    unknown = set(groups) - set(content.GROUPS)
    if unknown or key not in KEYS:
        raise ValueError(f"no such part or key: {', '.join(sorted(unknown)) or key}")
    pool, index = build()
    gone = list(withdraw)
    wanted = [
        deb
        for deb in content.debs()
        if (not deb.group or deb.group in groups)
        and not any(fnmatch.fnmatch(f"{deb.name}_{deb.version}", pattern) for pattern in gone)
    ]
    good, home = _key("good"), _key(key)
    fresh = directory.parent / f".{directory.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for deb in wanted:
        target = fresh / place(deb)
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(pool / place(deb), target)
    stamp = _next_stamp(directory)
    for repository, suites in content.SUITES.items():
        for suite in suites:
            mine = [deb for deb in wanted if (deb.repository, deb.suite) == (repository, suite)]
            _write_suite(
                fresh / repository, suite=suite, debs=mine, index=index, home=home, stamp=stamp
            )
    shutil.copy(good / "public.asc", fresh / KEY)
    # Replace the content, not the directory: a container may have it mounted.
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for new in fresh.iterdir():
        new.rename(directory / new.name)
    fresh.rmdir()
    return Archive(directory, (good / "fingerprint").read_text(encoding="ascii").strip())


def _write_suite(
    root: Path, suite: str, debs: list[Deb], index: Mapping[str, str], home: Path, stamp: float
) -> None:
    flat = suite == "/"
    base = root if flat else root / "dists" / suite
    base.mkdir(parents=True, exist_ok=True)
    prefix = len(str(Path(debs[0].repository))) + 1 if debs else 0
    files: dict[str, bytes] = {}
    components = _UBUNTU_COMPONENTS if content.UBUNTU in root.parts[-1:] else _COMPONENTS
    for component in ("",) if flat else components:
        text = "".join(
            index[place(deb)].replace("@FILE@", ("./" if flat else "") + place(deb)[prefix:])
            for deb in sorted(debs, key=lambda deb: (deb.name, deb.version))
            if flat or deb.component == component
        ).encode()
        name = "Packages" if flat else f"{component}/binary-amd64/Packages"
        files[name] = text
        files[f"{name}.gz"] = gzip.compress(text, mtime=0)
    for name, data in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(data)
    repository = str(root).rsplit(".new/", 1)[1]
    origin, label = _LABELS[repository]
    fields = {"Origin": origin, "Label": label}
    if not flat:
        release = "oldstable" if suite.startswith("bookworm") else "stable"
        if origin == "Ubuntu":
            fields |= {"Suite": suite, "Codename": suite.split("-")[0]}
        else:
            fields |= {"Suite": suite.replace(suite.split("-")[0], release, 1), "Codename": suite}
        fields |= {"Components": " ".join(components)}
    fields |= {
        "Date": email.utils.formatdate(stamp, usegmt=True).replace("GMT", "UTC"),
        "Architectures": "amd64 all",
        "No-Support-for-Architecture-all": "Packages",
        "Description": "goldnode stand-in archive, for tests only",
    }
    sums = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n"
        for name, data in sorted(files.items())
    )
    release_file = base / "Release"
    release_file.write_text(
        "".join(f"{k}: {v}\n" for k, v in fields.items()) + f"SHA256:\n{sums}", encoding="utf-8"
    )
    _gpg(home, "--clearsign", "--output", str(base / "InRelease"), str(release_file))
    _gpg(home, "--armor", "--detach-sign", "--output", str(base / "Release.gpg"), str(release_file))
    for path in (
        release_file,
        base / "InRelease",
        base / "Release.gpg",
        *(base / name for name in files),
    ):
        os.utime(path, (stamp, stamp))


def _next_stamp(directory: Path) -> float:
    """Return a timestamp for the new indexes that If-Modified-Since can distinguish from the old one.

    HTTP dates have whole seconds.
    """
    old = [path.stat().st_mtime for path in directory.glob("**/InRelease")]
    return float(max(int(time.time()), *(int(stamp) + 1 for stamp in old), 0))


def _key(name: str) -> Path:
    """Return a GnuPG home with a throw-away Ed25519 key.

    The key is created once per machine, so that its fingerprint is stable.
    """
    home = cache_directory() / f"key-{name}"

    def make() -> None:
        # The path of the agent's socket must be short, so create the key elsewhere and move it here.
        with tempfile.TemporaryDirectory(prefix="gn-key-", dir="/tmp") as short:
            user = f"goldnode stand-in archive ({name} key) <nobody@invalid>"
            _gpg(Path(short), "--quick-generate-key", user, "ed25519", "sign", "never")
            public = _gpg(Path(short), "--armor", "--export")
            rows = _gpg(Path(short), "--with-colons", "--list-keys").splitlines()
            secret = _gpg(Path(short), "--armor", "--export-secret-keys")
            fresh = cache_directory() / f".key-{name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            (fresh / "secret.asc").write_text(secret, encoding="ascii")
            (fresh / "public.asc").write_text(public, encoding="ascii")
            print_row = next(row for row in rows if row.startswith("fpr:"))
            (fresh / "fingerprint").write_text(print_row.split(":")[9] + "\n", encoding="ascii")
            fresh.rename(home)

    _once(home, make)
    return home


_HOMES: dict[Path, tempfile.TemporaryDirectory[str]] = {}


def _gpg(home: Path, *arguments: str) -> str:
    """Run gpg with the key stored in `home`, or on a new home.

    The key is imported once per process into a temporary home.
    """
    where = home
    if (home / "secret.asc").is_file():
        if home not in _HOMES:
            # Below /tmp, whatever TMPDIR is: the path of the agent's socket must be short.
            _HOMES[home] = tempfile.TemporaryDirectory(prefix="gn-key-", dir="/tmp")
            # A remaining agent uses inotify instances of the kernel, which the nodes need.
            atexit.register(
                subprocess.run,
                ["gpgconf", "--homedir", _HOMES[home].name, "--kill", "gpg-agent"],
                check=False,
            )
            _gpg(Path(_HOMES[home].name), "--import", str(home / "secret.asc"))
        where = Path(_HOMES[home].name)
    command = [
        "gpg",
        "--homedir",
        str(where),
        "--batch",
        "--yes",
        "--quiet",
        "--pinentry-mode",
        "loopback",
    ]
    done = subprocess.run(
        [*command, "--passphrase", "", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"gpg {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def _once(target: Path, make: Callable[[], None]) -> None:
    """Call `make` unless `target` exists; only one process at a time does so."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            make()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)
