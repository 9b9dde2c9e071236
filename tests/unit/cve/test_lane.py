"""The lane of a vulnerability on simulated nodes: mitigated, prepared, rolled out and proved, each by what is read."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from tests import documents
from tests.simulators.fleet import NOW, fleet, put, store
from tests.unit.cve.samples import CVE, tracker
from tests.unit.cve.test_match import node
from tests.unit.disks.disk_samples import make_build, prove
from tests.unit.images.registries import make_key

from goldnode.catalog.load import builtin_catalog
from goldnode.catalog.models import EvidenceRule
from goldnode.classdoc.load import load_catalog
from goldnode.classdoc.mitigations import Mitigation
from goldnode.cli import main
from goldnode.commands.cve import prepare as prepare_command
from goldnode.commands.cve import sources
from goldnode.commands.cve.prove import PAYLOAD_TYPE
from goldnode.commands.schema.kinds import schema
from goldnode.core.errors import GoldnodeError, SiteError
from goldnode.core.site import Site, SiteCve
from goldnode.cve import prepare, subjects
from goldnode.cve.debian import DebianTracker
from goldnode.cve.feeds import Feed
from goldnode.cve.lane import LaneFacts, mitigated, proof
from goldnode.cve.match import Matcher, inventory
from goldnode.cve.nodes import NodeFacts
from goldnode.cve.prepare import PrepareRequest, building, run
from goldnode.cve.prepare_steps import PrepareStep
from goldnode.cve.record import CveRecord, event
from goldnode.cve.report import CveQuestion, build
from goldnode.cve.rollouts import document, soak
from goldnode.disks.definition import load_definition
from goldnode.disks.locking import load_disk_lock, lock_file
from goldnode.evidence.signatures import load_public, open_envelope
from goldnode.facts.host import gpu
from goldnode.fleet.rollout.check import check
from goldnode.fleet.rollout.document import loads
from goldnode.lock.model import load_lock
from goldnode.lock.model import lock_file as stack_lock_file

CLASS, STACK = "demo_disk_r535", "debian12_r535"
LOCK = load_lock(builtin_catalog() / "stacks" / f"{STACK}.lock.yml")
RELEASE = LOCK.kernel_release
VERSION = next(item.version for item in LOCK.packages if item.name == f"linux-image-{RELEASE}")
OLD = "sha256:" + "0" * 64
AT = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)


FREEZE = "\r\n".join(
    [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//site//freezes//EN",
        "BEGIN:VEVENT",
        "UID:1",
        "DTSTAMP:20261101T000000Z",
        "DTSTART:20261220T000000Z",
        "DTEND:20270104T000000Z",
        "SUMMARY:Year end",
        "END:VEVENT",
        "END:VCALENDAR",
        "",
    ]
)


@pytest.fixture(scope="module")
def carriers() -> subjects.Carriers:
    """The lock of the class and its disk: those of the other stacks are of another day."""
    catalog = load_catalog()
    listed = subjects.Carriers()
    listed.add(subjects.of_lock(LOCK, subjects.releases(catalog)[STACK]))
    for disk in subjects.disks(catalog, []):
        if disk.name == CLASS:
            listed.add(disk)
    return listed


class Lane:
    """A site with the data of a tracker, four simulated nodes, and their captures."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.moved, self.denied = folder, 0, 0
        self.key, self.public = make_key(folder)
        self.site = folder / "goldnode-site.yml"
        calendars = "fleet: {calendars: {year-end: {file: freeze.ics, zone: UTC}}}"
        self.site.write_text(f"cve: {{soak: {{high: 2h}}}}\n{calendars}\n")
        (folder / "freeze.ics").write_text(FREEZE)
        self.feed(VERSION)
        (folder / "hosts.yml").write_text(
            f"{CLASS}:\n  hosts:\n    node1003: {{goldnode_owner: team-b}}\n"
        )
        self.captured = 0

    def feed(self, fixed: str) -> None:
        """Write the data: the vulnerability is fixed in this version."""
        row = {"status": "resolved", "fixed_version": fixed, "urgency": "high"}
        (self.folder / "tracker.json").write_text(tracker({"linux": {CVE: {"bookworm": row}}}))

    def capture(self) -> None:
        """Let the nodes report: the first `moved` have booted the fix, the first `denied` keep the module out."""
        self.captured += 1
        nodes = fleet(4, CLASS)
        for number, one in enumerate(nodes):
            fixed = number < self.moved
            version = VERSION if fixed else "6.1.100-1"
            release = RELEASE if fixed else "6.1.0-20-amd64"
            for path, value in {
                "os/version": "12",
                "os/kernel/running": release,
                "os/kernel/version": f"#1 SMP Debian {version} (2026-11-20)",
                "os/kernel/installed": [release],
                "os/modules": ["nvidia", "ext4"],
                "os/denied": ["algif_aead"] if number < self.denied else [],
                "identity/lock_digest": LOCK.digest if fixed else OLD,
                "driver/loaded": "535.309.01",
            }.items():
                one.change(put(path, value))
        # A directory for each round: the last captures alone count.
        store(self.folder / f"captures{self.captured}", nodes, [NOW])

    def run(self, *words: object, options: Sequence[object] = ()) -> Result:
        """Run a step of the lane."""
        step, *more = map(str, words)
        data = [
            "--feed",
            f"debian={self.folder / 'tracker.json'}@2026-11-28",
            "--data",
            str(self.folder / f"captures{self.captured}"),
        ]
        argv = ["cve", step, CVE, *data, *more, *map(str, options)]
        done = CliRunner().invoke(main, argv)
        assert done.exit_code in (0, 1, 2), done.output
        assert "Traceback" not in done.output
        return done

    def steps(self) -> dict[str, str]:
        """Return step -> state of the class."""
        done = self.run("lane", "--format", "json")
        assert done.exit_code == 0, done.output
        content = json.loads(done.stdout)
        jsonschema.validate(documents.valid(content), schema("cve-lane"))
        rows = {row["class"]: row["steps"] for row in content["classes"]}
        return {step["step"]: step["state"] for step in rows.get(CLASS, ())}

    @property
    def record(self) -> CveRecord:
        """Return the record of the vulnerability."""
        return CveRecord(Site(file=self.site), CVE)


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carriers: subjects.Carriers) -> Lane:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "carriers_of", lambda _: carriers)
    monkeypatch.setenv("GOLDNODE_DISKS", str(tmp_path / "disks"))
    made = Lane(tmp_path)
    monkeypatch.setenv("GOLDNODE_SITE", str(made.site))
    made.capture()
    return made


def disk_lock() -> str:
    """Return the digest of the lock of the class's disk."""
    path = lock_file(CLASS, load_definition())
    assert path is not None
    return load_disk_lock(path).digest


MITIGATION = (
    "--class",
    CLASS,
    "--deny",
    "algif-aead",
    "--reason",
    "the advisory asks for it",
    "--owner",
    "ada",
    "--expires",
    "2099-12-31",
)


def test_lane_of_a_vulnerability_from_its_publication_to_the_signed_proof(lane: Lane) -> None:
    published = ("--published", "2026-11-27")
    assert "hours since its publication" in lane.run("lane", *published).output
    assert lane.steps() == {
        "mitigate": "open",
        "prepare": "partly",
        "roll-out": "open",
        "prove": "open",
    }
    assert "no disk was built from this lock" in lane.run("prepare", "--class", CLASS).output
    disk = make_build(lane.folder / "disks", class_=CLASS, disk_lock=disk_lock())
    assert "disk boot: missing: it was never booted" in lane.run("prepare", "--class", CLASS).output
    prove(disk, None)
    assert lane.run("prepare", "--class", CLASS).exit_code == 0
    assert lane.steps()["prepare"] == "done"
    # Dry by default: nothing is written.
    dry = lane.run("mitigate", *MITIGATION)
    assert ("would write" in dry.output, lane.record.mitigation.exists()) == (True, False)
    assert lane.run("mitigate", *MITIGATION, "--write").exit_code == 0
    written = yaml.safe_load(lane.record.mitigation.read_text())
    # The lock has the fix already, so that only nodes are left: it ends by its expiry, or is lifted.
    assert (written["deny"], "fixed" in written) == (["algif-aead"], False)
    # The file is no proof: nodes are.
    assert lane.steps()["mitigate"] == "partly"
    lane.denied = 4
    lane.capture()
    assert lane.steps()["mitigate"] == "done"
    assert "still have" in lane.run("mitigate", "--lift", "--write").stderr

    dry = lane.run("roll-out", "--class", CLASS, "--override-calendar", "year-end=the CVE is used")
    assert ("would write" in dry.output, lane.record.rollout(CLASS).exists()) == (True, False)
    unknown = lane.run("roll-out", "--class", CLASS, "--override-calendar", "easter=it is used")
    assert (unknown.exit_code, 'no freeze calendar "easter"' in unknown.output) == (1, True)
    words = ("--class", CLASS, "--override-calendar", "year-end=the CVE is used", "--write")
    assert lane.run("roll-out", *words).exit_code == 0
    planned = loads(lane.record.rollout(CLASS).read_text()).document
    assert (planned.lane, planned.waves[0].soak) == ("security", "2h")
    assert planned.override_calendars == {"year-end": "the CVE is used"}
    assert (planned.from_.lock, planned.to.lock) == (OLD, LOCK.digest)
    assert lane.steps()["roll-out"] == "partly"

    lane.moved = 3
    lane.capture()
    proof = ("prove", "-i", lane.folder / "hosts.yml", "--key", lane.key, "--write")
    done = lane.run(*proof)
    assert (done.exit_code, "left: node node1003 (team-b): denied" in done.output) == (1, True)
    assert lane.steps()["prove"] == "partly"

    lane.moved = 4
    lane.capture()
    done = lane.run(*proof, options=["--format", "json"])
    assert done.exit_code == 0, done.output
    jsonschema.validate(documents.valid(json.loads(done.stdout)), schema("cve-proof"))
    assert set(lane.steps().values()) == {"done", "not-needed"}
    signed = lane.record.proof.with_name("proof.json.dsse").read_bytes()
    opened = open_envelope(signed, load_public(lane.public))
    assert (opened.payload, opened.payload_type) == (lane.record.proof.read_bytes(), PAYLOAD_TYPE)
    text = lane.run("lane", "--html", lane.folder / "lane.html").output
    assert "high: 1 proved" in text
    page = (lane.folder / "lane.html").read_text()
    assert CLASS in page
    assert "Simulated." in page

    assert lane.run("mitigate", "--lift", "--write").exit_code == 0
    assert not lane.record.mitigation.exists()
    assert [(one.step, one.event) for one in lane.record.events()] == [
        ("published", "proved"),
        ("mitigate", "begun"),
        ("roll-out", "begun"),
        ("prove", "begun"),
        ("prove", "begun"),
        ("prove", "proved"),
        ("mitigate", "begun"),
    ]


def test_fix_that_the_lock_does_not_have_is_not_rolled_out(lane: Lane) -> None:
    lane.feed(f"{VERSION}+x")
    assert f"fixed: {VERSION}+x" in lane.run("mitigate", *MITIGATION).output
    done = lane.run("roll-out", "--class", CLASS, "--write")
    assert (done.exit_code, "goldnode cve prepare" in done.stderr) == (2, True), done.output
    assert not lane.record.folder.exists()


def test_command_that_ends_well_and_changes_nothing_stops_the_class(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane.feed(f"{VERSION}+x")
    ran: list[Sequence[str]] = []

    def execute(words: Sequence[str]) -> str:
        ran.append(words)
        return "all is well"

    monkeypatch.setattr(prepare_command, "command_output", execute)
    dry = lane.run("prepare", "--class", CLASS)
    assert (dry.exit_code, f"goldnode lock {STACK} --security" in dry.output) == (1, True)
    assert not ran
    done = lane.run("prepare", "--class", CLASS, "--write")
    assert (done.exit_code, ran) == (1, [("lock", STACK, "--security")])
    assert [one.event for one in lane.record.events()] == ["begun", "stopped"]


def test_steps_go_on_where_a_run_was_cut(tmp_path: Path) -> None:
    record = CveRecord(Site(file=tmp_path / "site.yml"), CVE)
    state = {"lock": "old", "module": "none", "disk": "none"}
    ran: list[str] = []

    def step(name: str) -> PrepareStep:
        return PrepareStep(name, (name,), lambda: state[name])

    def execute(words: Sequence[str]) -> str:
        ran.append(words[0])
        if words[0] != "disk" or ran.count("disk") > 1:
            state[words[0]] = ""
        return "end"

    chosen = [step(name) for name in state]
    who: tuple[str, Callable[[], dt.datetime]] = ("ann", lambda: AT)
    assert [one.state for one in run(chosen, None, record, "a", who)] == [
        "missing",
        "waits",
        "waits",
    ]
    assert [one.state for one in run(chosen, execute, record, "a", who)] == [
        "ran",
        "ran",
        "missing",
    ]
    assert [one.state for one in run(chosen, execute, record, "a", who)] == ["done", "done", "ran"]
    assert ran == ["lock", "module", "disk", "disk"]
    assert [one.event for one in record.events()].count("proved") == 3


def test_drivers_that_build_on_a_kernel_are_those_that_were_measured() -> None:
    assert not building("0.0.0-0-amd64")
    newest = building("7.2.3+deb14-amd64") or building(RELEASE)
    assert newest == sorted(newest, key=lambda text: int(text.split(".")[0]), reverse=True)
    # An alternative must support the GPUs of the class: 470 is too old for Hopper.
    kernel = "7.2.12+deb13-amd64"
    assert building(kernel, gpu("A100-SXM4-40GB")) == ["470.256.02 (proprietary)"]
    assert building(kernel, gpu("H100-SXM5-80GB")) == []
    assert building("6.12.117+deb13-amd64", gpu("H100-SXM5-80GB"))[0] == "550.163.01 (proprietary)"


def test_line_that_a_crash_cut_spoils_no_other(tmp_path: Path) -> None:
    record = CveRecord(Site(file=tmp_path / "site.yml"), CVE)
    record.add(event(AT, "ann", "prepare", "begun", "lock", class_="a"))
    file = record.folder / "record.jsonl"
    file.write_bytes(file.read_bytes() + b'{"at": "2026-11-2')
    assert len(record.events()) == 1
    record.add(event(AT, "ann", "prepare", "proved", "lock", class_="a"))
    assert [one.event for one in record.events()] == ["begun", "proved"]
    file.write_text("no event\n")
    with pytest.raises(SiteError, match="no event of a record") as caught:
        record.events()
    assert caught.value.line == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["mitigate"], "name a class with --class"),
        (["mitigate", *MITIGATION[:-2]], "a mitigation has --expires"),
        (["mitigate", *MITIGATION[:-1], "2020-01-01"], "2020-01-01 is past"),
        (["mitigate", "--class", CLASS, *MITIGATION[4:]], "it has no setting"),
        (["mitigate", *MITIGATION, "--sysctl", "a"], 'has no "="'),
        (["roll-out", "--class", "gone"], "gone"),
        (["roll-out", "--class", CLASS, "--override-calendar", "x"], "has no reason"),
        (["prove", "--write"], "no key signs proofs"),
        (["lane", "--published", "2099-01-01"], "is in the future"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(
    lane: Lane, words: Sequence[Any], part: str
) -> None:
    done = lane.run(*words)
    assert (done.exit_code, part in done.stderr) == (2, True), done.output
    assert not lane.record.folder.exists()


def test_name_that_is_no_cve_names_no_folder(lane: Lane) -> None:
    done = CliRunner().invoke(main, ["cve", "lane", "../x"])
    assert (done.exit_code, "is no CVE" in done.output) == (2, True)


def lane_facts(nodes: Sequence[NodeFacts], mitigation: Mitigation) -> LaneFacts:
    """Return the facts of nodes that all run a kernel with the vulnerability."""
    row = {"status": "resolved", "fixed_version": "6.1.192-1", "urgency": "high"}
    data = DebianTracker(tracker({"linux": {CVE: {"bookworm": row}}}), {"bookworm"})
    matcher = Matcher([Feed("debian", "made", "", "2026-11-27", "given", data)], {CVE})
    listed = inventory(subjects.Carriers(), nodes)
    report = build(CveQuestion((CVE,), AT), listed, matcher, nodes)
    return LaneFacts(
        CVE,
        entry=next(report.entries(), None),
        report=report,
        nodes=nodes,
        stacks={"h100": STACK},
        mitigation=mitigation,
        record=CveRecord(Site(file=Path("/nowhere/site.yml")), CVE),
        digest=lambda _: "sha256:now",
        missing=lambda _: [],
        at=AT,
        owners={},
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sysctl": {"kernel.unprivileged_userns_clone": "0"}}, ["now"]),
        ({"deny": ["algif_aead"]}, ["denied", "denied-now"]),
        ({"deny": ["algif_aead"], "cmdline": ["nosmt"]}, ["denied-now"]),
    ],
)
def test_setting_counts_where_the_node_reports_it(
    settings: dict[str, Any], expected: list[str]
) -> None:
    content = {"schema": "goldnode.mitigation/1", "cve": CVE, "classes": ["h100"], **settings}
    row = Mitigation.model_validate(
        {**content, "reason": "x", "owner": "ada", "expires": dt.date(2026, 12, 31)}
    )
    built = "#1 SMP Debian 6.1.100-1 (2026-01-01)"
    now = {"class_digest": "sha256:now", "status": "healthy"}
    out = frozenset({"algif_aead"})
    nodes = [
        node("before", built=built, class_digest="sha256:before", status="healthy"),
        node("ill", built=built, class_digest="sha256:now", status="drain"),
        node("now", built=built, **now),
        node("denied", built=built, denied=out),
        node("denied-now", built=built, denied=out, **now),
        node("still-loaded", built=built, denied=out, modules=out, **{**now, "status": "drain"}),
        node("fixed", built="#1 SMP Debian 6.1.192-1 (2026-11-01)", denied=out, **now),
    ]
    if "sysctl" in settings:
        expected = [*expected, "denied-now"]
    facts = lane_facts(nodes, row)
    assert sorted(one.name for one in mitigated(facts, "h100", nodes)) == sorted(expected)
    late = replace(facts, at=dt.datetime(2027, 1, 1, tzinfo=dt.UTC))
    assert mitigated(late, "h100", nodes) == []


def test_node_that_was_not_judged_keeps_the_proof_away() -> None:
    row = Mitigation.model_validate(
        {
            "schema": "goldnode.mitigation/1",
            "cve": CVE,
            "classes": ["h100"],
            "deny": ["algif_aead"],
            "reason": "x",
            "owner": "ada",
            "expires": dt.date(2026, 12, 31),
        }
    )
    fixed = "#1 SMP Debian 6.1.192-1 (2026-11-01)"
    done = proof(lane_facts([node("fixed", built=fixed)], row), "ann")
    assert (done.left, [one.names for one in done.not_judged]) == ([], [["fixed"]])
    assert not done.proved  # its lock is not one of the site's
    assert not proof(lane_facts([], row), "ann").proved


def to_roll_out(count: int, **changes: Any) -> LaneFacts:
    """Return the facts of nodes of one lock, and of one node with another."""
    built = "#1 SMP Debian 6.1.100-1 (2026-01-01)"
    nodes = [node(f"node{number:03d}", built=built, lock=OLD) for number in range(count)]
    nodes.append(node("odd", built=built, lock="sha256:" + "7" * 64))
    row = Mitigation.model_validate(
        {
            "schema": "goldnode.mitigation/1",
            "cve": CVE,
            "classes": ["h100"],
            "deny": ["algif_aead"],
            "reason": "x",
            "owner": "ada",
            "expires": dt.date(2026, 12, 31),
        }
    )
    return replace(lane_facts(nodes, row), **changes)


@pytest.mark.parametrize("count", [1, 2, 5, 20, 200, 5000])
def test_rollout_of_a_fix_can_work_for_a_class_of_any_size(count: int) -> None:
    made = document(to_roll_out(count), "h100", LOCK.digest, SiteCve())
    file = loads(made.text)
    report = check(file, size=count + 1)
    assert [one for one in report.findings if one.severity == "error"] == []
    # The canary can stop it, where there are nodes enough.
    detects = [one.message for one in report.findings if one.code == "detects"]
    assert not any('"canary" cannot stop' in text for text in detects) or count < 2
    assert {wave.soak for wave in file.document.waves[:-1]} <= {"4h"}  # of a high severity
    assert made.others == {"odd": "sha256:" + "7" * 64}


@pytest.mark.parametrize(
    ("severity", "expected"),
    [
        ("critical", "1h"),
        ("9.8", "1h"),
        ("medium", "2d"),
        ("low", "3d"),
        ("not yet assigned", "1d"),
    ],
)
def test_soak_is_by_the_rule_of_the_site_for_the_severity(severity: str, expected: str) -> None:
    assert soak(SiteCve(soak={"medium": "2d"}), severity) == expected


def test_module_that_does_not_build_stops_the_rollout() -> None:
    facts = to_roll_out(8, missing=lambda _: [("module", "it does not build; on it build: 595.71")])
    with pytest.raises(
        GoldnodeError, match=r"the module of .* is not ready .* on it build: 595.71"
    ):
        document(facts, "h100", LOCK.digest, SiteCve())
    # A disk is for nodes that are installed anew: it holds no rollout.
    document(
        replace(facts, missing=lambda _: [("disk build", "x")]), "h100", LOCK.digest, SiteCve()
    )


@pytest.mark.parametrize(
    ("kernel", "flavour", "part", "builds"),
    [
        # The kernel of Debian 14, in the backports of Debian 13.
        ("7.2.12+deb13-amd64", "proprietary", "does not build (measured on", "470.256.02 (prop"),
        # The security kernel of Debian 13 breaks the modules of one flavour alone.
        ("6.12.117+deb13-amd64", "open", "'pci_resize_resource'", "550.163.01 (proprietary)"),
    ],
)
def test_module_that_was_measured_not_to_build_stops_prepare_and_names_what_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    flavour: str,
    part: str,
    builds: str,
) -> None:
    catalog = load_catalog()
    entry = catalog.stack("debian13_r550")
    path = stack_lock_file(entry, Site())
    assert path is not None
    assert entry.item.driver is not None
    lock = load_lock(path).model_copy(update={"kernel_release": kernel})
    driver = entry.item.driver.model_copy(update={"flavour": flavour})
    item = entry.item.model_copy(update={"driver": driver})
    catalog = replace(catalog, stacks={**catalog.stacks, entry.name: replace(entry, item=item)})
    monkeypatch.setattr(prepare, "load_lock", lambda _: lock)
    monkeypatch.setenv("GOLDNODE_CACHE", str(tmp_path))
    site = Site(file=tmp_path / "site.yml")
    image = next(one.version for one in lock.packages if one.name.startswith("linux-image-"))
    row = {"status": "resolved", "fixed_version": image, "urgency": "high"}
    data = DebianTracker(tracker({"linux": {CVE: {"trixie": row}}}), {"trixie"})
    matcher = Matcher([Feed("debian", "made", "", "2026-11-27", "given", data)], {CVE})
    request = PrepareRequest(CVE, "demo_disk_r550", catalog, site, matcher=matcher, at=AT)
    ran: list[Sequence[str]] = []

    def execute(words: Sequence[str]) -> str:
        ran.append(words)
        return "error: 1 of 1 modules does not build"

    done = list(
        prepare.run(
            prepare.steps(request),
            execute,
            CveRecord(site, CVE),
            "demo_disk_r550",
            ("a", lambda: AT),
        )
    )
    assert [(one.step.name, one.state) for one in done] == [
        ("lock", "done"),
        ("module", "missing"),
        ("disk lock", "done"),
        ("disk build", "waits"),
        ("disk boot", "waits"),
    ]
    assert part in done[1].text
    assert f"on it build: {builds}" in done[1].text
    assert ran == [("modules", "build", "debian13_r550")]
    assert [one.event for one in CveRecord(site, CVE).events()] == ["begun", "stopped"]


def test_rollout_of_a_fix_requires_the_evidence_that_the_class_asks_for() -> None:
    rule = EvidenceRule(kinds=["boot", "module-build"], max_age_days=14)
    made = document(to_roll_out(8), "h100", LOCK.digest, SiteCve(), evidence=rule)
    (asked,) = [row.evidence for row in loads(made.text).document.require if row.evidence]
    assert (asked.kinds, asked.max_age) == (["boot", "module-build"], "14d")
    made = document(to_roll_out(8), "h100", LOCK.digest, SiteCve())
    assert [row.evidence for row in loads(made.text).document.require] == [None]


def test_class_without_a_lock_to_move_from_is_refused() -> None:
    facts = to_roll_out(0)
    with pytest.raises(GoldnodeError, match="no node of h100 reports another lock"):
        document(facts, "h100", "sha256:" + "7" * 64, SiteCve())
