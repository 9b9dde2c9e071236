"""Rules about further parts of a node: network, storage, fabric, monitoring, Kubernetes, communication.

One rule for each family of parts, so that a class can accept one of them. A condition on something
that the host does not state is not judged. A version or a kernel that no source covers is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from goldnode.compat import parts, remedies, rules, rules_host
from goldnode.compat.known_bad import in_range
from goldnode.compat.model import CompatFinding, CompatHost, CompatRule, FindingSubject, about
from goldnode.compat.remedies import CompatRemedy, RemedyOption
from goldnode.facts import host as facts
from goldnode.facts.host import numbers

_TRY = (
    "try it in a clean root (`goldnode modules build`), and accept rule {} in the class once it was "
    "seen to build"
)


@dataclass(frozen=True)
class _Part:
    """One part of a host, with all the others. `version` is empty if it is not known."""

    name: str
    version: str
    host: CompatHost
    all: Mapping[str, str]

    @property
    def rule(self) -> str:
        return f"part-{facts.load(parts.FILE)['parts'][self.name]['family']}"

    @property
    def subject(self) -> FindingSubject:
        return about(self.host, f"parts.{self.name}", "parts", "modules", "driver")

    @property
    def of_doca(self) -> bool:
        """Whether it is the network driver of a declared DOCA-Host release."""
        return self.name == "ofed" and "ofed" not in self.host.parts and "doca" in self.all

    @property
    def shown(self) -> str:
        if self.of_doca:
            return f"{parts.title('doca')} {self.all['doca']} (driver {self.version})"
        return f"{parts.title(self.name)} {self.version}".rstrip()

    def finding(self, row: Mapping[str, Any], message: str, remedy: str | None) -> CompatFinding:
        """Return the finding of a row of the facts that is not met."""
        return self.subject.finding(
            self.rule,
            row["otherwise"],
            message,
            parts.origins(row),
            remedy=remedy,
            doubt=facts.doubt(row),
        )

    def with_version(self, version: str, text: str) -> RemedyOption:
        """Return the option of another version of this part."""
        return with_part(self.host, self.name, version, text)


def with_part(host: CompatHost, name: str, version: str, text: str) -> RemedyOption:
    """Return the option of a host with another version of a part, also where a module has it."""
    modules = parts.by_module()
    others = {key: value for key, value in host.modules.items() if modules.get(key) != name}
    return remedies.of_host(text, modules=others, parts={**host.parts, name: version})


def _family(family: str) -> Callable[..., Iterator[CompatFinding]]:
    """Return the rule of a family of parts."""

    def check(host: CompatHost | None, workload: object = None) -> Iterator[CompatFinding]:
        if host is None:
            return
        present = parts.of_host(host)
        table = facts.load(parts.FILE)["parts"] if present else {}
        for name in table:
            if name in present and table[name]["family"] == family:
                yield from _judge(_Part(name, present[name], host, present))

    return check


def _judge(part: _Part) -> Iterator[CompatFinding]:
    if not part.version:
        if part.host.unlocked is None:  # rule no-lock reports it
            yield part.subject.unknown(
                part.rule,
                f"the version of {part.shown} is not known, so that nothing about it is judged",
                remedy=f"declare it: `parts: {{{part.name}: VERSION}}`",
            )
        return
    locked = part.host.locked_parts.get(part.name)
    if locked is not None and not parts.same(locked, part.version):
        yield part.subject.block(
            part.rule,
            f"{part.shown} is declared, and the lock of the stack installs {locked}",
            remedy=f"remove {part.name} from `parts`, or lock the stack again",
        )
    yield from _unread(part)
    for row in parts.rows_of("faults", part.name, part.version):
        option = row["use"] and part.with_version(row["use"], f"{row['use']} or later")
        remedy = CompatRemedy.of([option]) if option else "use a maintenance release"
        yield part.finding(row, f"{part.shown}: {row['effect']}", remedy)
    yield from _builds(part)
    yield from _needs(part)
    special = _SPECIAL.get(part.name)
    if special is not None:
        yield from special(part)


def _unread(part: _Part) -> Iterator[CompatFinding]:
    """Report a version that the sources of a part do not cover."""
    row = facts.load(parts.FILE)["parts"][part.name]
    read = tuple(row.get("read") or ())
    if not read or parts.includes(read, part.version):
        return
    yield part.subject.unknown(
        part.rule,
        f"no source about {part.shown} was read; the facts have {', '.join(read)}",
        parts.origins(row),
        remedy=f"accept rule {part.rule} in the class once its release notes were read",
    )


# Kernels


def _builds(part: _Part) -> Iterator[CompatFinding]:
    """Check that the kernel module of a part builds on the kernel."""
    kernel = part.host.kernel
    if kernel is None:
        return
    data = facts.load(parts.FILE)
    if any(row["part"] == part.name for row in data["builds_on"]):
        yield from _listed(part, kernel)
    if any(row["part"] == part.name for row in data["first_for_kernel"]):
        yield from _since(part, kernel)


def _listed(part: _Part, kernel: str) -> Iterator[CompatFinding]:
    """Compare the kernel with those that the publisher lists."""
    rows = parts.listed_kernels(part.name, part.version, part.host)
    if part.host.os is None or any(parts.series(kernel) in row["kernels"] for row in rows):
        return
    system = part.host.os.capitalize()
    listed = ", ".join(
        f"{item} of kernel.org" if row["os"] == "vanilla" else item
        for row in rows
        for item in row["kernels"]
    )
    reported = f"its publisher lists {listed or 'no kernel of this system for this version'}"
    sources = [row for row in facts.load(parts.FILE)["builds_on"] if row["part"] == part.name]
    options = [
        _listed_option(part, version)
        for version in parts.listed_versions(part.name, part.host, part.version)
        if not part.of_doca or parts.doca_of(version) is not None
    ]
    rest = _TRY.format(part.rule)
    yield part.subject.unknown(
        part.rule,
        f"no source says that {part.shown} builds on kernel {kernel} of {system}: {reported}",
        parts.origins(sources[-1]),
        remedy=CompatRemedy.of(options, otherwise=rest) if options else rest,
    )


def _listed_option(part: _Part, version: str) -> RemedyOption:
    release = parts.doca_of(version) if part.of_doca else None
    if release is not None:
        text = f"DOCA-Host {release}, whose driver {version} is listed for it"
        return with_part(part.host, "doca", release, text)
    # The third number of MLNX_OFED is its update, after a dash.
    shown = re.sub(r"^(\d+\.\d+)\.", r"\1-", version) if part.name == "ofed" else version
    return part.with_version(shown, f"{shown}, which is listed for it")


def _since(part: _Part, kernel: str) -> Iterator[CompatFinding]:
    """Compare the version with the first one whose change log names the kernel."""
    data = facts.load(parts.FILE)
    due = [
        row
        for row in data["first_for_kernel"]
        if row["part"] == part.name and numbers(kernel)[:2] >= numbers(row["kernel"])
    ]
    if due and numbers(part.version) < numbers(due[-1]["first"]):
        row = max(due, key=lambda item: numbers(item["first"]))
        first = row["first"]
        yield part.subject.block(
            part.rule,
            f"{part.shown} does not build on kernel {kernel}: {first} is the first that its change log "
            f"names for kernel {row['kernel']}",
            parts.origins(row),
            remedy=CompatRemedy.of([part.with_version(first, f"{first} or later")]),
            doubt=row.get("note"),
        )
        return
    newest = next(iter(parts.rows_of("newest_kernel", part.name, part.version)), None)
    if newest is not None and numbers(kernel)[:2] > numbers(newest["kernel"]):
        yield part.subject.unknown(
            part.rule,
            f"no source says whether {part.shown} builds on kernel {kernel}; kernel {newest['kernel']} is "
            "the newest that its change log names",
            parts.origins(newest),
            remedy=_TRY.format(part.rule),
            doubt=facts.doubt(newest),
        )


# Conditions on the rest of the node


def _needs(part: _Part) -> Iterator[CompatFinding]:
    seen: set[str] = set()
    for row in parts.rows_of("needs", part.name, part.version):
        host = part.host
        if row.get("os") and not parts.is_system(host.os, row["os"]):
            continue
        if row.get("os_not") and parts.is_system(host.os, row["os_not"]):
            continue
        condition = next(key for key in _CONDITIONS if row.get(key))
        unmet = _CONDITIONS[condition](part, row[condition])
        # A row for one system comes before the row for all others.
        if unmet is None or (condition == "other" and str(row["other"]) in seen):
            continue
        seen.add(str(row.get("other")))
        reported, remedy = unmet
        yield part.finding(row, f"{part.shown} {reported}: {row['effect']}", remedy)


# The value of a host that does not meet a condition, and the remedy; None: it is met, or cannot be judged.
Unmet = tuple[str, str | None] | None


def _least(versions: str) -> str | None:
    """Return the least version of a range, if it has one."""
    first = versions.split()[0]
    return first.removeprefix(">=") if first.startswith(">=") else None


def _kernel(part: _Part, wanted: str) -> Unmet:
    kernel = part.host.kernel
    if kernel is None or in_range(kernel, wanted):
        return None
    return f"on kernel {kernel}", f"use a kernel from {_least(wanted)} on"


def _driver(part: _Part, wanted: str) -> Unmet:
    host = part.host
    if host.vendor != "nvidia" or host.branch is None:
        return None
    if wanted == "same":
        if host.driver is None or numbers(host.driver) == numbers(part.version):
            return None
        option = part.with_version(host.driver, f"{host.driver}, and lock the two together")
        return f"beside driver {host.driver}", CompatRemedy.of([option])
    if not _outside(host, wanted):
        return None
    least = _least(wanted)
    remedy = None
    if least is not None:
        remedy = CompatRemedy.of(remedies.drivers(least))
    elif part.name == "dcgm":
        remedy = CompatRemedy.of([part.with_version("4.0.0", "DCGM 4 for CUDA 13")])
    return f"beside {rules_host.driver_name(host)}", remedy


def _outside(host: CompatHost, wanted: str) -> bool:
    """Return whether the driver, or every version of its branch, is outside a range."""
    if host.driver is not None:
        return not in_range(host.driver, wanted)
    return not (in_range(f"{host.branch}", wanted) or in_range(f"{host.branch}.999", wanted))


def _flavour(part: _Part, wanted: str) -> Unmet:
    host = part.host
    if host.flavour is None or host.flavour == wanted:
        return None
    options = [[remedies.flavour("open", "a stack with the open modules")]]
    if part.name == "nvidia_fs":
        options.append([part.with_version("2.17.4", "a version before 2.17.5")])
    if part.name == "gpudirect_rdma":
        options.append(_peermem(part))
    return (
        f"with the {host.flavour} kernel modules of {rules_host.driver_name(host)}",
        CompatRemedy.of(*options),
    )


def _peermem(part: _Part) -> list[RemedyOption]:
    """Return the options of nvidia-peermem beside a release of MLNX_OFED that is listed for the node."""
    return [
        remedies.of_host(
            f"`gpudirect_rdma: peermem` with MLNX_OFED {version}",
            parts={**part.host.parts, "gpudirect_rdma": "peermem", "ofed": version},
        )
        for version in parts.listed_versions("ofed", part.host)
    ]


def _architecture(part: _Part, wanted: str) -> Unmet:
    older = [gpu for gpu in part.host.gpus if not rules.architecture_reached(gpu, wanted)]
    if not older:
        return None
    otherwise = "use `gpudirect_rdma: peermem` with MLNX_OFED or DOCA-OFED"
    remedy = CompatRemedy.of(_peermem(part), otherwise=otherwise)
    return f"on {older[0].sku} ({older[0].architecture})", remedy


def _systems(part: _Part, wanted: list[str]) -> Unmet:
    host = part.host
    if host.os is None or parts.is_system(host.os, wanted):
        return None
    remedy = f"use one of {', '.join(wanted)}, or accept rule {part.rule} once it was seen to work"
    return f"on {host.os.capitalize()}", remedy


def _toolkit(part: _Part, wanted: str) -> Unmet:
    toolkit = part.host.toolkit
    if toolkit is None or in_range(toolkit, wanted):
        return None
    floor = rules.toolkit_floor()
    remedy = CompatRemedy.of(
        [remedies.of_host(f"container toolkit {floor} or later", toolkit=floor)]
    )
    return f"beside container toolkit {toolkit}", remedy


def _engine(part: _Part, wanted: Mapping[str, str]) -> Unmet:
    engine, version = part.host.engine, part.host.engine_version
    if engine is None or engine not in wanted or version is None:
        return None
    version = facts.release_numbers(version)
    if in_range(version, wanted[engine]):
        return None
    return f"on {engine} {version}", f"use {engine} {_least(wanted[engine])} or later"


def _engine_not(part: _Part, wanted: str) -> Unmet:
    if part.host.engine != wanted:
        return None
    return f"on {wanted}", "add cri-dockerd to the stack's packages, or use `engine: containerd`"


def _other(part: _Part, wanted: Mapping[str, str]) -> Unmet:
    ((name, versions),) = wanted.items()
    version = part.all.get(name)
    if versions == "any" and version is None:
        dma_buf = part.with_version("dma-buf", "`gpudirect_rdma: dma-buf`")
        declared = "declare ofed or doca under `parts` if the nodes have it"
        remedy = CompatRemedy.of(
            [dma_buf], ending=f", or {declared}", otherwise=f"{declared}, or install it"
        )
        return f"without {parts.title(name)}", remedy
    if versions == "none" and version is not None:
        disabled = (
            "run `systemctl disable --now nvidia-imex.service` and `systemctl mask nvidia-imex.service` on the "
            f"nodes, and accept rule {part.rule} in the class"
        )
        return f"beside {parts.title(name)} {version}", disabled
    if versions in ("any", "none") or not version or in_range(version, versions):
        return None
    nearest, text = _into(versions, version)
    remedy = CompatRemedy.of([with_part(part.host, name, nearest, f"Kubernetes {text}")])
    return f"beside {parts.title(name)} {version}", remedy


def _into(versions: str, version: str) -> tuple[str, str]:
    """Return the end of a range of minor releases that is nearest to a version, and the range in words."""
    least = str(_least(versions))
    above = re.search(r" <(\d+)\.(\d+)$", versions)
    if above is None:
        return least, f"{least} or later"
    last = f"{above[1]}.{int(above[2]) - 1}"
    return last if numbers(version) > numbers(last) else least, f"{least} to {last}"


_CONDITIONS: Mapping[str, Callable[[_Part, Any], Unmet]] = {
    "kernel": _kernel,
    "driver": _driver,
    "flavour": _flavour,
    "architecture_from": _architecture,
    "systems": _systems,
    "toolkit": _toolkit,
    "engine": _engine,
    "engine_not": _engine_not,
    "other": _other,
}


# Parts with rules of their own


def _exporter(part: _Part) -> Iterator[CompatFinding]:
    """Check that the exporter is paired with the DCGM of the host."""
    engine, data = part.all.get("dcgm"), facts.load(parts.FILE)["exporter"]
    library = _library(part.version, data["pairs"])
    if not engine:
        return
    if library is None:
        yield part.subject.unknown(
            part.rule,
            f"no source says which DCGM {part.shown} is paired with",
            parts.origins(data),
            remedy="write the tag of its image, which has both versions: 4.5.3-4.8.2",
        )
        return
    if numbers(engine) == numbers(library):
        return
    paired = [own for dcgm, own in data["pairs"] if dcgm == facts.release_numbers(engine)]
    remedy = f"use the exporter that is paired with DCGM {engine}"
    if paired:
        tag = f"{facts.release_numbers(engine)}-{paired[-1]}"
        remedy = CompatRemedy.of([part.with_version(tag, f"the exporter {tag}")])
    breaks = data["breaks_at"]
    apart = sorted((numbers(engine), numbers(library)))
    row = data["mismatch"]
    severity = "warn"
    if apart[1] == numbers(breaks["version"]):
        row, severity = breaks, "block"
    message = (
        f"{part.shown} has the library of DCGM {library}, beside DCGM {engine}: {row['effect']}"
    )
    yield part.finding({**row, "otherwise": severity}, message, remedy)


def _library(version: str, pairs: list[list[str]]) -> str | None:
    """Return the DCGM that an exporter is paired with, from its tag or from the table."""
    tag = re.fullmatch(r"(\d[\d.]*)-(\d[\d.]*)(-.*)?", version)
    if tag is not None:
        return tag[1]
    return next((dcgm for dcgm, own in reversed(pairs) if own == version), None)


def _lustre_server(part: _Part) -> Iterator[CompatFinding]:
    """Check that client and server are at most one long-term release apart."""
    client, data = part.all.get("lustre"), facts.load(parts.FILE)["lustre"]
    if not client:
        return
    older, newer = sorted((numbers(client)[:2], numbers(part.version)[:2]))
    before = [term for term in data["long_term"] if numbers(term) < newer]
    if older == newer or (before and older >= numbers(before[-1])):
        return
    least = before[-1] if before else "?"
    yield part.subject.unknown(
        part.rule,
        f"no source says that a Lustre client {client} works with servers of {part.version}: a release is "
        f"compatible back to the long-term release before it, {least}",
        parts.origins(data),
        remedy="upgrade the older side in between, as its long-term releases allow",
    )


def _kubelet(part: _Part) -> Iterator[CompatFinding]:
    """Check the kubelet against the API server and containerd."""
    yield from _skew(part)
    yield from _containerd(part)


def _skew(part: _Part) -> Iterator[CompatFinding]:
    server, skew = (
        part.all.get("kubernetes_control_plane"),
        facts.load(parts.FILE)["kubelet_skew"],
    )
    if not server:
        return
    own, other = numbers(part.version)[:2], numbers(server)[:2]
    earlier = skew["behind_before"]
    behind = skew["behind"]
    if own < numbers(earlier["version"]):
        behind = earlier["behind"]
    if own > other:
        minor = ".".join(map(str, other))
        yield part.subject.block(
            part.rule,
            f"{part.shown} is newer than the API server {server}, which it must never be",
            parts.origins(skew),
            remedy=CompatRemedy.of(
                [part.with_version(minor, f"kubelet {minor} or older")],
                [
                    with_part(
                        part.host, "kubernetes_control_plane", part.version, "a newer API server"
                    )
                ],
            ),
        )
    elif own[0] == other[0] and other[1] - own[1] > behind:
        least = f"{other[0]}.{other[1] - behind}"
        yield part.subject.block(
            part.rule,
            f"{part.shown} is {other[1] - own[1]} minor releases older than the API server {server}; "
            f"{behind} are allowed",
            parts.origins(skew),
            remedy=CompatRemedy.of([part.with_version(least, f"kubelet {least} or later")]),
        )


def _containerd(part: _Part) -> Iterator[CompatFinding]:
    host, rows = part.host, facts.load(parts.FILE)["kubernetes_containerd"]
    if host.engine != "containerd" or host.engine_version is None:
        return
    version = facts.release_numbers(host.engine_version)
    row = next((row for row in rows if row["kubernetes"] == parts.series(part.version)), None)
    if row is None:
        yield part.subject.unknown(
            part.rule,
            f"no source that was read says which containerd Kubernetes {parts.series(part.version)} needs; "
            f"they end with {rows[-1]['kubernetes']}",
            parts.origins(rows[-1]),
            remedy=f"accept rule {part.rule} once containerd's table of releases was read",
        )
    elif not parts.includes(tuple(row["containerd"]), version):
        yield part.subject.warn(
            part.rule,
            f"{part.shown} on containerd {version}: recommended for Kubernetes {row['kubernetes']} is "
            f"{' or '.join(row['containerd'])}",
            parts.origins(row),
            remedy=f"use containerd {parts.first_of(row['containerd'][-1])} or later",
        )


_SPECIAL: Mapping[str, Callable[[_Part], Iterator[CompatFinding]]] = {
    "dcgm_exporter": _exporter,
    "lustre_server": _lustre_server,
    "kubernetes": _kubelet,
}


def _keys(*families: str) -> dict[str, tuple[str, ...]]:
    return {parts.FILE: families}


RULES: tuple[CompatRule, ...] = (
    CompatRule(
        "part-network",
        "MLNX_OFED, DOCA-OFED and GPUDirect RDMA fit kernel, driver and system",
        "Kernels that NVIDIA builds each driver release for, by its release manifests. GPUDirect RDMA works by "
        "DMA-BUF (open kernel modules, kernel 5.12, Turing) or by nvidia-peermem, which needs the symbols of "
        "MLNX_OFED or DOCA-OFED. A kernel or system that no list has is unknown.",
        _family("network"),
        _keys("manifests", "doca252", "rdma", "peermem_src"),
    ),
    CompatRule(
        "part-storage",
        "GPUDirect Storage and the Lustre client fit kernel, driver and servers",
        "nvidia-fs: the first version that its change log names for a kernel; from 2.17.5 on it needs the open kernel "
        "modules. Lustre: the kernels that the change log of each release lists; clients and servers are compatible "
        "back to the long-term release before the newer one.",
        _family("storage"),
        _keys("gds_log", "gds_readme", "gds_known", "lustre_log", "lustre_versions", "fsx"),
    ),
    CompatRule(
        "part-monitoring",
        "DCGM knows driver and system, and its exporter is paired with it",
        "The first driver of each DCGM, NVIDIA's list of systems, and the pairs of DCGM and exporter of the tags of the "
        "exporter's images.",
        _family("monitoring"),
        _keys(
            "dcgm_install", "dcgm_start", "dcgm31", "dcgm24", "ctk5821", "exporter", "exporter49"
        ),
    ),
    CompatRule(
        "part-fabric",
        "IMEX has the driver's version",
        "IMEX is installed at exactly the driver's version. Where the DRA driver runs, it starts IMEX itself.",
        _family("fabric"),
        _keys("lockstep", "fm", "dra"),
    ),
    CompatRule(
        "part-kubernetes",
        "Kubelet, device plugin, DRA driver and GPU operator fit driver, engine and each other",
        "The version skew policy of Kubernetes, containerd's table of releases, and the requirements that NVIDIA's "
        "documents state for device plugin, DRA driver and GPU operator.",
        _family("kubernetes"),
        _keys("skew", "containerd", "shim", "plugin", "dra", "dra_old", "operator"),
    ),
    CompatRule(
        "part-communication",
        "GDRCopy builds on the kernel",
        "The first version of GDRCopy that its change log names for a kernel. NCCL, UCX and Open MPI are judged "
        "across nodes, by rule coexistence.",
        _family("communication"),
        _keys("gdr_log", "gdr_readme"),
    ),
)
