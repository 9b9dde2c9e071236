"""Domain of what others have configured for the stack's kernel modules: lines of modprobe.d and words of the
kernel command line that keep a module out, give its device to vfio-pci, or set its options.

goldnode changes none of them: a person or a program such as `prime-select` wrote them on purpose.
They are reported with file and line before the next boot, at which they would take effect.
"""

from __future__ import annotations

from ...effective import kmod
from ...ground.host import Host, matching
from ..finding import MISMATCH, UNREAD, Finding, judge_item, place
from ..model import Action, Note, Observed, Refusal, Waiting
from ..remedy import COMMAND, PERSON, Remedy
from . import modules
from .driver import BLACKLIST, OPTIONS
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Sequence, Tuple

    from ...ground.document import ClassDocument

WANTED = "no line against the stack's modules"


def families(document: ClassDocument, seen: Observed) -> List[Tuple[Tuple[str, ...], bool]]:
    """Return the modules that the class needs: their names, and whether `blacklist` has an effect on them.

    udev loads the driver and systemd-modules-load the further modules, and both obey it.
    nvidia-modprobe loads nvidia_uvm by its name.
    """
    driver = document.get("driver")
    groups: List[Tuple[Tuple[str, ...], bool]] = []
    if driver:
        own = driver["module"]
        family = [((own, "nvidia"), True), ((f"{own}-uvm", "nvidia-uvm"), False)]
        groups += family if own.startswith("nvidia") else [((own,), True)]
    for row in document.get("modules") or ():
        inner = modules.inner_name(row["name"], seen.other_modules.get(row["name"]))
        groups.append(((row["name"], inner), bool(row.get("load"))))
    return groups


# -- observe


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Read the lines that concern the stack's modules, and vfio-pci's devices.

    The command line is that of the next boot, or that of this one where no loader of this node has
    another.
    """
    names = {kmod.underscored(name) for group, _ in families(document, seen) for name in group}
    names.update(document["blacklist"])
    if not names:
        return
    running = host.text("/proc/cmdline") if host.live and place(seen) is None else None
    text = seen.boot.get("cmdline") or running or ""
    spelled = sorted(names)
    try:
        lines = kmod.read(host, text)
    except OSError as problem:
        seen.modprobe = [{"error": f"{problem.filename}: {problem.strerror}"}]
        return
    seen.modprobe = [
        line._asdict()
        for line in kmod.settled(host, lines, names, document["kernel"]["release"])
        if line.name in kmod.STUBS
        or (line.command != "remove" and matching(spelled, line.name))
        or line.name.startswith("pci:")
    ]


# -- wanted state


def against(document: ClassDocument, seen: Observed) -> List[Tuple[kmod.ModprobeLine, str]]:
    """Return the lines that contradict the class, each with its effect."""
    lines = [kmod.ModprobeLine.of(row) for row in seen.modprobe if "error" not in row]
    effects: Dict[kmod.ModprobeLine, str] = {}
    for names, by_alias in families(document, seen):
        for line in kmod.against(lines, names, by_alias):
            effects.setdefault(line, f"keeps {names[0]} out")
    driver, gpu = document.get("driver"), document.get("gpu")
    if driver:
        names = families(document, seen)[0][0]
        for line in kmod.options(lines, names, driver.get("options") or {}, OPTIONS):
            effects.setdefault(line, f"sets options of {names[0]} otherwise than the class")
    ids = [str(row["id"]) for row in seen.gpus or ()]
    if gpu:
        ids = [*gpu["pci_ids"], *ids]
    takers = [(line, line.name) for line in kmod.given_away(lines, ids)]
    if driver:
        names = families(document, seen)[0][0]
        takers += [(line, line.rest) for line in kmod.diverts(lines, names, ids)]
    for line, taker in takers:
        effects.setdefault(line, f"gives the GPUs to {taker.replace('_', '-')}")
    for module in document["blacklist"]:
        for line in kmod.undoes(lines, module, BLACKLIST):
            if line.command == "install":
                effects.setdefault(line, f"loads {module}, which the class keeps out")
    return list(effects.items())


def _location(line: kmod.ModprobeLine, seen: Observed) -> str:
    """Return where a line is. A word of the command line is searched in GRUB's configuration."""
    if line.file == kmod.COMMAND_LINE:
        for row in seen.tuning.get("foreign", ()):
            if line.name in row["word"]:
                return f"{row['file']}:{row['line']}"
    return line.where()


def _texts(document: ClassDocument, seen: Observed) -> List[str]:
    return [
        f"{_location(line, seen)} {effect} (`{line.text()}`)"
        for line, effect in against(document, seen)
    ]


def _remedy(document: ClassDocument, seen: Observed) -> str:
    """Return how to take the lines back. A file of a package comes back with its next version: it is hidden."""
    parts = []
    lines = [line for line, _ in against(document, seen)]
    files = list(dict.fromkeys(line.file for line in lines))
    for file in files:
        if file == kmod.COMMAND_LINE:
            parts.append(
                "Take the words off the kernel command line (/etc/default/grub and /etc/default/grub.d, then "
                "`update-grub`)."
            )
        elif file.startswith(("/lib/", "/usr/lib/")):
            name = file.rpartition("/")[2]
            parts.append(f"Hide {file} with `ln -s /dev/null /etc/modprobe.d/{name}`.")
        else:
            numbers = ", ".join(str(line.line) for line in lines if line.file == file)
            parts.append(f"Remove line {numbers} of {file}.")
    return " ".join([*parts, "If this node is not to have the driver, move it to another class."])


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return no files: the class's own lines are written by the domains of driver and modules."""
    return []


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return no actions: the lines belong to others. Those that could not be read are noted."""
    texts = [f"modprobe's configuration: {row['error']}" for row in seen.modprobe if "error" in row]
    lines = [kmod.ModprobeLine.of(row) for row in seen.modprobe if "error" not in row]
    for module in document["blacklist"]:
        # udev still obeys `blacklist`: no fault of the node.
        texts += [
            f"{line.where()} (`{line.text()}`) makes modprobe ignore goldnode's `install` line, so that {module} "
            "can be loaded by its name"
            for line in kmod.undoes(lines, module, BLACKLIST)
            if line.command == "softdep"
        ]
    return [], [Note("driver.modprobe", text) for text in texts], []


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Refuse a node on which the driver would not be loaded as declared after the next boot."""
    texts = _texts(document, seen)
    if not texts:
        return []
    return [
        Refusal(
            "modprobe-conflict",
            f"The next boot would not load the modules of class {document['class']} as declared: "
            f"{'; '.join(texts)}.",
            _remedy(document, seen),
        )
    ]


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return whether the next boot loads the stack's modules, as far as modprobe's configuration decides it."""
    if not families(document, seen) and not document["blacklist"]:
        return []
    errors = [row["error"] for row in seen.modprobe if "error" in row]
    if errors:
        remedy = Remedy("Repair the file, or make it readable for root.", PERSON)
        return [Finding("driver.modprobe", UNREAD, WANTED, "; ".join(errors), remedy)]
    texts = _texts(document, seen)
    if not texts:
        return [judge_item("driver.modprobe", WANTED, WANTED, Remedy(""))]
    remedy = Remedy(
        _remedy(document, seen),
        COMMAND,
        before="the next boot would not load the driver as declared",
    )
    return [Finding("driver.modprobe", MISMATCH, WANTED, "; ".join(texts), remedy)]
