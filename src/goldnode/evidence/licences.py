"""Licences as SPDX expressions, from Debian's machine-readable copyright files and the metadata of wheels.

A name that is not an SPDX id becomes `LicenseRef-NAME`, never the closest known id. Prose is not interpreted:
a package with only a prose licence has no stated licence. Debian's short names are defined in
"Machine-readable debian/copyright file" 1.0, section "License specification".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

# Debian short names whose SPDX id is spelled differently; lower case, without a trailing "+".
_DEBIAN = {
    "expat": "MIT",
    "apache-2": "Apache-2.0",
    "artistic": "Artistic-1.0",
    "artistic-2": "Artistic-2.0",
    "bsd-2": "BSD-2-Clause",
    "bsd-3": "BSD-3-Clause",
    "bsd-4": "BSD-4-Clause",
    "bsl-1": "BSL-1.0",
    "cc0": "CC0-1.0",
    "mpl-1": "MPL-1.0",
    "mpl-2": "MPL-2.0",
    "perl": "Artistic-1.0-Perl",
    "psf-2": "PSF-2.0",
    "sil-1.1": "OFL-1.1",
    "zope-2.1": "ZPL-2.1",
}
_GNU = re.compile(r"^(a?gpl|lgpl|gfdl)-?(\d+(?:\.\d+)*)?$")
_WORD = re.compile(r"\(|\)|,|[^\s(),]+")
_CLASSIFIERS = {
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "isc license (iscl)": "ISC",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}


def synopses(text: str) -> list[str]:
    """Return the `License:` lines of a copyright file, sorted; empty unless it is machine-readable."""
    if not re.match(r"\s*Format(-Specification)?:\s*\S*copyright-format", text, re.IGNORECASE):
        return []
    found = re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE | re.IGNORECASE)
    return sorted({" ".join(line.split()) for line in found})


def debian(lines: Iterable[str]) -> str | None:
    """Return one expression for all licence lines of a package, or None without lines.

    The lines are joined with AND, because each applies to part of the package's files.
    """
    found = sorted({expression for line in lines if (expression := _expression(line, _debian_name))})
    if not found:
        return None
    return " AND ".join(
        f"({item})" if len(found) > 1 and re.search(r" (OR|AND) ", item) else item for item in found
    )


def wheel(headers: dict[str, list[str]]) -> str | None:
    """Return the licence expression of a wheel from its METADATA headers (keys in lower case).

    License-Expression takes precedence, then License, then the licence classifiers.
    """
    if said := next(iter(headers.get("license-expression", [])), None):
        return _expression(said, _spdx_name)
    said = next((line.strip() for line in headers.get("license", []) if line.strip()), "")
    # Some wheels put the whole licence text into this header; only a short single line is a name.
    if said and "\n" not in said and len(said) <= 80:
        known = _id(said) or _CLASSIFIERS.get(said.lower())
        return known or _expression(said, _spdx_name, whole=True)
    classified = [
        row.split(" :: ")[-1]
        for row in headers.get("classifier", [])
        if row.startswith("License :: ") and row.count(" :: ") > 1
    ]
    names = sorted({_id(row) or _CLASSIFIERS.get(row.lower()) or reference(row) for row in classified})
    return " AND ".join(names) or None


def references(expression: str) -> list[str]:
    """Return the names in an expression that are not SPDX ids."""
    return sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression)))


def reference(name: str) -> str:
    """Return the `LicenseRef-` id for a licence that SPDX does not list."""
    return "LicenseRef-" + (re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "unnamed")


def _expression(text: str, name: Callable[[str], str], *, whole: bool = False) -> str:
    words = _WORD.findall(text)
    operators = {"and", "or"}
    if whole and not operators & {word.lower() for word in words}:
        return reference(text)
    # In "A or B, and C", the comma groups the part before it: (A or B) and C.
    parts: list[str] = []
    chunk: list[str] = []

    def close() -> None:
        if chunk:
            parts.append(name(" ".join(chunk)))
            chunk.clear()

    for word in words:
        low = word.lower()
        if low in operators:
            close()
            parts.append(low.upper())
        elif word == ",":
            close()
            parts = ["(", *parts, ")"] if len(parts) > 1 else parts
        elif word in "()":
            close()
            parts.append(word)
        else:
            chunk.append(word)
    close()
    found = " ".join(parts).replace("( ", "(").replace(" )", ")")
    return found if _well_formed(parts) else reference(text)


def _well_formed(parts: list[str]) -> bool:
    depth, wanted = 0, True  # whether a name or "(" must come next
    for part in parts:
        if part == "(":
            if not wanted:
                return False
            depth += 1
        elif part == ")":
            depth -= 1
            if wanted or depth < 0:
                return False
        elif part in ("AND", "OR"):
            if wanted:
                return False
            wanted = True
        elif not wanted:
            return False
        else:
            wanted = False
    return not wanted and depth == 0


def _spdx_name(text: str) -> str:
    base, _, exception = text.partition(" WITH ") if " WITH " in text else text.partition(" with ")
    known = _id(base.strip())
    if known and exception and re.fullmatch(r"[A-Za-z0-9.-]+", exception.strip()):
        return f"{known} WITH {exception.strip()}"
    if text.startswith("LicenseRef-"):
        return reference(text.removeprefix("LicenseRef-"))
    return known if known and not exception else reference(text)


def _debian_name(text: str) -> str:
    if " " in text:  # as in "GPL-2+ with OpenSSL exception": in Debian, the name of an exception is free text
        return reference(text)
    later = text.endswith("+")
    low = text.removesuffix("+").lower()
    if gnu := _GNU.match(low):
        # Debian's GPL without a version means any version, so it maps to the lowest one with "or-later".
        version = gnu[2] or {"gfdl": "1.1", "lgpl": "2.0", "gpl": "1.0", "agpl": "1.0"}[gnu[1]]
        version += "" if "." in version else ".0"
        known = _id(f"{gnu[1].upper()}-{version}-{'or-later' if later or not gnu[2] else 'only'}")
        return known or reference(text)
    if not later and (known := _id(text) or _DEBIAN.get(low)):
        return known
    return reference(text)


@cache
def _id(name: str) -> str | None:
    """Return an SPDX id in its official spelling, or None if SPDX does not list it."""
    from cyclonedx.spdx import fixup_id  # imported lazily: takes 0.3 s

    return fixup_id(name)
