"""Stand-in NVIDIA driver families: Debian packages (535, 550, tesla-470) and those of the NVIDIA repository
(580).

Names, versions, sources, relations and file paths follow the real packages. The kernel module is a few lines
of C, which DKMS really compiles on the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulators.apt_archive import elf
from tests.simulators.apt_archive.debs import Content, Deb, Link, Program
from tests.simulators.apt_archive.parts import imex

TRIPLET = "x86_64-linux-gnu"
MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")


@dataclass(frozen=True)
class Driver:
    """One driver version in Debian packaging. `infix` is the part of the package names: "" or
    "tesla-470-".
    """

    repository: str
    suite: str
    upstream: str
    revision: str
    infix: str = ""
    libssl: str = "libssl3"
    group: str = ""

    @property
    def version(self) -> str:
        """Return the package version."""
        return f"{self.upstream}-{self.revision}"

    @property
    def branch(self) -> str:
        """Return the driver branch: 535."""
        return self.upstream.split(".")[0]

    @property
    def module(self) -> str:
        """Return the name of the module in DKMS and modinfo."""
        return f"nvidia-{self.infix.rstrip('-')}" if self.infix else "nvidia-current"

    @property
    def directory(self) -> str:
        """Return the directory of the libraries, below that of the vendor."""
        return self.infix.rstrip("-") or "current"


def dkms_tree(name: str, prefix: str, upstream: str, licence: str) -> dict[str, Content]:
    """Return the files of the DKMS source `name`; modules are installed as `prefix` plus their suffix."""
    root = f"/usr/src/{name}-{upstream}"
    conf = f'PACKAGE_NAME="{name}"\nPACKAGE_VERSION="{upstream}"\nAUTOINSTALL=yes\n'
    conf += 'MAKE[0]="make modules KERNEL_UNAME=${kernelver}"\nCLEAN="true"\n'
    for index, module in enumerate(MODULES):
        conf += f'BUILT_MODULE_NAME[{index}]="{module}"\n'
        conf += f'DEST_MODULE_NAME[{index}]="{prefix}{module.removeprefix("nvidia")}"\n'
        conf += f'DEST_MODULE_LOCATION[{index}]="/updates/dkms"\n'
    return {
        f"{root}/dkms.conf": conf,
        f"{root}/Makefile": _MAKEFILE.format(
            modules=" ".join(f"{module}.ko" for module in MODULES)
        ),
        f"{root}/standin.c": _SOURCE.format(upstream=upstream, licence=licence),
    }


# Like kernel builds, compile without the C library, and fail on warnings about a changed kernel API.
_MAKEFILE = """\
# goldnode stand-in for a driver's makefile: every module is one object file, compiled against the kernel's headers.
KDIR := /lib/modules/$(KERNEL_UNAME)/build
KSRC := /lib/modules/$(KERNEL_UNAME)/source
CFLAGS := -O2 -Wall -Werror -nostdinc -ffreestanding -I$(KDIR)/include -I$(KSRC)/include

modules: {modules}

%.ko: standin.c
\t$(CC) $(CFLAGS) -DNAME='"$*"' -c -o $@ $<
"""

_SOURCE = """\
/* goldnode stand-in: a module that says what it is, for modinfo and depmod, and could not be loaded. */
#include <generated/utsrelease.h>
#include <linux/pci.h>

#define INFO(id, text) static const char id[] __attribute__((section(".modinfo"), used, aligned(1))) = text
INFO(info_version, "version={upstream}");
INFO(info_licence, "license={licence}");
INFO(info_description, "description=goldnode stand-in: " NAME);
INFO(info_depends, "depends=");
INFO(info_name, "name=" NAME);
INFO(info_vermagic, "vermagic=" VERMAGIC_STRING);

int standin_resize(struct pci_dev *dev);
int standin_resize(struct pci_dev *dev)
{{
\treturn pci_resize_resource(dev, 0, 0);
}}
"""

_DKMS_SCRIPTS = {
    "postinst": """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    /usr/lib/dkms/common.postinst {name} {upstream} /usr/share/{name}-dkms "" "$2"
fi
""",
    "prerm": """\
#!/bin/sh
set -e
case "$1" in
    remove | upgrade | deconfigure)
        if [ "$(dkms status -m {name} -v {upstream})" ]; then
            dkms remove -m {name} -v {upstream} --all
        fi
        ;;
esac
""",
}

# Debian switches branches with alternatives; their slaves depend on the files of the installed packages.
_ALTERNATIVE = """\
#!/bin/sh
set -e
libraries=/usr/lib/{triplet}/nvidia/{directory}
slaves=
slave() {{
    [ ! -e "$3" ] || slaves="$slaves --slave $1 $2 $3"
}}
for name in libcuda.so.1 libnvidia-ml.so.1 libnvidia-cfg.so.1 libnvidia-ptxjitcompiler.so.1; do
    slave /usr/lib/{triplet}/$name "nvidia--$name-{triplet}" $libraries/$name
done
slave /usr/bin/nvidia-smi nvidia--nvidia-smi /usr/lib/nvidia/{directory}/nvidia-smi
slave /etc/modprobe.d/nvidia-blacklists-nouveau.conf nvidia--nvidia-blacklists-nouveau.conf \\
    /etc/nvidia/{directory}/nvidia-blacklists-nouveau.conf
slave /etc/modprobe.d/nvidia.conf nvidia--nvidia-modprobe.conf /etc/nvidia/{directory}/nvidia-modprobe.conf
slave /etc/modprobe.d/nvidia-options.conf nvidia--nvidia-options.conf /etc/nvidia/{directory}/nvidia-options.conf
case "$1" in
    configure | triggered)
        mkdir -p /usr/lib/nvidia/{directory}
        update-alternatives --install /usr/lib/nvidia/nvidia nvidia /usr/lib/nvidia/{directory} {branch} $slaves
        ldconfig
        ;;
esac
"""
_ALTERNATIVE_PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ]; then
    update-alternatives --remove nvidia /usr/lib/nvidia/{directory}
fi
"""

_SMI = """\
#!/bin/sh
echo "nvidia-smi {upstream} is a goldnode stand-in: it cannot talk to a driver." >&2
exit 9
"""

_PERSISTENCED_UNIT = """\
[Unit]
Description=goldnode stand-in: NVIDIA Persistence Daemon

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvpd

[Install]
WantedBy=multi-user.target
"""
# The output of debhelper's dh_installsystemd, including `|| true`: a failing unit tool must not fail the
# package, as with the real one. Tests ask systemctl for the state of the unit instead of using these exit
# statuses.
_UNIT_POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    deb-systemd-helper unmask {unit} >/dev/null || true
    if deb-systemd-helper --quiet was-enabled {unit}; then
        deb-systemd-helper enable {unit} >/dev/null || true
    else
        deb-systemd-helper update-state {unit} >/dev/null || true
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        deb-systemd-invoke start {unit} >/dev/null || true
    fi
fi
"""
_UNIT_PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop {unit} >/dev/null || true
fi
"""
_UNIT_POSTRM = """\
#!/bin/sh
set -e
if [ "$1" = purge ] && [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper purge {unit} >/dev/null || true
    deb-systemd-helper unmask {unit} >/dev/null || true
fi
"""


# debhelper adds this trigger to packages with libraries in the loader's default directories.
_LDCONFIG = {"triggers": "activate-noawait ldconfig\n"}


def dkms_scripts(name: str, upstream: str) -> dict[str, str]:
    return {
        stage: text.format(name=name, upstream=upstream) for stage, text in _DKMS_SCRIPTS.items()
    }


# `|| true` in these scripts comes from debhelper: a failing unit tool does not fail the package.
def unit_scripts(unit: str) -> dict[str, str]:
    """Return maintainer scripts that enable and start `unit`, as debhelper generates them."""
    scripts = {"postinst": _UNIT_POSTINST, "prerm": _UNIT_PRERM, "postrm": _UNIT_POSTRM}
    return {stage: text.format(unit=unit) for stage, text in scripts.items()}


def _library(directory: str, soname: str, upstream: str) -> dict[str, Content]:
    stem = soname.removesuffix(".1")
    root = f"/usr/lib/{TRIPLET}{directory}"
    return {
        # A real ELF file: ldconfig, through which the node's check finds it, ignores anything else.
        f"{root}/{stem}.{upstream}": elf.library(
            soname, f"goldnode stand-in for {soname} {upstream}"
        ),
        f"{root}/{soname}": Link(f"{stem}.{upstream}"),
    }


def _firmware(upstream: str, *names: str) -> dict[str, Content]:
    return {
        f"/lib/firmware/nvidia/{upstream}/{name}": f"goldnode stand-in {upstream}\n"
        for name in names
    }


def _modprobe_files(driver: Driver) -> dict[str, Content]:
    root = f"/etc/nvidia/{driver.directory}"
    installs = "".join(
        f"install {module} modprobe -i {driver.module}{module.removeprefix('nvidia')} $CMDLINE_OPTS\n"
        for module in MODULES
    )
    return {
        f"{root}/nvidia-blacklists-nouveau.conf": "blacklist nouveau\n",
        f"{root}/nvidia-modprobe.conf": installs,
        f"{root}/nvidia-options.conf": f"#options {driver.module} NVreg_DeviceFileMode=0660\n",
    }


def debian_family(driver: Driver) -> Iterator[Deb]:
    """Yield the packages that Debian builds from the source of one driver version."""
    i, up, version = driver.infix, driver.upstream, driver.version
    tesla = bool(i)
    source = f"nvidia-graphics-drivers{'-' + i.rstrip('-') if tesla else ''}"
    place = Deb(
        "",
        version,
        "",
        repository=driver.repository,
        suite=driver.suite,
        component="non-free",
        group=driver.group,
        source=source,
        section="libs",
    )
    alternative, support = f"nvidia-{i}alternative", f"nvidia-{i}kernel-support"
    exactly = f"{alternative} (= {version})"
    legacy = "" if tesla else "nvidia-legacy-check (>= 495)"

    if not tesla:
        yield replace(
            place,
            name="nvidia-legacy-check",
            description="check for GPUs that need a legacy driver",
            multi_arch="foreign",
            pre_depends="debconf | debconf-2.0, pciutils, nvidia-installer-cleanup (>= 20151021)",
        )
        yield replace(
            place,
            name="firmware-nvidia-gsp",
            description="GSP firmware",
            component="non-free-firmware",
            section="kernel",
            multi_arch="foreign",
            provides=f"firmware-nvidia-gsp (= {up}), firmware-nvidia-gsp-{up}",
            conflicts=f"firmware-nvidia-gsp-{up}",
            files=_firmware(up, "gsp_ga10x.bin", "gsp_tu10x.bin"),
        )
        yield replace(
            place,
            name="libnvidia-pkcs11-openssl3",
            description="PKCS #11 library",
            multi_arch="same",
            depends=f"{exactly}, libc6, {driver.libssl} (>= 3.0.0)",
            provides=f"libnvidia-pkcs11-openssl3-{up}",
            conflicts=f"libnvidia-pkcs11-openssl3-{up}",
            files=_library(f"/nvidia/{driver.directory}", "libnvidia-pkcs11-openssl3.so.1", up),
        )
    yield replace(
        place,
        name=alternative,
        description="selection of the driver branch",
        multi_arch="foreign",
        pre_depends=", ".join(filter(None, ["dpkg (>= 1.17.21)", legacy])),
        depends="glx-alternative-nvidia (>= 1.2)",
        provides=f"nvidia-alternative-any, {alternative}--kmod-alias"
        + ("" if tesla else f", nvidia-alternative-{up}"),
        scripts={
            "postinst": _ALTERNATIVE.format(
                triplet=TRIPLET, directory=driver.directory, branch=driver.branch
            ),
            "prerm": _ALTERNATIVE_PRERM.format(directory=driver.directory),
            "triggers": f"interest-await /usr/lib/{TRIPLET}/nvidia/{driver.directory}\n"
            f"interest-await /usr/lib/nvidia/{driver.directory}\ninterest-await "
            f"/etc/nvidia/{driver.directory}\n",
        },
    )
    firmware = f"firmware-nvidia-{i}gsp (= {up}) | firmware-nvidia-gsp-{up}"
    yield replace(
        place,
        name=f"nvidia-{i}kernel-dkms",
        description="kernel module source for DKMS, a few lines of C",
        section="kernel",
        multi_arch="foreign",
        pre_depends="nvidia-installer-cleanup",
        depends=f"{firmware}, {support}--v1, dkms (>= 2.1.0.0)",
        recommends=f"libnvidia-{i}cuda1 (>= {up})"
        if tesla
        else f"nvidia-driver (>= {up}) | libcuda1 (>= {up})",
        provides=f"nvidia-kernel-dkms-any (= {up}), nvidia-{i}kernel-{up}",
        files=dkms_tree(driver.module, driver.module, up, "NVIDIA"),
        scripts=dkms_scripts(driver.module, up),
    )
    yield replace(
        place,
        name=support,
        description="module configuration",
        section="kernel",
        multi_arch="foreign",
        depends=f"{exactly}, {alternative}--kmod-alias, nvidia-kernel-common (>= 20151021), "
        f"nvidia-modprobe (>= {driver.branch})",
        provides=f"nvidia-kernel-support-any, {support}--v1"
        + (f", firmware-nvidia-gsp-{up}, firmware-nvidia-{i}gsp (= {up})" if tesla else ""),
        conflicts=f"firmware-nvidia-gsp-{up}" if tesla else "",
        files={**_modprobe_files(driver), **(_firmware(up, "gsp.bin") if tesla else {})},
    )
    cuda = f"libnvidia-{i}cuda1" if tesla else "libcuda1"
    ptx, cfg, ml = (f"libnvidia-{i}{part}1" for part in ("ptxjitcompiler", "cfg", "ml"))
    pkcs = "" if tesla else f", libnvidia-pkcs11-openssl3 (= {version})"
    libraries = {
        cuda: (
            "libcuda.so.1",
            f"nvidia-support, {exactly}, {ptx} (= {version}){pkcs}, libc6",
            legacy,
            ", libcuda1-any",
        ),
        ml: ("libnvidia-ml.so.1", f"{exactly}, libc6", "", ""),
        cfg: ("libnvidia-cfg.so.1", f"{exactly}, libc6", "", ", libnvidia-cfg1-any"),
        ptx: ("libnvidia-ptxjitcompiler.so.1", "libc6", "", ""),
    }
    for name, (soname, depends, before, more) in libraries.items():
        yield replace(
            place,
            name=name,
            description=f"{soname}, not a library",
            multi_arch="same",
            pre_depends=before,
            depends=depends,
            provides="" if name == ptx else f"{soname} (= {up}){more}",
            files=_library(f"/nvidia/{driver.directory}", soname, up),
        )
    yield replace(
        place,
        name=f"nvidia-{i}smi",
        description="nvidia-smi that only says what it is",
        section="utils",
        depends=f"{exactly}, {ml} (= {version}), libc6",
        files={f"/usr/lib/nvidia/{driver.directory}/nvidia-smi": Program(_SMI.format(upstream=up))},
    )


def _persistenced(place: Deb, version: str, depends: str) -> Deb:
    daemon = '#!/bin/sh\necho "goldnode stand-in: no NVIDIA device" >&2\nexit 1\n'
    return replace(
        place,
        name="nvidia-persistenced",
        version=version,
        source="",
        description="persistence daemon that fails without a device, as the real one does",
        section="utils",
        multi_arch="foreign",
        pre_depends="init-system-helpers (>= 1.54~)",
        depends=depends,
        files={
            "/usr/bin/nvidia-persistenced": Program(daemon),
            "/lib/systemd/system/nvidia-persistenced.service": _PERSISTENCED_UNIT,
        },
        scripts=unit_scripts("nvidia-persistenced.service"),
    )


def _modprobe(place: Deb, version: str) -> Deb:
    return replace(
        place,
        name="nvidia-modprobe",
        version=version,
        source="",
        description="nvidia-modprobe that does nothing",
        section="utils",
        multi_arch="foreign",
        depends="libc6 (>= 2.34)",
        files={"/usr/bin/nvidia-modprobe": Program("#!/bin/sh\nexit 1\n")},
    )


def debian_support(repository: str, suite: str, persistenced: str, modprobe: str) -> Iterator[Deb]:
    """Yield the packages that Debian's driver packages share, each with its own version. `""` omits a
    package.
    """
    place = Deb(
        "", "1", "", repository=repository, suite=suite, component="contrib", section="libs"
    )
    glx = replace(place, version="1.2.2+standin1", source="glx-alternatives", multi_arch="foreign")
    support = replace(
        place, version="20220217+3+standin1", source="nvidia-support", multi_arch="foreign"
    )
    if persistenced:
        needs = (
            "libnvidia-cfg1 | libnvidia-tesla-470-cfg1 | libnvidia-cfg.so.1 | libnvidia-cfg1-any, "
            "adduser, libc6"
        )
        yield replace(glx, name="update-glx", description="alternatives helper")
        yield replace(
            glx,
            name="glx-alternative-mesa",
            description="alternative",
            depends="update-glx (= 1.2.2+standin1)",
        )
        yield replace(
            glx,
            name="glx-diversions",
            description="diversions",
            pre_depends="nvidia-installer-cleanup",
            depends="glx-alternative-mesa (= 1.2.2+standin1)",
        )
        yield replace(
            glx,
            name="glx-alternative-nvidia",
            description="alternative",
            depends="update-glx (= 1.2.2+standin1), glx-diversions (= 1.2.2+standin1), glx-alternative-mesa",
        )
        for name in ("nvidia-installer-cleanup", "nvidia-support", "nvidia-kernel-common"):
            yield replace(support, name=name, description="shared part of the driver packages")
        yield _persistenced(place, persistenced, needs)
    yield _modprobe(place, modprobe)


def _fabric_manager(place: Deb) -> Deb:
    return replace(
        place,
        name="nvidia-fabricmanager",
        description="fabric manager that fails without NVSwitch",
        source="fabricmanager",
        section="utils",
        files={
            "/usr/bin/nv-fabricmanager": Program(
                '#!/bin/sh\necho "goldnode stand-in: no NVSwitch" >&2\nexit 1\n'
            ),
            "/lib/systemd/system/nvidia-fabricmanager.service": _PERSISTENCED_UNIT.replace(
                "/usr/bin/nvidia-persistenced --user nvpd", "/usr/bin/nv-fabricmanager"
            ).replace("NVIDIA Persistence Daemon", "NVIDIA fabric manager"),
        },
    )


def nvidia_repository(repository: str, upstream: str, group: str = "") -> Iterator[Deb]:
    """Yield the packages of one driver version in NVIDIA's own repository: compute parts and their
    metapackages.
    """
    version = f"{upstream}-1+standin1"
    place = Deb(
        "",
        version,
        "",
        repository=repository,
        suite="/",
        group=group,
        source="nvidia-graphics-drivers",
        section="libs",
    )
    same = f"(= {version})"
    for flavour, licence in (("open-", "Dual MIT/GPL"), ("", "NVIDIA")):
        other = "nvidia-kernel-dkms" if flavour else "nvidia-kernel-open-dkms"
        yield replace(
            place,
            name=f"nvidia-kernel-{flavour}dkms",
            description="kernel module source for DKMS, a few lines of C",
            section="kernel",
            depends=f"nvidia-kernel-support {same}, firmware-nvidia-gsp {same}, nvidia-modprobe, dkms "
            "(>= 3.0.3)",
            provides=f"nvidia-kernel-{flavour}{upstream}",
            conflicts=other,
            files=dkms_tree("nvidia", "nvidia", upstream, licence),
            scripts=dkms_scripts("nvidia", upstream),
        )
    yield replace(
        place,
        name="nvidia-kernel-support",
        description="module configuration",
        section="kernel",
        depends="nvidia-modprobe",
        files={"/usr/lib/modprobe.d/nvidia-standin.conf": "blacklist nouveau\n"},
    )
    yield replace(
        place,
        name="firmware-nvidia-gsp",
        description="GSP firmware",
        section="kernel",
        files=_firmware(upstream, "gsp_ga10x.bin", "gsp_tu10x.bin"),
    )
    libraries = {
        "libcuda1": ("libcuda.so.1", f"libnvidia-ptxjitcompiler1 {same}, libc6"),
        "libnvidia-ml1": ("libnvidia-ml.so.1", "libc6"),
        "libnvidia-cfg1": ("libnvidia-cfg.so.1", "libc6"),
        "libnvidia-ptxjitcompiler1": ("libnvidia-ptxjitcompiler.so.1", "libc6"),
    }
    for name, (soname, depends) in libraries.items():
        yield replace(
            place,
            name=name,
            description=f"{soname}, not a library",
            multi_arch="same",
            depends=depends,
            files=_library("", soname, upstream),
            scripts=_LDCONFIG,
        )
    yield replace(
        place,
        name="nvidia-driver-cuda",
        description="compute part of the driver",
        section="utils",
        depends=f"libcuda1 {same}, libnvidia-ml1 {same}, libnvidia-cfg1 {same}, nvidia-persistenced {same}, "
        f"nvidia-kernel-dkms {same} | nvidia-kernel-open-dkms {same}",
        files={"/usr/bin/nvidia-smi": Program(_SMI.format(upstream=upstream))},
        conflicts="nvidia-smi",
    )
    yield _persistenced(place, version, f"libnvidia-cfg1 {same}, adduser, libc6")
    yield _modprobe(place, version)
    yield _fabric_manager(place)
    yield imex(place)
    for name, module in (
        ("nvidia-open", "nvidia-kernel-open-dkms"),
        ("cuda-drivers", "nvidia-kernel-dkms"),
    ):
        yield replace(
            place,
            name=name,
            description="metapackage of the newest driver",
            section="metapackages",
            depends=f"{module} {same}, nvidia-driver-cuda {same}",
        )


def ubuntu_repository(repository: str, upstream: str, group: str = "") -> Iterator[Deb]:
    """Yield the packages of one driver version in NVIDIA's repository for Ubuntu.

    Most names include the branch, as up to 580.
    """
    branch, version = upstream.split(".")[0], f"{upstream}-0ubuntu1+standin1"
    place = Deb(
        "",
        version,
        "",
        repository=repository,
        suite="/",
        group=group,
        source=f"nvidia-graphics-drivers-{branch}",
        section="libs",
    )
    same = f"(= {version})"
    for flavour, licence in (("-open", "Dual MIT/GPL"), ("", "NVIDIA")):
        source, common = f"nvidia-kernel-source-{branch}{flavour}", f"nvidia-kernel-common-{branch}"
        other = "" if flavour else "-open"
        yield replace(
            place,
            name=source,
            description="kernel module source, a few lines of C",
            section="kernel",
            conflicts=f"nvidia-kernel-source-{branch}{other}",
            provides=f"nvidia-kernel-source (= {upstream})",
            files=dkms_tree("nvidia", "nvidia", upstream, licence),
        )
        yield replace(
            place,
            name=f"nvidia-dkms-{branch}{flavour}",
            description="builds the kernel module with DKMS",
            section="kernel",
            depends=f"dkms, {source} {same}, {common} {same}, nvidia-firmware-{branch} {same}",
            conflicts=f"nvidia-dkms-{branch}{other}",
            provides=f"nvidia-dkms-kernel (= {upstream})",
            scripts=dkms_scripts("nvidia", upstream),
        )
    yield replace(
        place,
        name=f"nvidia-kernel-common-{branch}",
        description="module configuration",
        section="kernel",
        depends="nvidia-modprobe",
        files={"/lib/modprobe.d/nvidia-standin.conf": "blacklist nouveau\n"},
    )
    yield replace(
        place,
        name=f"nvidia-firmware-{branch}",
        description="GSP firmware",
        section="kernel",
        files=_firmware(upstream, "gsp_ga10x.bin", "gsp_tu10x.bin"),
    )
    cuda = {**_library("", "libcuda.so.1", upstream), **_library("", "libnvidia-ml.so.1", upstream)}
    libraries = {
        "libnvidia-compute": (
            f"libnvidia-gpucomp-{branch} {same}, nvidia-persistenced {same}, libc6",
            {**cuda, "/usr/bin/nvidia-smi": Program(_SMI.format(upstream=upstream))},
        ),
        "libnvidia-cfg1": ("libc6", _library("", "libnvidia-cfg.so.1", upstream)),
        "libnvidia-gpucomp": ("libc6", _library("", "libnvidia-gpucomp.so.1", upstream)),
    }
    for name, (depends, files) in libraries.items():
        yield replace(
            place,
            name=f"{name}-{branch}",
            description="libraries that are none",
            multi_arch="same",
            depends=depends,
            files=files,
            scripts=_LDCONFIG,
        )
    yield _persistenced(place, version, f"libnvidia-cfg1-{branch} {same}, adduser, libc6")
    yield _modprobe(place, version)
    yield _fabric_manager(replace(place, version=f"{upstream}-1+standin1"))
    yield imex(replace(place, version=f"{upstream}-1+standin1"))
    for name, flavour in ((f"nvidia-open-{branch}", "-open"), (f"cuda-drivers-{branch}", "")):
        yield replace(
            place,
            name=name,
            description="metapackage of the branch",
            section="metapackages",
            depends=f"nvidia-dkms-{branch}{flavour} {same}, libnvidia-compute-{branch} {same}",
        )
    for name, target in (
        ("nvidia-open", f"nvidia-open-{branch}"),
        ("cuda-drivers", f"cuda-drivers-{branch}"),
    ):
        yield replace(
            place,
            name=name,
            description="metapackage of the newest driver",
            section="metapackages",
            depends=f"{target} {same}",
        )


def pinning(repository: str, branch: str) -> Deb:
    """Return NVIDIA's package that pins a driver branch in apt.

    Path and content of the pins are assumed; the real package was not inspected.
    """
    pins = f"Package: *nvidia* cuda-drivers*\nPin: version {branch}.*\nPin-Priority: 1000\n"
    return Deb(
        f"nvidia-driver-pinning-{branch}",
        f"{branch}-1+standin1",
        f"pins of driver branch {branch}",
        repository=repository,
        suite="/",
        section="utils",
        architecture="all",
        files={f"/etc/apt/preferences.d/nvidia-driver-pinning-{branch}": pins},
    )
