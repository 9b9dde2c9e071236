"""Source packages of Debian and Ubuntu packages: security trackers judge these, and not the packages themselves."""

from __future__ import annotations

import re

_ARCHITECTURE = re.compile(r"-(?:amd64|arm64|armhf|i386|ppc64el|riscv64|s390x)$")
_SIGNED_GRUB = re.compile(r"\d+\+(?P<upstream>.+?)\+(?P<revision>\d.*)")
_REBUILD = re.compile(r"\+b\d+$")
# Sources of which a package has a version of its own (Debian's `Source: lvm2 (2.03.16-2)` of dmsetup 2:1.02.185-2):
# those of the locks of this project, compared with the archives of Debian 12 and 13 in November 2026.
OWN_VERSIONS = frozenset({"gcc-defaults", "libbpf", "lvm2"})


def tracked_source(source: str, source_version: str, version: str) -> tuple[str, str]:
    """Return the source package that trackers list, and its version.

    The signed kernels and boot loaders come from a source package that only adds signatures. Trackers judge the one
    with the code: `linux-signed-amd64` 6.1.192+2 is `linux` 6.1.192-2, which is the version of its packages.
    """
    if source == "linux-signed" or source.startswith("linux-signed-"):
        name = _ARCHITECTURE.sub("", source.replace("linux-signed", "linux", 1))
        return name, version
    if source.startswith("grub-efi-") and source.endswith("-signed"):
        match = _SIGNED_GRUB.fullmatch(version)
        return ("grub2", f"{match['upstream']}-{match['revision']}") if match else (source, version)
    return source, source_version


def source_of_path(path: str, name: str, version: str) -> tuple[str, str | None]:
    """Return the source package of a file of an archive, and its version.

    A Debian archive has the files in `pool/COMPONENT/LETTER/SOURCE/`. Elsewhere the package counts as its own source.
    The version is None if packages of this source have versions of their own, so that it is not known.
    """
    parts = path.split("/")
    at = parts.index("pool") if "pool" in parts else -1
    source = parts[-2] if at >= 0 and len(parts) - at >= 5 else name
    # A package that was only rebuilt (binNMU) has the source of the version before.
    source, own = tracked_source(source, _REBUILD.sub("", version), version)
    return source, None if source in OWN_VERSIONS else own
