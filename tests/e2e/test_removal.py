"""goldnode_state=absent on systemd nodes: files, packages, holds and sources return to their state before
goldnode.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.support import ROOT, Run, Site, command, environment, inventory, site_yml, succeeded

from goldnode.testing.lab.nodes import LabNode

pytestmark = pytest.mark.lab

Make = Callable[..., tuple[LabNode, Site]]
ABSENT = ("-e", "goldnode_state=absent")

# What may differ between a node that goldnode never saw and one that it has left: a pattern of paths, and why.
TOLERATED = (
    (r"/var/log/.*", "logs tell what happened, of goldnode's time too"),
    (
        r"/var/lib/apt/lists(/.*)?",
        "apt's indexes are of the day; the next `apt-get update` drops those whose source has left",
    ),
    (r"/var/cache/apt(/.*)?", "downloads and what apt computes from its indexes"),
    (r"/var/cache/debconf/.*", "debconf keeps templates and a backup of itself"),
    (r"/var/cache/ldconfig/.*|/etc/ld\.so\.cache", "ldconfig writes both anew at each of its runs"),
    (
        r"/var/lib/dpkg/(status|available|diversions|statoverride|triggers/.*|lock.*)(-old)?",
        "dpkg's bookkeeping; its content is compared by package",
    ),
    (
        r"/var/lib/apt/(extended_states|periodic/.*|daily_lock)",
        "apt's bookkeeping; its marks are compared by package",
    ),
    (
        r"/var/lib/(systemd|dbus)/.*|/etc/machine-id|/etc/ssh/ssh_host.*",
        "a boot and the first login write these, with goldnode or without",
    ),
    (r"/root(/\.ansible(/.*)?)?", "Ansible's own directory for modules, made by any playbook"),
    (
        r"/usr/lib/nvidia",
        "made by a script of the stand-in nvidia-alternative and owned by no package: what a purge leaves is the package's",
    ),
    (r".*/__pycache__(/.*)?", "Python compiles what the run imports from the system's library"),
)


def tree(node: LabNode) -> dict[str, str]:
    """Path -> kind, mode, owner, and link target or SHA-256, of everything on the node's own file system."""
    listed = node.shell("find / -xdev -printf '%p\\t%y %m %u:%g %l\\n'").output
    hashed = node.shell("find / -xdev -type f -print0 | xargs -0 sha256sum").output
    found = dict(line.split("\t", 1) for line in listed.splitlines())
    for line in hashed.splitlines():
        digest, _, name = line.partition("  ")
        found[name] = f"{found.get(name, '')} {digest}"
    return found


def difference(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Paths that differ, with both sides, without what is tolerated."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [
        f"{name}: {before.get(name)} -> {after.get(name)}"
        for name in names
        if not any(re.fullmatch(pattern, name) for pattern, _ in TOLERATED)
    ]


def administration(node: LabNode) -> dict[str, list[str]]:
    """Packages with version and state, holds, apt's marks, and the units that run or are enabled."""
    shown = {
        "packages": "dpkg-query -W -f '${Package} ${Architecture} ${Version} ${Status}\\n'",
        "holds": "apt-mark showhold",
        "automatic": "apt-mark showauto",
        "units": "systemctl list-unit-files --no-legend --state=enabled,disabled | cut -d' ' -f1",
        "failed": "systemctl list-units --no-legend --plain --failed",
    }
    return {name: sorted(node.shell(script).output.splitlines()) for name, script in shown.items()}


def furnish(node: LabNode) -> None:
    """What a user has on a node, some of it where goldnode works too."""
    node.put(
        {
            "/etc/apt/sources.list.d/mine.sources": b"Types: deb\nURIs: http://mine.example/debian\nSuites: mine\nComponents: main\nEnabled: no\n",
            "/etc/modprobe.d/mine.conf": b"options loop max_loop=8\n",
            "/etc/docker/daemon.json": b'{\n  "log-driver": "journald"\n}\n',
            "/etc/apt/preferences.d/mine": b"Package: hello\nPin: version 2*\nPin-Priority: 900\n",
        }
    )
    node.shell("echo nouveau >> /etc/initramfs-tools/modules; apt-mark hold tzdata")


@pytest.fixture(scope="module")
def gone(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[LabNode, Site, Path]:
    """A furnished node; the tests of this module follow it in their order."""
    node, site = make("gone", "e2e_r535", "debian12_r535", "debian12_r470")
    furnish(node)
    return node, site, inventory(tmp_path_factory.mktemp("inventory"), {"e2e_r535": [node]})


def test_a_node_is_what_it_was_before(
    make: Make, gone: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    node, site, hosts = gone
    assert succeeded(site_yml(hosts, *ABSENT, "-vvv", site=site)).changed["gone"] == 0, (
        "nothing is there to be taken away"
    )
    before, managed = tree(node), administration(node)
    succeeded(site_yml(inventory(tmp_path / "r470", {"e2e_r470": [node]}), site=site))
    succeeded(site_yml(hosts, site=site))
    assert len(difference(before, tree(node))) > 100, (
        "the comparison does not see what a run brings"
    )
    assert "# goldnode: nouveau" in node.read("/etc/initramfs-tools/modules")
    # A user goes on living on it: drift, a unit that failed, a setting of his own, a package of his own.
    node.shell(
        "rm /etc/apt/preferences.d/goldnode-stack; apt-mark unhold libcuda1; echo >> /etc/modprobe.d/goldnode-blacklist.conf"
    )

    reported = site_yml(hosts, *ABSENT, "--check", "--diff", site=site)
    assert "purge     nvidia-kernel-dkms" in succeeded(reported).output
    assert "-/usr/lib/goldnode" in reported.output
    assert node.run("test", "-f", "/etc/goldnode/class.json").rc == 0, (
        "check mode has changed something"
    )

    run = succeeded(site_yml(hosts, *ABSENT, site=site))
    assert run.changed["gone"] == 1, "a removal is one task"
    assert "the next boot uses the drivers of the distribution" in run.output
    assert "Needs a reboot: the kernel or driver of the class has left" in re.sub(
        r"\s+", " ", run.output
    )
    assert administration(node) == managed
    assert difference(before, tree(node)) == []
    assert node.run("test", "-e", "/run/goldnode", check=False).rc != 0
    assert (
        "goldnode"
        not in node.shell("systemctl list-units --all --no-legend --plain 'goldnode*'").output
    )


def test_a_second_removal_costs_one_execution_and_changes_nothing(
    gone: tuple[LabNode, Site, Path],
) -> None:
    node, site, hosts = gone
    before = tree(node)
    run = succeeded(site_yml(hosts, *ABSENT, "-vvv", site=site))
    assert run.changed["gone"] == 0
    assert run.executions == 1, [line for line in run.output.splitlines() if "SSH: EXEC" in line]
    assert difference(before, tree(node)) == []
    assert node.run("test", "-e", "/run/goldnode", check=False).rc != 0


def test_removed_node_converges_again(gone: tuple[LabNode, Site, Path]) -> None:
    _, site, hosts = gone
    succeeded(site_yml(hosts, site=site))
    assert succeeded(site_yml(hosts, site=site)).changed["gone"] == 0


def test_the_class_may_have_left_the_catalog(
    gone: tuple[LabNode, Site, Path], tmp_path: Path
) -> None:
    """The host in a group that is no class; a reboot between drain and return, without a check that is no longer there."""
    node, site, _ = gone
    started = node.run("cut", "-d ", "-f22", "/proc/1/stat").output
    hosts = inventory(tmp_path, {"forgotten": [node]})
    run = succeeded(
        site_yml(
            hosts, *ABSENT, "-e", "goldnode_reboot=true", "-e", "sanity_verify=true", site=site
        )
    )
    assert node.run("cut", "-d ", "-f22", "/proc/1/stat").output != started, run.output[-2000:]
    assert "nvidia" not in node.shell("dpkg-query -W -f '${Package}\\n'").output
    assert succeeded(site_yml(hosts, *ABSENT, site=site)).changed["gone"] == 0


def test_a_word_that_is_no_state_is_refused(gone: tuple[LabNode, Site, Path]) -> None:
    _, site, hosts = gone
    run = site_yml(hosts, "-e", "goldnode_state=abscent", site=site)
    assert run.rc != 0
    assert "absent" in run.output


def test_package_needed_by_a_foreign_package_stays_and_is_reported(
    gone: tuple[LabNode, Site, Path],
) -> None:
    """Also: the node's own program does it, while its file leaves under it."""
    node, site, hosts = gone
    succeeded(site_yml(hosts, site=site))
    control = "Package: trainer\nVersion: 1\nArchitecture: all\nMaintainer: t <t@example.invalid>\nDepends: libcuda1\nDescription: t\n"
    node.put({"/root/trainer/DEBIAN/control": control.encode()})
    node.shell(
        "dpkg-deb -b /root/trainer /root/trainer.deb; dpkg -i /root/trainer.deb; apt-mark hold trainer"
    )
    answer = node.run("/usr/lib/goldnode/goldnode-node", "plan", "--absent").output
    assert "libcuda1 stays: trainer needs it, which goldnode did not install" in answer
    done = node.run("/usr/lib/goldnode/goldnode-node", "apply", "--absent").output
    assert "nothing to do" in done
    assert "reboot needed: the kernel or driver of the class has left" in done
    left = node.shell("dpkg-query -W -f '${Package}\\n'").output.split()
    assert {"trainer", "libcuda1"} <= set(left)
    assert "nvidia-kernel-dkms" not in left
    assert "tzdata" in node.run("apt-mark", "showhold").output
    assert "trainer" in node.run("apt-mark", "showhold").output
    assert node.run("dpkg", "--audit").output == ""
    assert node.run("test", "-e", "/usr/lib/goldnode", check=False).rc != 0
    node.shell(
        "apt-mark unhold trainer; apt-get purge -y trainer libcuda1; rm -r /root/trainer /root/trainer.deb"
    )


# What is killed while a removal is at work: words of a shell that succeed once it is done (None: the run itself, on the controller).
# The brackets keep a pattern from matching the shell that holds it.
STEPS = [
    ("the run itself", None),
    (
        "the module on the node",
        "pgrep -x apt-get && pkill -KILL -f '^/usr/bin/python[3]$|AnsiballZ[_]'",
    ),  # its engine works on; not services' python3
    ("the engine on the node", "pgrep -x apt-get && pkill -KILL -f 'goldnode-nod[e] answer'"),
    ("dpkg while it removes", "pkill -KILL -f 'dpk[g] .*--remove'"),
    ("a maintainer script", "pkill -KILL -f '/info/.*[.](prer[m]|postr[m])'"),
]
# Each takes more than a minute; the others run with --all.
DEFAULT = ("dpkg while it removes",)


@pytest.mark.parametrize(
    ("what", "deed"),
    [
        pytest.param(
            *step,
            marks=[] if step[0] in DEFAULT else [pytest.mark.long],
            id=step[0].replace(" ", "-"),
        )
        for step in STEPS
    ],
)
def test_a_removal_that_was_killed_is_finished_by_the_next(
    make: Make, tmp_path: Path, what: str, deed: str | None
) -> None:
    node, site = make("halfgone", "e2e_r535", "debian12_r535")
    furnish(node)
    hosts = inventory(tmp_path, {"e2e_r535": [node]})
    succeeded(site_yml(hosts, *ABSENT, site=site))
    before, managed = tree(node), administration(node)
    succeeded(site_yml(hosts, site=site))
    kill(node, hosts, site, what, deed)
    succeeded(site_yml(hosts, *ABSENT, site=site))
    assert administration(node) == managed
    assert difference(before, tree(node)) == []
    assert succeeded(site_yml(hosts, *ABSENT, site=site)).changed["halfgone"] == 0


def kill(node: LabNode, hosts: Path, site: Site, what: str, deed: str | None) -> None:
    """Start a removal and kill it, or what it has started."""
    with subprocess.Popen(
        command(hosts, *ABSENT),
        cwd=ROOT,
        env=environment(site),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as run:
        loop = f"for i in $(seq 6000); do {{ {deed or 'pgrep -x apt-get'}; }} >/dev/null && exit 0; sleep 0.02; done; exit 1"
        done = node.run("sh", "-c", loop, check=False)
        assert done.rc == 0, f"{what}: was never seen at work"
        if deed is None:
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=900)


@pytest.mark.long  # a whole life of another node; the default run removes goldnode from a node of Debian 12
def test_removal_restores_a_debian_13_node(make: Make, tmp_path: Path) -> None:
    node, site = make("gone13", "e2e_r550", "debian13_r550", os_name="debian13")
    hosts = inventory(tmp_path, {"e2e_r550": [node]})
    succeeded(site_yml(hosts, *ABSENT, site=site))
    before, managed = tree(node), administration(node)
    succeeded(site_yml(hosts, site=site))
    assert json.loads(node.read("/var/lib/goldnode/state.json"))["brought"]
    run: Run = succeeded(site_yml(hosts, *ABSENT, site=site))
    assert run.changed["gone13"] == 1
    assert administration(node) == managed
    assert difference(before, tree(node)) == []
