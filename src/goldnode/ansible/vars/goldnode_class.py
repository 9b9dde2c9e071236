"""Vars plugin: set `goldnode_node_class` to the class document for every group that is named after a node
class.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ansible import context
from ansible.errors import AnsibleParserError
from ansible.inventory.group import Group
from ansible.inventory.host import Host
from ansible.plugins.vars import BaseVarsPlugin

from goldnode.classdoc.cache import ClassDocuments, Compiler
from goldnode.core.errors import GoldnodeError, InventoryError

DOCUMENTATION = """
name: goldnode_class
short_description: Gives the hosts of a node class their class document
description:
  - A group whose name is a class of the catalog gives its hosts the compiled class document as C(goldnode_node_class). Nothing of a class
    is repeated in group_vars.
  - Before that the class is checked for what is known not to fit. One that is blocked has no document, and its hosts fail before they are
    contacted; what else was found is in C(goldnode_class_findings), and is reported once per class.
  - A host in the groups of two classes is an error.
options:
  stage:
    description: When the plugin runs. Once per inventory source, not once per task.
    choices: [all, task, inventory]
    default: inventory
    type: str
    ini: [{key: stage, section: vars_goldnode_class}]
    env: [{name: GOLDNODE_VARS_STAGE}]
"""


def _compiler() -> Compiler:
    """Return the compiler, whose imports cost as much as the rest of a converged run that needs none."""
    from goldnode.inventory.classes import classes_of_hosts

    return Compiler(classes_of_hosts)


class VarsModule(BaseVarsPlugin):
    """Has each class compiled once per run, in Ansible's main process."""

    _documents: ClassVar[ClassDocuments | None] = None

    def get_vars(self, loader: Any, path: str, entities: Any, cache: bool = True) -> dict[str, Any]:
        """Return the variables of a group or host of the inventory source at `path`."""
        super().get_vars(loader, path, entities)
        wanted = entities if isinstance(entities, list) else [entities]
        variables: dict[str, Any] = {}
        try:
            for entity in wanted:
                # A class without a host in this inventory is not compiled.
                if isinstance(entity, Group) and entity.get_hosts():
                    variables.update(self._group(entity.name))
                elif isinstance(entity, Host):
                    self._one_class(entity)
        except GoldnodeError as problem:
            raise AnsibleParserError(str(problem)) from problem
        return variables

    def _classes(self) -> ClassDocuments:
        if VarsModule._documents is None:
            VarsModule._documents = ClassDocuments(_compiler)
            for fault in VarsModule._documents.faults():
                self._display.warning(f"not used: {fault}")
        # The sources themselves: `path` is the directory of a source that is a file, with all that happens to lie in it.
        VarsModule._documents.check(context.CLIARGS.get("inventory") or ())
        return VarsModule._documents

    def _one_class(self, host: Host) -> None:
        """Refuse a host in two classes if no inventory file shows it, because a plugin or script generated
        the inventory.
        """
        known = self._classes().names()
        names = sorted(group.name for group in host.get_groups() if group.name in known)
        if len(names) > 1:
            raise InventoryError(
                f'host "{host.name}" is in the groups of two classes: {" and ".join(names)}',
                remedy="keep it in one of the groups",
            )

    def _group(self, name: str) -> dict[str, Any]:
        documents = self._classes()
        if name not in documents.names():
            return {}
        return {
            "goldnode_node_class": documents.document(name),
            "goldnode_class_findings": documents.remarks(name),
        }
