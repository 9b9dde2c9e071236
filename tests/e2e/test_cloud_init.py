"""User data of `goldnode class user-data` in the cloud-init of Debian 12, 13 and 14: systemd nodes with a NoCloud seed.

The archive is a stand-in, and the kernels in it are: a container boots no kernel of its own, so its check cannot see the
kernel that runs (exit status 3, which the user data accepts here).
"""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.conftest import CATALOG, World
from tests.e2e.support import Site, goldnode

from goldnode.core.program_file import build
from goldnode.core.site import load_site
from goldnode.node.program.join_command import RECORD
from goldnode.testing.lab import images
from goldnode.testing.lab.nodes import LabNode, NodeSpec

pytestmark = [pytest.mark.lab, pytest.mark.long]

# A container has its network from the engine, and cloud-init must not give it another one.
OPTIONS = "network: {config: disabled}\nlocale: C.UTF-8\n"
SEED = "/var/lib/cloud/seed/nocloud"
RELEASES = {"debian12": "22.4", "debian13": "25.1", "debian14": "26.2"}
VERSIONS = {
    "debian12": ("12", "bookworm", "6.1"),
    "debian13": ("13", "trixie", "6.12"),
    "debian14": ("14", "forky", "6.12"),
}
STACK = """\
stack: {name}
description: A kernel and nothing else, for cloud-init of Debian {version}
os: {{id: debian, version: "{version}", codename: {codename}, architecture: amd64}}
exercised: debian-archive
archives: [{archives}]
kernel: {{series: "{series}", flavour: amd64}}
driver: null
fence: [linux-image-amd64, linux-headers-amd64]
end_of_life: {{date: "2028-06-30", source: "a stand-in of the tests"}}
limits: [A stand-in of the tests.]
waiver: null
"""
OTHER = "cloud_other"
CLASS = "class: {name}\ndescription: A stand-in of the tests\nsimulated: true\nbackend: cpu\nstack: {stack}\n"
FLAVOURS = {
    "debian12": ("warm", ["cloud-init"]),
    "debian13": ("bare", ["cloud-init", "initramfs-tools", "gcc"]),
    "debian14": ("bare", ["cloud-init", "initramfs-tools", "gcc-14"]),  # of the stand-in kernel
}
# The stand-in archive has no Debian 14: its nodes take the kernel of Debian 13 from an archive of its own name.
ARCHIVE = {
    "description": "The stand-in of Debian 13, for the tests of Debian 14",
    "suite": "trixie-security",
    "components": ["main"],
    "source": "tests/simulators/apt_archive",
}
MINE = """\
#cloud-config
write_files: [{path: /etc/mine, content: mine}]
runcmd: [[sh, -c, 'sleep 5; date >>/var/log/mine']]
"""


class Instance:
    """A node with cloud-init, whose user data can be replaced before its next boot."""

    def __init__(self, node: LabNode, site: Site, name: str, url: str, directory: Path) -> None:
        self.node, self.site, self.name, self.url, self.directory = node, site, name, url, directory

    def user_data(self, *words: str, name: str = "") -> bytes:
        """Return user data of the class, with the program on the lab's web server."""
        given = (
            ["--program", f"{self.url}/goldnode-node", "--accept", "3"]
            if "--embed" not in words
            else []
        )
        file = self.directory / "user-data"
        done = goldnode(
            "class",
            "user-data",
            name or self.name,
            *given,
            *words,
            "--out",
            str(file),
            site=self.site,
        )
        assert done.returncode == 0, done.stderr
        return file.read_bytes()

    def boot(self, user_data: bytes | None = None, instance: str = "") -> None:
        """Put the seed there, and boot."""
        if user_data is not None:
            meta = f"instance-id: {instance}\nlocal-hostname: {self.node.name}\n"
            self.node.put({f"{SEED}/user-data": user_data, f"{SEED}/meta-data": meta.encode()})
        self.node.container.restart(timeout=20)

    def record(self) -> dict[str, Any]:
        """Return the record of `goldnode-node join`; empty without one."""
        done = self.node.run("cat", RECORD, check=False)
        return json.loads(done.output) if done.rc == 0 else {}

    def wait(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        """Wait through reboots until something holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.node.state == "running" and condition():
                    return
            except Exception:  # noqa: S110 - a container that restarts refuses commands
                pass
            time.sleep(0.5)
        raise AssertionError(f"{self.record()}\n{self.log()[-5000:]}")

    def log(self) -> str:
        """Return what cloud-init and its scripts have printed, in all boots."""
        return self.node.run("cat", "/var/log/cloud-init-output.log", check=False).output

    def ended(self) -> bool:
        """Return whether cloud-init of this boot has ended."""
        return self.node.run("test", "-e", "/run/cloud-init/result.json", check=False).rc == 0

    def status(self) -> tuple[int, str]:
        """Return exit status and first line of `cloud-init status`, when the boot has ended."""
        self.wait(self.ended)
        done = self.node.run("cloud-init", "status", check=False)
        return done.rc, done.output.strip().splitlines()[0]


@pytest.fixture(scope="module", params=list(RELEASES))
def instance(
    request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    """A node of each release before its first boot with a seed, and the lock of its class."""
    os_name = request.param
    directory = tmp_path_factory.mktemp(os_name)
    version, codename, series = VERSIONS[os_name]
    own = "cloud" + version
    catalog = directory / "catalog"
    shutil.copytree(CATALOG, catalog)
    archives = "debian, debian-security" if version != "14" else "standin14"
    (catalog / "stacks" / f"{own}.yml").write_text(
        STACK.format(name=own, version=version, codename=codename, series=series, archives=archives)
    )
    (catalog / "classes" / f"{own}.yml").write_text(CLASS.format(name=own, stack=own))
    other = CLASS.format(name=OTHER, stack=own) + "policy: {host: {swap: false}}\n"
    (catalog / "classes" / f"{OTHER}.yml").write_text(other)
    site = world.site(os_name, "bookworm" if version == "12" else "trixie")
    assert site.site is not None
    settings = yaml.safe_load(site.site.read_text())
    entry = settings["archives"]["debian-security"]
    settings["archives"]["standin14"] = entry
    site.site.write_text(yaml.safe_dump(settings))
    text = yaml.safe_load((catalog / "archives.yml").read_text())
    keys = [{"fingerprint": entry["fingerprints"][0], "owner": "the tests"}]
    text["archives"]["standin14"] = {**ARCHIVE, "keys": keys}
    (catalog / "archives.yml").write_text(yaml.safe_dump(text))
    site = Site(catalog=catalog, site=site.site, locks=site.locks)
    (world.directory / "archive/goldnode-node").write_bytes(build())
    flavour, extra = FLAVOURS[os_name]
    real = None
    if flavour == "bare":  # an index of a release in development may be older than its validity
        (directory / "site.yml").write_text("archives: {debian: {accept_expired: true}}\n")
        real = load_site(directory / "site.yml")
    image = images.ensure(
        world.lab.client, os_name, flavour, say=world.lab.say, site=real, extra=extra
    )
    node = world.lab.up([NodeSpec(own, own, os=os_name, flavour=flavour, image=image)])[0]
    world.status(node).write_text(node.read("/var/lib/dpkg/status"))
    world.lock(site, node, own)
    node.put({"/etc/cloud/cloud.cfg.d/90-lab.cfg": OPTIONS.encode()})
    node.run("mkdir", "-p", "/var/log/journal")
    assert RELEASES[os_name] in node.run("cloud-init", "--version").output
    yield Instance(node, site, own, world.server.url, directory)
    node.destroy()


# The unit whose journal has the output of scripts: of 22.4, and of 25.1 and 26.2.
JOURNALS = ("cloud-final", "cloud-init-main")
# Form, and what `cloud-init schema --config-file` of 22.4, and of 25.1 and 26.2 ends with and prints.
SCHEMA = {
    "a cloud-config": ((0, "Valid"), (0, "Valid")),
    "archive": ((1, "is not a YAML dict"), (0, "not currently evaluated by cloud-init schema")),
    "multipart": ((1, "needs to begin with"), (1, "Unrecognized user-data header")),
    "gzip": ((1, ""), (1, "")),
}


def test_schema_knows_each_form_or_names_it(instance: Instance) -> None:
    """No form that is printed is a cloud-config: what the command does not know, cloud-init carries out all the same."""
    mine = instance.directory / "mine.yml"
    mine.write_text(MINE)
    forms = {
        "a cloud-config": MINE.encode(),
        "archive": instance.user_data("--part", str(mine)),
        "multipart": instance.user_data("--part", str(mine), "--multipart"),
        "gzip": instance.user_data("--gzip", "--platform", "ec2"),
    }
    for form, content in forms.items():
        instance.node.put({"/root/user-data": content})
        done = instance.node.run(
            "cloud-init", "schema", "--config-file", "/root/user-data", check=False
        )
        rc, text = SCHEMA[form][instance.name != "cloud12"]
        assert (done.rc, text in done.output) == (rc, True), (form, done)


MERGED = """\
#cloud-config-archive
- type: text/cloud-config
  content: |
    runcmd: [[touch, /one]]
- type: text/cloud-config
  content: |
    runcmd: [[touch, /two], ["false"]]
"""
EACH_BOOT = """\
#cloud-config-archive
- type: text/x-shellscript-per-boot
  filename: 50-x
  content: |
    #!/bin/sh
    date >>/ran
"""


def test_cloud_init_is_as_the_page_describes(instance: Instance) -> None:
    """Behaviour of cloud-init for which the user data has its form (docs/how-to/cloud-init.md)."""
    node = instance.node
    # Of two parts with runcmd, the later one's counts. Its failure is an error in this boot, and none in the next.
    instance.boot(MERGED.encode(), "i-11")
    assert instance.status() == (1, "status: error")
    node.shell("test ! -e /one && test -e /two")
    instance.boot()
    assert instance.status() == (0, "status: done")
    # An unknown key is a warning, which the later releases count.
    instance.boot(b"#cloud-config\nunknown_key: 1\n", "i-12")
    assert instance.status() == (0 if instance.name == "cloud12" else 2, "status: done")
    # A script that a loss of power has emptied is written again.
    instance.boot(gzip.compress(EACH_BOOT.encode()), "i-13")
    assert instance.status() == (0, "status: done")
    node.shell(": >/var/lib/cloud/scripts/per-boot/50-x")
    instance.boot()
    assert instance.status() == (0, "status: done")
    assert len(node.read("/ran").splitlines()) == 2
    # The record of a join lies where `cloud-init clean` removes it.
    node.shell(f"touch {RECORD} && rm /var/lib/cloud/scripts/per-boot/50-x && cloud-init clean")
    assert node.run("test", "-e", RECORD, check=False).rc == 1


def test_machine_joins_through_failures_and_a_loss_of_power(instance: Instance) -> None:
    node = instance.node
    packages = "dpkg-query -W | sha256sum"
    fresh = node.shell(packages).output

    # A program that is not the one of the user data.
    good = instance.user_data()
    instance.boot(good.replace(b'"sha256": "', b'"sha256": "0'), "i-1")
    assert instance.status() == (1, "status: error")
    assert "and the user data names 0" in instance.log()

    # cloud-init reads new user data of the same instance never: the seed is corrected, and the old one counts.
    instance.boot(good, "i-1")
    assert instance.status() == (1, "status: error")
    assert instance.log().count("and the user data names 0") == 2
    assert instance.record() == {}

    # A machine that refuses: apt does not read its own configuration.
    node.put({"/etc/apt/apt.conf.d/99-broken": b'APT::X "a\n'})
    instance.boot(good, "i-2")
    assert instance.status() == (1, "status: error")
    assert "refused: " in instance.log()
    assert node.shell(packages).output == fresh
    node.run("rm", "/etc/apt/apt.conf.d/99-broken")

    # Power is lost while the kernel is installed.
    mine = instance.directory / "mine.yml"
    mine.write_text(MINE)
    instance.boot(instance.user_data("--part", str(mine)), "i-3")
    instance.wait(lambda: "kernel 1/" in node.run("cat", "/run/goldnode/progress").output)
    node.kill()
    node.container.start()

    # The next boot repeats it, reboots by itself, and the boot after that judges.
    instance.wait(lambda: instance.record().get("state") == "joined")
    assert instance.status() == (0, "status: done")
    log = instance.log()
    for text in ("the plan:", "applied; it reboots now", f"member of class {instance.name}"):
        assert text in log, log
    assert node.read("/etc/mine") == "mine"
    assert len(node.read("/var/log/mine").splitlines()) == 1, "the reboot waited for runcmd"
    journal = f"journalctl --no-pager -o cat -u {JOURNALS[instance.name != 'cloud12']}"
    assert "goldnode: the plan:" in node.shell(journal).output

    # Nothing happens at the next boot.
    record, before = instance.record(), node.shell(packages).output
    instance.boot()
    assert instance.status() == (0, "status: done")
    assert (instance.record(), node.shell(packages).output) == (record, before)
    # Another class for what is now a member, as in a copy of its disk.
    instance.boot(instance.user_data(name=OTHER), "i-4")
    assert instance.status() == (1, "status: error")
    assert f"is of class {instance.name} by another document" in instance.log()
    assert (instance.record(), node.shell(packages).output) == (record, before)
