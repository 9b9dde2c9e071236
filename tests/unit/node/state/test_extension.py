"""A fake domain is planned, applied, checked, and removed by its record. A half-done extension is named."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.state.test_cases import document, unobserved

from goldnode.node.gate import handlers as gate_handlers
from goldnode.node.ground.host import Host
from goldnode.node.state import apply as applying
from goldnode.node.state import domains as domain_modules
from goldnode.node.state import engine, removal
from goldnode.node.state import record as records
from goldnode.node.state.contract import Domain
from goldnode.node.state.domains.files import Wanted
from goldnode.node.state.finding import MATCH, Finding
from goldnode.node.verdict import check

PATH = "/etc/modprobe.d/goldnode-time.conf"


def fake(path: str = PATH) -> Any:
    """Return a domain that wants one file of the part `gpu_policy`, whatever the class."""
    return SimpleNamespace(
        __name__="time",
        observe=lambda host, document, seen: None,
        wanted=lambda document, seen: [
            Wanted(path, "time = 1\n", "gpu_policy", "the class wants the time")
        ],
        plan=lambda document, seen: ([], [], []),
        refusals=lambda document, seen, actions: [],
        findings=lambda document, seen: [Finding("policy.time", MATCH, "1", "1")],
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Return an empty root, with the fake domain registered."""
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    domains = (*engine.DOMAINS, fake())
    monkeypatch.setattr(engine, "DOMAINS", domains)
    monkeypatch.setattr(check, "DOMAINS", domains)
    return Host(str(tmp_path))


def planned(found: Any) -> list[str]:
    return [action.target for action in found.part("gpu_policy") if action.target == PATH]


def test_a_domain_is_planned_applied_checked_and_removed(root: Host) -> None:
    wanted = document()
    before = engine.plan(root, wanted, {})
    assert planned(before) == [PATH]
    applier = applying.Applier(root, wanted, {}, lambda text: None, "gpu_policy")
    own = [action for action in before.part("gpu_policy") if action.target == PATH]
    records.before_files(root, own)
    for action in own:
        applier.apply(action)
    assert root.text(PATH) == "time = 1\n"
    assert planned(engine.plan(root, wanted, {})) == []
    assert "policy.time" in {finding["id"] for finding in check.check(root, wanted)["findings"]}
    # By its path it would be the driver's; the record says whose it is.
    assert removal.part_of(PATH, {}) == "gpu_driver"
    taken = [action for action in engine.plan_absent(root).actions if action.target == PATH]
    assert [(action.kind, action.part) for action in taken] == [("file.remove", "gpu_policy")]


def test_every_file_of_a_class_is_observed(root: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain whose file has no row in observe.MANAGED would write it in every run."""
    assert unobserved(engine.plan(root, document(), {})) == []
    monkeypatch.setattr(engine, "DOMAINS", (fake("/srv/time.conf"),))
    assert unobserved(engine.plan(root, document(), {})) == ["/srv/time.conf"]


STATE = Path(engine.__file__).parent
FUNCTIONS = ("observe", "wanted", "plan", "refusals", "findings")
# Modules whose functions the engine calls by name, because they share one package transaction.
BY_NAME = {"apt", "driver", "files", "kernel", "packages", "program"}


def test_every_domain_is_registered_and_complete() -> None:
    assert set(FUNCTIONS) == {name for name in vars(Domain) if not name.startswith("_")}
    for path in sorted((STATE / "domains").glob("[a-z]*.py")):
        name = f"{domain_modules.__name__}.{path.stem}"
        if path.stem in BY_NAME:
            continue
        module = importlib.import_module(name)
        lacks = [
            function for function in FUNCTIONS if not callable(getattr(module, function, None))
        ]
        assert not lacks, (
            f"domains/{path.name} lacks {', '.join(lacks)} of Domain in state/contract.py"
        )
        assert module in engine.DOMAINS, (
            f"DOMAINS in state/engine.py lacks {path.stem}: no plan would use it"
        )


def kinds_of_actions() -> dict[str, str]:
    """Return the kinds of all actions that the source names, with the file and line of each."""
    found = {}
    for path in STATE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Action"
            ):
                named = [word.value for word in node.keywords if word.arg == "kind"]
                for kind in (*node.args[1:2], *named):
                    if isinstance(kind, ast.Constant):
                        found[str(kind.value)] = f"{path.relative_to(STATE)}:{node.lineno}"
    return found


def test_every_kind_of_action_has_a_handler(root: Host) -> None:
    kinds = kinds_of_actions()
    assert len(kinds) > 35, "the actions were not found"
    handlers = applying.Applier(
        root, document(), {}, lambda text: None, "gpu_policy", handlers=gate_handlers.HANDLERS
    ).handlers
    missing = {kind: place for kind, place in kinds.items() if kind not in handlers}
    assert not missing, (
        f"no handler for {missing}: add one to HANDLERS of a module in state/handlers, "
        "and a new module to the list of handlers in state/apply.py"
    )
