"""CSAF 2.0 documents (docs.oasis-open.org/csaf/csaf/v2.0): NVIDIA's bulletins, and those with package URLs.

NVIDIA's product tree has a branch for each system, `Linux(R570)`, whose products are versions: a name of the product
line (Tesla, GeForce) and a text, `All driver versions prior to 570.195.03` or `570.195.03`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from goldnode.cve.claims import DRIVER, TOOLKIT, AdvisoryClaim, BranchClaim, OsRelease, RangeClaim
from goldnode.node.ground.json_lines import as_dict, as_rows

_DRIVER_SYSTEM = re.compile(r"Linux\s*\(R(\d+)\)")
# Names of the product line in the order in which their fixed version counts: Tesla is the data centre driver.
_LINES = ("Tesla", "NVIDIA RTX, Quadro, NVS", "GeForce")
_PACKAGES = {"nvidia container toolkit": TOOLKIT}
# The text may go on with a condition that names another version, in brackets: only the beginning counts.
_PRIOR = re.compile(r"all (?:driver )?versions prior to (?!and including)v?(\d+(?:\.\d+)+)", re.I)
_UP_TO = re.compile(
    r"all (?:driver )?versions (?:up to|prior to) and including v?(\d+(?:\.\d+)+)", re.I
)
_VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
_PURL = re.compile(r"pkg:deb/(?P<vendor>[^/]+)/(?P<name>[^@?]+)@(?P<version>[^?]+)")


@dataclass(frozen=True)
class _Product:
    """A product of the tree: its text, its own branch and the branches around it, outermost first."""

    text: str
    branches: tuple[str, ...]
    purl: str = ""

    @property
    def package(self) -> str | None:
        """Return the package that it is about: a name, DRIVER, or None for anything else."""
        if match := _PURL.match(self.purl):
            return unquote(match["name"])
        if self.driver_branch is not None:
            return DRIVER
        return next(
            (_PACKAGES[name.lower()] for name in self.branches if name.lower() in _PACKAGES), None
        )

    @property
    def driver_branch(self) -> int | None:
        """Return the driver branch of a product of Linux without virtual GPUs."""
        matches = [match for name in self.branches if (match := _DRIVER_SYSTEM.fullmatch(name))]
        return int(matches[0][1]) if matches and self.line in _LINES else None

    @property
    def line(self) -> str:
        """Return the name of its own branch."""
        return self.branches[-1] if self.branches else ""

    @property
    def version(self) -> str | None:
        """Return its version, None if the text is no version."""
        if match := _PURL.match(self.purl):
            return unquote(match["version"])
        match = _VERSION.match(self.text)
        return match[1] if match else None


@dataclass
class _Statement:
    """The products of one package in the status lists of one vulnerability."""

    affected: list[_Product] = field(default_factory=list)
    fixed: list[_Product] = field(default_factory=list)
    unaffected: list[tuple[_Product, str]] = field(default_factory=list)
    open: list[_Product] = field(default_factory=list)


class CsafDocuments:
    """Claims of CSAF documents."""

    def __init__(self, documents: Iterable[bytes]) -> None:
        """Read JSON documents. Raise ValueError for one that is no CSAF 2 document."""
        self.newest, self.documents = "", 0
        self._known: set[str] = set()
        self._claims: dict[str, dict[str, AdvisoryClaim]] = {}
        for data in documents:
            content = json.loads(data)
            head = as_dict(as_dict(content).get("document"))
            if not str(head.get("csaf_version", "")).startswith("2."):
                raise ValueError("it is no CSAF 2 document")
            self.documents += 1
            tracking = as_dict(head.get("tracking"))
            self.newest = max(self.newest, str(tracking.get("current_release_date", ""))[:10])
            self._add(content, f"bulletin {tracking.get('id', '')}".strip())

    def _add(self, content: Mapping[str, Any], bulletin: str) -> None:
        products = _products(as_dict(content.get("product_tree")))
        for row in _list(content.get("vulnerabilities")):
            cve = as_dict(row).get("cve")
            if not isinstance(cve, str):
                continue
            self._known.add(cve)
            for package, statement in _statements(as_dict(row), products).items():
                claim = _claim(cve, as_dict(row), statement, bulletin, driver=package == DRIVER)
                self._claims.setdefault(package, {})[cve] = claim

    def covers(self, system: OsRelease) -> bool:
        """Return True: products are of a vendor, and of any release."""
        return True

    def claims(self, system: OsRelease | None, source: str) -> Mapping[str, AdvisoryClaim]:
        """Return the claims about a package, DRIVER or TOOLKIT."""
        return self._claims.get(source, {})

    def knows(self, cve: str) -> str | None:
        """Return "" for a vulnerability that a document names."""
        return "" if cve in self._known else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _products(tree: Mapping[str, Any]) -> dict[str, _Product]:
    """Return the products of a tree by id, relationships included."""
    products = dict(_walk(tree.get("branches"), ()))
    for row in _list(tree.get("full_product_names")):
        products |= _named(as_dict(row), ())
    for row in _list(tree.get("relationships")):
        # "PRODUCT as a component of SYSTEM": the first is the package.
        inner = products.get(str(as_dict(row).get("product_reference")))
        own = str(as_dict(as_dict(row).get("full_product_name")).get("product_id"))
        if inner is not None:
            products[own] = inner
    return products


def _walk(branches: Any, around: tuple[str, ...]) -> Iterator[tuple[str, _Product]]:
    for branch in _list(branches):
        names = (*around, str(as_dict(branch).get("name", "")))
        yield from _walk(as_dict(branch).get("branches"), names)
        yield from _named(as_dict(as_dict(branch).get("product")), names).items()


def _named(product: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, _Product]:
    if "product_id" not in product:
        return {}
    helper = as_dict(product.get("product_identification_helper"))
    one = _Product(str(product.get("name", "")), names, str(helper.get("purl", "")))
    return {str(product["product_id"]): one}


def _statements(row: Mapping[str, Any], products: Mapping[str, _Product]) -> dict[str, _Statement]:
    """Return what a vulnerability states, by package. Products of other systems are left out."""
    by_package: dict[str, _Statement] = {}
    status = as_dict(row.get("product_status"))
    flags = {
        str(product): str(as_dict(flag).get("label", ""))
        for flag in _list(row.get("flags"))
        for product in _list(as_dict(flag).get("product_ids"))
    }
    for kind, ids in status.items():
        for name in as_rows(ids):
            product = products.get(str(name))
            package = product.package if product is not None else None
            if product is None or package is None:
                continue
            statement = by_package.setdefault(package, _Statement())
            if kind in ("known_affected", "first_affected", "last_affected"):
                statement.affected.append(product)
            elif kind in ("fixed", "first_fixed"):
                statement.fixed.append(product)
            elif kind == "known_not_affected":
                statement.unaffected.append((product, flags.get(str(name), "")))
            elif kind == "under_investigation":
                statement.open.append(product)
    return by_package


def _claim(
    cve: str, row: Mapping[str, Any], statement: _Statement, bulletin: str, *, driver: bool
) -> AdvisoryClaim:
    severity, summary = _severity(row), _summary(row)
    if driver:
        return BranchClaim(cve, _branches(statement), severity, summary, f"NVIDIA's {bulletin}")
    fixed = next((one.version for one in statement.fixed if one.version), None)
    not_affected = ""
    # A product that is also listed as affected is not free of it.
    if statement.unaffected and not statement.affected and fixed is None:
        label = statement.unaffected[0][1].replace("_", " ")
        not_affected = f"{bulletin}: not affected{f', {label}' if label else ''}"
    texts = [one.text for one in statement.affected]
    last = next((match[1] for text in texts if (match := _UP_TO.match(text))), None)
    prior = next((match[1] for text in texts if (match := _PRIOR.match(text))), None)
    return RangeClaim(
        cve,
        severity,
        summary,
        fixed=fixed or prior,
        last=last,
        exact=frozenset(one.version for one in statement.affected if one.version),
        not_affected=not_affected,
        unknown=f"{bulletin}: under investigation" if statement.open else "",
    )


def _branches(statement: _Statement) -> dict[int, str]:
    """Return the first fixed version of each driver branch."""
    fixed: dict[int, str] = {}
    for line in reversed(_LINES):  # the last one that is written counts
        for product in statement.affected:
            match = _PRIOR.match(product.text)
            if product.line == line and product.driver_branch is not None and match:
                fixed[product.driver_branch] = match[1]
        for product in statement.fixed:
            if product.line == line and product.driver_branch is not None and product.version:
                fixed[product.driver_branch] = product.version
    return fixed


def _severity(row: Mapping[str, Any]) -> str:
    for score in _list(row.get("scores")):
        for name in ("cvss_v4", "cvss_v3", "cvss_v2"):
            cvss = as_dict(as_dict(score).get(name))
            if cvss.get("baseSeverity") or cvss.get("baseScore"):
                return str(cvss.get("baseSeverity") or cvss.get("baseScore")).lower()
    return "not stated"


def _summary(row: Mapping[str, Any]) -> str:
    notes = [as_dict(note) for note in _list(row.get("notes"))]
    texts = [
        str(note.get("text", ""))
        for note in notes
        if note.get("category") in ("summary", "description")
    ]
    return texts[0] if texts else str(row.get("title", ""))
