"""site.yml and rollback.yml refuse a state on the deny list before a host is contacted, until it is lifted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from tests.unit.ansible.test_blocked_class import SITE, THERE, play

from goldnode.ansible.action import goldnode_state
from goldnode.classdoc.compile import class_document
from goldnode.classdoc.load import load_catalog
from goldnode.core.site import Site
from goldnode.evidence.signatures import load_signer
from goldnode.fleet.shared.denylist import PAYLOAD_TYPE, Denial, DenyList

OTHER = {"classes/other.yml": "class: other\nbackend: cpu\nstack: debian12_cpu\n"}
GROUPS = {"cpu_only": {"hosts": {"n1": THERE}}, "other": {"hosts": {"n2": THERE}}}


def denying(node_class: str, digest: str) -> bytes:
    why = "driver.version: on 2 nodes of the first two waves"
    return DenyList(
        (
            Denial(
                node_class,
                digest=digest,
                rollout="r1",
                reason=why,
                who="c/1",
                at="2026-11-25T21:00:00Z",
            ),
        ),
        7,
    ).payload()


@pytest.fixture(scope="module")
def lock() -> str:
    catalog = load_catalog()
    return str(class_document("cpu_only", catalog=catalog, site=Site())["lock"]["digest"])


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {name: host["outcome"] for name, host in record["hosts"].items()}


def test_denied_class_is_refused_and_its_hosts_are_not_contacted(
    tmp_path: Path, lock: str, keys: tuple[Path, Path]
) -> None:
    secret, public = keys
    site = f"{SITE}fleet: {{deny_list: denied.json, public_key: {public}}}\n"
    payload = denying("cpu_only", lock)
    (tmp_path / "denied.json").write_bytes(load_signer(secret).sign(payload, PAYLOAD_TYPE))
    status, output, record = play(tmp_path, OTHER, GROUPS, site=site)
    assert status != 0
    # The other class has the same lock, and its host is contacted: nobody listens there.
    assert outcomes(record) == {"n1": "refused", "n2": "unreachable"}, output
    (refusal,) = record["hosts"]["n1"]["refusals"]
    assert refusal["code"] == "denied"
    assert refusal["message"] == (
        f"{lock} is denied for class cpu_only by rollout r1 since 2026-11-25T21:00:00Z: "
        "driver.version: on 2 nodes of the first two waves."
    )
    assert f"`goldnode rollout lift {lock} --class cpu_only --reason REASON`" in refusal["remedy"]


@pytest.mark.long
def test_list_that_is_not_signed_refuses_all(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    site = f"{SITE}fleet: {{deny_list: denied.json, public_key: {keys[1]}}}\n"
    (tmp_path / "denied.json").write_bytes(DenyList((), 8).payload())
    _, output, record = play(tmp_path, OTHER, GROUPS, site=site)
    assert outcomes(record) == {"n1": "refused", "n2": "refused"}, output
    (refusal,) = record["hosts"]["n2"]["refusals"]
    assert refusal["code"] == "deny-list"
    assert "could not check whether the state is denied: the signature" in refusal["message"]


@pytest.mark.long
def test_lifted_class_is_contacted_again(tmp_path: Path, lock: str) -> None:
    site = f"{SITE}fleet: {{deny_list: denied.json}}\n"
    _, output, record = play(tmp_path, OTHER, GROUPS, site=site)
    assert outcomes(record) == {"n1": "refused", "n2": "refused"}, output  # the list is missing
    (tmp_path / "denied.json").write_bytes(denying("cpu_only", lock))
    assert outcomes(play(tmp_path, OTHER, GROUPS, site=site)[2])["n1"] == "refused"
    (tmp_path / "denied.json").write_bytes(DenyList((), 8).payload())
    assert outcomes(play(tmp_path, OTHER, GROUPS, site=site)[2])["n1"] == "unreachable"


class _Templar:
    def template(self, value: Any) -> Any:
        return value


def test_rollback_to_a_denied_state_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    file = tmp_path / "denied.json"
    file.write_bytes(denying("cpu_only", lock))
    place = {"file": str(file), "required": True, "keys": None}
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(
        goldnode_state,
        "ClassDocuments",
        lambda: SimpleNamespace(controller=lambda: {"deny_list": place}),
    )
    action = goldnode_state.ActionModule.__new__(goldnode_state.ActionModule)
    action._templar = _Templar()
    plans: list[str] = []

    def execute(document: object, task_vars: object, **arguments: Any) -> dict[str, Any]:
        to = {"class": "cpu_only", "class_digest": "x", "lock_digest": plans[-1], "document": "d"}
        return {"plan": {}, "rollback": {"to": to}}

    monkeypatch.setattr(action, "execute", execute)
    monkeypatch.setattr(action, "planned", lambda result, *given: {"changed": False})
    given = {"operation": "plan", "rollback": True, "to": "", "tolerate": []}
    plans.append(lock)
    found = action.back(given, {"inventory_hostname": "n1"})
    assert found["failed"]
    assert found["refusals"][0]["code"] == "denied"
    plans.append(f"sha256:{'e' * 64}")
    assert not action.back(given, {"inventory_hostname": "n1"}).get("failed")
    # A denial of this moment counts in a run that has begun.
    file.write_bytes(denying("cpu_only", plans[-1]))
    assert action.back(given, {"inventory_hostname": "n1"})["failed"]
    # An image that is built is no node.
    assert action.denied("cpu_only", plans[-1], {"goldnode_root": "/mnt"}) is None
    file.write_bytes(json.dumps({"schema": "goldnode.deny-list/2"}).encode())
    refused = action.denied("cpu_only", lock, {})
    assert refused is not None
    assert refused["refusals"][0]["code"] == "deny-list"
