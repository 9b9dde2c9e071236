"""Verification of an image's claims: labels and environment are compared with its content, its tag with the labels.

Nothing from the image is run. Versions come from libraries, where they can be read without running them, and
from package metadata. A claim that cannot be checked is `not_verified`. An image whose backend, runtime or OS
is not verified does not pass.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.utils import canonicalize_name

from goldnode.facts import host as facts
from goldnode.inspect.packages import InstalledPackage, InstalledPackages
from goldnode.inspect.policy import plain
from goldnode.inspect.scan import View, shown
from goldnode.node.ground.host import release_version
from goldnode.oci.identity import IMMUTABLE, ImageIdentity
from goldnode.oci.model import AMD64, LABELS, MACHINES, ImageSpec

Result = Literal["ok", "differs", "not_verified"]


# Every image of a backend has at least one of these libraries.
_OF_BACKEND = {
    "cuda": re.compile(r"libcudart\.so\."),
    "rocm": re.compile(r"lib(?:amdhip64|hsa-runtime64|rocm_smi64)\.so\."),
    "oneapi": re.compile(r"lib(?:ze_loader|sycl)\.so\."),
}
# The wheel or package whose version is that of the runtime.
_RUNTIME = {
    "cuda": re.compile(
        r"nvidia-cuda-runtime(?:-cu[0-9]+)?|libcudart[0-9.]+|cuda-cudart-[0-9]+-[0-9]+"
    ),
    "oneapi": re.compile(r"intel-sycl-rt|dpcpp-cpp-rt"),
}
# Package names of components that differ from the component's own name.
_CALLED = {
    "cudart": "cuda-runtime",
    "nvrtc": "cuda-nvrtc",
    "cupti": "cuda-cupti",
    "nvcc": "cuda-nvcc",
    "sycl": "intel-sycl-rt",
    "level-zero": "libze1",
    "opencl": "ocl-icd-libopencl1",
    "intel-opencl": "intel-opencl-icd",
    "dpcpp": "dpcpp-cpp-rt",
    "hip": "amdhip64",
    "hsa": "hsa-runtime64",
    "openblas": "libopenblas0-pthread",
}
# Debian packages of components that do not follow the naming scheme in `_is_called`.
_OF_DEBIAN = {
    "npp": re.compile(r"libnpp[a-z]+[0-9.]*"),
    "nvtx": re.compile(r"libnvtoolsext[0-9.]*"),
    "nvcc": re.compile(r"nvidia-cuda-toolkit"),
}


@dataclass(frozen=True)
class Claim:
    """One claim of an image.

    `how` describes the source of `got`. An image with an unverified `essential` claim does not pass.
    """

    claim: str
    expected: str
    got: str
    how: str
    result: Result
    essential: bool = False


@dataclass
class Truth:
    """All claims about one image."""

    claims: list[Claim] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Return whether no claim is wrong, and all essential claims were verified."""
        matter = [row for row in self.claims if row.essential]
        return (
            bool(matter)
            and all(row.result == "ok" for row in matter)
            and all(row.result != "differs" for row in self.claims)
        )


@dataclass(frozen=True)
class LockedContents:
    """Expected contents according to the locks of an image and its parents.

    `digest` is that of the image's own lock. `debs` and `wheels` map names to versions.
    """

    digest: str
    debs: Mapping[str, str]
    wheels: Mapping[str, str]


def claimed(own: ImageIdentity) -> ImageSpec | None:
    """Return the image that an identity claims to be; None if it claims nothing.

    A child of an image claims the content of its ancestor (backend, runtime and OS), and no name.
    """
    labelled = own.ancestor or own
    if not labelled.ref:
        return None
    # `debian12_arm64`; amd64 has no suffix.
    os, _, architecture = labelled.os.rpartition("_")
    if architecture not in MACHINES:
        os, architecture = labelled.os, AMD64
    return ImageSpec(
        labelled.name,
        labelled.backend,
        labelled.runtime,
        labelled.flavour,
        os,
        architecture=architecture,
    )


def check(view: View, lock: LockedContents | None = None) -> Truth:
    """Compare the claims of an image with its content."""
    truth = Truth()
    own = view.identity
    image = claimed(own)
    rows = truth.claims
    if image is None:
        rows.append(
            Claim(
                "identity",
                "labels of goldnode",
                own.text(),
                "the configuration",
                "not_verified",
                essential=True,
            )
        )
        return truth
    packages = InstalledPackages(view)
    rows += _reference(view)
    rows.append(_os(view, image))
    rows += _backend(view, image)
    rows += _runtime(view, packages, image)
    rows += _environment(view, image)
    rows += _parts(view, packages)
    rows += _architecture(view)
    # A child adds files of its own, so flavour, image.json and lock describe its ancestor only.
    if own.kind == "child":
        rows.append(Claim("identity", image.name, own.text(), "the build steps", "not_verified"))
        return truth
    if own.kind != "derived":
        rows += _flavour(view, image)
    rows += _within(view, image)
    rows += _lock(view, packages, lock)
    return truth


def _reference(view: View) -> list[Claim]:
    """Compare the reference of an image with the name in its labels.

    Only tags that goldnode gives promise a certain image. A digest or any other tag promises nothing.
    """
    own = view.identity
    head, slash, last = view.name.partition("@")[0].rpartition("/")
    name, _, tag = last.partition(":")
    # Channel tags move, and other tags are given by others.
    if IMMUTABLE.fullmatch(tag) is None:
        return []
    # A mirror puts a host and a prefix before the name.
    if not f"/{head}{slash}{name}".endswith(f"/{(own.ancestor or own).repository}"):
        return []
    return [
        Claim(
            "tag",
            own.tag or own.text(),
            shown(tag),
            "the labels",
            _same(tag, own.tag),
            essential=True,
        )
    ]


def _os(view: View, image: ImageSpec) -> Claim:
    text = view.text("etc/os-release", "usr/lib/os-release")
    fields = {} if text is None else dict(line.partition("=")[::2] for line in text.splitlines())
    # `debian` and `12`, as in the name of an image.
    rows = {key: value.strip("\"'") for key, value in fields.items()}
    got = rows.get("ID", "") + release_version(rows)
    return Claim(
        "os",
        image.os,
        shown(got),
        "os-release",
        _same(got, image.os) if got else "not_verified",
        essential=True,
    )


def _libraries(view: View, pattern: re.Pattern[str]) -> list[str]:
    return sorted(path for path in view.elf if pattern.match(plain(path.rpartition("/")[2])))


def _backend(view: View, image: ImageSpec) -> list[Claim]:
    pattern = _OF_BACKEND.get(image.backend)
    if pattern is None:
        return []
    there = _libraries(view, pattern)
    return [
        Claim(
            "backend",
            expected=image.backend,
            got=shown(", ".join(there[:3])) or "none of its libraries",
            how="its libraries",
            result="ok" if there else "differs",
            essential=True,
        )
    ]


def _runtime(view: View, packages: InstalledPackages, image: ImageSpec) -> list[Claim]:
    wanted = image.version
    # Packages that carry the runtime. Their version is weaker evidence than the library itself.
    of_backend = _RUNTIME.get(image.backend)
    carriers = [
        package
        for package in packages.all.values()
        if of_backend is not None and of_backend.fullmatch(package.name)
    ]
    if image.backend == "cuda":
        short = ".".join(wanted.split(".")[:2])
        read = {
            path: version
            for path, (component, version) in sorted(view.versions.items())
            if component == "cudart"
        }
        there = _libraries(view, _OF_BACKEND["cuda"])
        unread = [path for path in there if path not in read]
        rows = []
        got = sorted(set(read.values()))
        if not read or (unread and got == [short]):
            result: Result = "not_verified"
        elif got == [short]:
            result = "ok"
        else:
            result = "differs"
        how = (
            "the number that cudaRuntimeGetVersion returns, "
            f"read out of {shown(', '.join(sorted(read)[:2])) or 'no library'}"
        )
        if unread:
            how += f"; it is unknown for {shown(unread[0])}"
        by_package = sorted({_upstream(package.version) for package in carriers})
        fitting: Result = (
            "ok" if all(_begins(version, short) for version in by_package) else "differs"
        )
        rows.append(
            Claim(
                "runtime",
                short,
                ", ".join(got),
                how,
                result,
                # If the library does not show its version, the package decides instead.
                essential=not (carriers and result == "not_verified"),
            )
        )
        rows.append(
            Claim(
                "runtime package",
                short,
                ", ".join(package.title for package in carriers),
                "package metadata",
                fitting if carriers else "not_verified",
                essential=bool(carriers and result == "not_verified"),
            )
        )
        rows.append(_patch(packages, carriers, wanted))
        return rows
    if image.backend == "rocm":
        files = {
            path: text.strip()
            for path, text in sorted(view.texts.items())
            if re.match(r"opt/rocm[^/]*/\.info/version$", path)
        }
        if wanted == "distro":
            own = sorted(
                row.title
                for row in packages.all.values()
                if re.match(r"rocm|libamdhip|libhsa-runtime|librocm", row.name)
            )
            said = [f"{path}: {shown(text)}" for path, text in files.items()]
            how = "Debian packages, whose versions differ; no version is claimed"
            agreed: Result = "differs" if said else "not_verified"
            if own and not said:
                agreed = "ok"
            return [
                Claim(
                    "runtime",
                    expected="distro",
                    got=", ".join(said or own[:6]),
                    how=how,
                    result=agreed,
                    essential=True,
                )
            ]
        return [
            _equal(
                "runtime",
                wanted,
                [text.partition("-")[0] for text in files.values()],
                "/opt/rocm/.info/version",
            )
        ]
    if image.backend == "oneapi":
        if wanted == "distro":
            own = sorted(
                row.title
                for row in packages.all.values()
                if re.match(r"libze|intel-opencl|libigc", row.name)
            )
            how = "Debian packages; no version is claimed"
            return [
                Claim(
                    "runtime",
                    "distro",
                    ", ".join(own[:6]),
                    how,
                    "ok" if own else "not_verified",
                    essential=True,
                )
            ]
        return [
            _equal(
                "runtime",
                wanted,
                [package.version for package in carriers],
                "metadata of the SYCL runtime's wheels",
            )
        ]
    return []


def _patch(packages: InstalledPackages, carriers: list[InstalledPackage], wanted: str) -> Claim:
    """Check the third number of a CUDA release, which no library contains.

    It comes from the toolkit's wheel or the version of the Debian package, otherwise from the combination
    of components.
    """
    toolkit = packages.of("wheel").get("cuda-toolkit")
    if toolkit is not None:
        return _equal(
            "release", wanted, [toolkit.version], "the wheel cuda-toolkit", essential=False
        )
    said = {
        match[1]
        for package in carriers
        if (match := re.search(r"~(\d+\.\d+\.\d+)", package.version))
    }
    if said:
        return _equal(
            "release", wanted, sorted(said), "the version of the Debian package", essential=False
        )
    return _release(packages, wanted)


def _release(packages: InstalledPackages, wanted: str) -> Claim:
    """Check which releases in `facts` have the installed components.

    Two releases can share a component, so that a single one may fit both.
    """
    short = wanted.split(".")[:2]
    known = [
        row
        for row in facts.load("cuda.yml")["releases"]
        if str(row["version"]).split(".")[:2] == short
    ]
    if not known or not all("parts" in row for row in known):
        how = (
            "no library says it, the package that would is not installed, "
            "and facts does not know the parts of its releases"
        )
        return Claim("release", wanted, "", how, "not_verified")
    fitting = {str(row["version"]) for row in known}
    seen = []
    for name in sorted({name for row in known for name in row["parts"]}):
        for package in (package for package in packages.all.values() if _is_called(package, name)):
            version = _upstream(package.version)
            # If a release pins no version of a component, any version fits.
            fitting &= {
                str(row["version"])
                for row in known
                if name not in row["parts"] or _begins(version, str(row["parts"][name]))
            }
            seen.append(package.title)
    how = f"which release has these parts (facts/cuda.yml): {', '.join(seen)}"
    if not seen:
        return Claim(
            "release",
            wanted,
            "",
            "no library says it, and no package of its parts is installed",
            "not_verified",
        )
    if not fitting:
        return Claim(
            "release",
            wanted,
            "",
            f"no release has all of these parts (facts/cuda.yml): {', '.join(seen)}",
            "not_verified",
        )
    if wanted not in fitting:
        result: Result = "differs"
    elif len(fitting) == 1:
        result = "ok"
    else:
        result = "not_verified"
    return Claim("release", wanted, " or ".join(sorted(fitting)), how, result)


def _flavour(view: View, image: ImageSpec) -> list[Claim]:
    """Check the flavours whose name goldnode itself defines.

    Any other name is a word that a team chose: `torch2.9` and `team1` claim nothing. The versions of an image's
    components are in its label `parts`, which `_parts` checks.
    """
    if image.backend != "cuda" or image.flavour not in ("base", "runtime", "devel"):
        return []
    has = {
        "cuBLAS": bool(_libraries(view, re.compile(r"libcublas\.so\."))),
        "nvcc": any(
            path.rpartition("/")[2] == "nvcc" and entry.kind in "fl"
            for path, entry in view.paths.items()
        ),
    }
    wanted = {
        "base": {"cuBLAS": False, "nvcc": False},
        "runtime": {"cuBLAS": True, "nvcc": False},
        "devel": {"nvcc": True},
    }[image.flavour]
    return [
        Claim(
            "flavour",
            f"{image.flavour}: {'with' if there else 'without'} {name}",
            "there" if has[name] else "absent",
            "its files",
            _same(has[name], there),
        )
        for name, there in wanted.items()
    ]


def _environment(view: View, image: ImageSpec) -> list[Claim]:
    if image.backend != "cuda":
        return []
    rows = []
    got = view.environment.get("CUDA_VERSION")
    rows.append(
        Claim(
            "CUDA_VERSION",
            image.version,
            shown(got or ""),
            "the environment",
            "not_verified" if got is None else _same(got, image.version),
        )
    )
    require = view.environment.get("NVIDIA_REQUIRE_CUDA")
    short = ".".join(image.version.split(".")[:2])
    asked = re.search(r"\bcuda>=(\d+\.\d+)", require or "")
    rows.append(
        Claim(
            "NVIDIA_REQUIRE_CUDA",
            f"cuda>={short}",
            shown((require or "")[:80]),
            "the environment",
            "not_verified" if asked is None else _same(asked[1], short),
        )
    )
    return rows


def _within(view: View, image: ImageSpec) -> list[Claim]:
    """Check /usr/lib/goldnode/image.json, which programs inside the image read."""
    document = _image_json(view)
    if document is None:
        return [
            Claim(
                "image.json",
                image.name,
                "absent or not JSON",
                "/usr/lib/goldnode/image.json",
                "not_verified",
            )
        ]
    wanted = {
        "name": image.name,
        "backend": image.backend,
        "version": image.version,
        "flavour": image.flavour,
        "os": image.os,
    }
    said = {
        key: str(value.get("name", "") if isinstance(value, dict) else value)
        for key, value in document.items()
    }
    return [
        Claim(
            f"image.json {key}",
            value,
            shown(said[key]),
            "/usr/lib/goldnode/image.json",
            _same(said[key], value),
        )
        for key, value in wanted.items()
        if key in said
    ]


def _image_json(view: View) -> dict[str, Any] | None:
    try:
        document = json.loads(view.texts.get("usr/lib/goldnode/image.json", ""))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _parts(view: View, packages: InstalledPackages) -> list[Claim]:
    """Compare the components that the label and image.json list with packages and library versions."""
    said = _mapping(view.labels.get(LABELS + "parts", ""))
    inside = (_image_json(view) or {}).get("parts")
    if isinstance(inside, dict):
        said |= {
            str(key): str(value.get("version", "") if isinstance(value, dict) else value)
            for key, value in inside.items()
        }
    rows = []
    for name, version in sorted(said.items()):
        of_packages = [package for package in packages.all.values() if _is_called(package, name)]
        of_files = {value for component, value in view.versions.values() if component == name}
        got = sorted({_upstream(package.version) for package in of_packages} | of_files)
        agree = all(_begins(version, value) or _begins(value, version) for value in got)
        how = ", ".join(package.title for package in of_packages[:3]) or "no package of that name"
        if of_files:
            how += f"; its library says {', '.join(sorted(of_files))}"
        result: Result = "not_verified"
        if got:
            result = "ok" if agree else "differs"
        rows.append(
            Claim(f"part {shown(name)}", shown(version), shown(", ".join(got)), how, result)
        )
    return rows


def _mapping(text: str) -> dict[str, str]:
    """Parse a label of components: JSON, or `name=version` separated by commas or spaces."""
    if text.startswith("{"):
        try:
            mapping = json.loads(text)
        except ValueError:
            return {}
        if isinstance(mapping, dict):
            return {str(key): str(value) for key, value in mapping.items()}
        return {}
    return {
        key: value
        for key, equal, value in (row.partition("=") for row in re.split(r"[,\s]+", text))
        if equal
    }


def _is_called(package: InstalledPackage, component: str) -> bool:
    name = canonicalize_name(component)
    called = _CALLED.get(name, name)
    if package.kind == "wheel":
        return (
            package.name in (name, called)
            or re.fullmatch(rf"nvidia-(?:cuda-)?{re.escape(called)}(?:-cu\d+)?", package.name)
            is not None
        )
    if name in _OF_DEBIAN and _OF_DEBIAN[name].fullmatch(package.name):
        return True
    return (
        package.name in (name, called)
        or re.fullmatch(
            rf"(?:lib|nvidia-)(?:{re.escape(name)}|{re.escape(called)})[0-9.]*(?:-[0-9.]+)?",
            package.name,
        )
        is not None
    )


def _lock(view: View, packages: InstalledPackages, lock: LockedContents | None) -> list[Claim]:
    """Compare the installed packages with the lock that the image claims."""
    label = view.labels.get(LABELS + "lock")
    inside = (_image_json(view) or {}).get("lock")
    rows = []
    if isinstance(inside, str) and label is not None:
        rows.append(
            Claim(
                "lock in image.json",
                label,
                shown(inside),
                "/usr/lib/goldnode/image.json",
                _same(inside, label),
            )
        )
    if lock is None or label is None:
        how = "the image names no lock"
        if lock is None:
            how = "no lock is known to validate them against"
        return [*rows, Claim("packages", shown(label or ""), "", how, "not_verified")]
    if lock.digest != label:
        # The lock may have changed since the image was built; its earlier content is not available here.
        return [
            *rows,
            Claim(
                "packages",
                shown(label),
                "",
                f"the lock here is another one now ({lock.digest})",
                "not_verified",
            ),
        ]
    for kind, wanted in (
        ("deb", lock.debs),
        ("wheel", {str(canonicalize_name(name)): version for name, version in lock.wheels.items()}),
    ):
        # A package vendored in a wheel (setuptools/_vendor) is part of that wheel, and one of the distribution
        # (python3-yaml) of its deb.
        got = {
            row.name: row.version
            for row in packages.all.values()
            if row.kind == kind
            and "/_vendor/" not in row.path
            and not (kind == "wheel" and packages.in_deb(row.path))
        }
        differences = list(_differences(wanted, got))
        listed = str(len(got))
        if differences:
            listed += f"; {shown('; '.join(differences[:5]))}"
        rows.append(
            Claim(
                f"{kind}s",
                f"{len(wanted)} of the lock",
                listed,
                "dpkg's status" if kind == "deb" else "metadata of wheels",
                "differs" if differences else "ok",
            )
        )
    return rows


def _differences(wanted: Mapping[str, str], got: Mapping[str, str]) -> Iterable[str]:
    for name in sorted({*wanted, *got}):
        if name not in got:
            yield f"{name} is absent"
        elif name not in wanted:
            yield f"{name} {got[name]} is not in the lock"
        elif wanted[name] != got[name]:
            yield f"{name} is {got[name]}, locked {wanted[name]}"


def _architecture(view: View) -> list[Claim]:
    if not view.architecture:
        return []
    # The most common machine decides: a few files of another architecture are normal.
    machines = Counter(
        row.machine
        for path, row in view.elf.items()
        if path.startswith(("usr/bin/", "bin/", "usr/lib/", "lib/"))
    )
    got = machines.most_common(1)[0][0] if machines else ""
    how = f"ELF headers of {machines.total()} files"
    return [
        Claim(
            "architecture",
            view.architecture,
            got,
            how,
            _same(got, view.architecture) if got else "not_verified",
        )
    ]


def _equal(claim: str, wanted: str, got: list[str], how: str, *, essential: bool = True) -> Claim:
    values = sorted(set(got))
    return Claim(
        claim,
        expected=wanted,
        got=shown(", ".join(values)),
        how=how,
        result="not_verified" if not values else _same(values, [wanted]),
        essential=essential,
    )


def _same(left: Any, right: Any) -> Result:
    return "ok" if left == right else "differs"


def _upstream(version: str) -> str:
    """Return a Debian version without epoch and revision, or a wheel's version without its local part."""
    version = version.partition(":")[2] or version
    # Debian appends the real version after one that was once too high: libcurand10
    # 11.1.1+~10.3.5.147~12.4.1-2.
    hidden = re.match(r"[\d.]+\+~([\d.]+)~\d", version)
    return hidden[1] if hidden else re.split(r"[-+~]", version)[0]


def _begins(version: str, start: str) -> bool:
    """Return whether `version` starts with the components of `start`: 12.4.127 is a 12.4, 12.40 is not."""
    return version.split(".")[: len(start.split("."))] == start.split(".")
