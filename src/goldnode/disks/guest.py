"""Checks of a booted guest against its image. Pure: facts and class document in, checks out.

`collector.py` prints the facts in the guest. Every check has one of three outcomes. `not-verifiable` marks an
item that a virtual machine without the hardware cannot show, and is never `passed`. A separate check requires
that the node reports that item too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

from goldnode.disks.model import BuiltDisk, Partition
from goldnode.node.gate import gate
from goldnode.node.ground import gate_files, systemd
from goldnode.node.ground.document import ClassDocument
from goldnode.node.ground.text import shortened
from goldnode.node.state.domains import policy, scratch
from goldnode.node.state.domains.program import document_digest
from goldnode.node.state.finding import Finding, place
from goldnode.node.state.model import Observed
from goldnode.node.verdict import check as verdict_check

Outcome = Literal["passed", "failed", "not-verifiable"]
PASSED: Final = "passed"
FAILED: Final = "failed"
UNVERIFIABLE: Final = "not-verifiable"
Facts = Mapping[str, Any]
Document = Mapping[str, Any]

MIB = 1024 * 1024
PEERLESS = "module compiled without IB peer memory symbols"  # message of nvidia-peermem
# Kernel messages about a module that was built for another kernel, or that the kernel does not trust.
UNFIT = re.compile(
    r"Invalid module format|[Uu]nknown symbol|version magic|Exec format error|disagrees about version|"
    r"Key was rejected|Required key not available|[Ll]oading of unsigned module"
)
# Files in an initramfs that identify the build machine, or that give access to one.
FOREIGN = re.compile(
    r"(?:^|/)(?:ssh_host_[^/]*|authorized_keys|id_(?:rsa|ed25519|ecdsa)|mok\.(?:key|priv)|[^/]*\.pem)$"
)
# Units that run a package manager unattended.
UPDATERS = ("apt-daily.service", "apt-daily-upgrade.service", "unattended-upgrades.service")
# Findings of a node that takes itself for an image or a container. A booted disk is neither.
ELSEWHERE = tuple(str(place(Observed(live=live, container=True))) for live in (False, True))
# Note of a plan -> id of the same finding in a verdict.
SAME_AS = {"boot.entry": "boot.next"}
# Sockets of a client that waits for its own server: DHCP.
CLIENTS = (("udp", "68"), ("udp", "546"))
EPHEMERAL = (
    32768  # first port that Linux gives to a client which asks for none (ip_local_port_range)
)
IDENTITY = ("machine_id", "hostname", "host_keys", "client_ids")


@dataclass(frozen=True)
class GuestCheck:
    """Result of one check.

    `id` names the checked item. `expected` and `got` are short texts for people.
    """

    id: str
    outcome: Outcome
    expected: str
    got: str

    def row(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class GuestExpectations:
    """Expectations derived from an image: parts of its manifest, and the size (bytes) of the guest's disk."""

    kernel: str
    class_digest: str
    driver: tuple[str, str] | None  # module, version
    modules: tuple[str, ...]
    packages: Mapping[str, str]
    pending: tuple[tuple[str, str], ...]  # id, reason
    partitions: tuple[Partition, ...]
    layout: str
    loader: str
    build_id: str
    epoch: int
    disk_size: int
    listen: tuple[str, ...] = ()

    @classmethod
    def of(cls, built: BuiltDisk, disk_size: int) -> GuestExpectations:
        return cls(
            kernel=built.kernel,
            class_digest=built.class_digest,
            driver=None if built.driver is None else (built.driver.module, built.driver.version),
            modules=built.modules,
            packages={row.name: row.version for row in built.packages},
            pending=tuple((row.id, row.reason) for row in built.pending),
            partitions=built.partitions,
            layout=built.layout,
            loader=built.loader,
            build_id=built.build_id,
            epoch=built.epoch,
            disk_size=disk_size,
            listen=built.listen,
        )

    def asked(self) -> dict[str, Any]:
        """Return the request to the collector for facts beyond those it always reports."""
        names = ([self.driver[0]] if self.driver else []) + [
            name for name in self.modules if not self.driver or name != self.driver[0]
        ]
        sums = [f"/boot/vmlinuz-{self.kernel}", f"/boot/initrd.img-{self.kernel}"]
        if self.loader == "systemd-boot":
            sums += ["/efi/goldnode/a/vmlinuz", "/efi/goldnode/a/initrd.img"]
        return {"modules": names, "sums": sums, "status": list(gate_files.RUNTIMES)}


def same(name: str, expected: Any, got: Any) -> GuestCheck:
    """Return a check that passes if both values are equal."""
    return GuestCheck(name, PASSED if expected == got else FAILED, brief(expected), brief(got))


def holds(name: str, good: bool, expected: str, got: Any) -> GuestCheck:
    return GuestCheck(name, PASSED if good else FAILED, expected, brief(got))


def brief(value: Any, limit: int = 400) -> str:
    """Return a value as one short line."""
    text = re.sub(r"\s+", " ", value if isinstance(value, str) else str(value)).strip()
    return shortened(text, limit)


def listed(rows: Iterable[str], none: str = "none", most: int = 6) -> str:
    """Return the first `most` items, and their total number if there are more."""
    words = list(rows)
    more = f" … ({len(words)} in all)" if len(words) > most else ""
    return ", ".join(words[:most]) + more if words else none


def judge(
    facts: Facts,
    wanted: GuestExpectations,
    *,
    first: Facts | None = None,
    simulated: bool = False,
    missing: bool = False,
) -> list[GuestCheck]:
    """Return all checks of one boot.

    `first` are the facts of the first boot of the same disk, for a later boot. `simulated`: GPUs are
    simulated in the guest, so it must report them as the class declares. `missing`: one simulated GPU was
    removed on purpose.
    """
    document = facts.get("class") or {}
    checks = [*_system(facts, wanted, document, simulated, missing), *_class(facts, wanted)]
    checks += [*_modules(facts, wanted, document), *_initramfs(facts, document)]
    checks += [*_packages(facts, wanted, document), *_disk(facts, wanted)]
    checks += [*_identity(facts, first), *_listeners(facts, wanted)]
    if document:
        checks += [
            *_verdict(facts, document, simulated),
            *_gate(facts, document),
            *_plan(facts, wanted, document),
        ]
    return checks


def failed(checks: Iterable[GuestCheck]) -> list[GuestCheck]:
    return [check for check in checks if check.outcome == FAILED]


def outcome(checks: Sequence[GuestCheck]) -> Outcome:
    """Return `failed` if any check failed or the list is empty, otherwise `passed`.

    Items that could not be verified do not count.
    """
    return FAILED if not checks or failed(checks) else PASSED


# -- the system


def _listeners(facts: Facts, wanted: GuestExpectations) -> Iterator[GuestCheck]:
    """Judge the sockets that other machines reach: those of ssh, and those that the disk's definition lists."""
    rows = facts.get("listeners")
    allowed = {"22/tcp", *wanted.listen}
    expected = f"other machines reach {listed(sorted(allowed))} only"
    if rows is None:
        yield GuestCheck("listeners", FAILED, expected, "ss could not list the sockets")
        return
    others = []
    for row in rows:
        protocol, port, address = row["protocol"], row["port"], row["address"].partition("%")[0]
        local = address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1")
        client = (protocol, port) in CLIENTS or (protocol == "udp" and int(port) >= EPHEMERAL)
        if not local and not client and f"{port}/{protocol}" not in allowed:
            others.append(f"{row['programs'] or 'a program'} on {port}/{protocol}")
    yield holds(
        "listeners",
        not others,
        expected,
        listed(sorted(set(others)), "no other port"),
    )


def _unit(facts: Facts, name: str) -> Mapping[str, str]:
    unit: Mapping[str, str] = (facts.get("units") or {}).get(name) or {}
    return unit


def wants_disk(name: str, document: Document) -> str | None:
    """Return why a unit of a class with scratch space fails without its disks; None for any other unit. Pure."""
    scratch_unit = name == scratch.SERVICE and document.get("scratch")
    return "the disks of its scratch space are not here" if scratch_unit else None


def wants_gpu(
    name: str, reported: str, document: Document, simulated: bool, missing: bool = False
) -> str | None:
    """Return why a unit of a class with GPUs fails without them; None if missing GPUs are no explanation.

    Pure.

    :param reported: the unit's lines of the journal.
    :param simulated: library and bus of the GPUs are simulated, so that a policy can be set. A driver still
        finds no device.
    :param missing: one simulated GPU was removed.
    """
    if not document.get("gpu") or (document.get("driver") or {}).get("in_tree"):
        return None
    if name == "systemd-modules-load.service":
        # Debian's modprobe.d loads the modules with `install` lines, which report any failure as "Invalid
        # argument". The actual cause is in an earlier line.
        lost = re.findall(r"insert (?:module )?'([^']+)'", reported)
        own = lost and all(
            module.startswith(str(document["driver"]["module"]).split("-")[0]) for module in lost
        )
        if own and "No such device" in reported and not UNFIT.search(reported):
            return "the driver finds no device"
        return None
    if name == "nvidia-persistenced.service":
        # The policy starts the daemon. It opens device files, which a simulated library does not have.
        if "Failed to query NVIDIA devices" in reported:
            return "the driver's daemon finds no device"
        return None
    if name != "goldnode-policy.service":
        return None
    if missing:
        if re.search(r"The PCI bus shows \d+ .*; class .* has \d+\.", reported):
            return "it refuses to set the others"
        return None
    return None if simulated else "there is no GPU to set"


def _system(
    facts: Facts, wanted: GuestExpectations, document: Document, simulated: bool, missing: bool
) -> Iterator[GuestCheck]:
    yield same(
        "boot.multi_user", "active", _unit(facts, "multi-user.target").get("ActiveState", "unknown")
    )
    logs = facts.get("failures") or {}
    whys = {
        name: wants_disk(name, document)
        or wants_gpu(name, logs.get(name, ""), document, simulated, missing)
        for name in facts.get("failed") or ()
    }
    reported = [
        f"{name}: {logs.get(name, '').splitlines()[-1:]}"
        for name, why in whys.items()
        if why is None
    ]
    yield holds("units.failed", not reported, "none", "; ".join(reported) or "none")
    for name, why in whys.items():
        if why is not None:
            yield GuestCheck(f"units.{name}", UNVERIFIABLE, "starts with the class's hardware", why)
    if whys and not reported and facts.get("state") == "degraded":
        yield GuestCheck(
            "system.state", UNVERIFIABLE, "running", f"degraded, by {listed(whys)} alone"
        )
    else:
        yield same("system.state", "running", facts.get("state"))
    yield same("kernel.running", wanted.kernel, facts.get("kernel"))
    if wanted.loader == "systemd-boot":
        entry = str(facts.get("entry") or "")
        good = wanted.build_id in entry and entry.startswith("goldnode-")
        yield holds(
            "boot.entry",
            good,
            f"an entry of build {wanted.build_id}",
            entry or "the loader does not say",
        )
        sums = facts.get("sum") or {}
        for field, key in (
            (f"/boot/vmlinuz-{wanted.kernel}", "vmlinuz"),
            (f"/boot/initrd.img-{wanted.kernel}", "initrd.img"),
        ):
            one, other = sums.get(field), sums.get(f"/efi/goldnode/a/{key}")
            if one and one == other:
                got = "the same"
            else:
                got = f"{field}: {one or 'missing'}, on the ESP: {other or 'missing'}"
            yield holds(
                f"boot.{key}",
                bool(one and one == other),
                "the root's and the ESP's are the same",
                got,
            )
    password = (facts.get("root_password") or ["?"])[0]
    yield holds("root.password", password in ("L", "LK"), "locked", password)


def _class(facts: Facts, wanted: GuestExpectations) -> Iterator[GuestCheck]:
    document = facts.get("class") or {}
    computed = document_digest(document) if document else "no class document"
    yield same(
        "class.document",
        wanted.class_digest,
        document.get("digest") if computed == document.get("digest") else f"edited: {computed}",
    )


# -- modules


def _modules(facts: Facts, wanted: GuestExpectations, document: Document) -> Iterator[GuestCheck]:
    modules = facts.get("modules") or {}
    loads = {row["name"]: row.get("load", True) for row in document.get("modules") or ()}
    in_tree = bool((document.get("driver") or {}).get("in_tree"))
    for name, row in modules.items():
        fields = row.get("fields") or {}
        magic = (fields.get("vermagic") or "").split(" ")[0]
        yield holds(
            f"module.{name}.kernel",
            magic == wanted.kernel,
            f"made for {wanted.kernel}",
            magic or row.get("error") or "no such module",
        )
        if wanted.driver and name == wanted.driver[0] and not in_tree:
            yield same(f"module.{name}.version", wanted.driver[1], fields.get("version") or "none")
        verdict = fits(f"module.{name}.fits", row)
        if verdict.outcome == FAILED and loads.get(name) is False:
            verdict = GuestCheck(
                verdict.id,
                UNVERIFIABLE,
                verdict.expected,
                brief(f"the class has it and does not load it: {verdict.got}"),
            )
        elif (
            verdict.outcome == FAILED
            and name not in loads
            and PEERLESS in (row.get("kernel") or "")
        ):
            # The module comes with the driver. Built without OFED it fails on every machine, and the class
            # does not request it.
            verdict = GuestCheck(verdict.id, UNVERIFIABLE, verdict.expected, f"it is a {PEERLESS}")
        yield verdict
    for name in wanted.modules:
        if name not in modules:
            yield GuestCheck(
                f"module.{name}.kernel",
                FAILED,
                f"made for {wanted.kernel}",
                "the guest did not say",
            )
    if wanted.driver and wanted.driver[0] not in modules:
        yield GuestCheck(
            f"module.{wanted.driver[0]}.kernel",
            FAILED,
            f"made for {wanted.kernel}",
            "the guest did not say",
        )
    for name in document.get("blacklist") or ():
        refused = (facts.get("refusals") or {}).get(name)
        yield _refused(name, refused, facts.get("loaded") or ())


def fits(name: str, row: Mapping[str, Any]) -> GuestCheck:
    """Check that a module is compatible with this kernel: it loads, or fails only because there is no
    hardware.
    """
    expected = "loads, or ends in ENODEV for want of the hardware"
    reported = f"{row.get('said') or ''}\n{row.get('kernel') or ''}"
    wrong = UNFIT.search(reported)
    if wrong:
        line = next((line for line in reported.splitlines() if wrong[0] in line), wrong[0])
        return GuestCheck(name, FAILED, expected, brief(line))
    if row.get("rc") == 0 and row.get("loaded"):
        return GuestCheck(name, PASSED, expected, "loaded")
    if "No such device" in reported:
        about = re.search(
            r"NVRM: (No NVIDIA GPU found|The NVIDIA probe routine was not called)[^\n]*|"
            r"no (?:supported )?(?:device|GPU)[^\n]*",
            reported,
            re.I,
        )
        return GuestCheck(
            name, PASSED, expected, brief("No such device" + (f"; {about[0]}" if about else ""))
        )
    return GuestCheck(
        name, FAILED, expected, brief(row.get("said") or f"exit status {row.get('rc')}")
    )


def _refused(name: str, row: Mapping[str, Any] | None, loaded: Sequence[str]) -> GuestCheck:
    check = f"refused.{name}"
    if row is None:
        return GuestCheck(check, FAILED, "refused", "the guest did not say")
    if name.replace("-", "_") in loaded:
        return GuestCheck(check, FAILED, "refused", "this boot has loaded it")
    if row.get("rc") == 0 or row.get("loaded"):
        return GuestCheck(
            check,
            FAILED,
            "refused",
            f"modprobe ended with {row.get('rc')}"
            + (", and it is loaded" if row.get("loaded") else ""),
        )
    return GuestCheck(
        check, PASSED, "refused", brief(row.get("said") or f"exit status {row.get('rc')}")
    )


def _initramfs(facts: Facts, document: Document) -> Iterator[GuestCheck]:
    image = facts.get("initramfs") or {}
    names = list(image.get("names") or ())
    if image.get("error") or not names:
        yield GuestCheck(
            "initramfs", FAILED, "can be listed", brief(image.get("error") or "it is empty")
        )
        return
    unwanted = {module.replace("-", "_") for module in document.get("blacklist") or ()}
    bad = [
        name
        for name in names
        if re.sub(r"\.ko(\.\w+)?$", "", name.rpartition("/")[2]).replace("-", "_") in unwanted
        and ".ko" in name
    ]
    bad += [name for name in names if FOREIGN.search(name)]
    yield holds(
        "initramfs",
        not bad,
        "no refused module, no key",
        listed(bad) if bad else f"{len(names)} files, none of them",
    )


# -- packages


def _packages(facts: Facts, wanted: GuestExpectations, document: Document) -> Iterator[GuestCheck]:
    have = facts.get("packages") or {}
    installed = {name: row[0] for name, row in have.items() if str(row[2]) in ("ii", "hi")}
    other = sorted(
        [
            f"{name} {installed.get(name, 'missing')} (want {version})"
            for name, version in wanted.packages.items()
            if installed.get(name) != version
        ]
        + [
            f"{name} {version} (not in the lock)"
            for name, version in installed.items()
            if name not in wanted.packages
        ]
    )
    broken = sorted(
        f"{name} is {row[2]}"
        for name, row in have.items()
        if str(row[2]) not in ("ii", "hi", "rc", "un")
    )
    expected = f"the {len(wanted.packages)} packages of the manifest"
    yield holds(
        "packages", not other and not broken, expected, listed(other + broken, none=expected)
    )
    stack = [row["name"] for row in document.get("packages") or ()]
    free = sorted(set(stack) - set(facts.get("holds") or ()))
    yield holds(
        "packages.held",
        not free,
        f"{len(stack)} packages of the stack on hold",
        f"free: {listed(free)}" if free else "all of them",
    )
    times = facts.get("package_managers") or {}
    written = [path for path, when in sorted(times.items()) if int(when) > wanted.epoch]
    ran = [
        name
        for name in UPDATERS
        if int(_unit(facts, name).get("InactiveExitTimestampMonotonic") or 0) > 0
    ]
    none = "none has run"
    yield holds(
        "packages.manager",
        not written and not ran and bool(times),
        none,
        listed([*written, *ran], none=none if times else "dpkg has no files"),
    )


# -- the disk


def _flat(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        yield row
        yield from _flat(row.get("children") or ())


def _disk(facts: Facts, wanted: GuestExpectations) -> Iterator[GuestCheck]:
    rows = list(_flat(facts.get("disks") or ()))
    root = next((row for row in rows if row.get("mountpoint") == "/"), {})
    shipped = next((part for part in wanted.partitions if part.name in ("root-a", "root")), None)
    if shipped is None:
        yield GuestCheck("disk.root", FAILED, "a root partition in the manifest", "none")
        return
    yield same("disk.root", shipped.name, root.get("partlabel") or "unknown")
    for name, shared, own in (
        ("disk.root.uuid", shipped.uuid, root.get("partuuid")),
        ("disk.filesystem.uuid", shipped.filesystem_uuid, root.get("uuid")),
    ):
        # GRUB finds its files by the UUID of the file system, which stays.
        if name == "disk.root.uuid" or wanted.layout == "ab":
            good = bool(own) and str(own).lower() != shared.lower()
            yield holds(name, good, "one of its own, not that of the image", str(own))
    size, files = int(root.get("size") or 0), int((facts.get("root") or {}).get("size") or 0)
    room = wanted.disk_size - max((part.start + part.size for part in wanted.partitions), default=0)
    other = next((row for row in rows if row.get("partlabel") == "root-b"), None)
    if wanted.layout == "ab":
        enough = room >= shipped.size + 2 * MIB
        if enough:
            got = f"{int(other['size']) // MIB} MiB" if other else "there is no root-b"
            # systemd-repart gives both slots equal weight: they differ by alignment only.
            good = (
                other is not None
                and int(other["size"]) >= shipped.size
                and abs(int(other["size"]) - size) <= 4 * MIB
            )
            yield holds("disk.root-b", good, f"root-b, as large as root-a ({size // MIB} MiB)", got)
            room = (room - shipped.size) // 2
        else:
            yield holds(
                "disk.root-b",
                other is None,
                "no root-b: the disk has no room for it",
                "there is one" if other else "none",
            )
    expected = shipped.size + max(room - 16 * MIB, 0)  # minus the space for the table and alignment
    yield holds(
        "disk.grown",
        size >= expected,
        f"a root of at least {expected // MIB} MiB",
        f"{size // MIB} MiB",
    )
    # ext4 uses a few percent for itself (inode tables, journal).
    yield holds(
        "disk.filesystem",
        files >= size * 0.9,
        f"the file system fills its partition of {size // MIB} MiB",
        f"{files // MIB} MiB",
    )


# -- identity


def _identity(facts: Facts, first: Facts | None) -> Iterator[GuestCheck]:
    have = facts.get("identity") or {}
    machine = str(have.get("machine_id") or "")
    yield holds(
        "identity.machine_id",
        bool(re.fullmatch(r"[0-9a-f]{32}", machine)),
        "32 hex digits of its own",
        machine or "none",
    )
    keys = have.get("host_keys") or {}
    kinds = sorted(re.sub(r"^ssh_host_|_key\.pub$", "", name) for name in keys)
    yield holds(
        "identity.host_keys",
        "ed25519" in kinds and all(keys.values()),
        "made at the first boot",
        listed(kinds),
    )
    name = str(have.get("hostname") or "")
    yield holds(
        "identity.hostname",
        name not in ("", "localhost", "(none)"),
        "a name of its own",
        name or "none",
    )
    client = have.get("client_ids") or []
    yield holds(
        "identity.client_id",
        bool(client),
        "a DHCP client identifier (DUID)",
        listed(client, none="there is no lease"),
    )
    if first is not None:
        before = first.get("identity") or {}
        yield same("identity.kept.disk", _shown(_guids(first)), _shown(_guids(facts)))
        for key in IDENTITY:
            yield same(f"identity.kept.{key}", _shown(before.get(key)), _shown(have.get(key)))
        yield holds(
            "boot.new",
            facts.get("boot_id") != first.get("boot_id"),
            "another boot",
            str(facts.get("boot_id")),
        )


def _guids(facts: Facts) -> list[str]:
    """Return the GUID of each partition of the disk that has the root."""
    rows = list(_flat(facts.get("disks") or ()))
    own = next((row.get("pkname") for row in rows if row.get("mountpoint") == "/"), None)
    return sorted(str(row.get("partuuid")) for row in rows if own and row.get("pkname") == own)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key.removeprefix('ssh_host_').removesuffix('_key.pub')} {row}"
            for key, row in sorted(value.items())
        )
    return listed(map(str, value)) if isinstance(value, list) else str(value)


def unique(one: Facts, other: Facts) -> list[GuestCheck]:
    """Check two clones side by side for items that must be unique.

    The kinds of host keys are equal, but the clones must not share a key.
    """
    first, second = one.get("identity") or {}, other.get("identity") or {}
    mine_of, its_of = _guids(one), _guids(other)
    common = sorted(set(mine_of) & set(its_of))
    good = bool(mine_of) and bool(its_of) and not common
    got = listed(common, none="none in common" if good else "one has none")
    checks = [holds("clones.disk", good, "no GUID of a partition in common", got)]
    for key in (*IDENTITY, "random_seed"):
        mine, its = first.get(key), second.get(key)
        if key == "host_keys":
            common = sorted(set((mine or {}).values()) & set((its or {}).values()))
            good = bool(mine) and bool(its) and not common
            checks.append(
                holds(
                    "clones.host_keys",
                    good,
                    "no key in common",
                    listed(common, none="none in common" if good else "one has none"),
                )
            )
            continue
        if key == "random_seed" and not (mine and its):  # written at shutdown, so it may be missing
            continue
        checks.append(
            holds(
                f"clones.{key}",
                bool(mine) and bool(its) and mine != its,
                "each its own",
                f"{_shown(mine)} and {_shown(its)}",
            )
        )
    return checks


# -- the boot check and its gate


def declared(document: ClassDocument) -> list[str]:
    """Return the ids of findings that only the class's hardware can match: number of GPUs, their driver, and
    their settings.

    They are computed from the class document with the node's own policy rules. A virtual machine without the
    hardware must match none of them.
    """
    gpu = document.get("gpu")
    if not gpu or not gpu.get("count"):
        return []
    ids = ["gpu.count"]
    driver = document.get("driver")
    if driver:
        ids.append("driver.loaded")
    if policy.declares(document):
        blind = Observed(
            gpu_settings={"vendor": gpu["vendor"], "error": "not asked", "gpus": {}, "record": {}}
        )
        ids += [finding.id for finding in policy.findings(document, blind)]
    return ids


def missing_here(document: Document) -> list[tuple[str, str]]:
    """Return (pattern of finding ids, reason) for everything a virtual machine cannot show of this class.

    The list contains only items that the class document declares.
    """
    absent = []
    if document.get("gpu"):
        kinds = (
            r"gpu\.|nvlink\.|fabric\.|pcie\.|runtime\.cdi|"
            r"driver\.(loaded|agree)$|module\.loaded$|xid\.|policy\.(?!host\.)"
        )
        absent.append(
            (kinds, f"the machine has none of the class's {document['gpu']['count']} GPUs")
        )
    if ((document.get("policy") or {}).get("host") or {}).keys() & {
        "governor",
        "iommu",
        "network",
        "irq_affinity",
    }:
        absent.append(
            (
                r"policy\.host\.(governor|iommu|network)",
                "a virtual machine has no frequency governor, no IOMMU and other interfaces",
            )
        )
    if document.get("scratch"):
        absent.append(
            (r"scratch\.", "the machine has none of the disks of the class's scratch space")
        )
    baseline = document.get("baseline") or {}
    for section, kinds in (
        ("cpu", r"cpu\."),
        ("memory", r"memory\.(total|edac)"),
        ("network", r"net\."),
        ("infiniband", r"ib\.|module\.loaded"),
        ("storage", r"storage\."),
    ):
        if baseline.get(section):
            absent.append((kinds, f"the class's {section} is of its hardware"))
    absent.append(
        (r"time\.sync$", "the machine's network ends in QEMU, and there is no time server in it")
    )
    absent.append(
        (r"storage\.health$|pcie\.link$", "virtual disks and links have no values of their own")
    )
    return absent


def _reason(name: str, reasons: Sequence[tuple[str, str]]) -> str | None:
    return next((why for pattern, why in reasons if re.match(pattern, name)), None)


def _verdict(facts: Facts, document: Document, simulated: bool) -> Iterator[GuestCheck]:
    verdict = facts.get("verdict")
    unit = _unit(facts, "goldnode-sanity.service")
    ran = unit.get("ActiveState") == "active" and unit.get("Result") == "success"
    if not isinstance(verdict, dict) or not verdict.get("findings"):
        yield GuestCheck(
            "check.ran",
            FAILED,
            "a verdict of this boot",
            brief(
                facts.get("sanity_log") or f"goldnode-sanity.service is {unit.get('ActiveState')}"
            ),
        )
        return
    mine = verdict.get("boot_identity") and str(facts.get("boot_id")) in str(
        verdict.get("boot_identity")
    )
    good = bool(ran and mine and verdict.get("class_digest") == document.get("digest"))
    got = f"{verdict.get('status')} (exit code {verdict.get('exit_code')}), {len(verdict['findings'])} findings"
    if not good:
        got += f"; unit {unit.get('ActiveState')}, boot {verdict.get('boot_identity')}"
    yield holds("check.ran", good, "a verdict of this boot and class", got)
    findings = verdict["findings"]
    reasons = [] if simulated else missing_here(document)
    always = missing_here({**document, "gpu": None}) if simulated else []
    hardware = [] if simulated else declared(cast(ClassDocument, document))
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for finding in findings:
        by_id.setdefault(str(finding["id"]), []).append(finding)
    # Hardware that the class declares and this machine lacks: the verdict must report it, and must not pass
    # it.
    for name in hardware:
        rows = by_id.get(name, [])
        if not rows:
            yield GuestCheck(
                f"check.says.{name}",
                FAILED,
                "said to be missing or not verifiable here",
                "the verdict does not speak of it",
            )
        elif any(row["outcome"] == "match" for row in rows):
            got = f"match: {rows[0]['got']}"
            yield GuestCheck(
                f"check.says.{name}",
                FAILED,
                "said to be missing or not verifiable here: the machine has no such GPU",
                brief(got),
            )
        else:
            yield GuestCheck(
                f"check.says.{name}",
                UNVERIFIABLE,
                brief(rows[0]["expected"]),
                brief(f"{rows[0]['outcome']}: {rows[0]['got']}"),
            )
    if hardware:
        code = verdict.get("exit_code")
        yield holds(
            "check.never_healthy",
            code != 0,
            "not healthy: its GPUs are not here",
            f"exit code {code}",
        )
    # Other findings concern the image itself, or hardware that a virtual machine does not have.
    wrong: list[tuple[Mapping[str, Any], str | None]] = []
    unseen: list[tuple[Mapping[str, Any], str | None]] = []
    for finding in findings:
        name = str(finding["id"])
        if finding["outcome"] in ("match", "deferred", "suppressed") or name in hardware:
            continue
        if finding["outcome"] == "not_exposed" and not verdict_check.unknown(_finding(finding)):
            continue  # the setter accepted it, or the class does not declare it
        why = _reason(name, [*reasons, *always])
        if simulated and finding["outcome"] == "not_verified_here":
            why = why or "simulated hardware cannot show it"
        if (
            why is None
            and finding["outcome"] == "not_verified_here"
            and finding["got"] not in ELSEWHERE
        ):
            why = str(finding["got"])
        (wrong if why is None else unseen).append((finding, why))
    for finding, why in unseen:
        subject = f" {finding['subject']}" if finding.get("subject") else ""
        if str(finding["got"]) != why:
            got = f"{finding['outcome']}: {finding['got']}; {why}"
        else:
            got = f"{finding['outcome']}: {why}"
        yield GuestCheck(
            f"check.unseen.{finding['id']}{subject}",
            UNVERIFIABLE,
            brief(finding["expected"]),
            brief(got),
        )
    good_ones = sum(finding["outcome"] == "match" for finding in findings)
    text = "; ".join(
        f"{finding['id']} {finding['outcome']}: {finding['got']} (want {finding['expected']})"
        for finding, _ in wrong[:6]
    )
    yield holds(
        "check.findings", not wrong, "nothing wrong with the image", text or f"{good_ones} match"
    )


def _finding(row: Mapping[str, Any]) -> Finding:
    """Convert a finding of a verdict to the type that the node's rules take."""
    return Finding(
        str(row["id"]),
        str(row["outcome"]),
        row.get("expected"),
        row.get("got"),
        severity=str(row["severity"]),
    )


def _gate(facts: Facts, document: Document) -> Iterator[GuestCheck]:
    verdict = facts.get("verdict")
    state = facts.get("gate") or {}
    mode = str(document.get("gate") or gate_files.REPORT)
    if not isinstance(verdict, dict):
        return
    reasons = [reason.text for reason in gate.reasons(verdict)]
    opened = mode == gate_files.REPORT or not reasons
    expected = f"{mode}: {'open' if opened else 'closed'}" + (
        f": {listed(reasons, most=2)}" if reasons else ""
    )
    shown = f"{state.get('mode', 'no state')}: {'open' if state.get('open') else 'closed'}"
    good = (state.get("mode"), state.get("open"), state.get("reasons")) == (
        mode,
        opened,
        reasons,
    ) and bool(facts.get("pass")) == opened
    got = shown + (
        f": {listed(state.get('reasons') or (), most=2)}" if state.get("reasons") else ""
    )
    if bool(facts.get("pass")) != bool(state.get("open")):
        got += ", but the pass file says otherwise"
    yield holds("gate.state", good, brief(expected), got)
    sanity = _unit(facts, "goldnode-sanity.service")
    done = int(sanity.get("ExecMainExitTimestampMonotonic") or 0)
    for name in gate_files.RUNTIMES:
        unit = _unit(facts, name)
        if unit.get("LoadState") != "loaded":
            continue
        after = "goldnode-sanity.service" in (unit.get("After") or "").split()
        started = int(unit.get("ExecMainStartTimestampMonotonic") or 0)
        late = not started or (0 < done <= started)
        if not late:
            word = "started before the check was done"
        elif after:
            word = "ordered after the check"
        else:
            word = "not ordered after the check"
        yield holds(f"gate.order.{name}", after and late, "starts after the boot check", word)
        closes = mode == gate_files.BLOCK
        drop_in = gate_files.DROP_IN in (unit.get("DropInPaths") or "")
        condition = gate_files.PASS in (unit.get("ExecCondition") or "")
        if drop_in and condition:
            have = "a drop-in with ExecCondition="
        elif not drop_in and not condition:
            have = "none"
        else:
            have = "half of one"
        yield same(
            f"gate.drop_in.{name}", "a drop-in with ExecCondition=" if closes else "none", have
        )
        enabled = unit.get("UnitFileState") in systemd.ENABLED
        if closes and not opened:
            reported = any(
                "goldnode gate:" in line
                for line in str((facts.get("status") or {}).get(name) or "").splitlines()
            )
            down = unit.get("ActiveState") in ("inactive", "failed")
            text = (
                f"{unit.get('ActiveState')}, "
                f"{'the reason is shown' if reported else 'its status does not say why'}"
            )
            yield holds(
                f"gate.runtime.{name}",
                down and (reported or not enabled),
                "kept down, and its status says why",
                text,
            )
        elif enabled:
            yield same(f"gate.runtime.{name}", "active", unit.get("ActiveState"))
    for name in ("slurmd.service", "kubelet.service"):
        unit = _unit(facts, name)
        if unit.get("LoadState") == "loaded":
            yield holds(
                f"gate.free.{name}",
                not unit.get("ExecCondition"),
                "always starts",
                unit.get("ExecCondition") or "no condition",
            )


# -- what is left to do


def _plan(facts: Facts, wanted: GuestExpectations, document: Document) -> Iterator[GuestCheck]:
    plan_facts = facts.get("plan") or {}
    plan = plan_facts.get("plan")
    if not isinstance(plan, dict):
        yield GuestCheck(
            "plan",
            FAILED,
            "a plan",
            brief(plan_facts.get("error") or "goldnode-node plan printed nothing"),
        )
        return
    expected = {name for name, _ in wanted.pending}
    left = list(plan.get("actions") or ())
    foreign = [
        f"{row['kind']} {row['target']}: {row['reason']}"
        for row in left
        if f"{row['kind']} {row['target']}" not in expected and row.get("phase") != "device"
    ]
    refused = [
        f"refused: {row['message']}"
        for row in plan.get("refusals") or ()
        if not (document.get("gpu") and row["code"] == "gpu-count")
        and not (document.get("scratch") and row["code"] == "scratch")
    ]
    yield holds(
        "plan",
        not foreign and not refused,
        "nothing but what is pending",
        listed([*foreign, *refused], none="nothing"),
    )
    targets = {f"{row['kind']} {row['target']}" for row in left}
    outcomes = {
        str(row["id"]): str(row["outcome"])
        for row in ((facts.get("verdict") or {}).get("findings") or ())
    }
    for name, reason in wanted.pending:
        if " " in name:
            yield _pending(
                name,
                reason,
                name not in targets,
                f"device: {reason}" if reason.startswith("device") else None,
            )
        else:
            shown = outcomes.get(SAME_AS.get(name, name))
            why = None if shown == "match" else f"recorded: {reason}"
            yield _pending(name, reason, shown == "match", why)


def _pending(name: str, reason: str, done: bool, why: str | None) -> GuestCheck:
    check = "pending." + re.sub(r"\s+", ".", name)
    if done:
        return GuestCheck(check, PASSED, brief(reason), "done, or found right, at the first boot")
    return GuestCheck(
        check, UNVERIFIABLE if why else FAILED, brief(reason), brief(why or "it still waits")
    )
