"""Carry out what a printed remedy says: read its text as a person does, change the combination, and judge it again.

This reader knows the words of remedies, and nothing of the options that the rules have proved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from goldnode.compat import check, remedies
from goldnode.compat.model import CompatFinding, CompatHost, Workload
from goldnode.facts import host as facts
from goldnode.facts import workload as workload_facts

VERSION = re.compile(r"\d+\.\d+")
# Remedies that name a version for another reason: what to run first, where a table ends.
PROSE = re.compile(
    r"run ROCm \S+ on one node|branches? [\d, ]+ (support|that)|[A-Z]\w+ \S+ has (docker|podman|containerd)|Debian \d+|Ubuntu [\d.]+"
    r"|use Python [<>=!~]|plan the move|plan for|stay on|lock the stack again"
    # Fixes of known bad combinations in software that a combination does not state.
    r"|(device plugin|DRA driver|MIG manager|fixed in) \d|an index that has"
)


def changes(
    text: str, finding: CompatFinding, workload: Workload | None
) -> Iterator[tuple[str, list[remedies.RemedyOption]]]:
    """Yield the parts of a remedy that name a version, each with what it can mean; empty if it is not understood."""
    text = (
        re.sub(r"; [A-Z]?\w+ .*$", "", text)
        if re.search(r"; (branch|Debian|Ubuntu|no branch)", text)
        else text
    )
    if text.startswith("use a branch that gets fixes: "):
        for version in re.findall(r"\((\d+\.[\d.]+)\)", text):
            yield version, [remedies.driver(version)]
        return
    for part in re.split(r", or | or (?=[a-z]+\d|amdgpu|CUDA|another|jax|\d+\.\d)", text):
        if VERSION.search(part) and not PROSE.search(part):
            yield part, list(_meanings(part, finding, workload))


def _meanings(
    part: str, finding: CompatFinding, workload: Workload | None
) -> Iterator[remedies.RemedyOption]:
    for pattern, make in _READ:
        found = re.search(pattern, part)
        if found is not None:
            yield from make(found, finding, workload)
            return


Make = Callable[[re.Match[str], CompatFinding, Workload | None], Sequence[remedies.RemedyOption]]


def _cuda(
    found: re.Match[str], _: CompatFinding, __: Workload | None
) -> Sequence[remedies.RemedyOption]:
    return [remedies.cuda(found[1], "")]


def _torch(
    found: re.Match[str], _: CompatFinding, workload: Workload | None
) -> Sequence[remedies.RemedyOption]:
    assert workload is not None
    own = workload.frameworks.get("torch", "").partition("+")[0]
    known = [
        item for item in workload_facts.torch_wheels() if workload_facts.minor(item) == found[2]
    ]
    versions = [own] if workload_facts.minor(own) == found[2] else known or [f"{found[2]}.0"]
    return [remedies.framework("torch", f"{item}+{found[1]}", "", workload) for item in versions]


def _build(
    found: re.Match[str], _: CompatFinding, workload: Workload | None
) -> Sequence[remedies.RemedyOption]:
    assert workload is not None
    own = workload.frameworks["torch"].partition("+")[0]
    return [remedies.framework("torch", f"{own}+{found[1]}", "", workload)]


def _named(
    found: re.Match[str], finding: CompatFinding, workload: Workload | None
) -> Sequence[remedies.RemedyOption]:
    name = found[1].lower()
    if workload is None:
        return []
    if name in workload.frameworks or name == "tensorrt":
        # Other pins stay, or go with those of the framework.
        return [
            remedies.framework(name, found[2], "", workload),
            remedies.pin(name, found[2], ""),
        ]
    return [remedies.pin(name, found[2], "")]


def _library(
    found: re.Match[str], _: CompatFinding, workload: Workload | None
) -> Sequence[remedies.RemedyOption]:
    name = found[1].lower()
    pin = next(
        (item for item in (workload.pins if workload else ()) if f"nvidia-{name}-cu" in item), None
    )
    version = found[2].rpartition(" - ")[2]
    return [remedies.pin(pin, version, "") if pin else remedies.of_workload("", **{name: version})]


def _rocm(
    found: re.Match[str], _: CompatFinding, workload: Workload | None
) -> Sequence[remedies.RemedyOption]:
    assert workload is not None
    if workload.rocm is not None or "torch" not in workload.frameworks:
        return [remedies.of_workload("", rocm=found[1])]
    own = workload.frameworks["torch"].partition("+")[0]
    return [
        remedies.framework("torch", f"{own}+rocm{workload_facts.minor(found[1])}", "", workload)
    ]


def _window(
    found: re.Match[str], _: CompatFinding, workload: Workload | None
) -> Sequence[remedies.RemedyOption]:
    return [
        one
        for item in workload_facts.rocms()
        for one in _rocm(re.match("(.*)", item), _, workload)  # type: ignore[arg-type]
    ]


def _bare(
    found: re.Match[str], finding: CompatFinding, _: Workload | None
) -> Sequence[remedies.RemedyOption]:
    """Return the option of a version without a name: that of what the finding is about."""
    version = found[0]
    if finding.rule == "toolkit-floor" or (finding.row or "").startswith("ctk"):
        return [remedies.of_host("", toolkit=version)]
    if (finding.row or "").startswith("rocm"):
        return [remedies.of_workload("", rocm=version)]
    if (finding.row or "").startswith("mi3"):
        return [remedies.of_host("", amdgpu=version)]
    return [remedies.driver(version)]


_ENGINE = ("docker", "podman", "containerd")
_READ: tuple[tuple[str, Make], ...] = (
    (
        rf"(\d[\d.]+) or later with ({'|'.join(_ENGINE)}) (\d+\.[\d.]+)",
        lambda found, *_: [
            remedies.of_host("", toolkit=found[1], engine_version=found[3], toolkit_mode="cdi")
        ],
    ),
    (
        r"modules.* driver (\d+\.[\d.]+)",
        lambda found, *_: [
            remedies.flavour("open", "", driver=found[1]),
            remedies.flavour("proprietary", "", driver=found[1]),
        ],
    ),
    (r"the (\S+) build of PyTorch (\d+\.\d+)", _torch),
    (r"^(?:use )?(cu\d+|rocm[\d.]+|cpu)($| build)", _build),
    (
        r"an image that carries cuda-compat",
        lambda *_: [remedies.of_workload("", forward_compat=True)],
    ),
    (r"an image without cuda-compat", lambda *_: [remedies.of_workload("", forward_compat=False)]),
    (
        r"fabricmanager\S* (\d+\.[\d.]+)",
        lambda found, *_: [remedies.of_host("", fabric_manager=found[1])],
    ),
    (
        r"nvidia-\S*(?:kernel-\S+|dkms) (\d\S+), measured",
        lambda found, *_: [remedies.package(found[1].rstrip(","), "")],
    ),
    (r"^pin ([a-z0-9-]+)==(\d[\w.+]*)", _named),
    (
        r"a kernel of series (\d+\.\d+)",
        lambda found, *_: [remedies.kernel(item, "") for item in (found[1], *_of_series(found[1]))],
    ),
    (
        r"kernel (\d\S*?),? ",
        lambda found, *_: [
            remedies.kernel(found[1], ""),
            remedies.kernel(found[1], "", version=facts.release_numbers(found[1])),
        ],
    ),
    (r"kernel (\d\S*)$", lambda found, *_: [remedies.kernel(found[1], "")]),
    (
        rf"({'|'.join(_ENGINE)}) (\d+\.[\d.]+)",
        lambda found, *_: [remedies.of_host("", engine_version=found[2], toolkit_mode="cdi")],
    ),
    (r"amdgpu (\d+\.[\d.]+)", lambda found, *_: [remedies.of_host("", amdgpu=found[1])]),
    (
        r"AMD's driver \(newest seen: (\S+)\)",
        lambda found, *_: [remedies.of_host("", amdgpu=found[1])],
    ),
    (r"a ROCm of ", _window),
    (r"ROCm (\d+\.[\d.]+)", _rocm),
    (r"a release whose list is known, (\d[\d.]+)", _rocm),
    (r"Python (\d+\.\d+)$", lambda found, *_: [remedies.python(found[1])]),
    (r"(cuDNN|NCCL) (\d[\d.]+(?: - [\d.]+)?)", _library),
    (r"CUDA (\d+\.\d+) - (\d+\.\d+)$", lambda found, *_: [remedies.cuda(found[2], "")]),
    (r"CUDA (\d+\.\d+)", _cuda),
    (r"driver (\d+\.[\d.]+)", lambda found, *_: [remedies.driver(found[1].rstrip("."))]),
    (r"(?!use )\b(TensorRT|[a-z][a-z0-9-]+) (\d+\.\d+[\w.+]*)", _named),
    (r"\d+\.\d+[\d.]*\d", _bare),
)


def _of_series(series: str) -> list[str]:
    rows = facts.load("distros.yml")["distributions"]
    carried = [
        str(text).split(" ")[0] for row in rows for text in (row.get("kernels") or {}).values()
    ]
    return [item for item in carried if item.startswith(f"{series}.")]


def untrue(host: CompatHost | None, workloads: Sequence[Workload]) -> list[str]:
    """Return the remedies of a combination that do not cure what they are printed for, or that are not understood."""
    bad = []
    for finding in check.check(host, workloads):
        workload = next(
            (item for item in workloads if finding.subject.startswith(item.subject)), None
        )
        for part, options in changes(finding.remedy or "", finding, workload):
            judge = check._judge(workloads if workload is None else ())
            before = remedies.weights(judge(host, workload), host)
            if not any(
                one.change and remedies.cures(finding, one.change, before, judge, (host, workload))
                for one in options
            ):
                bad.append(
                    f"[{finding.rule}] {finding.message} => {part}{'' if options else ' (not understood)'}"
                )
    return bad
