"""What must be true of any node of any class, read from the node in other ways than goldnode's own.

The class document of each host (inventory) is the declaration; every check here is a reader of its own: dpkg-query, apt,
modprobe, modinfo, lsinitramfs, systemctl, and the files themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest
from tests.nodes.reader import Document, Node, booted_by_id, not_here

EXIT_CODES = {0: "healthy", 1: "degraded", 2: "drain", 3: "could_not_check", 4: "not_this_class"}
OUTCOMES = {"match", "mismatch", "not_exposed", "could_not_read", "not_verified_here"}


# ---- the class


def test_class_document(node: Node) -> None:
    """The node knows the class that the inventory gives it, unaltered."""
    held = json.loads(node.text("/etc/goldnode/class.json"))
    bare = {key: value for key, value in held.items() if key not in ("digest", "site")}
    digest = hashlib.sha256(
        json.dumps(bare, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()
    assert held["class"] == node.document["class"]
    assert held["digest"] == node.document["digest"], (
        "another version of the class than the inventory's"
    )
    assert held["digest"] == f"sha256:{digest}", "its content is not what its digest says"


def test_operating_system(node: Node) -> None:
    wanted = node.document["os"]
    have = dict(
        re.findall(
            r'^(ID|VERSION_ID|VERSION_CODENAME)="?([^"\n]*)', node.text("/etc/os-release"), re.M
        )
    )
    if have["VERSION_CODENAME"] == "forky":
        # Debian gives a system no VERSION_ID before its release (base-files 14).
        have.setdefault("VERSION_ID", "14")
    assert (have["ID"], have["VERSION_ID"], have["VERSION_CODENAME"]) == (
        wanted["id"],
        wanted["version"],
        wanted["codename"],
    )
    assert node.out("dpkg --print-architecture").strip() == wanted["architecture"]


# ---- the stack set


def test_packages_at_their_locked_versions(node: Node) -> None:
    wrong = []
    for name, package in node.stack.items():
        version, architecture, state = node.installed.get(
            name, ("missing", package["architecture"], "ii")
        )
        if (version, architecture) != (package["version"], package["architecture"]) or state[
            1:
        ] != "i":
            wrong.append(
                f"{name}: {version} {architecture} {state}, want {package['version']} {package['architecture']}"
            )
    assert node.stack
    assert not wrong


def test_dpkg_is_complete(node: Node) -> None:
    assert node.out("dpkg --audit").strip() == ""
    assert [
        f"{name} {row[2]}" for name, row in node.installed.items() if row[2][1] not in "ic"
    ] == []


def test_no_stray_member_of_the_driver_family(node: Node) -> None:
    """A left-over library of another version is what breaks CUDA after a branch change."""
    globs = node.driver["family"] if node.driver else []

    def member(name: str) -> bool:
        hits = [glob for glob in globs if fnmatchcase(name, glob.removeprefix("!"))]
        return bool(hits) and not hits[-1].startswith("!")

    assert (
        sorted(
            name
            for name, row in node.installed.items()
            if row[2][1] == "i" and member(name) and name not in node.stack
        )
        == []
    )


def test_everything_is_on_hold(node: Node) -> None:
    held = set(node.out("apt-mark showhold").split())
    fence = {name for name in node.document["fence"] if name in node.installed}
    assert sorted((set(node.stack) | fence) - held) == []


def test_a_full_upgrade_moves_nothing_of_the_stack(node: Node) -> None:
    """Simulated by apt itself, from the indexes that the node has."""
    reported = node.out("env LC_ALL=C apt-get -s -o Debug::NoLocking=1 dist-upgrade")
    assert re.search(r"^\d+ upgraded, \d+ newly installed, \d+ to remove", reported, re.M), (
        reported[-300:]
    )
    moved = {
        name.partition(":")[0] for name in re.findall(r"^(?:Inst|Remv|Purg) (\S+)", reported, re.M)
    }
    fence = set(node.document["fence"])
    assert sorted(moved & (set(node.stack) | fence)) == []
    assert sorted(name for name in moved if re.match(r"linux-(image|headers)-\d", name)) == [], (
        "another kernel would come"
    )


# ---- apt


def _stanzas(text: str) -> list[dict[str, str]]:
    found = []
    for block in re.split(r"\n\s*\n", re.sub(r"^#.*\n?", "", text, flags=re.M)):
        fields = re.findall(r"^([A-Za-z-]+):[ \t]*(.*(?:\n[ \t]+.*)*)", block, re.M)
        if fields:
            found.append({name.lower(): " ".join(value.split()) for name, value in fields})
    return found


def _sources(node: Node) -> list[tuple[str, str, set[str], str, str]]:
    """(uri, suite, components, signed-by, file) of each enabled binary source; both of apt's formats."""
    found = []
    # grep ends non-zero for an absent file or an empty one; an empty listing fails the assertions below.
    listing = node.out(
        "grep -rHv '^\\s*#' /etc/apt/sources.list /etc/apt/sources.list.d/ 2>/dev/null || true"
    )
    files: dict[str, list[str]] = {}
    for row in listing.splitlines():
        name, _, line = row.partition(":")
        files.setdefault(name, []).append(line)
    for name, lines in files.items():
        if name.endswith(".sources"):
            for stanza in _stanzas("\n".join(lines)):
                if (
                    stanza.get("enabled", "yes").lower() not in ("no", "false", "0")
                    and "deb" in stanza["types"].split()
                ):
                    found += [
                        (
                            uri.rstrip("/"),
                            suite,
                            set(stanza.get("components", "").split()),
                            stanza.get("signed-by", ""),
                            name,
                        )
                        for uri in stanza["uris"].split()
                        for suite in stanza["suites"].split()
                    ]
        elif name.endswith(".list"):
            for line in lines:
                parts = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)", line)
                if parts:
                    key = re.search(r"signed-by=(\S+)", parts[1] or "")
                    found.append(
                        (
                            parts[2].rstrip("/"),
                            parts[3],
                            set(parts[4].split("#")[0].split()),
                            key[1] if key else "",
                            name,
                        )
                    )
    return found


def _fingerprints(raw: bytes) -> set[str]:
    """Version 4 fingerprints of the primary keys in an OpenPGP keyring, armoured or not (RFC 4880, 4.2 and 12.2)."""
    if raw.lstrip().startswith(b"-----BEGIN"):
        body = re.sub(
            rb"^.*?-----BEGIN[^\n]*\n(?:[^\n]+: [^\n]*\n)*\s*", b"", raw, count=1, flags=re.S
        )
        raw = b64decode(re.split(rb"\n=[A-Za-z0-9+/]{4}|\n-----END", body)[0])
    found, at = set(), 0
    while at < len(raw):
        head, first = raw[at], raw[at + 1]
        if head & 0x40:
            tag = head & 0x3F
            size, skip = (
                (first, 2)
                if first < 192
                else (((first - 192) << 8) + raw[at + 2] + 192, 3)
                if first < 224
                else (int.from_bytes(raw[at + 2 : at + 6], "big"), 6)
            )
        else:
            tag, width = (head >> 2) & 0x0F, 1 << (head & 3)
            size, skip = int.from_bytes(raw[at + 1 : at + 1 + width], "big"), 1 + width
        body = raw[at + skip : at + skip + size]
        if tag == 6 and body[:1] == b"\x04":
            found.add(
                hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324
            )
        at += skip + size
    return found


def _archives(node: Node) -> list[Document]:
    archives = node.document.get("site", {}).get("archives")
    assert archives, "the class document names no archive of this site"
    return list(archives)


def test_sources_give_every_archive_of_the_stack(node: Node) -> None:
    sources = _sources(node)
    missing = []
    for archive in _archives(node):
        rows = [row for row in sources if row[:2] == (archive["uri"].rstrip("/"), archive["suite"])]
        lacking = set(archive["components"]) - set().union(*(row[2] for row in rows))
        if not rows or lacking:
            missing.append(
                f"{archive['id']}: {archive['uri']} {archive['suite']} {' '.join(sorted(lacking)) or '(no source)'}"
            )
        # apt refuses one URI and suite with two values of Signed-By, so only the node's own entry excuses ours without.
        if not all(row[3] for row in rows) and all("/goldnode-" in row[4] for row in rows):
            missing.append(f"{archive['id']}: any keyring of apt's may sign it")
    assert not missing


def test_sources_that_goldnode_wrote_are_of_this_class(node: Node) -> None:
    # The site's mirror has goldnode in its id already.
    ids = {
        f"/etc/apt/sources.list.d/goldnode-{archive['id'].removeprefix('goldnode-')}.sources"
        for archive in _archives(node)
    }
    # grep ends non-zero when nothing matches, which is a legitimate answer: it is compared below.
    have = node.out("ls -1 /etc/apt/sources.list.d/ | grep '^goldnode-' || true").split()
    assert [name for name in have if f"/etc/apt/sources.list.d/{name}" not in ids] == []


def test_keyrings_hold_the_pinned_keys(node: Node) -> None:
    wrong = []
    for archive in _archives(node):
        if not archive["fingerprints"]:
            continue
        have = _fingerprints(b64decode(node.out("base64 %s", archive["signed_by"])))
        wanted = {fingerprint.upper().replace(" ", "") for fingerprint in archive["fingerprints"]}
        if not wanted & have:
            wrong.append(f"{archive['signed_by']}: none of the keys pinned for {archive['id']}")
        if archive["key"] and have - wanted:
            wrong.append(f"{archive['signed_by']}: also trusts {', '.join(sorted(have - wanted))}")
    assert not wrong


def test_pins_choose_the_locked_versions(node: Node) -> None:
    """apt's own decision: the pin is in force, and the candidate is the locked version."""
    reported = node.out("env LC_ALL=C apt-cache policy " + " ".join(sorted(node.stack)))
    wrong, seen = [], set()
    for block in re.split(r"\n(?=\S)", reported):
        name = block.partition(":")[0].strip()
        if name in node.stack:
            seen.add(name)
            version = node.stack[name]["version"]
            candidate = re.search(r"^  Candidate: (\S+)", block, re.M)
            priority = dict(re.findall(r"^ (?:\*\*\*|   ) (\S+) (-?\d+)$", block, re.M)).get(
                version, "0"
            )
            # From 1000 on apt also goes down to a version, which a node that ran ahead needs.
            if not candidate or candidate[1] != version or int(priority) < 1000:
                wrong.append(
                    f"{name}: candidate {candidate and candidate[1]}, want {version}, which has priority {priority}"
                )
    assert sorted(set(node.stack) - seen) == []
    assert not wrong


def test_the_fence_offers_no_metapackage(node: Node) -> None:
    fence = [name for name in node.document["fence"] if name not in node.installed]
    if fence:
        reported = node.out("env LC_ALL=C apt-cache policy " + " ".join(fence))
        assert [
            name
            for name, version in re.findall(r"^(\S+):\n.*\n  Candidate: (\S+)", reported, re.M)
            if version != "(none)"
        ] == []


def test_unattended_upgrades_keep_off_exactly_the_stack(node: Node) -> None:
    """The patterns as apt reads them, matched as unattended-upgrades does: a regular expression from the name's start."""
    patterns = re.findall(
        r'^Unattended-Upgrade::Package-Blacklist:: "(.*)";', node.out("apt-config dump"), re.M
    )
    assert patterns
    own = set(re.findall(r'^\s*"(.*)";', node.text("/etc/apt/apt.conf.d/52goldnode-fence"), re.M))
    guarded = set(node.stack) | set(node.document["fence"])
    assert own <= set(patterns)
    assert (
        sorted(name for name in guarded if not any(re.match(pattern, name) for pattern in own))
        == []
    )
    assert (
        sorted(
            name
            for name in node.installed
            if name not in guarded and any(re.match(p, name) for p in own)
        )
        == []
    )


# ---- kernel and module


def test_running_kernel(node: Node) -> None:
    node.machine_only("which kernel runs cannot be seen")
    assert node.out("uname -r").strip() == node.release


def test_kernel_and_initramfs_are_in_boot(node: Node) -> None:
    assert node.release in node.kernels
    assert node.host.file(f"/boot/vmlinuz-{node.release}").size > 0
    assert node.host.file(f"/boot/initrd.img-{node.release}").size > 0


def test_module_is_built_for_the_kernel(node: Node) -> None:
    if not node.driver:
        assert node.document["backend"] not in ("cuda", "rocm")
        return
    name = node.driver["module"]
    fields: dict[str, str] = {}
    for field in ("filename", "version", "vermagic", "license"):
        fields[field] = (
            node.out("modinfo -k %s -F %s %s", node.release, field, name).partition("\n")[0].strip()
        )
    assert fields["filename"].startswith(f"/lib/modules/{node.release}/")
    assert fields["vermagic"].split()[0] == node.release
    if node.driver["in_tree"]:
        assert "/kernel/" in fields["filename"], "the kernel's own driver is shadowed by another"
    else:
        assert fields["version"] == node.driver["version"]
        assert ("GPL" in fields["license"]) == (node.driver["flavour"] == "open"), fields["license"]


def test_module_is_found_by_modprobe(node: Node) -> None:
    if node.driver:
        reported = node.out("modprobe -S %s --show-depends %s", node.release, node.driver["module"])
        assert re.search(rf"^insmod /lib/modules/{re.escape(node.release)}/", reported, re.M)


def test_module_options(node: Node) -> None:
    options = (node.driver or {}).get("options") or {}
    reported = node.out("modprobe -S %s --showconfig", node.release)
    assert node.driver or not options
    name = (node.driver or {}).get("module", "").replace("-", "_")
    given = " ".join(
        re.findall(rf"^options {re.escape(name)} (.*)$", reported.replace("-", "_"), re.M)
    ).split()
    assert [
        f"{key}={value}"
        for key, value in options.items()
        if f"{key}={value}".replace("-", "_") not in given
    ] == []


def test_unwanted_modules_are_excluded(node: Node) -> None:
    """modprobe's own resolution, for the stack's kernel, by name and by alias rule."""
    config = node.out("modprobe -S %s --showconfig", node.release)
    for module in node.document["blacklist"]:
        assert re.search(rf"^blacklist {re.escape(module)}$", config, re.M), module
        # What it depends on may come first; the module itself must be the command that fails, and never a file.
        steps = node.out("modprobe -S %s -n -v %s", node.release, module).split("\n")
        assert [step.strip() for step in steps if step][-1] == "install /bin/false", module
        assert not re.search(rf"/{re.escape(module).replace('_', '[-_]')}\.ko", "\n".join(steps)), (
            module
        )


def test_no_file_loads_an_unwanted_module(node: Node) -> None:
    # Each of these files may be absent; those that are there are read.
    lines = node.out(
        "cat /etc/modules /etc/modules-load.d/*.conf /etc/initramfs-tools/modules 2>/dev/null || true"
    ).splitlines()
    names = {
        line.split()[0].replace("-", "_")
        for line in lines
        if line.strip() and line.lstrip()[0] not in "#;"
    }
    assert sorted(names & set(node.document["blacklist"])) == []


def test_initramfs_of_every_kernel_is_clean(node: Node) -> None:
    found, checked = [], 0
    for release in node.kernels:
        image = f"/boot/initrd.img-{release}"
        names = node.initramfs_names(image)
        assert any(name.endswith("/modules.dep") or name == "init" for name in names), (
            f"{image} lists nothing of a system"
        )
        checked += 1
        for name in names:
            module = re.sub(r"\.ko(\.\w+)?$", "", name.rpartition("/")[2]).replace("-", "_")
            if re.search(r"\.ko(\.\w+)?$", name) and module in node.document["blacklist"]:
                found.append(f"{image}: {name}")
    assert checked
    assert not found


def test_initramfs_carries_the_blacklist(node: Node) -> None:
    if not node.document["blacklist"]:
        return
    wanted = node.text("/etc/modprobe.d/goldnode-blacklist.conf")
    inside = node.initramfs_file(
        f"/boot/initrd.img-{node.release}", "etc/modprobe.d/goldnode-blacklist.conf"
    )
    assert inside == wanted
    for module in node.document["blacklist"]:
        assert f"install {module} /bin/false\n" in inside


def test_kernel_hook(node: Node) -> None:
    """A kernel that arrives without the module is told, and never breaks apt."""
    if (not node.driver or node.driver["in_tree"]) and not node.document["modules"]:
        assert not node.host.file("/etc/kernel/postinst.d/zz-goldnode").exists
        return
    hook = node.host.file("/etc/kernel/postinst.d/zz-goldnode")
    assert hook.mode & 0o111 == 0o111
    assert (hook.user, hook.group) == ("root", "root")
    order = [
        path.rpartition("/")[2]
        for path in node.out("run-parts --test /etc/kernel/postinst.d").split()
    ]
    assert "dkms" not in order[order.index("zz-goldnode") :], (
        "it would speak before the module is built"
    )
    strange = node.host.run(
        "/etc/kernel/postinst.d/zz-goldnode 0.0.1-none /boot/vmlinuz-0.0.1-none"
    )
    assert strange.rc == 0
    assert "0.0.1-none" in strange.stderr + strange.stdout
    for module in node.document["modules"]:
        assert f"has no module {module['name']} " in strange.stderr + strange.stdout
    good = node.host.run("/etc/kernel/postinst.d/zz-goldnode %s /boot/vmlinuz", node.release)
    assert good.rc == 0
    assert good.stderr + good.stdout == ""


# ---- other out-of-tree modules


def test_other_modules_are_built_for_the_kernel(node: Node) -> None:
    for module in node.document["modules"]:
        vermagic = node.out("modinfo -k %s -F vermagic %s", node.release, module["name"]).split()
        assert vermagic[:1] == [node.release], module["name"]
        version = node.out("modinfo -k %s -F version %s", node.release, module["name"]).strip()
        if module["package"] is None and version:
            assert version == module["version"], module["name"]


def test_other_modules_have_their_order(node: Node) -> None:
    """As modprobe itself understands it, for whoever loads them; at boot in the declared order."""
    config = node.out("modprobe -S %s --showconfig", node.release).replace("-", "_")
    for module in node.document["modules"]:
        if module["after"]:
            wanted = f"softdep {module['name']} pre: {' '.join(module['after'])}".replace("-", "_")
            assert wanted in config.splitlines(), wanted
    load = [module["name"] for module in node.document["modules"] if module["load"]]
    path = "/etc/modules-load.d/goldnode.conf"
    assert node.host.file(path).exists == bool(load)
    if load:
        assert [line for line in node.text(path).splitlines() if not line.startswith("#")] == load


def test_other_modules_are_loaded(node: Node) -> None:
    load = [module["name"] for module in node.document["modules"] if module["load"]]
    if not load:
        return
    node.machine_only("which modules are loaded cannot be seen")
    loaded = {line.split()[0] for line in node.text("/proc/modules").splitlines()}
    for name in load:
        inner = node.out("modinfo -k %s -F name %s", node.release, name).strip().replace("-", "_")
        assert inner in loaded, name


# ---- the host's policy


def test_host_policy_lasts(node: Node) -> None:
    """What makes the values come back at the next boot, asked of the programs that will read it."""
    host = node.document["policy"].get("host", {})
    kernel = node.out("/usr/lib/systemd/systemd-sysctl --cat-config")
    given = dict(
        re.findall(r"^([\w.]+) *= *(\S+)$", kernel, re.M)
    )  # the last one wins, as with systemd
    if "2M" in host.get("hugepages", {}):
        assert given["vm.nr_hugepages"] == str(host["hugepages"]["2M"])
    if "numa_balancing" in host:
        assert given["kernel.numa_balancing"] == str(int(host["numa_balancing"]))
    if host.get("swap") is False:
        assert node.out("systemctl is-enabled swap.target", codes=(0, 1)).strip() == "masked"
        assert (
            re.findall(r"^[^#\s]\S*\s+\S+\s+swap\s+(?!\S*noauto)", node.text("/etc/fstab"), re.M)
            == []
        )
    script = 'for file in /etc/default/grub /etc/default/grub.d/*.cfg; do [ ! -e "$file" ] || . "$file"; done; echo "$GRUB_CMDLINE_LINUX"'
    words = node.out("sh -c %s", script).split()
    assert [word for word in host.get("cmdline", []) if word not in words] == []
    if host.get("iommu") == "pt" and node.document["os"]["architecture"] == "amd64":
        assert "iommu=pt" in words
    for name, interface in host.get("network", {}).items():
        rules = node.text("/etc/udev/rules.d/90-goldnode-net.rules")
        assert f'KERNEL=="{name}", ATTR{{mtu}}="{interface["mtu"]}"' in rules


def test_host_policy_of_locked_memory(node: Node) -> None:
    memlock = node.document["policy"].get("host", {}).get("memlock")
    if memlock is None:
        return
    if not node.host.file("/etc/security/limits.d/90-goldnode.conf").exists:
        node.machine_only("a limit above the container's own cannot be set")
    wanted = "unlimited" if memlock == "unlimited" else str(memlock)
    assert node.out("systemd-run --wait --pipe --quiet sh -c 'ulimit -l'").split() == [wanted], (
        "a unit that starts now"
    )
    assert node.out("su -s /bin/sh -c 'ulimit -l' - nobody").split()[-1:] == [wanted], (
        "a session through PAM"
    )


def test_host_policy_now(node: Node) -> None:
    host = node.document["policy"].get("host", {})
    live = {key: value for key, value in host.items() if key not in ("cmdline", "memlock")}
    if not live:
        return
    node.machine_only("the kernel's values")
    if host.get("swap") is False:
        assert node.out("swapon --show --noheadings").strip() == ""
    if "governor" in host and node.host.file("/sys/devices/system/cpu/cpu0/cpufreq").exists:
        assert set(
            node.out("cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor").split()
        ) == {host["governor"]}
    if "transparent_hugepages" in host:
        assert f"[{host['transparent_hugepages']}]" in node.text(
            "/sys/kernel/mm/transparent_hugepage/enabled"
        )
    for name, interface in host.get("network", {}).items():
        assert re.search(rf" mtu {interface['mtu']} ", node.out("ip link show dev %s", name))


def test_loaded_driver(node: Node) -> None:
    if not node.driver:
        return
    if node.document["simulated"]:
        not_here("the class declares simulated GPUs, so no driver is loaded")
    node.machine_only("which driver is loaded cannot be seen")
    if node.driver["in_tree"]:
        assert node.host.file(f"/sys/module/{node.driver['module']}").is_directory
    else:
        assert node.text("/sys/module/nvidia/version").strip() == node.driver["version"]


def test_unwanted_modules_are_not_loaded(node: Node) -> None:
    node.machine_only("which modules are loaded cannot be seen")
    loaded = {line.split()[0] for line in node.text("/proc/modules").splitlines()}
    assert sorted(loaded & set(node.document["blacklist"])) == []


def test_gpus_on_the_bus(node: Node, record_property: Callable[[str, object], None]) -> None:
    gpu = node.document["gpu"]
    if gpu is None:
        return
    if node.simulated_bus:
        record_property("simulated", True)
    else:
        if node.document["simulated"]:
            not_here("the class declares simulated GPUs, and no simulator shows a bus")
        node.machine_only("devices cannot be seen")
    rows = node.out(
        "for d in /sys/bus/pci/devices/*; do echo $(cat $d/class $d/vendor $d/device); done"
    ).splitlines()
    ids = [
        f"{vendor[2:]}:{device[2:]}"
        for kind, vendor, device in (row.split() for row in rows)
        if kind.startswith(("0x0300", "0x0302", "0x0380", "0x1200"))
    ]
    assert sum(identifier in gpu["pci_ids"] for identifier in ids) == gpu["count"], ids


# ---- the next boot


def test_next_boot(node: Node) -> None:
    """From grub.cfg's text and grub-editenv alone: the default names an entry whose `linux` line is the class's kernel."""
    node.machine_only("which kernel boots next cannot be seen")
    if not node.host.file("/boot/grub/grub.cfg").exists:
        not_here("the default boot entry, since this machine does not boot by GRUB")
    config = node.text("/boot/grub/grub.cfg")
    stored = dict(
        line.partition("=")[::2]
        for line in node.out("grub-editenv list", codes=(0, 1)).splitlines()
    )
    assert booted_by_id(config, stored) == node.release


# ---- the boot check


def test_boot_check_is_enabled(node: Node) -> None:
    assert node.host.service("goldnode-sanity").is_enabled
    unit = node.out("systemctl cat goldnode-sanity.service")
    assert "/usr/lib/goldnode/goldnode-node" in unit
    assert not re.search(r"^Requires=|^RequiredBy=", unit, re.M), (
        "a check must never be what stops a runtime"
    )


def run_program(node: Node, words: str) -> Any:
    """Run goldnode's program, once it and all above it is root's alone: this may run as root, and must not run what a user put there."""
    lines = node.out(
        "stat -c '%F %u %a %n' / /usr /usr/lib /usr/lib/goldnode /usr/lib/goldnode/goldnode-node"
    ).splitlines()
    assert len(lines) == 5
    for line in lines:
        kind = "regular file" if line.endswith("/goldnode-node") else "directory"
        mode = re.match(rf"{kind} 0 (\d+) ", line)
        assert mode, f"not root's: {line}"
        assert int(mode[1], 8) & 0o022 == 0, f"others than root can change it: {line}"
    return node.host.run(f"/usr/lib/goldnode/goldnode-node {words}")


def test_boot_check_program(node: Node) -> None:
    program = node.host.file("/usr/lib/goldnode/goldnode-node")
    assert (program.user, program.group, program.mode & 0o7777) == ("root", "root", 0o755)
    # A wrong use must read as "could not check", never as healthy, degraded or drain.
    assert run_program(node, "--no-such-option").rc == 3


def _check_verdict(node: Node, verdict: Document) -> None:
    assert verdict["schema"] == "goldnode.verdict/1"
    assert verdict["class"] == node.document["class"]
    assert verdict["class_digest"] == node.document["digest"]
    assert verdict["lock_digest"] == node.document["lock"]["digest"]
    assert verdict["simulated"] is node.document["simulated"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", verdict["time"])
    assert EXIT_CODES[verdict["exit_code"]] == verdict["status"]
    findings = verdict["findings"]
    assert findings
    assert len({finding["id"] for finding in findings}) == len(findings)
    for finding in findings:
        assert finding.keys() >= {"id", "outcome", "severity", "expected", "got", "remedy"}
        assert finding["outcome"] in OUTCOMES
    for outcome in OUTCOMES:
        assert verdict["counts"][outcome] == sum(
            finding["outcome"] == outcome for finding in findings
        )
    outcomes = {finding["outcome"] for finding in findings}
    if verdict["exit_code"] == 0:
        assert outcomes <= {"match", "not_exposed"}, "healthy, although not all was seen to match"
    if verdict["exit_code"] in (1, 2, 4):
        assert "mismatch" in outcomes
    if outcomes & {"could_not_read", "not_verified_here"}:
        assert verdict["exit_code"] in (2, 3, 4), (
            "what could not be looked at must not end as healthy or degraded"
        )


def test_verdict_of_this_boot(node: Node) -> None:
    _check_verdict(node, node.verdict)


def test_live_check_has_its_exit_code_and_no_open_finding(node: Node) -> None:
    done = run_program(node, "check --format json --no-write")
    verdict = json.loads(done.stdout)
    _check_verdict(node, verdict)
    assert done.rc == verdict["exit_code"]
    assert [
        f"{f['id']}: want {f['expected']}, have {f['got']}"
        for f in verdict["findings"]
        if f["outcome"] in ("mismatch", "could_not_read") and f["id"] != "boot.pending"
    ] == []


# ---- the gate


def test_passive_check_runs(node: Node) -> None:
    shown = node.out("systemctl show -p ActiveState -p UnitFileState -p Unit goldnode-watch.timer")
    assert set(shown.split()) == {
        "ActiveState=active",
        "UnitFileState=enabled",
        "Unit=goldnode-watch.service",
    }


def test_runtimes_are_gated_where_the_class_blocks(node: Node) -> None:
    """As systemd itself tells it: what it would ask before it starts a runtime, and that no runtime needs the check to succeed."""
    for unit in ("docker.service", "containerd.service"):
        drop_in = f"/etc/systemd/system/{unit}.d/goldnode-gate.conf"
        assert node.host.file(drop_in).exists is (node.document["gate"] == "block")
        shown = node.out("systemctl show -p DropInPaths -p Requires -p BindsTo %s", unit)
        assert "goldnode" not in "".join(
            line for line in shown.splitlines() if not line.startswith("DropInPaths=")
        )
        if "LoadState=loaded" in node.out("systemctl show -p LoadState %s", unit):
            assert (drop_in in shown) is (node.document["gate"] == "block"), (
                "systemd has loaded another state than the files'"
            )


def test_gate_matches_the_verdict(node: Node) -> None:
    gate = json.loads(node.text("/run/goldnode/gate.json"))
    bad = [
        f
        for f in node.verdict["findings"]
        if f["severity"] == "drain" and f["outcome"] in ("mismatch", "could_not_read")
    ]
    assert gate["mode"] == node.document["gate"]
    assert gate["open"] is (gate["mode"] == "report" or not bad)
    assert node.host.file("/run/goldnode/pass").exists is gate["open"]


def test_no_reboot_is_pending(node: Node) -> None:
    pending = [
        f["got"]
        for f in node.verdict["findings"]
        if f["id"] == "boot.pending" and f["outcome"] == "mismatch"
    ]
    if pending:
        node.machine_only(f"what a reboot would bring ({'; '.join(pending)}) cannot be seen")
    assert pending == []


def test_reboot_mark_is_readable(node: Node) -> None:
    mark = node.host.file("/run/goldnode/reboot-required")
    if mark.exists:
        reasons = json.loads(mark.content_string)
        assert reasons
        assert all(isinstance(reason, str) for reason in reasons)


# ---- the container engine


def _docker(node: Node) -> Document:
    """What the docker that runs says of itself, asked over its socket in HTTP's plainest form."""
    ask = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/docker.sock'); "
        "s.sendall(b'GET /info HTTP/1.0\\r\\n\\r\\n'); print(b''.join(iter(lambda: s.recv(65536), b'')).decode())"
    )
    found: Document = json.loads(
        node.out("python3 -c %s", ask).replace("\r", "").partition("\n\n")[2]
    )
    return found


def test_container_engine_runs(node: Node) -> None:
    runtime = node.document["runtime"]
    if runtime is None or runtime["engine"] == "podman":  # podman has no daemon
        return
    assert node.out("systemctl is-active %s", runtime["engine"]).strip() == "active"
    assert node.out("systemctl is-enabled %s", runtime["engine"]).strip() == "enabled"
    if runtime["engine"] == "docker":
        assert _docker(node)["ServerVersion"].split("+")[0] in runtime["version"]


def test_container_engine_knows_the_gpu_runtime(node: Node) -> None:
    runtime = node.document["runtime"] or {}
    toolkit = runtime.get("toolkit")
    if not toolkit:
        return
    if toolkit["vendor"] == "nvidia":
        config = node.text("/etc/nvidia-container-runtime/config.toml")
        assert re.search(
            rf'^\[nvidia-container-runtime\]\n(?:[^\[].*\n)*?mode = "{toolkit["mode"]}"$',
            config,
            re.M,
        ), config
    if runtime["engine"] == "docker":
        info = _docker(node)
        if toolkit["vendor"] == "nvidia":
            assert info["Runtimes"]["nvidia"]["path"].endswith("nvidia-container-runtime")
        if runtime["default"]:
            assert info["DefaultRuntime"] == "nvidia"
        assert bool(info.get("CDISpecDirs")) == (toolkit["mode"] == "cdi")
    elif runtime["engine"] == "containerd":
        assert "containerd.runtimes.nvidia]" in node.out("containerd config dump")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/goldnode/class.json",
        "/etc/apt/preferences.d/goldnode-stack",
        "/etc/apt/apt.conf.d/52goldnode-fence",
        "/etc/systemd/system/goldnode-sanity.service",
        "/etc/systemd/system/goldnode-watch.service",
        "/etc/update-motd.d/90-goldnode",
    ],
)
def test_files_are_roots(node: Node, path: str) -> None:
    file = node.host.file(path)
    assert (file.user, file.group, file.mode & 0o022) == ("root", "root", 0)
