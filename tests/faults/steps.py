"""What is done to a simulated node: one fault, or one thing that is none, as a value that can stand in a table.

A step is called with the node and the number of the turn (1 at the first check with it, then 2, 3 …). In texts ``{50}`` is 50 times the
turn, for what counts on.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulators.hardware import machine

if TYPE_CHECKING:
    from tests.faults.run import Node

Step = Callable[["Node", int], None]


def counted(text: str, turn: int) -> str:
    """The text with its counters as they stand in this turn."""
    return re.sub(r"\{(\d+)\}", lambda found: str(int(found[1]) * turn), text)


def board(*faults: str) -> Step:
    """Faults of the GPUs, in the library's answers and on the bus."""

    def do(node: Node, turn: int) -> None:
        node.faulty([counted(fault, turn) for fault in faults])

    return do


def bus(**faults: str) -> Step:
    """Faults of other functions on the bus; ``__`` stands for the dot of ``nic1.pcie.width``."""

    def do(node: Node, turn: int) -> None:
        node.on_bus.update(
            {name.replace("__", "."): counted(value, turn) for name, value in faults.items()}
        )
        node.faulty([])

    return do


def file(name: str, content: str | bytes | None, mode: int = 0o644) -> Step:
    """Another content of a file; None: it is not there."""

    def do(node: Node, turn: int) -> None:
        machine.spoil(
            node.root, name, counted(content, turn) if isinstance(content, str) else content, mode
        )

    return do


def edit(name: str, pattern: str, new: str) -> Step:
    """A file in which the first match of `pattern` is another text."""

    def do(node: Node, turn: int) -> None:
        found = sorted(node.root.glob(name)) if "*" in name else [node.root / name]
        for place in found:
            real = place.resolve()
            text, count = re.subn(
                pattern, counted(new, turn), real.read_text(), count=1, flags=re.M
            )
            if not count:
                raise AssertionError(f"{name} has no {pattern}")
            machine.spoil(node.root, str(real.relative_to(node.root.resolve())), text)

    return do


def log(*lines: str) -> Step:
    """Lines in the kernel's log; in each turn the same ones and, so that the log goes on, a plain one for each turn."""

    def do(node: Node, turn: int) -> None:
        machine.kmsg(node.root, *lines, *("usb 1-1: new device" for _ in range(turn)))

    return do


def syslog(name: str, text: str) -> Step:
    """A node whose kernel log cannot be read from the ring, with a file that a syslog daemon writes."""

    def do(node: Node, turn: int) -> None:
        (node.root / "dev/kmsg").unlink(missing_ok=True)
        machine.spoil(node.root, name, text)

    return do


def unit(name: str, active: str, result: str = "success", load: str = "loaded") -> Step:
    """A unit of systemd in another state."""

    def do(node: Node, turn: int) -> None:
        units = json.loads((node.root / machine.UNITS).read_text())
        sub = {"failed": "failed", "inactive": "dead", "active": "running"}[active]
        units[name] = {
            **units.get(name, {}),
            "ActiveState": active,
            "SubState": sub,
            "Result": result,
            "LoadState": load,
        }
        machine.spoil(node.root, machine.UNITS, json.dumps(units))

    return do


def program(body: str) -> Step:
    """Another program in place of the one that asks the GPUs."""

    def do(node: Node, turn: int) -> None:
        node.hangs = True
        machine.spoil(
            node.root,
            "goldnode-node",
            f"#!{sys.executable} -I\nimport os, signal, sys, time\n{body}\n",
            0o755,
        )

    return do


def clock(seconds: float) -> Step:
    """The node's clock is set on or back, while its uptime goes on as ever."""

    def do(node: Node, turn: int) -> None:
        node.clock = seconds

    return do


def environment(**values: str) -> Step:
    """Variables of whoever calls the check."""

    def do(node: Node, turn: int) -> None:
        node.variables.update(values)

    return do


def documented(change: Callable[[dict[str, object]], None]) -> Step:
    """The class document on the node is another one, with a digest that fits it."""

    def do(node: Node, turn: int) -> None:
        node.redocument(change)

    return do


def memory(content: str | bytes | None) -> Step:
    """Another content of the file in which the check keeps what it counts from."""
    return file("var/lib/goldnode/sanity.json", content)


def blocked(pid: int, name: str, wait: str) -> Step:
    """A task in uninterruptible sleep."""

    def do(node: Node, turn: int) -> None:
        machine.task(node.root, pid, name, "D", name.encode(), wait)

    return do


def link(name: str, target: str) -> Step:
    """A symbolic link that leads somewhere else."""

    def do(node: Node, turn: int) -> None:
        (node.root / name).unlink(missing_ok=True)
        (node.root / name).symlink_to(target)

    return do


def turning(name: str, first: str, then: str) -> Step:
    """A file that says something else from the second turn on."""

    def do(node: Node, turn: int) -> None:
        machine.spoil(node.root, name, first if turn == 1 else then)

    return do


def ring(*records: str, first: int = 0) -> Step:
    """The kernel's ring with further records as they stand, its own from sequence number `first` on."""

    def do(node: Node, turn: int) -> None:
        machine.kmsg(node.root, first=first)
        text = (node.root / "dev/kmsg").read_text()
        machine.spoil(node.root, "dev/kmsg", text + "".join(f"{record}\n" for record in records))

    return do


def hardlinks(root: Path) -> int:
    """How many files of a root are shared with another: for a test that copies do not change their base."""
    return sum(
        os.lstat(place).st_nlink > 1
        for place in root.rglob("*")
        if place.is_file() and not place.is_symlink()
    )


def several(*steps: Step) -> Step:
    """One after another."""

    def do(node: Node, turn: int) -> None:
        for step in steps:
            step(node, turn)

    return do


def until(turns: int, step: Step) -> Step:
    """Only in the first turns."""

    def do(node: Node, turn: int) -> None:
        if turn <= turns:
            step(node, turn)

    return do


Texts = Mapping[str, str]
