"""The packages of the node program on real systems: Debian 12, 13 and 14 in containers with systemd, and dnf in a scratch root.

dnf and rpmbuild are Debian's. What a package of rpm depends on is a stub that calls itself one: no system of the RHEL family
is at hand.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from docker import DockerClient
from docker.errors import ImageNotFound
from docker.models.containers import Container
from tests.debian_archive import debian_archive
from tests.e2e.support import Site, inventory, site_yml, succeeded

from goldnode.classdoc.compile import compile_class
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.view import read_class
from goldnode.cli import main
from goldnode.core.site import load_site
from goldnode.node.state.domains.program import COMMAND
from goldnode.nodepackage import completion, rpm
from goldnode.nodepackage.contents import Words
from goldnode.nodepackage.manpages import man, of_node
from goldnode.testing.lab.nodes import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.long]

COMMON = "systemd,systemd-sysv,python3,init-system-helpers,bash-completion,zsh,fish,man-db,rpm"
# Suite: dnf of the suite, and whether its lintian judges the package.
SUITES = {"bookworm": "dnf", "trixie": "dnf,lintian", "forky": "dnf5,lintian"}
TIMER = "goldnode-node.timer"
WANTS = f"/etc/systemd/system/timers.target.wants/{TIMER}"
# The package is not meant for Debian's archive; `env -S` passes options to Python.
WARNINGS = {"initial-upload-closes-no-bugs", "unusual-interpreter"}
STUB = """\
Name: python3
Version: 3.9
Release: 1
Summary: STUB by goldnode's tests in place of Python: nothing in it runs
License: none
BuildArch: noarch
Provides: /bin/sh
AutoReqProv: no
%description
A stub for a test. It is not Python.
%files
"""


class System:
    """A container of one release, with systemd as PID 1."""

    def __init__(self, container: Container, suite: str, live: bool) -> None:
        self.container, self.suite, self.live = container, suite, live

    def active(self) -> str:
        """Return the state of the timer; `not live` where systemd does not run."""
        return self.run(f"systemctl is-active {TIMER}", check=False) if self.live else "not live"

    def expect(self, state: str) -> None:
        """Compare the state of the timer, where systemd runs."""
        assert self.active() in (state, "not live")

    def run(self, script: str, check: bool = True) -> str:
        status, output = self.container.exec_run(["sh", "-c", script])
        text = b"".join([output] if isinstance(output, bytes) else output).decode()
        assert not check or status == 0, f"{script}: {status}\n{text}"
        return text.strip()

    def dpkg(self, words: str) -> str:
        return self.run(f"dpkg {words}")


def image(client: DockerClient, suite: str, directory: Path) -> str:
    """Return the image of a suite, made now unless the engine has it."""
    name = f"goldnode-lab/package-{suite}"
    try:
        client.images.get(name)
    except ImageNotFound:
        tar = directory / f"{suite}.tar"
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={COMMON},{SUITES[suite]}"]
        # A suite in development has a signed index that may be older than its validity, where a copy of it is read.
        command += ["--aptopt=Acquire::Check-Valid-Until false"]
        command += [suite, str(tar), debian_archive()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            # An archive can lack a suite, or its index can have expired: the page of proofs has when each one ran.
            pytest.skip(f"{suite} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
        client.api.import_image_from_file(str(tar), repository=name)
        tar.unlink()
    return name


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two revisions of the deb, a class document, and what rpmbuild needs."""
    out = tmp_path_factory.mktemp("packages")
    for revision in ("1", "2"):
        words = ["package", "deb", "--out", str(out), "--revision", revision]
        assert CliRunner().invoke(main, words).exit_code == 0
    document = compile_class(read_class("cpu_only", load_catalog(), load_site()))
    (out / "class.json").write_text(json.dumps(document))
    entries = of_node()
    scripts = {
        shell: completion.script(shell, "goldnode-node", entries) for shell in completion.SHELLS
    }
    (out / "top").mkdir()
    rpm.prepare(Words(man(entries), scripts), 1, out / "top")
    (out / "stub.spec").write_text(STUB)
    return out


@pytest.fixture(scope="module", params=SUITES)
def system(
    request: pytest.FixtureRequest,
    docker_client: DockerClient,
    packages: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    suite = request.param
    # systemd 258 and later do not start on version 1 of cgroups.
    live = suite != "forky" or str(docker_client.info().get("CgroupVersion")) == "2"
    container = docker_client.containers.run(
        image(docker_client, suite, tmp_path_factory.mktemp(suite)),
        ["/lib/systemd/systemd"] if live else ["sleep", "infinity"],
        detach=True,
        init=not live,
        cap_add=["SYS_ADMIN"],
        security_opt=["seccomp=unconfined"],
        cgroupns="host",
        volumes={
            "/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "rw"},
            str(packages): {"bind": "/p", "mode": "ro"},
        },
        tmpfs={"/run": "", "/run/lock": "", "/tmp": "exec"},
        environment={"container": "docker"},
    )
    try:
        made = System(container, suite, live)
        if live:
            made.run(
                "while systemctl is-system-running | grep -qE '^(init|starting|$)'; do sleep 1; done"
            )
        yield made
    finally:
        container.remove(force=True, v=True)


@pytest.fixture
def clean(system: System) -> Iterator[System]:
    yield system
    system.run("dpkg -P goldnode-node; rm -rf /etc/goldnode", check=False)


def test_installed_upgraded_removed_purged(clean: System) -> None:
    """On a system without a running systemd (a chroot, an image), all but the state of the timer is the same."""
    system = clean
    everything = "find / -xdev -path /proc -prune -o -path /var/cache/man -prune -o -name '*goldnode*' -print"
    enabled = f"systemctl is-enabled {TIMER}"
    before = system.run(everything)
    system.dpkg("-i /p/goldnode-node_0.2.0-1_all.deb")
    assert system.run("dpkg --verify goldnode-node") == ""
    assert system.run(enabled) == "enabled"
    system.expect("active")
    units = "goldnode-node.service goldnode-node.timer"
    assert "goldnode" not in system.run(f"systemd-analyze verify {units}", check=False)
    system.run(f"systemctl disable {'--now' if system.live else ''} {TIMER}")
    system.dpkg("-i /p/goldnode-node_0.2.0-2_all.deb")
    assert system.run(enabled, check=False) == "disabled", "as left by a person"
    system.expect("inactive")
    system.run(f"systemctl enable {'--now' if system.live else ''} {TIMER}")
    system.dpkg("-r goldnode-node")
    system.expect("inactive")
    system.dpkg("-i /p/goldnode-node_0.2.0-2_all.deb")
    system.expect("active")
    system.dpkg("-P goldnode-node")
    assert system.run(everything) == before
    assert system.run(f"ls {WANTS}", check=False).endswith("No such file or directory")


def test_the_timer_checks_only_with_a_class_document(clean: System) -> None:
    system = clean
    if not system.live:
        pytest.skip("this systemd needs version 2 of cgroups, and the engine has version 1")
    show = "systemctl show -p ConditionResult -p Result -p ExecMainStatus --value goldnode-node.service"
    system.dpkg("-i /p/goldnode-node_0.2.0-1_all.deb")
    system.run("systemctl start goldnode-node.service")
    assert "no" in system.run(show).split()
    system.run("mkdir -p /etc/goldnode && cp /p/class.json /etc/goldnode/class.json")
    system.run("systemctl start goldnode-node.service")
    result = system.run(show).split()
    # The container has none of the packages of the class, and two of the three releases are not those of the class.
    assert {"yes", "success"} <= set(result)
    assert {"2", "4"} & set(result)
    verdict = json.loads(system.run("cat /run/goldnode/verdict.json"))
    assert verdict["status"] in ("drain", "not_this_class")
    assert "goldnode_verdict_exit_code" in system.run("cat /run/goldnode/metrics.prom")
    # Where site.yml has been, its units do the work.
    system.run("touch /etc/systemd/system/goldnode-sanity.service")
    system.run("systemctl start goldnode-node.service")
    assert "no" in system.run(show).split()
    system.run("rm /etc/systemd/system/goldnode-sanity.service")
    system.dpkg("-P goldnode-node")
    assert system.run("ls -A /etc/goldnode") == "class.json", "the document is the administrator's"
    assert "No such file" in system.run("ls /var/lib/goldnode", check=False)


def test_purge_keeps_the_records_of_a_class(clean: System) -> None:
    system = clean
    system.dpkg("-i /p/goldnode-node_0.2.0-1_all.deb")
    system.run("mkdir -p /var/lib/goldnode && echo '{}' > /var/lib/goldnode/state.json")
    system.dpkg("-P goldnode-node")
    assert system.run("ls /var/lib/goldnode") == "state.json"
    system.run("rm -r /var/lib/goldnode")


# zpty gives zsh a terminal: its completion works in an interactive shell alone. Each word waits for what came before it.
ZSH = r"""
zmodload zsh/zpty
zpty -b z 'cd /etc && HOME=/tmp TERM=dumb zsh -f -i'
await() {
    local out line
    repeat 300 { sleep 0.1; while zpty -rt z line; do out+=$line; done; [[ $out == *$~1* ]] && break; }
    print -r -- $out
}
zpty -w z 'autoload -Uz compinit && compinit -u -D; print lo""aded'
await 'loaded' >/dev/null
zpty -w -n z $'goldnode-node chec\t'; await 'check '
zpty -w -n z $'--form\t'; await '--format '
zpty -w -n z $'js\t'; await 'json'
"""


def test_shells_find_their_completion_by_themselves(clean: System) -> None:
    """Each shell as the distribution installs it: nothing is sourced here, the paths alone decide."""
    system = clean
    system.dpkg("-i /p/goldnode-node_0.2.0-1_all.deb")
    bash = ". /usr/share/bash-completion/bash_completion; cd /; "
    bash += "{ _completion_loader goldnode-node || _comp_load goldnode-node; } 2>/dev/null; complete -p goldnode-node"
    assert "_goldnode_node" in system.run(f"bash -c {shlex.quote(bash)}")
    fish = system.run("fish -c \"complete -C 'goldnode-node chec'\"")
    assert fish.startswith("check\t")
    zsh = system.run(f"zsh -f -c {shlex.quote(ZSH)}")
    for word in ("check ", "--format ", "json"):
        assert word in zsh, zsh
    assert "GOLDNODE\\-NODE" in system.run("zcat /usr/share/man/man1/goldnode-node.1.gz")
    warnings = system.run(
        "man --warnings=w -l /usr/share/man/man1/goldnode-node.1.gz 2>&1 >/dev/null", check=False
    )
    assert warnings == ""


def test_lintian_finds_no_error(clean: System) -> None:
    if "lintian" not in SUITES[clean.suite]:
        pytest.skip("lintian of this suite is left to the others")
    text = clean.run("lintian --allow-root /p/goldnode-node_0.2.0-1_all.deb", check=False)
    rows = [line.split() for line in text.splitlines() if line[:2] in ("E:", "W:")]
    assert not [row for row in rows if row[0] == "E:"], text
    assert {row[2] for row in rows} <= WARNINGS, text


def rpms(system: System) -> str:
    """Make the package and the stub with the rpmbuild of the system; the directory with both."""
    words, environment = rpm.command("/tmp/top")
    call = " ".join(f"{name}={value}" for name, value in environment.items())
    system.run("rm -rf /tmp/top; cp -a /p/top /tmp/top")
    system.run(f"umask 022; env {call} {shlex.join(words)}")
    system.run(
        "rpmbuild -bb --quiet --define '_topdir /tmp/top' --define '_rpmdir /tmp/top/out' /p/stub.spec"
    )
    return "/tmp/top/out/noarch"


def test_rpmbuild_of_each_release_writes_the_same_bytes_twice(clean: System) -> None:
    digests = []
    for _ in range(2):
        place = rpms(clean)
        digests.append(clean.run(f"sha256sum {place}/goldnode-node-*.rpm").split()[0])
    assert digests[0] == digests[1]


def test_dnf_installs_and_removes_it_in_a_scratch_root(clean: System) -> None:
    system = clean
    place = rpms(system)
    # The scripts of the package need a shell that runs: a failed %preun would keep the package.
    system.run("rm -rf /tmp/root; mkdir -p /tmp/root/usr/bin /tmp/root/usr/lib /tmp/root/usr/lib64")
    system.run(
        "cd /tmp/root; ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64; cp -L /bin/sh bin/sh"
    )
    system.run("cp -L --parents $(ldd /bin/sh | grep -o '/[^ ]*') /tmp/root")
    dnf = (
        "dnf5 --installroot=/tmp/root --use-host-config"
        if system.suite == "forky"
        else "dnf --installroot=/tmp/root"
    )
    options = "-y --releasever=1 --setopt=cachedir=/tmp/cache"
    alone = system.run(f"{dnf} {options} install {place}/goldnode-node-*.rpm", check=False)
    assert "python3 >= 3.9" in alone, "without the stub its dependency is missing"
    system.run(f"{dnf} {options} install {place}/*.rpm")
    listed = system.run(
        "rpm --root /tmp/root -q goldnode-node; rpm --root /tmp/root -V goldnode-node"
    )
    assert listed == "goldnode-node-0.2.0-1.noarch"
    program = system.run("/tmp/root/usr/bin/goldnode-node --version")
    assert program.startswith("goldnode-node sha256:")
    system.run(f"{dnf} {options} remove goldnode-node")
    assert (
        system.run("find /tmp/root -name '*goldnode*' -not -path '*/var/*' -not -path '*/tmp/*'")
        == ""
    )


def test_a_node_of_a_class_has_both(
    make: Callable[..., tuple[LabNode, Site]], packages: Path, tmp_path: Path
) -> None:
    """site.yml and the package own different files: neither changes the other's, in any order and version."""
    node, site = make("package", "e2e_plain", "e2e_plain")
    hosts = inventory(tmp_path, {"e2e_plain": [node]})
    for revision in ("1", "2"):
        name = f"goldnode-node_0.2.0-{revision}_all.deb"
        node.put({f"/root/{name}": (packages / name).read_bytes()})
    node.run("dpkg", "-i", "/root/goldnode-node_0.2.0-1_all.deb")
    succeeded(site_yml(hosts, site=site))
    before = node.read("/run/goldnode/verdict.json")
    assert node.run("dpkg", "--verify", "goldnode-node").output == ""
    assert node.run("sh", "-lc", "command -v goldnode-node").output.strip() == COMMAND
    # The package moves on: the node has nothing to change, and its verdict is the same.
    node.run("dpkg", "-i", "/root/goldnode-node_0.2.0-2_all.deb")
    assert succeeded(site_yml(hosts, site=site)).changed["package"] == 0
    assert outcomes(node.read("/run/goldnode/verdict.json")) == outcomes(before)
    node.run("systemctl", "start", "goldnode-node.service")
    skipped = node.run("systemctl", "show", "-p", "ConditionResult", "goldnode-node.service")
    assert skipped.output.strip() == "ConditionResult=no"
    # And goes: the program, the units and the records of the class stay.
    node.run("dpkg", "-P", "goldnode-node")
    assert node.run(COMMAND, "--version").output.startswith("goldnode-node sha256:")
    assert succeeded(site_yml(hosts, site=site)).changed["package"] == 0


def outcomes(verdict: str) -> dict[str, str]:
    return {row["id"]: row["outcome"] for row in json.loads(verdict)["findings"]}
