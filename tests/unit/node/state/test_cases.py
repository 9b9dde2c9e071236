"""Plans as tables: each file under tests/cases states what is seen on a node, and the plan that must come of it.

A case: {base: bare|converged|declared, document: patch, seen: patch, actions: [...], absent: [...], refusals: [...], notes: [...],
reboot: [...], waiting: [...]}.
`converged` is a node of the unpatched class, `declared` one of the class as the case patches it.
`engine` names a class with a container engine, and what is seen of that, in tests/cases/engines.json.
A patch is merged key by key; null takes a key of a mapping away. `actions` is the whole plan, as "part kind target" with a fragment of
the reason after a colon. With `record` (a patch of what a first run records; null: none was kept) the plan is that of a removal, and
`document` null says that the node has none. `order`: fragments of actions that follow one another so, among others.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.devices import as_declared

from goldnode.node.ground import systemd
from goldnode.node.state.domains import kernel, tuning
from goldnode.node.state.domains import program as program_domain
from goldnode.node.state.domains import units as units_domain
from goldnode.node.state.domains.driver import module_files
from goldnode.node.state.domains.files import Wanted
from goldnode.node.state.domains.program import document_digest
from goldnode.node.state.engine import difference, judge, judge_absent
from goldnode.node.state.model import PARTS, Observed, Plan
from goldnode.node.state.names import digest
from goldnode.node.state.observe import MANAGED

CASES = Path(__file__).parents[3] / "cases"
DOMAINS = Path(__file__).parents[4] / "src/goldnode/node/state/domains"
PROGRAM = {"program": {"sha256": "sha256:feed"}}
GIB = 1 << 30


def document() -> Any:
    """A fresh copy of the class document that the cases patch."""
    found: dict[str, Any] = json.loads((CASES / "document.json").read_text())
    return {**found, "digest": document_digest(found)}


def bare(wanted: Any) -> Observed:
    """A machine of the class's release with its GPUs, on the distribution's kernel, and nothing of goldnode."""
    return Observed(
        os={
            "id": wanted["os"]["id"],
            "version": wanted["os"]["version"],
            "codename": wanted["os"]["codename"],
        },
        running_kernel="6.1.0-901-amd64",
        boot_identity="boot-1",
        packages={
            "linux-image-6.1.0-901-amd64": installed("6.1.1-1"),
            "libc6": installed("2.36-9"),
        },
        sources=[
            {
                "file": "/etc/apt/sources.list",
                "line": 1,
                "uri": "http://mirror.example/debian",
                "suite": "bookworm",
                "components": ["main"],
                "signed_by": None,
            }
        ],
        keyrings={"/usr/share/keyrings/debian-archive-keyring.gpg": ["AAAA"]},
        kernels=["6.1.0-901-amd64"],
        boot={
            "loader": "grub",
            "release": "6.1.0-901-amd64",
            "reason": "the first entry",
            "entry": None,
        },
        gpus=[
            {"address": f"0000:0{n}:00.0", "id": "10de:20b0", "driver": "nvidia"} for n in (1, 2)
        ],
        space={"/": 90 * GIB, "/boot": GIB, "/usr": 90 * GIB, "/var": 90 * GIB},
        units={
            "loaded": {name: unit("not-found") for name in units_domain.UNITS},
            "gate": None,
            "hook": None,
        },
    )


def unit(load: str, active: str = "inactive") -> dict[str, str]:
    """What systemd has loaded of one unit."""
    return {
        **dict.fromkeys(systemd.PROPERTIES, ""),
        "LoadState": load,
        "ActiveState": active,
        "NeedDaemonReload": "no",
    }


def installed(version: str, *, hold: bool = False) -> dict[str, Any]:
    """One row of what dpkg knows."""
    return {"version": version, "architecture": "amd64", "state": "installed", "hold": hold}


def converged(wanted: Any) -> Observed:
    """A node that is what the class says: taken from `bare` by what the plan itself asks for."""
    seen = bare(wanted)
    release = wanted["kernel"]["release"]
    seen.packages.update(
        {
            package["name"]: installed(package["version"], hold=True)
            for package in wanted["packages"]
        }
    )
    seen.running_kernel, seen.kernels = release, [*seen.kernels, release]
    seen.tuning = tuned(wanted)
    line = " ".join(["root=/dev/vda1", *tuning.cmdline_words(wanted)])
    seen.boot = {
        "loader": "grub",
        "release": release,
        "reason": "set default",
        "entry": "a>b",
        "cmdline": line,
    }
    seen.modules = {
        release: {
            "version": "535.2",
            "license": "NVIDIA",
            "vermagic": f"{release} SMP",
            "signer": "",
        }
    }
    seen.other_modules = known(wanted)
    seen.loaded, seen.library = {"nvidia": "535.2"}, "/usr/lib/libnvidia-ml.so.535.2"
    seen.links = {
        program_domain.WANTS: program_domain.UNIT,
        units_domain.LINK: "/etc/systemd/system/goldnode-watch.timer",
    }
    if units_domain.watches(wanted):
        seen.links[units_domain.EVENTS_LINK] = "/etc/systemd/system/goldnode-events.service"
    own = {
        name: unit("loaded", "active")
        for name in units_domain.UNITS
        if name.startswith("goldnode-") and not re.search("mps|serve", name)
    }
    if not units_domain.watches(wanted):
        own.pop(units_domain.EVENTS)
    seen.units = {
        "loaded": {**seen.units["loaded"], **own},
        "gate": {"mode": "report", "open": True},
        "hook": None,
    }
    seen.gpu_settings = as_declared(wanted)
    seen.loaded |= {row["name"].replace("-", "_"): "" for row in wanted["modules"] if row["load"]}
    for action in difference(wanted, seen, PROGRAM)[0]:
        if action.kind == "file.write":
            content = (
                PROGRAM["program"]["sha256"]
                if action.data.get("payload")
                else action.data["content"]
            )
            seen.files[action.target] = {"content": content, "mode": action.data["mode"]}
        elif action.kind == "link":
            seen.links[action.target] = action.data["to"]
    inside = {
        file.path: digest(file.content.encode()) for file in module_files(wanted, "gpu_driver")
    }
    seen.initramfs = {name: {"unwanted": [], "files": inside} for name in seen.kernels}
    seen.files[kernel.DROP_IN] = {"content": kernel.drop_in("a>b"), "mode": 0o644}
    return seen


def known(wanted: Any) -> dict[str, Any]:
    """What domain modules reads where every module is built, in the stack's order: files get younger from one to the next."""
    rows = wanted["modules"]
    early, late = (
        [row["name"] for row in rows if row["before_driver"]],
        [row["name"] for row in rows if not row["before_driver"]],
    )
    driver = [wanted["driver"]["module"]] if wanted.get("driver") and rows else []
    info = {
        "license": "GPL",
        "vermagic": f"{wanted['kernel']['release']} SMP",
        "signer": "",
        "srcversion": "A",
        "against": None,
    }
    own = {row["name"] for row in rows if row["package"] is None}
    return {
        name: {
            **info,
            "version": "535.2" if name in own else "",
            "name": name,
            "identity": f"9:{time}",
            "time": time,
        }
        for time, name in enumerate([*early, *driver, *late], 1)
    }


def tuned(wanted: Any) -> dict[str, Any]:
    """What domain tuning reads on a machine that has everything and is set as the class says."""
    host = tuning.policy(wanted)
    off = {"swap.target": "masked"} if host.get("swap") is False else {}
    seen: dict[str, Any] = {
        "swap": {"fstab": [], "marked": [], "units": off, "masked_by_us": sorted(off)},
        "recorded": tuning.cmdline_words(wanted),
        "foreign": [{"file": "/etc/default/grub", "line": 9, "word": "quiet"}],
        "later": [],
        "tried": {},
        "cmdline": " ".join(["root=/dev/vda1", *tuning.cmdline_words(wanted)]),
        "memory": {"total": 512 << 20, "available": 400 << 20},
        "swap_active": [],
    }
    if "governor" in host:
        seen |= {
            "governor": dict.fromkeys(("cpu0", "cpu1"), host["governor"]),
            "governors": ["performance", "powersave"],
        }
    if "transparent_hugepages" in host:
        seen["transparent_hugepages"] = host["transparent_hugepages"]
    seen |= {f"sysctl.{key}": value for key, value in host.get("sysctl", {}).items()}
    if "numa_balancing" in host:
        seen["numa_balancing"] = "1" if host["numa_balancing"] else "0"
    seen |= {f"hugepages.{size}": str(count) for size, count in host.get("hugepages", {}).items()}
    seen |= {
        f"network.{name}.mtu": str(values["mtu"])
        for name, values in host.get("network", {}).items()
    }
    if "iommu" in host:
        seen["iommu_groups"] = {
            "pt": {"identity": 90, "DMA-FQ": 2},
            "on": {"DMA-FQ": 92},
            "off": {},
        }[host["iommu"]]
    if "memlock" in host:
        seen["memlock"] = {
            "default": tuning.systemd_bytes(host["memlock"]),
            "hard": "unlimited",
            "may": True,
        }
    return seen


def with_engine(wanted: Any, runtime: dict[str, Any]) -> Observed:
    """A converged node whose container engine shows `runtime`, with the files that follow from it."""
    seen = converged(wanted)
    seen.runtime = runtime
    for action in difference(wanted, seen, PROGRAM)[0]:
        if action.kind == "file.write":
            seen.files[action.target] = {
                "content": action.data["content"],
                "mode": action.data["mode"],
            }
    return seen


def merge(base: Any, patch: Any) -> Any:
    """`patch` over `base`: mappings key by key, null removes, anything else replaces."""
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    result = dict(base)
    for key, value in patch.items():
        if value is None and isinstance(base.get(key), dict):
            result.pop(key)
        else:
            result[key] = merge(base.get(key), value)
    return result


def recorded(wanted: Any) -> dict[str, Any]:
    """The record of a node that was `bare` when goldnode came."""
    names = [package["name"] for package in wanted["packages"]]
    return {
        "first": {"holds": [], "kernel": "6.1.0-901-amd64", "directories": [], "sources": []},
        "brought": names,
        "held": names,
    }


def planned_removal(case: dict[str, Any]) -> Plan:
    """The removal of a case, on a node that runs the kernel it had before unless the case says otherwise."""
    seen = {
        **{"bare": bare, "converged": converged}[case["base"]](document()).to_dict(),
        "running_kernel": "6.1.0-901-amd64",
    }
    known = merge(recorded(document()), case["record"]) or {}
    own = merge(document(), case.get("document", {}))
    return judge_absent(own, Observed(**merge(seen, case.get("seen", {}))), known)


def planned(case: dict[str, Any]) -> Plan:
    """The plan of a case."""
    if "record" in case:
        return planned_removal(case)
    declared, base = document(), None
    if "engine" in case:
        engine = json.loads((CASES / "engines.json").read_text())[case["engine"]]
        declared = merge(declared, engine["document"])
        base = with_engine(declared, engine["runtime"])
    wanted = merge(declared, case.get("document", {}))
    before = merge(declared, case.get("seen_as", {}))
    makers = {
        "bare": lambda: bare(before),
        "converged": lambda: converged(before),
        "declared": lambda: converged(wanted),
    }
    base = base or makers[case["base"]]()
    return judge(wanted, Observed(**merge(base.to_dict(), case.get("seen", {}))), PROGRAM)


def unobserved(plan: Plan) -> list[str]:
    """Return the files that a plan writes and no later run would read back."""
    return [
        action.target
        for action in plan.actions
        if action.kind == "file.write"
        and not any(fnmatch(action.target, f"{folder}/{pattern}") for folder, pattern in MANAGED)
    ]


# tests/cases/purity has recorded facts of wheels, for the inspection of images.
FILES = sorted(path for path in CASES.glob("*/*.json") if path.parent.name != "purity")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path: Path) -> None:
    case = json.loads(path.read_text())
    unknown = set(case) - {
        "base",
        "document",
        "seen",
        "seen_as",
        "actions",
        "contains",
        "absent",
        "refusals",
        "notes",
        "reboot",
        "waiting",
        "lines",
        "engine",
        "record",
        "order",
    }
    assert not unknown, f"{path}: unknown keys {unknown}"
    plan = planned(case)
    assert not unobserved(plan), (
        f"MANAGED in src/goldnode/node/state/observe.py has no row for {unobserved(plan)}: every run would write them"
    )
    lines = [
        f"{action.part} {action.kind} {action.target}: {action.reason}" for action in plan.actions
    ]
    if "actions" in case:
        assert len(lines) == len(case["actions"]), "\n".join(lines)
        for line, wanted in zip(lines, case["actions"], strict=True):
            head, _, fragment = wanted.partition(": ")
            assert line.startswith(f"{head}: "), "\n".join(lines)
            assert fragment in line
    for fragment in case.get("contains", []):
        assert any(fragment in line for line in lines), "\n".join(lines)
    found = [
        next((at for at, line in enumerate(lines) if fragment in line), None)
        for fragment in case.get("order", [])
    ]
    assert found == sorted(at for at in found if at is not None), "\n".join(lines)
    for fragment in case.get("absent", []):
        assert not any(fragment in line for line in lines), "\n".join(lines)
    assert [refusal.code for refusal in plan.refusals] == list(case.get("refusals", {}))
    for refusal in plan.refusals:
        assert case["refusals"][refusal.code] in refusal.line()
        assert refusal.remedy.endswith(".")
    if "notes" in case:
        assert sorted(note.subject for note in plan.notes) == sorted(case["notes"])
    reported = [f"{item.part} {item.subject}: {item.message}" for item in plan.waiting]
    assert len(reported) == len(case.get("waiting", [])), reported
    for text, wanted in zip(reported, case.get("waiting", []), strict=True):
        head, _, fragment = wanted.partition(": ")
        assert head in text.partition(": ")[0], reported
        assert fragment in text, reported
    if "reboot" in case:
        assert plan.reboot_after() == case["reboot"]
    if "lines" in case:
        transaction = next(
            action
            for action in plan.actions
            if action.kind in ("packages.transact", "packages.leave")
        )
        assert transaction.data["lines"] == case["lines"]


def test_every_domain_has_cases() -> None:
    assert len(FILES) >= 25, "the case tables were not found"
    folders = {path.parent.name for path in FILES}
    # The program on the node is a payload, which the cases of all domains have.
    domains = {path.stem for path in DOMAINS.glob("[a-z]*.py")} - {"program"}
    assert not domains - folders, (
        f"no case in tests/cases for the domains {sorted(domains - folders)}"
    )
    unknown = folders - domains - {"preflight", "removal", "rollback"}
    assert not unknown, (
        f"tests/cases has folders that are not named after a domain: {sorted(unknown)}"
    )


def test_a_converged_node_is_left_alone() -> None:
    wanted = document()
    plan = judge(wanted, converged(wanted), PROGRAM)
    assert plan.actions == ()
    assert plan.refusals == ()
    assert plan.reboot_after() == []


def test_the_order_of_parts_is_the_order_of_actions() -> None:
    wanted = document()
    parts = [action.part for action in judge(wanted, bare(wanted), PROGRAM).actions]
    assert parts == sorted(parts, key=PARTS.index)


def test_wanted_files_show_their_content_unless_disabled() -> None:
    assert Wanted("/x", "text", "kernel", "why").show is None
