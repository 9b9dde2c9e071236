"""The facts as data: every source resolves, nothing names a place it must not, and the typed access says where from."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goldnode.core.errors import FactsError
from goldnode.facts import host as facts
from goldnode.facts.site import leaves

FILES = sorted(path.name for path in facts.FACTS.glob("*.yml"))

# Hosts of package registries, put together so that this file names none of them either.
REGISTRIES = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("deb", "debian", "org"),
            ("security", "debian", "org"),
            ("snapshot", "debian", "org"),
            ("packages", "debian", "org"),
            ("archive", "ubuntu", "com"),
            ("pypi", "org"),
            ("python" + "hosted", "org"),
            ("npmjs", ""),
            ("anaconda", "org"),
            ("repo", "radeon", "com"),
            ("developer", "download", "nvidia", "com"),
            ("nvidia", "github", "io"),
            ("nvcr", "io"),
        )
    )
)
MACHINE_PATHS = re.compile(r"/work/|\bshared/|/home/")


def stated(value: Any) -> Iterator[str]:
    """Every source key used anywhere in a facts file."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "source" or str(key).endswith("_source"):
                yield from leaves(inner)
            elif key == "eol_sources":
                yield from inner
            elif key != "sources":
                yield from stated(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from stated(inner)


def test_all_files_are_here() -> None:
    assert len(FILES) == 23
    readme = (facts.FACTS / "README.md").read_text(encoding="utf-8")
    assert [name for name in FILES if f"| {name} |" not in readme] == []


@pytest.mark.parametrize("name", FILES)
def test_every_source_resolves_and_is_used(name: str) -> None:
    data = facts.load(name)
    used = list(stated(data))
    assert used
    assert set(used) - set(data["sources"]) == set()
    for key, entry in data["sources"].items():
        assert entry.get("title"), key


@pytest.mark.parametrize(
    "path",
    sorted(path for path in facts.FACTS.iterdir() if path.is_file()),
    ids=lambda path: path.name,
)
def test_no_registry_and_no_path_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert REGISTRIES.findall(text) == []
    assert MACHINE_PATHS.findall(text) == []


def test_day_of_the_facts_is_the_newest_of_all_files() -> None:
    days = [facts.load(name)["meta"]["compiled"] for name in FILES]
    assert str(facts.compiled()) == max(days)


@pytest.mark.parametrize(
    "head",
    [
        "meta:\n  subject: x\n  compiled: '2031-01-02'\n  note: y\n",
        "meta: {subject: 'x', compiled: '2031-01-02'}\n",
        'meta: {subject: x, "compiled": "2031-01-02"}\n',
    ],
    ids=["lines", "one-line", "quoted"],
)
def test_day_of_the_facts_is_read_in_each_form(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FILES:
        shutil.copy(facts.FACTS / name, tmp_path)
    file = tmp_path / "tolerances.yml"
    rest = re.sub(r"(?ms)\A.*?(?=^sources:)", "", file.read_text(encoding="utf-8"))
    file.write_text(head + rest, encoding="utf-8")
    monkeypatch.setattr(facts, "FACTS", tmp_path)
    assert str(facts.built_in()) == "2031-01-02"


def test_catalog_names_no_registry_either() -> None:
    catalog = Path(facts.__file__).parents[3] / "catalog"
    seen = [path for path in catalog.rglob("*") if path.is_file()]
    assert len(seen) > 20
    vendors = tuple(
        ".".join(parts)
        for parts in (
            ("archive", "ubuntu", "com"),
            ("repo", "radeon", "com"),
            ("developer", "download", "nvidia", "com"),
            ("nvidia", "github", "io"),
        )
    )
    for path in seen:
        allowed = (
            vendors if path.name == "archives.yml" else ()
        )  # the one place that names vendors' addresses
        named = REGISTRIES.findall(path.read_text(encoding="utf-8"))
        assert [host for host in named if host not in allowed] == [], path


def test_the_check_above_can_fail() -> None:
    assert REGISTRIES.search("http://" + ".".join(("deb", "debian", "org")) + "/debian")
    assert MACHINE_PATHS.search("path: shared/x.yml")
    assert set(stated({"a": [{"source": ["x", "y"]}, {"source": {"mig": "z"}}]})) == {"x", "y", "z"}


def test_gpu_has_its_values_and_origins() -> None:
    gpu = facts.gpu("A100-SXM4-40GB")
    assert (gpu.vendor, gpu.pci_ids, gpu.architecture) == ("nvidia", ("10de:20b0",), "Ampere")
    assert (gpu.power_limit_default_w, gpu.memory_mib, gpu.mig_capable) == (400, 40960, True)
    assert gpu.mig_profiles is not None
    assert "3g.20gb" in gpu.mig_profiles
    (origin,) = gpu.origins("memory_power")
    assert (origin.file, origin.key) == ("gpus.yml", "smi")
    assert "nvidia-smi" in str(origin)
    assert len(gpu.origins("nvlink")) == 2
    assert gpu.origins("nothing") == ()


def test_every_gpu_has_pci_ids_and_a_known_vendor() -> None:
    found = facts.gpus()
    assert {gpu.vendor for gpu in found.values()} == {"nvidia", "amd", "intel"}
    for gpu in found.values():
        assert gpu.pci_ids, gpu.sku
        assert all(re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", item) for item in gpu.pci_ids), gpu.sku
    # Two spellings of one profile in the source are two profiles here.
    assert {"3g.93gb", "3g.95gb"} <= set(found["GB200"].mig_profiles or ())
    # "Not found" stays apart from "not capable".
    assert found["B100"].mig_capable is None
    assert found["L4"].mig_capable is False
    assert found["MI300X"].mig_capable is None


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: facts.gpu("A100-SXM-40GB"),
            r'"A100-SXM-40GB" is not in the facts\. Use "A100-SXM4-40GB"',
        ),
        (lambda: facts.gpu("h100-sxm5-80gb"), 'Use "H100-SXM5-80GB"'),
        (lambda: facts.branch("53"), 'Use "530" or "535"'),
        (lambda: facts.security_floor("999"), "no security facts"),
        (lambda: facts.load("gpu.yml"), 'Use "gpus.yml"'),
    ],
)
def test_unknown_fact_is_an_error(ask: Any, message: str) -> None:
    with pytest.raises(FactsError, match=message):
        ask()


def test_branch_has_its_end_of_life_and_security_floor() -> None:
    branch = facts.branch("535")
    assert (branch.end_of_life, branch.latest_known, branch.kind) == (
        "2026-06",
        "535.309.01",
        "LTSB",
    )
    assert [(origin.key, date) for origin, date in branch.end_of_life_sources] == [
        ("dds615", "2026-06"),
        ("eol", "2026-06-01"),
    ]
    assert "535.261.03" in branch.point_releases
    assert facts.branch("615").end_of_life is None
    floor = facts.security_floor("535")
    assert (floor.floor, floor.fixed, floor.bulletin) == ("535.309.01", False, "5821")
    assert facts.security_floor("580").fixed
    assert facts.security_floor("620").floor is None
    assert facts.floor_of("535") == floor.floor
    assert facts.floor_of("620") is None
    assert facts.floor_of("999") is None
    assert floor.origins[0].key == "ps"


@pytest.mark.parametrize(
    ("kernel", "driver", "flavour", "outcome", "confidence"),
    [
        # Seen.
        ("6.1.192", "535.309.01", "proprietary", "ok", "seen"),
        ("6.12.94+deb13-amd64", "550.163.01", "proprietary", "ok", "seen"),
        ("6.12.117+deb13-amd64", "550.163.01", "open", "fails", "seen"),
        # Stated: listed as failing, or the branch has the fix for this very series.
        ("6.12.107", "550.163.01", "open", "fails", "seen"),
        ("6.12.117", "550.163.01", "proprietary", "ok", "seen"),
        ("6.17", "550.163.01", "proprietary", "fails", "stated"),
        ("6.8.12", "525.147.05", "proprietary", "fails", "stated"),
        ("6.10", "545.29.06", "proprietary", "fails", "stated"),
        ("6.1.0-56-amd64", "470.256.02", "proprietary", "ok", "stated"),
        ("6.12", "535.309.01", "proprietary", "ok", "stated"),
        # Derived: older than its branch's first fix, or fixed for a later series.
        ("6.5", "525.78.01", "proprietary", "fails", "derived"),
        ("6.1.76", "535.104.05", "proprietary", "fails", "derived"),
        ("6.12", "580.178.04", "open", "ok", "derived"),
        # Several fixes of one branch for one kernel are one fix in parts: the last counts.
        ("6.19.0", "580.119.02", "proprietary", "fails", "stated"),
        ("6.19.0", "580.126.09", "proprietary", "fails", "derived"),
        ("6.19.0", "580.126.09", "open", "fails", "derived"),
        ("6.19.0", "580.126.18", "proprietary", "ok", "stated"),
        ("6.18.5", "580.126.09", "proprietary", "ok", "derived"),
        ("6.15.0", "570.153.02", "proprietary", "fails", "stated"),
        (
            "6.15.3",
            "570.153.02",
            "open",
            "ok",
            "stated",
        ),  # the last part is of the proprietary flavour
        ("6.15.0", "570.169", "proprietary", "ok", "stated"),
        (
            "6.13.1",
            "550.142",
            "proprietary",
            "ok",
            "stated",
        ),  # the second part is of the open flavour
        ("6.13.1", "550.142", "open", "fails", "derived"),
        ("6.19.7", "590.48.01", "open", "fails", "stated"),
        ("7.1.0", "580.142", "proprietary", "fails", "stated"),
        ("7.1.3", "580.159.03", "open", "fails", "stated"),
        ("7.1.3", "580.159.04", "open", "ok", "stated"),
        ("7.0.13", "580.159.03", "open", "ok", "stated"),
        ("7.1", "610.43.02", "open", "ok", "seen"),
        ("7.0.0", "595.45.04", "open", "fails", "stated"),
        # A stable update counts in its own series only.
        ("6.1.75", "535.104.05", "proprietary", "ok", "derived"),
        ("6.13.1", "550.163.01", "proprietary", "ok", "stated"),
        # A fix of the open flavour is none of the proprietary one.
        ("6.16", "535.261.03", "open", "ok", "stated"),
        ("6.16", "535.261.03", "proprietary", "unknown", "derived"),
        ("7.2", "595.91.07", "open", "unknown", "derived"),
        ("6.12", "999.1.1", "open", "unknown", "derived"),
    ],
)
def test_kernel_build_has_its_outcome_and_confidence(
    kernel: str, driver: str, flavour: Any, outcome: str, confidence: str
) -> None:
    found = facts.kernel_build(kernel, driver, flavour)
    assert (found.outcome, found.confidence) == (outcome, confidence), found
    assert driver in found.reason
    assert bool(found.origins) is (outcome != "unknown")
