"""integrations/inventories with the inventory plugins of other collections, which answers stand in for.

answers/describe-instances.xml was recorded from moto 5. The answers of NetBox and of Compute Engine were written after
their documentation; the fields of a device are those of a public recording of demo.netbox.dev.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.unit.inventory.answering import Answer, api_server
from tests.unit.inventory.test_inventory_sources import ANSWERS, ROOT, SOURCES, hosts

# The package `ansible` has the collections. They need these libraries.
ANSIBLE = "ansible==12.3.0"
LIBRARIES = ("ansible-core>=2.19,<2.20", "boto3", "google-auth", "requests", "pytz", "packaging")
COLLECTIONS = ("netbox/netbox", "amazon/aws", "google/cloud")
# gcp_compute has no option for the address of the service.
CUSTOMIZE = """\
import os, requests
original = requests.Session.request
def request(self, method, url, *rest, **named):
    url = url.replace("https://www.googleapis.com", os.environ["TEST_GOOGLE"])
    return original(self, method, url, *rest, **named)
requests.Session.request = request
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with Ansible, the libraries and the collections."""
    where = tmp_path_factory.mktemp("third-party")
    subprocess.run([sys.executable, "-m", "venv", where / "venv"], check=True)
    pip = [str(where / "venv/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [*pip, "download", "--no-deps", "--dest", where, ANSIBLE], check=True, timeout=600
        )
        subprocess.run([*pip, "install", *LIBRARIES], check=True, timeout=600)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
        pytest.skip(f"the collections cannot be had here: {problem}")
    (wheel,) = where.glob("ansible-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        wanted = tuple(f"ansible_collections/{name}/" for name in COLLECTIONS)
        for name in archive.namelist():
            if name.startswith(wanted) and "/tests/" not in name:
                archive.extract(name, where)
    return where


def inventory(environment: Path, file: Path, **more: str) -> dict[str, Any]:
    """Return the output of `ansible-inventory --list`."""
    done = subprocess.run(
        [environment / "venv/bin/ansible-inventory", "-i", file, "--list"],
        capture_output=True,
        text=True,
        check=False,
        cwd=environment,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(environment),
            "ANSIBLE_COLLECTIONS_PATH": str(environment),
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            "ANSIBLE_INVENTORY_PLUGINS": str(ROOT / "src/goldnode/ansible/inventory"),
            **more,
        },
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(data: dict[str, Any], address: str) -> None:
    """Compare the hosts with those of all answers: two GPU nodes and one without."""
    assert hosts(data, "h100_sxm5_80gb") == ["gpu-1", "gpu-2"]
    assert hosts(data, "cpu_only") == ["cpu-1"]
    assert set(data["_meta"]["hostvars"]) == {"gpu-1", "gpu-2", "cpu-1"}
    found = data["_meta"]["hostvars"]["gpu-1"]["ansible_host"]
    assert found in (address, {"__ansible_unsafe": address})


@pytest.mark.long
def test_devices_of_netbox_are_in_the_groups_of_their_classes(
    environment: Path, tmp_path: Path
) -> None:
    recorded = json.loads((ANSWERS / "netbox.json").read_text(encoding="utf-8"))
    asked: list[str] = []

    def devices(path: str, body: bytes) -> bytes:
        asked.append(path)
        return json.dumps(recorded["/api/dcim/devices/"]).encode()

    answers: dict[str, Answer] = {
        path: json.dumps(answer).encode() for path, answer in recorded.items()
    }
    for kind in (
        "device-roles",
        "platforms",
        "device-types",
        "manufacturers",
        "regions",
        "locations",
    ):
        answers[f"/api/dcim/{kind}/"] = (
            b'{"count": 0, "next": null, "previous": null, "results": []}'
        )
    for path in (
        "dcim/site-groups",
        "dcim/rack-roles",
        "tenancy/tenants",
        "virtualization/clusters",
    ):
        answers[f"/api/{path}/"] = b'{"count": 0, "next": null, "previous": null, "results": []}'
    with api_server({**answers, "/api/dcim/devices/": devices}) as address:
        text = (SOURCES / "netbox_inventory.yml").read_text(encoding="utf-8")
        file = tmp_path / "netbox_inventory.yml"
        file.write_text(text.replace("https://netbox.example.net", address))
        data = inventory(environment, file, NETBOX_TOKEN="0" * 40)
    check(data, "192.0.2.11")
    assert data["_meta"]["hostvars"]["gpu-2"]["goldnode_rack"] in ("r2", {"__ansible_unsafe": "r2"})
    assert len(asked) == 1
    assert "tag=goldnode" in asked[0]
    assert "has_primary_ip=true" in asked[0]


@pytest.mark.long
def test_instances_of_ec2_are_in_the_groups_of_their_tags(
    environment: Path, tmp_path: Path
) -> None:
    asked: list[str] = []

    def instances(path: str, body: bytes) -> bytes:
        asked.append(body.decode())
        return (ANSWERS / "describe-instances.xml").read_bytes()

    with api_server({"/": instances}) as address:
        text = (SOURCES / "goldnode.aws_ec2.yml").read_text(encoding="utf-8")
        file = tmp_path / "goldnode.aws_ec2.yml"
        file.write_text(f"{text}endpoint_url: {address}\n")
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        data = inventory(environment, file, **keys)
    check(data, "10.217.173.168")
    assert "Action=DescribeInstances" in asked[0]
    assert "tag-key" in asked[0]
    assert "goldnode_class" in asked[0]
    assert "running" in asked[0]


@pytest.mark.long
def test_instances_of_compute_engine_are_in_the_groups_of_their_labels(
    environment: Path, tmp_path: Path
) -> None:
    asked: list[str] = []

    def instances(path: str, body: bytes) -> bytes:
        asked.append(path)
        return (ANSWERS / "gcp-instances.json").read_bytes()

    customize = tmp_path / "customize"
    customize.mkdir()
    (customize / "sitecustomize.py").write_text(CUSTOMIZE)
    with api_server(
        {"/compute/v1/projects/example-project/aggregated/instances": instances}
    ) as address:
        text = (SOURCES / "goldnode.gcp_compute.yml").read_text(encoding="utf-8")
        file = tmp_path / "goldnode.gcp_compute.yml"
        file.write_text(
            text.replace("auth_kind: application", "auth_kind: accesstoken\naccess_token: x")
        )
        more = {"PYTHONPATH": str(customize), "TEST_GOOGLE": address}
        data = inventory(environment, file, **more)
    check(data, "192.0.2.11")
    assert "labels.goldnode_class" in asked[0]
    assert "RUNNING" in asked[0]
