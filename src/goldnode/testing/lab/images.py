"""Base images of lab nodes, made from a Debian archive with mmdebstrap and named after their recipe.

The tag is a hash of the recipe, not of the resulting packages: asking twice costs nothing, and a changed
recipe makes a new image. There are three flavours. `bare` is a minimal Debian with ssh, like a freshly
installed node. `bare-ccache` shares a compiler cache between nodes, so a DKMS build that was done before is
quick. `warm` also has compiler, DKMS and initramfs-tools and no apt sources, for scenarios on the stand-in
archive that need no network.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient
from docker.errors import ImageNotFound

from goldnode.core.docker_engine import Say
from goldnode.core.errors import GoldnodeError
from goldnode.core.site import Site, archive_url, load_site

LABEL = "goldnode.lab"
REPOSITORY = "goldnode-lab"

# Raised when what the functions below do changes without changing the data that is hashed.
RECIPE = 1

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# openssl is absent on purpose: with it, Debian's dkms makes a signing key on the node.
BARE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "procps", "zstd", "sudo", "kmod", "iproute2",
    "debian-archive-keyring",
)  # fmt: skip
WARM_PACKAGES = (
    *BARE_PACKAGES,
    "gcc", "make", "dkms", "initramfs-tools", "busybox", "unattended-upgrades", "linux-base", "adduser", "pciutils",
    "xz-utils",
)  # fmt: skip

# A driver's build asks the compiler the same small questions for each of its modules, and another driver's most of them again.
CCACHE = "bare-ccache"
CCACHE_DIRECTORY = "/var/cache/ccache"
CCACHE_CONF = f"""\
cache_dir = {CCACHE_DIRECTORY}
max_size = 4G
# DKMS copies the source again for each build.
sloppiness = include_file_ctime,include_file_mtime,time_macros
# On a cache miss, compile at once and do not preprocess first: kbuild has the compiler list the included files.
depend_mode = true
"""
# Debian's kernel headers (.kernelvariables) then name `ccache gcc-N` as the compiler; ssh sessions read this file.
CCACHE_ENVIRONMENT = "DEBIAN_KERNEL_USE_CCACHE=1\n"

HOST_KEYS_DROPIN = """\
# Every node makes its own host keys at its first boot; the image holds none.
[Service]
ExecStartPre=
ExecStartPre=/usr/bin/ssh-keygen -A
ExecStartPre=/usr/sbin/sshd -t
"""

# A lab node loses no power, and boots from no initramfs: neither flushed writes nor a small archive are worth their time.
QUICK = {
    "etc/dpkg/dpkg.cfg.d/goldnode-lab": "force-unsafe-io\n",
    "etc/initramfs-tools/conf.d/goldnode-lab": "COMPRESSLEVEL=1\n",
}


@dataclass(frozen=True)
class LabRelease:
    """Operating system release that a node can run.

    `os_release`: the contents to show instead of its own, for a system that cannot be installed here.
    """

    name: str
    codename: str
    os_release: str = ""
    released: bool = True  # Debian's security suite has nothing for a release before it is one
    cgroup2: bool = False  # its systemd knows no control groups of version 1

    @property
    def calls_itself(self) -> str:
        """Return the codename that its os-release states."""
        codename = re.search(r"^VERSION_CODENAME=(\S+)$", self.os_release, re.MULTILINE)
        return codename[1] if codename else self.codename


# Ubuntu's archive is not reachable from everywhere: this is a Debian 13 that calls itself Ubuntu 24.04 and is labelled so.
UBUNTU_STANDIN = """\
PRETTY_NAME="Ubuntu 24.04 (SIMULATED by goldnode: this is Debian 13)"
NAME="Ubuntu"
ID=ubuntu
ID_LIKE=debian
VERSION_ID="24.04"
VERSION_CODENAME=noble
VARIANT="goldnode stand-in"
"""

RELEASES: Mapping[str, LabRelease] = {
    "debian12": LabRelease("debian12", "bookworm"),
    "debian13": LabRelease("debian13", "trixie"),
    "debian14": LabRelease("debian14", "forky", released=False, cgroup2=True),
    "ubuntu2404-standin": LabRelease("ubuntu2404-standin", "trixie", UBUNTU_STANDIN),
}
FLAVOURS = ("bare", CCACHE, "warm")


class LabImageError(GoldnodeError):
    """A node image could not be made, or does not exist."""


@dataclass(frozen=True)
class LabRecipe:
    """All a base image is made from; `reference` is its name in the engine."""

    release: LabRelease
    flavour: str
    sources: tuple[str, ...]
    packages: tuple[str, ...]
    overlay: tuple[tuple[str, str], ...]
    expired: bool = False  # take indexes past their Valid-Until date

    @property
    def reference(self) -> str:
        parts = [
            RECIPE,
            self.release.codename,
            self.flavour,
            self.sources,
            self.packages,
            self.overlay,
            *(["expired"] if self.expired else []),
        ]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return f"{REPOSITORY}/{self.release.name}-{self.flavour}:{digest[:12]}"


def recipe(
    os_name: str, flavour: str, site: Site | None = None, extra: Sequence[str] = ()
) -> LabRecipe:
    """Return the recipe of `os_name` (of RELEASES) in `flavour` (of FLAVOURS) from the site's Debian archive, with `extra` packages.

    Raises ImageError on an unknown name, SiteError where no Debian archive is known.
    """
    if os_name not in RELEASES or flavour not in FLAVOURS:
        raise LabImageError(
            f'there is no node image "{os_name}" in flavour "{flavour}"',
            remedy=f"use one of {', '.join(RELEASES)} in {', '.join(FLAVOURS)}",
        )
    release = RELEASES[os_name]
    site = site or load_site()
    suites = [(archive_url(site, "debian"), release.codename)]
    if release.released:
        suites.append((archive_url(site, "debian-security"), f"{release.codename}-security"))
    archive = site.archives.get("debian")
    expired = archive is not None and archive.accept_expired
    overlay = {"etc/systemd/system/ssh.service.d/host-keys.conf": HOST_KEYS_DROPIN, **QUICK}
    if release.os_release:
        overlay["etc/os-release"] = release.os_release
    packages = (*(WARM_PACKAGES if flavour == "warm" else BARE_PACKAGES), *extra)
    if flavour == CCACHE:
        packages = (*packages, "ccache")
        overlay |= {"etc/ccache.conf": CCACHE_CONF, "etc/environment": CCACHE_ENVIRONMENT}
    if any(url.startswith("https:") for url, _ in suites):
        packages = (*packages, "ca-certificates")
    # A directory of this machine is not there on the node.
    if flavour != "warm" and not any(url.startswith("file:") for url, _ in suites):
        overlay["etc/apt/sources.list.d/debian.sources"] = "\n".join(
            f"Types: deb\nURIs: {url}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n"
            + ("Check-Valid-Until: no\n" if expired else "")
            for url, suite in suites
        )
    return LabRecipe(
        release=release,
        flavour=flavour,
        sources=tuple(f"deb [signed-by={KEYRING}] {url} {suite} main" for url, suite in suites),
        packages=packages,
        overlay=tuple(sorted(overlay.items())),
        expired=expired,
    )


def ensure(
    client: DockerClient,
    os_name: str,
    flavour: str,
    *,
    say: Say,
    site: Site | None = None,
    extra: Sequence[str] = (),
) -> str:
    """Return the reference of the base image, made now (some 20 to 60 seconds) unless the engine has it."""
    wanted = recipe(os_name, flavour, site, extra)
    if not exists(client, wanted.reference):
        # Several processes of a test run may want it at once; the lock is per user, as the temporary directory is shared.
        lock = (
            Path(tempfile.gettempdir())
            / f"goldnode-{os.getuid()}-{wanted.reference.replace('/', '-').replace(':', '-')}.lock"
        )
        with lock.open("w") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if not exists(client, wanted.reference):
                say(f"making the node image {wanted.reference} with mmdebstrap")
                _make(client, wanted)
    return wanted.reference


def exists(client: DockerClient, reference: str) -> bool:
    """Return whether the engine has the image `reference`."""
    try:
        client.images.get(reference)
    except ImageNotFound:
        return False
    return True


def snapshot_reference(key: object) -> str:
    """Return the image name for the state of a node that `key` (anything JSON) describes completely."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    return f"{REPOSITORY}/snapshot:{digest[:16]}"


def _make(client: DockerClient, wanted: LabRecipe) -> None:
    repository, tag = wanted.reference.rsplit(":", 1)
    with tempfile.TemporaryDirectory(prefix="goldnode-image-") as directory:
        overlay, rootfs = Path(directory, "overlay.tar"), Path(directory, "rootfs.tar")
        overlay.write_bytes(tar_of({path: text.encode() for path, text in wanted.overlay}))
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            # unshare needs no root, but user namespaces.
            f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
            f"--include={','.join(wanted.packages)}",
            *(['--aptopt=Acquire::Check-Valid-Until "false"'] if wanted.expired else []),
            '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_*',
            '--customize-hook=: > "$1"/etc/machine-id',  # empty, not absent: absent is a first boot, which presets units
            '--customize-hook=rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*',
            f"--customize-hook=tar-in {overlay} /",
            wanted.release.codename,
            str(rootfs),
            *wanted.sources,
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise LabImageError(
                "mmdebstrap is not installed, and no node image was named",
                remedy="install it: apt-get install mmdebstrap, or name an image with --image",
            ) from error
        if done.returncode != 0:
            tail = "\n  ".join(done.stderr.strip().splitlines()[-8:])
            raise LabImageError(
                f"mmdebstrap failed:\n  {tail}\n",
                remedy="check the network and the archive address (goldnode-site.yml, or this machine's apt sources)",
            )
        client.api.import_image_from_file(
            str(rootfs), repository=repository, tag=tag, changes=[f"LABEL {LABEL}=base"]
        )
    if not exists(client, wanted.reference):
        raise LabImageError(
            f"the engine did not keep the image {wanted.reference}",
            remedy="look at the engine's log",
        )


def tar_of(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    """Return a tar of `files` (path without leading slash → content), owned by root; directories are left to the one who unpacks it."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return sink.getvalue()
