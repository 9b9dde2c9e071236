"""The ways into the product. Each door gives the input of a report to one of them and returns its answer.

A door works in an empty directory, in which `inputs` are written: those with an absolute path below `root/`.
Everything runs in this process. `DOORS` maps the words of `ask` to the functions.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml
from click.testing import CliRunner
from jinja2 import Environment
from tests.reports.corpus import Report

from goldnode.cli import main as goldnode_command
from goldnode.compat.check import check
from goldnode.compat.model import CompatHost
from goldnode.core.errors import InventoryError
from goldnode.facts import host as facts
from goldnode.inventory import schedulers
from goldnode.node.ground.host import Host
from goldnode.node.probe import events
from goldnode.node.program.main import main as node_command
from goldnode.node.state.domains import runtime
from goldnode.node.state.domains.program import document_digest

CASES = Path(__file__).parents[1] / "cases"
# A node that has nothing yet. A report replaces what it has.
BARE = {
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
    "var/lib/dpkg/status": "",
    "etc/default/grub": 'GRUB_CMDLINE_LINUX=""\n',
    "usr/share/keyrings/debian-archive-keyring.gpg": "a keyring",
}


class Answer(NamedTuple):
    """Exit status and text of an answer, standard error included."""

    exit: int
    text: str


def goldnode(*words: object, text: str | None = None) -> Answer:
    """Run `goldnode WORDS`."""
    done = CliRunner().invoke(goldnode_command, [str(word) for word in words], input=text)
    trace = f"\nTraceback: {done.exception!r}" if done.exc_info and not _exits(done) else ""
    return Answer(done.exit_code, done.output + trace)


def _exits(done: Any) -> bool:
    return done.exception is None or isinstance(done.exception, SystemExit)


def node(*words: object) -> Answer:
    """Run `goldnode-node WORDS`."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = node_command([str(word) for word in words])
    return Answer(status, out.getvalue())


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `patch`, section by section; None removes a key."""
    found = dict(base)
    for key, value in patch.items():
        if isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merge(found[key], value)
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def written(report: Report, place: Path, base: Mapping[str, str] | None = None) -> Path:
    """Write the inputs below `place`, those with an absolute path below `place/root`. Return that directory."""
    root = place / "root"
    rows = {f"root/{name}": text for name, text in (base or {}).items()}
    for name, text in report.inputs.items():
        rows[f"root{name}" if name.startswith("/") else name] = text
    for name, text in rows.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    root.mkdir(exist_ok=True)
    return root


def differences(report: Report, answer: Answer) -> list[str]:
    """Return what is not as the report expects."""
    assert report.expect is not None
    text = " ".join(answer.text.split())
    exits = report.expect.exit if isinstance(report.expect.exit, list) else [report.expect.exit]
    lines = [] if answer.exit in exits else [f"exit {answer.exit}, expected {report.expect.exit}"]
    for name in report.expect.names:
        words = [name] if isinstance(name, str) else name
        if not any(word in text for word in words):
            lines.append(f"not in the answer: {' | '.join(words)}")
    lines += [f"in the answer: {word}" for word in report.expect.absent if word in text]
    lines += [
        f"{text.count(word)} times in the answer: {word}, expected {times}"
        for word, times in report.expect.times.items()
        if text.count(word) != times
    ]
    return lines + (["a traceback"] if "Traceback" in text else [])


@cache
def _cases(name: str) -> Any:
    return json.loads((CASES / name).read_text(encoding="utf-8"))


def class_document(engine: str = "docker_legacy", patch: Mapping[str, Any] | None = None) -> Any:
    """Return the class document of the cases, with the engine of that name in tests/cases/engines.json."""
    engines = _cases("engines.json")
    found = {**_cases("document.json"), **engines[engine]["document"]}
    # The keyring of a bare node has no key that could be pinned.
    archives = [{**archive, "fingerprints": []} for archive in found["site"]["archives"]]
    found = merge({**found, "site": {"archives": archives}}, patch or {})
    return {**found, "digest": document_digest(found)}


# -- texts


def explain(report: Report, place: Path) -> Answer:
    """`goldnode explain`: the input is a file, or with `words` the argument. Ids of the answers are added."""
    written(report, place)
    if report.options.get("words"):
        given = [report.input.strip()]
    else:
        (place / "pasted.txt").write_text(report.input, encoding="utf-8")
        given = [str(place / "pasted.txt")]
    shown = goldnode("explain", *given)
    document = json.loads(goldnode("explain", "--format", "json", *given).text)
    rows = [*document["answers"], *document.get("similar", ())]
    return Answer(shown.exit, f"{shown.text}\nids: {' '.join(row['id'] for row in rows)}")


def xid(report: Report, place: Path) -> Answer:
    """`goldnode xid` with the input as its argument."""
    return goldnode("xid", report.input.strip())


def log(report: Report, place: Path) -> Answer:
    """`goldnode check-node` of a recorded node with one GPU (0000:00:06.0) whose kernel log is the input.

    `capture` changes other sections of the record; `add_pci` adds functions to its PCI bus as copies of others.
    The text has a line for each finding that is no match, or
    that the log is evidence of: id, subject, outcome, severity, what was seen, remedy.
    """
    events_read = {**events.parsed(report.input), "boot_id": "b0", "sources": ["kmsg"]}
    capture = {**_cases("recorded/h200_x1_580.159.04/capture.json"), "events": events_read}
    capture = merge(
        capture, {"identity": {"container": False}, **report.options.get("capture", {})}
    )
    for address, like in report.options.get("add_pci", {}).items():
        capture["pci"] = {**capture["pci"], address: capture["pci"][like]}
    return checked(capture, place)


def checked(capture: Mapping[str, Any], place: Path) -> Answer:
    """Return the verdict of a capture, a line for each finding that is not simply good."""
    file = place / "capture.json"
    file.write_text(json.dumps(capture), encoding="utf-8")
    answer = goldnode("check-node", file, "--format", "json")
    return Answer(answer.exit, finding_lines(json.loads(answer.text)["findings"]))


def finding_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each finding that is no match, or that has evidence."""
    keys = ("id", "subject", "outcome", "severity", "got", "remedy")
    shown = [row for row in rows if row["outcome"] != "match" or row.get("evidence")]
    return "\n".join(" | ".join(str(row.get(key)) for key in keys) for row in shown)


# -- nodes


def check_from(report: Report, place: Path) -> Answer:
    """`goldnode check-node` of the input: nvidia-smi -q, its XML, or a capture. `class` names a class."""
    file = place / "record"
    file.write_text(report.input, encoding="utf-8")
    wanted = ["-c", report.options["class"]] if "class" in report.options else []
    answer = goldnode("check-node", *wanted, file)
    rows = json.loads(goldnode("check-node", *wanted, file, "--format", "json").text)["findings"]
    return Answer(answer.exit, answer.text + "\n" + finding_lines(rows))


def plan_root(report: Report, place: Path) -> Answer:
    """`goldnode-node plan --root`: the inputs are files of a bare Debian 12.

    `engine` is a name of tests/cases/engines.json, `document` changes the class document.
    """
    root = written(report, place, BARE)
    file = place / "class.json"
    wanted = class_document(
        report.options.get("engine", "docker_legacy"), report.options.get("document")
    )
    file.write_text(json.dumps(wanted), encoding="utf-8")
    return node("plan", "--root", root, "--class", file)


def containerd(report: Report, place: Path) -> Answer:
    """`goldnode-node plan` as above, and the text of the drop-in that the plan would write."""
    options = {"engine": "containerd_cdi", **report.options}
    answer = plan_root(report.model_copy(update={"options": options}), place)
    shown = node(
        "plan", "--root", place / "root", "--class", place / "class.json", "--format", "json"
    )
    rows = json.loads(shown.text)["actions"] if shown.exit == 0 else []
    texts = [str(row["after"]) for row in rows if "containerd" in str(row.get("target"))]
    return Answer(answer.exit, "\n".join([answer.text, *texts]))


def cdi(report: Report, place: Path) -> Answer:
    """The fault of the CDI specs below `root`, as check and plan state it: exit 0 without one.

    `devices` are device nodes that are there; each has the numbers of /dev/null (1:3).
    """
    root = written(report, place, BARE)
    for name in report.options.get("devices", ()):
        (root / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / name.lstrip("/")).symlink_to("/dev/null")
    document = class_document("docker_cdi", report.options.get("document"))
    rows = runtime._specs(Host(str(root), live=True), runtime.KIND["nvidia"])
    seen: Any = SimpleNamespace(runtime={"specs": rows}, gpu_settings={})
    faults = (
        runtime.spec_fault(document, seen),
        runtime.spec_unread(seen),
        runtime.spec_conflict(seen),
    )
    lines = [fault for fault in faults if fault]
    return Answer(int(bool(lines)), "\n".join(lines))


def adopt(report: Report, place: Path) -> Answer:
    """`goldnode adopt --survey`: the input is a survey as JSON, or `survey` changes that of tests/cases."""
    (place / "survey.json").write_text(report.input, encoding="utf-8")
    return goldnode("adopt", "host1", "--survey", place / "survey.json", "--name", "mine")


# -- classes, stacks, workloads


def requirements(report: Report, place: Path) -> Answer:
    """`goldnode check --requirements`: the input is requirements.txt, beside the inputs.

    `stack` (debian12_r535), or `class`; `python` (3.11).
    """
    written(report, place)
    file = place / report.options.get("file", "requirements.txt")
    if report.input:
        file.write_text(report.input, encoding="utf-8")
    target = _target(report, "debian12_r535")
    version = ["--python", report.options.get("python", "3.11")]
    with contextlib.chdir(place):
        return goldnode("check", *target, "--requirements", file.name, *version)


def image(report: Report, place: Path) -> Answer:
    """`goldnode check --image`: `env` and `labels` of the image's metadata, or `reference`; `stack` or `class`."""
    reference = report.options.get("reference")
    if reference is None:
        file = place / "image.json"
        config = {
            "Env": report.options.get("env", []),
            "Labels": report.options.get("labels", {}),
        }
        row = {"Id": "sha256:" + "0" * 64, "Architecture": "amd64", "Os": "linux", "Config": config}
        file.write_text(json.dumps([row]), encoding="utf-8")
        reference = str(file)
    return goldnode("check", *_target(report, "debian13_r550"), "--image", reference)


def _target(report: Report, stack: str) -> list[str]:
    if "class" in report.options:
        return ["-c", report.options["class"]]
    return ["-s", report.options.get("stack", stack)]


def node_class(report: Report, place: Path) -> Answer:
    """`goldnode init` with `gpu` and `stack`, then `goldnode check` of that class with the input added to its file.

    The text of the file is in the answer too.
    """
    options = report.options
    words = ["--gpu", options["gpu"], "--stack", options.get("stack", "debian13_r580")]
    with contextlib.chdir(place):
        made = goldnode("init", "s", "--host", "h1", *words, "--name", "c1", "-y")
        file = place / "s/catalog/classes/c1.yml"
        if not file.exists():
            return made
        file.write_text(file.read_text(encoding="utf-8") + report.input, encoding="utf-8")
        with contextlib.chdir("s"):
            judged = goldnode("check", "-c", "c1")
    shown = (made.text, file.read_text(encoding="utf-8"), judged.text)
    return Answer(judged.exit, "\n".join(shown))


def pair(report: Report, place: Path) -> Answer:
    """The compatibility rules over a node as `with` states it: kernel, driver, branch, flavour, os, gpu …

    Exit 1 if a rule blocks, 0 otherwise.
    """
    stated = dict(report.options)
    names = [name for name in stated.pop("gpu", "").split(" + ") if name]
    gpus = tuple(facts.gpu(name) for name in names)
    found = check(CompatHost("node", **{"vendor": "nvidia", "gpus": gpus, **stated}))
    lines = [f"{row.severity} [{row.rule}] {row.message} {row.remedy or ''}" for row in found]
    blocked = any(row.severity == "block" for row in found)
    return Answer(int(blocked), "\n".join(lines))


# -- schedulers and inventories


def slurm_check(report: Report, place: Path) -> Answer:
    """`goldnode slurm check`: the input is the answer of `slurmd -G`; `class` is the class."""
    return goldnode("slurm", "check", "-c", report.options["class"], "-", text=report.input)


def inventory(report: Report, place: Path) -> Answer:
    """`goldnode check -i`: the inputs are an inventory (`file`, by default hosts.yml) and what lies beside it."""
    written(report, place)
    with contextlib.chdir(place):
        return goldnode("check", "-i", report.options.get("file", "hosts.yml"))


def scheduler_hosts(report: Report, place: Path) -> Answer:
    """Hosts and variables that an inventory reads from the input: `scontrol` (default) or `kubectl` as `program`."""
    read = (
        schedulers.kubernetes_hosts
        if report.options.get("program") == "kubectl"
        else schedulers.slurm_hosts
    )
    try:
        rows = read(report.input)
    except InventoryError as problem:
        return Answer(2, str(problem))
    return Answer(0, "\n".join(f"{row.name} {json.dumps(dict(row.variables))}" for row in rows))


def kubernetes_groups(report: Report, place: Path) -> Answer:
    """Groups of integrations/inventories/kubernetes.yml for the nodes in the input, an answer of `kubectl get nodes`."""
    source = Path(__file__).parents[2] / "integrations/inventories/kubernetes.yml"
    groups = yaml.safe_load(source.read_text(encoding="utf-8"))["groups"]
    lines = []
    for row in schedulers.kubernetes_hosts(report.input):
        names = [
            name
            for name, text in groups.items()
            if Environment(autoescape=True).compile_expression(text)(**row.variables)
        ]
        lines.append(f"{row.name}: {' '.join(names)}")
    return Answer(0, "\n".join(lines))


def command(report: Report, place: Path) -> Answer:
    """Any other command, in a directory with the inputs: `words` are its arguments, `program: node` is goldnode-node."""
    written(report, place)
    words = shlex.split(report.options["words"])
    with contextlib.chdir(place):
        if report.options.get("program") == "node":
            return node(*words)
        return goldnode(*words, text=report.input or None)


Door = Callable[[Report, Path], Answer]
DOORS: dict[str, Door] = {
    "explain": explain,
    "xid": xid,
    "log": log,
    "check-from": check_from,
    "plan-root": plan_root,
    "containerd": containerd,
    "cdi": cdi,
    "adopt": adopt,
    "requirements": requirements,
    "image": image,
    "class": node_class,
    "pair": pair,
    "slurm-check": slurm_check,
    "inventory": inventory,
    "scheduler-hosts": scheduler_hosts,
    "kubernetes-groups": kubernetes_groups,
    "command": command,
}
