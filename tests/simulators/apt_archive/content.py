"""Content of the stand-in archive: kernels, drivers and base packages, by repository and suite.

Repositories are directories below the published root. `debian` and `debian-security` serve both releases,
`ubuntu` its three suites. NVIDIA's repository is one flat directory per release, like the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulators.apt_archive.debs import Deb
from tests.simulators.apt_archive.drivers import (
    Driver,
    debian_family,
    debian_support,
    nvidia_repository,
    pinning,
    ubuntu_repository,
    unit_scripts,
)
from tests.simulators.apt_archive.engines import engine
from tests.simulators.apt_archive.kernels import Kernel, packages
from tests.simulators.apt_archive.modules import module_packages
from tests.simulators.apt_archive.parts import dcgm, doca, subnet_manager
from tests.simulators.apt_archive.toolkit import toolkit

DEBIAN, SECURITY = "debian", "debian-security"
UBUNTU = "ubuntu"
NVIDIA = {
    "bookworm": "nvidia-cuda/debian12/x86_64",
    "trixie": "nvidia-cuda/debian13/x86_64",
    "noble": "nvidia-cuda/ubuntu2404/x86_64",
}
TOOLKIT = "nvidia-container-toolkit"
DOCA = "nvidia-doca/ubuntu24.04/x86_64"
SUITES = {
    DEBIAN: ("bookworm", "trixie"),
    SECURITY: ("bookworm-security", "trixie-security"),
    UBUNTU: ("noble", "noble-updates", "noble-security"),
    **dict.fromkeys(NVIDIA.values(), ("/",)),
    TOOLKIT: ("/",),
    DOCA: ("/",),
}

# Optional parts, published only if requested:
NEWER = "newer"  # newer base package, kernel and NVIDIA driver, like an archive some days later
BROKEN = "broken"  # a kernel newer than all others, for which the drivers' modules do not compile
SECURITY_UPDATES = "security-updates"  # kernels and drivers of the security suites
# container toolkits without known vulnerabilities; without this part the newest one is vulnerable
TOOLKIT_SAFE = "toolkit-safe"
MODULES = "modules"  # other out-of-tree modules, one compiled against the other
GROUPS = (NEWER, BROKEN, SECURITY_UPDATES, TOOLKIT_SAFE, MODULES)
DEFAULT = frozenset({SECURITY_UPDATES, TOOLKIT_SAFE})


def kernels() -> Iterator[Kernel]:
    """Yield the kernels, oldest first within each release."""
    old, new, ubuntu = "bookworm", "trixie", "noble"
    security = (SECURITY, "bookworm-security"), (SECURITY, "trixie-security")
    yield Kernel(old, DEBIAN, old, "6.1.0-901-amd64", "6.1.901-1+standin1")
    yield Kernel(old, *security[0], "6.1.0-902-amd64", "6.1.902-1+standin1", group=SECURITY_UPDATES)
    yield Kernel(old, *security[0], "6.1.0-903-amd64", "6.1.903-1+standin1", group=NEWER)
    yield Kernel(
        old, *security[0], "6.1.0-904-amd64", "6.1.904-1+standin1", group=BROKEN, broken=True
    )
    yield Kernel(new, DEBIAN, new, "6.12.94+deb13-amd64", "6.12.94-1+standin1")
    yield Kernel(
        new, *security[1], "6.12.902+deb13-amd64", "6.12.902-1+standin1", group=SECURITY_UPDATES
    )
    yield Kernel(new, *security[1], "6.12.903+deb13-amd64", "6.12.903-1+standin1", group=NEWER)
    yield Kernel(
        new, *security[1], "6.12.904+deb13-amd64", "6.12.904-1+standin1", group=BROKEN, broken=True
    )
    yield Kernel(ubuntu, UBUNTU, ubuntu, "6.8.0-901-generic", "6.8.0-901.901+standin1")
    yield Kernel(
        ubuntu,
        UBUNTU,
        "noble-updates",
        "6.8.0-902-generic",
        "6.8.0-902.902+standin1",
        group=SECURITY_UPDATES,
    )
    yield Kernel(
        ubuntu,
        UBUNTU,
        "noble-security",
        "6.8.0-902-generic",
        "6.8.0-902.902+standin1",
        group=SECURITY_UPDATES,
    )
    yield Kernel(
        ubuntu, UBUNTU, "noble-updates", "6.8.0-903-generic", "6.8.0-903.903+standin1", group=NEWER
    )
    yield Kernel(
        ubuntu, UBUNTU, "noble-updates", "7.0.0-901-generic", "7.0.0-901.901~24.04.1+standin1"
    )


def debs() -> Iterator[Deb]:
    """Yield every package of the archive, including all groups."""
    for kernel in kernels():
        yield from packages(kernel)
    yield from debian_family(Driver(DEBIAN, "bookworm", "535.261.03", "1+standin1"))
    yield from debian_family(
        Driver(
            SECURITY,
            "bookworm-security",
            "535.309.01",
            "0+deb12u1+standin1",
            group=SECURITY_UPDATES,
        )
    )
    yield from debian_family(
        Driver(DEBIAN, "bookworm", "470.256.02", "1~deb12u1+standin1", infix="tesla-470-")
    )
    yield from debian_support(
        DEBIAN, "bookworm", "535.171.04-1~deb12u1+standin1", "535.161.07-1~deb12u1+standin1"
    )
    for deb in debian_support(SECURITY, "bookworm-security", "", "535.309.01-1~deb12u1+standin1"):
        yield replace(deb, group=SECURITY_UPDATES)
    yield from debian_family(
        Driver(DEBIAN, "trixie", "550.163.01", "2+standin1", libssl="libssl3t64")
    )
    yield from debian_support(DEBIAN, "trixie", "550.163.01-1+standin1", "570.133.07-1+standin1")
    for codename, repository in NVIDIA.items():
        family = ubuntu_repository if codename == "noble" else nvidia_repository
        yield from family(repository, "580.173.02")
        yield from family(repository, "580.178.04")
        if codename == "noble":
            yield pinning(repository, "580")
        else:  # from 590 on, Ubuntu's packages have other names, which no test requests
            yield from family(repository, "595.91.07", NEWER)
    for repository in NVIDIA.values():
        yield subnet_manager(repository)
        yield from dcgm(repository, "4.5.3")
        yield from dcgm(repository, "4.6.0")
    yield from doca(DOCA)
    yield from toolkit(TOOLKIT, "1.17.7")
    yield from toolkit(TOOLKIT, "1.20.0", TOOLKIT_SAFE)
    yield from engines()
    yield from module_packages(DEBIAN, "bookworm", MODULES)
    yield from rocm()
    yield from base()


def engines() -> Iterator[Deb]:
    """Yield Debian's docker packages at the versions of its releases.

    Ubuntu's have Ubuntu's names and the version of the newer release.
    """
    scripts = unit_scripts("docker.service")
    old = {"docker.io": "20.10.24+dfsg1", "containerd": "1.6.20~ds1", "runc": "1.1.5+ds1"}
    new = {
        "docker.io": "26.1.5+dfsg1",
        "docker-cli": "26.1.5+dfsg1",
        "containerd": "1.7.24~ds1",
        "runc": "1.1.15+ds1",
    }
    yield from engine(DEBIAN, "bookworm", old, scripts, knows_cdi=False)
    yield from engine(DEBIAN, "trixie", new, scripts, knows_cdi=True)
    yield from engine(
        UBUNTU,
        "noble",
        {name: new[name] for name in ("docker.io", "containerd", "runc")},
        scripts,
        knows_cdi=True,
    )


def rocm() -> Iterator[Deb]:
    """Yield Debian 13's packages for AMD GPUs; the driver itself is part of the kernel."""
    place = Deb("", "1+standin1", "", repository=DEBIAN, suite="trixie", section="libs")
    firmware = "/lib/firmware/amdgpu/standin.bin"
    yield replace(
        place,
        name="firmware-amd-graphics",
        description="GPU firmware",
        version="20250410-2+standin1",
        source="firmware-nonfree",
        component="non-free-firmware",
        architecture="all",
        files={firmware: "goldnode stand-in\n"},
    )
    needs = {
        "libamd-comgr2": "libc6",
        "libhsa-runtime64-1": "libc6",
        "libamdhip64-5": "libamd-comgr2, libhsa-runtime64-1, libc6",
        "rocminfo": "libhsa-runtime64-1, libc6",
        "rocm-smi": "python3:any",
        "amd-smi": "python3:any",
    }
    for name, depends in needs.items():
        yield replace(
            place,
            name=name,
            version="6.1.2-1+standin1",
            description="part of ROCm",
            depends=depends,
        )


def base() -> Iterator[Deb]:
    """Yield packages that belong to no stack, so goldnode must not hold back their updates."""
    for codename in ("bookworm", "trixie"):
        place = Deb(
            "libstandin-base", "1.0-1+standin1", "a base package", DEBIAN, codename, section="libs"
        )
        yield place
        yield replace(
            place,
            version="1.0-1+standin2",
            repository=SECURITY,
            suite=f"{codename}-security",
            group=SECURITY_UPDATES,
        )
        yield replace(
            place,
            version="1.0-1+standin3",
            repository=SECURITY,
            suite=f"{codename}-security",
            group=NEWER,
        )
    place = Deb(
        "libstandin-base", "1.0-1+standin1", "a base package", UBUNTU, "noble", section="libs"
    )
    yield place
    yield replace(place, version="1.0-1+standin2", suite="noble-updates", group=SECURITY_UPDATES)
