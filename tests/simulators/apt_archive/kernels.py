"""Stand-in kernels: packages, files and maintainer scripts of a Debian kernel, without an actual kernel."""

from __future__ import annotations

import lzma
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.simulators.apt_archive import elf
from tests.simulators.apt_archive.debs import Content, Deb, Link

# The compiler that a kernel's configuration names. The preflight compares it with the node's.
COMPILERS = {
    "bookworm": ("gcc-12", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "120200"),
    "trixie": ("gcc-14", "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0", "140200"),
    # Ubuntu uses 13; the test node is based on Debian 13, whose compiler is 14.
    "noble": ("gcc-14", "x86_64-linux-gnu-gcc-14 (goldnode stand-in) 14.2.0", "140200"),
}
_DISPLAY = "pci:v{vendor}d*sv*sd*bc03sc*i*"
# In-tree modules of a kernel: path below kernel/, and the PCI vendor it binds, or "".
MODULES = {
    "drivers/gpu/drm/drm": "",
    "drivers/gpu/drm/nouveau/nouveau": "000010DE",
    "drivers/gpu/drm/amd/amdgpu/amdgpu": "00001002",
    "fs/ext4/ext4": "",
}
_COMPRESSED = {"bookworm": "NONE", "trixie": "XZ", "noble": "ZSTD"}
BROKEN = (
    "linux/pci.h of this stand-in kernel changed pci_resize_resource, as 6.12.107 did: drivers of "
    "its time fail"
)


@dataclass(frozen=True)
class Kernel:
    """One kernel release of a suite. `broken`: the modules of the stand-in drivers do not compile for it."""

    codename: str
    repository: str
    suite: str
    release: str
    version: str
    group: str = ""
    broken: bool = False

    @property
    def base(self) -> str:
        """Return the release without its flavour: 6.1.0-901."""
        return self.release.rpartition("-")[0]


def vermagic(release: str) -> str:
    """Return the vermagic string of modules for `release`."""
    return f"{release} SMP preempt mod_unload modversions "


def packages(kernel: Kernel, *, meta: bool = True) -> Iterator[Deb]:
    """Yield the packages of `kernel`; with `meta`, also the metapackages that depend on it."""
    place = Deb(
        "",
        kernel.version,
        "",
        repository=kernel.repository,
        suite=kernel.suite,
        group=kernel.group,
        source="linux",
    )
    if kernel.codename == "noble":
        yield from _ubuntu(kernel, place, meta=meta)
        return
    compiler = COMPILERS[kernel.codename][0]
    # From trixie on, kbuild is one package per release, and the compiler has no package of its own.
    kbuild = f"linux-kbuild-{'6.1' if kernel.codename == 'bookworm' else kernel.base}"
    image, headers = f"linux-image-{kernel.release}", f"linux-headers-{kernel.release}"
    common = f"linux-headers-{kernel.base}-common"
    signed = f"linux-signed-amd64 ({kernel.version.replace('-', '+', 1)})"
    old = kernel.codename == "bookworm"

    yield replace(
        place,
        name=image,
        description=f"kernel {kernel.release} that cannot boot",
        source=signed,
        depends="kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool",
        files=_image_files(kernel),
        scripts=_image_scripts(kernel.release),
    )
    parts = (
        f"linux-headers-{kernel.base}-common (= {kernel.version}), {kbuild} (>= {kernel.version})"
    )
    yield replace(
        place,
        name=headers,
        description=f"headers of kernel {kernel.release}",
        depends=f"{parts}, linux-compiler-gcc-12-x86"
        if old
        else f"{parts}, {image} (= {kernel.version}), {compiler}",
        files=_header_files(kernel),
        scripts={"postinst": _HEADERS_POSTINST.format(release=kernel.release)},
    )
    yield replace(
        place,
        name=common,
        description=f"common headers of kernel {kernel.base}",
        architecture="all",
        multi_arch="foreign",
        files={
            f"/usr/src/{common}/Makefile": "# stand-in\n",
            f"/usr/src/{common}/include/linux/pci.h": _pci_header(kernel.broken),
        },
    )
    yield replace(
        place,
        name=kbuild,
        description="kernel build tools",
        multi_arch="foreign",
        depends="libc6 (>= 2.34)",
        files={f"/usr/lib/{kbuild}/scripts/README": "stand-in\n"},
    )
    if old:
        yield replace(
            place,
            name="linux-compiler-gcc-12-x86",
            description="the kernel's compiler",
            multi_arch="foreign",
            depends="gcc-12",
        )
    if meta:
        for name, target in (("linux-image-amd64", image), ("linux-headers-amd64", headers)):
            yield replace(
                place,
                name=name,
                description="metapackage of the newest kernel",
                source=signed,
                depends=f"{target} (= {kernel.version})",
                provides="linux-image-generic" if "image" in name else "linux-headers-generic",
            )


def _ubuntu(kernel: Kernel, place: Deb, *, meta: bool) -> Iterator[Deb]:
    """Yield the packages of a kernel as Ubuntu splits it.

    The image is separate, its modules are in two packages, and the common headers have no suffix.
    """
    release, base = kernel.release, kernel.base
    everything = _image_files(kernel)
    boot = {path: data for path, data in everything.items() if path.startswith("/boot/vmlinuz-")}
    hwe = not release.startswith("6.")  # from 7.0 on, one package has all modules
    extra = {path: data for path, data in everything.items() if "/drivers/gpu/" in path and not hwe}
    modules = {
        path: data for path, data in everything.items() if path not in boot and path not in extra
    }
    signed = f"linux-signed ({kernel.version})"
    yield replace(
        place,
        name=f"linux-image-{release}",
        description=f"kernel {release} that cannot boot",
        source=signed,
        depends=f"kmod, linux-base (>= 4.5ubuntu1~16.04.1), linux-modules-{release}, initramfs-tools | "
        "linux-initramfs-tool",
        conflicts=f"linux-image-unsigned-{release}",
        files=boot,
        scripts=_image_scripts(release),
    )
    depmod = {"postinst": f'#!/bin/sh\nset -e\n[ "$1" != configure ] || depmod {release}\n'}
    yield replace(
        place,
        name=f"linux-modules-{release}",
        description=f"modules of kernel {release}",
        files=modules,
        scripts=depmod,
    )
    if not hwe:
        yield replace(
            place,
            name=f"linux-modules-extra-{release}",
            description=f"further modules of kernel {release}",
            depends=f"linux-modules-{release}, linux-image-{release} | linux-image-unsigned-{release}",
            files=extra,
            scripts=depmod,
        )
    yield replace(
        place,
        name=f"linux-headers-{release}",
        description=f"headers of kernel {release}",
        depends=f"linux-headers-{base}, libc6 (>= 2.38)",
        files=_header_files(kernel),
        scripts={"postinst": _HEADERS_POSTINST.format(release=release)},
    )
    common = _common(kernel)
    yield replace(
        place,
        name=f"linux-headers-{base}",
        description=f"common headers of kernel {base}",
        architecture="all",
        multi_arch="foreign",
        files={
            f"{common}/Makefile": "# stand-in\n",
            f"{common}/include/linux/pci.h": _pci_header(kernel.broken),
        },
    )
    if meta:
        same, kind = f"(= {kernel.version})", "generic-hwe-24.04" if hwe else "generic"
        image = f"linux-image-{release}" + ("" if hwe else f", linux-modules-extra-{release}")
        for name, depends in {
            f"linux-image-{kind}": image,
            f"linux-headers-{kind}": f"linux-headers-{release}",
            f"linux-{kind}": f"linux-image-{kind} {same}, linux-headers-{kind} {same}",
        }.items():
            yield replace(
                place,
                name=name,
                description="metapackage of the newest kernel",
                source="linux-meta",
                depends=depends,
            )


def _common(kernel: Kernel) -> str:
    """Return the directory of the headers that all flavours share."""
    return f"/usr/src/linux-headers-{kernel.base}" + (
        "" if kernel.codename == "noble" else "-common"
    )


def _image_files(kernel: Kernel) -> dict[str, Content]:
    files: dict[str, Content] = {
        f"/boot/vmlinuz-{kernel.release}": f"goldnode stand-in for kernel {kernel.release}\n"
        * 2000,
        f"/boot/config-{kernel.release}": _config(kernel.codename),
        f"/boot/System.map-{kernel.release}": "ffffffffffffffff B stand-in\n",
    }
    modules = f"/lib/modules/{kernel.release}"
    order = ""
    for path, vendor in MODULES.items():
        name = path.rsplit("/", 1)[1]
        info = [("license", "GPL"), ("description", f"goldnode stand-in: {name}")]
        if vendor:
            info.append(("alias", _DISPLAY.format(vendor=vendor)))
        info += [
            ("depends", ""),
            ("intree", "Y"),
            ("name", name),
            ("vermagic", vermagic(kernel.release)),
        ]
        content = elf.module(info)
        # Debian compresses modules from 13 on; Ubuntu uses zstd from 24.04 on. The kernel's XZ decompressor
        # supports only CRC32 as check.
        if kernel.codename == "noble":
            done = subprocess.run(
                ["zstd", "-q", "-c"], input=content, stdout=subprocess.PIPE, check=True
            )
            files[f"{modules}/kernel/{path}.ko.zst"] = done.stdout
        elif kernel.codename == "bookworm":
            files[f"{modules}/kernel/{path}.ko"] = content
        else:
            files[f"{modules}/kernel/{path}.ko.xz"] = lzma.compress(content, check=lzma.CHECK_CRC32)
        order += f"kernel/{path}.ko\n"
    files[f"{modules}/modules.order"] = order
    files[f"{modules}/modules.builtin"] = "kernel/fs/proc/proc.ko\n"
    files[f"{modules}/modules.builtin.modinfo"] = b"proc.license=GPL\0proc.file=fs/proc/proc\0"
    return files


def _config(codename: str) -> str:
    _, text, number = COMPILERS[codename]
    return (
        f'# goldnode stand-in\nCONFIG_CC_IS_GCC=y\nCONFIG_CC_VERSION_TEXT="{text}"\n'
        f"CONFIG_GCC_VERSION={number}\n"
        "CONFIG_MODULES=y\nCONFIG_MODULE_SIG=y\nCONFIG_RD_GZIP=y\nCONFIG_RD_XZ=y\nCONFIG_RD_ZSTD=y\n"
        + f"CONFIG_MODULE_COMPRESS_{_COMPRESSED[codename]}=y\n"
    )


def _header_files(kernel: Kernel) -> dict[str, Content]:
    root = f"/usr/src/linux-headers-{kernel.release}"
    common = _common(kernel)
    generated = f'#define UTS_RELEASE "{kernel.release}"\n#define VERMAGIC_STRING "{vermagic(kernel.release)}"\n'
    return {
        f"{root}/.config": _config(kernel.codename),
        f"{root}/.kernelvariables": f"CC = $(CROSS_COMPILE){COMPILERS[kernel.codename][0]}\n",
        f"{root}/Makefile": f"include {common}/Makefile\n",
        f"{root}/Module.symvers": "",
        f"{root}/include/generated/utsrelease.h": generated,
        f"/lib/modules/{kernel.release}/build": Link(root),
        f"/lib/modules/{kernel.release}/source": Link(common),
    }


def _pci_header(broken: bool) -> str:
    more = ", int exclude_bars" if broken else ""
    note = f"/* {BROKEN} */\n" if broken else ""
    return f"{note}struct pci_dev;\nint pci_resize_resource(struct pci_dev *dev, int i, int size{more});\n"


_HEADERS_POSTINST = """\
#!/bin/sh
set -e
if [ -d /etc/kernel/header_postinst.d ]; then
    run-parts --report --exit-on-error --arg={release} /etc/kernel/header_postinst.d
fi
"""

# initramfs-tools, dkms and goldnode depend on the order of these steps in Debian's kernel packages, hooks
# above all.
_HOOKS = """\
if [ -d /etc/kernel/{stage}.d ]; then
    DEB_MAINT_PARAMS="$*" run-parts --report --exit-on-error --arg={release} \\
        --arg=/boot/vmlinuz-{release} /etc/kernel/{stage}.d
fi
"""


def _image_scripts(release: str) -> dict[str, str]:
    def script(stage: str, before: str = "", after: str = "") -> str:
        return f"#!/bin/sh\nset -e\n{before}{_HOOKS.format(stage=stage, release=release)}{after}exit 0\n"

    fresh, image = f"/lib/modules/{release}/.fresh-install", f"/boot/vmlinuz-{release}"
    return {
        "preinst": script(
            "preinst",
            '[ "$1" != abort-upgrade ] || exit 0\nif [ "$1" = install ]; then mkdir -p '
            f"/lib/modules/{release}; touch {fresh}; fi\n",
        ),
        "postinst": script(
            "postinst",
            f'[ "$1" = configure ] || exit 0\ndepmod {release}\n'
            f"if [ -f {fresh} ]; then change=install; else change=upgrade; fi\n"
            f"linux-update-symlinks $change {release} {image}\nrm -f {fresh}\n",
        ),
        "prerm": script("prerm", f'[ "$1" = remove ] || exit 0\nlinux-check-removal {release}\n'),
        "postrm": script(
            "postrm",
            f'rm -f {fresh}\nif [ "$1" != upgrade ] && command -v linux-update-symlinks >/dev/null; then\n'
            f"    linux-update-symlinks remove {release} {image}\nfi\n",
            # Depmod leaves these files behind. The directory stays while it contains DKMS modules.
            f'if [ "$1" = purge ]; then\n    rm -f /lib/modules/{release}/modules.*\n'
            f"    rmdir --ignore-fail-on-non-empty /lib/modules/{release} 2>/dev/null || :\nfi\n",
        ),
    }
