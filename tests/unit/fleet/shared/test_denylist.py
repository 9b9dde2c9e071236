"""The deny list: written from the store, read with its signature, and never read as empty when it is not."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.fleet.control.controlled import controlled
from tests.unit.fleet.rollout import documents

from goldnode.cli import main
from goldnode.core.deny_list import DenyListPlace
from goldnode.core.site import load_site
from goldnode.documents.deny_list import DenyListDocument
from goldnode.evidence.signatures import load_signer
from goldnode.fleet.rollout.model import RolloutPhase
from goldnode.fleet.shared import denylist, denylist_seen
from goldnode.fleet.shared.denylist import Denial, DeniedError, DenyList, DenyListError
from goldnode.fleet.store import denials, orders
from goldnode.fleet.store.database import StoreDatabase
from goldnode.fleet.store.denials import DenyListWriter
from goldnode.fleet.store.grants import PersonsOrder

FAST = (("soak: 4h", "soak: 20m"), ("soak: 4h", "soak: 20m"))
DIGEST = f"sha256:{'a' * 64}"
ANN = PersonsOrder("ann@c", 1_800_000_000.0, "slow")
ONE = DenyList(
    (
        Denial(
            "l4",
            digest=DIGEST,
            rollout="r1",
            reason="it is slow",
            who="c/1",
            at="2026-11-25T21:00:00Z",
        ),
    ),
    3,
)


@pytest.fixture
def store(tmp_path: Path, migrated: Path) -> Iterator[StoreDatabase]:
    shutil.copy(migrated, tmp_path / "fleet.db")
    found = StoreDatabase(str(tmp_path / "fleet.db"))
    yield found
    found.close()


def place(path: Path, keys: Path | None = None, required: bool = True) -> DenyListPlace:
    return DenyListPlace(str(path), required, str(keys) if keys else None)


def test_denial_is_for_its_class_and_names_the_command_that_lifts_it(tmp_path: Path) -> None:
    path = tmp_path / "denied.json"
    path.write_bytes(ONE.payload())
    found = denylist.read(place(path))
    assert found == ONE.denials
    denylist.check(found, "h100", DIGEST)
    denylist.check(found, "l4", f"sha256:{'b' * 64}")
    with pytest.raises(DeniedError) as caught:
        denylist.check(found, "l4", DIGEST)
    assert str(caught.value) == (
        f"{DIGEST} is denied for class l4 by rollout r1 since 2026-11-25T21:00:00Z: it is slow. Use another state, or "
        f"lift it with `goldnode rollout lift {DIGEST} --class l4 --reason REASON`."
    )
    assert "by ann@c since" in replace(ONE.denials[0], rollout=None, who="ann@c").refusal().message


def _envelope(secret: Path, payload: bytes, payload_type: str = denylist.PAYLOAD_TYPE) -> bytes:
    return load_signer(secret).sign(payload, payload_type)


def test_list_that_is_not_verified_is_an_error_and_not_empty(
    tmp_path: Path, keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.unit.images.registries import make_key

    secret, public = keys
    other, _ = make_key(tmp_path_factory.mktemp("other"))
    empty = DenyList((), 4).payload()
    good = _envelope(secret, ONE.payload())
    altered = json.loads(good)
    altered["payload"] = json.loads(_envelope(other, empty))["payload"]
    path = tmp_path / "denied.json"
    cases = {
        "not signed": empty,
        "signed by a key that is not known here": _envelope(other, empty),
        "signature": json.dumps(altered).encode(),
        "no signature": json.dumps({**json.loads(good), "signatures": []}).encode(),
        "is no deny list": _envelope(secret, empty, "application/vnd.goldnode.log-head+json"),
        "this is no deny list: schema": _envelope(secret, b'{"schema": "goldnode.deny-list/2"}'),
    }
    for text, data in cases.items():
        path.write_bytes(data)
        with pytest.raises(DenyListError, match=text) as caught:
            denylist.read(place(path, public))
        assert caught.value.message.startswith("could not check whether the state is denied: ")
    path.write_bytes(good)
    assert denylist.read(place(path, public)) == ONE.denials
    assert denylist.read(place(path)) == ONE.denials  # a site without a key takes it as it is
    with pytest.raises(DenyListError, match="key of the deny list cannot be used"):
        denylist.read(place(path, tmp_path / "missing.pub"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "this is no deny list"),
        (b"{", "this is no deny list"),
        (b"[]", "this is no deny list"),
        (b'{"schema": "goldnode.deny-list/1", "number": 1}', "denied: Field required"),
        (ONE.payload()[:-10], "this is no deny list"),
        (b" " * ((16 << 20) + 1), "is larger than"),
    ],
)
def test_damaged_list_is_an_error(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "denied.json").write_bytes(data)
    with pytest.raises(DenyListError, match=text):
        denylist.read(place(tmp_path / "denied.json"))


def test_missing_list_is_an_error_only_where_the_site_names_it(tmp_path: Path) -> None:
    assert denylist.read(place(tmp_path / "denied.json", required=False)) == ()
    assert denylist.read(None) == ()
    with pytest.raises(DenyListError, match="is missing"):
        denylist.read(place(tmp_path / "denied.json"))
    with pytest.raises(DenyListError, match="cannot be read: Is a directory"):
        denylist.read(place(tmp_path, required=False))


def test_missing_cryptography_is_an_error(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "denied.json").write_bytes(_envelope(keys[0], ONE.payload()))
    for name in [name for name in sys.modules if name.partition(".")[0] == "securesystemslib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DenyListError, match=r"signature cannot be verified.*goldnode\[fleet\]"):
        denylist.read(place(tmp_path / "denied.json", keys[1]))


def test_site_file_and_store_decide_where_the_list_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOLDNODE_FLEET_STORE", raising=False)
    site = tmp_path / "goldnode-site.yml"
    site.write_text("fleet: {store: state/fleet.db, public_key: fleet.pub}\n")
    assert load_site(site).deny_list() == DenyListPlace(
        str(tmp_path / "state/denied.json"), False, str(tmp_path / "fleet.pub")
    )
    site.write_text("fleet: {store: 'postgresql://db/g', deny_list: denied.json}\n")
    assert load_site(site).deny_list() == DenyListPlace(str(tmp_path / "denied.json"), True, None)
    site.write_text("fleet: {store: 'postgresql://db/g'}\n")
    assert load_site(site).deny_list() is None
    with pytest.raises(DenyListError, match=r"fleet\.deny_list"):
        denylist.place_to_write(None)
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", "/srv/fleet.db")
    assert load_site(site).deny_list() == DenyListPlace("/srv/denied.json", False, None)


# Writing


def test_rollback_puts_the_target_on_the_list_until_it_is_lifted(
    tmp_path: Path, store: StoreDatabase, keys: tuple[Path, Path]
) -> None:
    secret, public = keys
    bad = {f"n{number:02}": "image" for number in range(8)}
    found = controlled(tmp_path, str(tmp_path / "fleet.db"), 8, *FAST, **bad)
    path = tmp_path / "state/denied.json"
    writer = DenyListWriter(store, path, secret)
    assert writer.update()  # an empty list, so that a missing one is noticed
    assert denylist.read(place(path, public)) == ()
    report, _ = found.run()
    assert report.phase is RolloutPhase.ROLLED_BACK
    assert writer.update()
    (denial,) = denylist.read(place(path, public))
    assert (denial.node_class, denial.digest, denial.rollout) == ("l4", documents.NEW, "r1")
    assert denial.reason.startswith("driver.version: on 2 nodes")
    before = path.stat()
    assert not writer.update()
    assert not denials.write(store, path, secret)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    path.unlink()
    assert writer.update()  # a person has removed it
    store.run(lambda c: orders.lift_denial(c, "l4", documents.NEW, ANN))
    assert writer.update()
    assert denylist.read(place(path, public)) == ()


def test_number_grows_with_each_change_and_the_content_is_the_same_each_time(
    tmp_path: Path, store: StoreDatabase
) -> None:
    path, numbers = tmp_path / "denied.json", []
    for change in (
        lambda c: orders.deny(c, "l4", DIGEST, ANN),
        lambda c: orders.deny(c, "h100", DIGEST, ANN),
        lambda c: orders.lift_denial(c, "l4", DIGEST, ANN),
        lambda c: orders.deny(c, "l4", DIGEST, ANN, "r2"),
    ):
        store.run(change)
        assert denials.write(store, path, None)
        document = DenyListDocument.model_validate_json(path.read_bytes())
        numbers.append(document.number)
    assert numbers == sorted(set(numbers))
    assert [(item.class_, item.rollout) for item in document.denied] == [
        ("h100", None),
        ("l4", "r2"),
    ]
    assert not denials.write(store, path, None)


def test_damaged_or_foreign_file_is_replaced(
    tmp_path: Path, store: StoreDatabase, keys: tuple[Path, Path]
) -> None:
    path = tmp_path / "denied.json"
    denials.write(store, path, None)
    assert denials.write(store, path, keys[0])  # it was not signed
    path.write_bytes(b"{")
    assert denials.write(store, path, keys[0])
    assert denylist.read(place(path, keys[1])) == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_file_that_cannot_be_written_is_an_error(tmp_path: Path, store: StoreDatabase) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(DenyListError, match="cannot be written"):
        denials.write(store, tmp_path / "closed/denied.json", None)


def test_full_disk_is_an_error(
    tmp_path: Path, store: StoreDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(denials, "replace_file", full)
    with pytest.raises(DenyListError, match="cannot be written: No space left"):
        denials.write(store, tmp_path / "denied.json", None)


def test_commands_deny_list_and_lift(
    tmp_path: Path, store: StoreDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOLDNODE_FLEET_STORE", str(tmp_path / "fleet.db"))
    run = CliRunner()

    def call(*words: str) -> tuple[int, str]:
        done = run.invoke(main, ["rollout", *words])
        return done.exit_code, done.output

    assert call("deny", DIGEST, "--class", "l4", "--reason", "slow")[0] == 0
    assert denylist.read(place(tmp_path / "denied.json"))[0].reason == "slow"
    status, output = call("denied", "--format", "json")
    assert status == 0
    assert json.loads(output)["denied"][0]["digest"] == DIGEST
    assert call("lift", DIGEST, "--class", "l4", "--reason", "fixed")[0] == 0
    assert denylist.read(place(tmp_path / "denied.json")) == ()
    status, output = call("lift", DIGEST, "--class", "l4", "--reason", "fixed")
    assert status == 2
    assert "is not denied for class l4" in output
    assert call("denied", "--write")[1].startswith("no state is denied\nunchanged: ")


# An earlier list in place of the present one


def lists(secret: Path, numbers: tuple[int, ...]) -> dict[int, bytes]:
    """Return signed lists by number. The even ones deny nothing."""
    return {
        number: _envelope(
            secret, replace(ONE, number=number, denials=ONE.denials if number % 2 else ()).payload()
        )
        for number in numbers
    }


def test_earlier_list_is_refused_until_a_person_accepts_it(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    signed, path = lists(keys[0], (2, 3, 4)), tmp_path / "denied.json"
    here = replace(
        place(path, keys[1], required=False), seen=str(tmp_path / "site/deny-lists.json")
    )
    assert denylist.read(here) == ()  # none yet
    for number in (2, 3, 3):
        path.write_bytes(signed[number])
        denylist.read(here)
    path.write_bytes(signed[2])
    for _ in range(2):
        with pytest.raises(
            DenyListError, match="this is list 2, and list 3 was read here before"
        ) as caught:
            denylist.read(here)
        assert "goldnode rollout denied --accept-older" in (caught.value.remedy or "")
    path.unlink()
    with pytest.raises(
        DenyListError, match="the deny list is missing, and list 3 was read here before"
    ):
        denylist.read(here)
    path.write_bytes(signed[4])
    assert denylist.read(here) == ()
    assert denylist_seen.forget(here) == 4
    path.write_bytes(signed[3])
    assert denylist.read(here) == ONE.denials


def test_list_that_is_not_verified_is_not_remembered(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    path = tmp_path / "denied.json"
    here = replace(place(path, keys[1]), seen=str(tmp_path / "deny-lists.json"))
    path.write_bytes(replace(ONE, number=99).payload())
    with pytest.raises(DenyListError, match="not signed"):
        denylist.read(here)
    path.write_bytes(lists(keys[0], (3,))[3])
    assert denylist.read(here) == ONE.denials


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": "3"}', b'{"x": true}', b"\xff"])
def test_damaged_numbers_are_an_error_with_a_way_out(
    tmp_path: Path, keys: tuple[Path, Path], content: bytes
) -> None:
    path, seen = tmp_path / "denied.json", tmp_path / "deny-lists.json"
    path.write_bytes(lists(keys[0], (3,))[3])
    seen.write_bytes(content)
    here = replace(place(path, keys[1]), seen=str(seen))
    with pytest.raises(DenyListError, match="cannot be read") as caught:
        denylist.read(here)
    assert "--accept-older" in (caught.value.remedy or "")
    assert denylist_seen.forget(here) is None
    assert denylist.read(here) == ONE.denials


def test_numbers_that_cannot_be_written_are_an_error_where_lists_are_signed(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path / "denied.json"
    path.write_bytes(lists(keys[0], (3,))[3])
    seen = str(tmp_path / "file/deny-lists.json")
    with pytest.raises(DenyListError, match="cannot be r"):
        denylist.read(replace(place(path, keys[1]), seen=seen))


def test_command_accepts_an_earlier_list(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOLDNODE_FLEET_STORE", raising=False)
    (tmp_path / "goldnode-site.yml").write_text(
        f"fleet: {{store: 'postgresql://db/g', deny_list: denied.json, public_key: {keys[1]}}}\n"
    )
    signed, here = lists(keys[0], (3, 4)), load_site(tmp_path / "goldnode-site.yml").deny_list()
    for number in (4, 3):
        (tmp_path / "denied.json").write_bytes(signed[number])
        with nullcontext() if number == 4 else pytest.raises(DenyListError, match="this is list 3"):
            denylist.read(here)
    monkeypatch.setenv("GOLDNODE_SITE", str(tmp_path / "goldnode-site.yml"))
    done = CliRunner().invoke(main, ["rollout", "denied", "--accept-older"])
    assert done.exit_code == 0, done.output
    assert "is accepted as list 3; list 4 was read here before" in done.output
    assert denylist.read(here) == ONE.denials
    wrong = CliRunner().invoke(main, ["rollout", "denied", "--accept-older", "--write"])
    assert wrong.exit_code == 2


def test_writer_replaces_an_earlier_list_that_another_puts_in_its_place(
    tmp_path: Path, store: StoreDatabase, keys: tuple[Path, Path]
) -> None:
    path = tmp_path / "denied.json"
    writer = DenyListWriter(store, path, keys[0])
    writer.update()
    earlier = path.read_bytes()
    store.run(lambda c: orders.deny(c, "l4", DIGEST, ANN))
    assert [writer.update(), writer.update()] == [True, False]
    path.write_bytes(earlier)
    assert writer.update()
    assert len(denylist.read(place(path, keys[1]))) == 1


def test_list_that_is_replaced_by_a_later_one_while_it_is_read_is_read_again(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed, path = lists(keys[0], (2, 3)), tmp_path / "denied.json"
    here = replace(place(path, keys[1]), seen=str(tmp_path / "deny-lists.json"))
    path.write_bytes(signed[2])
    check = denylist_seen.check

    def slow(where: DenyListPlace, number: int | None) -> None:
        monkeypatch.setattr(denylist_seen, "check", check)
        path.unlink()
        path.write_bytes(signed[3])
        denylist.read(where)  # by another process
        check(where, number)

    monkeypatch.setattr(denylist_seen, "check", slow)
    assert denylist.read(here) == ONE.denials
