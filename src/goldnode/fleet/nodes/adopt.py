"""Implementation of `goldnode adopt HOST`: survey a running node, read-only, and propose a class and a stack
for review.

The proposal is text with its doubts as comments. Nothing uses it before a person has put it into a
catalog.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from goldnode.catalog.load import Catalog
from goldnode.catalog.models import Driver, OperatingSystem, Stack, expand
from goldnode.classdoc.load import load_catalog
from goldnode.compat import rules
from goldnode.core.data import ansible_environment
from goldnode.core.errors import CatalogError, FactsError, GoldnodeError
from goldnode.core.extras import require
from goldnode.core.site import Site
from goldnode.facts import host as facts
from goldnode.fleet.nodes import runs, site_directory
from goldnode.inventory.selection import check_inventory
from goldnode.lock.resolve import upstream_part
from goldnode.node.program.survey import SCHEMA
from goldnode.node.state.family import FAMILIES
from goldnode.node.state.names import in_family

Survey = Mapping[str, Any]


class AdoptError(GoldnodeError):
    """A node cannot be looked at, or nothing can be proposed for it."""


@dataclass
class AdoptProposal:
    """Proposed files by their path in a catalog, notes for review, and the stack of the class."""

    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stack: str = ""


# Looking


def survey_host(
    host: str, inventory: str | None = None, options: Sequence[str] = ()
) -> dict[str, Any]:
    """Survey `host` through Ansible, with the connection variables of the inventory.

    Nothing is changed on it.

    :param host: a name of `inventory`, else an ssh destination.
    :param options: further options of ``ansible``.

    Raises AdoptError with the error of ssh.
    """
    user, at, name = host.rpartition("@")
    if inventory is not None:
        check_inventory(inventory)
    require("ansible")
    where = inventory or f"{name},"
    command = [
        str(Path(sys.executable).with_name("ansible")),
        "-i",
        where,
        name,
        "-m",
        "goldnode_survey",
        *options,
    ]
    if at:
        command += ["-u", user]
    environment = {
        **ansible_environment(),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }
    with tempfile.TemporaryDirectory() as tree:
        # One file per host, with the result as it came: what a callback prints is for people.
        done = subprocess.run(
            [*command, "--tree", tree], env=environment, capture_output=True, text=True, check=False
        )
        answer = Path(tree) / name
        result = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
    survey = result.get("survey")
    if not isinstance(survey, dict) or survey.get("schema") != SCHEMA:
        lines = [
            line
            for line in (result.get("msg") or done.stderr or done.stdout).splitlines()
            if line.strip()
        ]
        said = next(
            (line for line in lines if "Could not match" in line or "ERROR" in line),
            (lines or ["no host matched"])[-1],
        )
        said = re.sub(r"^\[?ERROR\]?[:!]? *", "", said)
        raise AdoptError(
            f"{host} cannot be surveyed: {runs.unwrapped(said).rstrip('.')}",
            remedy=_reached(said, host, inventory),
        )
    return survey


def _reached(said: str, host: str, inventory: str | None) -> str:
    """Return the remedy for a host that Ansible could not survey, for what it said."""
    if "Could not match" in said:
        return f"name a host of {inventory}"
    if "password" in said.lower() or "root" in said:
        return "give --become, with a user who needs no password for it"
    return f"try `ssh {host}`, or name its inventory with -i"


def read(path: Path) -> dict[str, Any]:
    """Read a survey that was kept in a file. Raises AdoptError for anything else."""
    try:
        survey = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise AdoptError(
            f"the survey cannot be read: {problem}",
            file=path,
            remedy="save it again with `goldnode adopt --save-survey`, or import without --surveys",
        ) from problem
    if not isinstance(survey, dict) or survey.get("schema") != SCHEMA:
        raise AdoptError(
            f"this is no survey of schema {SCHEMA}",
            file=path,
            remedy="save one with `goldnode adopt --save-survey`, or import without --surveys",
        )
    return survey


# Proposing


def propose(
    survey: Survey, name: str, catalog: Catalog, site: Site | None = None, *, prove: bool = True
) -> AdoptProposal:
    """Propose a class called `name`, and a stack if none of the catalog fits. Pure.

    :param prove: read the proposal with the catalog, and report its errors as notes.

    Raises AdoptError for a system that goldnode has no stacks for.
    """
    proposal = AdoptProposal()
    system = survey["os"]
    if system["id"] not in FAMILIES:
        known = " and ".join(name.capitalize() for name in FAMILIES)
        raise AdoptError(
            f"the node runs {system['id'] or 'an unknown system'}", remedy=f"goldnode knows {known}"
        )
    if not system["version"]:  # Debian's testing and unstable
        raise AdoptError(
            f"the node runs {system['id']} {system['codename']}, which is no release",
            remedy="a stack is for a release",
        )
    if survey["goldnode"]:
        proposal.notes.append(
            "The node already has a class of goldnode (/etc/goldnode/class.json): this would describe it "
            "again."
        )
    if survey["container"]:
        proposal.notes.append(
            "The node is a container: its kernel, GPUs and host settings are another machine's and were not read."
        )
    gpu = _gpu(survey, proposal)
    vendor = facts.gpu(gpu["model"]).vendor if gpu else None
    driver = _driver(survey, vendor, catalog, proposal)
    stack = _stack(survey, name=name, driver=driver, catalog=catalog, site=site, proposal=proposal)
    if gpu and not driver:
        proposal.notes.append(
            f"The class below is for no GPU, although the node has {gpu['count']} x {gpu['model']}: give it a stack and `gpu`."
        )
    if survey["secure_boot"]:
        proposal.notes.append(
            "Secure Boot is on: a module that DKMS builds must be signed by an enrolled key, or site.yml refuses the node."
        )
    fitting = _fitting(survey, stack, catalog)
    if fitting is not None:
        proposal.stack = fitting
        proposal.notes.append(
            f"Stack {fitting} of the catalog is for what this node has, so none is proposed. Its lock may be newer than the node."
        )
    else:
        proposal.stack = f"{name}_stack"
        proposal.files[f"stacks/{proposal.stack}.yml"] = _text(
            "stack", {"stack": proposal.stack, **stack}, "the node's present state, as intent"
        )
    document: dict[str, Any] = {
        "class": name,
        "description": "adopted from a running node",
        "backend": {"nvidia": "cuda", "amd": "rocm", None: "cpu"}[
            driver["vendor"] if driver else None
        ],
        "stack": proposal.stack,
    }
    if gpu and driver:
        document["gpu"] = gpu
        platform = _platform(survey, gpu, catalog, proposal)
        if platform:
            document["platform"] = platform
    policy = _policy(survey, str(vendor), proposal) if driver else {}
    host = _host(survey, proposal)
    if host:
        policy["host"] = host
    if policy:
        document["policy"] = policy
    baseline = _baseline(survey)
    if baseline:
        document["baseline"] = baseline
    proposal.files[f"classes/{name}.yml"] = _text(
        "class", document, "the node's present state; whether it should be so is your decision"
    )
    if prove and (
        driver or vendor is None
    ):  # without a driver there is nothing yet that could be proved
        _prove(proposal, catalog)
    return proposal


def name_for(survey: Survey) -> str:
    """Return a name for the class: of the GPU's model, else of the release."""
    gpu = gpu_of(survey)
    text = gpu["model"] if gpu else f"{survey['os']['id']}{survey['os']['version']}_cpu"
    return re.sub(r"[^a-z0-9]+", "_", f"adopted_{text}".lower())


def gpu_of(survey: Survey) -> dict[str, Any] | None:
    """Return the GPUs of a survey as {model, count}; None without one that the facts know."""
    return _gpu(survey, AdoptProposal())


def driver_of(survey: Survey) -> dict[str, Any] | None:
    """Return the first driver module of a survey: {module, version, license, …}; None without one."""
    return next((row for row in survey["driver"] if row["version"]), None)


def _gpu(survey: Survey, proposal: AdoptProposal) -> dict[str, Any] | None:
    gpus = survey["gpus"]
    if gpus is None:
        return None
    by_id = {identity: sku for sku, gpu in facts.gpus().items() for identity in gpu.pci_ids}
    # A model without facts keeps its PCI id, which the note below names.
    counted = Counter(by_id.get(row["id"], row["id"]) for row in gpus)
    unknown = [model for model in counted if model not in facts.gpus()]
    if unknown:
        proposal.notes.append(
            f"GPU {', '.join(unknown)} is not in the facts (facts/gpus.yml): add it there with its source."
        )
    known = [(model, count) for model, count in counted.most_common() if model not in unknown]
    if len(known) > 1:
        listed = ", ".join(f"{count} x {model}" for model, count in known)
        proposal.notes.append(
            f"GPUs of several models ({listed}): a class has one. The class below is of the first; the check would refuse this node."
        )
    return {"model": known[0][0], "count": known[0][1]} if known else None


def _driver(
    survey: Survey, vendor: str | None, catalog: Catalog, proposal: AdoptProposal
) -> dict[str, Any] | None:
    """Return the driver in the form of a stack. None without a GPU, or if no package owns the driver."""
    packages = survey["packages"]
    if survey["runfile"]:
        proposal.notes.append(
            f"{survey['runfile']}: the driver was installed by NVIDIA's .run file. Run `nvidia-uninstall` in a maintenance window before "
            "site.yml; until then site.yml refuses the node."
        )
    template = next(
        (
            entry.item.driver
            for entry in catalog.stacks.values()
            if entry.item.driver and entry.item.driver.vendor == (vendor or "nvidia")
        ),
        None,
    )
    if template is None:
        return None
    family = [
        name
        for name, row in packages.items()
        if in_family(name, template.family) and row["state"] == "installed" and ":" not in name
    ]
    modules = [row for row in survey["driver"] if row["module"].startswith("nvidia")]
    if vendor is None and not family:
        return None
    if vendor is None and survey["gpus"] == []:
        proposal.notes.append(
            f"There is a GPU driver ({', '.join(sorted(family)[:3])} …) and no GPU on the PCI bus. The class below is for no GPU."
        )
        return None
    if vendor == "amd":
        return {"vendor": "amd", "module": template.module, "library": template.library, "packages": sorted(family) or list(template.packages),
                "family": list(template.family)}  # fmt: skip
    if not modules or not family:
        proposal.notes.append(
            "No NVIDIA driver of packages was found. Choose a stack of the catalog for this GPU (`goldnode classes`)."
        )
        return None
    module = modules[0]
    if len(modules) > 1:
        told = ", ".join(f"{row['module']} {row['version']}" for row in modules)
        proposal.notes.append(
            f"Several driver modules are built for the kernel that runs ({told}); the stack is for the first."
        )
    version = module["version"]
    dkms = next(
        (row for row in survey["dkms"] if row["version"] == version and row["package"] in family),
        None,
    )
    if dkms is None:
        proposal.notes.append(
            f"{module['module']} {version} is not built by DKMS from an installed package: prebuilt, or by hand. State its package under `driver.dkms`."
        )
        return None
    same = sorted(name for name in family if upstream_part(packages[name]["version"]) == version)
    manual = sorted(name for name in family if name not in survey["automatic"])
    newer = sorted(name for name in manual if name not in same)
    wanted = [name for name in template.packages if name in family]
    asked = list(dict.fromkeys([dkms["package"], *wanted, *manual]))
    if newer:
        told = ", ".join(f"{name} {packages[name]['version']}" for name in newer[:5])
        proposal.notes.append(
            f"Of another version than the driver's {version}: {told}. A lock takes the newest each archive has."
        )
    return {
        "vendor": "nvidia",
        "branch": version.partition(".")[0],
        # NVIDIA's open modules have the license "Dual MIT/GPL", its proprietary ones "NVIDIA".
        "flavour": "open" if "GPL" in module["license"] else "proprietary",
        "version": version,
        "module": module["module"],
        "dkms": {"name": dkms["name"], "package": dkms["package"]},
        "library": template.library,
        "packages": asked,
        # Packages of the driver's own version move together, or its parts do not fit each other.
        "lockstep": [name for name in asked if name in same],
        "family": list(template.family),
    }


def _stack(
    survey: Survey,
    name: str,
    driver: dict[str, Any] | None,
    catalog: Catalog,
    site: Site | None,
    *,
    proposal: AdoptProposal,
) -> dict[str, Any]:
    system = survey["os"]
    # A survey of another root than / has no running kernel.
    running = survey["kernel"]["running"] or (survey["kernel"]["installed"] or [None])[-1]
    if running not in survey["kernel"]["installed"]:
        proposal.notes.append(
            f"Kernel {running or 'unknown'} is of no installed package. A stack has one of its archives: choose it there."
        )
    document: dict[str, Any] = {
        "description": f"adopted from a running {system['id']} {system['version']} node",
        "os": dict(system),
        "exercised": "none",
        "archives": _archives(survey, catalog, site, proposal),
        "kernel": {"release": running or "unknown"},
        "driver": driver,
    }
    runtime = survey["runtime"]
    engine = next(
        (
            name
            for name in ("docker.io", "docker-ce", "containerd", "containerd.io", "podman")
            if name in runtime
        ),
        None,
    )
    if engine:
        short = {"docker.io": "docker", "docker-ce": "docker", "containerd.io": "containerd"}.get(
            engine, engine
        )
        stated: dict[str, Any] = {"engine": short, "package": engine, "packages": [engine]}
        toolkit = [
            name
            for name in survey["packages"]
            if name.startswith(("nvidia-container-toolkit", "libnvidia-container"))
        ]
        if toolkit and driver:
            stated["toolkit"] = {
                "vendor": driver["vendor"],
                "packages": sorted(
                    toolkit, key=lambda item: (item != "nvidia-container-toolkit", item)
                ),
            }
        document["runtime"] = stated
    own = driver["dkms"]["name"] if driver and driver.get("dkms") else None
    others = [
        row
        for row in survey["dkms"]
        if row["name"] not in (own, *(driver_["module"] for driver_ in survey["driver"]))
    ]
    document["modules"] = [
        {"name": row["name"], "package": row["package"], "dkms": row["name"]}
        for row in others
        if row["package"]
    ]
    for row in others:
        state = "of no package, so it is not in the stack"
        if row["package"]:
            state = f"of package {row['package']}"
        proposal.notes.append(
            f"Out-of-tree module {row['name']} {row['version']} ({state}). Check its name for modinfo "
            "and the order of loading."
        )
    known = {own, *(row["name"] for row in others)} | {row["module"] for row in survey["driver"]}
    stray = [
        row["module"]
        for row in survey["loaded"] or []
        if row["module"] not in known and not row["module"].startswith("nvidia")
    ]
    if stray:
        proposal.notes.append(
            f"Loaded from outside the kernel's tree and not of DKMS: {', '.join(stray)}. Name the "
            "package that contains them."
        )
    if not document["modules"]:
        del document["modules"]
    family = driver["family"] if driver else []
    for pin in survey["pins"]:
        if (
            pin["package"] == "*"
            or pin["package"].startswith(("linux-", engine or "linux-"))
            or in_family(pin["package"], family)
        ):
            proposal.notes.append(
                f"{pin['file']}:{pin['line']}: pins {pin['package']}. Remove it before site.yml: the lock pins the stack set."
            )
    document["fence"] = sorted(
        name for name in FAMILIES[system["id"]].fence if name in survey["packages"]
    )
    document["end_of_life"] = _end_of_life(system, driver, catalog, proposal)
    return document


def _end_of_life(
    system: Mapping[str, str],
    driver: Mapping[str, Any] | None,
    catalog: Catalog,
    proposal: AdoptProposal,
) -> dict[str, str]:
    """Return the end of support: that of another stack of the same release, or of the driver's branch if it
    is earlier.

    Without a source there is no date.
    """
    for entry in catalog.stacks.values():
        stack = entry.item
        if (
            stack.os.id == system["id"]
            and stack.os.version == system["version"]
            and stack.driver is None
        ):
            last, source = min(
                [(stack.end_of_life.date, stack.end_of_life.source), *_branch_ends(driver)]
            )
            return {"date": last.isoformat(), "source": source}
    proposal.notes.append(
        "No stack of the catalog says until when this release is supported: the date below is a placeholder, correct it."
    )
    return {"date": "1970-01-01", "source": "not known"}


def _branch_ends(driver: Mapping[str, Any] | None) -> list[tuple[dt.date, str]]:
    try:
        branch = facts.branch(driver["branch"]) if driver and "branch" in driver else None
    except FactsError:  # the catalog reports it when it reads the proposal (_prove)
        return []
    if branch is None or branch.end_of_life is None:
        return []
    said = "; ".join(f"{date} by {origin}" for origin, date in branch.end_of_life_sources)
    return [
        (
            rules.last_day(branch.end_of_life),
            f"driver branch {branch.name} ends {branch.end_of_life} ({said})",
        )
    ]


def _archives(
    survey: Survey, catalog: Catalog, site: Site | None, proposal: AdoptProposal
) -> list[str]:
    chosen = []
    for row in survey["sources"]:
        name = next(
            (
                name
                for name, entry in catalog.archives.items()
                if _is(row, name, entry.item, survey, site)
            ),
            None,
        )
        if name:
            chosen.append(name)
        elif not row["suite"].endswith(("-updates", "-backports")):
            proposal.notes.append(
                f"{row['file']}:{row['line']}: source {row['uri']} {row['suite']} is no archive of the catalog. Declare it in archives.yml, or remove it."
            )
    return list(dict.fromkeys(chosen)) or list(FAMILIES[survey["os"]["id"]].archives)[:1]


def _is(row: Mapping[str, Any], name: str, archive: Any, survey: Survey, site: Site | None) -> bool:
    """Return whether a package source of the node is an archive of the catalog.

    The site's address, the mark in the path, or the suite decides.
    """
    own = site.archives[name].url if site is not None and name in site.archives else None
    release = OperatingSystem.model_validate(survey["os"])
    if own is not None and row["uri"].rstrip("/") == expand(own, release, archive.architectures):
        return True
    if archive.mark is not None:
        return archive.mark in row["uri"]
    suite = archive.suite.format(codename=survey["os"]["codename"])
    return row["suite"] == suite and bool(set(row["components"]) & set(archive.components))


def _fitting(survey: Survey, stack: Mapping[str, Any], catalog: Catalog) -> str | None:
    """Return a stack of the catalog with the same release, driver branch, flavour, module and engine."""
    driver = stack["driver"]
    if stack.get("modules"):
        return None
    for name, entry in sorted(catalog.stacks.items()):
        item: Stack = entry.item
        if item.os.model_dump() != survey["os"] or any(row.package for row in item.modules):
            continue
        if not set(item.archives) <= set(stack["archives"]):
            continue
        if _same_driver(item.driver, driver) and (
            item.runtime.engine if item.runtime else None
        ) == stack.get("runtime", {}).get("engine"):
            return name
    return None


def _same_driver(have: Driver | None, want: Mapping[str, Any] | None) -> bool:
    if have is None or want is None:
        return have is None and want is None
    keys = ("vendor", "branch", "flavour", "module")
    return all(getattr(have, key) == want.get(key) for key in keys)


def _platform(
    survey: Survey, gpu: Mapping[str, Any], catalog: Catalog, proposal: AdoptProposal
) -> str | None:
    fits = [
        name
        for name, entry in sorted(catalog.platforms.items())
        if entry.item.nvswitch == survey["nvswitch"]
        and entry.item.gpus
        and entry.item.gpus.count >= gpu["count"]
        and gpu["model"] in entry.item.gpus.models
    ]
    if fits:
        return fits[0]
    if survey["nvswitch"]:
        proposal.notes.append(
            "The node has NVSwitch and no platform of the catalog describes it: declare one, or the fabric manager is not installed."
        )
        return None
    return "generic" if "generic" in catalog.platforms else None


_ON = {"Enabled": True, "Disabled": False}


def _watts(text: str) -> int | None:
    try:
        return round(float(text))
    except ValueError:
        return None


def _policy(survey: Survey, vendor: str, proposal: AdoptProposal) -> dict[str, Any]:
    """Return the settings that nvidia-smi reports for every GPU, if all agree. A difference is reported,
    never averaged.
    """
    rows = survey["settings"]
    if vendor != "nvidia":
        proposal.notes.append(
            "Settings of AMD's GPUs are not read: the class declares no policy for them."
        )
        return {}
    if not rows:
        proposal.notes.append(
            "Settings of the GPUs could not be read (no nvidia-smi, or no driver): the class declares no policy for them."
        )
        return {}
    policy: dict[str, Any] = {}
    for key, field_, convert in (
        ("persistence_mode", "persistence_mode", _ON.get),
        ("power_limit_watts", "power.limit", _watts),
        ("ecc", "ecc.mode.current", _ON.get),
        (
            "compute_mode",
            "compute_mode",
            {
                "Default": "default",
                "Exclusive_Process": "exclusive_process",
                "Prohibited": "prohibited",
            }.get,
        ),
    ):
        values = {row.get(field_, "") for row in rows}
        # nvidia-smi puts what a GPU lacks in brackets: [N/A], [Not Supported].
        if any(text.startswith("[") or not text for text in values):
            continue
        if len(values) > 1:
            proposal.notes.append(
                f"The GPUs differ in {field_}: {', '.join(sorted(values))}. The class does not declare it."
            )
            continue
        value = convert(next(iter(values)))
        if value is None:
            proposal.notes.append(
                f"nvidia-smi says {next(iter(values))} of {field_}, which no policy can say. The class does not declare it."
            )
        elif not (key == "compute_mode" and value == "default"):
            policy[key] = value
    if any(row.get("mig.mode.current") == "Enabled" for row in rows):
        proposal.notes.append(
            "MIG is enabled on at least one GPU. Write its layout into policy.mig (nvidia-smi mig -lgi)."
        )
    return policy


def _host(survey: Survey, proposal: AdoptProposal) -> dict[str, Any]:
    host = survey["host"]
    if host is None:
        return {}
    policy: dict[str, Any] = {}
    if len(host["governors"]) == 1:
        policy["governor"] = host["governors"][0]
    elif host["governors"]:
        proposal.notes.append(
            f"CPU governors differ: {', '.join(host['governors'])}. The class does not declare one."
        )
    jumbo = {name: {"mtu": mtu} for name, mtu in host["mtu"].items() if mtu not in (0, 1500)}
    if jumbo:
        policy["network"] = jumbo
    if not host["swap"]:
        policy["swap"] = False
    if host["numa_balancing"] == "0":
        policy["numa_balancing"] = False
    if host["hugepages"] not in (None, "0"):
        told = f"{host['hugepages']} huge pages of the default size are reserved"
        proposal.notes.append(
            f"{told}: write them into policy.host.hugepages by their size (Hugepagesize in /proc/meminfo)."
        )
    return policy


def _baseline(survey: Survey) -> dict[str, Any]:
    """Return what a healthy node shows of memory and processors. Surveys of earlier releases have neither."""
    hardware = survey.get("hardware") or {}
    baseline: dict[str, Any] = {}
    if hardware.get("memory_mib"):
        # Rounded up: the kernel's total lacks what the firmware and the kernel itself reserve.
        baseline["memory"] = {"total_gib": -(-hardware["memory_mib"] // 1024)}
    if hardware.get("sockets"):
        baseline["cpu"] = {"sockets": hardware["sockets"]}
    return baseline


def _text(kind: str, document: Mapping[str, Any], said: str) -> str:
    head = f"# yaml-language-server: $schema=../../schemas/{kind}.json\n# Proposed by `goldnode adopt`: {said}.\n"
    return head + yaml.safe_dump(dict(document), sort_keys=False, width=110, allow_unicode=True)


def _prove(proposal: AdoptProposal, catalog: Catalog) -> None:
    """Read the proposal as a catalog and report its errors, which are those a person would see next."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in proposal.files.items():
            path = Path(directory) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            load_catalog([*catalog.directories, Path(directory)])
        except (CatalogError, FactsError) as error:
            proposal.notes.append(
                f"The catalog would refuse this proposal as it stands: {str(error).replace(directory + '/', '')}"
            )


def write_site(proposal: AdoptProposal, name: str, host: str, directory: Path) -> list[Path]:
    """Write a site directory with the class `name`, and `host` in it. Raises SiteDirectoryError for a file that exists."""
    user, _, machine = host.rpartition("@")
    contents = site_directory.SiteContents(name, (machine,), proposal.files, user or None)
    files = site_directory.files(contents, collection=site_directory.collection_installed())
    done = site_directory.write(directory, files, lambda path: False)
    return [directory / path for path in done.written]


def write(proposal: AdoptProposal, directory: Path) -> list[Path]:
    """Write the files into a catalog directory. Existing files are not overwritten. Raises AdoptError."""
    paths = {directory / name: text for name, text in proposal.files.items()}
    there = [path for path in paths if path.exists()]
    if there:
        raise AdoptError(
            "this file exists already",
            file=there[0],
            remedy="choose another name with --name, or another directory",
        )
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(paths)
