"""Steps of a run, in order. Each takes the session and returns its outcome.

:meth:`Session.step` catches exceptions.
"""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import statistics
import time
import zipfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Optional, Tuple, cast

from goldnode.node.__main__ import SEAL
from goldnode.node.ground.errors import NodeError
from goldnode.node.ground.json_lines import as_dict, as_list
from goldnode.node.ground.text import phrase
from goldnode.node.probe import smi
from goldnode.node.state.finding import Finding
from goldnode.node.verdict import check as checking
from goldnode.prove import changes, classes
from goldnode.prove.latency import SAMPLES, SECONDS, spread
from goldnode.prove.session import (
    FAILED,
    PASSED,
    SKIPPED,
    UNCHECKED,
    Json,
    NotChecked,
    Session,
    StepOutcome,
    Stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from goldnode.node.ground.document import ClassDocument

OWN_CLASS = Path("/etc/goldnode/class.json")
STARTS = 5  # repetitions of each timed start …
ENOUGH = (
    # … unless they have already taken this many seconds. Without persistence mode, each start may
    # initialise every GPU.
    15.0
)
SMI_LIMIT = 60.0  # seconds; nvidia-smi hangs where the driver does
# Values that nvidia-smi and NVML report in the same form and that do not change by themselves, as
# paths in a GPU of a capture.
ALIKE = (
    "name",
        "pci_id"
    ,
        "vbios"
    , "uuid", "serial", "memory.total_mib", "power.limit_w", "power.max_w", "ecc.current", "mig.current",
    "persistence_mode", "compute_mode", "pcie.width.max",
)  # fmt: skip


def _need(session: Session) -> Json:
    """Return the capture, which has at least one GPU. Raises NotChecked if further steps have nothing to
    check.
    """
    if session.children.stuck and not session.hangs:
        session.hangs = f"process {session.children.stuck[0]} of an earlier step cannot be killed"
    if session.hangs:
        raise NotChecked(f"it would call the driver, which hangs ({session.hangs})")
    if session.capture is None or not classes.gpus(session.capture):
        raise NotChecked("no NVIDIA GPU was seen")
    return session.capture


# -- inventory


def leftovers(session: Session) -> StepOutcome:
    """Restore the settings of an earlier run that was killed."""
    rows = changes.read_restore_file(session.settings.state)
    if rows is None:
        return StepOutcome(SKIPPED, "no earlier run left settings to put back")
    with session.shield():
        refused = changes.back(session, rows)
        if not refused:
            changes.forget(session.settings.state)
    if refused:
        return StepOutcome(
            FAILED,
            f"an earlier run was killed, and its settings cannot be put back: {'; '.join(refused)}",
        )
    return StepOutcome(PASSED, f"an earlier run was killed; its {len(rows)} settings were put back")


def versions(session: Session) -> StepOutcome:
    """Record the versions of goldnode, Python, kernel and system. The capture has the driver's."""
    answer = session.node("--version", limit=30)
    versions = session.versions
    versions.update(
        program=answer.out.decode(
            "utf-8"
        ,
            "replace"
        ).strip() or answer.last(), commit=session.carried.commit, carried_wheels=session.carried.wheels,
        python=platform.python_version(), kernel=platform.release(), machine=platform.machine(), libc=(
            " "
        ).join(platform.libc_ver()),
        root=os.geteuid() == 0, cpus=os.cpu_count(), load=_load(),
    )  # fmt: skip
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    versions["os"] = fields.get("PRETTY_NAME", "unknown").strip('"')
    session.output.json("versions.json", versions)
    if answer.rc != 0 or answer.fault:
        return StepOutcome(
            FAILED, f"goldnode-node does not start here: {answer.fault or answer.last()}"
        )
    return StepOutcome(
        PASSED,
        f"{versions['os']}, kernel {versions['kernel']}, Python {versions['python']}, "
        f"{'root' if versions['root'] else 'not root'}",
    )


def _load() -> List[float]:
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return []


def capture(session: Session) -> StepOutcome:
    """Capture the idle machine."""
    capture = _capture(session, "capture.json")
    session.capture = capture
    boards = classes.gpus(capture)
    driver = capture.get("driver") or {}
    session.versions.update(
        driver=driver.get("reported"),
        **{key: driver.get(key) for key in ("flavour", "cuda", "nvml")},
    )
    session.versions["gpus"] = [f"{row.get('name')} ({row.get('pci_id')})" for row in boards]
    session.output.json("versions.json", session.versions)
    error = capture.get("gpu_error")
    if isinstance(error, dict) and (
        "hangs" in str(error.get("text")) or "did not answer" in str(error.get("text"))
    ):
        session.hangs = str(error["text"])
        return StepOutcome(FAILED, f"the driver hangs: {error['text']}")
    if not boards:
        detail = f": {error['text']}" if isinstance(error, dict) else ""
        raise NotChecked(
            f"there is no NVIDIA GPU here, or its driver is not loaded{detail}. Look at `nvidia-smi` and "
            "`lspci -d 10de:`"
        )
    faults = [
        section
        for section, value in capture.items()
        if isinstance(value, dict) and "fault" in value
    ]
    figures = {"gpus": len(boards), "sections with a fault": len(faults)}
    detail = ", ".join(dict.fromkeys(str(row.get("name")) for row in boards))
    if error is not None:
        return StepOutcome(
            UNCHECKED,
            f"{len(boards)} x {detail}, and the GPU library answers in part: {error.get('text')}",
            figures,
        )
    return StepOutcome(
        PASSED,
        f"{len(boards)} x {detail}, driver {driver.get('reported')} ({driver.get('flavour')})",
        figures,
    )


def _capture(session: Session, name: str) -> Json:
    words = ["capture"]
    if session.chosen is not None:
        words += ["--class", str(session.temporary / "class.json")]
    capture = session.node(*words).json("goldnode-node capture")
    session.redactor.learn(capture)
    session.simulated = session.simulated or bool(capture.get("simulated"))
    session.output.json(name, {**capture, "anonymous": True})
    return capture


def nvidia_smi(session: Session) -> StepOutcome:
    """Compare the output of `nvidia-smi -q -x`, as goldnode parses it, with NVML."""
    capture = _need(session)
    if shutil.which("nvidia-smi") is None:
        return StepOutcome(SKIPPED, "nvidia-smi is not here")
    done = session.children.run(["nvidia-smi", "-q", "-x"], session.left(SMI_LIMIT))
    if done.fault or done.rc != 0:
        raise NotChecked(f"nvidia-smi -q -x: {done.fault or done.last()}")
    text = done.out.decode("utf-8", "replace")
    session.redactor.learn_text(text)
    session.output.text("nvidia-smi.xml", text)
    try:
        parsed = smi.parse(done.out, "nvidia-smi -q -x")
    except NodeError as problem:
        return StepOutcome(FAILED, f"goldnode cannot read it: {problem}")
    session.redactor.learn(parsed)
    rows = {row.get("address"): row for row in parsed["gpus"]}
    differ, compared = [], 0
    for gpu in classes.gpus(capture):
        other = rows.get(gpu.get("address"), {})
        for path in ALIKE:
            one, two = _at(gpu, path), _at(other, path)
            if one is None or two is None:
                continue
            compared += 1
            if one != two:
                differ.append(f"{gpu.get('address')} {path}: NVML {one}, nvidia-smi {two}")
    figures = {"values compared": compared, "differ": differ}
    if differ:
        return StepOutcome(
            FAILED, f"{len(differ)} of {compared} values differ: {'; '.join(differ[:3])}", figures
        )
    if not compared:
        raise NotChecked("no GPU of the capture is in its output")
    return StepOutcome(PASSED, f"{compared} values agree with NVML's", figures)


def _at(gpu: Json, path: str) -> Any:
    """Return a plain value at a path of a capture's GPU; None for a fault or a missing one."""
    value: Any = gpu
    for key in path.split("."):
        value = as_dict(value).get(key)
    return None if isinstance(value, dict) else value


# -- judging


def check(session: Session) -> StepOutcome:
    """Judge the capture by the detected class, and run the check itself on this machine."""
    capture = _need(session)
    own = _own_class()
    chosen = session.chosen = classes.choose(capture, session.carried.facts, own)
    (session.temporary / "class.json").write_text(json.dumps(chosen.document), encoding="utf-8")
    session.output.json(
        "class.json",
        {key: value for key, value in chosen.document.items() if key not in ("site", "serve")},
    )
    session.notes.append(f"Judged by: {chosen.why}.")
    verdict = classes.judge(chosen.document, capture)
    session.output.json("verdict.json", verdict)
    outcome = _hardware_outcome(verdict, chosen)
    words = ["--class", str(session.temporary / "class.json")] if own is None else []
    done = session.node("check", *words, "--no-write", "--no-gate", "--format", "json")
    live = done.json("goldnode-node check")
    session.output.json("check.json", live)
    crash = [row["got"] for row in live.get("findings", []) if row["id"] == "check"]
    if crash:
        return StepOutcome(
            FAILED,
            f"the check cannot be made here: {crash[0]}; by the capture alone: {outcome.reason}",
            outcome.figures,
        )
    apart = _apart(verdict, live)
    figures = {
        **outcome.figures,
        "exit code of the check": done.rc,
        "findings that differ from the capture's": apart,
    }
    return replace(outcome, figures=figures)


def _own_class() -> Optional[Json]:
    """Return the class document that goldnode has installed here; None if missing or unreadable."""
    try:
        document = json.loads(OWN_CLASS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _hardware_outcome(verdict: Json, chosen: classes.ChosenClass) -> StepOutcome:
    """Return a verdict about hardware as an outcome."""
    rows = verdict["findings"]
    bad = classes.wrong(rows)
    unseen = [row for row in rows if checking.unknown(_finding(row))]
    figures = {
        "kind of class": chosen.kind,
        "status": verdict["status"],
        "counts": verdict["counts"],
        "wrong": bad,
    }
    if bad:
        return StepOutcome(
            FAILED,
            f"{verdict['status']}: {'; '.join(bad[:4])}{' …' if len(bad) > 4 else ''}",
            figures,
        )
    if unseen:
        listed = "; ".join(f"{row['id']}: {row['got']}" for row in unseen[:3])
        return StepOutcome(
            UNCHECKED,
            f"{verdict['counts']['match']} findings match, {len(unseen)} could not be checked: {listed}",
            figures,
        )
    if chosen.kind == classes.UNKNOWN:
        return StepOutcome(
            UNCHECKED, f"{chosen.why}; the {len(rows)} findings that need no model match", figures
        )
    return StepOutcome(
        PASSED,
        f"{verdict['status']}: {verdict['counts']['match']} findings match; {chosen.why}",
        figures,
    )


def _finding(row: Json) -> Any:
    return Finding(row["id"], row["outcome"], row["expected"], row["got"], severity=row["severity"])


def _apart(verdict: Json, live: Json) -> List[str]:
    """Return the hardware findings that differ between the machine's own check and the judgement of its
    capture.

    Some change by themselves.
    """
    one = {(row["id"], row["subject"]): row["outcome"] for row in verdict["findings"]}
    two = {(row["id"], row["subject"]): row["outcome"] for row in classes.hardware(live)}
    keys = sorted({*one, *two}, key=str)
    return [
        f"{key[0]} {key[1] or ''}: {one.get(key)} / {two.get(key)}"
        for key in keys
        if one.get(key) != two.get(key)
    ]


def policy(session: Session) -> StepOutcome:
    """Verify that the exported policy matches, and that each changed setting is detected. Sets nothing."""
    capture = _need(session)
    first = session.first = changes.read(session)
    session.output.json("settings.json", changes.without_processes(first))
    exported = session.node("policy", "export", "--format", "json").json(
        "goldnode-node policy export"
    )
    chosen = session.chosen or classes.choose(capture, session.carried.facts, None)
    # Without overrides of single GPUs, which would win over the values that differ for all.
    alike = {key: value for key, value in exported.get("policy", {}).items() if key != "overrides"}
    other, left = _other(first)
    met = _policy(chosen.document, capture, exported.get("policy", {}))
    missed = _policy(chosen.document, capture, {**alike, **other})
    differ = [row for row in met if row["outcome"] == "mismatch"]
    seen = sorted(row["id"] for row in missed if row["outcome"] == "mismatch")
    plan = _plan(session, {**chosen.document, "policy": {**alike, **other}})
    planned = Counter(" ".join(line.split()[:2]) for line in plan)
    session.output.json(
        "policy.json",
        {
            "exported": exported,
            "dry_run": other,
            "left_alone": left,
            "as_exported": met,
            "findings": missed,
            "plan": plan,
        },
    )
    figures = {
        "settings of the dry run": other,
        "left alone": left,
        "found to differ": seen,
        "planned": dict(planned),
    }
    if differ:
        return StepOutcome(
            FAILED,
            f"the policy as exported is not met: {'; '.join(classes.wrong(differ))}",
            figures,
        )
    lacking = sorted(
        f"policy.{key}"
        for key in other
        if not any(f"{name}.".startswith(f"policy.{key}.") for name in seen)
    )
    if lacking:
        return StepOutcome(
            FAILED, f"a policy that differs is taken for met: {', '.join(lacking)}", figures
        )
    return StepOutcome(
        PASSED,
        f"{len(met)} settings as exported; {len(seen)} that differ were found, nothing was set",
        figures,
    )


def _other(gpus: Json) -> Tuple[Json, Json]:
    """Return a policy that differs from a reading in everything its GPUs support, ECC and MIG included.

    The second value has the skipped settings with reasons.
    """
    boards = [gpu for gpu in gpus.values() if not changes.is_fault(gpu)]
    if not boards:
        raise NotChecked("no GPU reports its settings")
    other: Json = {}
    left: Json = {}
    for change in changes.proposals({"0": boards[0]}):
        if change.other is None:
            left[change.field] = change.why
        elif change.field == "clocks":
            other["clocks"] = {key: change.other[key] for key in ("graphics_mhz", "memory_mhz")}
        else:
            other[change.field] = (
                int(change.other) if change.field == "power_limit_watts" else change.other
            )
    for field in ("ecc", "mig"):
        value = boards[0].get(field)
        if changes.is_fault(value):
            left[field] = f"this driver does not show it ({(value or {}).get('text', 'no value')})"
        else:
            other[field] = (
                not value["pending"] if field == "ecc" else {"enabled": not value["pending"]}
            )
    return other, left


def _policy(document: Json, capture: Json, declared: Json) -> List[Json]:
    """Return the findings about a policy, from a capture."""
    rows = checking.of_record(cast("ClassDocument", {**document, "policy": declared}), capture)
    return [
        {**row._asdict(), "evidence": list(row.evidence)}
        for row in rows
        if row.id.startswith("policy.")
    ]


def _plan(session: Session, document: Json) -> List[str]:
    """Return the settings that a run would change on this machine as lines; without a plan, the reason."""
    place = session.temporary / "policy.json"
    place.write_text(json.dumps(document), encoding="utf-8")
    try:
        planned = session.node("plan", "--class", str(place), "--format", "json").json(
            "goldnode-node plan"
        )
    except NotChecked as problem:
        return [f"no plan: {problem}"]
    rows = planned.get("actions", [])
    return [
        f"{row.get('kind')} {row.get('target', '')}".strip()
        for row in rows
        if row.get("part") == "gpu_policy"
    ]


# -- timing


def latency(session: Session) -> StepOutcome:
    """Measure NVML calls, and the process that reads the GPUs for a capture."""
    _need(session)
    samples, seconds = (20, 0.1) if session.settings.short else (SAMPLES, SECONDS)
    command = session.own(
        "goldnode.prove.latency", str(samples), str(seconds), append=[str(session.carried.node)]
    )
    timings = session.children.run(command, session.left(90)).json("the timing of NVML")
    if "error" in timings:
        raise NotChecked(f"NVML cannot be used: {timings['error']}")
    wall, inits = [], []
    asking = [*session.python(), str(session.carried.node), "device", "capture", "settings"]
    for _ in range(_starts(session)):
        done = session.children.run(asking, session.left(90))
        if done.fault or done.rc != 0:
            raise NotChecked(f"the process that asks the GPU library: {done.fault or done.last()}")
        wall.append(1e3 * done.seconds)
        inits.append(json.loads(done.out.strip().splitlines()[-1]).get("init_ms"))
        if sum(wall) > 1e3 * ENOUGH:
            break
    timings["capture_process_ms"] = spread(wall)
    timings["capture_process_init_ms"] = [value for value in inits if value is not None]
    timings["units"] = {"calls": "µs", "capture_process": "ms"}
    session.output.json("latency.json", timings)
    medians = ((row["p50"], name) for name, row in timings["calls"].items() if "p50" in row)
    slow = max(medians, default=(0, "none"))
    reason = (
        f"reading all takes {timings['capture_process_ms']['p50']:.0f} ms (median of {len(wall)}); the "
        f"slowest call is `{slow[1]}`, {slow[0]:.0f} µs"
    )
    return StepOutcome(PASSED, reason, timings)


def _starts(session: Session) -> int:
    return 2 if session.settings.short else STARTS


def timing(session: Session) -> StepOutcome:
    """Measure a check, compared with the start of the interpreter and a bare `nvidia-smi -q -x`."""
    _need(session)
    if session.chosen is None:
        raise NotChecked("there is no class document to check against")
    node, document = str(session.carried.node), str(session.temporary / "class.json")
    words = ["check", "--class", document, "--no-write", "--no-gate", "--format", "json"]
    cold = _fresh_copy(Path(node), session.temporary)
    unpacked = _unpacked_program(session, Path(node))
    runs: Dict[str, List[str]] = {
        "floor: python3 -I -S -c pass": [*session.python(), "-c", "pass"],
        "check, first start of a fresh copy": [*session.python(), str(cold), *words],
        "check, warm": [*session.python(), node, *words],
        "check --cached, the answer alone": [
            *session.python(),
            "-c",
            CACHED,
            str(unpacked[0]),
            str(unpacked[1]),
        ],
    }
    if shutil.which("nvidia-smi"):
        runs["nvidia-smi -q -x"] = ["nvidia-smi", "-q", "-x"]
    taken: Dict[str, List[float]] = {name: [] for name in runs}
    for turn in range(_starts(session)):
        for name, command in runs.items():
            # A copy is fresh only once, so its first start is measured in the first turn alone.
            if turn and (
                name == "check, first start of a fresh copy" or sum(taken[name]) > 1e3 * ENOUGH
            ):
                continue
            done = session.children.run(command, session.left(60))
            # The status of a check is its verdict, 0 to 4, and no failure to run.
            if done.fault or done.rc not in (0, 1, 2, 3, 4) or b"Traceback" in done.err:
                raise NotChecked(f"{name}: {done.fault or done.last()}")
            if name.startswith("check") and VERDICT not in done.out:  # a refusal takes less time
                raise NotChecked(f"{name}: it printed no verdict: {done.last()}")
            taken[name].append(1e3 * done.seconds)
    floor = statistics.median(taken["floor: python3 -I -S -c pass"])
    rows = {
        name: {**spread(values), "to_floor": round(statistics.median(values) / floor, 2)}
        for name, values in taken.items()
    }
    session.output.json("timing.json", {"unit": "ms of wall time", "runs": rows, "load": _load()})
    warm = rows["check, warm"]
    reason = (
        f"a check takes {warm['p50']:.0f} ms, {warm['to_floor']:.1f} times the start of Python "
        f"({floor:.0f} ms)"
    )
    if "nvidia-smi -q -x" in rows:
        reason += f"; nvidia-smi -q -x takes {rows['nvidia-smi -q -x']['p50']:.0f} ms"
    return StepOutcome(PASSED, reason, rows)


VERDICT = b"goldnode.verdict/"
# Answers from the verdict kept below a root, as `check --cached` does once the program has unpacked
# itself.
CACHED = "import sys; sys.path.insert(0, sys.argv[1]); from goldnode.node.verdict import current; sys.exit(current.answer('json', False, sys.argv[2]))"


def _fresh_copy(node: Path, temporary: Path) -> Path:
    """Return a sound copy of the program with another digest, so that it has no compiled copy yet."""
    copy = temporary / "fresh-copy"
    shutil.copyfile(node, copy)
    # A zip file ends with its comment; the last digits are the program's checksum of itself.
    with zipfile.ZipFile(copy, "a") as archive:
        archive.comment = str(time.time_ns()).encode() + b"0" * SEAL
    data = copy.read_bytes()[:-SEAL]
    copy.write_bytes(data + b"%0*x" % (SEAL, zlib.crc32(data)))
    return copy


def _unpacked_program(session: Session, node: Path) -> Tuple[Path, Path]:
    """Return the unpacked program, and a root in which the last check's verdict is valid."""
    unpacked, root = session.temporary / "unpacked", session.temporary / "root"
    with zipfile.ZipFile(node) as archive:
        archive.extractall(unpacked)
    for name, source in (
        ("etc/goldnode/class.json", session.chosen.document),
        ("run/goldnode/verdict.json", session.output.written.get("check.json")),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(source), encoding="utf-8")
    (root / "proc").symlink_to("/proc")
    return unpacked, root


# -- load


def load(session: Session) -> StepOutcome:
    """Keep all GPUs busy; meanwhile capture, judge and diagnose."""
    _need(session)
    size = 48 if session.settings.short else 0
    command = session.own("goldnode.prove.load", str(size), site=True)
    process = session.children.start(command, _libraries(session))
    try:
        ready = _line(process, session.left(120))
        if not ready.get("ready"):
            raise NotChecked(f"no load can be made: {ready.get('error') or 'its process ended'}")
        session.simulated = session.simulated or any(
            str(name).startswith("SIMULATED") for name in ready["gpus"]
        )
        time.sleep(0.2 if session.settings.short else 5)
        session.loaded = _capture(session, "capture-load.json")
        words = (
            ["--class", str(session.temporary / "class.json")] if session.chosen is not None else []
        )
        diagnosed = session.node("diagnose", "--format", "json", *words)
        report = diagnosed.json("goldnode-node diagnose")
        # End of input ends the load. `communicate` of `Children.end` must not see the closed pipe.
        cast("IO[bytes]", process.stdin).close()
        process.stdin = None
        loaded = _line(process, session.left(60))
    finally:
        session.children.end(process)
    session.output.json("diagnose.json", report)
    session.output.json("load.json", loaded)
    return _under_load(session, loaded, report)


def _under_load(session: Session, loaded: Json, report: Json) -> StepOutcome:
    """Return the observations under load as an outcome."""
    rows = classes.gpus(session.loaded or {})
    busy = [
        {"address": row.get("address"), **{key: _at(row, path) for key, path in LOADED.items()}}
        for row in rows
    ]
    figures: Json = {
        "by": loaded.get("by"),
        "tflops": [row["tflops"] for row in loaded.get("gpus", [])],
        "gpus": busy,
    }
    figures["diagnose"] = {"bottleneck": report.get("bottleneck"), "verdict": report.get("verdict")}
    wrong = [row["name"] for row in loaded.get("gpus", []) if row["wrong"]]
    verdict: Json = {}
    if session.chosen is not None and session.loaded is not None:
        verdict = classes.judge(session.chosen.document, session.loaded)
        session.output.json("verdict-load.json", verdict)
        figures["wrong"] = classes.wrong(verdict["findings"])
    idle = [
        str(row["address"])
        for row in busy
        if row["utilization_percent"] is not None and row["utilization_percent"] < SEEN
    ]
    if "error" in loaded:
        return StepOutcome(FAILED, f"the load failed: {loaded['error']}", figures)
    if wrong:
        return StepOutcome(FAILED, f"products were wrong on {', '.join(wrong)}", figures)
    if figures.get("wrong"):
        return StepOutcome(
            FAILED, f"under load {verdict['status']}: {'; '.join(figures['wrong'][:4])}", figures
        )
    # With CUDA_VISIBLE_DEVICES the load runs on some GPUs only, and the others are idle rightly.
    if idle and not session.simulated and "CUDA_VISIBLE_DEVICES" not in os.environ:
        return StepOutcome(
            FAILED, f"the load is not seen: {', '.join(idle)} below {SEEN} % of use", figures
        )
    if report.get("exit_code") == 3:
        return StepOutcome(UNCHECKED, f"diagnose could not look: {report.get('verdict')}", figures)
    reason = (
        f"{loaded['by']}, {sum(figures['tflops']):.3g} TFLOPS in all; diagnose says "
        f"{report.get('bottleneck')}: {report.get('verdict')}"
    )
    return StepOutcome(PASSED, reason, figures)


SEEN = 50  # minimum utilization of a GPU under load, in percent
LOADED = {
    "utilization_percent": (
        "utilization.gpu"
    ), "draw_w": "power.draw_w", "graphics_mhz": "clocks.current.graphics_mhz",
    "gpu_c": (
        "temperature.gpu_c"
    ), "memory_c": "temperature.memory_c", "pcie_gen": "pcie.gen.current", "pcie_width": "pcie.width.current",
    "pstate": "pstate",
}  # fmt: skip


def _libraries(session: Session) -> Dict[str, str]:
    """Return the environment that adds the libraries of carried wheels, after those of the caller."""
    if not session.carried.libraries:
        return {}
    before = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    return {"LD_LIBRARY_PATH": ":".join([*before, *session.carried.libraries])}


def _line(process: Any, limit: float) -> Json:
    """Return the next line of a child process as JSON; {error} if none arrives in time."""
    end = time.monotonic() + limit
    reported = b""
    while not reported.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            return {"error": f"no answer within {limit:.0f} s"}
        # One byte at a time: what follows the line stays in the pipe for the next call.
        data = os.read(process.stdout.fileno(), 1)
        if not data:
            return {"error": "its process ended without an answer"}
        reported += data
    return cast("Json", json.loads(reported))


def smoke(session: Session) -> StepOutcome:
    """Run the GPU tier of goldnode-smoke."""
    _need(session)
    words = ["--backend", "cuda", "--tier", "gpu", "--require", "gpu", "--json", "--limit", "120"]
    if session.settings.short:
        words += ["--size", "48", "--seconds", "0.01", "--memory-mib", "2"]
    command = [*session.python(site=True), str(session.carried.smoke), *words]
    done = session.children.run(command, session.left(300), environment=_libraries(session))
    record = done.json("goldnode-smoke")
    session.simulated = session.simulated or bool(record.get("simulated"))
    session.output.json("smoke.json", record)
    tier = record["tiers"]["gpu"]
    figures = {
        test["name"]: {"state": test["state"], "why": test["why"], **test["figures"]}
        for test in tier["tests"]
    }
    status = {"passed": PASSED, "failed": FAILED}.get(tier["state"], UNCHECKED)
    count = sum(test["state"] == "passed" for test in tier["tests"])
    reason = f"{count} of {len(tier['tests'])} tests passed" + phrase("; {}", tier["why"])
    return StepOutcome(status, reason, figures)


# -- changes


def change(session: Session) -> StepOutcome:
    """Change the restorable settings, read them, restore them, and read them again."""
    if not session.settings.change:
        return StepOutcome(SKIPPED, "asked for with --change alone")
    _need(session)
    if os.geteuid() != 0:
        raise NotChecked("only root can set anything on a GPU: run it with sudo")
    before = changes.read(session)
    users = sorted(
        {str(pid) for gpu in before.values() if not changes.is_fault(gpu) for pid in _pids(gpu)}
    )
    if users:
        raise NotChecked(
            f"the GPUs are in use by process {', '.join(users)}: end it, then run again"
        )
    wanted, rows, home, left = _wanted(session, before)
    refused: List[str] = []
    unread: List[str] = []
    results: List[Json] = []
    stopped = None
    # The state file comes first: from then on, a killed run can be undone by the next one.
    try:
        changes.write_restore_file(session.settings.state, home)
        results = changes.put(session, rows)
        refused = [f"{item['field']}: {item['text']}" for item in results if item["rc"] != 0]
        unread = _not_taken(wanted, results, changes.read(session))
    except Stopped as problem:
        stopped = problem
    finally:
        with session.shield():
            fault, apart = _restored(session, home, before)
    session.output.json(
        "changes.json",
        {
            "set": results,
            "left_alone": left,
            "refused": refused,
            "not_read_back": unread,
            "not_put_back": apart,
        },
    )
    taken = len([item for item in results if item["rc"] == 0])
    figures = {"set": taken, "refused": refused, "not read back": unread, "left alone": left}
    if fault or apart:
        return StepOutcome(
            FAILED,
            f"NOT AS FOUND: {fault or '; '.join(apart[:6])}. {session.settings.state} holds what was found",
            figures,
        )
    if stopped is not None:
        stopped.outcome = StepOutcome(
            UNCHECKED, f"interrupted by {stopped}; all settings are as found", figures
        )
        raise stopped
    if unread:
        return StepOutcome(
            FAILED,
            f"was set and is not read back: {'; '.join(unread[:4])}; everything is as found again",
            figures,
        )
    if not taken:
        return StepOutcome(
            UNCHECKED,
            f"the driver takes none of {len(rows)} settings: {'; '.join(dict.fromkeys(refused))}",
            figures,
        )
    locks = sum(
        item["rc"] == 0 and item["value"].get("mode") == "locked"
        for item in results
        if item["field"] == "clocks"
    )
    unseen = phrase(", {} locks of clocks, which nothing reads back", locks)
    reason = (
        f"{taken} of {len(rows)} settings were taken: {taken - locks} read back{unseen}; all were put "
        "back, and all settings are as found"
    )
    return StepOutcome(PASSED, reason, figures)


def _wanted(
    session: Session, before: Json
) -> Tuple[List[changes.GpuSettingChange], List[Json], List[Json], List[str]]:
    """Return the changes, the rows that set and restore them, and the skipped settings.

    Raises NotChecked if there is nothing to set.
    """
    proposed = changes.proposals(before)
    wanted = [item for item in proposed if item.other is not None]
    left = list(
        dict.fromkeys(f"{item.field}: {item.why}" for item in proposed if item.other is None)
    )
    rows = [changes.row(item, item.other) for item in wanted]
    home = [changes.row(item, item.original) for item in reversed(wanted)]
    if not session.settings.locked_clocks:
        left.append("locked clocks: no call of NVML reads a lock back; --locked-clocks tries them")
    for gpu in before.values() if session.settings.locked_clocks else ():
        lock = None if changes.is_fault(gpu) else changes.lock(gpu)
        if lock is not None:
            rows.append({"uuid": gpu["uuid"], "field": "clocks", "value": lock})
            home.insert(0, {"uuid": gpu["uuid"], "field": changes.LOCKED, "value": None})
    if not rows:
        raise NotChecked(f"there is nothing that could be set and put back: {'; '.join(left)}")
    return wanted, rows, home, left


def _pids(gpu: Json) -> List[Any]:
    return as_list(gpu.get("processes"))


def _not_taken(
    wanted: List[changes.GpuSettingChange], results: List[Json], meanwhile: Json
) -> List[str]:
    """Return the settings that the driver accepted but reads back differently."""
    taken = {(item["uuid"], item["field"]) for item in results if item["rc"] == 0}
    by_uuid = {
        gpu["uuid"]: gpu
        for gpu in meanwhile.values()
        if not changes.is_fault(gpu) and not changes.is_fault(gpu.get("uuid"))
    }
    reasons = []
    for item in wanted:
        if (item.uuid, item.field) in taken:
            now = changes.current(by_uuid[item.uuid], item.field) if item.uuid in by_uuid else None
            if now != item.other:
                reasons.append(f"{item.field} {item.other}, read {now}")
    return reasons


def _restored(session: Session, home: List[Json], before: Json) -> Tuple[str, List[str]]:
    """Restore everything and read it. Return the error, and the differences from the first reading."""
    try:
        refused = changes.back(session, home)
        apart = changes.differences(
            changes.without_processes(before), changes.without_processes(changes.read(session))
        )
    except NotChecked as problem:
        return str(problem), []
    # Only the reading counts: a refusal to set what is set already changes nothing.
    if not apart:
        changes.forget(session.settings.state)
        return "", apart
    return "; ".join(refused), apart


def settings(session: Session) -> StepOutcome:
    """Verify that all settings of all GPUs are the same as at the beginning."""
    if session.first is None:
        raise NotChecked("they were not read at the beginning")
    _need(session)
    apart = changes.differences(
        changes.without_processes(session.first), changes.without_processes(changes.read(session))
    )
    if apart:
        return StepOutcome(
            FAILED, f"{len(apart)} settings differ: {'; '.join(apart[:6])}", {"differ": apart}
        )
    return StepOutcome(PASSED, f"all settings of {len(session.first)} GPUs are as found")


Step = Tuple[str, str, Callable[[Session], StepOutcome]]
STEPS: Tuple[Step, ...] = (
    ("leftovers", "leftovers of an earlier run", leftovers),
    ("versions", "versions", versions),
    ("capture", "capture at rest", capture),
    ("nvidia-smi", "nvidia-smi -q -x against NVML", nvidia_smi),
    ("check", "check with the detected class", check),
    ("policy", "policy, dry run", policy),
    ("latency", "latency of NVML", latency),
    ("timing", "a check's time beside the floor", timing),
    ("load", "diagnose under load", load),
    ("smoke", "smoke tests, GPU tier", smoke),
    ("change", "set, read back, put back", change),
    ("settings", "settings as found", settings),
)
