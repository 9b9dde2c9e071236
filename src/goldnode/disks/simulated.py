"""Simulated GPUs in a booted guest: what the class declares about GPUs takes effect at boot, on boards that
do not exist.

The simulator is part of the test suite and available only in a checkout. It is a generated, stateful
libnvidia-ml.so.1 with a PCI bus and /proc of the same scenario. It goes into the overlay of one verification,
never into an image, and labels itself as simulated everywhere. The guest's class document is changed to
`simulated: true` and `gate: block`, which makes the effect of the gate visible.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from goldnode.core.data import data
from goldnode.core.errors import DiskError
from goldnode.disks.guest import Facts, GuestCheck, brief, declared, holds, listed, same
from goldnode.disks.model import BuiltDisk
from goldnode.facts.host import gpu
from goldnode.node.ground import gate_files, systemd
from goldnode.node.state.domains.program import document_digest
from goldnode.node.state.model import PARTS

if TYPE_CHECKING:
    from goldnode.disks.qemu import VirtualMachine
    from goldnode.node.ground.document import ClassDocument

PROGRAM = "/usr/lib/goldnode/goldnode-node"
CHECKOUT = data()
SIMULATOR = "tests.simulators.hardware"
PLACE = "/root/goldnode-verify"
FAULT = "gpu0.absent=1"
# Ids of the checks of every boot that a missing GPU must not affect.
STILL = (
    "ssh",
    "boot.multi_user",
    "kernel.running",
    "units.failed",
    "system.state",
    "check.ran",
    "gate.state",
)
# Applies a class document like site.yml: part by part, until the plan is empty.
APPLY = f"""set -e
cd {PLACE}
for part in {" ".join(PARTS)}; do
  {PROGRAM} apply --class class.json --part $part >>apply.log 2>&1 || \
{{ echo "part $part: $(tail -n 5 apply.log)"; exit 1; }}
done
"""


def check(built: BuiltDisk) -> None:
    """Raise DiskError if the class has no GPU to simulate, or if the simulator is not available."""
    if built.driver is None:
        raise DiskError(
            f"class {built.class_} has no GPU to simulate", remedy="leave --simulated-gpu out"
        )
    if not (CHECKOUT / "tests" / "simulators" / "hardware").is_dir():
        raise DiskError(
            "goldnode's simulator is not here: it is part of the tests in its checkout",
            remedy="run this in a checkout of goldnode",
        )


def document_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class document for simulated GPUs: labelled as simulated, and with a blocking gate."""
    changed = {**document, "simulated": True, "gate": gate_files.BLOCK}
    return {**changed, "digest": document_digest(changed)}


def _packed(document: Mapping[str, Any], faults: Iterable[str] = ()) -> bytes:
    """Return the simulator's files as a tar archive of a root."""
    with tempfile.TemporaryDirectory(prefix="goldnode-simulated-") as work:
        file, out = Path(work, "class.json"), Path(work, "simulator.tar")
        file.write_text(json.dumps(document))
        words = [
            sys.executable,
            "-m",
            SIMULATOR,
            "pack",
            "--document",
            str(file),
            "--out",
            str(out),
        ]
        done = subprocess.run(
            [*words, *(word for fault in faults for word in ("--fault", fault))],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DiskError(
                f"the GPUs cannot be simulated: {(done.stderr or done.stdout).strip()[-600:]}",
                remedy="see what it says",
            )
        return out.read_bytes()


def _run(
    machine: VirtualMachine, script: str, stdin: bytes | None = None, limit: float = 900
) -> str:
    done = machine.ssh(["sh", "-c", f"'{script}'"], stdin=stdin, limit=limit)
    if done.rc:
        raise machine.error(
            f"simulated GPUs cannot be installed in the guest: {(done.out + done.err).strip()[-800:]}"
        )
    return done.out


def install(machine: VirtualMachine, document: Mapping[str, Any]) -> dict[str, Any]:
    """Install the simulator and a simulated class document in the guest, and return that document.

    Both take effect at its next boot. Raises MachineError and DiskError.
    """
    changed = document_of(document)
    _run(
        machine,
        "tar -x -f - -C / && ldconfig && systemctl daemon-reload && systemctl enable -q "
        "simulated-hardware.service",
        _packed(changed),
    )
    _run(machine, f"mkdir -p {PLACE} && cat >{PLACE}/class.json", json.dumps(changed).encode())
    # Start bus and library first: the apply step queries them.
    _run(machine, "systemctl start simulated-hardware.service")
    done = machine.ssh(["sh"], stdin=APPLY.encode(), limit=1800)
    if done.rc:
        raise machine.error(
            "the class with simulated GPUs cannot be applied in the guest: "
            f"{(done.out + done.err).strip()[-1500:]}"
        )
    return changed


def lose(machine: VirtualMachine, document: Mapping[str, Any]) -> None:
    """Remove one simulated GPU, from the next boot on."""
    _run(
        machine,
        "systemctl stop simulated-hardware.service; rm -rf /opt/goldnode-simulator/tree; tar -x -f - -C / "
        "&& ldconfig",
        _packed(document, [FAULT]),
    )


def _findings(facts: Facts) -> dict[str, Mapping[str, Any]]:
    return {str(row["id"]): row for row in ((facts.get("verdict") or {}).get("findings") or ())}


def _settings(facts: Facts) -> dict[str, str]:
    return dict(
        line.split("=", 1) for line in str(facts.get("settings") or "").splitlines() if "=" in line
    )


def healthy(facts: Facts, document: Mapping[str, Any]) -> list[GuestCheck]:
    """Return the checks of a boot with all simulated GPUs: the policy was set in this boot, reads back, and
    the gate is open.
    """
    checks = [
        holds(
            "simulated.labelled",
            bool((facts.get("verdict") or {}).get("simulated")) and bool(facts.get("simulated")),
            "says simulated",
            "it does",
        )
    ]
    findings, have = _findings(facts), _settings(facts)
    count = int(document["gpu"]["count"])
    row = findings.get("gpu.count") or {}
    checks.append(
        holds(
            "simulated.count",
            row.get("outcome") == "match",
            f"{count} simulated GPUs",
            f"{row.get('outcome')}: {row.get('got')}",
        )
    )
    for name in declared(cast("ClassDocument", document)):
        if not name.startswith("policy."):
            continue
        row = findings.get(name) or {}
        # NVML has no call that reads locked clocks back. That they were set is then all there is to check.
        good = row.get("outcome") == "match" or (
            row.get("outcome") == "not_exposed" and "set at " in str(row.get("got"))
        )
        checks.append(
            holds(
                f"simulated.{name}",
                good,
                brief(row.get("expected") or "as declared"),
                f"{row.get('outcome', 'no finding')}: {row.get('got')}",
            )
        )
    calls = [str(line) for line in facts.get("calls") or ()]
    refused = [line for line in calls if " rc=0" not in line]
    boards = {line.split()[0] for line in calls if re.match(r"gpu\d+ ", line)}
    good = len(boards) == count and not refused
    checks.append(
        holds(
            "simulated.setters",
            good,
            f"setters called in this boot on {count} GPUs",
            listed(refused) if refused else f"{len(calls)} calls on {len(boards)}",
        )
    )
    limit = (document.get("policy") or {}).get("power_limit_watts")
    if limit is not None:
        # Read the simulator's own state, not through goldnode. It contains only values that were set, and a
        # board's default is not set.
        wanted = (
            str(int(limit) * 1000),
            *((None,) if limit == gpu(document["gpu"]["model"]).power_limit_default_w else ()),
        )
        read = {index: have.get(f"gpu{index}.power_limit") for index in range(count)}
        wrong = [
            f"GPU {index}: {reported or 'nothing was set'}"
            for index, reported in read.items()
            if reported not in wanted
        ]
        if facts.get("settings") is None:
            wrong = ["the simulator's state is not there"]
        checks.append(
            holds(
                "simulated.power",
                not wrong,
                f"{limit} W in the simulator's state",
                listed(wrong, none=f"{limit} W"),
            )
        )
    state = facts.get("gate") or {}
    checks.append(
        same(
            "simulated.gate",
            "block: open",
            f"{state.get('mode')}: {'open' if state.get('open') else 'closed'}",
        )
    )
    return checks


def faulty(facts: Facts, document: Mapping[str, Any]) -> list[GuestCheck]:
    """Return the checks of a boot with one simulated GPU missing.

    The verdict must be drain, the gate must keep the container runtime down, and systemd must show the
    reason.
    """
    verdict, findings, state = facts.get("verdict") or {}, _findings(facts), facts.get("gate") or {}
    row = findings.get("gpu.count") or {}
    checks = [
        same("simulated.fault.verdict", 2, verdict.get("exit_code")),
        holds(
            "simulated.fault.count",
            row.get("outcome") == "mismatch",
            "a GPU is missing",
            f"{row.get('outcome')}: {row.get('got')} of {row.get('expected')}",
        ),
        same(
            "simulated.fault.gate",
            "block: closed",
            f"{state.get('mode')}: {'open' if state.get('open') else 'closed'}",
        ),
        holds(
            "simulated.fault.pass",
            not facts.get("pass"),
            "no pass",
            "there is one" if facts.get("pass") else "none",
        ),
    ]
    for name in gate_files.RUNTIMES:
        unit = (facts.get("units") or {}).get(name) or {}
        if unit.get("LoadState") != "loaded":
            continue
        down = unit.get("ActiveState") in ("inactive", "failed")
        checks.append(
            holds(f"simulated.fault.{name}", down, "kept down", str(unit.get("ActiveState")))
        )
        detected = next(
            (
                line.strip()
                for line in str((facts.get("status") or {}).get(name) or "").splitlines()
                if "goldnode gate: " in line
            ),
            "",
        )
        if unit.get("UnitFileState") in systemd.ENABLED:
            checks.append(
                holds(
                    f"simulated.fault.{name}.status",
                    "gpu" in detected,
                    "systemctl status says why",
                    detected or "it does not say",
                )
            )
    return checks
