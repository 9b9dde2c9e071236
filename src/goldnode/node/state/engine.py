"""plan(): what a class wants against what a node is. The one computation that nodes, images, the boot check and the tests share."""

from __future__ import annotations

import time

from .. import drained
from ..host import Host
from ..plain import replace
from . import owners, preflight
from .domains import (
    apt,
    driver,
    files,
    kernel,
    modules,
    packages,
    policy,
    program,
    runtime,
    serve,
    slots,
    tuning,
    units,
)
from .model import ABSENT, IMAGE, PARTS, PHASES, Action, Note, Observed, Plan, Waiting
from .observe import dpkg_lock_holder, observe, observe_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple, TypeAlias

    from .contract import Domain


Document: TypeAlias = "Mapping[str, Any]"

# Domains that bring everything of theirs themselves; the ones above them, being interwoven by the one transaction, are called by name.
DOMAINS: Tuple[Domain, ...] = (modules, runtime, policy, tuning, units, serve, slots)


def difference(
    document: Document, seen: Observed, payloads: Mapping[str, Any], phases: Sequence[str] = PHASES
) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """The actions that take the node to its class, in the order in which they are applied, what cannot be judged here, and what waits for
    a drain. Pure."""
    # Directories first: until they are root's alone, what is written into them can be replaced.
    actions: List[Action] = (
        owners.secure(seen) + packages.repair(document, seen) + runtime.given_back(document, seen)
    )
    transaction = packages.transaction(document, seen)
    # Whatever shapes an initramfs is written before the transaction, whose triggers make it: so it is made once, and right.
    early = transaction.part if transaction else "gpu_driver"
    owned = [
        program.class_file(document),
        *apt.keys(document),
        *apt.sources(document, seen),
        apt.pins(document),
        apt.fence(document),
        *driver.module_files(document, early),
        *driver.initramfs_hook(document, early),
        *policy.daemon(document, seen, early),
        *kernel.hook(document, "kernel"),
        *program.files(payloads),
        *(file for domain in DOMAINS for file in domain.wanted(document, seen)),
    ]
    keep = [kernel.DROP_IN] if payloads.get("program") else [kernel.DROP_IN, program.PROGRAM]
    if "site" not in document:  # a document that no site has completed says nothing of mirrors
        keep += [
            path for path in seen.files if path.startswith(("/etc/apt/sources.list.d/", "/etc/apt/keyrings/"))
        ]
    actions += files.plan(owned, seen, keep)
    actions += driver.forced(seen, early)
    actions += packages.way_back(seen) + packages.let_go(document, seen)
    if transaction:
        actions.append(transaction)
    actions += packages.holds(document, seen)
    actions += modules.builds(document, seen)
    actions += driver.initramfs(document, seen)
    boot, notes = kernel.boot_entry(document, seen)
    actions += boot
    actions += program.links(seen)
    reload, waiting = units.reload(seen, actions)
    actions += reload
    for domain in DOMAINS:
        changes, unjudged, later = domain.plan(document, seen)
        actions += changes
        notes += unjudged
        waiting += later
    notes += owners.notes(seen)
    wanted = [action for action in actions if action.phase in phases]
    return sorted(wanted, key=lambda action: PARTS.index(action.part)), notes, waiting


def reboot_reasons(document: Document, seen: Observed) -> List[str]:
    """Why the node, as it stands, has to be booted: marks left by applied actions, and what is loaded against what is locked."""
    reasons = list(seen.reboot_marks)
    release = document["kernel"]["release"]
    if seen.running_kernel and seen.running_kernel != release and release in seen.kernels:
        reasons.append(f"kernel {seen.running_kernel} runs, want {release}")
    wanted = (document.get("driver") or {}).get("version")
    loaded = seen.loaded.get("nvidia")
    if wanted and loaded and loaded != wanted:
        reasons.append(f"driver {loaded} is loaded, want {wanted}")
    reasons += [
        f"{module} is loaded, and is kept out by the class"
        for module in document["blacklist"]
        if module in seen.loaded
    ]
    return list(
        dict.fromkeys(
            [
                *reasons,
                *modules.reboot(document, seen),
                *policy.reboot_reasons(document, seen),
                *tuning.reboot(document, seen),
            ]
        )
    )


def judge(
    document: Document, seen: Observed, payloads: Mapping[str, Any], phases: Sequence[str] = PHASES
) -> Plan:
    """The whole plan from what was seen, refusals included. Pure: a case file states `seen`."""
    actions, notes, waiting = difference(document, seen, payloads, phases)
    refusals = preflight.identity(document, seen) + owners.refusals(seen, actions)
    if actions:
        refusals = refusals + preflight.readiness(document, seen, actions)
    for domain in DOMAINS:
        refusals = refusals + domain.refusals(document, seen, actions)
    return Plan(
        tuple(actions),
        tuple(refusals),
        (*notes, *preflight.notes(document, seen), *(Note(*note) for note in seen.back.get("notes", ()))),
        tuple(waiting),
        tuple(reboot_reasons(document, seen)),
        document["digest"],
        seen.boot_identity,
        held=tuple(policy.held(document, seen)),
        holders=tuple(seen.holders),
    )


def look(host: Host, document: Document, back: bool = False) -> Observed:
    """All that a plan or a verdict asks of a node: :func:`observe`, and what each domain reads; `back`: and what a rollback asks. Reads only."""
    seen = observe(host, document)
    for domain in sorted(
        DOMAINS, key=lambda domain: domain is policy
    ):  # last: meanwhile the GPU library answers a capture that has begun
        domain.observe(host, document, seen)
    if back:
        from . import applied

        applied.observe_back(host, document, seen)
    return seen


def plan(
    host: Host,
    document: Document,
    payloads: Optional[Mapping[str, Any]] = None,
    phases: Optional[Sequence[str]] = None,
    lock_timeout: float = 0,
) -> Plan:
    """Observe a host and judge it. Reads only. `phases` default to all on the live machine and to `image` elsewhere.

    :param payloads: what travels beside the document; `back` says that the node returns to it.
    :param lock_timeout: seconds to wait for whoever holds dpkg's lock, where the plan needs it; then the holder is named in a refusal.
    """
    phases = phases or (PHASES if host.live else (IMAGE,))
    back = bool((payloads or {}).get("back"))

    def now() -> Plan:
        seen = look(host, document, back)
        found = judge(document, seen, payloads or {}, phases)
        if not found.actions:
            return found
        observe_use(host, document, seen)
        return judge(document, seen, payloads or {}, phases)

    return replace(unlocked(host, lock_timeout, now), drain=drained.text(host))


def judge_absent(document: Optional[Document], seen: Observed, known: Mapping[str, Any]) -> Plan:
    """The plan that takes goldnode away, from what was seen and from its record `known`. Pure."""
    from . import removal  # and its like: a check neither removes nor returns

    actions, refusals, notes, waiting = removal.removal(document, seen, known, DOMAINS)
    return Plan(
        tuple(actions),
        tuple(refusals),
        tuple(notes),
        tuple(waiting),
        tuple(removal.reboot_reasons(seen, waiting)),
        removal.completed(document)["digest"],
        seen.boot_identity,
        ABSENT,
    )


def plan_absent(host: Host, lock_timeout: float = 0) -> Plan:
    """Observe a host and judge what of goldnode is on it, by the class document and the record that are on it. Reads only."""
    from . import record, removal

    def now() -> Plan:
        document, known = removal.own_document(host), record.read(host)
        seen = removal.observe_traces(host, document, known)
        for domain in DOMAINS:
            if hasattr(domain, "absent"):
                domain.observe(host, removal.completed(document), seen)
        found = judge_absent(document, seen, known)
        if not found.actions:
            return found
        observe_use(host, removal.completed(document), seen)
        return judge_absent(document, seen, known)

    return replace(unlocked(host, lock_timeout, now), drain=drained.text(host))


def unlocked(host: Host, seconds: float, now: Callable[[], Plan]) -> Plan:
    """What `now` finds once nobody holds dpkg's lock, waiting at most so long for that. Nothing is waited for where no package moves.

    A run whose start was killed works on, with one call of apt after another: the lock may be free for a moment and taken when looked at
    again, so that what counts is that the plan itself found it free.
    """
    end = time.monotonic() + seconds
    found = now()
    while (
        host.live
        and any(refusal.code == "dpkg-locked" for refusal in found.refusals)
        and time.monotonic() < end
    ):
        while dpkg_lock_holder(host) is not None and time.monotonic() < end:
            time.sleep(0.5)
        found = now()
    return found
