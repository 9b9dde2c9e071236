"""Labs without an engine: names, inventory, and what a server's log says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from docker import DockerClient
from docker.models.containers import Container

from goldnode.testing.lab import images, nodes


class FakeContainer:
    """As much of a container as a node's handle reads."""

    def __init__(self, lab: str, name: str, group: str, port: int, log: bytes = b"") -> None:
        self.labels = {
            images.LABEL: lab,
            f"{images.LABEL}.node": name,
            f"{images.LABEL}.group": group,
            f"{images.LABEL}.port": str(port),
        }
        self.attrs = {"Config": {"Image": "goldnode-lab/debian12-bare:0"}}
        self.status = "running"
        self._log = log

    def reload(self) -> None:
        """Nothing changes."""

    def logs(self) -> bytes:
        return self._log


class FakeExec:
    """An engine's API in which a command ends as `statuses` say, one after the other, for whoever asks."""

    def __init__(self, *statuses: int | None) -> None:
        self.api = self
        self._statuses = iter(statuses)

    def exec_create(
        self, container: str, command: list[str], environment: dict[str, str] | None
    ) -> dict[str, str]:
        return {"Id": "1"}

    base_url, api_version, content = (
        "http://engine",
        "1.41",
        b"\x01\0\0\0\0\0\0\x02sa\x02\0\0\0\0\0\0\x03id\n",
    )

    def post(self, url: str, **_: object) -> FakeExec:
        assert url == "http://engine/v1.41/exec/1/start"
        return self

    def raise_for_status(self) -> None:
        """It went well."""

    def exec_inspect(self, started: str) -> dict[str, int | None]:
        return {"ExitCode": next(self._statuses)}


def node_of(*statuses: int | None) -> nodes.LabNode:
    container = FakeContainer("demo", "a1", "demo_a100", 2201)
    container.id, container.client = "0", FakeExec(*statuses)  # type: ignore[attr-defined]
    return nodes.LabNode(cast(Container, container), Path("key"))


def test_a_command_whose_end_the_engine_does_not_know_yet_has_not_succeeded() -> None:
    assert node_of(0).run("true") == nodes.LabResult(0, "said\n")
    with pytest.raises(nodes.LabError, match="false on a1 ended with 1"):
        node_of(None, None, 1).run("false")


@pytest.mark.parametrize("data", [b"\x01\0\0", b"\x01\0\0\0\0\0\0\x05sa"])
def test_output_that_breaks_off_is_no_output(data: bytes) -> None:
    with pytest.raises(nodes.LabError, match="breaks off"):
        nodes.unframed(data)


def test_a_command_whose_end_never_comes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "EXIT_SECONDS", 0.0)
    with pytest.raises(nodes.LabError, match="does not say how sleep on a1 ended"):
        node_of(None, None, None).run("sleep")


class FakeClient:
    """An engine with these containers."""

    def __init__(self, *containers: FakeContainer) -> None:
        self.containers = self
        self._containers = containers

    def list(self, **_: Any) -> list[FakeContainer]:
        return list(self._containers)


def lab(tmp_path: Path, *containers: FakeContainer) -> nodes.Lab:
    return nodes.Lab("demo", cast(DockerClient, FakeClient(*containers)), state=tmp_path)


@pytest.mark.parametrize("name", ["", "Demo", "a_b", "-a", "a/b", "x" * 60])
def test_names_that_are_no_host_names_are_refused(name: str) -> None:
    with pytest.raises(nodes.LabError, match="is no name for a lab"):
        nodes.Lab(name, cast(DockerClient, FakeClient()))


def test_inventory_groups_nodes_by_class(tmp_path: Path) -> None:
    made = lab(
        tmp_path,
        FakeContainer("demo", "b1", "l4", 2202),
        FakeContainer("demo", "a1", "demo_a100", 2201),
        FakeContainer("demo", "a2", "demo_a100", 2203),
    )
    written = yaml.safe_load((made.write_inventory() / "hosts.yml").read_text())["all"]
    groups = {name: list(group["hosts"]) for name, group in written["children"].items()}
    assert groups == {"demo_a100": ["a1", "a2"], "l4": ["b1"]}
    assert written["children"]["l4"]["hosts"]["b1"] == {
        "ansible_host": "127.0.0.1",
        "ansible_port": 2202,
    }
    assert written["vars"]["ansible_python_interpreter"] == "/usr/bin/python3"
    assert "Host a2\n    Port 2203\n" in (made.directory / "ssh_config").read_text()


def test_an_unchanged_inventory_is_not_written_again(tmp_path: Path) -> None:
    made = lab(tmp_path, FakeContainer("demo", "a1", "demo_a100", 2201))
    target = made.write_inventory() / "hosts.yml"
    before = target.stat().st_mtime_ns
    made.write_inventory()
    assert target.stat().st_mtime_ns == before


def test_an_unknown_node_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(nodes.LabError, match=r'lab demo has no node "node2"\. [Uu]se "node1"'):
        lab(tmp_path, FakeContainer("demo", "node1", "l4", 1)).node("node2")


def test_a_node_of_another_image_is_not_taken_for_the_asked_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lab(tmp_path, FakeContainer("demo", "node1", "l4", 1))
    monkeypatch.setattr(made, "_network", lambda: None)
    monkeypatch.setattr(made, "_key_pair", lambda: None)
    with pytest.raises(
        nodes.LabError, match="runs goldnode-lab/debian12-bare:0 in group l4, asked for mine in l4"
    ):
        made.up([nodes.NodeSpec("node1", "l4", image="mine")])


def test_a_node_without_room_for_an_engine_is_not_taken_for_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lab(tmp_path, FakeContainer("demo", "node1", "l4", 1))
    monkeypatch.setattr(made, "_network", lambda: None)
    monkeypatch.setattr(made, "_key_pair", lambda: None)
    with pytest.raises(nodes.LabError, match="made without what an engine inside it needs"):
        made.up([nodes.NodeSpec("node1", "l4", image="goldnode-lab/debian12-bare:0", engine=True)])


@pytest.mark.parametrize("engine", [True, False])
def test_only_a_node_with_an_engine_gets_net_admin_and_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: bool
) -> None:
    made = lab(tmp_path)
    monkeypatch.setattr(made.client, "info", dict, raising=False)
    options = made._options(nodes.NodeSpec("node1", "l4", engine=engine), 1)
    assert ("NET_ADMIN" in options["cap_add"]) == engine
    assert [mount["Target"] for mount in options.get("mounts", ())] == (
        list(nodes.ENGINE_STATE) if engine else []
    )
    assert (f"{images.LABEL}.engine" in options["labels"]) == engine


def test_a_server_that_runs_is_stored_with_its_address(tmp_path: Path) -> None:
    running = FakeContainer("demo", "archive", "-", 1)
    server = lab(tmp_path, running).serve(tmp_path, keep=True)
    assert server.container is cast(Container, running)


def test_status_is_json(tmp_path: Path) -> None:
    rows = json.loads(nodes.status(lab(tmp_path, FakeContainer("demo", "node1", "l4", 22)).nodes()))
    expected = {
        "group": "l4",
        "image": "goldnode-lab/debian12-bare:0",
        "port": 22,
        "state": "running",
    }
    assert rows == {"node1": expected}


def test_a_server_counts_its_requests() -> None:
    log = b"""Serving HTTP on 0.0.0.0 port 80
172.18.0.1 - - [21/Nov/2026 07:00:00] "GET /debian/dists/bookworm/InRelease HTTP/1.1" 200 -
172.18.0.1 - - [21/Nov/2026 07:00:00] code 404, message File not found
172.18.0.1 - - [21/Nov/2026 07:00:01] "GET /gone.deb HTTP/1.1" 404 -
"""
    container = FakeContainer("demo", "archive", "-", 1, log)
    server = nodes.LabServer(cast(Container, container), "goldnode-demo")
    assert server.requests() == ["GET /debian/dists/bookworm/InRelease 200", "GET /gone.deb 404"]


def test_ssh_command_names_port_and_address(tmp_path: Path) -> None:
    node = lab(tmp_path, FakeContainer("demo", "node1", "l4", 2222)).node("node1")
    command = node.ssh("true")
    assert command[0] == "ssh"
    assert command[-2:] == ["root@127.0.0.1", "true"]
    assert command[command.index("-p") + 1] == "2222"


class FakeNetworks:
    """An engine's networks: names with their labels."""

    def __init__(self, *rows: tuple[str, dict[str, str]]) -> None:
        self.networks, self.rows, self.created = self, rows, list[str]()

    def list(self, names: list[str]) -> list[SimpleNamespace]:
        # As Docker does: part of a name is enough.
        return [
            SimpleNamespace(name=name, short_id="f" * 12, attrs={"Labels": labels})
            for name, labels in self.rows
            if names[0] in name
        ]

    def create(self, name: str, **_: object) -> None:
        self.created.append(name)


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ((), "created"),
        ((("goldnode-demo-2", {images.LABEL: "demo-2"}),), "created"),
        ((("goldnode-demo", {images.LABEL: "demo"}),), "there"),
        ((("goldnode-demo", {}),), "refused"),
        (
            (("goldnode-demo", {images.LABEL: "demo"}), ("goldnode-demo", {"other": "demo"})),
            "refused",
        ),
    ],
)
def test_a_network_of_the_same_name_without_the_label_is_refused(
    rows: tuple[tuple[str, dict[str, str]], ...], outcome: str, tmp_path: Path
) -> None:
    engine = FakeNetworks(*rows)
    lab = nodes.Lab("demo", cast(DockerClient, engine), state=tmp_path)
    if outcome == "refused":
        with pytest.raises(nodes.LabError, match="docker network rm ffffffffffff"):
            lab._network()
    else:
        lab._network()
    assert engine.created == (["goldnode-demo"] if outcome == "created" else [])
