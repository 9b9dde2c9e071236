"""Base of the inventory plugins that run a program of a scheduler and read its answer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable

from goldnode.core.errors import GoldnodeError
from goldnode.inventory.schedulers import SchedulerHost, program_output


class ProgramInventory(BaseInventoryPlugin, Constructable):
    """Hosts from the answer of a program, in the groups that the file of the source declares."""

    WORDS: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def hosts(self, text: str) -> list[SchedulerHost]:
        """Return the nodes in the program's output. Raise InventoryError for other text."""

    def verify_file(self, path: str) -> bool:
        """Return whether the file may be a source of this plugin; its key `plugin` decides."""
        return bool(super().verify_file(path)) and path.endswith((".yml", ".yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add the nodes, their variables and their groups."""
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        words = [str(word) for word in self.get_option("program")]
        try:
            hosts = self.hosts(program_output([*words, *self.WORDS]))
        except GoldnodeError as problem:
            raise AnsibleParserError(f"{path}: {problem}") from problem
        strict = self.get_option("strict")
        for host in hosts:
            self.inventory.add_host(host.name)
            if host.address is not None:
                self.inventory.set_variable(host.name, "ansible_host", host.address)
            for name, value in host.variables.items():
                self.inventory.set_variable(host.name, name, value)
            values = self.inventory.get_host(host.name).get_vars()
            self._set_composite_vars(self.get_option("compose"), values, host.name, strict)
            # Again: `compose` may have set variables that the groups use.
            values = self.inventory.get_host(host.name).get_vars()
            self._add_host_to_composed_groups(self.get_option("groups"), values, host.name, strict)
            self._add_host_to_keyed_groups(
                self.get_option("keyed_groups"), values, host.name, strict
            )
