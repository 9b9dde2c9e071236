"""plan(): the difference between a class and a node.

Nodes, images, the boot check and the tests share this computation.
"""

from __future__ import annotations

import time

from ..ground import drained
from ..ground.host import Host
from . import owners, preflight
from .domains import (
    apt,
    driver,
    driver_files,
    files,
    follow,
    kernel,
    modprobe,
    modules,
    packages,
    parts,
    policy,
    program,
    runtime,
    scratch,
    serve,
    slots,
    tuning,
    units,
)
from .model import ABSENT, IMAGE, PARTS, PHASES, Action, Note, Observed, Plan, Waiting
from .observe import dpkg_lock_holder, observe, observe_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

    from ..ground.document import ClassDocument
    from .contract import Domain


# Domains with the complete domain interface. The other modules above depend on each other through the one
# package transaction, so the engine calls their functions by name.
DOMAINS: Tuple[Domain, ...] = (
    driver_files,
    modules,
    parts,
    modprobe,
    runtime,
    policy,
    tuning,
    scratch,
    units,
    serve,
    follow,
    slots,
)


def difference(
    document: ClassDocument,
    seen: Observed,
    payloads: Mapping[str, Any],
    phases: Sequence[str] = PHASES,
) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return the ordered actions that take the node to its class, notes, and changes that wait for a drain.

    Pure.

    Notes are settings that cannot be checked here.
    """
    # Directories first: until only root can write to them, users can replace the files in them.
    actions: List[Action] = (
        owners.secure(seen)
        + scratch.given_up(document, seen)
        + packages.repair(document, seen)
        + runtime.given_back(document, seen)
    )
    transaction = packages.transaction(document, seen)
    # Write everything that affects an initramfs before the transaction. Its triggers then
    # build the image only once.
    early = transaction.part if transaction else driver.initramfs_part(document)
    owned = [
        program.class_file(document),
        *apt.keys(document),
        *apt.sources(document, seen),
        apt.pins(document),
        apt.fence(document),
        *driver.until_boot(document, seen),
        *driver.module_files(document, early),
        *driver.initramfs_hook(document, early),
        *policy.daemon(document, seen, early),
        *kernel.hook(document, "kernel"),
        *program.files(payloads),
        *(file for domain in DOMAINS for file in domain.wanted(document, seen)),
    ]
    keep = [kernel.DROP_IN] if payloads.get("program") else [kernel.DROP_IN, program.PROGRAM]
    if "site" not in document:  # without a site, a document does not declare any mirrors
        keep += [
            path
            for path in seen.files
            if path.startswith(("/etc/apt/sources.list.d/", "/etc/apt/keyrings/"))
        ]
    actions += files.plan(owned, seen, keep)
    actions += driver.forced(seen, early)
    actions += packages.way_back(seen) + packages.let_go(document, seen)
    if transaction:
        actions.append(transaction)
    actions += packages.holds(document, seen) + kernel.restored(document, seen)
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


def reboot_reasons(document: ClassDocument, seen: Observed) -> List[str]:
    """Return why the node needs a reboot in its current state.

    Reasons are the marks of applied actions, and a difference between the loaded and the locked
    software.
    """
    reasons = list(seen.reboot_marks)
    release = document["kernel"]["release"]
    if seen.running_kernel and seen.running_kernel != release and release in seen.kernels:
        reasons.append(f"kernel {seen.running_kernel} runs, want {release}")
    driver, loaded = document.get("driver"), seen.loaded.get("nvidia")
    wanted = driver.get("version") if driver else None
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
    document: ClassDocument,
    seen: Observed,
    payloads: Mapping[str, Any],
    phases: Sequence[str] = PHASES,
) -> Plan:
    """Return the complete plan, including refusals, from observed facts.

    Pure: a case file provides `seen`.
    """
    actions, notes, waiting = difference(document, seen, payloads, phases)
    refusals = preflight.identity(document, seen) + owners.refusals(seen, actions)
    refusals = refusals + apt.unfenced(document, seen) + apt.refusals(document, seen)
    if actions:
        refusals = refusals + preflight.readiness(document, seen, actions)
    for domain in DOMAINS:
        refusals = refusals + domain.refusals(document, seen, actions)
    return Plan(
        tuple(actions),
        refusals=tuple(refusals),
        notes=(
            *notes,
            *preflight.notes(document, seen),
            *(Note(*note) for note in seen.back.get("notes", ())),
        ),
        waiting=tuple(waiting),
        reboot=tuple(reboot_reasons(document, seen)),
        class_digest=document["digest"],
        boot_identity=seen.boot_identity,
        held=tuple(policy.held(document, seen)),
        holders=tuple(seen.holders),
    )


def observed(host: Host, document: ClassDocument, back: bool = False) -> Observed:
    """Collect all facts for a plan or a verdict: :func:`observe`, and the facts of each domain. Reads only.

    `back` adds the facts for a rollback.
    """
    seen = observe(host, document)
    # `policy` comes last: the GPU library answers a running capture while the other domains observe.
    for domain in sorted(DOMAINS, key=lambda domain: domain is policy):
        domain.observe(host, document, seen)
    if back:
        from . import applied

        applied.observe_back(host, document, seen)
    return seen


def plan(
    host: Host,
    document: ClassDocument,
    payloads: Optional[Mapping[str, Any]] = None,
    phases: Optional[Sequence[str]] = None,
    lock_timeout: float = 0,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Observe a host and return its plan. Reads only.

    :param payloads: files that accompany the document; `back` marks a rollback to it.
    :param phases: default to all phases on the live machine and to `image` elsewhere.
    :param lock_timeout: seconds to wait for dpkg's lock if the plan needs it. After that, a refusal names
        the process that holds it.
    :param say: gets a line for a person when the wait begins.
    """
    phases = phases or (PHASES if host.live else (IMAGE,))
    back = bool((payloads or {}).get("back"))

    def now() -> Plan:
        seen = observed(host, document, back)
        driver_files.observe_all(host, document, seen)
        planned = judge(document, seen, payloads or {}, phases)
        if not planned.actions:
            return planned
        # Observing the users of GPUs and dpkg takes time and matters only for a change.
        observe_use(host, document, seen)
        return judge(document, seen, payloads or {}, phases)

    return unlocked(host, lock_timeout, now, say)._replace(drain=drained.text(host))


def judge_absent(
    document: Optional[ClassDocument], seen: Observed, known: Mapping[str, Any]
) -> Plan:
    """Return the plan that removes goldnode, from observed facts and the record `known`. Pure."""
    from . import removal  # start-up time: a check needs neither removal nor rollback

    actions, refusals, notes, waiting = removal.removal(document, seen, known, DOMAINS)
    return Plan(
        tuple(actions),
        refusals=tuple(refusals),
        notes=tuple(notes),
        waiting=tuple(waiting),
        reboot=tuple(removal.reboot_reasons(seen, waiting)),
        class_digest=removal.completed(document)["digest"],
        boot_identity=seen.boot_identity,
        state=ABSENT,
    )


def plan_absent(host: Host, lock_timeout: float = 0) -> Plan:
    """Observe a host and return the plan that removes goldnode from it. Reads only.

    The plan is based on the class document and the record on the node.
    """
    from . import record, removal

    def now() -> Plan:
        document, known = removal.own_document(host), record.read(host)
        seen = removal.observe_traces(host, document, known)
        for domain in DOMAINS:
            if hasattr(domain, "absent"):
                domain.observe(host, removal.completed(document), seen)
        planned = judge_absent(document, seen, known)
        if not planned.actions:
            return planned
        observe_use(host, removal.completed(document), seen)
        return judge_absent(document, seen, known)

    return unlocked(host, lock_timeout, now)._replace(drain=drained.text(host))


def unlocked(
    host: Host,
    seconds: float,
    now: Callable[[], Plan],
    say: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Return the result of `now`, after waiting up to `seconds` for dpkg's lock. Report the wait to `say` once.

    Does not wait if the plan changes no packages. A run whose parent was killed continues with one
    apt call after another. The lock may then be free for a moment and taken again, so only a plan
    that itself found the lock free counts.
    """
    end, waits = time.monotonic() + seconds, False
    planned = now()
    while (
        host.live
        and any(refusal.code == "dpkg-locked" for refusal in planned.refusals)
        and time.monotonic() < end
    ):
        while (holder := dpkg_lock_holder(host)) is not None and time.monotonic() < end:
            if not waits:
                say(f"waiting up to {seconds:.0f} s for dpkg's lock, held by process {holder}")
                waits = True
            time.sleep(0.5)
        planned = now()
    return planned
