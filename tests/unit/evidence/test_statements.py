"""Evidence: what a record proves, what makes it stale, and what is refused."""

from __future__ import annotations

import copy
import datetime as dt
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from in_toto_attestation.v1.statement import Statement
from tests.unit.evidence import proof_records as records
from tests.unit.images.registries import make_ecdsa_key, make_key

from goldnode.core.errors import EvidenceError
from goldnode.core.evidence_kinds import EvidenceKind
from goldnode.documents.evidence import PREDICATES
from goldnode.evidence import proved, statements
from goldnode.evidence.dependencies import DETAIL
from goldnode.evidence.proofs import ProofRequest, prove
from goldnode.evidence.signatures import load_public, load_signer, payload_of
from goldnode.evidence.statements import Proof

KINDS = tuple(PREDICATES)
CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/evidence.yml").read_text())
Json = dict[str, Any]
NOW = dt.datetime(2026, 11, 27, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def document() -> Json:
    return records.case_class()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_key(tmp_path_factory.mktemp("keys"))


def proof_of(kind: EvidenceKind, document: Json, directory: Path, **changes: Any) -> Proof:
    path = records.write(kind, document, directory, **changes)
    return prove(ProofRequest(kind, path, document), DETAIL)


def signed(proof: Proof, keys: tuple[Path, Path], folder: Path) -> Path:
    path = folder / f"{proof.kind}-1{statements.SUFFIX}"
    path.write_bytes(statements.envelope(proof, load_signer(keys[0])))
    return path


def judged(path: Path, document: Json, keys: tuple[Path, Path], **tools: str) -> proved.ProofStatus:
    present = proved.PresentClass(document, {**records.TOOLS, **tools})
    return proved.judge(path, present, proved.EvidenceTrust(load_public(keys[1])))


@pytest.mark.parametrize("kind", KINDS)
def test_statement_of_each_kind_is_small_valid_and_current(
    kind: EvidenceKind, document: Json, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    path = signed(proof_of(kind, document, tmp_path), keys, tmp_path)
    assert path.stat().st_size <= 20_000
    # The reference reader accepts it: type, subjects with digests, predicate.
    content = json.loads(payload_of(path.read_bytes()))
    Statement.copy_from_pb(_pb(content)).validate()
    assert {row["name"].partition(":")[0] for row in content["subject"]} >= {
        "class",
        "lock",
        "record",
    }
    status = judged(path, document, keys)
    assert (status.state, status.why != "") == ("current", True)


def test_statement_of_a_disk_names_its_tools_and_the_time_of_its_boots(
    document: Json, tmp_path: Path
) -> None:
    predicate = proof_of("disk", document, tmp_path).predicate
    firmware = {"OVMF_CODE.fd": f"sha256:{'6' * 64}"}
    assert predicate.tools == {"mmdebstrap": "1.3.5", "qemu": "7.2.17", **firmware}
    assert predicate.time == "2026-11-26T10:00:00Z"
    # Records of earlier versions state neither; the time of the file counts.
    earlier = proof_of("disk", document, tmp_path, tools=None, time=None).predicate
    assert earlier.tools == {"mmdebstrap": "1.3.5"}
    assert earlier.time != predicate.time


def _pb(content: Json) -> Any:
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.v1 import statement_pb2

    return ParseDict(content, statement_pb2.Statement())


def changed(document: Json, sort: str, name: str) -> Json:
    """Return a class document in which one item differs."""
    new = copy.deepcopy(document)
    if sort == "package":
        row = next(row for row in new["packages"] if row["name"] == name)
        row["version"] += "+1"
    elif sort != "tool":
        *path, last = name.split(".")
        place = new
        for key in path:
            place = place[key]
        assert last in place
        place[last] = "another"
    return records.sealed(new)


@pytest.fixture(scope="module")
def all_kinds(
    document: Json, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    folder = tmp_path_factory.mktemp("statements")
    return [signed(proof_of(kind, document, folder), keys, folder) for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        ("boot", "goldnode-node"),
        ("canary", "goldnode-canary"),
        ("floors", "goldnode-canary"),
        ("dual", "goldnode-dual"),
        ("smoke", "goldnode-smoke"),
        ("prove-gpu", "goldnode-node"),
    ],
)
def test_tool_of_goldnode_is_in_the_statement_with_its_digest(
    kind: EvidenceKind, tool: str, document: Json, tmp_path: Path
) -> None:
    tools = proof_of(kind, document, tmp_path).predicate.tools
    assert re.fullmatch("(sha256:)?[0-9a-f]{64}", tools[tool])


def test_record_of_an_earlier_version_names_no_tool(document: Json, tmp_path: Path) -> None:
    assert proof_of("smoke", document, tmp_path, program=None).predicate.tools == {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: ".".join(case["change"]))
def test_change_makes_exactly_its_dependents_stale(
    case: Json, document: Json, keys: tuple[Path, Path], all_kinds: list[Path]
) -> None:
    sort, name = case["change"]
    new = changed(document, sort, name)
    tools = {name: "another"} if sort == "tool" else {}
    rows = [judged(path, new, keys, **tools) for path in all_kinds]
    assert [row.kind for row in rows if row.state == "stale"] == case["stale"]
    assert {row.state for row in rows} <= {"stale", "current"}
    for row in rows:
        if row.state == "stale":
            assert [(one.sort, one.name) for one in row.changed] == [(sort, name)]
            assert f"{sort} {name}: " in row.why
            assert f"evidence sign {row.kind} " in row.renew(records.CLASS)


def test_package_that_came_or_went_is_a_change(
    document: Json, keys: tuple[Path, Path], all_kinds: list[Path]
) -> None:
    fewer = {
        **document,
        "packages": [row for row in document["packages"] if row["name"] != "libcuda1"],
    }
    status = judged(all_kinds[0], records.sealed(fewer), keys)
    assert [(one.name, one.new) for one in status.changed] == [("libcuda1", None)]


def test_same_version_with_other_content_is_a_change(
    document: Json, keys: tuple[Path, Path], all_kinds: list[Path]
) -> None:
    new = copy.deepcopy(document)
    new["packages"][0]["sha256"] = "f" * 64
    assert judged(all_kinds[0], records.sealed(new), keys).state == "stale"


# Refusals. Each case alters one thing of a statement that counts.


def other_class(document: Json) -> Json:
    return records.sealed({**document, "class": "another"})


def _tampered(path: Path, change: Callable[[Json], None]) -> None:
    envelope = json.loads(path.read_bytes())
    import base64

    content = json.loads(base64.b64decode(envelope["payload"]))
    change(content)
    envelope["payload"] = base64.b64encode(json.dumps(content).encode()).decode()
    path.write_text(json.dumps(envelope))


def test_tampered_statement_is_refused(
    document: Json, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    path = signed(proof_of("canary", document, tmp_path, simulated=True), keys, tmp_path)
    _tampered(path, lambda content: content["predicate"].update(simulated=False))
    status = judged(path, document, keys)
    assert status.state == "refused"
    assert "the signature does not hold" in status.why


def test_statement_about_another_class_is_refused(
    document: Json, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    path = signed(proof_of("canary", document, tmp_path), keys, tmp_path)
    status = judged(path, other_class(document), keys)
    assert (status.state, status.why) == ("refused", "its subject is class case_gpu, not another")


@pytest.mark.parametrize("make", [make_key, make_ecdsa_key])
def test_withdrawn_key_is_refused_by_name_and_a_strangers_is_not_known(
    make: Callable[..., tuple[Path, Path]], document: Json, tmp_path: Path
) -> None:
    old, new = make(tmp_path, "old"), make(tmp_path, "new")
    path = signed(proof_of("canary", document, tmp_path), old, tmp_path)
    present = proved.PresentClass(document)
    # Also where the old key was left in the file of trusted ones.
    both = [*load_public(new[1]), *load_public(old[1])]
    withdrawn = proved.judge(path, present, proved.EvidenceTrust(both, load_public(old[1])))
    assert (withdrawn.state, withdrawn.why) == (
        "refused",
        "it is signed by a key that was withdrawn",
    )
    stranger = proved.judge(path, present, proved.EvidenceTrust(load_public(new[1])))
    assert stranger.state == "refused"
    assert "a key that is not known here" in stranger.why
    assert proved.judge(path, present, proved.EvidenceTrust(both)).state == "current"


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("canary", {"simulated": True}),
        ("floors", {"simulated": True}),
        ("dual", {"simulated": True}),
        ("smoke", {"simulated": True}),
        ("disk", {"simulated_hardware": True}),
        ("disk", {"simulated_hardware": None}),
        ("prove-gpu", {"simulated": True}),
        ("smoke", {"simulated": None}),
    ],
)
def test_simulated_hardware_never_proves_a_real_class(
    kind: EvidenceKind, changes: Json, document: Json, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    path = signed(proof_of(kind, document, tmp_path, **changes), keys, tmp_path)
    status = judged(path, document, keys)
    assert status.state == "refused"
    assert (
        status.why
        == "it was made on simulated hardware, which never proves the real class case_gpu"
    )


def test_simulated_boot_is_refused_by_its_verdict_or_its_capture(
    document: Json, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    report = json.loads(records.write("boot", document, tmp_path).read_text())
    for part in ("verdict", "capture"):
        report[part]["simulated"] = True
        path = signed(proof_of("boot", document, tmp_path, **{part: report[part]}), keys, tmp_path)
        assert judged(path, document, keys).state == "refused"


def test_simulated_hardware_proves_a_simulated_class(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    document = records.case_class(simulated=True)
    path = signed(proof_of("canary", document, tmp_path, simulated=True), keys, tmp_path)
    assert judged(path, document, keys).state == "current"


def test_simulated_capture_makes_a_real_record_simulated(document: Json, tmp_path: Path) -> None:
    capture = tmp_path / "capture.json"
    capture.write_text(json.dumps({"gpus": [], "simulated": True}))
    path = records.write("canary", document, tmp_path)
    assert prove(ProofRequest("canary", path, document, capture), DETAIL).predicate.simulated


@pytest.mark.parametrize("kind", KINDS)
def test_record_of_another_state_is_not_signed(
    kind: EvidenceKind, document: Json, tmp_path: Path
) -> None:
    path = records.write(kind, document, tmp_path)
    new = changed(document, "package", "nvidia-smi")
    new["lock"] = {**new["lock"], "digest": records.OLD}
    new["kernel"] = {**new["kernel"], "release": "7.2.12"}
    if kind == "smoke":  # binds to an image, which any class of the backend runs
        new["backend"] = "rocm"
    with pytest.raises(EvidenceError, match="of the record is") as problem:
        prove(ProofRequest(kind, path, records.sealed(new)), DETAIL)
    assert "--document FILE" in str(problem.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tiers": {"gpu": 1}}', '{"verdict": 1}'])
def test_file_without_a_record_is_refused_without_a_traceback(
    kind: EvidenceKind, content: str, document: Json, tmp_path: Path
) -> None:
    path = records.write(kind, document, tmp_path)
    (path / "record.json" if kind == "prove-gpu" else path).write_text(content)
    with pytest.raises(EvidenceError):
        prove(ProofRequest(kind, path, document), DETAIL)


@pytest.mark.parametrize(
    ("kind", "changes", "outcome"),
    [
        ("canary", {"jobs": []}, "could_not_check"),
        ("dual", {"answer": "fail"}, "failed"),
        ("dual", {"answer": "unknown"}, "could_not_check"),
        ("disk", {"outcome": "failed"}, "failed"),
        ("module-build", {"ok": False, "line": "error: strncpy"}, "failed"),
        ("smoke", {"tiers": {"cpu": {"state": "passed"}}}, "could_not_check"),
        (
            "smoke",
            {"tiers": {"cpu": {"state": "failed"}, "gpu": {"state": "passed"}}},
            "failed",
        ),
    ],
)
def test_proof_that_did_not_pass_is_signed_and_does_not_count(
    kind: EvidenceKind,
    changes: Json,
    outcome: str,
    document: Json,
    keys: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    proof = proof_of(kind, document, tmp_path, **changes)
    assert proof.predicate.result.outcome == outcome
    assert judged(signed(proof, keys, tmp_path), document, keys).state == "failed"


def test_hardware_is_that_of_the_capture(document: Json, tmp_path: Path) -> None:
    hardware = proof_of("boot", document, tmp_path).predicate.hardware
    assert hardware is not None
    assert (hardware.model, hardware.count, hardware.vbios) == (
        "NVIDIA H200",
        1,
        ["96.00.A5.00.1A"],
    )
    assert hardware.firmware == {"gsp": ["580.159.04"], "inforom": ["G520.0282.02.02"]}


def status(kind: EvidenceKind, state: str, time: str) -> proved.ProofStatus:
    class _Predicate:
        pass

    predicate = _Predicate()
    predicate.time = time  # type: ignore[attr-defined]
    proof = cast(Any, type("P", (), {"predicate": predicate})())
    return proved.ProofStatus(kind, cast(proved.ProofState, state), state, proof=proof)


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], "missing"),
        ([("current", "2026-11-26T07:00:00Z")], "current"),
        # Newest first, as `statuses` sorts: a later failure decides over an earlier success.
        ([("failed", "2026-11-26T08:00:00Z"), ("current", "2026-11-26T07:00:00Z")], "failed"),
        ([("current", "2026-11-26T08:00:00Z"), ("failed", "2026-11-26T07:00:00Z")], "current"),
        # The class went back to what an older statement has proved.
        ([("stale", "2026-11-26T08:00:00Z"), ("current", "2026-11-26T07:00:00Z")], "current"),
        ([("refused", "2026-11-26T08:00:00Z"), ("stale", "2026-11-26T07:00:00Z")], "stale"),
        ([("current", "2026-11-01T07:00:00Z")], "stale"),
        ([("current", "2026-12-01T07:00:00Z")], "refused"),
    ],
)
def test_newest_statement_that_fits_decides(rows: list[tuple[str, str]], state: str) -> None:
    given = [status("canary", one, time) for one, time in rows]
    (decided,) = proved.required(["canary"], given, now=NOW, max_age=dt.timedelta(days=7))
    assert decided.state == state


def test_unknown_keys_of_the_statement_are_ignored_and_of_the_predicate_refused(
    document: Json, tmp_path: Path
) -> None:
    content = json.loads(statements.statement(proof_of("canary", document, tmp_path)))
    content["later"] = 1
    content["subject"][0]["uri"] = "urn:x"
    assert statements.parse(json.dumps(content).encode()).kind == "canary"
    content["predicate"]["later"] = 1
    with pytest.raises(EvidenceError, match="later"):
        statements.parse(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"_type": "https://in-toto.io/Statement/v0.1"},
            "expected https://in-toto.io/Statement/v1",
        ),
        ({"predicateType": "https://slsa.dev/provenance/v1"}, "no kind of evidence"),
        ({"subject": [{"name": "class:a", "digest": {"sha1": "0"}}]}, "no digest of sha256"),
        ({"subject": None}, "no digest of sha256"),
        ({"predicate": None}, "not valid"),
    ],
)
def test_other_statement_is_refused_with_its_reason(
    change: Json, message: str, document: Json, tmp_path: Path
) -> None:
    content = json.loads(statements.statement(proof_of("canary", document, tmp_path)))
    with pytest.raises(EvidenceError, match=message):
        statements.parse(json.dumps(content | change).encode())
