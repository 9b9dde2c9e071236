"""`goldnode import` of a mixed fleet: which machines belong together, and each deviation by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.fleet.nodes.test_adopt import RELEASE, a100

from goldnode.classdoc.load import load_catalog
from goldnode.cli import main
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.fleet.nodes import fleet_proposal
from goldnode.fleet.nodes.fleet_kinds import kinds
from goldnode.fleet.nodes.fleet_proposal import FleetProposal, FleetSurveys, propose_fleet, ranges
from goldnode.inventory.classes import classes_of_hosts
from goldnode.inventory.fleet_sources import FleetHost, FleetSource, gpus_of_gres, read_source

OLD = "535.216.03"


def machine(model: str | None, count: int, gib: int, **patch: Any) -> dict[str, Any]:
    """Return the survey of a machine with Debian 12 and, if it has GPUs, driver 535.309.01."""
    survey = copy.deepcopy(a100())
    pci = facts.gpu(model).pci_ids[0] if model else ""
    survey["gpus"] = [{"address": f"{n}", "id": pci, "driver": "nvidia"} for n in range(count)]
    watts = {"L4": "72.00"}.get(model or "", "400.00")
    survey["settings"] = [{**row, "power.limit": watts} for row in survey["settings"][:count]]
    survey["hardware"] = {
        "memory_mib": gib * 1024,
        "processor": "Example 9004",
        "sockets": 2,
        "threads": 256,
        "product": "Example X",
    }
    if model is None:
        survey |= {"driver": [], "dkms": [], "loaded": [], "settings": None}
        survey["packages"] = {
            f"linux-image-{RELEASE}": survey["packages"][f"linux-image-{RELEASE}"]
        }
    for key, value in patch.items():
        survey[key] = {**survey[key], **value} if isinstance(value, dict) else value
    return survey


def older(survey: dict[str, Any]) -> dict[str, Any]:
    """Return a survey with an older driver of the same branch."""
    return json.loads(json.dumps(survey).replace("535.309.01", OLD))  # type: ignore[no-any-return]


def scontrol(rows: Mapping[str, tuple[str, str, str]]) -> str:
    """Return the answer of `scontrol show node` as people save it: several lines a node, without --oneliner."""
    return "\n".join(
        f"NodeName={name} Arch=x86_64 CoresPerSocket=64 \n   CPUAlloc=0 CPUEfctv=256 CPUTot=256 CPULoad=0.99\n"
        f"   AvailableFeatures=(null)\n   ActiveFeatures=(null)\n   Gres={gres}\n"
        f"   NodeAddr={name}.example.net NodeHostName={name} Version=24.05.3\n"
        f"   OS=Linux {RELEASE} #1 SMP PREEMPT_DYNAMIC Debian 6.1.181-1 (2026-06-01) \n"
        f"   RealMemory=250000 AllocMem=0 FreeMem=340 Sockets=2 Boards=1\n"
        f"   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
        f"   Partitions={partition},all \n   BootTime=2026-11-18T20:46:45 SlurmdStartTime=2026-11-19T11:41:49\n"
        f"   Reason=Gres=gpu:h100:4 is wrong [root@2026-11-19T11:03:34]\n"
        for name, (gres, state, partition) in rows.items()
    )


def fleet() -> tuple[FleetSource, FleetSurveys, str]:
    """Return 40 machines of four kinds, two of them without a survey, and one that Slurm has powered down."""
    surveys: dict[str, dict[str, Any]] = {}
    listed: dict[str, tuple[str, str, str]] = {}
    for prefix, number, model, count, gib in (
        ("h", 16, "H100-SXM5-80GB", 8, 2015),
        ("a", 12, "A100-SXM4-40GB", 8, 1007),
        ("l", 8, "L4", 1, 251),
        ("c", 4, None, 0, 503),
    ):
        for n in range(1, number + 1):
            name = f"{prefix}{n:02}"
            # The total that the kernel reports differs by some MiB between equal machines.
            survey = machine(model, count, gib, hardware={"memory_mib": gib * 1024 - 7 * n})
            survey["nvswitch"] = prefix in "ha"
            surveys[name] = survey
            gres = f"gpu:{model}:{count}(S:0-1)" if model else "(null)"
            listed[name] = (
                gres,
                "IDLE",
                {"h": "train", "a": "old", "l": "serve", "c": "cpu"}[prefix],
            )
    surveys["h07"] = older(surveys["h07"])
    surveys["h11"]["hardware"]["memory_mib"] = 1952 * 1024
    surveys["h02"]["host"]["mtu"] = {"eth0": 1500, "eth1": 1500}
    surveys["h16"]["settings"] = [
        {**row, "power.limit": "300.00"} for row in surveys["h16"]["settings"]
    ]
    surveys["a03"]["kernel"] = {
        "running": "6.1.0-9-amd64",
        "installed": ["6.1.0-9-amd64", RELEASE],
        "cmdline": "",
    }
    surveys["a05"]["gpus"].pop()
    surveys["l02"]["gpus"] = []
    surveys["l02"]["settings"] = None
    surveys["l04"]["runfile"] = "/usr/bin/nvidia-uninstall"
    surveys["l07"]["hardware"]["memory_mib"] = 187 * 1024
    surveys["c03"]["host"]["swap"] = True
    listed["a09"] = ("gpu:A100-SXM4-40GB:8(S:0-1)", "DOWN+NOT_RESPONDING", "old")
    del surveys["a09"]
    listed["h99"] = ("gpu:H100-SXM5-80GB:8", "IDLE+CLOUD+POWERED_DOWN", "train")
    text = scontrol(listed)
    source = FleetSource("slurm", read_source_text(text))
    lost = {"a09": "ssh: connect to host a09.example.net port 22: No route to host"}
    lost |= {host.name: host.unreached for host in source.hosts if host.unreached}
    return source, FleetSurveys(surveys, lost), text


def read_source_text(text: str) -> list[FleetHost]:
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        return list(read_source(file.name).hosts)


@pytest.fixture(scope="module")
def proposed() -> FleetProposal:
    source, surveyed, _ = fleet()
    return propose_fleet(source, surveyed, load_catalog(), Site())


def test_forty_machines_are_four_classes(proposed: FleetProposal) -> None:
    found = {kind.name: ranges(kind.hosts) for kind in proposed.kinds}
    assert found == {
        "adopted_h100_sxm5_80gb": "h[01:16]",
        "adopted_a100_sxm4_40gb": "a[01:08], a[10:12]",
        "adopted_l4": "l[01:08]",
        "adopted_debian12_cpu": "c[01:04]",
    }


def test_each_deviation_is_named_and_nothing_else(proposed: FleetProposal) -> None:
    rows = {
        (row.host, row.aspect, row.found, row.expected)
        for kind in proposed.kinds
        for row in kind.deviations
    }
    assert rows == {
        ("h07", "driver", f"{OLD} (proprietary)", "535.309.01 (proprietary)"),
        ("h11", "memory", "1952 GiB", "2015 GiB"),
        ("h02", "MTU", "1500", "1 with 9000"),
        ("h16", "power limit (W)", "300.00", "400.00"),
        ("a03", "kernel", "6.1.0-9-amd64", RELEASE),
        ("a05", "number of GPUs", "7", "8"),
        ("a05", "number of GPUs for the scheduler", "7", "8 by its Gres"),
        ("l02", "number of GPUs", "0", "1"),
        ("l02", "number of GPUs for the scheduler", "0", "1 by its Gres"),
        ("l04", "driver installed by a .run file", "/usr/bin/nvidia-uninstall", "no"),
        ("l07", "memory", "187 GiB", "251 GiB"),
        ("l07", "memory (MiB) for the scheduler", "191488", "250000 by its RealMemory"),
        ("c03", "swap", "on", "off"),
    }


def test_machines_without_a_survey_keep_their_reason_and_likely_class(
    proposed: FleetProposal,
) -> None:
    rows = {row["host"]: row for row in proposed.to_json()["unreached"]}
    assert rows["a09"]["likely_class"] == "adopted_a100_sxm4_40gb"
    assert rows["a09"]["state"] == "down, not_responding"
    assert "No route to host" in rows["a09"]["reason"]
    assert rows["h99"]["likely_class"] == "adopted_h100_sxm5_80gb"
    assert "powered it down" in rows["h99"]["reason"]
    assert len(rows) == 2


def test_the_class_is_of_a_machine_without_deviations(proposed: FleetProposal) -> None:
    for kind in proposed.kinds:
        assert kind.typical not in {row.host for row in kind.deviations}
    document = yaml.safe_load(
        proposed.proposals["adopted_h100_sxm5_80gb"].files["classes/adopted_h100_sxm5_80gb.yml"]
    )
    assert document["gpu"] == {"model": "H100-SXM5-80GB", "count": 8}
    assert document["baseline"] == {"memory": {"total_gib": 2015}, "cpu": {"sockets": 2}}


def test_machines_with_nvswitch_are_a_cohort(proposed: FleetProposal) -> None:
    assert {proposed.cohorts.get(name) for name in ("h01", "h16")} == {"adopted_h100_sxm5_80gb"}
    assert "l01" not in proposed.cohorts


def test_the_lock_of_the_class_shows_what_it_would_change(proposed: FleetProposal) -> None:
    rows = [row for row in proposed.locks if row.node_class == "adopted_h100_sxm5_80gb"]
    assert {row.stack for row in rows} == {"debian12_r535"}
    by_host = {name: row.lines for row in rows for name in row.hosts}
    assert sorted(by_host) == [f"h{n:02}" for n in range(1, 17)]
    assert by_host["h01"] != by_host["h07"], "the older driver is one more upgrade"
    assert any(line.startswith("upgrade") and OLD in line for line in by_host["h07"])
    assert not any(OLD in line for line in by_host["h01"])


def test_files_are_a_site_directory_and_are_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, surveyed, text = fleet()
    monkeypatch.chdir(tmp_path)
    for name in ("GOLDNODE_CATALOG", "GOLDNODE_SITE", "GOLDNODE_LOCKS"):
        monkeypatch.delenv(name, raising=False)
    Path("nodes.txt").write_text(text)
    Path("kept").mkdir()
    for name, survey in surveyed.surveys.items():
        Path(f"kept/{name}.json").write_text(json.dumps(survey))
    words = ["import", "nodes.txt", "--surveys", "kept", "--out", "site"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    page = Path("site/import/report.md").read_text()
    assert "39 of 41 machines were surveyed" in page
    assert "- deviation: h07: driver is 535.216.03 (proprietary), expected 535.309.01" in page
    monkeypatch.chdir(tmp_path / "site")
    members = classes_of_hosts(Path("inventory"), load_catalog())
    assert (len(members), members["h11"]) == (39, "adopted_h100_sxm5_80gb")
    row = yaml.safe_load(Path("inventory/adopted_h100_sxm5_80gb.yml").read_text())
    assert row["adopted_h100_sxm5_80gb"]["hosts"]["h01"] == {
        "ansible_host": "h01.example.net",
        "goldnode_cohort": "adopted_h100_sxm5_80gb",
    }
    edited = Path("catalog/classes/adopted_l4.yml")
    edited.write_text(edited.read_text() + "# reviewed\n")
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 2
    assert "adopted_l4.yml: this file exists with another content" in again.output
    assert "Name another directory with --out, and compare: `diff -r site OTHER`" in again.output
    assert "init --overwrite" not in again.output  # it would replace the class by one of its own
    assert "# reviewed" in Path("site/catalog/classes/adopted_l4.yml").read_text()
    # From the directory, with its classes in the catalog, the report comes again.
    monkeypatch.chdir(tmp_path / "site")
    report = CliRunner().invoke(main, ["import", "../nodes.txt", "--surveys", "import/surveys"])
    assert report.exit_code == 0, report.output
    assert "would refuse" not in report.output


def hosts_of(surveys: Mapping[str, Any], **groups: list[str]) -> dict[str, FleetHost]:
    return {
        name: FleetHost(
            name,
            groups=frozenset(
                f"partition {key}" for key, members in groups.items() if name in members
            ),
        )
        for name in surveys
    }


def test_drivers_that_the_site_separates_are_two_classes() -> None:
    new = {f"n{n}": machine("L4", 1, 251) for n in range(6)}
    old = {f"o{n}": older_branch(machine("L4", 1, 251)) for n in range(3)}
    apart = kinds({**new, **old}, hosts_of({**new, **old}, new=[*new], legacy=[*old]))
    assert {kind.name: len(kind.hosts) for kind in apart} == {
        "adopted_l4_r535": 6,
        "adopted_l4_r470": 3,
    }
    (together,) = kinds({**new, **old}, hosts_of({**new, **old}, all=[*new, *old]))
    assert {row.host for row in together.deviations} == {*old}
    assert any("6 machines have 535" in note and "Decide which" in note for note in together.notes)


def older_branch(survey: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(survey).replace("535.309.01", "470.256.02"))  # type: ignore[no-any-return]


def test_hardware_that_two_machines_share_is_a_kind_and_a_fault_is_not() -> None:
    eight = {f"e{n}": machine("A100-SXM4-40GB", 8, 1007) for n in range(6)}
    four = {f"f{n}": machine("A100-SXM4-40GB", 4, 1007) for n in range(2)}
    seven = {f"s{n}": machine("A100-SXM4-40GB", 7, 1007) for n in range(2)}
    half = {f"m{n}": machine("A100-SXM4-40GB", 8, 503) for n in range(2)}
    surveys = {**eight, **four, **seven, **half}
    found = {kind.name: kind for kind in kinds(surveys, hosts_of(surveys))}
    assert {name: len(kind.hosts) for name, kind in found.items()} == {
        "adopted_a100_sxm4_40gb_8gpu_1007gib": 8,
        "adopted_a100_sxm4_40gb_4gpu_1007gib": 2,
        "adopted_a100_sxm4_40gb_8gpu_503gib": 2,
    }
    wrong = found["adopted_a100_sxm4_40gb_8gpu_1007gib"].deviations
    assert {(row.host, row.found) for row in wrong} == {("s0", "7"), ("s1", "7")}


def test_a_single_machine_is_its_own_kind_only_by_declaration() -> None:
    surveys = {f"e{n}": machine("A100-SXM4-40GB", 8, 1007) for n in range(3)}
    surveys["odd"] = machine("A100-SXM4-40GB", 4, 1007)
    hosts = hosts_of(surveys)
    assert len(kinds(surveys, hosts)) == 1
    hosts["odd"] = FleetHost("odd", gpus=4)
    assert {ranges(kind.hosts) for kind in kinds(surveys, hosts)} == {"e[0:2]", "odd"}


def test_another_release_and_an_unknown_gpu_are_kinds_of_their_own() -> None:
    surveys = {f"n{n}": machine("L4", 1, 251) for n in range(3)}
    surveys["new"] = machine("L4", 1, 251, os={"version": "13", "codename": "trixie"})
    surveys["strange"] = machine("L4", 1, 251)
    surveys["strange"]["gpus"] = [{"address": "0", "id": "10de:ffff", "driver": None}]
    surveys["plain"] = machine(None, 0, 251)
    groups = {ranges(kind.hosts) for kind in kinds(surveys, hosts_of(surveys))}
    assert groups == {"n[0:2]", "new", "strange", "plain"}


def test_a_system_without_stacks_is_reported_and_stops_nothing() -> None:
    surveys = {"n0": machine("L4", 1, 251), "f0": machine("L4", 1, 251)}
    surveys["f0"]["os"] = {"id": "fedora", "version": "43", "codename": "", "architecture": "amd64"}
    source = FleetSource("inventory", [FleetHost(name) for name in surveys])
    found = propose_fleet(source, FleetSurveys(surveys), load_catalog(), Site())
    assert [kind.hosts for kind in found.kinds] == [["n0"]]
    assert "runs fedora" in found.unreached["f0"]


def test_nothing_surveyed_is_an_error_with_the_first_reason() -> None:
    source = FleetSource("inventory", [FleetHost("n0")])
    with pytest.raises(
        fleet_proposal.ImportFleetError, match="none of 1 machines was surveyed; n0: no route"
    ):
        propose_fleet(source, FleetSurveys({}, {"n0": "no route"}), load_catalog(), Site())


@pytest.mark.parametrize(
    ("gres", "number"),
    [
        # Forms of slurm.conf(5) and of public reports.
        (["gpu:h100:8(S:0-1)"], 8),
        (["gpu:8"], 8),
        (["gpu"], 1),
        (["gpu:4(S:0-1)", "nvme:1"], 4),
        (["gpu:tesla:2", "gpu:kepler:2", "mps:400"], 4),
        (["gpu:nvidia-rtx-3090:1"], 1),
        (["gpu:a100_1g.5gb:7"], None),
        (["craynetwork:4"], None),
        ([], None),
    ],
)
def test_number_of_gpus_in_gres(gres: list[str], number: int | None) -> None:
    assert gpus_of_gres(gres) == number


def test_nodes_of_kubernetes_that_are_no_machines_are_not_contacted(tmp_path: Path) -> None:
    def node(name: str, image: str, **labels: str) -> dict[str, Any]:
        return {
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {key.replace("__", "/"): value for key, value in labels.items()},
            },
            "spec": {},
            "status": {
                "nodeInfo": {"osImage": image},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    items = [
        node(
            "gpu1",
            "Debian GNU/Linux 12 (bookworm)",
            **{"nvidia.com__gpu.clique": "7b9c.1", "team": "a"},
        ),
        node("talos1", "Talos (v1.8.0)"),
        node("bottle1", "Bottlerocket OS 1.20.3 (aws-k8s-1.29-nvidia)"),
        node("fargate1", "Amazon Linux 2", **{"eks.amazonaws.com__compute-type": "fargate"}),
        node("vk", "", type="virtual-kubelet"),
    ]
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    hosts = {host.name: host for host in read_source(str(path)).hosts}
    assert hosts["gpu1"].unreached is None
    assert hosts["gpu1"].cohort == "7b9c.1"
    assert hosts["gpu1"].groups == {"label team=a"}
    assert "it runs Talos (v1.8.0)" in str(hosts["talos1"].unreached)
    assert "Bottlerocket" in str(hosts["bottle1"].unreached)
    assert "Fargate" in str(hosts["fargate1"].unreached)
    assert "virtual kubelet" in str(hosts["vk"].unreached)
    # `kubectl get node NAME -o json` is one node, and not a list.
    path.write_text(json.dumps(items[0]))
    assert [host.name for host in read_source(str(path)).hosts] == ["gpu1"]


def test_names_are_listed_as_ranges() -> None:
    assert ranges(["gpu02", "gpu01", "gpu03", "gpu7", "login"]) == "gpu[01:03], gpu7, login"


def test_source_that_does_not_exist_is_answered_with_what_a_source_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["import", "inventories/old"])
    assert done.exit_code == 2
    assert "Name slurm, kubernetes, an inventory, a list with one name a line" in done.output
    assert "goldnode init" not in done.output


def test_saved_output_that_cannot_be_read_is_named_with_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text('{"kind": "NodeList", "items": [{"metadata": {}}]}')
    done = CliRunner().invoke(main, ["import", str(path)])
    assert done.exit_code == 2
    assert f"{path}: kubectl's answer is no list of nodes: it has no 'name'." in done.output


@pytest.mark.parametrize(("source", "program"), [("slurm", "scontrol"), ("kubernetes", "kubectl")])
def test_scheduler_that_does_not_answer_here_can_be_asked_on_its_machine(
    source: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = CliRunner().invoke(main, ["import", source])
    assert done.exit_code == 2
    assert f"as in --program 'ssh HOST {program}'" in done.output


def test_directory_without_surveys_is_no_question_of_ssh(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text('{"kind": "Node", "metadata": {"name": "n1"}}')
    (tmp_path / "surveys").mkdir()
    words = ["import", str(tmp_path / "hosts.json"), "--surveys", str(tmp_path / "surveys")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "has a survey of none of 1 machines, such as n1.json. Name the directory" in done.output
    assert "ssh" not in done.output
    (tmp_path / "surveys/n1.json").write_text("{")
    broken = CliRunner().invoke(main, words)
    assert "Save it again with `goldnode adopt --save-survey`, or import without" in broken.output
