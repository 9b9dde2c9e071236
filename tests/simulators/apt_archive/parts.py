"""Stand-ins of the optional parts of a stack: IMEX and the subnet manager, DCGM, DOCA-OFED. Files that do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulators.apt_archive.debs import Deb, Program

_FAILS = Program('#!/bin/sh\necho "goldnode stand-in: there is no such hardware" >&2\nexit 1\n')


def imex(place: Deb) -> Deb:
    """Return nvidia-imex at the driver's version, which `place` has."""
    return replace(
        place,
        name="nvidia-imex",
        description="IMEX daemon that fails without NVLink",
        source="nvidia-imex",
        section="utils",
        files={"/usr/bin/nvidia-imex": _FAILS},
    )


def subnet_manager(repository: str) -> Deb:
    """Return nvlsm, whose versions follow no driver."""
    place = Deb(
        "nvlsm", "2025.06.6-1+standin1", "NVLink subnet manager", repository, "/", section="utils"
    )
    return replace(place, files={"/opt/nvidia/nvlsm/sbin/nvlsm": _FAILS})


def dcgm(repository: str, version: str) -> Iterator[Deb]:
    """Yield DCGM 4 for CUDA 13: four packages of one version."""
    whole = f"1:{version}-1+standin1"
    place = Deb(
        "",
        whole,
        "part of DCGM",
        repository,
        "/",
        source="datacenter-gpu-manager-4",
        section="utils",
    )
    core = "datacenter-gpu-manager-4-core"
    yield replace(place, name=core, depends="libc6", files={"/usr/bin/dcgmi": _FAILS})
    for name in ("cuda13", "proprietary", "proprietary-cuda13"):
        yield replace(place, name=f"datacenter-gpu-manager-4-{name}", depends=f"{core} (= {whole})")


def doca(repository: str) -> Iterator[Deb]:
    """Yield DOCA-OFED: its metapackage, one library of its own, and a newer version of a package of the stack."""
    place = Deb("", "3.4.0-1+standin1", "part of DOCA-OFED", repository, "/", section="net")
    yield replace(place, name="doca-ofed", depends="libibverbs1, mlnx-ofed-kernel-dkms")
    yield replace(place, name="mlnx-ofed-kernel-dkms", source="mlnx-ofed-kernel", depends="dkms")
    # Newer than the stack's own: the archive of a part must not change the stack.
    yield replace(place, name="runc", version="99.0-1+standin1", depends="libc6")
    yield replace(
        place,
        name="libibverbs1",
        version="2604mlnx58-1+standin1",
        source="rdma-core",
        depends="libc6",
    )
