"""Stand-ins for other out-of-tree modules: two DKMS packages, one compiled against the other, as with OFED.

`standin-peer-dkms` has a real build dependency: its makefile fails unless `standin_ofed` is installed for the
kernel. The module records the inode of the file it was compiled against, so that a test can identify it.
Neither module drives hardware.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulators.apt_archive.debs import Content, Deb
from tests.simulators.apt_archive.drivers import dkms_scripts

OFED, PEER = "standin_ofed", "standin_peer"

_MAKEFILE = """\
# goldnode stand-in for a module's makefile: one object, compiled against the kernel's headers.
KDIR := /lib/modules/$(KERNEL_UNAME)/build
KSRC := /lib/modules/$(KERNEL_UNAME)/source
{against}
modules:
{check}\t$(CC) -O2 -Wall -Werror -nostdinc -ffreestanding -I$(KDIR)/include -I$(KSRC)/include -DAGAINST='"$(AGAINST)"' -c -o {name}.ko standin.c
"""

_SOURCE = """\
/* goldnode stand-in: a module that says what it is, for modinfo and depmod, and could not be loaded. */
#include <generated/utsrelease.h>

#define INFO(id, text) static const char id[] __attribute__((section(".modinfo"), used, aligned(1))) = text
INFO(info_version, "version={version}");
INFO(info_licence, "license=GPL");
INFO(info_description, "description=goldnode stand-in: {name}");
INFO(info_against, "against=" AGAINST);
INFO(info_depends, "depends=");
INFO(info_name, "name={name}");
INFO(info_vermagic, "vermagic=" VERMAGIC_STRING);
"""


def _tree(name: str, version: str, against: str = "") -> dict[str, Content]:
    """Return the DKMS source of module `name`, compiled against the file of module `against`."""
    root = f"/usr/src/{name.replace('_', '-')}-{version}"
    conf = (
        f'PACKAGE_NAME="{name.replace("_", "-")}"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL=yes\n'
    )
    conf += 'MAKE[0]="make modules KERNEL_UNAME=${kernelver}"\nCLEAN="true"\n'
    conf += f'BUILT_MODULE_NAME[0]="{name}"\nDEST_MODULE_LOCATION[0]="/updates/dkms"\n'
    find = (
        f"AGAINST := $(shell stat -c %i $$(modinfo -k $(KERNEL_UNAME) -n {against} 2>/dev/null) "
        "2>/dev/null)\n"
        if against
        else ""
    )
    check = (
        f'\t@test -n "$(AGAINST)" || {{ echo "no {against} for $(KERNEL_UNAME)"; exit 1; }}\n'
        if against
        else ""
    )
    return {
        f"{root}/dkms.conf": conf,
        f"{root}/Makefile": _MAKEFILE.format(name=name, against=find, check=check),
        f"{root}/standin.c": _SOURCE.format(name=name, version=version),
    }


def module_packages(repository: str, suite: str, group: str) -> Iterator[Deb]:
    """Yield the two packages."""
    for module, version, against in ((OFED, "24.10.1", ""), (PEER, "1.3", OFED)):
        name = module.replace("_", "-")
        yield Deb(
            f"{name}-dkms",
            f"{version}-2+standin1",
            "a module that others are compiled against"
            if not against
            else f"a module compiled against {against}",
            repository,
            suite,
            group=group,
            architecture="all",
            depends="dkms (>= 3.0.3)" + (", standin-ofed-dkms" if against else ""),
            files=_tree(module, version, against),
            scripts=dkms_scripts(name, version),
        )
