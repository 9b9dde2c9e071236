"""Kernel parameters as systemd-sysctl sets them at boot: sysctl.d(5). Reads only.

Of all files the last assignment of a parameter counts. A pattern (`net.ipv4.conf.*.rp_filter`) leaves alone
what any file names. Debian 13's systemd-sysctl does not read /etc/sysctl.conf; earlier releases have a link to it.
"""

from __future__ import annotations

import re

from ..ground.host import Host
from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List

# A file in an earlier directory hides those of its name in the later ones.
DIRECTORIES = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")


class SysctlLine(NamedTuple):
    """One assignment. The key has dots. Without a value the parameter stays as the kernel has it."""

    file: str
    line: int
    key: str
    value: str


def files(host: Host, name: str = "sysctl.d") -> List[str]:
    """Return the files of a directory such as `sysctl.d` in the order in which systemd reads them."""
    by_name: Dict[str, str] = {}
    for directory in DIRECTORIES:
        for path in host.glob(f"{directory}/{name}", "*.conf"):
            base = path.rpartition("/")[2]
            if base[0] != "." and not host.is_dir(path):
                by_name.setdefault(base, path)
    return [by_name[base] for base in sorted(by_name)]


def winners(host: Host, keys: Iterable[str]) -> Dict[str, SysctlLine]:
    """Return the assignment in effect for each of these parameters that a file names."""
    wanted, rows = set(keys), {}
    for file in files(host) if wanted else ():
        for number, line in enumerate((host.text(file) or "").splitlines(), 1):
            match = re.match(r"\s*(-?)\s*([\w./-]+?)\s*(=\s*(.*?)\s*)?$", line)
            key = _dotted(match[2]) if match else ""
            # A name after a hyphen alone takes back what earlier lines assign.
            if match and key in wanted and (match[3] or match[1]):
                rows[key] = SysctlLine(file, number, key, match[4] or "")
    return rows


def _dotted(name: str) -> str:
    """Return a parameter's name with dots. The first separator decides which of the two a name has.

    Behind a slash, dots belong to the name of a file (`net/ipv4/conf/eth0.5/rp_filter`).
    """
    first = re.search(r"[./]", name)
    return name.translate(_SWAP) if first and first[0] == "/" else name


_SWAP = str.maketrans("./", "/.")
