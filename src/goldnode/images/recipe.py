"""The recipe of an image: everything that determines its content, as data. Its hash is the build id.

A recipe is a pure function of the image's row, its lock, its parent's recipe and the versions of
the tools. Two recipes are equal exactly if their images are. A recipe depends on no machine, clock
or directory.

An image consists of its parent's layers, unchanged, and of its own layers of three kinds:

* `wheels`: files of wheels, written by goldnode itself (`layers`). A big wheel has its own layer; the small
  ones share one.
* `system`: the work of the image's own programs: dpkg for packages, ldconfig for libraries. An image without
  a parent starts from the root that mmdebstrap makes. For any other image the engine runs one script on top
  of the system layers so far. Those do not include wheels; the script gets outlines of their libraries
  instead.
* `files`: files of goldnode itself: links, linker settings, the image's description of itself, the smoke
  runner.

CUDA images have the environment and directory layout that users of NVIDIA images rely on (dist/ in
the sources of the NVIDIA container images).
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from goldnode.core.errors import ImageError
from goldnode.facts.workload import key
from goldnode.images import require
from goldnode.images.identified import IdentifiedRecipe
from goldnode.images.imagelock import ImageLock, wheel_rows
from goldnode.images.layercache import WheelTarget, wheel_groups
from goldnode.images.matrix import MatrixRow
from goldnode.oci import emulation
from goldnode.oci.engines import root_start
from goldnode.oci.layers import LEVEL, MEMBER, WheelLayout
from goldnode.oci.layout import canonical
from goldnode.oci.model import AMD64, LABELS, MACHINES, ImageSpec

# Increase it when the same inputs are built in a different way.
RECIPE = 1
VOID = {
    "NVIDIA_VISIBLE_DEVICES": "void"
}  # keeps NVIDIA's runtime, if it is the default, from injecting a driver into images of other backends
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SMOKE = "usr/lib/goldnode/goldnode-smoke"
SOURCES = "etc/apt/sources.list.d/goldnode.sources"
IDENTITY = "usr/lib/goldnode/image.json"
STEP = "/mnt"  # mount point of the script's input: a directory that every root has

# Of each layer that an engine makes; its build contexts are `parent` and `step`.
CONTAINERFILE = (
    f"FROM parent\nRUN --mount=type=bind,from=step,target={STEP} sh {STEP}/script {STEP}\n"
)

# Files that do not belong in a system layer, regardless of the program that left them.
_CACHES = (
    r"|etc/(?:resolv\.conf|hosts|hostname|mtab)"
    r"|etc/(?:passwd|group|shadow|gshadow|subuid|subgid)-"
    r"|var/cache/(?:ldconfig/aux-cache|debconf/.*-old|apt/.*\.bin|apt/archives/.*)"
    r"|var/lib/dpkg/(?:status|diversions|available|statoverride)-old"
    r"|var/lib/dpkg/(?:lock|lock-frontend|triggers/Lock)"
    r"|var/lib/apt/lists/.+"
    r"|var/log/(?:apt/.*|dpkg\.log|alternatives\.log|bootstrap\.log|fontconfig\.log)"
)
# A system layer leaves out these directories themselves, too, because the root already has them.
LEFTOVERS = r"(?:mnt|run|tmp|proc|sys|dev|var/tmp)(?:/.*)?" + _CACHES
ROOT_LEFTOVERS = r"(?:mnt|run|tmp|proc|sys|dev|var/tmp)/.+" + _CACHES

# Script that the engine runs as root inside the image. $1 is the context directory. policy-rc.d
# with exit code 101 keeps maintainer scripts from starting services. ldconfig runs on outlines of
# the wheels' libraries, sparse files with only the parts that it reads; the script removes them
# afterwards.
SCRIPT = """#!/bin/sh
set -eu
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LC_ALL=C.UTF-8 HOME=/root
step=$1
if [ -s "$step/packages" ]; then
    printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    # One transaction, so that dpkg itself finds the order.
    (cd "$step/debs" && xargs -d '\\n' dpkg --force-unsafe-io --force-confold --install < "$step/packages")
    rm -f /usr/sbin/policy-rc.d
fi
if [ -s "$step/libraries" ]; then
    made=
    while read -r folder; do
        [ -d "/$folder" ] || { mkdir "/$folder"; made="$folder $made"; }
    done < "$step/folders"
    while read -r file; do
        cp --sparse=always "$step/outlines/$file" "/$file"
    done < "$step/libraries"
    ldconfig -X
    while read -r file; do
        rm "/$file"
    done < "$step/libraries"
    for folder in $made; do
        rmdir "/$folder"
    done
else
    ldconfig
fi
rm -f /var/cache/ldconfig/aux-cache
"""


# Options of dpkg: what packages bring and no container reads. Documentation, manuals and translations are 28 %
# of a base. The files `copyright` stay, with the terms of their packages. A later pattern wins over an earlier one.
SLIM = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",  # of `locales`: locale-gen asks for it
)
SLIM_FILE = "etc/dpkg/dpkg.cfg.d/goldnode"

# Hook that removes caches, logs and host-specific files before mmdebstrap packs the root, and keeps the options of dpkg for
# the packages of the images above it. mmdebstrap 1.3.5 leaves its own options of dpkg in a root of the variant `custom`.
ROOT_HOOK = (
    f'printf \'%s\\n\' {" ".join(map(shlex.quote, SLIM))} > "$1/{SLIM_FILE}"; chmod 644 "$1/{SLIM_FILE}"; '
    'rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"; '
    'rm -f "$1/var/cache/ldconfig/aux-cache" "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old '
    '"$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- '
    '"$1"/etc/resolv.conf "$1"/etc/hostname; '
    'rm -rf "$1"/var/lib/apt/lists "$1"/var/log/apt "$1"/var/log/dpkg.log '
    '"$1"/var/log/alternatives.log "$1"/var/log/bootstrap.log; '
    'mkdir -p "$1/var/lib/apt/lists/partial"; : > "$1/etc/apt/sources.list"; : > "$1/etc/machine-id"'
)


@dataclass(frozen=True)
class ImageRecipe(IdentifiedRecipe):
    """Everything that determines an image's content, and its hash.

    `debs` are (name, file, sha256) of the packages that this image installs, `wheels` are (file,
    sha256, size). `files` are paths with text, mode or link target. `groups` are the wheels of each
    layer. `step`: the image needs a system layer of its own.
    """

    image: ImageSpec
    lock: str
    epoch: int
    parent: ImageRecipe | None
    place: WheelLayout
    codename: str
    debs: tuple[tuple[str, str, str], ...]
    wheels: tuple[tuple[str, str, int], ...]
    files: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    identity: Mapping[str, Any]
    tools: Mapping[str, str]
    development: bool
    smoke: bytes | None = field(default=None, compare=False)

    @property
    def groups(self) -> list[list[tuple[str, str, int]]]:
        """Return the wheels of each layer."""
        return wheel_groups(self.wheels)

    @property
    def wheel_target(self) -> WheelTarget:
        """Return where its wheels go."""
        return WheelTarget(self.place, self.development)

    @property
    def step(self) -> bool:
        """Return whether the engine has work: packages to install, or libraries of wheels for ldconfig."""
        return self.parent is not None and bool(self.debs or self.wheels)

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the recipe as JSON. Equal images have equal documents."""
        document: dict[str, Any] = {
            "recipe": RECIPE,
            "image": self.image.name,
            "parent": self.parent.digest if self.parent is not None else None,
            "lock": self.lock,
            "epoch": self.epoch,
            "tools": dict(self.tools),
            "place": self.wheel_target.row,
            "debs": [list(row) for row in self.debs],
            "wheels": [list(row) for row in self.wheels],
            "groups": [[row[1] for row in group] for group in self.groups],
            "compression": [LEVEL, MEMBER],
            "development": self.development,
            "files": {path: dict(row) for path, row in self.files.items()},
            "smoke": hashlib.sha256(self.smoke).hexdigest() if self.smoke is not None else None,
            "environment": dict(self.environment),
            "labels": dict(self.labels),
            "identity": dict(self.identity),
            "text": self.containerfile,
            "script": SCRIPT,
            "hooks": [root_start(self.image.architecture), ROOT_HOOK],
            "leftovers": [LEFTOVERS, ROOT_LEFTOVERS],
        }
        # Recipes of amd64 are older than this key.
        if self.image.architecture != AMD64:
            document["architecture"] = self.image.architecture
        return document

    @property
    def containerfile(self) -> str:
        """Containerfile of the system layer; its build contexts are `parent` and `step`."""
        if not self.step:
            return ""
        return CONTAINERFILE

    @property
    def image_json(self) -> bytes:
        """Return the image's description of itself, at /usr/lib/goldnode/image.json."""
        return self.description(self.identity)


def recipe(
    row: MatrixRow,
    lock: ImageLock,
    parent: ImageRecipe | None,
    tools: Mapping[str, str],
    *,
    smoke: bytes | None = None,
    sources: str = "",
) -> ImageRecipe:
    """Return the recipe of `row` with this lock.

    `tools` are the versions of the tools in use (`engines.tools`), `smoke` is the content of the
    runner's file, `sources` the text of apt's sources, for an image that has them. Raises
    ImageError if lock and parent do not match, or if the facts do not know the CUDA version.
    """
    image = row.image
    _check(row, lock, parent)
    place = WheelLayout(
        row.system.python,
        row.cuda_home.lstrip("/") if row.layout == "cuda" and row.cuda_home else None,
        f"{_NVARCH[row.architecture]}-linux",
    )
    wheels = tuple(sorted((item.file, item.sha256, item.size) for item in lock.wheels))
    debs = tuple((item.name, item.file, item.sha256) for item in lock.debs)
    files = _files(row, lock, parent)
    if row.installs:
        files[SOURCES] = {"text": sources, "mode": 0o644}
    environment = {
        **(parent.environment if parent is not None else {"PATH": PATH}),
        **_environment(row, parent),
    }
    # Only tools that take part in this image's own layers: an update of any other tool keeps its
    # build id.
    used = ["zlib", "layer"]
    if parent is None:
        used += ["mmdebstrap", "apt", "dpkg"]
    elif debs or wheels:
        used += ["engine"]
    if parent is None or debs or wheels:
        used += [emulation.tool(row.architecture)]
    labels = _labels(row, lock, parent)
    # Absent where this machine runs the architecture itself.
    if (emulator := tools.get(emulation.tool(row.architecture))) is not None:
        labels[f"{LABELS}emulated"] = emulator
    return ImageRecipe(
        image=image,
        lock=lock.digest,
        epoch=lock.epoch,
        parent=parent,
        place=place,
        codename=row.system.codename,
        debs=debs,
        wheels=wheels,
        files=files,
        environment=environment,
        labels=labels,
        identity=_identity(row, lock, parent, environment),
        tools={name: tools[name] for name in used if name in tools},
        development=image.flavour == "devel",
        # Only images without a parent contain the runner; their children inherit it.
        smoke=smoke if parent is None else None,
    )


def _check(row: MatrixRow, lock: ImageLock, parent: ImageRecipe | None) -> None:
    if row.vendor is not None:
        raise row.error(
            f'image "{row.name}" has a vendor\'s image as its parent, which is pulled, not built; this goldnode '
            "has not done that yet",
            remedy="pull it into the store and build its children elsewhere, or set `source: built`",
        )
    if (parent.image.name if parent is not None else None) != row.image.parent:
        raise row.error(
            f'image "{row.name}" has the parent "{row.image.parent}"', remedy="build that first"
        )
    stated = lock.parent.lock if lock.parent is not None else None
    if stated != (parent.lock if parent is not None else None):
        raise ImageError(
            f'the lock of "{row.name}" was made on another lock of "{row.image.parent}"',
            remedy=f"run `goldnode images lock {row.name}`",
        )


def _environment(row: MatrixRow, parent: ImageRecipe | None) -> dict[str, str]:
    """Return the environment variables that this image sets in addition to its parent's."""
    # Debian's pip refuses to install outside of a virtual environment unless this is set.
    variables: dict[str, str] = {"PIP_BREAK_SYSTEM_PACKAGES": "1"} if row.installs else {}
    if row.image.backend != "cuda":
        return {**variables, **VOID} if parent is None else variables
    version = row.image.version
    if parent is None or parent.image.backend != "cuda":
        search, _ = search_path(version)
        variables |= {
            "NVARCH": _NVARCH[row.architecture],
            "CUDA_VERSION": version,
            "NVIDIA_REQUIRE_CUDA": require.requirement(version),
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "NVIDIA_PRODUCT_NAME": "CUDA",
            "PATH": f"/usr/local/nvidia/bin:/usr/local/cuda/bin:{PATH}",
            "LD_LIBRARY_PATH": search,
        }
    before = parent.identity.get("parts", {}) if parent is not None else {}
    for name, version in sorted(row.parts.items()):
        # The parent has set the others.
        if before.get(name) != version:
            variables |= dict.fromkeys(_VERSIONS.get(name, ()), version)
    if row.image.flavour == "devel":
        variables["LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs"
    return variables


# NVIDIA's name of a server of this architecture; its directory below `targets/` is NAME-linux.
_NVARCH = {"amd64": "x86_64", "arm64": "sbsa"}

# Variables in which NVIDIA's images state the version of a component.
_VERSIONS = {
    "cudart": ("NV_CUDA_CUDART_VERSION",),
    "cublas": ("NV_LIBCUBLAS_VERSION",),
    "cusparse": ("NV_LIBCUSPARSE_VERSION",),
    "npp": ("NV_LIBNPP_VERSION",),
    "nvtx": ("NV_NVTX_VERSION",),
    "cudnn": ("NV_CUDNN_VERSION",),
    "nccl": ("NCCL_VERSION", "NV_LIBNCCL_PACKAGE_VERSION"),
}


def search_path(version: str) -> tuple[str, tuple[str, ...]]:
    """Return LD_LIBRARY_PATH and the lines of ld.so.conf.d/nvidia.conf that NVIDIA uses for this CUDA."""
    nvidia, cuda = ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64"), "/usr/local/cuda/lib64"
    if key(version) < (12, 7):
        return ":".join(nvidia), nvidia
    if key(version) < (13,):
        return cuda, (cuda,)
    return ":".join((*nvidia, cuda)), (cuda,)


# Programs of nvidia-cuda-toolkit 11.8 and 12.4 (Debian) other than nvcc.
_TOOLKIT = (
    "bin2c",
    "compute-sanitizer",
    "cu++filt",
    "cudafe++",
    "cuobjdump",
    "fatbinary",
    "nvdisasm",
    "nvlink",
    "nvprune",
    "ptxas",
)
# nvcc searches for gcc before it reads its profile. The gcc wrapper that selects a release nvcc
# supports is in a directory that only the profile names. Debian 13's own nvcc wrapper sets PATH
# too, Debian 12's does not.
_NVCC = """#!/bin/sh
export PATH="/usr/lib/nvidia-cuda-toolkit/bin:$PATH"
exec /usr/lib/nvidia-cuda-toolkit/bin/nvcc "$@"
"""


# OpenCL runtimes that come as wheels: the ICD file in /etc through which the loader finds one, and
# the library it names. The wheel installs its own ICD file to /usr/local/etc, where no loader
# searches, and that file names the directory in which the wheel was packed.
_OPENCL = {"intel-opencl-rt": ("etc/OpenCL/vendors/intel-cpu.icd", "/usr/local/lib/libintelocl.so")}


def _files(
    row: MatrixRow, lock: ImageLock, parent: ImageRecipe | None
) -> dict[str, dict[str, Any]]:
    """Return the files that goldnode itself adds, by path: {text, mode}, {link} or {directory}."""
    files: dict[str, dict[str, Any]] = {}
    for path, library in (_OPENCL[wheel.name] for wheel in lock.wheels if wheel.name in _OPENCL):
        files[path] = {"text": f"{library}\n", "mode": 0o644}
    if parent is None:
        files["usr/bin/goldnode-smoke"] = {"link": f"../../{SMOKE}"}
    home = row.cuda_home
    if home is None:
        return files
    name = home.rpartition("/")[2]  # cuda-12.4
    target = f"targets/{_NVARCH[row.architecture]}-linux"
    if parent is None or parent.image.backend != "cuda":
        _, lines = search_path(row.image.version)
        files |= {
            "usr/local/cuda": {"link": "/etc/alternatives/cuda"},
            f"usr/local/{name.partition('.')[0]}": {
                "link": f"/etc/alternatives/{name.partition('.')[0]}"
            },
            "etc/alternatives/cuda": {"link": home},
            f"etc/alternatives/{name.partition('.')[0]}": {"link": home},
            "etc/ld.so.conf.d/nvidia.conf": {
                "text": "".join(f"{line}\n" for line in lines),
                "mode": 0o644,
            },
        }
        files |= {
            f"{home[1:]}/{target}/lib": {"directory": True},
            f"{home[1:]}/{target}/include": {"directory": True},
            f"{home[1:]}/lib64": {"link": f"{target}/lib"},
            f"{home[1:]}/include": {"link": f"{target}/include"},
            "etc/ld.so.conf.d/000_cuda.conf": {
                "text": f"/usr/local/cuda/{target}/lib\n",
                "mode": 0o644,
            },
        }
    if row.image.flavour == "devel" and not _as_debs(row):
        # nvcc from a wheel searches libraries in `lib` next to its `bin` (nvcc.profile).
        files[f"{home[1:]}/lib"] = {"link": f"{target}/lib"}
    if row.image.flavour == "devel" and _as_debs(row):
        # Debian's toolkit installs to /usr/bin; build systems search CUDA's own directory.
        files |= {f"{home[1:]}/bin/{name}": {"link": f"/usr/bin/{name}"} for name in _TOOLKIT}
        files[f"{home[1:]}/bin/nvcc"] = {"text": _NVCC, "mode": 0o755}
        files[f"{home[1:]}/nvvm"] = {"link": "/usr/lib/cuda/nvvm"}
        # Stub libraries for linking without the host's driver; LIBRARY_PATH points there.
        files[f"{home[1:]}/{target}/lib/stubs"] = {
            "link": f"/usr/lib/{MACHINES[row.architecture]}-linux-gnu/stubs"
        }
    return files


def _as_debs(row: MatrixRow) -> bool:
    """Return whether this image's CUDA comes from Debian packages, which install into system directories."""
    return bool(row.debs) and not row.wheels


def _labels(row: MatrixRow, lock: ImageLock, parent: ImageRecipe | None) -> dict[str, str]:
    import datetime as dt

    image = row.image
    # The lock's date, not the clock: two builds of a recipe must be equal.
    created = dt.datetime.fromtimestamp(lock.epoch, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.description": row.title,
        "org.opencontainers.image.version": image.version,
        "org.opencontainers.image.vendor": "goldnode",
        f"{LABELS}backend": image.backend,
        f"{LABELS}runtime": image.version,
        f"{LABELS}flavour": image.flavour,
        f"{LABELS}os": image.os,
        f"{LABELS}lock": lock.digest,
        f"{LABELS}architectures": row.architecture,
        f"{LABELS}licences": "; ".join(row.licences) or "as the package of each file says",
        f"{LABELS}redistribution": row.redistribution,
        f"{LABELS}exercised": "yes" if row.exercised else "no",
        f"{LABELS}parts": canonical(dict(row.parts)).decode(),
    }
    if row.licences:
        labels["org.opencontainers.image.licenses"] = " AND ".join(row.licences)
    if image.backend == "cuda":
        labels[f"{LABELS}min-driver"] = require.minimum_driver(image.version)
        labels[f"{LABELS}cuda-compat"] = (
            "none"  # no archive of ours has NVIDIA's forward-compatibility package
        )
    if parent is not None:
        labels["org.opencontainers.image.base.name"] = parent.ref
    return labels


def _identity(
    row: MatrixRow, lock: ImageLock, parent: ImageRecipe | None, environment: Mapping[str, str]
) -> dict[str, Any]:
    image = row.image
    before: Sequence[Mapping[str, str]] = parent.identity["wheels"] if parent is not None else ()
    return {
        "schema": "goldnode.image/1",
        "name": image.name,
        "backend": image.backend,
        "version": image.version,
        "flavour": image.flavour,
        "os": {
            "name": image.os,
            "id": row.system.id,
            "release": row.system.release,
            "codename": row.system.codename,
        },
        # Descriptions of amd64 are older than this key.
        **({"architecture": row.architecture} if row.architecture != AMD64 else {}),
        "python": row.system.python,
        "parent": parent.image.name if parent is not None else None,
        "lock": lock.digest,
        "resolved": lock.resolved,
        "parts": dict(row.parts),
        "cuda_home": row.cuda_home,
        "layout": row.layout,
        "min_driver": require.minimum_driver(image.version) if image.backend == "cuda" else None,
        "purity": row.purity,
        "exercised": row.exercised,
        "redistribution": row.redistribution,
        "environment": {name: value for name, value in environment.items() if name != "PATH"},
        "wheels": [
            *before,
            *wheel_rows(lock.wheels),
        ],
    }
