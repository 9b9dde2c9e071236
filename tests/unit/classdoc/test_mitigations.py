"""Mitigations of vulnerabilities: in the class documents of their classes, until they expire."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from tests import documents
from tests.unit.catalog.test_accept_reject import CLASS, FILES, write
from tests.unit.classdoc.test_class_document import LOCK, package

from goldnode.classdoc import mitigations
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core.errors import GoldnodeError, SiteError
from goldnode.core.site import Site, SiteArchive

DAY = dt.date(2026, 11, 28)
ROW = """\
schema: goldnode.mitigation/1
cve: CVE-2026-31431
classes: [a100]
deny: [algif-aead]
sysctl: {kernel.unprivileged_userns_clone: "0"}
cmdline: [module_blacklist=algif_aead]
reason: the advisory says so
owner: ada
expires: 2026-12-31
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    file = tmp_path / "goldnode-site.yml"
    return Site(
        archives={"debian": SiteArchive(url="http://mirror.example.org/debian/")}, file=file
    )


def put(site: Site, text: str = ROW, cve: str = "CVE-2026-31431") -> Path:
    path = mitigations.directory(site) / cve / mitigations.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def compiled(tmp_path: Path, site: Site, on: dt.date = DAY, **files: str) -> dict[str, Any]:
    named = {f"classes/{name}.yml": text for name, text in files.items()}
    catalog = load_catalog([write(tmp_path / "catalog", FILES | named)])
    made = class_document("a100", catalog, site, {"r580": LOCK}, on=on)
    documents.valid(made)
    return made


def test_settings_are_part_of_the_class_document_until_they_expire(
    tmp_path: Path, site: Site
) -> None:
    without = compiled(tmp_path, site)
    put(site)
    document = compiled(tmp_path, site)
    assert document["blacklist"] == [*without["blacklist"], "algif_aead"]
    assert document["policy"]["host"]["sysctl"] == {"kernel.unprivileged_userns_clone": "0"}
    assert "module_blacklist=algif_aead" in document["policy"]["host"]["cmdline"]
    assert document["mitigations"] == [
        {
            "cve": "CVE-2026-31431",
            "deny": ["algif-aead"],
            "sysctl": {"kernel.unprivileged_userns_clone": "0"},
            "cmdline": ["module_blacklist=algif_aead"],
            "reason": "the advisory says so",
            "owner": "ada",
            "expires": "2026-12-31",
        }
    ]
    assert document["digest"] != without["digest"]
    assert compiled(tmp_path, site, dt.date(2026, 12, 31))["digest"] == document["digest"]
    assert compiled(tmp_path, site, dt.date(2027, 1, 1)) == without


def test_mitigation_is_for_its_classes_and_wins_over_the_settings_of_one(
    tmp_path: Path, site: Site
) -> None:
    settings = 'host: {sysctl: {kernel.unprivileged_userns_clone: "1", vm.swappiness: "1"}}'
    own = CLASS.replace("policy:\n", f"policy:\n  {settings}\n")
    put(site)
    document = compiled(tmp_path, site, a100=own)
    assert document["policy"]["host"]["sysctl"] == {
        "kernel.unprivileged_userns_clone": "0",
        "vm.swappiness": "1",
    }
    put(site, ROW.replace("[a100]", "[other]"))
    assert "mitigations" not in compiled(tmp_path, site, a100=own)


@pytest.mark.parametrize(
    ("fixed", "kernel", "expected"),
    [
        ("6.1.192-1", "6.1.192-2", True),
        ("6.1.192-1", "6.1.192-1", True),
        ("6.1.192-1", "6.1.176-1", False),
        ("6.1.192-1", "6.12.117-1~deb12u1", False),  # another series, with a fix of its own
        ("6.1.192-1", None, False),
        (None, "6.1.192-1", False),
    ],
)
def test_lock_whose_kernel_has_the_fix_needs_no_mitigation(
    site: Site, fixed: str | None, kernel: str | None, expected: bool
) -> None:
    put(site, ROW + (f"fixed: {fixed}\n" if fixed else ""))
    rows = mitigations.in_force(site, "a100", DAY, kernel)
    assert [row.cve for row in rows] == ([] if expected else ["CVE-2026-31431"])


def test_document_of_a_lock_with_the_fix_has_no_mitigation(tmp_path: Path, site: Site) -> None:
    catalog = load_catalog([write(tmp_path / "catalog", FILES)])
    image = package("linux-image-6.1.0-56-amd64", "6.1.192-2", part="kernel")
    lock = LOCK.model_copy(update={"packages": [*LOCK.packages, image]})
    fixed = {}
    for version in ("6.1.192-1", "6.1.193-1"):
        put(site, ROW + f"fixed: {version}\n")
        made = class_document("a100", catalog, site, {"r580": lock}, on=DAY)
        fixed[version] = made.get("mitigations", [{}])[0].get("fixed")
    assert fixed == {"6.1.192-1": None, "6.1.193-1": "6.1.193-1"}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (ROW.replace("owner: ada\n", ""), 1, "owner"),
        (ROW.replace("deny: [algif-aead]", 'deny: ["a b"]'), 4, "not the name of a kernel module"),
        (ROW.replace("kernel.unpriv", "/kernel/unpriv"), 5, "not the name of a kernel parameter"),
        (ROW.replace("reason:", "resaon:"), 7, "reason"),
        (ROW.replace("2026-31431", "31431"), 2, "cve"),
        (
            "\n".join(
                line
                for line in ROW.splitlines()
                if not line.startswith(("deny", "sysctl", "cmdline"))
            ),
            1,
            "it has no setting",
        ),
    ],
)
def test_invalid_file_is_refused_with_its_line(
    site: Site, text: str, line: int, message: str
) -> None:
    path = put(site, text)
    with pytest.raises(SiteError, match=message) as caught:
        list(mitigations.load(site))
    assert (caught.value.file, caught.value.line) == (str(path), line)


def test_mitigation_in_the_folder_of_another_one_is_refused(site: Site) -> None:
    put(site, cve="CVE-2026-1000")
    with pytest.raises(SiteError, match="its folder is that of CVE-2026-1000"):
        list(mitigations.load(site))


def test_module_that_the_class_runs_with_is_not_kept_out(tmp_path: Path, site: Site) -> None:
    put(site, ROW.replace("algif-aead", "nvidia-uvm"))
    with pytest.raises(GoldnodeError, match="keeps out nvidia_uvm, which class a100 runs with"):
        compiled(tmp_path, site)
