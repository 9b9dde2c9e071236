"""Licences as SPDX expressions, from Debian's machine-readable copyright files and the metadata of wheels.

`license-expression` parses expressions and has the list of SPDX. A name that is not an SPDX id becomes
`LicenseRef-NAME`, never the closest known id. Prose is not interpreted: a package with only a prose licence
has no stated licence. Debian's short names are defined in "Machine-readable debian/copyright file" 1.0,
section "License specification".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from license_expression import LicenseExpression, LicenseSymbol

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
_OPERATOR = re.compile(r"\b(and|or)\b", re.IGNORECASE)
# A comma that does not precede an operator, or a name directly after a parenthesis: no expression, but prose.
_PROSE = re.compile(r",(?!\s*(and|or)\b)|\)\s*(?!\)|,|and\b|or\b|$)", re.IGNORECASE)
# Characters that no SPDX id has, and that the parser refuses.
_FOREIGN = re.compile(r"[^\w\s.:+()-]")
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
    names = re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE | re.IGNORECASE)
    return sorted({" ".join(line.split()) for line in names})


def debian(lines: Iterable[str]) -> str | None:
    """Return one expression for all licence lines of a package, or None without lines.

    The lines are joined with AND, because each applies to part of the package's files.
    """
    from license_expression import combine_expressions  # loads the list of SPDX: takes 0.1 s

    licences = sorted(
        {expression for line in lines if (expression := _expression(line, _debian_name))}
    )
    return combine_expressions(licences, unique=True).render() if licences else None


def wheel(headers: dict[str, list[str]]) -> str | None:
    """Return the licence expression of a wheel from its METADATA headers (keys in lower case).

    License-Expression takes precedence, then License, then the licence classifiers.
    """
    if said := next(iter(headers.get("license-expression", [])), None):
        return _expression(said, _spdx_name)
    said = next((line.strip() for line in headers.get("license", []) if line.strip()), "")
    # Old setuptools wrote UNKNOWN for a header that was not given. Some wheels put the whole licence text into
    # it; only a short single line is a name.
    if said and said.upper() != "UNKNOWN" and "\n" not in said and len(said) <= 80:
        known = _id(said) or _CLASSIFIERS.get(said.lower())
        return known or _expression(said, _spdx_name, whole=True)
    classified = [
        row.split(" :: ")[-1]
        for row in headers.get("classifier", [])
        if row.startswith("License :: ") and row.count(" :: ") > 1
    ]
    names = sorted(
        {_id(row) or _CLASSIFIERS.get(row.lower()) or reference(row) for row in classified}
    )
    return " AND ".join(names) or None


def references(expression: str) -> list[str]:
    """Return the names in an expression that are not SPDX ids."""
    return sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression)))


def reference(name: str) -> str:
    """Return the `LicenseRef-` id for a licence that SPDX does not list."""
    bare = re.sub(r"[^A-Za-z0-9.]+", "-", name.removeprefix("LicenseRef-")).strip("-.")
    return f"LicenseRef-{bare or 'unnamed'}"


def _expression(text: str, name: Callable[[str], str], *, whole: bool = False) -> str:
    """Return the SPDX expression of a text whose names `name` translates; a LicenseRef if it is none.

    `whole`: a text without an operator is one name.
    """
    from license_expression import ExpressionError, Licensing  # loads the list of SPDX: takes 0.1 s

    if _PROSE.search(text) or (whole and not _OPERATOR.search(text)):
        return reference(text)
    licensing = Licensing()
    try:
        tree = licensing.parse(_FOREIGN.sub("-", _grouped(text)))
        if tree is None:
            return reference(text)
        names = {symbol: _symbol(symbol, name) for symbol in tree.symbols}
        return str(licensing.dedup(tree.subs(names)).render())
    except ExpressionError:
        return reference(text)


def _grouped(text: str) -> str:
    """Return a text with parentheses for its commas: `A or B, and C` is `(A or B) and C`.

    An operator after a comma binds less than one without, and of such operators the first binds most.
    """
    if len({operator.lower() for operator in _OPERATOR.findall(text)}) <= 1:
        return text.replace(",", "")
    first, *rest = re.split(r",\s*(and|or)\b", text, flags=re.IGNORECASE)
    operators, clauses = rest[::2], rest[1::2]
    if len({operator.lower() for operator in operators}) == 1:
        return f" {operators[0]} ".join(f"({clause})" for clause in (first, *clauses))
    grouped = f"({first})"
    for operator, clause in zip(operators, clauses, strict=True):
        grouped = f"({grouped} {operator} ({clause}))"
    return grouped


def _symbol(symbol: LicenseSymbol, name: Callable[[str], str]) -> LicenseExpression:
    # Loads the list of SPDX, as above.
    from license_expression import LicenseSymbol, LicenseWithExceptionSymbol

    if not isinstance(symbol, LicenseWithExceptionSymbol):
        return LicenseSymbol(name(symbol.key))
    licence, exception = symbol.license_symbol.key, symbol.exception_symbol.key
    known, more = name(licence), _ids().get(exception.lower())
    # In Debian, the name of an exception is free text: "GPL-2+ with OpenSSL exception".
    if (
        name is _debian_name
        or known.startswith("LicenseRef-")
        or more is None
        or not more.is_exception
    ):
        return LicenseSymbol(reference(f"{licence} with {exception}"))
    return LicenseWithExceptionSymbol(
        LicenseSymbol(known), LicenseSymbol(more.key, is_exception=True)
    )


def _spdx_name(text: str) -> str:
    return _id(text) or reference(text)


def _debian_name(text: str) -> str:
    if (
        " " in text
    ):  # as in "GPL-2+ with OpenSSL exception": in Debian, the name of an exception is free text
        return reference(text)
    later = text.endswith("+")
    low = text.removesuffix("+").lower()
    if gnu := _GNU.match(low):
        # Debian's GPL without a version means any version, so it maps to the lowest one with "or-later".
        version = gnu[2] or {"gfdl": "1.1", "lgpl": "2.0", "gpl": "1.0", "agpl": "1.0"}[gnu[1]]
        # SPDX has GPL-2.0, Debian GPL-2.
        version += "" if "." in version else ".0"
        known = _id(f"{gnu[1].upper()}-{version}-{'or-later' if later or not gnu[2] else 'only'}")
        return known or reference(text)
    if not later and (known := _id(text) or _DEBIAN.get(low)):
        return known
    return reference(text)


def _id(name: str) -> str | None:
    """Return the current SPDX id of a licence in its official spelling, or None if SPDX does not list it."""
    known = _ids().get(name.lower())
    return None if known is None or known.is_exception else str(known.key)


@cache
def _ids() -> dict[str, LicenseSymbol]:
    """Return the licences and exceptions of SPDX by id in lower case. A deprecated id has its successor."""
    from license_expression import get_spdx_licensing  # loads the list of SPDX: takes 0.1 s

    return {
        name.lower(): symbol
        for symbol in get_spdx_licensing().known_symbols.values()
        for name in (*symbol.aliases, symbol.key)
        # The list also has ids of ScanCode, which are not of SPDX.
        if not name.startswith("LicenseRef-") and not symbol.key.startswith("LicenseRef-")
    }
