"""A node in a container that follows a channel to a lock: `goldnode-node follow` by its timer, `goldnode fleet serve` with
mutual TLS, and `goldnode rollout run`, all as programs. The site's command applies the lock with `goldnode apply --local`.

The archive has stand-in packages; the boot is a restart of the container. The service is away, and the class frozen,
whenever that must hold the node back or must not hurt it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml
from tests.e2e.conftest import CATALOG, World
from tests.e2e.support import BIN, Site, environment, inventory
from tests.e2e.test_apply_local import put_site
from tests.e2e.test_rollout import DRAIN, RESUME
from tests.release_files import export
from tests.simulators import apt_archive
from tests.unit.fleet.control.followed import free_port
from tests.unit.fleet.control.test_rollout_channel import key_file

from goldnode.fleet.rollout.document import loads
from goldnode.fleet.store import rollout_trace
from goldnode.fleet.store.database import StoreDatabase
from goldnode.lock.model import load_lock
from goldnode.node.follow.loop import FILE
from goldnode.testing.lab.nodes import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.long]

CLASS, NAME, LIMIT = "e2e_plain", "follower", 900.0
TLS = "/etc/goldnode/follow"
APPLY = """#!/bin/sh
# The site's command: GOLDNODE_TARGET is the digest of a lock, which this node has in a directory of its name.
cd /root/mine || exit 1
export LC_ALL=C.UTF-8 GOLDNODE_CATALOG=/root/e2e GOLDNODE_SITE=/root/e2e/goldnode-site.yml
GOLDNODE_LOCKS="/root/e2e/${GOLDNODE_TARGET#sha256:}" exec goldnode apply --local --yes </dev/null
"""
DOCUMENT = """\
schema: goldnode.rollout/1
rollout: kernel
class: {class_}
from: {{stack: {class_}, lock: "{origin}"}}
to: {{stack: {class_}, lock: "{target}"}}
waves:
- {{name: all, percent: 100%, soak: 5s}}
limits: {{planned: 1, failed: 1, total: 1}}
require:
- boot: {{base_rate: 0.2%}}
drain: {{wait: 30m}}
timeout: 60m
"""


def wait(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(1)


@dataclass
class Followed:
    """The node, its site with the lock of the rollout, and the servers."""

    node: LabNode
    site: Site
    directory: Path
    gateway: str
    hosts: Path
    locks: tuple[str, str]  # before, and of the rollout
    port: int = field(default_factory=free_port)
    service: subprocess.Popen[bytes] | None = None

    def goldnode(self, *words: str) -> str:
        done = subprocess.run(
            [str(BIN / "goldnode"), *words],
            cwd=self.directory,
            env=environment(self.site),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.directory / log).open("ab") as out:
            return subprocess.Popen(
                [str(BIN / "goldnode"), *words],
                cwd=self.directory,
                env=environment(self.site),
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def serve(self) -> None:
        tls = (
            "--tls-certificate",
            "server.pem",
            "--tls-key",
            "server.key",
            "--client-ca",
            "ca.pem",
        )
        listen = ("--host", self.gateway, "--port", str(self.port))
        self.service = self.start("service.log", "fleet", "serve", *listen, *tls)

    def stop_service(self) -> None:
        assert self.service is not None
        self.service.kill()
        self.service.wait()

    def lock(self) -> str:
        return str(json.loads(self.node.read("/etc/goldnode/class.json"))["lock"]["digest"])

    def boot(self) -> str:
        return self.node.read("/proc/1/stat").split()[21]

    def began(self) -> bool:
        return self.node.run("test", "-e", FILE, check=False).rc == 0

    def journal(self) -> list[str]:
        """The lines of the passes of the node, of all boots."""
        return self.node.run(
            "journalctl", "-q", "-u", "goldnode-follow", "-o", "cat", check=False
        ).output.splitlines()

    def passes(self, text: str, count: int) -> None:
        """Wait until the node has made so many more passes that report this."""
        before = sum(text in line for line in self.journal())
        wait(
            lambda: sum(text in line for line in self.journal()) >= before + count,
            f"{text}: {self.journal()[-5:]}",
        )

    def stored(self, query: str) -> list[tuple[object, ...]]:
        store = StoreDatabase(str(self.directory / ".goldnode/fleet.db"))
        with store.read() as connection:
            rows = [tuple(row) for row in connection.exec_driver_sql(query)]
        store.close()
        return rows

    def out(self) -> bool:
        """Whether the site's commands have the node out of service."""
        return (self.directory / "out" / NAME).exists()

    def untouched(self, boot: str) -> bool:
        return (self.lock(), self.boot(), self.began()) == (self.locks[0], boot, False)


def authority(place: Path, gateway: str) -> None:
    """Write an authority, and the certificates of the service and of the node."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)

    key = ("-newkey", "ed25519", "-nodes")
    openssl(
        "req",
        "-x509",
        *key,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-subj",
        "/CN=fleet",
        "-days",
        "2",
    )
    for name, more in (("server", f"IP:{gateway}"), ("node", f"DNS:{NAME}")):
        (place / "ext").write_text(f"subjectAltName={more}\n")
        openssl("req", *key, "-keyout", f"{name}.key", "-out", "csr", "-subj", f"/CN={name}")
        signed = (
            "-req",
            "-in",
            "csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
        )
        openssl("x509", *signed, "-extfile", "ext", "-out", f"{name}.pem")


def following(catalog: Path, channel: str, service: str) -> None:
    """Write a catalog whose class follows."""
    shutil.copytree(CATALOG, catalog)
    follow = {
        "channel": channel,
        "service": service,
        "every": 10,
        "ca": f"{TLS}/ca.pem",
        "certificate": f"{TLS}/node.pem",
        "key": f"{TLS}/node.key",
        "apply": ["/usr/local/sbin/apply-lock"],
        "accepted": [0, 3],
    }
    path = catalog / f"classes/{CLASS}.yml"
    path.write_text(path.read_text() + yaml.safe_dump({"follow": follow}), encoding="utf-8")


def drained_by_command(hosts: Path, directory: Path) -> None:
    """Let the inventory drain with programs of the site, which note each call."""
    (directory / "out").mkdir()
    for name, text in (("drain", DRAIN), ("resume", RESUME)):
        (directory / name).write_text(
            text.format(log=directory / "calls.log", out=directory / "out")
        )
        (directory / name).chmod(0o755)
    content = yaml.safe_load((hosts / "hosts.yml").read_text())
    content["all"]["vars"] |= {
        "goldnode_drain": "command",
        "goldnode_drain_command": [str(directory / "drain")],
        "goldnode_resume_command": [str(directory / "resume")],
    }
    (hosts / "hosts.yml").write_text(yaml.safe_dump(content))


@pytest.fixture
def followed(world: World, tmp_path: Path) -> Iterator[Followed]:
    node, first = world.node(NAME, CLASS, extra=("openssl",)), world.site("follow")
    (tmp_path / "channel").mkdir()
    channel = world.lab.serve(tmp_path / "channel", "channel")
    (network,) = world.lab.client.networks.list([world.lab.network_name])
    gateway = network.attrs["IPAM"]["Config"][0]["Gateway"]
    port = free_port()
    following(tmp_path / "catalog", channel.url, f"https://{gateway}:{port}")
    first = replace(first, catalog=tmp_path / "catalog")
    world.publish(set())
    world.lock(first, node, CLASS)
    second = replace(first, locks=tmp_path / "locks")
    (tmp_path / "locks").mkdir()
    world.publish({apt_archive.SECURITY_UPDATES})
    world.lock(second, node, CLASS)
    digests = []
    for site in (first, second):
        assert site.locks is not None
        path = site.locks / f"{CLASS}.lock.yml"
        digests.append(load_lock(path).digest)
        node.put(
            {f"/root/e2e/{digests[-1].removeprefix('sha256:')}/{path.name}": path.read_bytes()}
        )
    authority(tmp_path, gateway)
    files = {
        f"{TLS}/{name}": (tmp_path / name).read_bytes()
        for name in ("ca.pem", "node.pem", "node.key")
    }
    node.put(files, 0o600)
    node.put({"/usr/local/sbin/apply-lock": APPLY.encode()}, 0o755)
    environment_there = put_site(node, first, export(tmp_path / "tree"))
    node.shell("cd /root && goldnode init mine --local --class e2e_plain", env=environment_there)
    world.publish(set())
    node.shell(f"GOLDNODE_TARGET={digests[0]} /usr/local/sbin/apply-lock")
    world.publish({apt_archive.SECURITY_UPDATES})
    node.restart()  # the verdict of a node whose boot is pending is not good
    hosts = inventory(tmp_path / "inventory", {CLASS: [node]})
    drained_by_command(hosts, tmp_path)
    found = Followed(
        node,
        site=second,
        directory=tmp_path,
        gateway=gateway,
        hosts=hosts,
        locks=(digests[0], digests[1]),
        port=port,
    )
    yield found
    if found.service is not None and found.service.poll() is None:
        found.stop_service()
    channel.destroy()
    node.destroy()


def test_node_follows_to_a_lock_and_a_service_that_is_away_starts_and_hurts_nothing(
    followed: Followed,
) -> None:
    online, targets, root = (
        key_file(followed.directory, f"{name}.pem") for name in ("online", "targets", "root")
    )
    document = followed.directory / "kernel.yml"
    text = DOCUMENT.format(class_=CLASS, origin=followed.locks[0], target=followed.locks[1])
    document.write_text(text, encoding="utf-8")
    followed.goldnode("rollout", "submit", str(document), "-i", str(followed.hosts))
    keys = ("--key", str(online), "--targets-key", str(targets), "--root-key", str(root))
    followed.goldnode("rollout", "publish", "kernel", "--channel", "channel", *keys)
    trusted = (followed.directory / "channel/metadata/1.root.json").read_bytes()
    followed.node.put({f"{TLS}/root.json": trusted})
    boot = followed.boot()

    # With a service and without a controller, the node reports, and starts nothing.
    followed.serve()
    wait(
        lambda: followed.stored("SELECT digest FROM node") == [(followed.locks[0],)],
        "the node does not report",
    )

    # In a freeze the controller grants nothing, and the node starts nothing.
    followed.goldnode("fleet", "freeze", "--class", CLASS, "--reason", "cable work")
    run = ("rollout", "run", str(document), "-i", str(followed.hosts), "--tick", "0.5")
    controller = followed.start(
        "run.log", *run, "--channel", "channel", "--channel-key", str(online)
    )
    try:
        followed.passes(f"{NAME}: ", 3)
        assert followed.untouched(boot)
        assert followed.stored("SELECT node FROM hold") == []
        assert (
            "cable work"
            in followed.node.run("goldnode-node", "follow", "--check", check=False).output
        )

        # The service is away: the node is granted and drained, and starts nothing.
        followed.stop_service()
        followed.goldnode("fleet", "unfreeze", "--class", CLASS, "--reason", "done")
        wait(
            lambda: followed.stored("SELECT phase FROM step") == [("applying",)],
            "the node is not granted",
        )
        assert followed.out()
        followed.passes("is away", 2)
        assert followed.untouched(boot)

        # It is back until the node has begun, and away again: the node applies, boots and keeps its slot.
        followed.serve()
        wait(followed.began, "the node does not begin")
        followed.stop_service()
        wait(
            lambda: followed.node.state == "running" and followed.boot() != boot,
            "the node does not boot",
        )
        followed.node.wait()
        followed.passes("is away", 2)
        assert followed.lock() == followed.locks[1]
        assert followed.began()
        assert followed.out()
        assert followed.stored("SELECT node, kind FROM hold") == [(NAME, "planned")]
        second = followed.boot()

        # It is back: the node reports, the controller returns it, and its step ends.
        followed.serve()
        assert controller.wait(LIMIT) == 0, (followed.directory / "run.log").read_text()
        wait(lambda: not followed.began(), "the step of the node does not end")
    finally:
        controller.kill()
        controller.wait()
    assert (followed.lock(), followed.boot()) == (followed.locks[1], second)
    assert followed.stored("SELECT node FROM hold") == []
    calls = (followed.directory / "calls.log").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["drain", "resume"]
    store = StoreDatabase(str(followed.directory / ".goldnode/fleet.db"))
    with store.read() as connection:
        assert rollout_trace.violations(connection, loads(text).settings) == []
    store.close()
