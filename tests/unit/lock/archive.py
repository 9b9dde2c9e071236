"""A signed apt archive that consists of indexes only: enough for apt to resolve, nothing to install."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class SigningKey:
    """A key of its own GnuPG home, as `SigningKey.create` makes it."""

    home: Path
    fingerprint: str

    @classmethod
    def create(cls, home: Path, name: str) -> SigningKey:
        home.mkdir(mode=0o700, parents=True)
        key = cls(home, "")
        key.gpg("--quick-gen-key", name, "ed25519", "sign", "never")
        rows = key.gpg("--with-colons", "--list-keys").splitlines()
        key.fingerprint = next(row.split(":")[9] for row in rows if row.startswith("fpr:"))
        return key

    def gpg(self, *arguments: str) -> str:
        command = [
            "gpg",
            "--homedir",
            str(self.home),
            "--batch",
            "--yes",
            "--passphrase",
            "",
            *arguments,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def export(self, path: Path, *, armored: bool = True) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.gpg(*(["--armor"] if armored else []), "--output", str(path), "--export")
        return path

    def stop(self) -> None:
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "gpg-agent"], check=False)


@dataclass
class Archive:
    """Packages of one suite (`suite` ends with "/": flat), written below `root` by `publish`."""

    root: Path
    key: SigningKey
    suite: str = "bookworm"
    components: tuple[str, ...] = ("main",)
    stanzas: list[dict[str, str]] = field(default_factory=list)
    signed: str = "inline"  # InRelease; "detached": Release and Release.gpg alone; "none"
    by_hash: bool = False  # the index is to be had under its hash only
    valid_until: str = ""  # as a Release file writes it
    published: int = field(default_factory=lambda: int(time.time()) - 1000)

    def add(
        self,
        name: str,
        version: str,
        *,
        depends: str = "",
        source: str = "",
        provides: str = "",
        salt: str = "",
    ) -> None:
        """Offer one package; `salt` changes its bytes (that is, its hash)."""
        architecture = "amd64"
        place = "" if self.flat else f"pool/main/{name[0]}/{source or name}/"
        content = f"{name} {version} {salt}".encode()
        fields = {
            "Package": name,
            "Source": source,
            "Version": version,
            "Architecture": architecture,
            "Maintainer": "nobody <nobody@example.org>",
            "Depends": depends,
            "Provides": provides,
            "Filename": f"{'./' if self.flat else ''}{place}{name}_{version.split(':')[-1]}_{architecture}.deb",
            "Size": str(1000 + len(content)),
            "SHA256": hashlib.sha256(content).hexdigest(),
            "Description": "stand-in for a test",
        }
        self.stanzas.append({key: value for key, value in fields.items() if value})

    def remove(self, name: str, version: str) -> None:
        self.stanzas = [
            item for item in self.stanzas if (item["Package"], item["Version"]) != (name, version)
        ]

    @property
    def flat(self) -> bool:
        return self.suite.endswith("/")

    def publish(self) -> None:
        """Write Packages, Release and InRelease."""
        base = self.root if self.flat else self.root / "dists" / self.suite
        index = Path("Packages") if self.flat else Path("main/binary-amd64/Packages")
        text = "\n".join(
            "".join(f"{key}: {value}\n" for key, value in item.items()) for item in self.stanzas
        )
        (base / index).parent.mkdir(parents=True, exist_ok=True)
        (base / index).write_text(text, encoding="utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        release = (
            "Origin: Test\nLabel: Test\nDate: Sat, 21 Nov 2026 00:00:00 UTC\nArchitectures: amd64\n"
        )
        if not self.flat:
            release += f"Suite: {self.suite}\nCodename: {self.suite}\nComponents: {' '.join(self.components)}\n"
        release += f"Valid-Until: {self.valid_until}\n" if self.valid_until else ""
        release += "Acquire-By-Hash: yes\n" if self.by_hash else ""
        release += f"SHA256:\n {digest} {len(text.encode())} {index}\n"
        if self.by_hash:
            place = (base / index).parent / "by-hash/SHA256" / digest
            place.parent.mkdir(parents=True, exist_ok=True)
            (base / index).replace(place)
        (base / "Release").write_text(release, encoding="utf-8")
        for name in ("InRelease", "Release.gpg"):
            (base / name).unlink(missing_ok=True)
        if self.signed == "inline":
            self.key.gpg("--output", str(base / "InRelease"), "--clear-sign", str(base / "Release"))
        elif self.signed == "detached":
            self.key.gpg(
                "--output",
                str(base / "Release.gpg"),
                "--armor",
                "--detach-sign",
                str(base / "Release"),
            )
        # HTTP tells changes apart by the second; two publications of one test may share it.
        self.published += 10
        for path in (base / index, base / "Release", base / "InRelease", base / "Release.gpg"):
            if path.exists():
                os.utime(path, (self.published, self.published))


def kernel(
    archive: Archive, release: str, version: str, *, image: bool = True, headers: bool = True
) -> None:
    """Offer a kernel in Debian's shapes: the image and the headers have different source packages."""
    series = ".".join(version.split(".")[:2])
    if image:
        archive.add(f"linux-image-{release}", version, source="linux-signed-amd64", depends="kmod")
    if headers:
        archive.add(
            f"linux-headers-{release}",
            version,
            source="linux",
            depends=f"linux-headers-{release.removesuffix('-amd64')}-common (= {version}), linux-kbuild-{series}, gcc",
        )
        archive.add(
            f"linux-headers-{release.removesuffix('-amd64')}-common", version, source="linux"
        )
    archive.add(f"linux-kbuild-{series}", version, source="linux", depends="libc6")


def base(archive: Archive) -> None:
    """Offer what a stack needs of the base system."""
    archive.add("libc6", "2.36-9", source="glibc")
    archive.add("gcc", "4:12.2.0-3", depends="libc6, linux-libc-dev", source="gcc-defaults (1.203)")
    archive.add("linux-libc-dev", "6.1.176-1", source="linux")
    archive.add("kmod", "30-1")
    archive.add("dkms", "3.0.10-8", depends="gcc")


def driver(
    archive: Archive,
    upstream: str,
    *,
    revision: str = "-1",
    firmware: bool = True,
    fabric: bool = False,
) -> None:
    """Offer a driver family in the shapes of Debian's 535 packages, each bound to its exact siblings."""
    version = upstream + revision
    source = "nvidia-graphics-drivers"
    if firmware:
        archive.add(
            "firmware-nvidia-gsp",
            version,
            source=source,
            provides=f"firmware-nvidia-gsp (= {upstream})",
        )
    archive.add(
        "nvidia-kernel-dkms",
        version,
        source=source,
        depends=f"firmware-nvidia-gsp (= {upstream}) | firmware-nvidia-gsp-{upstream}, nvidia-kernel-support--v1, dkms",
    )
    archive.add(
        "nvidia-kernel-support",
        version,
        source=source,
        provides="nvidia-kernel-support--v1",
        depends=f"nvidia-alternative (= {version}), nvidia-modprobe",
    )
    archive.add("nvidia-alternative", version, source=source, depends="glx-alternative-nvidia")
    archive.add(
        "libcuda1", version, source=source, depends=f"nvidia-alternative (= {version}), libc6"
    )
    if fabric:
        archive.add(
            "nvidia-fabricmanager", version, source="fabricmanager", depends="libnvidia-nscq"
        )
        archive.add("libnvidia-nscq", version, source="libnvidia-nscq")


def rest_of_driver(archive: Archive) -> None:
    """Offer what has versions of its own."""
    archive.add("nvidia-modprobe", "535.161.07-1")
    archive.add("glx-alternative-nvidia", "1.2.2", source="glx-alternatives", depends="libc6")


TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)


def engine(archive: Archive) -> None:
    """Offer Debian's docker."""
    archive.add("docker.io", "20.10.24+dfsg1-1", depends="containerd, runc, libc6")
    archive.add("containerd", "1.6.20~ds1-1", depends="runc")
    archive.add("runc", "1.1.5+ds1-1")


def toolkit(archive: Archive, version: str, *names: str) -> None:
    """Offer the container toolkit's packages at one version, all of them unless named. The hook asks for the others at the same one."""
    for name in names or TOOLKIT:
        depends = (
            ", ".join(f"{other} (= {version})" for other in TOOLKIT[1:])
            if name == TOOLKIT[0]
            else "libc6"
        )
        archive.add(
            name,
            version,
            source="libnvidia-container" if name.startswith("lib") else "nvidia-container-toolkit",
            depends=depends,
        )
