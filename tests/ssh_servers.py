"""ssh servers in this process that answer as nodes do: with recorded plans, and in each way that goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from goldnode.node.state.model import PARTS, PLAN_SCHEMA

ADDRESS = "127.0.0.1"
PROMPT = re.compile(r'-p "([^"]+)"')
SUCCESS = re.compile(r"BECOME-SUCCESS-[a-z]+")


def plan(class_digest: str, **changes: Any) -> dict[str, Any]:
    """Return the plan of a node where nothing differs, with `changes`."""
    reboot = {"required": False, "reasons": [], "after": [], "held": []}
    empty: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "state": "present",
        "class_digest": class_digest,
        "boot_identity": "recorded",
        "actions": [],
        "parts": {part: [] for part in PARTS},
        "refusals": [],
        "notes": [],
        "waiting": [],
        "holders": [],
        "drain": "",
        "reboot": reboot,
    }
    return {**empty, **changes}


@dataclass
class Behaviour:
    """How one server behaves. `drops`: connections that it closes at once, as sshd with MaxStartups does. `sudo`: the password that it wants.

    `penalty`: seconds for which it closes all connections once a login has failed, as sshd with PerSourcePenalties does after some.
    """

    answer: str = ""
    status: int = 0
    seconds: float = 0.0
    drops: int = 0
    penalty: float = 0.0
    shut: float = 0.0  # until then, by the clock of the loop
    failed: int = 0  # logins
    sudo: str = ""
    users: tuple[str, ...] = ()  # who may log in; empty for everyone
    certificate: bool = False
    commands: list[str] = field(default_factory=list)
    logins: int = 0
    forwarded: list[int] = field(default_factory=list)


class _Server(asyncssh.SSHServer):
    def __init__(self, behaviour: Behaviour, authorized: str) -> None:
        self._behaviour, self._authorized = behaviour, authorized

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        if self._behaviour.drops > 0:
            self._behaviour.drops -= 1
            conn.abort()
        elif asyncio.get_running_loop().time() < self._behaviour.shut:
            conn.abort()

    def begin_auth(self, username: str) -> bool:
        if self._behaviour.users and username not in self._behaviour.users:
            self._behaviour.failed += 1
            self._behaviour.shut = asyncio.get_running_loop().time() + self._behaviour.penalty
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        allowed = not self._behaviour.users or username in self._behaviour.users
        return allowed and key.export_public_key().decode().split()[1] == self._authorized

    def auth_completed(self) -> None:
        self._behaviour.logins += 1

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        self._behaviour.forwarded.append(dest_port)
        return True


async def _answer(behaviour: Behaviour, process: asyncssh.SSHServerProcess[str]) -> None:
    command = process.command or ""
    behaviour.commands.append(command)
    prompt, success = PROMPT.search(command), SUCCESS.search(command)
    if behaviour.sudo and " -n " in command:
        process.stderr.write("sudo: a password is required\n")
        process.exit(1)
        return
    if behaviour.sudo and prompt is not None:
        if process.get_terminal_type() is not None:
            # As sudo does on a terminal, which Ansible asks for.
            process.channel.set_echo(False)  # type: ignore[attr-defined]
        for _ in range(3):
            process.stderr.write(prompt[1])
            line = await process.stdin.readline()
            if line.rstrip("\n") == behaviour.sudo:
                break
            process.stderr.write("Sorry, try again.\n")
        else:
            process.exit(1)
            return
    if success is not None:
        process.stdout.write(f"{success[0]}\n")
    await asyncio.sleep(behaviour.seconds)
    process.stdout.write(behaviour.answer)
    process.exit(behaviour.status)


class Servers:
    """A place for servers: their keys, and a thread that serves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity = directory / "id_ed25519"
        own = asyncssh.generate_private_key("ssh-ed25519")
        own.write_private_key(str(self.identity))
        self.identity.chmod(0o600)
        self._authorized = own.export_public_key().decode().split()[1]
        self.authority = asyncssh.generate_private_key("ssh-ed25519")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(
        self, behaviour: Behaviour, kinds: tuple[str, ...] = ("ssh-ed25519",)
    ) -> tuple[int, list[str]]:
        """Start a server. Return its port, and its public keys as lines of known_hosts have them."""
        keys: list[Any] = [asyncssh.generate_private_key(kind) for kind in kinds]
        lines = [key.export_public_key().decode().strip() for key in keys]
        if behaviour.certificate:
            key = keys[0]
            certificate = self.authority.generate_host_certificate(
                key, "node", principals=[ADDRESS]
            )
            keys = [(key, certificate)]

        async def listen() -> asyncssh.SSHAcceptor:
            return await asyncssh.create_server(
                lambda: _Server(behaviour, self._authorized),
                ADDRESS,
                0,
                server_host_keys=keys,
                process_factory=lambda process: _answer(behaviour, process),
            )

        acceptor = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(20)
        return acceptor.get_port(), lines

    def stop(self) -> None:
        """Stop all servers."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@contextmanager
def serving(directory: Path) -> Iterator[Servers]:
    """Yield a place for servers, and stop them at the end."""
    servers = Servers(directory)
    try:
        yield servers
    finally:
        servers.stop()


def hashed(line: str, directory: Path) -> str:
    """Return a line of known_hosts with hashed names, as `ssh-keygen -H` writes it."""
    file = directory / "hash"
    file.write_text(f"{line}\n", encoding="utf-8")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    return file.read_text(encoding="utf-8").strip()


def recorded(class_digest: str, **changes: Any) -> str:
    """Return a plan as the program prints it."""
    return json.dumps(plan(class_digest, **changes)) + "\n"
