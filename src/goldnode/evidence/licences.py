"""Licences as SPDX expressions: of Debian's machine-readable copyright files, and of what wheels say.

A name that is no SPDX id becomes a `LicenseRef-NAME`, never the nearest known one. What a file says in prose is not interpreted: the
licence of such a package is not stated. Short names of Debian: "Machine-readable debian/copyright file" 1.0, section "License specification".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

# Short names of Debian's format that SPDX spells otherwise, in lower case and without their "+".
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
    """The licence lines of a copyright file, sorted; empty where the file is not in the machine-readable format."""
    if not re.match(r"\s*Format(-Specification)?:\s*\S*copyright-format", text, re.IGNORECASE):
        return []
    found = re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE | re.IGNORECASE)
    return sorted({" ".join(line.split()) for line in found})


def debian(lines: Iterable[str]) -> str | None:
    """One expression for the licence lines of a package: all of them hold, each for its files. None for no line."""
    found = sorted({expression for line in lines if (expression := _expression(line, _debian_name))})
    if not found:
        return None
    return " AND ".join(
        f"({item})" if len(found) > 1 and re.search(r" (OR|AND) ", item) else item for item in found
    )


def wheel(headers: dict[str, list[str]]) -> str | None:
    """The expression for a wheel's METADATA headers (keys in lower case): License-Expression, else License, else its classifiers."""
    if said := next(iter(headers.get("license-expression", [])), None):
        return _expression(said, _spdx_name)
    said = next((line.strip() for line in headers.get("license", []) if line.strip()), "")
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
    """The names in an expression that are no SPDX ids."""
    return sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression)))


def reference(name: str) -> str:
    """What stands for a licence that SPDX does not list."""
    return "LicenseRef-" + (re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "unnamed")


def _expression(text: str, name: Callable[[str], str], *, whole: bool = False) -> str:
    words = _WORD.findall(text)
    operators = {"and", "or"}
    if whole and not operators & {word.lower() for word in words}:
        return reference(text)
    # "A or B, and C" means (A or B) and C: what stands before a comma belongs together.
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
    depth, wanted = 0, True  # a name or "(" is wanted
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
    if " " in text:  # "GPL-2+ with OpenSSL exception": an exception's name is free text in Debian
        return reference(text)
    later = text.endswith("+")
    low = text.removesuffix("+").lower()
    if gnu := _GNU.match(low):
        version = gnu[2] or {"gfdl": "1.1", "lgpl": "2.0", "gpl": "1.0", "agpl": "1.0"}[gnu[1]]
        version += "" if "." in version else ".0"
        known = _id(f"{gnu[1].upper()}-{version}-{'or-later' if later or not gnu[2] else 'only'}")
        return known or reference(text)
    if not later and (known := _id(text) or _DEBIAN.get(low)):
        return known
    return reference(text)


@cache
def _id(name: str) -> str | None:
    """An SPDX id in its right spelling; None where SPDX does not list it."""
    from cyclonedx.spdx import fixup_id  # 0.3 s, so not before a licence is asked for

    return fixup_id(name)
