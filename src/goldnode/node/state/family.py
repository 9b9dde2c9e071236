"""Names of distribution packages that goldnode must know, by distribution.

This is the only place with such names. The controller passes the `id` from a stack's
or a node's os-release to
:func:`family`; on the node, package names alone are enough. No other code distinguishes distributions. Names:
    the kernel packages of Debian and Ubuntu.
"""

from __future__ import annotations

import re

from ..ground.optional import group
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Tuple


class Family(NamedTuple):
    """Properties that differ between the distributions.

    * kernel: the packages of one kernel release, all at one version; the image is
      first and the headers second
    * fence: metapackages that would upgrade the kernel
    * archives: id in archives.yml -> suite, for the distribution's own archives
    * found: True if the controller's own apt configuration may provide their addresses
      (otherwise only the site does)
    * driver: how a person installs NVIDIA's driver without a class
    """

    kernel: Tuple[str, ...]
    fence: Tuple[str, ...]
    archives: Dict[str, str]
    found: bool
    driver: str


_EXTRA = "linux-modules-extra-{release}"
# Package -> the first kernel without it: Ubuntu's 7.0 has all modules in linux-modules (facts/distros.yml, hwe24).
_ENDED = {_EXTRA: 7}

FAMILIES: Dict[str, Family] = {
    "debian": Family(
        kernel=("linux-image-{release}", "linux-headers-{release}"),
        fence=("linux-image-amd64", "linux-headers-amd64"),
        archives={"debian": "{codename}", "debian-security": "{codename}-security"},
        found=True,
        driver="`sudo apt install nvidia-driver` (component non-free)",
    ),
    # Ubuntu's image package contains only the kernel. It depends on one modules package. Only metapackages
    # depend on the extra one, without which a server may lack its network or storage driver.
    "ubuntu": Family(
        kernel=(
            "linux-image-{release}",
            "linux-headers-{release}",
            "linux-modules-{release}",
            _EXTRA,
        ),
        fence=("linux-generic", "linux-image-generic", "linux-headers-generic", "linux-virtual"),
        archives={
            "ubuntu": "{codename}",
            "ubuntu-updates": "{codename}-updates",
            "ubuntu-security": "{codename}-security",
        },
        found=False,
        driver="`sudo ubuntu-drivers install`",
    ),
}
_MODULES = (
    "linux-modules-nvidia-"  # Ubuntu's packages with NVIDIA's modules for one branch and kernel
)

# Debian 14 has the kernel in linux-binary, its modules in linux-modules and its lists in linux-base; linux-image copies to /boot.
_KERNEL = r"linux-(?:image(?:-unsigned)?|modules(?:-extra)?|binary|base)-(\d.*?)(?:-unsigned)?"
_OF_KERNEL = ("linux-image-", "linux-modules-", "linux-binary-", "linux-base-")


_HEADERS = r"linux-headers-(\d+\.\d.*)"

# Packages of a kernel that serve only to build modules.
# Files of a package with kernel headers, of a kernel, and of any other one. Estimates.
_INODES = {"linux-headers": 25_000, "linux-image": 6_000, "linux-modules": 6_000, "": 500}
_BUILD = ("linux-headers-", "linux-kbuild-", "linux-compiler-")


def builds_modules(package: str) -> bool:
    """Return whether a package belongs to a kernel and serves only to build modules for it."""
    return package.startswith(_BUILD)


def headers_release(package: str) -> Optional[str]:
    """Return the kernel release of a headers package, or None. The packages that several releases share have
    one too.
    """
    return group(re.fullmatch(_HEADERS, package))


def family(distribution: str) -> Family:
    """Return the entry for os-release's ID `distribution`.

    Raises KeyError for an unsupported distribution.
    """
    return FAMILIES[distribution]


def kernel_packages(distribution: str, release: str) -> List[str]:
    """Return the packages of kernel `release`, the image first and the headers second."""
    first = re.match(r"\d*", release)
    series = int(first.group() or 0) if first else 0
    names = FAMILIES[distribution].kernel
    return [name.format(release=release) for name in names if series < _ENDED.get(name, series + 1)]


def in_modules(package: str) -> bool:
    """Return whether most files of a package lie in /lib/modules: a kernel or its modules."""
    return package.startswith(_OF_KERNEL)


def inodes(package: str) -> int:
    """Return how many files a package has, by its kind."""
    return next(count for start, count in _INODES.items() if package.startswith(start))


def kernel_release(package: str) -> Optional[str]:
    """Return the kernel release that a package contains (image or modules, not headers), or None."""
    # Cheaper than the pattern, which is asked of every installed package.
    if not package.startswith(_OF_KERNEL):
        return None
    return group(re.fullmatch(_KERNEL, package))


# -- for a machine without a class, of any distribution


def of_driver(package: str) -> bool:
    """Return whether a package has files of the NVIDIA driver: `libcuda1` of Debian, `libnvidia-compute-580` of Ubuntu."""
    return package.startswith(("nvidia-", "libnvidia-", "libcuda1", "libnvcuvid"))


def driver_installation(distribution: str, vendor: str) -> str:
    """Return what installs the driver of a vendor's GPU."""
    known = FAMILIES.get(distribution)
    if known is None or vendor != "nvidia":
        return "the packages of the distribution"
    return known.driver


def initramfs_command(distribution: str) -> str:
    """Return the command that builds the initramfs of the running kernel again."""
    return "`sudo update-initramfs -u`" if distribution in FAMILIES else "`sudo dracut --force`"


def headers_command(release: object) -> str:
    """Return the command that installs the headers of a kernel."""
    return f"`sudo apt install linux-headers-{release}`"


def modules_command(
    packages: Iterable[str], built: Optional[str], release: object
) -> Optional[str]:
    """Return the command that installs NVIDIA's prebuilt modules for a kernel; None where no such packages are used.

    :param packages: the installed packages.
    :param built: a kernel release for which there are modules.
    """
    there = next((name for name in packages if name.startswith(_MODULES)), None)
    if there is None or built is None:
        return None
    start = there.rpartition(built)[0] or f"{_MODULES}BRANCH-"
    return f"`sudo apt install {start}{release}`"
