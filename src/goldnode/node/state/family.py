"""The package family: what dpkg's distributions call the packages that goldnode has to know by name.

This is the seam. The controller passes the `id` of a stack's or a node's os-release to :func:`family`; on a node the names alone tell.
Nothing else asks which distribution it is on. Names: Debian's and Ubuntu's own kernel packages.
"""

from __future__ import annotations

from ..later import re
from ..plain import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple


class Family(NamedTuple):
    """What differs between two distributions of the family. `kernel`: the packages of one kernel release, all at one version, the image
    first and the headers second; `fence`: metapackages that would drag a kernel forward; `archives`: id of archives.yml -> suite, of the
    distribution's own archives; `found`: whether this machine's own apt may tell their addresses (else only the site does)."""

    kernel: Tuple[str, ...]
    fence: Tuple[str, ...]
    archives: Dict[str, str]
    found: bool


FAMILIES: Dict[str, Family] = {
    "debian": Family(
        kernel=("linux-image-{release}", "linux-headers-{release}"),
        fence=("linux-image-amd64", "linux-headers-amd64"),
        archives={"debian": "{codename}", "debian-security": "{codename}-security"},
        found=True,
    ),
    # Ubuntu's image holds the kernel alone. Its modules are a package that the image needs, and a further one that only metapackages need:
    # without that a server may lack its network or storage driver.
    "ubuntu": Family(
        kernel=(
            "linux-image-{release}",
            "linux-headers-{release}",
            "linux-modules-{release}",
            "linux-modules-extra-{release}",
        ),
        fence=("linux-generic", "linux-image-generic", "linux-headers-generic", "linux-virtual"),
        archives={
            "ubuntu": "{codename}",
            "ubuntu-updates": "{codename}-updates",
            "ubuntu-security": "{codename}-security",
        },
        found=False,
    ),
}

_KERNEL = r"linux-(?:image(?:-unsigned)?|modules(?:-extra)?)-(\d.*?)(?:-unsigned)?"


# What is there only for building modules: all of a kernel but what carries it.
_BUILD = ("linux-headers-", "linux-kbuild-", "linux-compiler-")


def builds_modules(package: str) -> bool:
    """Whether a package of this name belongs to a kernel and serves only to build modules for it."""
    return package.startswith(_BUILD)


def family(distribution: str) -> Family:
    """The family's member with os-release's ID `distribution`; KeyError for one that is not of the family."""
    return FAMILIES[distribution]


def kernel_packages(distribution: str, release: str) -> List[str]:
    """The packages of kernel `release`, the image first and the headers second."""
    return [name.format(release=release) for name in FAMILIES[distribution].kernel]


def kernel_release(package: str) -> Optional[str]:
    """The release of the kernel that a package of this name carries (image or modules, not headers), or None."""
    found = re.fullmatch(_KERNEL, package) if package.startswith(("linux-image-", "linux-modules-")) else None
    return found.group(1) if found else None
