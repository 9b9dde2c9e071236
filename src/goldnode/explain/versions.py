"""The fix for the versions that a text names: which driver a CUDA needs, which CUDA a GPU needs, what a driver is known for.

A board is recognized by its PCI id; what the driver says of it is compared with the facts.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import replace

from goldnode.compat import known_bad
from goldnode.compat.model import CompatHost
from goldnode.explain import dependencies
from goldnode.explain.model import TextAnswer
from goldnode.facts import host, symptoms, workload, xid
from goldnode.facts.host import GpuModel
from goldnode.facts.workload import key
from goldnode.node.state.family import headers_command

_DRIVER = (
    r"Driver Version: (\d{3}\.[\d.]+\d)",
    r"kernel module (?:version |has the version )?(\d{3}\.\d+(?:\.\d+)?)",
    r"NVRM version: .*? (\d{3}\.\d+(?:\.\d+)?) ",
    r"Kernel Module(?: for \S+)? +(\d{3}\.\d+(?:\.\d+)?)",
    r"NVIDIA (\d{3}\.\d+(?:\.\d+)?) driver release",
    r"\bdriver (?:version )?(\d{3}\.\d+(?:\.\d+)?)",
)
# The least CUDA that the text asks for.
_WANTED = (
    r"cuda>=(\d+\.\d+)",
    r"\+cu(\d{2,3})\b",
    r"CUDA (?:runtime|Runtime|toolkit)(?: version)?[ :]+(\d+\.\d+)",
    r"torch\.version\.cuda\W+(\d+\.\d+)",
    r"nvidia/cuda:(\d+\.\d+)",
)
_CAPABILITY = re.compile(r"sm_(\d{2,3})\b")
_OLD = re.compile(r"found version (\d{4,5})\)")
_BY_CUDA = ("driver-too-old-for-cuda", "cuda-versions-differ", "forward-compat-refused")


def _first(patterns: Iterable[str], text: str) -> str | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    return None


def _dotted(text: str) -> str:
    """Return "12.8" for "128", as wheels write it."""
    return text if "." in text else f"{text[:-1]}.{text[-1]}"


def needs(text: str, driver: str | None = None) -> list[str]:
    """Return what the facts say about the CUDA that `text` names. `driver` is that of this node, if known."""
    wanted = _first(_WANTED, text)
    driver = driver or _first(_DRIVER, text)
    notes = []
    old = _OLD.search(text)
    if old:
        number = int(old.group(1))
        notes.append(
            f"the driver of that text runs CUDA up to {number // 1000}.{number % 1000 // 10}"
        )
    if wanted is None:
        return notes
    cuda = _dotted(wanted)
    family = workload.families().get(int(cuda.split(".")[0]))
    minor = workload.cudas().get(cuda)
    if family is None:
        return [*notes, f"CUDA {cuda}: the facts do not know it"]
    native = f"; it was released with driver {minor.bundled}" if minor and minor.bundled else ""
    notes.append(
        f"CUDA {cuda} runs on driver {family.minimum} or newer (minor-version compatibility; no PTX){native}"
    )
    if driver:
        enough = key(driver) >= key(family.minimum)
        word = "reaches that" if enough else "is older: this program cannot start on it"
        notes.append(f"driver {driver} {word}")
    return notes


def capability(text: str) -> list[str]:
    """Return which CUDA first supports the compute capability that `text` names."""
    notes = []
    for number in dict.fromkeys(_CAPABILITY.findall(text)):
        name = f"{number[:-1]}.{number[-1]}"
        row = workload.architectures().get(name)
        if row and row.first:
            last = f", up to {row.last}" if row.last else ""
            notes.append(f"sm_{number} ({row.name}): CUDA {row.first} or newer{last}")
    return notes


# -- the driver's module and the kernel

_MODULE = (
    r"/var/lib/dkms/nvidia[\w-]*/(\d{3}\.\d[\d.]*\d)",
    r"dkms \w+ .*?nvidia\S*(?: -v |/)(\d{3}\.\d[\d.]*\d)",
)
_KERNEL = (
    r"module build on kernel: (\S+)",
    r"dkms \w+ .* -k (\S+)",
    r"\bfor (?:Linux )?kernel (?:version )?(\d\S+)",
    r"/lib/modules/(\d[^/\s]+)/",
)
_HEADERS = re.compile(
    r"Could not resolve Linux kernel version|Missing \S+ kernel headers|kernel headers for \S+ cannot be found|fatal error: /lib/modules/"
)
# A kernel's release begins with the number of its version (KERNELRELEASE in its Makefile); what has a word before is a package.
_PACKAGE = re.compile(
    r"\bkernel:? (?P<name>(?:linux-|kernel-)(?:(?:headers|image|modules|devel|core)-)?(?:unsigned-|extra-)?(?P<release>\d[\w.+~-]*))"
)
# gcc's errors about code for another kernel: a function, a member, a type or a list of arguments that the kernel does not have.
# gcc quotes names by typographic marks in a UTF-8 locale, and by apostrophes otherwise.
_OPEN, _CLOSE = "[\u2018'\"`]", "[^\u2019'\"`]+"
_GONE = re.compile(
    r"/dkms/\S+.*?error: .*?(?:implicit declaration of function|has no member named|unknown type name|storage size of"
    r"|too (?:few|many) arguments to function(?: call)?|conflicting types for|redefinition of|invalid use of undefined type"
    rf"|passing argument \d+ of|initialization of|assignment to)[^\u2018'\"`]*{_OPEN}(?P<name>{_CLOSE})"
    rf"|/dkms/\S+.*?error: {_OPEN}(?P<undeclared>\w+).? undeclared"
)
_HEADER_GONE = re.compile(r"/dkms/\S+.*?fatal error: (?P<name>\S+\.h): No such file")


def build(text: str) -> list[str]:
    """Return why the driver's module was not built, for the driver and the kernel that `text` names."""
    driver, kernel = _first(_MODULE, text), _first(_KERNEL, text)
    notes = []
    package = _PACKAGE.search(text)
    if package:
        notes.append(
            f"{package['name']} is the name of a package, and DKMS was asked for a kernel of that name: its release is "
            f"{package['release']} (`uname -r` prints that of the running kernel). No headers of another kernel are missing"
        )
    elif _HEADERS.search(text):
        notes.append(
            f"the kernel's headers are missing: {headers_command(kernel or '$(uname -r)')} with Debian's and Ubuntu's "
            "packages, from the archive that the kernel is from"
        )
    if "CC version check" in text:
        notes.append(
            "the compiler is not the one that built the kernel: install that one, or build with "
            "IGNORE_CC_MISMATCH=1; it is no fault of the driver's sources"
        )
    hit = _GONE.search(text) or _HEADER_GONE.search(text)
    gone = next((name for name in hit.groups() if name), None) if hit else None
    what = f"driver {driver}" if driver else "the driver"
    if gone:
        which = f"kernel {kernel}" if kernel else "this kernel"
        notes.append(
            f"{what} does not compile for {which}: it uses {gone} in a way that this kernel does not have. It is older "
            "than this kernel: take a newer driver, or an older kernel"
        )
    if driver and kernel:
        known = host.kernel_build(kernel, driver)
        notes.extend([known.reason] if known.outcome != "unknown" else [])
    return notes


def package_as_kernel(answer: TextAnswer) -> TextAnswer:
    """Return the answer to a missing module, corrected where its text gives a package's name in the place of a kernel."""
    package = _PACKAGE.search(answer.text)
    if package is None:
        return answer
    release = package["release"]
    return replace(
        answer,
        title="DKMS was asked for a kernel by the name of a package",
        causes=(
            f"a script, a hook or a `-k` gave {package['name']}, where a kernel's release belongs",
        ),
        check=f"`uname -r`; `ls /lib/modules`: is {release} there? The hook that calls DKMS (/etc/kernel/postinst.d, /etc/kernel/install.d)",
        fix=f"`dkms autoinstall -k {release}`, and correct what gave the name of the package. If its headers are missing too, install {package['name']}.",
    )


# -- numbers of errors

_ERRNO = re.compile(
    r"\b(?:error|err|ret|rc|status|failed|returned)\b[^-\w]{0,8}-(?P<number>\d{1,3})\b|\(-(?P<bare>\d{1,3})\)"
)


def error_number(text: str) -> list[str]:
    """Return the meaning of a negative number of an error in a line of the kernel, as errno(3) names it."""
    for match in _ERRNO.finditer(text):
        number = int(match["number"] or match["bare"])
        name = errno.errorcode.get(number)
        if name:
            return [f"-{number} is {name}: {os.strerror(number)}"]
    return []


_SHELL_STATUS = re.compile(r"\b(?:exit(?:ed)?|status|code|rc)\b\D{0,14}(?P<status>[12]\d\d)\b")


def dcgm_status(text: str) -> list[str]:
    """Return the name of DCGM's error behind the exit status of dcgmi in `text`."""
    match = _SHELL_STATUS.search(text)
    name = symptoms.dcgm_status().get(str(256 - int(match["status"]))) if match else None
    if match is None or name is None:
        return []
    return [f"{match['status']} is -{256 - int(match['status'])}: DCGM_ST_{name}"]


# -- the fabric manager

_MANAGER = re.compile(r"interface version (\S+) don.?t match with driver version (\d[\d.]*\d)")


def manager(text: str) -> list[str]:
    """Return which fabric manager a driver needs, if `text` names both."""
    match = _MANAGER.search(text)
    if match is None:
        return []
    return [f"it is {match.group(1)}: install the fabric manager {match.group(2)}"]


# -- the board


def boards(text: str) -> list[GpuModel]:
    """Return the models of NVIDIA's PCI ids in `text`, each once."""
    ids = {name.lower() for name in re.findall(r"\b10de:[0-9a-f]{4}\b", text, re.IGNORECASE)}
    return [row for row in host.gpus().values() if ids & set(row.pci_ids)]


def _has_gsp(model: GpuModel) -> bool:
    """Return whether the board has a GSP, which open modules need: those of Turing (7.5) and later have one."""
    if model.open_modules_supported is not None:
        return model.open_modules_supported
    return key(model.compute_capability or "0") >= key("7.5")


def _flavour(model: GpuModel, text: str) -> list[str]:
    if not _has_gsp(model):
        seen = ". The installed one is open (Dual MIT/GPL)" if "Dual MIT/GPL" in text else ""
        return [f"{model.sku} has no GSP: only the proprietary flavour drives it{seen}"]
    if model.open_modules_required:
        return [f"{model.sku}: only the open flavour drives it"]
    return []


def _supports(driver: str, model: GpuModel) -> bool:
    """Return whether the facts list the board for a driver: from the first version of its branch, or of an older one."""
    same = [row for row in model.min_driver if row.split(".")[0] == driver.split(".")[0]]
    return any(key(driver) >= key(row) for row in same or model.min_driver)


def refusal(answer: TextAnswer, text: str) -> TextAnswer:
    """Return the answer to a driver that refuses a board, corrected where the facts say that it supports it."""
    models, driver = boards(text), _first(_DRIVER, text)
    if len(models) != 1:
        return answer
    model = models[0]
    if "supported by open" in answer.text:
        supported = _has_gsp(model)
    else:
        supported = driver is not None and _supports(driver, model)
    if not supported:
        return replace(answer, versions=tuple(_flavour(model, text)))
    return replace(
        answer,
        title=f"the driver takes the board for one that it does not support, and it is {model.sku}, which {driver or 'it'} supports",
        fix=(
            "In a virtual machine with a vGPU install the guest driver (GRID) of the host's release. Otherwise another driver or "
            "flavour does not help: the driver judges by registers of the board, not by its PCI id (rm_is_supported_device), "
            "and they do not read as they should. Restart the node; in a virtual machine look at the passthrough (firmware and kernel of the guest, "
            "room for its memory, the board's mode of "
            "confidential computing); then have the board inspected."
        ),
        versions=tuple(f"{origin}" for origin in model.origins("pci_ids")[:1]),
    )


# -- the registers of an NVLink

_REGISTERS = re.compile(r"\b[Ll]ink (\d+) ?\(0x([0-9a-fA-F]+),")


def registers(text: str) -> list[str]:
    """Return what the bits of the first register of an Xid 74 mean, for its link."""
    match = _REGISTERS.search(text)
    if match is None:
        return []
    number = int(match.group(2), 16)
    bits = [bit for bit in range(32) if number >> bit & 1]
    notes = []
    for row in xid.nvlink_bits():
        named = [str(bit) for bit in bits if bit in row.bits]
        if named:
            notes.append(f"link {match.group(1)}, bit {', '.join(named)}: {row.means}")
    return notes


# -- what a driver is known for


def known(code: str, text: str, driver: str | None = None) -> list[str]:
    """Return the rows of known bad drivers about an Xid, for the driver that `text` names."""
    driver = driver or _first(_DRIVER, text)
    if driver is None:
        return []
    # A text that names no board may be about any.
    gpus = tuple(boards(text) or host.gpus().values())
    node = CompatHost(
        "node", vendor="nvidia", driver=driver, branch=driver.split(".")[0], gpus=gpus
    )
    about = re.compile(rf"Xid [\d /,and]*\b{code}\b")
    notes = []
    for row in known_bad.rows():
        if row.never is None and not row.of_workload and about.search(row.symptom):
            finding = known_bad.judge(row, node, None)
            notes.extend(
                [f"driver {driver} {finding.message}; fixed: {row.fix}"] if finding else []
            )
    return notes


def completed(
    answers: Iterable[TextAnswer], text: str, driver: str | None = None
) -> list[TextAnswer]:
    """Return the answers with what the facts say about the versions in `text`."""
    rows = []
    for answer in answers:
        notes: list[str] = []
        if answer.id in _BY_CUDA:
            notes = needs(text, driver)
        elif answer.id == "driver-gone-after-kernel":
            notes = build(text)
            answer = package_as_kernel(answer)
        elif answer.id == "dcgm-status":
            notes = dcgm_status(answer.text)
        elif answer.id == "no-package-for-this-system":
            notes = dependencies.notes(text.splitlines())
        elif symptoms.dcgm_error(answer.text):
            notes = [f"DCGM's number is {symptoms.dcgm_error(answer.text)}"]
        elif answer.id == "fabric-not-ready":
            notes = manager(answer.text)
        elif answer.id == "driver-not-loaded":
            notes = [note for model in boards(text) for note in _flavour(model, text)]
        elif answer.id.startswith("xid."):
            notes = [*known(answer.id[4:], text, driver), *registers(answer.text)]
        elif answer.id == "driver.refused":
            answer = refusal(answer, text)
        elif answer.id == "architecture-not-in-build":
            # Only the line with the GPU's own capability; the next one lists what the build has.
            notes = capability(answer.text)
        if answer.layer in ("hardware", "software", "driver", "network"):
            notes = [*notes, *error_number(answer.text)]
        rows.append(replace(answer, versions=(*answer.versions, *notes)) if notes else answer)
    return rows
