"""Action plugin `goldnode_state`: ask a node for its plan once, and run a role on it only if its part of the
plan is not empty.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from ansible import constants as C  # noqa: N812 - its name everywhere in Ansible
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from goldnode.node.ground.optional import optional
from goldnode.node.ground.text import phrase

try:
    from goldnode.ansible import answers
    from goldnode.ansible.follow import counted, followed
    from goldnode.ansible.release import require_ansible
    from goldnode.classdoc.cache import ClassDocuments, Compiler
    from goldnode.core import guarded
    from goldnode.core.deny_list import DenyListPlace
    from goldnode.core.errors import GoldnodeError, InventoryError
    from goldnode.core.files import once
    from goldnode.core.logins import masked
    from goldnode.core.program_file import payload
    from goldnode.fleet.drain.choice import choose
    from goldnode.fleet.drain.leftovers import left
    from goldnode.fleet.ingest.inbox import INBOX, put
    from goldnode.fleet.nodes import runs
    from goldnode.fleet.nodes.plan_document import PlanError, read_plan
    from goldnode.fleet.shared import denylist
    from goldnode.inventory import cohorts, variables
    from goldnode.inventory.cohorts import COHORT, REFUSALS
    from goldnode.node.ground.verdict_files import LARGEST_REPORT
    from goldnode.node.state.domains.program import OTHER, PROGRAM, class_file
    from goldnode.node.state.model import ABSENT, EARLIER, PARTS, PRESENT
    from goldnode.node.state.names import digest
    from goldnode.node.verdict.current import SCHEMA as VERDICT_SCHEMA
    from goldnode.node.verdict.report import notes_of, of_part, verdict_table
except ModuleNotFoundError as problem:  # Ansible of another Python environment
    raise AnsibleError(
        f"The Python environment of this Ansible ({sys.prefix}) lacks goldnode or a part of it: {problem}. Run the "
        "ansible-playbook of the environment that goldnode is installed in, for instance .venv/bin/ansible-playbook."
    ) from None

FACT, BACK, LEFT = "goldnode_plan", "goldnode_rollback", "goldnode_left"
# Conditions that end a host. Ansible compiles a condition again for each host, and that of a fact is the cheapest.
MATCHES, SETTLED = "goldnode_matches", "goldnode_settled"
# The run that the facts are of. A fact cache (fact_caching, ansible-runner, fact storage of AWX) gives a run the facts of an earlier one.
RUN = "goldnode_run"
FEW = 4  # hosts whose plans a person still reads


def untagged(value: Any) -> Any:
    """Return the value without Ansible's tags, as JSON carries it."""
    return json.loads(json.dumps(value))


class _SameObject:
    """The results of a function for the last objects, by their identity. The objects must not change."""

    SIZE = 64

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        # With the object, so that no other one gets its identity.
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """Return what the function makes of a value."""
        if id(value) not in self._made:
            if len(self._made) >= self.SIZE:
                self._made.clear()
            self._made[id(value)] = (value, self._function(value))
        return self._made[id(value)][1]


def diffs(actions: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the output of `--diff`: one entry per action, with target and reason as its header."""
    return [
        {
            "before_header": f"{action['target']} (now)",
            "after_header": f"{action['target']} ({action['kind']}: {action['reason']})",
            # A file from before goldnode, or of a person, may have a login in an address.
            "before": masked(action["before"] or ""),
            "after": masked(action["after"] or ""),
        }
        for action in actions
        if action["before"] != action["after"]
    ]


def locate_parts(plan: dict[str, Any], node_class: str) -> None:
    """Append file and line of the catalog to each note on a declared part: the node knows the key alone."""
    notes = list(filter(of_part, plan["notes"]))
    lines: dict[str, str] = {}
    if notes:
        # A document that -e gave may be of a class that this catalog lacks.
        with contextlib.suppress(GoldnodeError):
            lines = ClassDocuments().part_lines(node_class)
    for note in notes:
        if note["subject"] in lines:
            note["message"] += f" It is declared at {lines[note['subject']]}."


def facts_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a plan: the plan, its run, and whether neither a reboot nor a change waits.

    Logins in what the plan would replace are masked: a fact cache is a file that others may read.
    """
    for action in plan["actions"]:
        for side in ("before", "after"):
            action[side] = optional(masked, action[side])
    settled = not plan["reboot"]["required"] and not plan["waiting"]
    return {FACT: plan, RUN: C.DEFAULT_LOCAL_TMP, SETTLED: settled}


def fact_of_run(task_vars: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a fact that this run has set, {} if it has not: one of an earlier run is no plan for this one."""
    facts = task_vars.get("ansible_facts", {})
    return untagged(facts.get(name) or {}) if facts.get(RUN) == C.DEFAULT_LOCAL_TMP else {}


def planned_parts(part: str, task_vars: dict[str, Any]) -> list[str]:
    """Return what the plan of this run would change in a part. Raises AnsibleActionFail if this run has no plan of the host."""
    facts = task_vars.get("ansible_facts", {})
    if FACT not in facts or facts.get(RUN) != C.DEFAULT_LOCAL_TMP:
        raise AnsibleActionFail(
            f"Part {part} cannot be applied, because this run has not asked the node for its plan. Run site.yml from its "
            f"start, with --tags {part} for this part alone. In a playbook of your own, run role node_class first."
        )
    return list(facts[FACT]["parts"].get(part, ()))


def codes(refusals: list[dict[str, Any]]) -> str:
    """Return the codes of refusals, each once."""
    return ", ".join(dict.fromkeys(refusal["code"] for refusal in refusals))


class ActionModule(ActionBase):
    """See the module of the same name for the options; `document` and `program` are filled in here."""

    _supports_check_mode = True
    _supports_async = False
    _lacks_program = False
    _question: tuple[str, dict[str, Any], dict[str, Any]]
    # A process that asks many nodes has the same class document for all nodes of a class.
    _documents: ClassVar[_SameObject] = _SameObject(untagged)
    _digests: ClassVar[_SameObject] = _SameObject(
        lambda document: digest(class_file(document).content.encode())
    )
    MODULE = "goldnode_state"  # its full name in the collection

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Plan (one remote execution) or apply a part (one, and none when the part is empty or in check mode)."""
        require_ansible()
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, arguments = self.validate_argument_spec(
            {
                "operation": {
                    "type": "str",
                    "choices": ["plan", "apply", "check", "tags", "report"],
                    "default": "plan",
                },
                "part": {"type": "str"},
                "rollback": {"type": "bool", "default": False},
                "to": {"type": "str", "default": ""},
                "tolerate": {"type": "list", "elements": "str", "default": []},
                "fresh": {"type": "bool", "default": False},
            },
            required_if=[("operation", "apply", ["part"])],
        )
        if arguments["operation"] == "tags":
            return self.unselected()
        if arguments["operation"] == "check":
            return self.check(task_vars)
        if arguments["operation"] == "report":
            return self.report(task_vars, fresh=arguments["fresh"])
        if arguments["operation"] == "plan":
            self.judge(task_vars)
        if arguments["rollback"]:
            return self.back(arguments, task_vars)
        # Not a condition of the roles: a template cannot see whether a fact is of this run.
        if arguments["operation"] == "apply" and not planned_parts(arguments["part"], task_vars):
            return {"changed": False, "skipped": True, "msg": "nothing to do"}
        document = {} if self.state(task_vars) == ABSENT else self.document(task_vars)
        if document.get(
            "refusals"
        ):  # of the compatibility check, on this machine: the node is not contacted
            return self.blocked(
                f"class {document['class']}", document["refusals"], f"--class {document['class']}"
            )
        if document and (
            denial := self.denied(document["class"], document["lock"]["digest"], task_vars)
        ):
            return denial
        refusals = self.cohort(task_vars) if document else []
        if refusals:
            return self.blocked(f"cohort {task_vars.get(COHORT)}", refusals, "-i INVENTORY")
        if arguments["operation"] == "plan":
            result = self.plan(document, task_vars)
        else:
            result = {
                **self.apply(document, arguments["part"], task_vars),
                "part": arguments["part"],
            }
        return self.with_class(result, document)

    def with_class(self, result: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        """Return the result with the class that it is of, if any."""
        if document:
            digests = {
                "class_digest": document["digest"],
                "lock_digest": document["lock"]["digest"],
            }
            result["node_class"] = {"class": document["class"], **digests}
        return result

    def resumed(self) -> dict[str, Any]:
        """Return the result of a run that ended at its question to the node, by a connection that has the answer now.

        A process that asks many nodes (goldnode.ansible.asking) waits for none of them inside a run.
        """
        script, document, task_vars = self._question
        answer = self._low_level_execute_command(script)
        plan = self.plan_in(answer, document, task_vars)
        return self.with_class(self.plan_of(plan, document, task_vars), document)

    def unselected(self) -> dict[str, Any]:
        """Refuse tags that select nothing.

        A playbook that imports this one and has its own tags is left alone.
        """
        playbooks = [Path(str(name)) for name in context.CLIARGS.get("args") or ()]
        own = Path(str(self._task.get_path()).rpartition(":")[0])
        alone = [path.resolve() for path in playbooks] == [own.resolve()]
        # A playbook of the collection is called by its full name, which is no path.
        if alone or [path.name for path in playbooks] == [f"goldnode.node.{own.stem}"]:
            tags = ",".join(context.CLIARGS.get("tags") or ())
            known = "Run it without --tags."
            if own.stem == "site":
                known = f"Tags: goldnode for all parts, {', '.join(PARTS)}."
            raise AnsibleActionFail(
                f"Nothing was done: --tags {tags} selects no part of {own.stem}. {known}"
            )
        return {"changed": False}

    def back(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Roll back by the node's own record. Neither class nor catalog is needed."""
        name = task_vars.get("inventory_hostname")
        if self.state(task_vars) == ABSENT:
            raise AnsibleActionFail(
                f"goldnode_state: absent of host {name} takes goldnode away, which is no rollback. Use site.yml for that."
            )
        fact = fact_of_run(task_vars, BACK)
        if arguments["operation"] == "apply":
            if not fact:
                # With --tags, the task that plans may have been left out.
                raise AnsibleActionFail("A rollback needs its plan first. Run rollback.yml whole.")
            result = self.apply(
                {}, arguments["part"], task_vars, state=EARLIER, to=fact["to"]["document"]
            )
            result.update(part=arguments["part"], rollback=fact)
        else:
            result = self.execute(
                {}, task_vars, operation="plan", state=EARLIER, to=arguments["to"]
            )
            fact = untagged(result.get("rollback") or {})
            if fact and (
                denial := self.denied(fact["to"]["class"], fact["to"]["lock_digest"], task_vars)
            ):
                return denial
            if not result.get("failed"):
                result["plan"] = untagged(result["plan"])
                result = self.planned(result, {}, task_vars, arguments["tolerate"])
                result.setdefault("ansible_facts", {})[BACK] = fact
        if fact:
            result["node_class"] = {
                key: fact["to"][key] for key in ("class", "class_digest", "lock_digest")
            }
        return result

    def state(self, task_vars: dict[str, Any]) -> str:
        """Return the state that the variable `goldnode_state` requests for this host: `present` (the default)
        or `absent`.
        """
        state = str(self._templar.template(task_vars.get("goldnode_state", PRESENT)))
        if state not in (PRESENT, ABSENT):
            raise AnsibleActionFail(
                f"goldnode_state: {state} of host {task_vars.get('inventory_hostname')} is not known. Use present or absent."
            )
        return state

    def judge(self, task_vars: dict[str, Any]) -> None:
        """Refuse settings on which a later drain or reboot would fail, before packages change."""
        facts = {
            name: self.option(task_vars, name, None)
            for name in variables.JUDGED
            if name in task_vars
        }
        try:
            variables.check(str(task_vars.get("inventory_hostname")), facts)
        except InventoryError as problem:
            raise AnsibleActionFail(str(problem)) from problem

    def document(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the class document of the host: the variable that the vars plugin or -e sets, otherwise by
        its groups.
        """
        name = task_vars.get("inventory_hostname")
        declared: dict[str, Any] = self._documents.of(task_vars.get("goldnode_node_class"))
        if not declared:
            groups = [group for group in task_vars.get("group_names", []) if group != "ungrouped"]
            try:
                declared = self.compiled(str(name), groups)
            except GoldnodeError as problem:
                raise AnsibleActionFail(str(problem)) from problem
        if "error" in declared and "refusals" not in declared:
            raise AnsibleActionFail(
                f"Class {declared.get('class')} of host {name} cannot be used: {declared['error']}"
            )
        return declared

    def compiled(self, host: str, groups: Sequence[str]) -> dict[str, Any]:
        """Return the document of the class that one of the host's groups is named after.

        Without the vars plugin, every task of a host does this. The cache of class documents makes it cheap.
        Raises GoldnodeError.
        """
        documents = ClassDocuments()
        names = sorted({*groups} & {*documents.names()})
        if len(names) != 1:
            # Only for a host without one class: these imports take longer than the whole of its plan.
            from goldnode.inventory.classes import classes_of_hosts
            from goldnode.inventory.selection import put_right
        if len(names) > 1:
            # This names both lines, unless a script or plugin made the inventory.
            ClassDocuments(lambda: Compiler(classes_of_hosts)).check(
                context.CLIARGS.get("inventory") or ()
            )
            raise InventoryError(
                f'host "{host}" is in the groups of two classes: {" and ".join(names)}',
                remedy="keep it in one of the groups",
            )
        if not names:
            raise InventoryError(
                f"Host {host} is of no node class: none of its groups ({', '.join(groups) or 'none'}) is the name of a "
                "class in the catalog",
                remedy=put_right(groups, documents.names()),
            )
        document, findings = documents.document(names[0]), documents.remarks(names[0])
        # Files of the catalog with errors do not stop this class; the first of the run's processes names them.
        with (
            contextlib.suppress(FileExistsError),
            (Path(C.DEFAULT_LOCAL_TMP) / "told-catalog").open("x"),
        ):
            for fault in documents.faults():
                self._display.warning(f"not used: {fault}")
        # The first of the run's processes prints the findings of a class, as the callback plugin does.
        with (
            contextlib.suppress(FileExistsError),
            (Path(C.DEFAULT_LOCAL_TMP) / f"told-{names[0]}").open("x"),
        ):
            if findings:
                lines = [f"class {names[0]}, checked:", *(f"  {line}" for line in findings)]
                self._display.display("\n".join(lines))
        return document

    def denied(
        self, node_class: str, lock: str, task_vars: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the result for a host whose state is on the deny list, or where that could not be checked.

        An image that is built is no node: its state may be denied.
        """
        if self.option(task_vars, "goldnode_root", ""):
            return None
        try:
            denylist.check(self.denials(), node_class, lock)
        except GoldnodeError as problem:
            code = "denied" if isinstance(problem, denylist.DeniedError) else "deny-list"
            place = phrase("{}: ", problem.file)
            remedy = problem.remedy or "see the message"
            refusal = {
                "code": code,
                "message": f"{place}{problem.message}.",
                "remedy": f"{remedy[:1].upper()}{remedy[1:]}.",
            }
            return {
                "failed": True,
                "changed": False,
                "msg": f"{problem} Nothing was touched.",
                "refusals": [refusal],
            }
        return None

    def denials(self) -> list[denylist.Denial]:
        """Return the denied states. A file is read and verified once per run and version: it may change in a long run."""
        listed = self.controller()["deny_list"]
        place = DenyListPlace(**listed) if listed else None
        version = denylist.version(place)
        if place is None or version is None:
            return list(denylist.read(place))
        rows = once(
            Path(C.DEFAULT_LOCAL_TMP) / f"goldnode-denied-{version}.json",
            lambda: {"denied": [asdict(item) for item in denylist.read(place)]},
        )
        return [denylist.Denial(**row) for row in rows["denied"]]

    def cohort(self, task_vars: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the refusals of the host's cohort.

        The callback plugin checks all cohorts at the start of a play. Where it is not enabled, the first
        process of the run that needs the result does.
        """
        if COHORT not in task_vars or REFUSALS in task_vars:
            return list(untagged(task_vars.get(REFUSALS) or []))
        hosts = task_vars["hostvars"]
        try:
            members = once(
                Path(C.DEFAULT_LOCAL_TMP) / "goldnode-cohorts.json",
                lambda: cohorts.findings(hosts.raw_get(name) for name in hosts),
            )
        except GoldnodeError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        refusals = members.get(str(self.option(task_vars, COHORT, "")), {}).get("refusals", [])
        return [dict(refusal) for refusal in refusals]

    def blocked(self, subject: str, refusals: list[dict[str, Any]], ask: str) -> dict[str, Any]:
        """Return the result for a host whose class or cohort is blocked."""
        message = f"{subject} is blocked, and nothing was touched: {codes(refusals)}. `refusals` has the reasons, `goldnode check {ask}` all findings."
        return {"failed": True, "changed": False, "msg": message, "refusals": refusals}

    def option(self, task_vars: dict[str, Any], name: str, default: Any) -> Any:
        """Return the value of one of our variables for this host."""
        return self._templar.template(task_vars[name]) if name in task_vars else default

    def execute(
        self, document: dict[str, Any], task_vars: dict[str, Any], **arguments: Any
    ) -> dict[str, Any]:
        """Execute the module once on the host."""
        request = {
            # A removal goes by what the node itself has: its class may have left the catalog.
            **({"document": document} if document else {"state": ABSENT, **arguments}),
            "lock_timeout": self.option(task_vars, "goldnode_lock_timeout", 120),
            **arguments,
            **(
                {"report": True} if arguments["operation"] != "report" and self.fleet_data() else {}
            ),
            # The root filesystem of an image, in place of the host; set by `goldnode disks build`. The token of a run
            # of a rollout; set by that.
            **{
                name: value
                for name in ("root", "sources", "claim")
                if (value := self.option(task_vars, f"goldnode_{name}", ""))
            },
        }
        result: dict[str, Any] = {"needs_program": True}
        # The program is sent only where it is known, or turns out, to be missing: it is most of what travels. A removal goes with it, since
        # a node from which goldnode has gone must cost one execution too.
        for content in (True,) if self._lacks_program or not document else (False, True):
            if result.get("needs_program"):
                sent = {**request, "program": self.program(content=content)}
                result = self._execute_module(
                    module_name=self.MODULE,
                    module_args=sent,
                    # The class document must not fill the syslog of the node, whatever ansible.cfg sets.
                    task_vars={**task_vars, "ansible_no_target_syslog": True},
                )
        result.pop("invocation", None)  # the class document, again
        self.stored(result.pop("report", None), task_vars)
        return result

    def controller(self) -> dict[str, Any]:
        """Return what is of this machine and not of a class. It is read once per run."""
        return once(
            Path(C.DEFAULT_LOCAL_TMP) / "goldnode-controller.json",
            lambda: ClassDocuments().controller(),
        )

    def program(self, *, content: bool) -> dict[str, str]:
        """Return the program as the module takes it. A run packs it once, for the first node that lacks it."""
        if not content:
            return {"sha256": self.controller()["program"]}
        return once(
            Path(C.DEFAULT_LOCAL_TMP) / "goldnode-program.json", lambda: payload(content=True)
        )

    def fleet_data(self) -> Path | None:
        """Return the directory of the fleet's data, if this site fetches reports in each run."""
        return optional(Path, self.controller()["fleet_data"] or None)

    def stored(self, report: Any, task_vars: dict[str, Any], data: Path | None = None) -> str:
        """Write the report of a node into the inbox. Return why that failed; empty if it did not.

        A report that cannot be stored is a warning: it must not end a change of the node.
        """
        data = data or (self.fleet_data() if report else None)
        if not report or data is None:
            return "the node has no report" if not report else ""
        report = untagged(report)
        name = str(task_vars.get("inventory_hostname"))
        try:
            if not isinstance(report, dict):
                raise ValueError("it is not an object")
            put(
                data,
                name,
                {
                    **report,
                    "source": "ansible",
                    "cohort": optional(str, self.option(task_vars, COHORT, None)),
                },
            )
        except (OSError, ValueError) as problem:
            text = f"the report of {name} cannot be stored in {data}: {problem}"
            self._display.display(f"[WARNING]: {text}", color=C.COLOR_WARN, stderr=True)
            return text
        return ""

    def report(self, task_vars: dict[str, Any], *, fresh: bool = False) -> dict[str, Any]:
        """Fetch the report of the node: one execution by the program there, else one that takes the program along."""
        words = ["report", *(["--fresh"] if fresh else [])]
        report = None
        if boolean(self.option(task_vars, "goldnode_resident", True)):
            answer = self._low_level_execute_command(
                f"exec 2>/dev/null\n{guarded.script(words, self.controller()['program'])}"
            )
            with contextlib.suppress(ValueError, RecursionError):
                if answer["rc"] == 0 and len(answer["stdout"]) <= LARGEST_REPORT:
                    report = json.loads(answer["stdout"])
        if report is None:
            self._lacks_program = True
            sent = {"operation": "report", "fresh": fresh, "program": self.program(content=True)}
            result = self._execute_module(
                module_name=self.MODULE,
                module_args=sent,
                task_vars={**task_vars, "ansible_no_target_syslog": True},
            )
            if result.get("failed"):
                result.pop("invocation", None)
                return dict(result)
            report = result.get("report")
        # Start-up time: no other operation reads the site file.
        from goldnode.core.site import load_site

        data = load_site().fleet_data().absolute()
        fault = self.stored(report, task_vars, data)
        return {
            "changed": False,
            "failed": bool(fault),
            "msg": fault or f"the report is in {data / INBOX}",
        }

    def plan(self, document: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Plan both parts. Refusals of the node end its play before anything was changed."""
        live = not self.option(task_vars, "goldnode_root", "")
        plan = self.resident(document, task_vars) if document and live else None
        return self.plan_of(plan, document, task_vars)

    def plan_of(
        self, plan: dict[str, Any] | None, document: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the result for the plan of the program on the node, without one that of the module."""
        result: dict[str, Any] = {"plan": plan}
        if plan is None:
            result = self.execute(document, task_vars, operation="plan")
            if result.get("failed"):
                return result
            result["plan"] = untagged(result["plan"])
        return self.planned(result, document, task_vars)

    def planned(
        self,
        result: dict[str, Any],
        document: dict[str, Any],
        task_vars: dict[str, Any],
        tolerate: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return the result for a plan from a node.

        The plan has no tags of Ansible. With refusals that are not tolerated, the result is failed and holds the plan
        as `refused_plan`.
        """
        plan = result.pop("plan")
        if any(refusal["code"] not in tolerate for refusal in plan["refusals"]):
            if left_by := self.left(plan, task_vars):
                result["left"] = left_by
            if context.CLIARGS.get(
                "tree"
            ):  # `goldnode plan` reads the files of --tree; a person has no use for it
                result["refused_plan"] = plan
            # The refusals are part of the result, and of the report at the end: the message only counts them.
            message = f"The node refused before anything was touched: {codes(plan['refusals'])}. `refusals` has the reasons."
            result.update(failed=True, msg=message, refusals=plan["refusals"])
            return result
        if document:
            locate_parts(plan, document["class"])
        left_by = self.left(plan, task_vars)
        verify = boolean(self.option(task_vars, "sanity_verify", False), strict=False)
        matches = not plan["actions"] and not verify and (not left_by or self._task.check_mode)
        result["ansible_facts"] = {**facts_of(plan), LEFT: left_by, MATCHES: matches}
        result["msg"] = summary(plan)
        result["resources"] = runs.planned(plan)
        result["changed"] = False
        self.report_plan(plan, document, task_vars)
        return result

    def left(self, plan: dict[str, Any], task_vars: dict[str, Any]) -> str:
        """Return the earlier run that left the host out of service.

        The source is the host's own record in the plan, or the scheduler, which is queried once per run for
        all hosts.
        """
        name = str(self.option(task_vars, "goldnode_drain", "none"))
        node = str(
            self.option(task_vars, "goldnode_drain_name", task_vars.get("inventory_hostname"))
        )
        try:
            return left(
                name, node, plan.get("drain", ""), Path(C.DEFAULT_LOCAL_TMP), lambda: choose(name)
            )
        except GoldnodeError as problem:
            self._display.display(f"[WARNING]: {problem}", color=C.COLOR_WARN, stderr=True)
            return ""

    def resident(
        self, document: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the plan by the program that is on the node, where program and class document there are just what would be shipped to it.

        The shell there verifies the program first, for one that a user has put in its place would answer as that user likes. None where
        it is another, or not root's alone, or where what came back is no plan: then the module, which ships its own, is asked.
        """
        if not boolean(self.option(task_vars, "goldnode_resident", True)):
            return None
        engine = self.controller()["program"]
        words = ["plan", "--resident", "--engine-digest", engine]
        words += ["--class-digest", self._digests.of(document)]
        words += ["--lock-timeout", str(int(self.option(task_vars, "goldnode_lock_timeout", 120)))]
        words += ["--report", "last"] if self.fleet_data() else []
        # With a terminal (ssh -t) warnings would be mixed into the plan.
        script = f"exec 2>/dev/null\n{guarded.script(words, engine)}"
        self._question = (script, document, task_vars)
        answers.execute_first(
            self._connection, self._task._uuid, str(task_vars.get("inventory_hostname"))
        )
        return self.plan_in(self._low_level_execute_command(script), document, task_vars)

    def plan_in(
        self, answer: dict[str, Any], document: dict[str, Any], task_vars: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the plan in the answer of the program on the node, None if it has none."""
        name = task_vars.get("inventory_hostname")
        if answer["rc"] != 0:
            # Any other status may be a fault of the program, which need not be sent again.
            self._lacks_program = answer["rc"] == OTHER
            self._display.vvv(
                f"goldnode: the program on the node is not the one for this plan (exit status {answer['rc']})",
                host=name,
            )
            return None
        # On a terminal, sudo ends the line of its prompt after a password.
        text, _, report = answer["stdout"].lstrip("\r\n").partition("\n")
        try:
            plan = read_plan(text, document["digest"])
        except PlanError as problem:
            # Not display.warning: ansible.cfg hides the results of tasks that end well, and their warnings with them.
            text = f"[WARNING]: [{name}] {PROGRAM} answered with no plan ({problem}). Asking the module, which ships its own."
            self._display.display(text, color=C.COLOR_WARN, stderr=True)
            return None
        self._display.vvv("goldnode: planned by the program on the node", host=name)
        if 2 < len(report) <= LARGEST_REPORT and self.fleet_data():
            try:
                self.stored(json.loads(report), task_vars)
            except (ValueError, RecursionError) as problem:
                self._display.vvv(
                    f"goldnode: the report of the node is not JSON: {problem}", host=name
                )
        return plan

    def check(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Judge the node by the program on it, which has to be this version's and root's alone. The task decides which exit codes fail.

        The result holds the verdict, and as its output the text that the program prints for a person. A check
        without a verdict has no output.
        """
        if self._task.check_mode:
            return {
                "changed": False,
                "skipped": True,
                "msg": "a check writes its verdict on the node",
            }
        answer = self._low_level_execute_command(
            guarded.script(["check", "--format", "json"], self.controller()["program"])
        )
        if answer["rc"] == OTHER:
            return {
                "failed": True,
                "changed": False,
                "rc": answer["rc"],
                "msg": f"{PROGRAM} on the node is another program, or others than root can change it, so it was not run. "
                "Run site.yml whole for this host: it names what is wrong and puts the program back.",
            }
        verdict = read_verdict(answer["stdout"])
        table = verdict_table(verdict) if verdict else ""
        if table and len(task_vars.get("ansible_play_hosts_all", ())) <= FEW:
            self._display.display(f"[{task_vars.get('inventory_hostname')}]\n{table}")
        return {
            "changed": False,
            **{name: answer[name] for name in ("rc", "stderr", "stderr_lines")},
            "stdout": table,
            "stdout_lines": table.splitlines(),
            **({"verdict": verdict} if verdict else {}),
        }

    def report_plan(
        self, plan: dict[str, Any], document: dict[str, Any], task_vars: dict[str, Any]
    ) -> None:
        """Print the pending changes if there are few hosts, or with -v. For a fleet the report at the end has
        them.
        """
        few = len(task_vars.get("ansible_play_hosts_all", ())) <= FEW
        pending = plan["actions"] or plan["waiting"] or any(map(of_part, plan["notes"]))
        if not pending or not (few or self._display.verbosity):
            return
        if document:
            what = f"{document['class']}: {len(plan['actions'])} differences"
        else:
            what = f"absent: {len(plan['actions'])} removals"
        if plan["state"] == PRESENT and not document:
            what = f"way back: {len(plan['actions'])} differences"
        head = f"[{task_vars.get('inventory_hostname')}] {what}"
        if plan["waiting"]:
            what = "drain" if plan["state"] == PRESENT else "reboot"
            head += f", {len(plan['waiting'])} waiting for a {what}"
        self._display.display("\n".join([head, *(f"  {text}" for text in summary(plan))]))

    @contextlib.contextmanager
    def progress(
        self, part: str, actions: list[dict[str, Any]], task_vars: dict[str, Any]
    ) -> Iterator[None]:
        """Report that a part is applied: the changes of each host if there are few, otherwise one line per
        part.
        """
        few = len(task_vars.get("ansible_play_hosts_all", ())) <= FEW
        if not few and not self._display.verbosity:
            with (
                contextlib.suppress(FileExistsError),
                (Path(C.DEFAULT_LOCAL_TMP) / f"applying-{part}").open("x"),
            ):
                self._display.display(f"applying part {part}; -v shows the progress of each host")
            yield
            return
        name = task_vars.get("inventory_hostname")
        self._display.display(f"[{name}] {part}: {counted(actions)}")
        if self.option(task_vars, "goldnode_root", ""):  # a directory has no progress file
            yield
            return
        # A removal is one deed of all parts.
        begun = ABSENT if self.state(task_vars) == ABSENT else part
        with followed(self, begun, lambda text: self._display.display(f"[{name}]   {text}")):
            yield

    def apply(
        self, document: dict[str, Any], part: str, task_vars: dict[str, Any], **back: str
    ) -> dict[str, Any]:
        """Apply a part of the plan that the node gave. A removal is one deed in an order of its own: the first role does all of it."""
        plan = fact_of_run(task_vars, FACT)
        actions = [action for action in plan["actions"] if action["part"] == part]
        lines = [f"{action['kind']} {action['target']}: {action['reason']}" for action in actions]
        if not actions:
            return {"changed": False, "msg": "nothing to do"}
        if self._task.check_mode:
            return {
                "changed": True,
                "msg": lines,
                "diff": diffs(actions),
                "resources": runs.planned(plan, part),
            }
        # The plan replaces the program: the node cannot have the one that is to run.
        self._lacks_program = bool(document) and any(
            action["target"] == PROGRAM for action in plan["actions"]
        )
        with self.progress(part, actions, task_vars):
            result = self.execute(document, task_vars, operation="apply", part=part, **back)
        done = untagged(result.pop("done", []))
        result["resources"] = runs.applied(done, part)
        if result.get("failed"):
            result["changed"] = any(row["changed"] for row in result["resources"])
            return result
        result["ansible_facts"] = facts_of(untagged(result.pop("plan")))
        result["diff"] = diffs(done)
        result["msg"] = [
            *(line(row) for row in done),
            *untagged(result.get("gate", [])),
        ]  # a removal judges nothing
        last = not result["ansible_facts"][FACT]["actions"]
        if last and "verdict" in result and len(task_vars.get("ansible_play_hosts_all", ())) <= FEW:
            self._display.display(
                f"[{task_vars.get('inventory_hostname')}]\n{verdict_table(result['verdict'])}"
            )
        return result


def read_verdict(text: str) -> dict[str, Any] | None:
    """Return the verdict in the output of a check, or None. With a terminal (ssh -t), warnings precede and follow it."""
    # The decoder stops at the end of the object: text after it does not matter.
    begin = text.find("{")
    with contextlib.suppress(ValueError, RecursionError):
        verdict, _ = json.JSONDecoder().raw_decode(text, begin) if begin >= 0 else (None, 0)
        if isinstance(verdict, dict) and verdict.get("schema") == VERDICT_SCHEMA:
            return verdict
    return None


def line(done: dict[str, Any]) -> str:
    """Return one applied action, with its message, as a line for a person."""
    text = f"{done['kind']} {done['target']}: {done['reason']}"
    return f"{text}\n{done['told']}" if done.get("told") else text


def summary(plan: dict[str, Any]) -> list[str]:
    """Return a plan in a few lines: the changes of each part, items that cannot be judged, and whether a
    reboot follows.
    """
    lines: list[str] = []
    for action in plan["actions"]:
        lines.append(f"{action['part']}: {action['kind']} {action['target']}: {action['reason']}")
        lines += [f"    {text}" for text in action["data"].get("lines", [])]
    present = plan["state"] == PRESENT
    lines = lines or [
        "the node is what its class says" if present else "goldnode has nothing left to remove"
    ]
    lines += [
        f"{'waits for a drain' if present else 'waiting'}: {item['subject']}: {item['message']}"
        for item in plan["waiting"]
    ]
    lines += notes_of(plan)
    return lines + [f"reboot: {reason}" for reason in plan["reboot"]["after"]]
