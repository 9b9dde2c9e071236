"""Readers of a node's state for the node suite: its own, nothing of goldnode is imported."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

NOT_HERE = "not verified here: "

Document = dict[str, Any]


def not_here(reason: str) -> None:
    """Records what this place cannot show. It is counted in the summary, and is never a pass."""
    # Counted and listed as "not verified here", never as passed; a run that verified nothing fails (conftest.py).
    pytest.skip(NOT_HERE + reason)


def booted_by_id(config: str, stored: dict[str, str]) -> str | None:
    """The release that a default given as an id (what goldnode writes) boots, from grub.cfg's text and grubenv's values.

    None for any other kind of default: a reader this plain does not follow numbers and titles, and does not guess.
    """
    literal = re.findall(
        r'^\s*set default="([^"]*)"', config.replace('set default="${next_entry}"', ""), re.M
    )
    if not literal:
        return None
    wanted = stored.get("next_entry") or (
        stored.get("saved_entry", "") if literal[-1] == "${saved_entry}" else literal[-1]
    )
    menu, separator, entry = wanted.partition(">")
    if separator and not re.search(rf"^submenu [^\n]*'{re.escape(menu)}' {{$", config, re.M):
        return None
    # grub-mkconfig indents what is in a submenu, and an entry is found only in the menu that the path names.
    indent, name = ("[ \t]+", entry) if separator else ("", menu)
    body = rf"^{indent}menuentry [^\n]*'{re.escape(name)}' {{\n(?:(?!\s*menuentry ).*\n)*?\s*linux\s+\S*/vmlinuz-(\S+)"
    found = re.search(body, config, re.M)
    return found[1] if found else None


# A line of lsinitrd, which lists as `ls -l` does: mode, links, owner, group, size, date, name, and the target of a link.
LISTED = re.compile(r"^[-dlcbps]\S{9} +\d+ +\S+ +\S+ +\S.*? \w{3} +\d+ +[\d:]+ (\S+)", re.M)


class Node:
    """A host and its class document, with readers that ask it once and keep the answer."""

    def __init__(self, host: Any, document: Document) -> None:
        self.host, self.document = host, document
        self.release: str = document["kernel"]["release"]
        self.driver: Document | None = document["driver"]
        self.stack: dict[str, Document] = {
            package["name"]: package for package in document["packages"]
        }

    def out(self, command: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """Standard output of a shell command (arguments are quoted in place of %s); any other exit status is a failure."""
        done = self.host.run(command, *arguments)
        if done.rc not in codes:
            pytest.fail(
                f"`{done.command}` ended with {done.rc}: {done.stderr.strip()[-500:] or done.stdout.strip()[-500:]}"
            )
        return str(done.stdout)

    def text(self, path: str) -> str:
        """A file of the host as text; a failure when it is not there."""
        return self.out("cat %s", path)

    @functools.cached_property
    def dracut(self) -> bool:
        """Whether dracut makes the initramfs images here: then there is no `lsinitramfs`."""
        return int(self.host.run("command -v lsinitramfs").rc) != 0

    def initramfs_names(self, image: str) -> list[str]:
        """The paths of all files in an initramfs."""
        if not self.dracut:
            return self.out("lsinitramfs %s", image).splitlines()
        return LISTED.findall(self.out("lsinitrd %s", image))

    def initramfs_file(self, image: str, path: str) -> str:
        """A file in an initramfs as text, empty if it is not there."""
        if self.dracut:
            return self.out("lsinitrd -f %s %s", path, image)
        script = (
            'set -e; d=$(mktemp -d); trap "rm -rf $d" EXIT; unmkinitramfs "$1" $d; '
            f'find $d -path "*/{path}" -exec cat {{}} +'
        )
        return self.out(f"sh -c '{script}' sh %s", image)

    @functools.cached_property
    def container(self) -> str:
        """The kind of container, "none" on a machine."""
        return self.out("systemd-detect-virt --container", codes=(0, 1)).strip()

    @functools.cached_property
    def installed(self) -> dict[str, tuple[str, str, str]]:
        """Package -> (version, architecture, dpkg's state as `ii`), of all that dpkg knows."""
        rows = self.out(
            "dpkg-query -W -f '${Package}\\t${Version}\\t${Architecture}\\t${db:Status-Abbrev}\\n'"
        ).splitlines()
        found = {}
        for row in rows:
            name, version, architecture, state = row.split("\t")
            if state[1] != "n":
                found[name] = (version, architecture, state.strip())
        return found

    @functools.cached_property
    def kernels(self) -> list[str]:
        """Releases of the kernels in /boot."""
        return sorted(
            path.removeprefix("/boot/vmlinuz-")
            for path in self.out("ls -1 /boot/vmlinuz-*").split()
        )

    @functools.cached_property
    def verdict(self) -> Document:
        found = json.loads(self.text("/run/goldnode/verdict.json"))
        assert isinstance(found, dict)
        return found

    @functools.cached_property
    def simulated_bus(self) -> bool:
        """Whether the PCI tree is a simulator's, which is this node's own in a container too."""
        return bool(self.host.file("/sys/bus/pci/goldnode-simulator").exists)

    def machine_only(self, what: str) -> None:
        """Ends the test as not verified here in a container, which shows the kernel and the devices of its host."""
        if self.container != "none":
            not_here(f"{what} in a container ({self.container})")
