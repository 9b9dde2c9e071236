"""Measured builds: which pairs there are, how a build is judged, and a run that is stopped and continued."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.lock import archive as shapes
from tests.unit.lock.archive import Archive
from tests.unit.lock.conftest import Place

from goldnode.cli import main
from goldnode.core.errors import FactsError, LockError, ModulesError
from goldnode.facts import host as facts
from goldnode.facts import module_builds
from goldnode.facts import site as site_facts
from goldnode.facts.models import module_build_key
from goldnode.lock import builder, pairbuild
from goldnode.lock.aptroot import Download
from goldnode.lock.builder import first_error
from goldnode.lock.pairbuild import PairOutcome, PairRecords, PairRun, judge, measure
from goldnode.lock.pairs import (
    ModulePair,
    PairArchives,
    PairDriver,
    PairKernel,
    PairSelection,
    PairSuite,
    compiler_of,
    pairs,
    release_of_headers,
)


def driver(package: str = "nvidia-kernel-dkms", version: str = "550.163.01-2") -> PairDriver:
    flavour = "open" if "open" in package else "proprietary"
    return PairDriver(
        package,
        version,
        flavour,  # type: ignore[arg-type]
        "trixie",
        Download(package, version, "", 1, "0" * 64),
    )


def kernel(release: str = "6.12.917+deb13-amd64", version: str = "6.12.917-1") -> PairKernel:
    return PairKernel(release, version, "trixie")


DRIVERS = [driver(), driver(version="550.163.01-4~bpo13+1"), driver("nvidia-open-kernel-dkms")]
KERNELS = [
    kernel(),
    kernel("7.2.912+deb13-amd64", "7.2.912-1~bpo13+1"),
    kernel("6.12.917+deb13-rt-amd64"),
]
BROKEN = "nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"
EXCLUDED = "for module nvidia-current/550.163.01 includes a BUILD_EXCLUSIVE directive\nwhich does not match"


# -- which pairs


def test_a_release_of_experimental_is_built_with_the_compiler_of_sid() -> None:
    assert [
        PairSuite.parse(text).codename
        for text in ("debian/experimental", "debian-security/trixie-security")
    ] == [
        "sid",
        "trixie",
    ]


@pytest.mark.parametrize("text", ["trixie", "debian/", "/trixie", ""])
def test_a_suite_without_archive_or_name_is_refused(text: str) -> None:
    with pytest.raises(ModulesError, match="names no suite"):
        PairSuite.parse(text)


@pytest.mark.parametrize(
    ("package", "depends", "release"),
    [
        (
            "linux-headers-6.12.917+deb13-amd64",
            "linux-base, linux-headers-6.12.917+deb13-common (= 6.12.917-1), linux-kbuild-6.12.917+deb13, gcc-14",
            "6.12.917+deb13-amd64",
        ),
        (
            "linux-headers-7.3-amd64",
            "gcc-16-for-host, linux-headers-7.3-common, linux-kbuild-7.3",
            "7.3-amd64",
        ),
        (
            "linux-headers-6.12-amd64",
            "linux-headers-6.12.917+deb12-amd64 (= 6.12.917-1~deb12u1)",
            None,
        ),
        ("linux-headers-6.12.917+deb13-common", "", None),
        ("linux-headers-amd64", "linux-headers-6.12.917+deb13-amd64", None),
        (
            "linux-headers-6.8.0-45-generic",
            "linux-headers-6.8.0-45, libc6 (>= 2.38)",
            "6.8.0-45-generic",
        ),
    ],
)
def test_metapackages_and_parts_of_headers_are_no_kernel(
    package: str, depends: str, release: str | None
) -> None:
    assert release_of_headers({"Package": package, "Depends": depends}) == release


def test_pairs_of_stacks_come_first_and_then_the_globs_decide_the_order() -> None:
    own = ("nvidia-open-kernel-dkms", "550.163.01-2", "7.2.912+deb13-amd64")
    asked = PairSelection(["*bpo13+1", "*"], ["7.*", "6.*-amd64"])
    found = [
        (pair.driver.version, pair.driver.flavour, pair.kernel.release)
        for pair in pairs(asked, DRIVERS, KERNELS, "amd64", [own])
    ]
    assert found[0] == ("550.163.01-2", "open", "7.2.912+deb13-amd64")
    assert found[1] == ("550.163.01-4~bpo13+1", "proprietary", "7.2.912+deb13-amd64")
    assert len(found) == len(set(found)) == 9
    assert {release for _, _, release in found[3:]} == {
        "6.12.917+deb13-amd64",
        "6.12.917+deb13-rt-amd64",
    }


def test_a_flavour_and_a_glob_select_and_a_glob_that_names_nothing_is_refused() -> None:
    found = pairs(
        PairSelection(["*=550.163.01-2"], ["*-rt-*"], ["open"]), DRIVERS, KERNELS, "amd64"
    )
    assert [str(pair) for pair in found] == [
        "nvidia-open-kernel-dkms 550.163.01-2 on 6.12.917+deb13-rt-amd64"
    ]
    with pytest.raises(ModulesError, match=r'no kernel is named "5\.10\*"'):
        pairs(PairSelection(kernels=["5.10*"]), DRIVERS, KERNELS, "amd64")


# -- how a build is judged

CASES: list[tuple[str, PairOutcome, str, str | None]] = [
    ("built", PairOutcome(0, "", ["nvidia"], {"nvidia"}), "builds", None),
    ("a module is missing", PairOutcome(0, "", ["nvidia", "nvidia-uvm"], {"nvidia"}), "fails",
     "dkms.conf names nvidia-uvm, which the build did not give"),
    ("the compiler", PairOutcome(10, f"CC nv.o\n/var/lib/dkms/nvidia-current/550.163.01/build/{BROKEN}\nmake[1]: *** x\n"), "fails", BROKEN),
    ("modpost", PairOutcome(10, 'ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol "x"\nmake: *** y\n'), "fails",
     'ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol "x"'),
    ("dkms.conf", PairOutcome(77, EXCLUDED, exclusive='BUILD_EXCLUSIVE_CONFIG="!CONFIG_PREEMPT_RT"'), "excluded",
     'dkms.conf: BUILD_EXCLUSIVE_CONFIG="!CONFIG_PREEMPT_RT"'),
    ("the disk", PairOutcome(10, "nv.c: error: x\nfatal error: No space left on device\n"), "machine", "No space left on device"),
    ("a program", PairOutcome(10, "/bin/sh: 1: bc: not found\nmake: *** [Makefile:9: x] Error 127\n"), "machine", "/bin/sh: 1: bc: not found"),
    ("a program after the compiler", PairOutcome(10, f"{BROKEN}\n/bin/sh: 1: pahole: not found\n"), "fails", BROKEN),
    ("no reason", PairOutcome(1, "nothing"), "machine", "dkms ended with status 1 and named no reason"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "word", "line"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_build_is_judged_by_status_log_and_modules(
    outcome: PairOutcome, word: str, line: str | None
) -> None:
    verdict = judge(outcome)
    assert (verdict.outcome, verdict.line) == (word, line)


_NOISE = [
    "  CC [M] nvidia/nv.o",
    " CONFTEST: dma_fence_set_error",
    "",
    "warning: x",
    "gcc -Werror=date-time -c a.c",
    "  é \x1b[1m ¥",
]


def _text(random: Random, most: int) -> str:
    letters = [
        chr(number)
        for number in (*range(33, 0x250), 0x1B, 0x3042)
        if chr(number) not in ":\n\r\x85"
    ]
    return "".join(random.choice(letters) for _ in range(random.randint(1, most)))


@pytest.mark.parametrize("seed", range(200))
def test_the_first_error_line_of_any_log_is_found_and_short(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - repeatable cases
    place = f"{_text(random, 12).replace('/', '')}.c:{random.randint(1, 99999)}:1: "
    place = "".join(char for char in place if char.isprintable() and char.strip())
    error = f"{place}{random.choice(['', 'fatal '])}error: {_text(random, 900)}"
    noise = random.choices(_NOISE, k=random.randint(0, 8))
    after = ["later.c:1:1: error: second", "make: *** z", *random.choices(_NOISE, k=3)]
    log = "\n".join([*noise, f"/var/lib/dkms/a-b/1.2/build/{error}", *after])
    assert first_error(log) == error
    verdict = judge(PairOutcome(2, log))
    assert verdict.outcome == "fails"
    assert verdict.line is not None
    assert verdict.line.startswith(place)
    assert len(verdict.line) <= 400
    assert verdict.line.isprintable()


# -- a run


class FakeBuilder:
    """A make that compiles nothing: outcomes by driver version, in order."""

    def __init__(self, outcomes: dict[str, Any], stop_after: int = 99) -> None:
        self.outcomes, self.stop_after = outcomes, stop_after
        self.stop_event = threading.Event()
        self.built: list[str] = []

    def prepare(self, pair: ModulePair) -> None:
        if isinstance(self.outcomes.get(f"prepare {pair.kernel.release}"), LockError):
            raise self.outcomes[f"prepare {pair.kernel.release}"]

    def build(self, pair: ModulePair) -> PairOutcome:
        self.built.append(str(pair))
        if len(self.built) > self.stop_after:
            self.stop_event.set()
            return PairOutcome(-9, "make: *** [x] Killed\n")  # the compiler was killed with the run
        outcome = self.outcomes.get(
            pair.driver.version,
            PairOutcome(
                0,
                log="",
                expected=["nvidia"],
                modules={"nvidia"},
                compiler="gcc-14 14.2.0-19",
                seconds=61.0,
            ),
        )
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, PairOutcome)
        return outcome

    def stop(self) -> None:
        """Nothing runs."""

    def run(self, wanted: Sequence[ModulePair], directory: Path, jobs: int = 1) -> PairRun:
        return measure(
            wanted,
            self,
            PairRecords(directory),
            jobs=jobs,
            say=lambda text: None,
            stop=self.stop_event,
        )


ALL = pairs(PairSelection(), DRIVERS, KERNELS, "amd64")


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_pair_has_one_record_with_its_log(tmp_path: Path, jobs: int) -> None:
    fake = FakeBuilder(
        {"550.163.01-4~bpo13+1": PairOutcome(10, f"x\n{BROKEN}\n", compiler="gcc-14 14.2.0-19")}
    )
    run = fake.run(ALL, tmp_path, jobs)
    found = PairRecords(tmp_path).read()
    assert len(run.written) == len(found) == len(ALL) == 9
    assert set(found) == {pair.key for pair in ALL}
    failed = [record for record in found.values() if record.outcome == "fails"]
    assert {(record.version, record.line, record.compiler) for record in failed} == {
        ("550.163.01-4~bpo13+1", BROKEN, "gcc-14 14.2.0-19")
    }
    assert len(list(tmp_path.glob("*.log.xz"))) == 9


def test_a_run_that_was_killed_continues_with_the_pair_that_ran(tmp_path: Path) -> None:
    first = FakeBuilder({}, stop_after=4)
    run = first.run(ALL, tmp_path)
    assert (len(run.written), run.stopped) == (4, True)
    records = PairRecords(tmp_path).read()
    assert len(records) == 4, "the build that was killed has no record"
    (tmp_path / ".torn.json.new").write_text('{"package": "nv')  # what a power cut leaves
    left = [pair for pair in ALL if pair.key not in records]
    second = FakeBuilder({})
    assert (len(second.run(left, tmp_path).written), len(PairRecords(tmp_path).read())) == (5, 9)
    assert second.built[0] == first.built[-1]


def test_a_fault_of_the_machine_or_the_archive_is_no_record_and_no_end(tmp_path: Path) -> None:
    fake = FakeBuilder(
        {
            "prepare 7.2.912+deb13-amd64": LockError("linux-base: unsatisfied"),
            "550.163.01-4~bpo13+1": OSError("No space left on device"),
        }
    )
    run = fake.run(ALL, tmp_path)
    assert len(run.written) == 4
    assert {why for _, why in run.without} == {"linux-base: unsatisfied", "No space left on device"}
    assert len(run.without) == 5


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ModulesError, match=r"a\.json.*Remove it: the pair is built again"):
        PairRecords(tmp_path).read()


def test_tools_are_checked_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldnode.lock.builder.os.geteuid", lambda: 0)
    monkeypatch.setattr(
        "goldnode.lock.builder.shutil.which",
        lambda name: None if name in ("mmdebstrap", "unshare") else name,
    )
    monkeypatch.setattr(pairbuild, "plan_pairs", lambda *given: pytest.fail("archives were read"))
    done = CliRunner().invoke(main, ["modules", "matrix", "--packages"])
    assert done.exit_code != 0
    assert "unshare, mmdebstrap are not on this machine; nothing was built" in done.output
    assert "nstall: apt-get install util-linux mmdebstrap" in done.output


# -- facts


def test_a_sites_run_becomes_facts_of_its_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeBuilder({"550.163.01-2": PairOutcome(10, f"{BROKEN}\n")}).run(ALL, tmp_path / "pairs")
    target = tmp_path / "catalog/facts/module_builds.yml"
    assert pairbuild.write_facts(PairRecords(tmp_path / "pairs"), target) == 9
    assert not site_facts.faults((str(target.parent),), facts.own_file)
    monkeypatch.setenv("GOLDNODE_CATALOG", str(tmp_path / "catalog"))
    try:
        found = module_builds.measured(
            "550.163.01-4~bpo13+1", "proprietary", "6.12.917+deb13-rt-amd64", "6.12.917", "amd64"
        )
        assert found is not None
        assert str(target) in str(found.origins[0])
    finally:
        facts.forget()
    before = target.read_text()
    pairbuild.write_facts(PairRecords(tmp_path / "pairs"), target)
    assert target.read_text() == before, "the same records give the same file"
    row = {
        **facts.own_file(module_builds.FILE),
        "builds": [
            record.model_dump() for record in PairRecords(tmp_path / "pairs").read().values()
        ],
    }
    assert not site_facts.faults((str(target.parent),), lambda name: row), (
        "a later goldnode measured the same"
    )
    row["builds"][0] |= {"outcome": "excluded"}
    (fault,) = site_facts.faults((str(target.parent),), lambda name: row)
    assert "is in goldnode's facts/module_builds.yml as well (outcome" in fault.message
    lines = [line for line in before.splitlines() if line.startswith("- ")]
    assert len(lines) == 9, "one record per line"


def test_a_facts_file_of_other_sources_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "module_builds.yml"
    target.write_text(
        "meta: {subject: s, compiled: '2026-11-24', how_read: h}\nsources: {book: {title: a book}}\nbuilds: []\n"
    )
    with pytest.raises(FactsError, match=r"rows of other sources \(book\)"):
        pairbuild.write_facts(PairRecords(tmp_path), target)
    monkeypatch.setattr("goldnode.lock.pairbuild.plan_pairs", None)
    done = CliRunner().invoke(
        main, ["modules", "matrix", "--packages", "--plan", "--facts", str(target)]
    )
    assert "rows of other sources (book)" in done.stderr, (
        "before the first build, and not after the last"
    )
    assert "a book" in target.read_text()


def test_the_committed_file_is_what_the_command_writes() -> None:
    file = facts.FACTS / module_builds.FILE
    data = facts.own_file(module_builds.FILE)
    day = str(data["meta"]["compiled"])
    assert module_builds.file_text(data["builds"], day, module_builds.OWN) == file.read_text(
        encoding="utf-8"
    )
    assert len(set(map(module_build_key, data["builds"]))) == len(data["builds"]), (
        "a pair is measured once"
    )


# -- archives


def test_archives_offer_drivers_and_kernels_and_what_a_kernel_needs(
    place: Place, near: Archive
) -> None:
    shapes.kernel(near, "6.1.0-50-rt-amd64", "6.1.176-1")
    near.add("linux-headers-amd64", "6.1.176-1", depends="linux-headers-6.1.0-50-amd64")
    near.add("nvidia-open-kernel-dkms", "535.261.03-1", depends="dkms")
    near.add("nvidia-fs-dkms", "2.17-1", depends="dkms")
    near.add("gcc-12", "12.2.0-14", depends="libc6")
    near.valid_until = "Sat, 21 Nov 2020 00:00:00 UTC"
    near.publish()
    _, catalog, site = place.load()
    archives = PairArchives([PairSuite("near", "bookworm")], catalog, site, "amd64")
    drivers, kernels = archives.offered()
    assert sorted((item.name, item.flavour) for item in drivers) == [
        ("nvidia-kernel-dkms=535.261.03-1", "proprietary"),
        ("nvidia-open-kernel-dkms=535.261.03-1", "open"),
    ]
    assert {item.release for item in kernels} == {"6.1.0-50-amd64", "6.1.0-50-rt-amd64"}
    bare = next(item for item in kernels if item.release == "6.1.0-50-amd64")
    inputs = archives.kernel_inputs(bare)
    assert set(inputs.unpacked) == {
        "linux-headers-6.1.0-50-amd64",
        "linux-headers-6.1.0-50-common",
        "linux-kbuild-6.1",
    }
    assert {"dkms", "gcc", "libc6"} <= set(inputs.installed)
    assert not any(name.startswith("linux-image") for name in inputs.installed)


def test_an_unknown_archive_is_refused_by_name(place: Place, near: Archive) -> None:
    _, catalog, site = place.load()
    with pytest.raises(ModulesError, match='archive "neer" is not in the catalog'):
        PairArchives([PairSuite("neer", "bookworm")], catalog, site, "amd64")


@pytest.mark.parametrize(
    ("headers", "packages", "compiler"),
    [
        (
            "gcc-14, linux-kbuild-x",
            {"gcc-14": "14.2.0-19", "gcc-12": "12.2.0-14"},
            "gcc-14 14.2.0-19",
        ),
        (
            "gcc-14-for-host, linux-kbuild-x",
            {"gcc-14-for-host": "14.2.0-19", "gcc-12": "12"},
            "gcc-14 14.2.0-19",
        ),
        ("linux-kbuild-x", {}, "unknown"),
    ],
)
def test_the_compiler_is_the_one_that_the_headers_demand(
    headers: str, packages: dict[str, str], compiler: str
) -> None:
    stanzas = {"linux-headers-x": {"Package": "linux-headers-x", "Depends": headers}}
    stanzas |= {name: {"Package": name} for name in packages}
    downloads = {
        name: Download(name, version, "", 1, "0" * 64) for name, version in packages.items()
    }
    inputs = builder.ModuleBuildInputs(
        "", release="x", kernel=(), architecture="amd64", flavour=None, driver_version=None, module=None, trees=(), packages=downloads, stanzas=stanzas,
        installed=tuple(packages), unpacked=("linux-headers-x",), tools=(), replaces=(),
    )  # fmt: skip
    assert compiler_of(inputs) == compiler


def test_a_layer_follows_the_links_of_the_root_and_names_its_dkms_source(tmp_path: Path) -> None:
    root, layer, tree = tmp_path / "root", tmp_path / "layer", tmp_path / "deb"
    (root / "usr/lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: nvidia-kernel-dkms\nVersion: 1.2-3\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: t\n"
    )
    (tree / "lib/modules/6.1").mkdir(parents=True)
    (tree / "lib/modules/6.1/build").symlink_to("/usr/src/headers")
    (tree / "usr/src/nvidia-current-1.2").mkdir(parents=True)
    (tree / "usr/src/nvidia-current-1.2/dkms.conf").write_text(
        'PACKAGE_NAME="nvidia-current"\nPACKAGE_VERSION="1.2"\nBUILD_EXCLUSIVE_CONFIG="!CONFIG_PREEMPT_RT"\n'
    )
    file = tmp_path / "one.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "-Znone", str(tree), str(file)], check=True, capture_output=True
    )
    layer.mkdir()
    pairbuild.unpack_layer([file], layer, root)
    assert (layer / "lib").readlink() == Path("usr/lib")
    assert (layer / "usr/lib/modules/6.1/build").is_symlink()
    assert pairbuild.dkms_source(layer, driver()) == ("nvidia-current", "1.2")
    assert pairbuild.kernel_exclusions(layer) == 'BUILD_EXCLUSIVE_CONFIG="!CONFIG_PREEMPT_RT"'
    with pytest.raises(ModulesError, match="has no DKMS source in /usr/src"):
        pairbuild.dkms_source(root, driver())
