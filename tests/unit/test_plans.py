"""A plan as a node sends it is data of a stranger: all of it has its shape, or none of it is used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests import documents

from goldnode.fleet.nodes import plan_document as plans
from goldnode.fleet.nodes.plan_document import PlanError, read_plan
from goldnode.node.state.model import Action, Note, Plan, Refusal, Waiting

PLAN = Plan(
    (
        Action(
            "kernel",
            "packages.hold",
            "kernel",
            "1 package is not on hold",
            after="hold linux\n",
            data={"names": ["linux"]},
        ),
    ),
    refusals=(Refusal("wrong-os", "The node runs debian 11.", "Reinstall it."),),
    notes=(Note("gpu", "a container does not show it"),),
    waiting=(Waiting("container_runtime", "docker.service", "a GPU container runs"),),
    reboot=("kernel 1 runs, want 2",),
    class_digest="sha256:abc",
    boot_identity="boot/1",
)


def sent(**changes: Any) -> str:
    """The plan as JSON text, with top-level keys replaced (None: taken away)."""
    value = {**PLAN.to_json(), **changes}
    return json.dumps(
        {key: item for key, item in value.items() if item is not None or key == "boot_identity"}
    )


def action(**changes: Any) -> list[dict[str, Any]]:
    """The plan's one action with keys replaced."""
    return [{**PLAN.to_json()["actions"][0], **changes}]


def test_read_plan_returns_the_whole_plan_of_the_engine() -> None:
    assert read_plan(sent(), "sha256:abc") == documents.valid(sent())
    assert read_plan(sent(boot_identity=None) + "\r\n", "sha256:abc")["boot_identity"] is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("Traceback (most recent call last):", "not JSON"),
        (sent()[:-1], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "plan does not have the keys"),
        (sent(schema="goldnode.plan/2"), "schema is not"),
        (sent(class_digest="sha256:other"), "another class document"),
        (sent(state="absent"), "a plan of a removal"),
        (sent(notes=None), "plan does not have the keys"),
        (sent(more=1), "plan does not have the keys"),
        (sent(actions={}), "plan.actions is not a list"),
        (sent(actions=["packages.hold"]), r"plan.actions\[0\] does not have the keys"),
        (sent(actions=action(reason=1)), r"plan.actions\[0\].reason is of type int"),
        (sent(actions=action(data=[])), r"plan.actions\[0\].data is of type list"),
        (sent(actions=action(part="kernal")), "no known part or phase"),
        (sent(actions=action(phase="later")), "no known part or phase"),
        (sent(actions=[]), "its parts are not its actions"),
        (
            sent(reboot={"required": "yes", "reasons": [], "after": [], "held": []}),
            "plan.reboot.required is of type str",
        ),
        (
            sent(refusals=[{"code": "x", "message": "y"}]),
            r"plan.refusals\[0\] does not have the keys code, message, remedy",
        ),
        (sent(boot_identity=7), "plan.boot_identity is of type int"),
    ],
)
def test_anything_else_is_refused_with_the_place(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        read_plan(text, "sha256:abc")


def test_an_answer_without_end_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LIMIT", 100)
    with pytest.raises(PlanError, match="want at most 100"):
        read_plan(sent(), "sha256:abc")
