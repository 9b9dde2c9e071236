"""What a remedy names exists: programs and their options, rows of the table of findings, settings of a class.

The texts are those of every `Remedy(…)` of the program on the node. Remedies of the fault scoreboard are also carried out (tests/faults).
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import goldnode.node
from goldnode.node.ground.host import like
from goldnode.node.program import arguments
from goldnode.node.state import kinds

NODE = Path(goldnode.node.__file__ or "").parent
# First words of commands, and where a node has them from: a Debian package, or what has brought the GPU.
PROGRAMS = {
    "cat": "coreutils",
    "chmod": "coreutils",
    "chown": "coreutils",
    "chronyc": "chrony",
    "dcgmi": "DCGM",
    "df": "coreutils",
    "dmesg": "util-linux",
    "dmidecode": "dmidecode",
    "echo": "the shell",
    "ethtool": "ethtool",
    "findmnt": "util-linux",
    "fuser": "psmisc",
    "ibstat": "infiniband-diags",
    "ip": "iproute2",
    "ldconfig": "libc-bin",
    "journalctl": "systemd",
    "lsblk": "util-linux",
    "lscpu": "util-linux",
    "lspci": "pciutils",
    "mdadm": "mdadm",
    "modprobe": "kmod",
    "nvidia-bug-report.sh": "the driver",
    "nvidia-ctk": "nvidia-container-toolkit",
    "nvidia-smi": "the driver",
    "nvme": "nvme-cli",
    "perfquery": "infiniband-diags",
    "ras-mc-ctl": "rasdaemon",
    "smartctl": "smartmontools",
    "systemctl": "systemd",
    "systemd-tmpfiles": "systemd",
    "timedatectl": "systemd",
    "update-grub": "grub2-common",
}
# Sections that `nvidia-smi -q -d` has (its --help, driver 580).
SECTIONS = {
    "MEMORY", "UTILIZATION", "ECC", "TEMPERATURE", "POWER", "CLOCK", "COMPUTE", "PIDS", "PERFORMANCE", "SUPPORTED_CLOCKS",
    "PAGE_RETIREMENT", "ACCOUNTING", "ENCODER_STATS", "SUPPORTED_GPU_TARGET_TEMP", "VOLTAGE", "FBC_STATS", "ROW_REMAPPER",
    "RESET_STATUS", "GSP_FIRMWARE_VERSION", "POWER_SMOOTHING", "POWER_PROFILES", "X",
}  # fmt: skip
# Settings of firmware and answers of a person that are in quotes and are no commands.
OTHERS = ("Above 4G decoding", "-e goldnode_reboot=true", "gate: {drain: […], resume: […]}", "X")
# A loop of the shell names what its command names.
LOOP = re.compile(r"for \w+ in \S+; do (?P<command>[^;]+); done")
SETTING = re.compile(r"(baseline|policy|compat|pcie)\.[\w.]+(: \w+)?")


def quoted() -> Iterator[tuple[str, str]]:
    """Yield (file, text in backticks) of each remedy; what is filled in is X."""
    for path in NODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Remedy"):
                continue
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant):
                text = str(first.value)
            elif isinstance(first, ast.JoinedStr):
                texts = [
                    part.value if isinstance(part, ast.Constant) else "X" for part in first.values
                ]
                text = "".join(map(str, texts))
            else:
                continue
            yield from ((path.name, item) for item in re.findall(r"`([^`]+)`", text))


def fault(text: str) -> str | None:
    """What is wrong with a text in backticks; None if it names something that exists."""
    if loop := LOOP.fullmatch(text):
        return fault(loop["command"])
    words = text.split()
    if (
        text in OTHERS or SETTING.fullmatch(text) or words[0] == "goldnode"
    ):  # tests/unit/test_page_commands.py has these
        return None
    if words[0] == "goldnode-node":
        given = words[1:]
        try:
            arguments.parser(given).parse_args(given)
        except arguments.UsageError as problem:
            return str(problem)
        names = [word for before, word in itertools.pairwise(words) if before == "--id"]
        lost = [name for name in names if not any(like(name, row) for row in kinds.KINDS)]
        return f"no row {lost}" if lost else None
    if kinds.kind(text) is not None:
        return None
    if words[0] not in PROGRAMS:
        return "no program, row or setting"
    sections = (
        set(words[words.index("-d") + 1].split(","))
        if words[0] == "nvidia-smi" and "-d" in words
        else set()
    )
    return f"no section {sections - SECTIONS}" if sections - SECTIONS else None


def test_remedies_name_only_what_exists() -> None:
    texts = list(quoted())
    assert len(texts) > 80
    assert {(file, text, why) for file, text in texts if (why := fault(text))} == set()


def test_remedy_with_an_unknown_command_or_row_is_refused() -> None:
    wrong = (
        "goldnode-node akc",
        "goldnode-node ack --idd x",
        "goldnode-node ack --id gpu.nothing",
        "gpu.nothing",
        "nvidia-smi -q -d HEAT",
        "for irq in /sys/X/msi_irqs/*; do irqtune /proc/irq/${irq##*/}; done",
        "for irq in /sys/X/msi_irqs/*; do cat /sys/X/local_cpulist",
    )
    assert all(fault(text) for text in wrong)
    assert not any(
        map(
            fault,
            ("goldnode-node ack --id changed.gpu", "gpu.count", "mdadm --detail /dev/SUBJECT"),
        )
    )
