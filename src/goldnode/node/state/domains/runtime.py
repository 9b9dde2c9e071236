"""Domain of the container engine with the GPU toolkit.

Merges the configuration, and verifies it by asking the engine.

`seen.runtime` has these keys (it is empty if the class has no engine):

* daemon, config, toolkit_config: text of docker's daemon.json, containerd's config.toml, and the toolkit's
  config.toml; None if absent
* ours: {before, after}, texts of daemon.json around goldnode's last merge; None if there was no merge
* imported: the other files that config.toml imports, in order, as [{file, text, after}] (`containerd.imported`)
* podman: `podman.files`; absent if nothing reads TOML here
* dump: the CRI settings by `containerd config dump`, see `containerd.effective`; {error}; None if it was not asked
* tomllib: True if this Python can parse TOML
* unit: {load, active, enabled, result, pid, job (systemd is about to start it), kept (the gate has refused
  it), started (seconds since the epoch, or None)} of the engine's unit; None without systemd
* info: state of the running docker, see `dockerd.info`
* flags: docker's command line as it runs. command_line: the words of its unit, each with file and line
  (`docker_unit.command_line`)
* embedded: the containerd of k3s and RKE2, see `embedded.observed`
* written: time of the last change of containerd's files, in seconds since the epoch
* hook: time at which the toolkit's hook was installed, in seconds since the epoch
* gpu_containers: running containers that use a GPU, [{id, name, why}]
* holders: processes that use a GPU; only if a restart is wanted
* specs: CDI specs for the class's vendor in order of precedence, [{file, devices, missing, driver} or
  {file, error}]; `wrong` is there if the node's devices differ (`cdi.differences`)
* refresh: unit of the toolkit that refreshes its spec -> {unit: path of the unit file or None, enabled}
* left: files with settings of an earlier class, in which this class has no settings: path -> {before, after,
  now}, texts as in `record`
* gpus: True if GPUs can be queried here
* amd: {kfd, nodes: [{render, card}], groups: numbers}
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from ...effective import cdi as cdi_specs
from ...effective import containerd, docker_unit, embedded, podman
from ...effective import enginetext as text_of
from ...ground import gate_files
from ...ground.host import Host
from .. import dockerd
from ..actions import unmerge_file
from ..finding import ELSEWHERE, UNREAD, Finding, judge_item, place
from ..model import BOOT, DEVICE, Action, Note, Observed, Refusal, Waiting, declared
from ..observe import RECORD, gpu_holders, load_json
from ..remedy import PERSON, SITE, Remedy
from .files import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

    from ...ground.document import ClassDocument


PART = "container_runtime"
DAEMON = "/etc/docker/daemon.json"
CONTAINERD, DROP_IN = containerd.CONFIG, containerd.DROP_IN
CONTAINERD_PROGRAM = "/usr/bin/containerd"
PODMAN = podman.DROP_IN
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
AMD_SPEC = "/etc/cdi/goldnode-amd.json"
# The runtime and the hook of the NVIDIA toolkit, as its packages install them.
PROGRAM, HOOK = "/usr/bin/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime-hook"
# Highest precedence first: the default order is /etc/cdi, /var/run/cdi, and later directories win (CDI
# specification, "CDI Spec directories"). The toolkit's own units write SPEC.
SPEC, SPECS = "/var/run/cdi/nvidia.yaml", ("/var/run/cdi", "/etc/cdi")
REFRESH = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
UNITS = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
KIND = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
UNIT_OF_ENGINE = {"docker": "docker.service", "containerd": "containerd.service"}
# The first docker with `dockerd --validate` (Docker Engine release notes, 23.0).
VALIDATES = (23, 0)


def unit_name(document: ClassDocument) -> Optional[str]:
    """Return the unit of the class's engine, or None for podman, which has no daemon."""
    runtime = document.get("runtime")
    return UNIT_OF_ENGINE.get(runtime["engine"]) if runtime else None


# -- observe


def observe(host: Host, document: ClassDocument, seen: Observed) -> None:
    """Fill `seen.runtime`. Reads only."""
    runtime = document.get("runtime")
    left = _left(host, document)
    if left:
        seen.runtime["left"] = left
    if not runtime:
        return
    toolkit = runtime["toolkit"]
    facts: Dict[str, Any] = seen.runtime
    facts["daemon"] = facts["ours"] = None
    if runtime["engine"] == "docker":
        facts["daemon"] = host.text(DAEMON)
        facts["command_line"] = docker_unit.command_line(host)
        facts["ours"] = (load_json(host, RECORD) or {}).get("merged", {}).get(DAEMON)
    nvidia = toolkit is not None and toolkit["vendor"] == "nvidia"
    facts["toolkit_config"] = host.text(TOOLKIT) if nvidia else None
    facts["embedded"] = embedded.observed(host)
    if runtime["engine"] == "containerd":
        facts["config"] = host.text(CONTAINERD)
        facts["tomllib"] = text_of.toml_reader() is not None
        facts["imported"] = []
        if facts["tomllib"]:
            of = containerd.release(runtime["version"])
            facts["imported"] = containerd.imported(host, facts["config"], of)
        asked = host.live and has_settings(document)
        if asked and facts["config"] is not None and facts["tomllib"]:
            facts["dump"] = _dump(host)
        facts["written"] = max(
            (
                os.stat(host.located(name)).st_mtime
                for name in (CONTAINERD, DROP_IN)
                if host.exists(name)
            ),
            default=None,
        )
    if runtime["engine"] == "podman" and runtimes(document) and text_of.toml_reader() is not None:
        facts["podman"] = podman.files(host, containerd.release(runtime["version"]))
    facts["hook"] = os.stat(host.located(HOOK)).st_ctime if host.exists(HOOK) else None
    if toolkit:
        facts["specs"] = _specs(host, KIND[toolkit["vendor"]])
        facts["gpus"] = seen.simulated or place(seen) is None
        if nvidia:
            facts["refresh"] = {name: _refresh_unit(host, name) for name in REFRESH}
        elif place(seen) is None:
            facts["amd"] = _amd(host)
    unit = unit_name(document)
    facts["unit"] = _unit(host, unit) if host.live and unit else None
    if runtime["engine"] == "docker" and facts["unit"] and facts["unit"]["active"] == "active":
        # Query only a running daemon: a connection to its socket would start a stopped one.
        facts["info"] = dockerd.info()
        facts["flags"] = (
            (host.data(f"/proc/{facts['unit']['pid']}/cmdline") or b"")
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
            .strip()
        )
        facts["gpu_containers"] = dockerd.gpu_containers(facts["info"].get("default"))
    if facts["unit"] and reasons(document, seen)[0]:
        facts["holders"] = gpu_holders(host)


def _left(host: Host, document: ClassDocument) -> Dict[str, Any]:
    merged = (load_json(host, RECORD) or {}).get("merged", {})
    names = [
        name
        for name in (DAEMON, CONTAINERD, TOOLKIT)
        if name in merged and name not in configured(document)
    ]
    return {name: {**merged[name], "now": host.text(name)} for name in names}


def _unit(host: Host, name: str) -> Dict[str, Any]:
    keys = "LoadState,ActiveState,UnitFileState,Result,MainPID,Job,ExecMainStartTimestampMonotonic"
    rows = dict(
        line.split("=", 1)
        for line in host.run("systemctl", "show", name, "-p", keys).out.splitlines()
        if "=" in line
    )
    enabled = rows.get("UnitFileState")
    if enabled == "disabled":  # systemd shows what it loaded, and asks the files only here
        enabled = host.run("systemctl", "is-enabled", name).out.strip() or enabled
    # systemd's monotonic microseconds become wall clock time, to compare them with file times.
    began = int(rows.get("ExecMainStartTimestampMonotonic") or 0)
    started = (
        time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + began / 1e6 if began else None
    )
    return {
        "load": rows.get("LoadState"),
        "active": rows.get("ActiveState"),
        "enabled": enabled,
        "result": rows.get("Result"),
        "pid": int(rows.get("MainPID") or 0),
        "job": bool(rows.get("Job")),
        "started": started,
        "kept": host.exists(f"{gate_files.REFUSED}/{name}"),
    }


def _dump(host: Host) -> Optional[Dict[str, Any]]:
    """Return the CRI settings as containerd itself puts its files together; None without the program."""
    if not host.exists(CONTAINERD_PROGRAM):
        return None
    done = host.run(CONTAINERD_PROGRAM, "--config", CONTAINERD, "config", "dump", timeout=10)
    if done.rc != 0:
        return {"error": done.tail(1)}
    try:
        return containerd.of_dump(done.out) or {"error": "its dump has no CRI plugin"}
    except text_of.BrokenError as broken:
        return {"error": f"its dump is no TOML ({broken.message})"}


def _specs(host: Host, kind: str) -> List[Dict[str, Any]]:
    specs: List[Dict[str, Any]] = []
    for directory in SPECS:
        for name in [*host.glob(directory, "*.json"), *host.glob(directory, "*.yaml")]:
            text = host.text(name) or ""
            spec = cdi_specs.read_cdi(text)
            if spec.error and kind in text:
                specs.append({"file": name, "error": spec.error})
            if spec.kind != kind:
                continue
            # A spec shows its driver version only in the names of library files.
            versions = {
                match.group(1)
                for path in spec.paths
                for match in [re.search(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+\.[\d.]+)$", path)]
                if match
            }
            missing = [path for path in spec.paths if not (host.exists(path) or host.is_link(path))]
            row = {
                "file": name,
                "devices": spec.devices,
                "missing": missing,
                "driver": ", ".join(sorted(versions)) or None,
            }
            wrong = cdi_specs.differences(spec, host.root) if host.live else []
            specs.append({**row, "wrong": wrong} if wrong else row)
    return specs


def _refresh_unit(host: Host, name: str) -> Dict[str, Any]:
    file = next((f"{place}/{name}" for place in UNITS if host.exists(f"{place}/{name}")), None)
    return {"unit": file, "enabled": host.is_link(_wants(name))}


def _wants(name: str) -> str:
    return f"/etc/systemd/system/multi-user.target.wants/{name}"


def _amd(host: Host) -> Dict[str, Any]:
    """Return amdgpu's render nodes, each with its device's card, and the groups that may open them."""
    nodes = []
    for name in host.glob("/sys/class/drm", "renderD*"):
        driver = f"{name}/device/driver"
        if host.is_link(driver) and os.path.basename(os.readlink(host.located(driver))) == "amdgpu":
            cards = [
                os.path.basename(card) for card in host.glob(f"{name}/device/drm", "card[0-9]*")
            ]
            nodes.append(
                {
                    "render": f"/dev/dri/{os.path.basename(name)}",
                    **({"card": f"/dev/dri/{cards[0]}"} if cards else {}),
                }
            )
    rows = [line.split(":") for line in (host.text("/etc/group") or "").splitlines()]
    groups = sorted(int(row[2]) for row in rows if len(row) > 2 and row[0] in ("render", "video"))
    return {"kfd": host.exists("/dev/kfd"), "nodes": nodes, "groups": groups}


# -- wanted state


def configured(document: ClassDocument) -> Sequence[str]:
    """Return the foreign files in which this class has settings."""
    if not has_settings(document):
        return ()
    runtime = declared(document["runtime"])
    own = {"docker": (DAEMON,), "containerd": (CONTAINERD,)}.get(runtime["engine"], ())
    nvidia = runtime["toolkit"] and runtime["toolkit"]["vendor"] == "nvidia"
    return (*own, TOOLKIT) if nvidia else own


def has_settings(document: ClassDocument) -> bool:
    """Return whether the class has settings for the configuration of its engine."""
    runtime = document.get("runtime")
    return bool(runtime and (runtime["toolkit"] or runtime.get("cgroup_driver")))


def without_own_settings(path: str, texts: Mapping[str, Any], now: str) -> Optional[str]:
    """Return the text of a file without goldnode's settings, or None if nothing else is in it.

    containerd does not start if an imported file is missing. The import is therefore removed even
    if its line was edited since. Raises ValueError if the file is broken.
    """
    from .. import record as records  # start-up time: rarely needed

    text = records.unmerged_text(path, texts["before"], texts["after"], now)
    return (
        text_of.without_import(text, DROP_IN) if text is not None and path == CONTAINERD else text
    )


def given_back(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return actions that remove an earlier class's settings from files that this class does not use. Pure.

    This happens before the files that those settings refer to are removed. An engine that starts in
    between then still finds every file that its configuration names.
    """
    actions = []
    for path, texts in sorted(seen.runtime.get("left", {}).items()):
        try:
            text = None if texts["now"] is None else without_own_settings(path, texts, texts["now"])
        except ValueError:  # reported as a refusal
            continue
        if text != texts["now"]:
            why = "holds settings of an earlier class, and this one has none in it"
            actions.append(unmerge_file("node_class", path, why, texts["now"], text))
    return actions


def runtimes(document: ClassDocument) -> Dict[str, str]:
    """Return the GPU runtimes that the class adds to its engine: name -> program."""
    toolkit = declared(document["runtime"])["toolkit"]
    if toolkit is None or toolkit["vendor"] != "nvidia":
        return {}
    return {"nvidia": PROGRAM.rpartition("/")[2]}


def default(document: ClassDocument) -> Optional[str]:
    """Return the engine's default runtime, if the class makes the GPU runtime the default."""
    return "nvidia" if declared(document["runtime"])["default"] and runtimes(document) else None


def cdi(document: ClassDocument) -> bool:
    """Return whether containers of this class get their GPUs through CDI."""
    toolkit = declared(document["runtime"])["toolkit"]
    return toolkit is not None and toolkit["mode"] == "cdi"


def daemon_json(document: ClassDocument, seen: Observed) -> Optional[str]:
    """Return the wanted daemon.json, or None if no file is needed. Raises BrokenError and ConflictError."""
    have, own = seen.runtime.get("daemon"), seen.runtime.get("ours")
    if have is None or not own:
        result = text_of.merge_daemon(
            have or "", runtimes(document), default(document), cdi(document)
        )
        return None if have is None and not result else result
    from .. import record as records

    # Settings that goldnode added for an earlier class and that this one does not want are removed.
    there = text_of.read_json(have)
    base = records.unmerged_text(DAEMON, own["before"], own["after"], have)
    want = text_of.read_json(
        text_of.merge_daemon(base or "", runtimes(document), default(document), cdi(document))
    )
    return have if want == there else text_of.write_json(want, have)


def containerd_config(document: ClassDocument, seen: Observed) -> Tuple[str, str]:
    """Return the wanted config.toml and drop-in. Raises BrokenError and ConflictError."""
    have = seen.runtime.get("config")
    of = containerd.release(declared(document["runtime"])["version"])
    text = have if have is not None else f"version = {min(containerd.newest(of), 3)}\n"
    files = [containerd.ConfigFile(CONTAINERD, text, text_of.read_toml(text))]
    for row in seen.runtime.get("imported", ()):
        files.append(_import(row, of))
    wanted_text = text_of.with_import(text, files[0].document, DROP_IN)
    return wanted_text, containerd.drop_in(files, _containerd_wants(document), of)


def _containerd_wants(document: ClassDocument) -> containerd.Wants:
    """Return the settings that the class wants of containerd."""
    return containerd.Wants(
        PROGRAM if runtimes(document) else None,
        default(document) is not None,
        cdi(document),
        systemd_groups(document),
    )


def systemd_groups(document: ClassDocument) -> bool:
    """Return whether systemd makes the control groups of this class's pods."""
    return declared(document["runtime"]).get("cgroup_driver") == "systemd"


def _import(row: Mapping[str, Any], of: Tuple[int, int]) -> containerd.ConfigFile:
    """Return one imported file. Raises ConflictError if containerd would not start with it."""
    text = row["text"]
    if text is None and (of < (2, 0) or not row.get("after")):
        what = "does not start" if of < (2, 0) else "reads no import after it"
        raise text_of.ConflictError(
            f"{row['file']}, which it imports, does not exist: containerd {what}"
        )
    try:
        parsed = text_of.read_toml(text or "")
    except text_of.BrokenError as broken:
        raise text_of.ConflictError(
            f"{row['file']}:{broken.line}:{broken.column}, which it imports, is no TOML ({broken.message})"
        ) from None
    return containerd.ConfigFile(row["file"], text or "", parsed, bool(row.get("after")))


def wanted(document: ClassDocument, seen: Observed) -> List[Wanted]:
    """Return the files of goldnode that this domain wants. Pure."""
    if not has_settings(document):
        return []
    runtime = declared(document["runtime"])
    files = []
    engine = runtime["engine"]
    if engine == "containerd":
        # If nothing can be merged, a refusal explains it and the drop-in stays.
        drop_in = (seen.files.get(DROP_IN) or {}).get("content", "")
        with suppress(ValueError):
            if seen.runtime.get("tomllib", True):
                drop_in = containerd_config(document, seen)[1]
        if drop_in:
            files.append(
                Wanted(
                    DROP_IN,
                    drop_in,
                    PART,
                    f"gives containerd {_purpose(document)} beside what config.toml says",
                )
            )
    if engine == "podman" and runtimes(document):
        lines = f'# Written by goldnode.\n[engine.runtimes]\nnvidia = ["{PROGRAM}"]\n'
        if default(document):
            lines = lines.replace(
                "[engine.runtimes]", '[engine]\nruntime = "nvidia"\n\n[engine.runtimes]'
            )
        files.append(Wanted(PODMAN, lines, PART, "gives podman the GPU runtime"))
    if runtime["toolkit"] and runtime["toolkit"]["vendor"] == "amd" and cdi(document):
        amd = seen.runtime.get("amd")
        have = seen.files.get(AMD_SPEC)
        if amd and amd["kfd"] and amd["nodes"]:
            files.append(
                Wanted(
                    AMD_SPEC,
                    text_of.amd_cdi(amd["nodes"], amd["groups"]),
                    PART,
                    "names the GPUs to the engine (CDI)",
                )
            )
        elif have:  # missing GPUs are a finding, but no reason to delete the file
            files.append(
                Wanted(
                    AMD_SPEC,
                    have["content"],
                    PART,
                    "names the GPUs to the engine (CDI)",
                    have["mode"],
                )
            )
    return files


# -- differences


def reasons(document: ClassDocument, seen: Observed) -> Tuple[List[str], List[str]]:
    """Return why the running engine needs a restart, and why a reload is enough, as two lists."""
    runtime, facts = declared(document["runtime"]), seen.runtime
    unit = facts.get("unit")
    if not unit or unit["active"] != "active" or not has_settings(document):
        return [], []
    if runtime["engine"] == "containerd":
        # containerd does not report its configuration, so compare the times of the files and of its start.
        late = facts.get("written") and unit["started"] and facts["written"] > unit["started"]
        return (["its configuration changed after it was started"] if late else []), []
    info = facts.get("info") or {}
    if "error" in info or not info:
        return [], []
    restart, reload = [], []
    if cdi(document) and not info["cdi"]:
        restart.append("the running daemon has CDI switched off")
    if (
        runtimes(document)
        and facts.get("hook")
        and unit["started"]
        and facts["hook"] > unit["started"]
    ):
        # docker looks for the hook only when it starts, and supports `--gpus` from then on
        # (moby, daemon/nvidia_linux.go).
        restart.append("it was started before the toolkit was installed, and knows no `--gpus`")
    if info["default"] in runtimes(document) and not default(document) and not _sets_default(seen):
        # A reload applies new settings, but never resets removed ones (moby, daemon/reload_unix.go).
        restart.append(
            f"the running daemon's default runtime is {info['default']}, which nothing wants any more"
        )
    for name, program in runtimes(document).items():
        if str(info["runtimes"].get(name, "")).rpartition("/")[2] != program:
            reload.append(f"the running daemon knows no runtime {name}")
    if default(document) and info["default"] != default(document):
        reload.append(
            f"the running daemon's default runtime is {info['default']}, want {default(document)}"
        )
    return restart, reload


def _sets_default(seen: Observed) -> bool:
    """Return whether daemon.json or docker's command line sets a default runtime."""
    try:
        settings = text_of.read_json(seen.runtime.get("daemon") or "")
    except text_of.BrokenError:
        return True
    return "default-runtime" in settings or "--default-runtime" in seen.runtime.get("flags", "")


def in_use(seen: Observed) -> str:
    """Return the containers and processes that use a GPU, as text; empty if there are no such users."""
    who = [
        f"container {item['name']} ({item['id']}, {item['why']})"
        for item in seen.runtime.get("gpu_containers", ())
    ]
    boxed = {item["id"] for item in seen.runtime.get("gpu_containers", ())}
    for item in seen.runtime.get("holders", ()):
        if item.get("container") not in boxed:
            who.append(f"process {item['pid']} ({item['command']})")
    return "; ".join(who)


def plan(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Note], List[Waiting]]:
    """Return changes besides the files, notes, and changes that wait for a drain. Pure.

    Notes are items that cannot be checked here.
    """
    runtime = document.get("runtime")
    if not runtime:
        return [], [], []
    facts, toolkit = seen.runtime, runtime["toolkit"]
    actions: List[Action] = []
    notes: List[Note] = []
    if has_settings(document):
        actions += _configuration(document, seen)
    if toolkit:
        actions += _toolkit(document, seen)
        if not facts.get("gpus"):
            why = "no GPU can be asked for here, so no CDI spec is made or judged"
            notes.append(Note("runtime.cdi", why) if cdi(document) else _unseen())
        unsure = spec_unread(seen) or spec_conflict(seen) if cdi(document) else None
        if unsure:
            notes.append(Note("runtime.cdi", unsure))
        if toolkit["mode"] == "legacy" and toolkit["vendor"] == "amd":
            notes.append(
                Note(
                    "runtime.cdi",
                    f"{toolkit['why']}: containers get AMD's GPUs by --device /dev/kfd --device "
                    "/dev/dri only",
                )
            )
    for row in facts.get("embedded", ()) if toolkit else ():
        notes += [Note("runtime.embedded", text) for text in _embedded(document, row)]
    engine_actions, waiting = _engine(document, seen)
    actions += engine_actions
    if unit_name(document) and facts.get("unit") is None:
        notes.append(
            Note(
                "runtime.engine",
                "an image does not run: its engine is started, and asked, on the node",
            )
        )
    return actions, notes, waiting


def _embedded(document: ClassDocument, row: Mapping[str, Any]) -> List[str]:
    """Return what to know of a containerd that k3s or RKE2 runs: goldnode does not configure it."""
    engine, name = declared(document["runtime"])["engine"], row["name"]
    text = (
        f"pods of {name} run in its own containerd ({row['folder']}): goldnode configures {engine}"
    )
    if runtimes(document) and not row["nvidia"]:
        text += (
            f". Its config.toml has no runtime nvidia: {name} adds it at its next start where it finds "
            f"{PROGRAM}, without any template"
        )
    return [text, *row["faults"], *row["notes"]]


def _unseen() -> Note:
    return Note(
        "runtime.gpus", "no GPU can be asked for here: that a container gets one is not verified"
    )


def _configuration(document: ClassDocument, seen: Observed) -> List[Action]:
    """Return changes to the engine's own configuration, which belongs to the administrator.

    Refused changes are omitted.
    """
    engine = declared(document["runtime"])["engine"]
    try:
        if engine == "docker":
            name, have, want = DAEMON, seen.runtime.get("daemon"), daemon_json(document, seen)
        elif engine == "containerd" and seen.runtime.get("tomllib", True):
            name, have, want = (
                CONTAINERD,
                seen.runtime.get("config"),
                containerd_config(document, seen)[0],
            )
        else:
            return []
    except ValueError:
        return []
    if want is None or want == have:
        return []
    how = "the file is not there"
    if have is not None:
        how = "merged into what is there; keys, order and values of others stay"
    return [_configure(name, f"gives {engine} {_purpose(document)}; {how}", have, want)]


def _purpose(document: ClassDocument) -> str:
    """Return what the settings of the engine are for."""
    parts = ["the GPUs"] if declared(document["runtime"])["toolkit"] else []
    parts += ["systemd's control groups"] if systemd_groups(document) else []
    return " and ".join(parts)


def _configure(file: str, reason: str, have: Optional[str], want: str) -> Action:
    """Return the action that writes a merged file of the administrator."""
    data = {"content": want}
    return Action(PART, "runtime.config", file, reason, before=have, after=want, data=data)


def _toolkit(document: ClassDocument, seen: Observed) -> List[Action]:
    facts, toolkit = seen.runtime, declared(declared(document["runtime"])["toolkit"])
    actions: List[Action] = []
    text = facts.get("toolkit_config")
    if text is not None and text_of.toolkit_mode(text) != toolkit["mode"]:
        reason = f"mode {text_of.toolkit_mode(text) or 'unsaid'}, want {toolkit['mode']}: {toolkit['why']}"
        want = text_of.with_toolkit_mode(text, toolkit["mode"])
        actions.append(_configure(TOOLKIT, reason, text, want))
    if toolkit["vendor"] != "nvidia" or not cdi(document):
        return actions
    for name, unit in sorted((facts.get("refresh") or {}).items()):
        if unit["unit"] and not unit["enabled"]:
            why, to = "keeps the CDI spec up to date with the driver", unit["unit"]
            actions.append(Action(PART, "link", _wants(name), why, after=to, data={"to": to}))
    fault = spec_fault(document, seen)
    if fault and facts.get("gpus") and facts.get("hook"):
        actions.append(Action(PART, "runtime.cdi", SPEC, fault, DEVICE, data={"output": SPEC}))
    return actions


def spec_fault(document: ClassDocument, seen: Observed) -> Optional[str]:
    """Return the fault of the CDI spec that the engine would use, or None. A new spec has none of them.

    The first spec found takes precedence.
    """
    specs = seen.runtime.get("specs") or []
    if not specs:
        toolkit = declared(declared(document["runtime"])["toolkit"])
        return f"no CDI spec of {KIND[toolkit['vendor']]}"
    spec, driver = specs[0], document.get("driver")
    if "error" in spec:  # reported as unread: a new one may have the same form
        return None
    if spec["missing"]:
        names = ", ".join(spec["missing"][:3])
        return (
            f"{spec['file']} names {len(spec['missing'])} paths that do not exist "
            f"({names}{' …' if len(spec['missing']) > 3 else ''})"
        )
    want = driver.get("version") if driver else None
    if spec["driver"] and want and spec["driver"] != want:
        return f"{spec['file']} is of driver {spec['driver']}, want {want}"
    if spec.get("wrong"):
        return f"{spec['file']}: {'; '.join(spec['wrong'][:3])}"
    boards = [board.get("uuid") for board in seen.gpu_settings.get("gpus", {}).values()]
    gone = [name for name in spec["devices"] if name.startswith("GPU-") and name not in boards]
    if boards and gone:
        return f"{spec['file']} names {gone[0]}, which is not there"
    if not spec["devices"]:
        return f"{spec['file']} names no device"
    return None


def spec_unread(seen: Observed) -> Optional[str]:
    """Return why the CDI spec that the engine would use cannot be judged, or None."""
    first: Mapping[str, Any] = next(iter(seen.runtime.get("specs") or ()), {})
    return f"{first['file']} cannot be read: {first['error']}" if "error" in first else None


def spec_conflict(seen: Observed) -> Optional[str]:
    """Return the devices that two specs of one directory have, or None. Only a person can choose between them."""
    rows = [row for row in seen.runtime.get("specs") or () if "error" not in row]
    if len(rows) < 2:
        return None
    files = cdi_specs.winners([(row["file"], row["devices"]) for row in rows])
    for name, both in sorted(files.items()):
        if len(both) > 1:
            return f"the device {name} is in {' and in '.join(both)}: no container gets it"
    return None


def gate_closed(seen: Observed) -> str:
    """Return why the gate would block a restarted engine; empty if it would not.

    Faults of the runtime itself do not count, since the restart fixes them.
    """
    state = seen.units.get("gate") or {}
    others = [text for text in state.get("reasons", ()) if not str(text).startswith("runtime.")]
    if state.get("mode") != gate_files.BLOCK or state.get("open") is not False:
        return ""
    return "; ".join(others[:2])


def stopped_by_gate(unit: Mapping[str, Any]) -> bool:
    """Return whether the gate keeps the engine stopped.

    The gate removes its mark when it opens. An engine that is still stopped then was
    stopped by a person or program.
    """
    return bool(unit["result"] == "exec-condition" and unit.get("kept", True))


def _engine(document: ClassDocument, seen: Observed) -> Tuple[List[Action], List[Waiting]]:
    """Return actions that start, reload or restart the engine, whichever disrupts least.

    A restart waits until no GPU is in use.
    """
    name, unit = unit_name(document), seen.runtime.get("unit")
    engine = declared(document["runtime"])["engine"]
    if not name or not unit or unit["load"] != "loaded" or unit["enabled"] == "masked":
        return [], []
    actions: List[Action] = []
    if unit["enabled"] == "disabled":
        actions.append(
            Action(
                PART,
                kind="runtime.enable",
                target=name,
                reason="is not started at boot",
                before="disabled\n",
                after="enabled\n",
            )
        )
    if unit["active"] == "active":
        restart, reload = reasons(document, seen)
        users = in_use(seen)
        # Do not stop an engine that the gate would not allow to start again.
        closed = gate_closed(seen)
        if restart and not users and not closed:
            actions.append(
                Action(PART, "runtime.restart", name, "; ".join([*restart, *reload]), BOOT)
            )
        elif reload:
            actions.append(
                Action(
                    PART,
                    "runtime.reload",
                    name,
                    "; ".join(reload) + "; no container stops for that",
                    BOOT,
                )
            )
        if restart and users:
            text = f"{'; '.join(restart)}. {engine} restarts with the next run once the node is drained: {users}"
            return actions, [Waiting(PART, name, text)]
        if restart and closed:
            text = (
                f"{'; '.join(restart)}. {engine} restarts once the gate is open, which would keep it "
                f"down now: {closed}"
            )
            return actions, [Waiting(PART, name, text)]
    elif stopped_by_gate(unit):
        return actions, [
            Waiting(
                PART,
                name,
                f"{engine} is kept down by a condition of its unit (the gate of a bad verdict); "
                "the check starts it",
            )
        ]
    elif unit["active"] != "activating" and not unit["job"]:
        actions.append(
            Action(PART, "runtime.start", name, f"is {unit['active']}, want active", BOOT)
        )
    return actions, []


# -- refusals


def refusals(document: ClassDocument, seen: Observed, actions: Sequence[Action]) -> List[Refusal]:
    """Return the reasons of this domain to refuse all changes. Pure."""
    runtime = document.get("runtime")
    refused: List[Refusal] = []
    for path, texts in sorted(seen.runtime.get("left", {}).items()):
        try:
            without_own_settings(path, texts, texts["now"] or "{}")
        except ValueError as problem:
            message = (
                f"{path}: not JSON ({problem}), so the settings of an earlier class cannot be taken "
                "out of it."
            )
            refused.append(
                Refusal("merged-file", message, "Correct the file, or delete it, and run again.")
            )
    if not runtime:
        return refused
    users = "; ".join(
        f"{item['name']} ({item['id']}, {item['why']})"
        for item in seen.runtime.get("gpu_containers", ())
    )
    if users and any(action.kind == "packages.transact" for action in actions):
        refused.append(
            Refusal(
                "gpu-container",
                "Containers use the GPU, and the packages that are to be changed restart their "
                f"engine: {users}.",
                "Drain the node (stop those containers), then run again.",
            )
        )
    if (seen.runtime.get("unit") or {}).get("enabled") == "masked":
        refused.append(
            Refusal(
                "engine-masked",
                f"{unit_name(document)} is masked: an administrator has prevented its start.",
                f"Find out why, then `systemctl unmask {unit_name(document)}`, or use a class "
                "without a container engine.",
            )
        )
    return refused + (_unmergeable(document, seen) if has_settings(document) else [])


def _unmergeable(document: ClassDocument, seen: Observed) -> List[Refusal]:
    engine = declared(document["runtime"])["engine"]
    if engine == "podman":
        return _undone(document, seen)
    name = {"docker": DAEMON, "containerd": CONTAINERD}[engine]
    if engine == "containerd" and not seen.runtime.get("tomllib", True):
        return [
            Refusal(
                "no-toml",
                f"This node's Python reads no TOML (3.11 is the first that does), so {CONTAINERD} "
                "cannot be merged with care.",
                "Use an OS release with Python 3.11 or newer, or a stack whose engine is docker or podman.",
            )
        ]
    what = "JSON" if engine == "docker" else "TOML"
    try:
        if engine == "docker":
            daemon_json(document, seen)
        else:
            containerd_config(document, seen)
    except text_of.BrokenError as broken:
        where = f"{name}:{broken.line}:{broken.column}"
        return [
            Refusal(
                "engine-config-broken",
                f"{where}: this is no {what} ({broken.message}), and {engine} would not start with it.",
                "Correct the file, and run again; it was left as it is.",
            )
        ]
    except text_of.ConflictError as conflict:
        subject = name if engine == "docker" else "containerd's configuration"
        return [
            Refusal(
                "engine-config-conflict",
                f"{subject} says otherwise than class {document['class']}: {conflict}.",
                "Change that file, or declare it in the stack, and run again; it was left as it is.",
            )
        ]
    return _contradicted(document, seen) if engine == "docker" else []


def _undone(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse while another file of podman's undoes the drop-in, or stops podman."""
    release = containerd.release(declared(document["runtime"])["version"])
    why = podman.undone(
        [podman.PodmanFile(*row) for row in seen.runtime.get("podman", ())],
        release,
        PROGRAM,
        default=default(document) is not None,
    )
    text = f"podman's configuration says otherwise than class {document['class']}: {why}."
    remedy = "Change that file, or declare it in the stack, and run again; it was left as it is."
    return [Refusal("engine-config-conflict", text, remedy)] if why else []


def _contradicted(document: ClassDocument, seen: Observed) -> List[Refusal]:
    """Refuse while dockerd would not start: a key of daemon.json is a flag of its unit too."""
    words = [docker_unit.Word(*word) for word in seen.runtime.get("command_line") or ()]
    if not words:  # no unit file: what runs now
        words = [
            docker_unit.Word(word, "the running dockerd")
            for word in str(seen.runtime.get("flags") or "").split()
        ]
    settings = text_of.read_json(daemon_json(document, seen) or "{}")
    return [
        Refusal(
            "engine-config-conflict",
            f"{where} sets {key}, and so does {DAEMON}: dockerd does not start with both.",
            f"Move this setting from the command line (`systemctl cat docker`) into {DAEMON}, and run again.",
        )
        for key, where in docker_unit.contradicted(words, settings).items()
    ]


# -- findings


def findings(document: ClassDocument, seen: Observed) -> List[Finding]:
    """Return one finding per item that the class declares in this domain. Pure."""
    runtime = document.get("runtime")
    if not runtime:
        return []
    rows = [_engine_finding(document, seen)]
    if has_settings(document):
        rows.append(_config_finding(document, seen))
    if runtime["toolkit"]:
        if runtime["toolkit"]["vendor"] == "nvidia":
            rows.append(_toolkit_finding(document, seen))
        if cdi(document):
            elsewhere = (
                None if seen.runtime.get("gpus") else place(seen) or "no GPU can be asked for here"
            )
            rows.append(_spec_finding(document, seen, elsewhere))
    return rows


def _spec_finding(document: ClassDocument, seen: Observed, elsewhere: Optional[str]) -> Finding:
    want, unread, conflict = "its paths exist", spec_unread(seen), spec_conflict(seen)
    remedy = Remedy(
        "Run site.yml: it writes the spec again; containers that are started with a stale one fail.",
        SITE,
    )
    if elsewhere is None and unread:
        remedy = Remedy(
            f"Remove that file, then `nvidia-ctk cdi generate --output={SPEC}`.", PERSON
        )
        return Finding("runtime.cdi", UNREAD, want, unread, remedy)
    fault = spec_fault(document, seen)
    if conflict and not fault:
        fault, remedy = conflict, Remedy("Remove one of these files.", PERSON)
    return judge_item("runtime.cdi", want, fault or want, remedy, elsewhere)


def _numbers(version: Optional[str]) -> str:
    """Return the leading numbers of a version, which a package and its program have in common."""
    match = re.match(r"(?:\d+:)?([0-9]+(?:\.[0-9]+)*)", version or "")
    return match.group(1) if match else "unknown"


def _engine_finding(document: ClassDocument, seen: Observed) -> Finding:
    runtime, unit = declared(document["runtime"]), seen.runtime.get("unit")
    engine, version = runtime["engine"], runtime["version"]
    if not seen.live:
        return Finding("runtime.engine", ELSEWHERE, f"{engine} {version}", "an image does not run")
    installed = seen.version(runtime["package"]) or "not installed"
    want, have = f"{engine} {version}", f"{engine} {installed}"
    if unit_name(document):
        want, have = f"{want} active", f"{have} {(unit or {}).get('active') or 'unknown'}"
    down = _not_started(unit)
    if down:
        return Finding("runtime.engine", ELSEWHERE, want, f"{engine} {down}")
    info = seen.runtime.get("info") or {}
    if "error" in info:
        return Finding(
            "runtime.engine",
            UNREAD,
            want,
            f"{engine} does not answer: {info['error']}",
            Remedy(f"See `journalctl -u {engine}`.", PERSON),
        )
    if info and _numbers(info["version"]) != _numbers(version):
        have += f", and {info['version']} runs"
    return judge_item(
        "runtime.engine",
        want,
        have,
        Remedy(f"Run site.yml; see `journalctl -u {engine}` for why it does not run.", SITE),
    )


def _not_started(unit: Optional[Mapping[str, Any]]) -> Optional[str]:
    """Return why an engine that is not running is no fault of the node, or None.

    If it were a fault, a gate that blocks the engine could never open again.
    """
    if not unit or unit["active"] == "active":
        return None
    if unit["active"] == "activating" or unit["job"]:
        return "is about to start: the boot check comes before it"
    if not stopped_by_gate(unit):
        return None
    return "is kept down by a condition of its unit, the gate of a bad verdict"


def _config_finding(document: ClassDocument, seen: Observed) -> Finding:
    """Report whether the running engine knows the GPU runtime.

    docker is asked, containerd is judged by timestamps, and podman by its file.
    """
    parts = [f"runtime {name}" for name in runtimes(document)]
    parts += ["default"] if default(document) else []
    parts += ["CDI"] if cdi(document) else []
    parts += ["systemd's control groups"] if systemd_groups(document) else []
    engine = declared(document["runtime"])["engine"]
    want = f"{engine} knows {', '.join(parts) or 'nothing of GPUs'}"
    remedy = Remedy("Run site.yml; what it says is waiting needs a drained node.", SITE)
    try:
        changes = _configuration(document, seen)
        problems = [f"{action.target}: {action.reason}" for action in changes]
        blocked = _unmergeable(document, seen)
    except ValueError as problem:
        problems, blocked = [str(problem)], []
    problems += [refusal.message for refusal in blocked]
    problems += [fault for row in seen.runtime.get("embedded", ()) for fault in row["faults"]]
    for file in wanted(document, seen):
        have = seen.files.get(file.path)
        if not have or have["content"] != file.content:
            problems.append(f"{file.path} is {'not there' if not have else 'not as declared'}")
    restart, reload = reasons(document, seen)
    problems += restart + reload
    if not problems and seen.runtime.get("dump"):
        problems = _undumped(document, seen.runtime["dump"])
    elsewhere = None
    if not problems and engine != "podman":
        if not seen.live:
            elsewhere = "an image does not run, so no engine was asked"
        elif (seen.runtime.get("unit") or {}).get("active") != "active":
            elsewhere = f"{engine} does not run, so it was not asked"
        elif engine == "docker" and "error" in (seen.runtime.get("info") or {"error": ""}):
            return Finding(
                "runtime.config",
                UNREAD,
                want,
                f"{engine} does not answer",
                Remedy(f"See `journalctl -u {engine}`.", PERSON),
            )
    return judge_item("runtime.config", want, "; ".join(problems) or want, remedy, elsewhere)


def _undumped(document: ClassDocument, dump: Mapping[str, Any]) -> List[str]:
    """Return the settings of the class that containerd's own view of its files lacks."""
    if "error" in dump:
        return [f"`containerd config dump` fails: {dump['error']}"]
    nvidia, runc = dump["runtimes"].get("nvidia", {}), dump["runtimes"].get("runc", {})
    lacking = []
    if default(document) and dump["default"] != default(document):
        lacking.append(f"the default runtime {dump['default']}")
    if runtimes(document) and not nvidia:
        lacking.append("no runtime nvidia")
    elif runtimes(document) and nvidia["cgroup"] != runc.get("cgroup", False):
        lacking.append("another cgroup driver for the runtime nvidia than for runc")
    if systemd_groups(document) and not runc.get("cgroup", False):
        lacking.append("SystemdCgroup switched off")
    if cdi(document) and not dump["cdi"]:
        lacking.append("CDI switched off")
    return [f"`containerd config dump` shows {text}" for text in lacking]


def _toolkit_finding(document: ClassDocument, seen: Observed) -> Finding:
    toolkit = declared(declared(document["runtime"])["toolkit"])
    names = [
        package["name"]
        for package in document["packages"]
        if re.match(r"(lib)?nvidia-container", package["name"])
    ]
    versions = sorted({seen.version(name) or f"no {name}" for name in names})
    text = seen.runtime.get("toolkit_config")
    mode = text_of.toolkit_mode(text) if text is not None else f"no {TOOLKIT}"
    return judge_item(
        "runtime.toolkit",
        f"{toolkit['version']}, mode {toolkit['mode']}",
        f"{', '.join(versions)}, mode {mode or 'unsaid'}",
        Remedy("Run site.yml.", SITE),
    )
