"""Nodes of a lab: systemd in containers, reached by ssh on a loopback port, and the Ansible inventory for
them.

`Lab.up` is idempotent: it creates missing nodes, starts stopped ones and leaves the others alone. A container
node has real packages, files, units and an initramfs; it shares the host's kernel and has no boot loader.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from docker import DockerClient
from docker.errors import APIError, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import Mount

from goldnode.core.docker_engine import Say
from goldnode.core.errors import GoldnodeError, nearest
from goldnode.testing.lab import images
from goldnode.testing.lab.images import LABEL, RELEASES

NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,40}$")
EXIT_SECONDS = 30.0  # how long the engine may take to say how a command ended that has ended
BOOT_SECONDS = 120  # until systemd of a container has settled
CCACHE_VOLUME = f"{images.REPOSITORY}-ccache"  # of all labs; `docker volume rm` empties it
# State of a container engine inside a node: anonymous volumes, which go with the node.
ENGINE_STATE = ("/var/lib/docker", "/var/lib/containerd")
SSH_OPTIONS = (
    "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
    "-o", "IdentitiesOnly=yes",
)  # fmt: skip

# SSH_OPTIONS as a file, for a person's `ssh -F` and for an inventory without ports.
_SSH_CONFIG = """\
Host *
    HostName 127.0.0.1
    User root
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
    IdentitiesOnly yes
"""


class LabError(GoldnodeError):
    """A lab or one of its nodes cannot do what was requested."""


@dataclass(frozen=True)
class NodeSpec:
    """A wanted node: its name, the inventory group (node class), and the image or the release and flavour it runs.

    `engine`: a container engine can run inside it. `loops`: it can use loop devices of this machine as disks.
    """

    name: str
    group: str
    os: str = "debian12"
    flavour: str = "bare"
    image: str | None = None
    engine: bool = False
    loops: bool = False


@dataclass(frozen=True)
class LabResult:
    """Result of a command on a node. The output is text and includes standard error."""

    rc: int
    output: str


def unframed(data: bytes) -> bytes:
    """Return the output of a command from the engine's frames: stream number, three zeros, a length of four
    bytes, data.

    Raises LabError if the stream ends within a frame.
    """
    output, at = bytearray(), 0
    while at < len(data):
        head = data[at : at + 8]
        at += 8
        length = int.from_bytes(head[4:], "big")
        if len(head) < 8 or at + length > len(data):
            raise LabError("the output of a command breaks off", remedy="see the engine's log")
        output += data[at : at + length]
        at += length
    return bytes(output)


class LabNode:
    """One node; a thin handle on its container."""

    def __init__(self, container: Container, key: Path) -> None:
        self.container = container
        self.key = key
        self.name: str = container.labels[f"{LABEL}.node"]
        self.group: str = container.labels[f"{LABEL}.group"]
        self.port = int(container.labels[f"{LABEL}.port"])
        self.engine = f"{LABEL}.engine" in container.labels

    @property
    def image(self) -> str:
        """Name of the image the node was made from."""
        return str(self.container.attrs["Config"]["Image"])

    @property
    def state(self) -> str:
        """Return the engine's state of the container: running, exited, …"""
        self.container.reload()
        return str(self.container.status)

    def run(
        self, *command: str, check: bool = True, env: dict[str, str] | None = None
    ) -> LabResult:
        """Run `command` as root through the engine, not through ssh. Raises LabError on failure where `check`."""
        api = cast(
            DockerClient, self.container.client
        ).api  # a container that the engine has listed knows its engine
        started = api.exec_create(self.container.id, list(command), environment=env)["Id"]
        # Not the SDK's exec_start: it reads from the socket below Python's HTTP reader, which has what the engine sent together with its
        # headers, so that on a busy machine output was lost without a word. Asked as any other request, the reader gives all of it.
        answer = api.post(
            f"{api.base_url}/v{api.api_version}/exec/{started}/start",
            json={"Detach": False, "Tty": False},
            timeout=None,
        )
        answer.raise_for_status()
        output = unframed(answer.content)
        # The engine may close the stream a moment before it knows how the command ended: until then there is no exit status, and not 0.
        deadline = time.monotonic() + EXIT_SECONDS
        while (status := api.exec_inspect(started)["ExitCode"]) is None:
            if time.monotonic() > deadline:
                raise LabError(
                    f"the engine does not say how {' '.join(command)} on {self.name} ended",
                    remedy="see the engine's log",
                )
            time.sleep(0.05)
        result = LabResult(int(status), output.decode("utf-8", "replace"))
        if check and result.rc != 0:
            raise LabError(
                f"{' '.join(command)} on {self.name} ended with {result.rc}:\n{result.output}\n"
            )
        return result

    def shell(
        self, script: str, *, check: bool = True, env: dict[str, str] | None = None
    ) -> LabResult:
        """Run a shell script on the node, stopping at its first failing command; see `run`."""
        return self.run("sh", "-ec", script, check=check, env=env)

    def put(self, files: dict[str, bytes], mode: int = 0o644) -> None:
        """Write `files` (absolute path → content) on the node, making directories.

        Not below /run or /tmp: those are tmpfs, which the engine cannot write into from outside.
        """
        self.container.put_archive(
            "/", images.tar_of({path.lstrip("/"): data for path, data in files.items()}, mode)
        )

    def read(self, path: str) -> str:
        """Return the text of a file on the node."""
        return self.run("cat", path).output

    def ssh(self, *command: str) -> list[str]:
        """Return the argument list that runs `command` on the node by ssh (a shell without one)."""
        return [
            "ssh",
            "-i",
            str(self.key),
            "-p",
            str(self.port),
            *SSH_OPTIONS,
            "root@127.0.0.1",
            *command,
        ]

    def wait(self, seconds: float = BOOT_SECONDS) -> str:
        """Wait until the node has booted and answers ssh. Return systemd's state (`running`, `degraded` …).

        Raises LabError with the last message of systemd or ssh.
        """
        deadline = time.monotonic() + seconds
        reported, up = "nothing", False
        while time.monotonic() < deadline:
            if self.state == "exited":
                raise LabError(
                    f"node {self.name} stopped while booting",
                    remedy=f"see: docker logs {self.container.name}",
                )
            with contextlib.suppress(
                APIError
            ):  # a container that is just restarting refuses the call
                if not up:
                    # With a limit: a systemd that is stuck in its boot answers never.
                    reported = (
                        self.run(
                            "timeout", "20", "systemctl", "is-system-running", "--wait", check=False
                        ).output.strip()
                        or reported
                    )
                    up = reported in ("running", "degraded")
                if up:
                    done = subprocess.run(
                        self.ssh("true"), capture_output=True, text=True, timeout=30, check=False
                    )
                    if done.returncode == 0:
                        return reported
                    reported = done.stderr.strip() or reported
            time.sleep(0.2)
        raise LabError(
            f"node {self.name} did not come up in {seconds:.0f} s, last word: {reported}",
            remedy=f"see: docker exec {self.container.name} journalctl -b; where it says `Failed to create inotify object`, the machine's "
            "fs.inotify.max_user_instances is too low for so many nodes",
        )

    def start(self) -> None:
        """Start a stopped node and wait for it."""
        self.container.start()
        self.wait()

    def stop(self) -> None:
        """Shut the node down."""
        self.container.stop(timeout=20)

    def restart(self) -> None:
        """Reboot the node (restart PID 1 with an empty /run) and wait for it."""
        self.container.restart(timeout=20)
        self.wait()

    def kill(self) -> None:
        """Take the node's power away, as a crash would, and leave it off."""
        self.container.kill()

    def snapshot(self, key: object) -> str:
        """Keep the node's present file system as an image named after `key` (anything JSON); return its name."""
        reference = images.snapshot_reference(key)
        repository, tag = reference.rsplit(":", 1)
        # Data in the page cache would be missing from the image.
        self.run("sync")
        self.container.commit(repository=repository, tag=tag, changes=f"LABEL {LABEL}=snapshot")
        return reference

    def destroy(self) -> None:
        """Remove the node and everything on it."""
        self.container.remove(force=True, v=True)


class LabServer:
    """A web server in the lab's network that serves one directory of this machine, read-only, and counts requests."""

    def __init__(self, container: Container, network: str) -> None:
        self.container = container
        self._network = network

    @property
    def url(self) -> str:
        """Return an address with an IP number.

        Unlike a name, it is the same from the nodes and from this machine.
        """
        self.container.reload()
        address = self.container.attrs["NetworkSettings"]["Networks"][self._network]["IPAddress"]
        return f"http://{address}"

    def requests(self) -> list[str]:
        """Return the requests so far, oldest first, as `METHOD PATH STATUS`."""
        log = self.container.logs().decode("utf-8", "replace")
        return [
            f"{request[1]} {request[2]} {request[3]}"
            for request in re.finditer(r'"(GET|HEAD) (\S+) HTTP/[0-9.]+" (\d+)', log)
        ]

    def destroy(self) -> None:
        """Stop serving."""
        self.container.remove(force=True, v=True)


class Lab:
    """A named set of nodes, with its keys and inventory under `STATE/lab/NAME`."""

    def __init__(
        self,
        name: str,
        client: DockerClient,
        *,
        state: Path | None = None,
        say: Say = lambda _: None,
    ) -> None:
        if not NAME.match(name):
            raise LabError(
                f'"{name}" is no name for a lab', remedy="use lower-case letters, digits and dashes"
            )
        self.name = name
        self.client = client
        self.directory = ((state or Path(".goldnode")) / "lab" / name).absolute()
        self.say = say

    @property
    def network_name(self) -> str:
        """Return the name of the lab's network in the engine."""
        return f"goldnode-{self.name}"

    @property
    def inventory(self) -> Path:
        """Return the directory of the Ansible inventory; it exists once the lab is up."""
        return self.directory / "inventory"

    @property
    def key(self) -> Path:
        """Return the file of the lab's private ssh key."""
        return self.directory / "id_ed25519"

    # Existing nodes

    def nodes(self) -> list[LabNode]:
        """Return the lab's nodes, running or not, by name."""
        containers = self._containers(f"{LABEL}.node")
        return sorted(
            (LabNode(container, self.key) for container in containers), key=lambda node: node.name
        )

    def node(self, name: str) -> LabNode:
        """Return the node called `name`. Raises LabError with the nearest name."""
        nodes = {node.name: node for node in self.nodes()}
        if name not in nodes:
            raise LabError(f'lab {self.name} has no node "{name}"', remedy=nearest(name, nodes))
        return nodes[name]

    def _containers(self, *labels: str) -> list[Container]:
        wanted = [f"{LABEL}={self.name}", *labels]
        return list(self.client.containers.list(all=True, filters={"label": wanted}))

    # Making it

    def up(self, specs: Sequence[NodeSpec]) -> list[LabNode]:
        """Start the nodes of `specs`, write the inventory of all nodes of the lab, and return the nodes of
        `specs`.

        A node that exists with another image is an error: it may hold work. Raises LabError, ImageError.
        """
        known = {node.name: node for node in self.nodes()}
        self._network()
        self._key_pair()
        fresh: list[LabNode] = []
        for spec in specs:
            image = spec.image or images.ensure(self.client, spec.os, spec.flavour, say=self.say)
            node = known.get(spec.name)
            if node is None:
                node = self._create(spec, image)
            elif (node.image, node.group) != (image, spec.group):
                raise LabError(
                    f"node {spec.name} of lab {self.name} runs {node.image} in group {node.group}, asked for {image} in {spec.group}",
                    remedy=f"take the lab down first: python -m goldnode.testing.lab down {self.name}",
                )
            elif spec.engine and not node.engine:
                raise LabError(
                    f"node {spec.name} of lab {self.name} was made without what an engine inside it needs",
                    remedy=f"take the lab down first: python -m goldnode.testing.lab down {self.name}",
                )
            elif node.state != "running":
                self.say(f"starting node {node.name}")
                node.container.start()
            fresh.append(node)
        for node in fresh:
            state = node.wait()
            if state != "running":
                self.say(f"node {node.name} is up, but systemd calls it {state}")
        self.write_inventory()
        return fresh

    def write_inventory(self) -> Path:
        """Write `inventory/hosts.yml` and `ssh_config` from the nodes there are; return the inventory directory."""
        groups: dict[str, dict[str, dict[str, dict[str, object]]]] = {}
        for node in self.nodes():
            hosts = groups.setdefault(node.group, {"hosts": {}})["hosts"]
            hosts[node.name] = {"ansible_host": "127.0.0.1", "ansible_port": node.port}
        document = {
            "all": {
                "vars": {
                    "ansible_user": "root",
                    "ansible_ssh_private_key_file": str(self.key),
                    "ansible_ssh_common_args": " ".join(SSH_OPTIONS),
                    "ansible_python_interpreter": "/usr/bin/python3",
                },
                "children": groups,
            }
        }
        ports = "".join(f"Host {node.name}\n    Port {node.port}\n" for node in self.nodes())
        self.inventory.mkdir(parents=True, exist_ok=True)
        _write_if_changed(self.inventory / "hosts.yml", yaml.safe_dump(document, sort_keys=False))
        _write_if_changed(
            self.directory / "ssh_config", f"{ports}{_SSH_CONFIG}    IdentityFile {self.key}\n"
        )
        return self.inventory

    def serve(
        self,
        directory: Path,
        name: str = "archive",
        *,
        image: str | None = None,
        keep: bool = False,
    ) -> LabServer:
        """Serve `directory` to the nodes on port 80 under the host name `name`. An earlier server of that
        name is replaced.

        `image` is any image with python3; the default is debian12's warm one. `keep`: reuse a running server
        and its address.
        """
        for running in self._containers(f"{LABEL}.server={name}") if keep else ():
            if running.status == "running":
                return LabServer(running, self.network_name)
        for container in self._containers(f"{LABEL}.server={name}"):
            container.remove(force=True, v=True)
        self._network()
        container = self.client.containers.run(
            image or images.ensure(self.client, "debian12", "warm", say=self.say),
            ["python3", "-u", "-m", "http.server", "--directory", "/srv", "80"],
            name=f"goldnode-{self.name}-{name}",
            hostname=name,
            detach=True,
            network=self.network_name,
            labels={LABEL: self.name, f"{LABEL}.server": name},
            volumes={str(directory.absolute()): {"bind": "/srv", "mode": "ro"}},
            # As PID 1 it would ignore SIGTERM.
            init=True,
        )
        self._alias(container, name)
        server = LabServer(container, self.network_name)
        deadline = time.monotonic() + 20
        host = server.url.removeprefix("http://")
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, 80), timeout=2):
                return server
            time.sleep(0.1)
        raise LabError(
            f"the web server {name} of lab {self.name} does not answer at {server.url}",
            remedy=f"see: docker logs {container.name}; the engine must run on this machine",
        )

    def server(self, name: str = "archive") -> LabServer:
        """Return the running web server `name`. Raises LabError if there is no such server."""
        containers = self._containers(f"{LABEL}.server={name}")
        if not containers:
            raise LabError(
                f'lab {self.name} has no web server "{name}"',
                remedy="start it with goldnode.testing.lab serve",
            )
        return LabServer(containers[0], self.network_name)

    def down(self, *, with_images: bool = False) -> list[str]:
        """Remove everything the lab made: containers, network, directory. Return the removed things as text.

        `with_images`: also remove the base images of its nodes, if goldnode built them and nothing else uses
        them.
        """
        gone: list[str] = []
        if with_images:
            used = {str(container.attrs["Config"]["Image"]) for container in self._containers()}
        else:
            used = set()
        for container in self._containers():
            with contextlib.suppress(NotFound):
                container.remove(force=True, v=True)
            gone.append(f"container {container.name}")
        for network in self.client.networks.list(filters={"label": f"{LABEL}={self.name}"}):
            network.remove()
            gone.append(f"network {network.name}")
        if self.directory.exists():
            shutil.rmtree(self.directory)
            gone.append(f"directory {self.directory}")
        for image in self.client.images.list(filters={"label": LABEL}):
            for tag in used.intersection(image.tags):
                with contextlib.suppress(APIError):  # in use by another lab
                    self.client.images.remove(tag)
                    gone.append(f"image {tag}")
        return gone

    # Details

    def _network(self) -> None:
        """Create the lab's network if it does not exist. Raises LabError for one of that name without the label."""
        named = [
            row
            for row in self.client.networks.list([self.network_name])
            if row.name == self.network_name
        ]
        # Docker permits two networks with one name, and then starts no container in either of them.
        for row in named:
            if (row.attrs.get("Labels") or {}).get(LABEL) != self.name:
                raise LabError(
                    f"the engine has a network {self.network_name} that belongs to no lab",
                    remedy=f"remove it with `docker network rm {row.short_id}`",
                )
        if not named:
            self.client.networks.create(
                self.network_name, driver="bridge", labels={LABEL: self.name}
            )

    def _key_pair(self) -> None:
        if not self.key.is_file():
            self.directory.mkdir(parents=True, exist_ok=True)
            comment = f"goldnode lab {self.name}"
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(self.key)],
                check=True,
            )

    def _create(self, spec: NodeSpec, image: str) -> LabNode:
        if not NAME.match(spec.name):
            raise LabError(
                f'"{spec.name}" is no name for a node',
                remedy="use lower-case letters, digits and dashes",
            )
        self.say(f"starting node {spec.name} ({image})")
        for attempt in range(5):
            port = _free_port()
            try:
                container = self.client.containers.create(image, **self._options(spec, port))
            except ImageNotFound as error:
                raise LabError(
                    f'the engine has no image "{image}"',
                    remedy="pull or import it, or leave the image to goldnode",
                ) from error
            public = self.key.with_suffix(".pub").read_bytes()
            container.put_archive("/root", images.tar_of({".ssh/authorized_keys": public}, 0o600))
            self._alias(container, spec.name)
            try:
                container.start()
            except APIError as error:  # another process took the port in between
                container.remove(force=True, v=True)
                if attempt == 4 or "port" not in str(error):
                    raise
            else:
                container.reload()
                return LabNode(container, self.key)
        raise AssertionError("unreachable: the loop returns or raises")

    def _options(self, spec: NodeSpec, port: int) -> dict[str, Any]:
        info = self.client.info()
        options: dict[str, Any] = {
            "name": f"goldnode-{self.name}-{spec.name}",
            "command": ["/lib/systemd/systemd"],
            "hostname": spec.name,
            "network": self.network_name,
            "labels": {
                LABEL: self.name,
                f"{LABEL}.node": spec.name,
                f"{LABEL}.group": spec.group,
                # Chosen here and kept: one that the engine chooses changes at every restart.
                f"{LABEL}.port": str(port),
            },
            "ports": {"22/tcp": ("127.0.0.1", port)},
            "cap_add": ["SYS_ADMIN"],
            # systemd mounts, and makes namespaces for its units.
            "security_opt": ["seccomp=unconfined"],
            "volumes": {_cgroup(spec.os): {"bind": "/sys/fs/cgroup", "mode": "rw"}},
            "tmpfs": {"/run": "", "/run/lock": "", "/tmp": "exec"},  # noqa: S108 - a mount point in the container
            # systemd then leaves out what a container cannot do.
            "environment": {"container": "docker"},
            # By it systemd shuts the machine down; it would re-execute itself at SIGTERM.
            "stop_signal": "SIGRTMIN+3",
            "restart_policy": {"Name": "unless-stopped"},
        }
        if spec.engine:
            # Bridges and packet filters; and overlayfs, which does not lie on the overlayfs that the node itself is on.
            options["cap_add"].append("NET_ADMIN")
            options["labels"][f"{LABEL}.engine"] = "true"
            options["mounts"] = [
                Mount(target=place, source=None, type="volume") for place in ENGINE_STATE
            ]
        if spec.loops:
            # Devices 7:* are loop devices, and 10:237 is their control (the kernel's devices.txt).
            options["device_cgroup_rules"] = ["b 7:* rwm", "c 10:237 rwm"]
        if spec.flavour == images.CCACHE:
            options["volumes"][CCACHE_VOLUME] = {"bind": images.CCACHE_DIRECTORY, "mode": "rw"}
        if any("apparmor" in str(option) for option in info.get("SecurityOptions") or ()):
            options["security_opt"].append(
                "apparmor=unconfined"
            )  # the default profile denies systemd its mounts
        if str(info.get("CgroupVersion")) == "2":
            # systemd finds its own cgroup by its path in the host's tree, which is what is mounted above.
            options["cgroupns"] = "host"
        return options

    def _alias(self, container: Container, name: str) -> None:
        network = self.client.networks.list(filters={"label": f"{LABEL}={self.name}"})[0]
        network.disconnect(container, force=True)
        network.connect(container, aliases=[name])


def _cgroup(os_name: str) -> str:
    """Return the directory of this machine that a node gets as its control groups.

    systemd since 258 runs on version 2 alone. A machine with both (`hybrid`) has that beside the controllers of version 1.
    """
    release, unified = RELEASES.get(os_name), Path("/sys/fs/cgroup/unified")
    only_v2 = release is not None and release.cgroup2
    return str(unified if only_v2 and unified.is_dir() else unified.parent)


def labs(client: DockerClient) -> dict[str, list[str]]:
    """Return the labs the engine knows, with the names and states of their nodes, as text."""
    by_lab: dict[str, list[str]] = {}
    for container in client.containers.list(all=True, filters={"label": LABEL}):
        what = (
            container.labels.get(f"{LABEL}.node")
            or f"{container.labels.get(f'{LABEL}.server')} (web server)"
        )
        by_lab.setdefault(container.labels[LABEL], []).append(f"{what}: {container.status}")
    return {name: sorted(rows) for name, rows in sorted(by_lab.items())}


def status(nodes: Iterable[LabNode]) -> str:
    """Return the state of `nodes` as JSON: name → group, image, port, state."""
    rows = {
        n.name: {"group": n.group, "image": n.image, "port": n.port, "state": n.state}
        for n in nodes
    }
    return json.dumps(rows, indent=2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_if_changed(path: Path, text: str) -> None:
    """Write `text` unless the file already has it, so an unchanged inventory keeps its time stamp."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
