"""Domain tuning on a generated root that plays a live machine: values are really written to files there, and read back from them.

What is not real: a file takes any text, where the kernel would check it; `swapoff`, `systemctl` and `update-grub` are played.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.state.test_cases import document, merge
from tests.unit.node.verdict.test_check import findings

from goldnode.classdoc.mitigations import Mitigation, with_settings
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.host import Host, Result
from goldnode.node.state import apply as applying
from goldnode.node.state import engine
from goldnode.node.state.apply import Applier
from goldnode.node.state.domains import tuning
from goldnode.node.state.finding import ELSEWHERE, MATCH, MISMATCH, NOT_EXPOSED, UNREAD
from goldnode.node.state.model import Action
from goldnode.node.verdict import check

apply = partial(applying.apply, handlers={})
RELEASE = "6.1.0-902-amd64"
ALL: dict[str, Any] = {
    "governor": "performance",
    "swap": False,
    "hugepages": {"2M": 1024, "1G": 4},
    "transparent_hugepages": "madvise",
    "numa_balancing": False,
    "iommu": "pt",
    "cmdline": ["pci=realloc"],
    "sysctl": {"kernel.unprivileged_userns_clone": "0", "vm.lowmem_reserve_ratio": "256 256 32"},
    "memlock": "unlimited",
    "network": {"eth0": {"mtu": 9000}},
}
GRUB = f"""set default="0"
menuentry 'Debian' --id 'debian-{RELEASE}' {{
	linux /boot/vmlinuz-{RELEASE} root=/dev/vda1 ro WORDS
}}
"""
FILES = {
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n',
    "etc/default/grub": 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n',
    "etc/fstab": "/dev/vda1 / ext4 defaults 0 1\nUUID=12 none swap sw 0 0\n# /old none swap sw 0 0\n/late none swap noauto 0 0\n",
    "usr/lib/systemd/system/zramswap.service": "[Service]\n",
    "proc/sys/kernel/osrelease": f"{RELEASE}\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/sys/kernel/unprivileged_userns_clone": "1\n",
    "proc/sys/vm/lowmem_reserve_ratio": "256\t256\t64\n",
    "proc/swaps": "Filename Type Size Used Priority\n/dev/vda2 partition 100 5 -2\n",
    "proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{RELEASE} root=/dev/vda1 ro quiet\n",
    "proc/meminfo": "MemTotal: 536870912 kB\nMemAvailable: 500000000 kB\n",
    "proc/1/limits": "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              8388608              bytes\n",
    "proc/1/status": "CapBnd:\t000001ffffffffff\n",
    "run/systemd/system/.keep": "",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors": "performance powersave\n",
    "sys/devices/system/cpu/cpu10/cpufreq/scaling_governor": "performance\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
    "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
    "sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
    "sys/class/net/eth0/mtu": "1500\n",
    "boot/grub/grub.cfg": GRUB.replace("WORDS", "quiet"),
    f"boot/vmlinuz-{RELEASE}": "",
}


class Machine(Host):
    """A directory that plays a live machine: the programs that tuning runs do to its files what the real ones do."""

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        out = ""
        if argv[0] == "swapoff":
            self.path("/proc/swaps").write_text("Filename Type Size Used Priority\n")
        elif argv[0] == "update-grub":
            words = (
                (self.text(tuning.CMDLINE) or "LINUX ").rpartition("LINUX ")[2].strip().rstrip('"')
            )
            self.path("/boot/grub/grub.cfg").write_text(GRUB.replace("WORDS", f"{words} quiet"))
        elif argv[:2] == ("systemctl", "daemon-reload"):
            self.reloaded = self.text(tuning.SYSTEMD) or ""
        elif argv[:2] == ("systemctl", "show"):
            out = "infinity\n" if "infinity" in getattr(self, "reloaded", "") else "8388608\n"
        return Result(argv, 0, out, "")


def wanted(**host: Any) -> Any:
    """The document of a class without GPU and packages, whose policy is `host`."""
    found = merge(document(), {"driver": None, "gpu": None, "policy": {"host": host}})
    return {
        **found,
        "packages": [],
        "blacklist": [],
        "fence": [],
        "driver": None,
        "gpu": None,
        "site": {"archives": []},
    }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Machine(str(tmp_path), live=True)


def kinds(done: list[dict[str, Any]]) -> list[str]:
    return [f"{row['kind']} {row['target']}" for row in done]


def judged(host: Host, document: Any) -> dict[str, tuple[str, str | None]]:
    """Outcome and reading of each finding of this domain."""
    found = tuning.findings(document, engine.observed(host, document))
    assert len(found) == len({finding.id for finding in found})
    return {
        finding.id.removeprefix("policy.host."): (finding.outcome, finding.got) for finding in found
    }


def test_everything_is_set_read_back_and_stays(machine: Machine) -> None:
    before = judged(machine, wanted(**ALL))
    assert {outcome for outcome, _ in before.values()} == {MISMATCH}, before
    done, _, after = apply(machine, wanted(**ALL), "host_tuning", {})
    assert len(done) == 19, kinds(done)
    assert after.part("host_tuning") == ()
    read = {name: machine.text(f"/{name}") for name in FILES}
    assert read["sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] == "performance\n"
    assert read["sys/kernel/mm/transparent_hugepage/enabled"] == "madvise\n"
    assert read["sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"] == "4\n"
    assert read["proc/sys/kernel/numa_balancing"] == "0\n"
    assert read["sys/class/net/eth0/mtu"] == "9000\n"
    assert read["etc/fstab"] == str(FILES["etc/fstab"]).replace("UUID=12", "# goldnode: UUID=12")
    assert machine.path("/etc/systemd/system/zramswap.service").readlink() == Path("/dev/null")
    assert "intel_iommu=on iommu=pt hugepagesz=1G hugepages=4 pci=realloc quiet" in str(
        read["boot/grub/grub.cfg"]
    )
    assert "kernel command line changed" in after.reboot
    assert (
        machine.text(tuning.SYSCTL)
        == "# goldnode: host policy of the node class\nvm.nr_hugepages = 1024\nkernel.numa_balancing = 0\n"
        "kernel.unprivileged_userns_clone = 0\nvm.lowmem_reserve_ratio = 256 256 32\n"
    )
    assert read["proc/sys/kernel/unprivileged_userns_clone"] == "0\n"
    assert read["proc/sys/vm/lowmem_reserve_ratio"] == "256 256 32\n"

    ran = list(machine.commands)
    again, _, _ = apply(machine, wanted(**ALL), "host_tuning", {})
    assert again == []
    changes = [
        argv
        for argv in machine.commands[len(ran) :]
        if argv[0] in ("swapoff", "update-grub") or argv[1:2] == ("daemon-reload",)
    ]
    assert changes == []

    # The boot that follows: the command line is there, and the groups are in passthrough.
    words = " ".join(tuning.cmdline_words(wanted(**ALL)))
    machine.path("/proc/cmdline").write_text(f"root=/dev/vda1 {words}\n")
    machine.path("/sys/kernel/iommu_groups/0/type").write_text("identity\n")
    verdict = judged(machine, wanted(**ALL))
    assert {outcome for outcome, _ in verdict.values()} == {MATCH}, verdict


def test_class_without_host_settings_restores_swap_and_command_line(machine: Machine) -> None:
    apply(machine, wanted(swap=False, cmdline=["pci=realloc"]), "host_tuning", {})
    assert "pci=realloc" in (machine.text("/boot/grub/grub.cfg") or "")
    apply(machine, wanted(), "node_class", {})
    done, _, after = apply(machine, wanted(), "host_tuning", {})
    assert kinds(done) == [
        "swap.uncomment /etc/fstab:2",
        "swap.unmask /etc/systemd/system/swap.target",
        "swap.unmask /etc/systemd/system/zramswap.service",
        "cmdline.grub kernel command line",
    ]
    assert after.part("host_tuning") == ()
    assert machine.text("/etc/fstab") == FILES["etc/fstab"]
    assert not machine.path("/etc/systemd/system/swap.target").is_symlink()
    assert "pci=realloc" not in (machine.text("/boot/grub/grub.cfg") or "")


def test_settings_of_a_mitigation_are_set_judged_and_removed_with_it(machine: Machine) -> None:
    """The document is the class's own: its policy with the mitigation, and then without it."""
    row = Mitigation.model_validate(
        {
            "schema": "goldnode.mitigation/1",
            "cve": "CVE-2026-31431",
            "classes": ["a"],
            "sysctl": {"kernel.unprivileged_userns_clone": "0"},
            "cmdline": ["slub_debug=F"],
            "reason": "the advisory asks for it",
            "owner": "platform",
            "expires": "2099-12-31",
        }
    )
    file, item = (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "sysctl.kernel.unprivileged_userns_clone",
    )
    own = {"sysctl": {"vm.lowmem_reserve_ratio": "256 256 32"}}
    mitigated = wanted(**with_settings({"host": own}, [row])["host"])
    apply(machine, mitigated, "host_tuning", {})
    # The parameter is in force at once, the word after a boot; until then the check reports it.
    assert machine.text(file) == "0\n"
    assert "kernel.unprivileged_userns_clone = 0" in str(machine.text(tuning.SYSCTL))
    assert "slub_debug=F" in str(machine.text("/boot/grub/grub.cfg"))
    read = judged(machine, mitigated)
    assert (read[item][0], read["cmdline"][0]) == (MATCH, MISMATCH)
    machine.path("/proc/cmdline").write_text("root=/dev/vda1 ro quiet slub_debug=F\n")
    assert judged(machine, mitigated)["cmdline"][0] == MATCH
    # A program sets the parameter back: the check names it, and the next run sets it again.
    machine.path(file).write_text("1\n")
    assert judged(machine, mitigated)[item] == (MISMATCH, "1")
    apply(machine, mitigated, "host_tuning", {})
    assert machine.text(file) == "0\n"
    # Without it nothing of it is left in a file. The value goes with the next boot, and the class's own setting stays.
    for part in ("node_class", "host_tuning"):
        apply(machine, wanted(**own), part, {})
    left = str(machine.text(tuning.SYSCTL))
    assert ("unprivileged_userns_clone" in left, "vm.lowmem_reserve_ratio" in left) == (False, True)
    assert "slub_debug" not in str(machine.text("/boot/grub/grub.cfg"))
    assert machine.text(file) == "0\n"
    assert not {item, "cmdline"} & judged(machine, wanted(**own)).keys()


def test_huge_pages_that_memory_cannot_give_are_reported_and_wait_for_a_boot(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the number and reserves what it finds: here 700, whatever is asked."""
    file = machine.path(tuning.PAGES.format(2048))
    real = tuning.read

    def kernel(host: Host, name: str) -> Any:
        if name.endswith("2048kB/nr_hugepages") and int(file.read_text()) > 700:
            file.write_text("700\n")
        return real(host, name)

    monkeypatch.setattr(tuning, "read", kernel)
    done, _, after = apply(machine, wanted(hugepages={"2M": 1024}), "host_tuning", {})
    reported = next(row["told"] for row in done if row["kind"] == "tuning.set")
    assert reported.startswith("700 of 1024 pages could be reserved")
    assert after.part("host_tuning") == ()
    assert after.waiting == (), "a drain would not help"
    assert after.reboot == ("hugepages.2M: 700 of 1024 pages could be had, memory is fragmented",)
    assert judged(machine, wanted(hugepages={"2M": 1024}))["hugepages.2M"] == (MISMATCH, "700")
    machine.path(
        tuning.TRIED
    ).unlink()  # what lies in /run goes with the boot, and then it is asked again
    assert engine.plan(machine, wanted(hugepages={"2M": 1024})).part("host_tuning") != ()


def test_setting_absent_from_the_machine_never_matches(machine: Machine) -> None:
    for name in ("sys/devices", "sys/kernel", "sys/class"):
        for path in sorted(machine.path(name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    for name in (
        "kernel/numa_balancing",
        "kernel/unprivileged_userns_clone",
        "vm/lowmem_reserve_ratio",
    ):
        machine.path(f"/proc/sys/{name}").unlink()
    asked = {**ALL, "network": {"eth9": {"mtu": 9000}}}
    found = judged(machine, wanted(**asked))
    assert (
        found["governor"][0]
        == found["transparent_hugepages"][0]
        == found["numa_balancing"][0]
        == NOT_EXPOSED
    )
    assert found["iommu"][0] == NOT_EXPOSED
    assert found["network.eth9.mtu"] == (MISMATCH, "there is no interface eth9")
    assert found["hugepages.2M"] == (MISMATCH, "this machine has no pages of 2M")
    assert MATCH not in {outcome for outcome, _ in found.values()}
    assert not [a for a in engine.plan(machine, wanted(**asked)).actions if a.kind == "tuning.set"]


def test_unreadable_setting_has_outcome_unread(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Host, name: str) -> str | None:
        if name.endswith(("/mtu", "/scaling_governor")):
            raise OSError(5, "Input/output error")
        return real(self, name)

    real = Host.text
    monkeypatch.setattr(Host, "text", broken)
    found = judged(machine, wanted(governor="performance", network={"eth0": {"mtu": 9000}}))
    assert {outcome for outcome, _ in found.values()} == {UNREAD}
    assert "Input/output error" in str(found["network.eth0.mtu"][1])


def test_a_value_the_kernel_does_not_take_ends_the_run(machine: Machine) -> None:
    action = Action(
        "host_tuning",
        "tuning.set",
        "x",
        "why",
        data={"name": "x", "files": ["/sys/class/net"], "value": "1"},
    )
    with pytest.raises(NodeError, match=r"/sys/class/net does not take 1 \(Is a directory\)"):
        Applier(machine, wanted(), {}, print).apply(action)


def test_a_value_that_another_program_sets_back_ends_the_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tuning.read
    monkeypatch.setattr(
        tuning, "read", lambda host, name: "1500" if name.endswith("/mtu") else real(host, name)
    )
    with pytest.raises(NodeError, match="reads back 1500 after 9000 was written"):
        apply(machine, wanted(network={"eth0": {"mtu": 9000}}), "host_tuning", {})


def test_settings_that_are_read_later_are_found_at_their_place(machine: Machine) -> None:
    texts = {
        "/etc/sysctl.conf": "# local\nkernel/numa_balancing=1\n",
        "/etc/sysctl.d/10-first.conf": "kernel.numa_balancing = 1\n",
        "/etc/sysctl.d/99-same.conf": "kernel.numa_balancing = 0\n",
        "/etc/security/limits.d/95-site.conf": "* hard memlock 64\n@gpu hard memlock 64\n",
        "/etc/systemd/system.conf.d/site.conf": "[Manager]\nDefaultLimitMEMLOCK=64K\n",
    }
    for name, text in texts.items():
        machine.path(name).parent.mkdir(parents=True, exist_ok=True)
        machine.path(name).write_text(text)
    machine.path("/etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    seen = engine.observed(machine, wanted(numa_balancing=False, memlock="unlimited"))
    assert [(row["file"], row["line"], row["value"]) for row in seen.tuning["later"]] == [
        ("/etc/sysctl.d/99-sysctl.conf", 2, "1"),
        ("/etc/security/limits.d/95-site.conf", 1, "64"),
        ("/etc/systemd/system.conf.d/site.conf", 2, "64K"),
    ]
    refused = engine.plan(machine, wanted(numa_balancing=False, memlock="unlimited")).refusals
    assert [refusal.code for refusal in refused] == ["host-override"]


D = "/etc/default/grub.d/"
# GRUB's files, the codes of the refusals, and a fragment of what the check reports (None: nothing).
GRUB_FILES: dict[str, tuple[dict[str, str], list[str], str | None]] = {
    "a word in the second line of a value": (
        {"/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet \\\nintel_iommu=off"\n'},
        ["cmdline-conflict"],
        "/etc/default/grub:2 (intel_iommu=off)",  # from the next update-grub on
    ),
    "a cloud image replaces the word": (
        {
            "/etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=off"\n',
            f"{D}50-cloudimg-settings.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="console=tty1"\n',
        },
        [],
        None,
    ),
    "a later file replaces goldnode's words": (
        {f"{D}99-site.cfg": '# ours\nGRUB_CMDLINE_LINUX="nomodeset"\n'},
        ["host-override"],
        f"{D}99-site.cfg:2 (GRUB_CMDLINE_LINUX = nomodeset)",
    ),
    "a later file appends": (
        {f"{D}kdump-tools.cfg": 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX crashkernel=1G"\n'},
        [],
        None,
    ),
    "a later file chooses another default": (
        {f"{D}90-goldnode.cfg": 'GRUB_DEFAULT="a>b"\n', f"{D}95-site.cfg": "GRUB_DEFAULT=saved\n"},
        ["host-override"],
        f"{D}95-site.cfg:1 (GRUB_DEFAULT = saved)",
    ),
    "an earlier file does": (
        {f"{D}90-goldnode.cfg": 'GRUB_DEFAULT="a>b"\n', f"{D}10-site.cfg": "GRUB_DEFAULT=saved\n"},
        [],
        None,
    ),
    "a quote without an end": (
        {"/etc/default/grub": 'GRUB_CMDLINE_LINUX="quiet\nGRUB_TIMEOUT=5\n'},
        ["grub-defaults"],
        '/etc/default/grub:1: a " has no end',
    ),
}


@pytest.mark.parametrize("name", GRUB_FILES)
def test_grubs_files_in_effect_are_judged(machine: Machine, name: str) -> None:
    files, codes, reported = GRUB_FILES[name]
    machine.path(D).mkdir()
    for file, text in files.items():
        machine.path(file).write_text(text)
    document = wanted(iommu="pt")
    seen = engine.observed(machine, document)
    assert [refusal.code for refusal in tuning.refusals(document, seen, ())] == codes
    rows = [row for row in tuning.findings(document, seen) if row.id == "policy.host.overrides"]
    assert [reported in str(row.got) for row in rows if reported] == [True] * bool(reported)
    assert bool(rows) is bool(reported)


def test_word_of_the_next_boot_against_the_class_is_reported_with_its_place(
    machine: Machine,
) -> None:
    machine.path("/etc/default/grub").write_text('GRUB_CMDLINE_LINUX_DEFAULT="intel_iommu=off"\n')
    line = "intel_iommu=on iommu=pt intel_iommu=off"
    machine.path("/boot/grub/grub.cfg").write_text(GRUB.replace("WORDS", line))
    machine.path("/proc/cmdline").write_text("intel_iommu=on iommu=pt\n")
    document = wanted(iommu="pt")
    found = {row.id: row for row in tuning.findings(document, engine.observed(machine, document))}
    row = found["policy.host.cmdline"]
    assert (row.outcome, row.got) == (
        "mismatch",
        "the next boot has intel_iommu=off (/etc/default/grub:1)",
    )


def test_words_of_the_administrator_are_found_at_their_place(machine: Machine) -> None:
    machine.path("/etc/default/grub").write_text(
        '# GRUB_CMDLINE_LINUX="no"\nGRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=off" # why\n'
    )
    machine.path("/etc/default/grub.d").mkdir()
    machine.path("/etc/default/grub.d/50-site.cfg").write_text(
        'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=off"\n'
    )
    plan = engine.plan(machine, wanted(iommu="pt"))
    assert [refusal.code for refusal in plan.refusals] == ["cmdline-conflict"]
    assert (
        "iommu=off (/etc/default/grub:2), intel_iommu=off (/etc/default/grub.d/50-site.cfg:1)"
        in plan.refusals[0].message
    )


def test_a_drop_in_that_sets_the_command_line_again_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Machine.run
    monkeypatch.setattr(
        Machine,
        "run",
        lambda self, *argv, **options: real(
            self, *("true" if a == "update-grub" else a for a in argv)
        ),
    )
    with pytest.raises(NodeError, match="the next boot's command line lacks pci=realloc"):
        apply(machine, wanted(cmdline=["pci=realloc"]), "host_tuning", {})


@pytest.mark.parametrize("where", [{"live": False}, {"container": True, "running_kernel": None}])
def test_elsewhere_nothing_is_called_good(where: dict[str, Any]) -> None:
    asked = merge(document(), {"policy": {"host": ALL}})
    found = [
        f
        for f in findings({**where, "boot": {"loader": None}}, asked)
        if f.id.startswith("policy.host.")
    ]
    # Locked memory is systemd's matter, which runs in a container as well.
    assert {f.outcome for f in found if f.id != "policy.host.memlock"} == {ELSEWHERE}
    assert {f.outcome for f in found if f.id == "policy.host.memlock"} == {
        MATCH if "container" in where else ELSEWHERE
    }


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("governor", {"governor": {"cpu1": "powersave"}}),
        ("swap", {"swap_active": [{"name": "/dev/vda2", "used": 1}]}),
        (
            "swap",
            {"swap": {"fstab": [{"line": 2, "first": "/swap", "text": "/swap none swap sw 0 0"}]}},
        ),
        ("swap", {"swap": {"units": {"swap.target": "free"}}}),
        ("hugepages.2M", {"hugepages.2M": "1000"}),
        ("hugepages.1G", {"hugepages.1G": "3"}),
        ("transparent_hugepages", {"transparent_hugepages": "always"}),
        ("numa_balancing", {"numa_balancing": "1"}),
        ("network.eth0.mtu", {"network.eth0.mtu": "1500"}),
        ("memlock", {"memlock": {"default": "8388608"}}),
        ("cmdline", {"cmdline": "root=/dev/vda1"}),
        ("iommu", {"iommu_groups": {"identity": 0, "DMA": 92}}),
    ],
)
def test_each_item_is_found_when_it_is_wrong(name: str, patch: dict[str, Any]) -> None:
    asked = merge(document(), {"policy": {"host": ALL}})
    right = {finding.id: finding.outcome for finding in findings({}, asked)}
    assert right[f"policy.host.{name}"] == MATCH
    found = findings({"tuning": patch}, asked)
    bad = {finding.id: finding for finding in found if finding.outcome == MISMATCH}
    assert f"policy.host.{name}" in bad
    assert bad[f"policy.host.{name}"].remedy
    assert check.exit_code(found) == 1
