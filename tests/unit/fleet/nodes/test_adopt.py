"""What `goldnode adopt` makes of a survey: surveys as tables, and the proposals and doubts that must come of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.compat.rules import last_day
from goldnode.facts import host as facts
from goldnode.fleet.nodes import adopt
from goldnode.inventory.classes import classes_of_hosts
from goldnode.node.ground.host import Host
from goldnode.node.program.survey import survey

RELEASE = "6.1.0-56-amd64"


def row(version: str) -> dict[str, Any]:
    return {"version": version, "state": "installed", "hold": False}


def a100(**patch: Any) -> dict[str, Any]:
    """A Debian 12 machine with eight A100 and Debian's 535 driver, installed by hand."""
    driver = "535.309.01-1~deb12u1"
    names = (
        "nvidia-kernel-dkms",
        "nvidia-kernel-support",
        "libcuda1",
        "libnvidia-ml1",
        "nvidia-smi",
        "nvidia-persistenced",
    )
    base: dict[str, Any] = {
        "schema": "goldnode.survey/1",
        "container": False,
        "os": {"id": "debian", "version": "12", "codename": "bookworm", "architecture": "amd64"},
        "kernel": {"running": RELEASE, "installed": [RELEASE], "cmdline": "quiet"},
        "secure_boot": False,
        "packages": {**{name: row(driver) for name in names}, f"linux-image-{RELEASE}": row("6.1.181-1")},
        "automatic": ["libcuda1", "libnvidia-ml1"],
        "sources": [
            {"file": "/etc/apt/sources.list", "line": 1, "uri": "http://a.example/debian", "suite": "bookworm",
             "components": ["main", "non-free"], "signed_by": None},
            {"file": "/etc/apt/sources.list", "line": 2, "uri": "http://a.example/security", "suite": "bookworm-security",
             "components": ["main"], "signed_by": None},
        ],
        "pins": [],
        "runfile": None,
        "driver": [{"module": "nvidia-current", "version": "535.309.01", "license": "NVIDIA", "vermagic": f"{RELEASE} SMP", "signer": ""}],
        "loaded": [{"module": "nvidia", "version": "535.309.01"}],
        "dkms": [{"name": "nvidia-current", "version": "535.309.01", "kernels": [RELEASE], "package": "nvidia-kernel-dkms"}],
        "gpus": [{"address": f"0000:0{n}:00.0", "id": "10de:20b0", "driver": "nvidia"} for n in range(8)],
        "nvswitch": False,
        "settings": [
            {"persistence_mode": "Enabled", "power.limit": "400.00", "ecc.mode.current": "Enabled", "compute_mode": "Default",
             "mig.mode.current": "Disabled"}
        ] * 8,
        "runtime": {},
        "host": {"governors": ["performance"], "swap": False, "numa_balancing": "1", "hugepages": "0", "mtu": {"eth0": 9000, "eth1": 1500}},
        "goldnode": False,
    }  # fmt: skip
    return {**base, **patch}


def proposed(**patch: Any) -> tuple[dict[str, Any], dict[str, Any] | None, list[str]]:
    found = adopt.propose(a100(**patch), "mine", load_catalog())
    stack = found.files.get("stacks/mine_stack.yml")
    return (
        yaml.safe_load(found.files["classes/mine.yml"]),
        yaml.safe_load(stack) if stack else None,
        found.notes,
    )


def test_a_node_that_a_stack_of_the_catalog_describes_gets_that_stack() -> None:
    document, stack, notes = proposed()
    assert stack is None
    assert document["stack"] == "debian12_r535"
    assert document["gpu"] == {"model": "A100-SXM4-40GB", "count": 8}
    assert document["policy"] == {
        "persistence_mode": True,
        "power_limit_watts": 400,
        "ecc": True,
        "host": {"governor": "performance", "network": {"eth0": {"mtu": 9000}}, "swap": False},
    }
    assert any("debian12_r535 of the catalog" in note for note in notes)


def test_a_driver_of_another_branch_becomes_a_stack_of_its_own() -> None:
    version = "525.147.05-4"
    packages = {
        name: row(version)
        for name in ("nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1", "nvidia-smi")
    }
    driver = [
        {
            "module": "nvidia-current",
            "version": "525.147.05",
            "license": "Dual MIT/GPL",
            "vermagic": RELEASE,
            "signer": "",
        }
    ]
    dkms = [
        {
            "name": "nvidia-current",
            "version": "525.147.05",
            "kernels": [RELEASE],
            "package": "nvidia-kernel-dkms",
        }
    ]
    document, stack, _ = proposed(packages=packages, driver=driver, dkms=dkms)
    assert stack is not None
    assert document["stack"] == stack["stack"] == "mine_stack"
    assert (stack["driver"]["branch"], stack["driver"]["flavour"], stack["driver"]["version"]) == (
        "525",
        "open",
        "525.147.05",
    )
    assert stack["driver"]["dkms"] == {"name": "nvidia-current", "package": "nvidia-kernel-dkms"}
    assert set(stack["driver"]["lockstep"]) <= set(stack["driver"]["packages"])
    assert stack["kernel"] == {"release": RELEASE}
    assert stack["archives"] == ["debian", "debian-security"]


DOUBTS: dict[str, tuple[dict[str, Any], str]] = {
    "runfile": ({"runfile": "/usr/bin/nvidia-uninstall"}, "nvidia-uninstall` in a maintenance window"),
    "vendor repository": (
        {"sources": [{"file": "/etc/apt/sources.list.d/x.list", "line": 3, "uri": "http://v.example/apt", "suite": "any", "components": ["c"],
                      "signed_by": None}]},
        "/etc/apt/sources.list.d/x.list:3: source http://v.example/apt any is no archive of the catalog",
    ),
    "two models": ({"gpus": [{"address": "a", "id": "10de:20b0", "driver": "nvidia"}, {"address": "b", "id": "10de:2330", "driver": "nvidia"}]},
                   "GPUs of several models"),
    "unknown GPU": ({"gpus": [{"address": "a", "id": "10de:ffff", "driver": "nvidia"}, {"address": "b", "id": "10de:20b0", "driver": None}]},
                    "10de:ffff is not in the facts"),
    "module of no package": ({"dkms": [*a100()["dkms"], {"name": "knem", "version": "1.1", "kernels": [], "package": None}]},
                             "knem 1.1 (of no package"),
    "stray module": ({"loaded": [{"module": "mlx5_core", "version": "24.10"}]}, "not of DKMS: mlx5_core"),
    "pin": ({"pins": [{"file": "/etc/apt/preferences.d/own", "line": 2, "package": "libnvidia-ml1"}]}, "own:2: pins libnvidia-ml1"),
    "GPUs differ": ({"settings": [{"power.limit": "400.00"}, {"power.limit": "300.00"}]}, "The GPUs differ in power.limit: 300.00, 400.00"),
    "MIG": ({"settings": [{"mig.mode.current": "Enabled"}]}, "MIG is enabled on at least one GPU"),
    "no settings": ({"settings": None}, "could not be read (no nvidia-smi"),
    "kernel of no package": ({"kernel": {"running": "6.9.9-own", "installed": [RELEASE], "cmdline": ""}}, "6.9.9-own is of no installed package"),
    "container": ({"container": True, "gpus": None, "settings": None, "host": None}, "The node is a container"),
    "prebuilt driver": ({"dkms": []}, "not built by DKMS from an installed package"),
    "driver of no package": ({"driver": []}, "The class below is for no GPU, although the node has 8 x A100-SXM4-40GB"),
    "Secure Boot": ({"secure_boot": True}, "must be signed by an enrolled key"),
    "unreadable setting": ({"settings": [{"power.limit": "Unknown Error"}]}, "nvidia-smi says Unknown Error of power.limit"),
    "old compute mode": ({"settings": [{"compute_mode": "Exclusive_Thread"}]}, "says Exclusive_Thread of compute_mode"),
    "huge pages": ({"host": {**a100()["host"], "hugepages": "64"}}, "64 huge pages of the default size are reserved"),
    "NVSwitch": ({"nvswitch": True, "gpus": [{"address": "a", "id": "10de:27b8", "driver": "nvidia"}]}, "has NVSwitch and no platform"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTS)
def test_each_doubt_is_reported_in_the_notes(name: str) -> None:
    patch, told = DOUBTS[name]
    _, _, notes = proposed(**patch)
    assert any(told in note for note in notes), notes


def test_pin_of_an_unrelated_package_adds_no_note() -> None:
    _, _, notes = proposed(
        pins=[{"file": "/etc/apt/preferences.d/node", "line": 1, "package": "nodejs"}]
    )
    assert len(notes) == 1, notes


def test_another_module_of_a_package_is_in_the_stack() -> None:
    other = {"name": "gdrdrv", "version": "2.4", "kernels": [RELEASE], "package": "gdrdrv-dkms"}
    _, stack, _ = proposed(dkms=[*a100()["dkms"], other])
    assert stack is not None
    assert stack["modules"] == [{"name": "gdrdrv", "package": "gdrdrv-dkms", "dkms": "gdrdrv"}]


def test_the_drivers_own_tree_is_no_other_module() -> None:
    """Where nothing can be said of the driver (here: no version), its source is still not taken for another module."""
    silent = {
        "module": "nvidia-current",
        "version": "",
        "license": "",
        "vermagic": RELEASE,
        "signer": "",
    }
    document, stack, _ = proposed(driver=[silent])
    assert stack is not None
    assert (document["backend"], stack["driver"]) == ("cpu", None)
    assert "modules" not in stack


def test_a_stack_of_another_architecture_does_not_fit() -> None:
    document, stack, _ = proposed(os={**a100()["os"], "architecture": "arm64"})
    assert stack is not None
    assert document["stack"] == "mine_stack"
    assert stack["os"]["architecture"] == "arm64"


def test_support_ends_with_the_release_or_with_the_drivers_branch() -> None:
    other = {"name": "gdrdrv", "version": "2.4", "kernels": [RELEASE], "package": "gdrdrv-dkms"}
    _, stack, notes = proposed(dkms=[*a100()["dkms"], other])
    assert stack is not None
    assert (
        stack["end_of_life"]["date"] == last_day(str(facts.branch("535").end_of_life)).isoformat()
    )
    assert "driver branch 535 ends" in stack["end_of_life"]["source"]
    assert not any("would refuse" in note for note in notes), notes


def test_numa_balancing_that_is_off_stays_off() -> None:
    document, _, _ = proposed(host={**a100()["host"], "numa_balancing": "0"})
    assert document["policy"]["host"]["numa_balancing"] is False


def test_note_reports_that_amd_settings_are_not_read() -> None:
    amd = [{"address": "a", "id": facts.gpu("MI300X").pci_ids[0], "driver": "amdgpu"}]
    document, _, notes = proposed(
        gpus=amd, packages={}, driver=[], dkms=[], loaded=[], settings=None
    )
    assert document["backend"] == "rocm"
    assert any("AMD's GPUs are not read" in note for note in notes), notes
    assert not any("nvidia-smi" in note for note in notes), notes


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ({"id": "fedora", "version": "43", "codename": ""}, "runs fedora"),
        (
            {"id": "debian", "version": "", "codename": "sid"},
            "runs debian sid, which is no release",
        ),
    ],
)
def test_another_system_is_refused(system: dict[str, str], says: str) -> None:
    with pytest.raises(adopt.AdoptError, match=says):
        proposed(os={**system, "architecture": "amd64"})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "the survey cannot be read"),
        ("[]", "this is no survey of schema"),
        ('{"schema": "other/1"}', "this is no survey"),
    ],
)
def test_a_file_that_is_no_survey_is_one_line(tmp_path: Path, content: str, says: str) -> None:
    kept = tmp_path / "survey.json"
    kept.write_text(content)
    done = CliRunner().invoke(main, ["adopt", "node1", "--survey", str(kept)])
    assert done.exit_code == 2
    assert f"error: {kept}: {says}" in done.output


def test_files_are_written_once(tmp_path: Path) -> None:
    kept = tmp_path / "survey.json"
    kept.write_text(json.dumps(a100()))
    arguments = [
        "adopt",
        "node1",
        "--survey",
        str(kept),
        "--name",
        "mine",
        "--out",
        str(tmp_path / "catalog"),
    ]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    assert (tmp_path / "catalog/classes/mine.yml").is_file()
    assert "Nothing was changed on node1" in first.output
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "this file exists already" in again.output


def test_site_directory_has_class_and_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_SITE", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "survey.json").write_text(json.dumps(a100()))
    words = ["adopt", "ops@node1", "--survey", "survey.json", "--name", "mine"]
    done = CliRunner().invoke(main, [*words, "--site", "site"])
    assert done.exit_code == 0, done.output
    assert "`cd site`, `goldnode lock" in done.stderr
    monkeypatch.chdir(tmp_path / "site")
    catalog = load_catalog()
    assert catalog.node_class("mine").file == tmp_path / "site/catalog/classes/mine.yml"
    assert classes_of_hosts(Path("inventory"), catalog) == {"node1": "mine"}
    hosts = Path("inventory/mine.yml").read_text()
    assert "ansible_user: ops\n    ansible_become: true" in hosts
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(main, [*words, "--site", "site", "--out", "x"])
    assert "use one of them" in again.output


def test_a_survey_of_a_root_is_plain_data_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(
        'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'
    )
    source = tmp_path / "var/lib/dkms/knem/1.1.4/6.1.0-1-amd64"
    source.mkdir(parents=True)
    listing = tmp_path / "var/lib/dpkg/info/knem-dkms.list"
    listing.parent.mkdir(parents=True)
    listing.write_text("/usr/src/knem-1.1.4/dkms.conf\n")
    before = sorted(tmp_path.rglob("*"))
    found = survey(Host(str(tmp_path)))
    assert json.loads(json.dumps(found)) == found
    assert found["os"]["codename"] == "bookworm"
    assert found["dkms"] == [
        {"name": "knem", "version": "1.1.4", "kernels": [], "package": "knem-dkms"}
    ]
    assert found["gpus"] is None, "a root filesystem shows no GPUs"
    assert sorted(tmp_path.rglob("*")) == before
