"""What a capture says of the container runtime, services, the fabric manager and drift from the lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.roots import context, make

from goldnode.node.ground.host import Host, Result
from goldnode.node.probe import Context, software
from goldnode.node.state.model import Observed

DOCUMENT: dict[str, Any] = {
    "driver": {"module": "nvidia"},
    "runtime": {"engine": "docker"},
    "packages": [
        {"name": "docker-ce", "version": "2"},
        {"name": "nvidia-fabricmanager-535", "version": "535.1"},
    ],
    "health": {"baseline": {"services": ["slurmd", "--now", "munge.service"]}},
}


def package(version: str, hold: bool = True) -> dict[str, Any]:
    return {"version": version, "architecture": "amd64", "state": "installed", "hold": hold}


def row(**values: str) -> dict[str, str]:
    """A unit as systemctl shows one that runs."""
    shown = {
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "Result": "success",
        "NRestarts": "0",
    }
    return {**shown, "StateChangeTimestampMonotonic": "77", **values}


class Node(Host):
    """A host whose systemctl answers from a table."""

    units: dict[str, dict[str, str]] = {}  # noqa: RUF012
    rc = 0

    def run(self, *argv: str, timeout: float = 60, stdin: str | None = None) -> Result:
        self.commands.append(argv)
        names = argv[argv.index("--") + 1 :]
        blocks = [
            "\n".join(
                f"{key}={value}" for key, value in {"Id": name, **self.units.get(name, {})}.items()
            )
            for name in names
        ]
        return Result(
            argv, self.rc, "\n\n".join(blocks) + "\n" if not self.rc else "", "down\x1b[0m"
        )


def node(
    root: Path, document: Any = None, seen: Any = None, **units: dict[str, str]
) -> tuple[Node, Context]:
    make(root, {"/run/systemd/system/x": ""})
    host = Node(str(root), live=True)
    host.units = {name.replace("_", "-") + ".service": values for name, values in units.items()}
    return host, Context(host, document, seen)


def test_all_services_in_one_call(tmp_path: Path) -> None:
    host, here = node(
        tmp_path,
        DOCUMENT,
        docker=row(),
        slurmd=row(ActiveState="failed", SubState="failed", Result="exit-code", NRestarts="4"),
    )
    got = software.read(here)
    assert len(host.commands) == 1
    assert list(got["services"]) == [
        "containerd.service",
        "docker.service",
        "munge.service",
        "nvidia-fabricmanager.service",
        "nvidia-persistenced.service",
        "slurmd.service",
    ]
    failed = {
        "load": "loaded",
        "active": "failed",
        "sub": "failed",
        "result": "exit-code",
        "restarts": 4,
        "since_us": 77,
    }
    assert got["services"]["slurmd.service"] == failed
    assert got["runtime"]["active"] is True
    assert got["services"]["munge.service"]["active"] is None


def test_observed_units_and_packages_need_no_command(tmp_path: Path) -> None:
    names = (
        "containerd",
        "docker",
        "munge",
        "nvidia-fabricmanager",
        "nvidia-persistenced",
        "slurmd",
    )
    packages = {"docker-ce": package("2"), "nvidia-fabricmanager-535": package("535.0", hold=False)}
    seen = Observed(
        units={"loaded": {f"{name}.service": row() for name in names}}, packages=packages
    )
    host, here = node(tmp_path, DOCUMENT, seen)
    got = software.read(here)
    assert host.commands == []
    assert got["services"]["docker.service"]["active"] == "active"
    assert got["packages"] == {
        "drift": [{"name": "nvidia-fabricmanager-535", "have": "535.0", "want": "535.1"}],
        "free": ["nvidia-fabricmanager-535"],
        "total": 2,
    }
    assert got["fabric_manager"] == {"installed": "535.0", "active": True}
    assert (got["runtime"]["engine"], got["runtime"]["version"]) == ("docker", "2")


def test_units_of_an_older_engine_are_asked_for(tmp_path: Path) -> None:
    seen = Observed(
        units={"loaded": {"docker.service": {"LoadState": "loaded", "ActiveState": "active"}}}
    )
    host, here = node(
        tmp_path, {"runtime": {"engine": "docker"}}, seen, docker=row(ActiveState="inactive")
    )
    assert software.read(here)["services"]["docker.service"]["active"] == "inactive"
    assert host.commands[0][-2:] == ("containerd.service", "docker.service")


def test_a_systemd_that_does_not_answer_is_reported_without_its_control_characters(
    tmp_path: Path,
) -> None:
    host, here = node(tmp_path, DOCUMENT)
    host.rc = 1
    got = software.read(here)
    assert got["services"]["docker.service"] == {
        "fault": "unread",
        "text": "systemctl show: down?[0m",
        "rc": 1,
    }
    assert got["runtime"]["active"]["fault"] == "unread"


def test_without_systemd_and_in_an_image_nothing_is_run(tmp_path: Path) -> None:
    host = Node(str(tmp_path), live=True)
    assert software.read(Context(host, DOCUMENT))["services"]["fault"] == "not_exposed"
    assert (
        software.read(context(tmp_path, DOCUMENT, live=False))["services"]["fault"] == "not_exposed"
    )
    assert host.commands == []


STATUS = """Package: docker-ce
Status: install ok installed
Version: 5:27.1

Package: nvidia-container-toolkit-base
Status: install ok installed
Version: 9

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.16.2-1

Package: nvidia-fabricmanager-550
Status: deinstall ok config-files
Version: 550.1

Package: nvidia-fabricmanager-535
Status: install ok installed
Version: 535.2
"""


def test_without_a_class_dpkg_is_read(tmp_path: Path) -> None:
    make(tmp_path, {"/var/lib/dpkg/status": STATUS, "/usr/bin/dockerd": ""})
    _, here = node(tmp_path, None, None, docker=row())
    got = software.read(here)
    assert (got["runtime"]["engine"], got["runtime"]["version"], got["runtime"]["toolkit"]) == (
        "docker",
        "5:27.1",
        "1.16.2-1",
    )
    assert got["fabric_manager"]["installed"] == "535.2"
    assert "packages" not in got


def test_no_package_database_is_not_no_package(tmp_path: Path) -> None:
    got = software.read(context(tmp_path))
    assert got["fabric_manager"]["installed"]["fault"] == "not_exposed"
    assert got["runtime"]["toolkit"]["fault"] == "not_exposed"


YAML = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - args:
    - nvidia-ctk
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
  mounts:
  - containerPath: /usr/lib/libcuda.so.535
    hostPath: /usr/lib/libcuda.so.535
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
      hostPath: /../../../etc/passwd
  name: all
kind: nvidia.com/gpu
"""
JSON = json.dumps(
    {
        "kind": "amd.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]}}],
    }
)


def test_cdi_specs_and_the_paths_that_are_missing(tmp_path: Path) -> None:
    make(
        tmp_path,
        {"/var/run/cdi/nvidia.yaml": YAML, "/etc/cdi/amd.json": JSON, "/etc/cdi/readme.txt": "x"},
    )
    make(
        tmp_path,
        {
            "/dev/nvidiactl": "",
            "/dev/nvidia0": "",
            "/dev/kfd": "",
            "/usr/bin/nvidia-ctk": "",
            "/dev/nvidia1": "",
        },
    )
    got = software.specs(context(tmp_path).files)
    assert got == [
        {"file": "/etc/cdi/amd.json", "kind": "amd.com/gpu", "devices": 1, "missing": []},
        {
            "file": "/var/run/cdi/nvidia.yaml",
            "kind": "nvidia.com/gpu",
            "devices": 2,
            "missing": ["/usr/lib/libcuda.so.535"],
        },
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "kind", "\x00\xff", '{"devices": 3}', '{"kind": {"a": 1}}', "- " * 1000]
)
def test_a_broken_spec_is_reported(tmp_path: Path, text: str) -> None:
    got = software.specs(context(make(tmp_path, {"/etc/cdi/x.yaml": text})).files)
    assert got[0]["error"]["fault"] == "unread"
    assert got[0]["devices"] == 0


def test_this_machine_is_read_without_a_crash() -> None:
    json.dumps(software.read(Context(Host("/"))))
