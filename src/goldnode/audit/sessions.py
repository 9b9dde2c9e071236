"""Many ssh sessions in flight from one process, with asyncssh.

Equal targets share a connection, as do all hosts behind one jump host. Servers drop connections that have not logged in
once there are more than a few (MaxStartups of sshd, 10 as a rule), so that each address gets few of these at a time, and
a dropped one is tried again a little later.

An answer is what a command printed and its exit status. Everything else is a fault, with which the caller asks the host
in another way: here nothing is concluded from a key that is not known or a login that is refused.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import asyncssh
from asyncssh.encryption import get_default_encryption_algs, get_encryption_algs
from asyncssh.kex import get_kex_algs
from asyncssh.mac import get_mac_algs
from asyncssh.public_key import get_certificate_algs, get_public_key_algs

from goldnode.audit.known_hosts import KnownHosts, lookup_name
from goldnode.audit.ssh_options import SshTarget

LARGEST = 24 * 1024 * 1024  # bytes of an answer: a plan and a report
STARTUPS = 8  # connections to one address that have not logged in
CHANNELS = 8  # sessions of one connection at a time; MaxSessions of sshd is 10 as a rule
IDLE = 32  # connections without a session that stay open for the next host of the same target
TUNNELS = 64  # connections through one jump host that have not logged in
ATTEMPTS = 4  # at a server that drops connections
PAUSE = 0.4  # seconds before the second attempt, twice as long before each further one
# Seconds for which sshd drops all connections of an address, for each login that failed (PerSourcePenalties, OpenSSH 9.8
# and later), once they add up to 15. The longest pause for it is LONGEST.
PENALTY, LONGEST = 5.0, 60.0
TIMEOUT = 60.0  # seconds for a connection and its login, where ssh has no ConnectTimeout
LOGIN = 2.0  # times ConnectTimeout: here it includes the login, and other sessions take their turns

# The parts of an exchange, by the option of OpenSSH that restricts them.
ALGORITHMS = {
    "ciphers": "encryption_algs",
    "hostkeyalgorithms": "server_host_key_algs",
    "kexalgorithms": "kex_algs",
    "macs": "mac_algs",
}
# Signature algorithms by the type of a key in known_hosts; others have one of their own name.
SIGNATURES = {"ssh-rsa": ["rsa-sha2-512", "rsa-sha2-256"]}
AUTHORITIES = [
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
]
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
FAMILIES = {"any": 0, "inet": 2, "inet6": 10}


class SessionError(Exception):
    """A host gave no answer. The text is the reason in one clause; `wrong_password`: become refused the password.

    `refused_by`: the jump host that refused the login.
    """

    def __init__(self, reason: str, *, wrong_password: bool = False, refused_by: str = "") -> None:
        super().__init__(reason)
        self.wrong_password, self.refused_by = wrong_password, refused_by


@dataclass(frozen=True)
class Become:
    """How a command asks for the password of become: `prompt` is printed before, `success` after it was right."""

    prompt: str
    success: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class SessionAnswer:
    """The output of a command and its exit status."""

    status: int
    stdout: bytes
    stderr: bytes


class Sessions:
    """Connections to many servers. Use it as an asynchronous context, which closes them. `closed`: how many are closed already."""

    def __init__(self) -> None:
        self.closed = 0
        self._open: OrderedDict[SshTarget, _Connection] = OrderedDict()
        self._startups: dict[tuple[str, int], asyncio.Semaphore] = {}
        self._tunnels: dict[SshTarget, asyncio.Semaphore] = {}
        self._known: dict[tuple[str, ...], KnownHosts] = {}
        self._refused: Counter[tuple[str, int]] = Counter()  # logins, by server
        self._keys: dict[tuple[str, ...], list[Any]] = {}

    async def __aenter__(self) -> Sessions:
        return self

    async def __aexit__(self, *problem: object) -> None:
        for connection in self._open.values():
            connection.close()

    async def ask(
        self, target: SshTarget, command: str, become: Become | None = None
    ) -> SessionAnswer:
        """Run a command and return its answer. Raises SessionError."""
        async with self._connection(target) as connection:
            try:
                channel, session = await connection.create_session(
                    lambda: _Session(become),
                    command,
                    encoding=None,
                    request_pty=False,
                    env=dict(target.environment),
                )
                if become is None:
                    channel.write_eof()
                answer: SessionAnswer = await cast(_Session, session).answer
                return answer
            except asyncssh.Error as problem:
                raise SessionError(f"the session failed: {problem}") from problem

    @asynccontextmanager
    async def _connection(self, target: SshTarget) -> AsyncIterator[asyncssh.SSHClientConnection]:
        shared = self._open.get(target)
        if shared is None or shared.lost:
            shared = self._open[target] = _Connection()
        self._open.move_to_end(target)
        shared.users += 1
        try:
            async with shared.channels:
                async with shared.opening:
                    if shared.lost:
                        raise SessionError(shared.lost)
                    if shared.connection is None:
                        try:
                            shared.connection = await self._connect(target)
                        except SessionError as problem:
                            shared.lost = str(problem)
                            raise
                yield shared.connection
        finally:
            shared.users -= 1
            self._close_idle()

    def _close_idle(self) -> None:
        idle = [target for target, shared in self._open.items() if not shared.users]
        for target in idle[: max(0, len(idle) - IDLE)]:
            self._open.pop(target).close()
            self.closed += 1

    async def _connect(self, target: SshTarget) -> asyncssh.SSHClientConnection:
        refused: list[str] = []
        pause = PAUSE
        for attempt in range(ATTEMPTS):
            if attempt:
                penalty = min(PENALTY * self._refused[target.host, target.port], LONGEST)
                await asyncio.sleep(max(pause * (1 + random.random()), penalty))  # noqa: S311 - so that not all come at once
                pause *= 2
            try:
                return await self._attempt(target, refused)
            except asyncssh.HostKeyNotVerifiable as problem:
                # OpenSSH asks for a key of a type that it knows of this host. Here one is asked for after the other.
                rest = _KeyOrder(self._known_hosts(target), refused).types()
                if target.any_key or not refused or not rest:
                    raise SessionError(str(problem)) from problem
            except (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError) as problem:
                if attempt == ATTEMPTS - 1:
                    reason = f"the connection was closed: {problem}"
                    if self._refused[target.host, target.port]:
                        reason += ", after logins that failed there (PerSourcePenalties of sshd)"
                    raise SessionError(reason) from problem
            except asyncssh.PermissionDenied as problem:
                self._refused[target.host, target.port] += 1
                raise SessionError(str(problem)) from problem
            except TimeoutError as problem:
                raise SessionError("the connection timed out") from problem
            except OSError as problem:
                # asyncio has words of its own for what the kernel says.
                words = os.strerror(problem.errno) if problem.errno else str(problem)
                raise SessionError(words) from problem
            except (asyncssh.Error, ValueError) as problem:
                raise SessionError(str(problem) or type(problem).__name__) from problem
        raise SessionError("no key of the host is known")

    async def _attempt(self, target: SshTarget, refused: list[str]) -> asyncssh.SSHClientConnection:
        known = self._known_hosts(target)
        name = lookup_name(
            target.host_key_alias or target.host, 22 if target.host_key_alias else target.port
        )
        order = _KeyOrder(known, refused).algorithms()
        restricted = {
            ALGORITHMS[option]: _supported(option, names) for option, names in target.algorithms
        }
        # The cheapest here of those that both programs prefer; chacha20 is called once per packet and key.
        restricted.setdefault("encryption_algs", [*FAST_CIPHERS, *_DEFAULT_CIPHERS])
        if order and not target.any_key:
            allowed = restricted.get("server_host_key_algs", order)
            restricted["server_host_key_algs"] = _supported(
                "hostkeyalgorithms", [one for one in order if one in allowed]
            )
        seconds = target.timeout * LOGIN or TIMEOUT
        given: dict[str, Any] = {
            "username": target.user,
            "client_keys": await self._identities(target),
            "agent_path": None,
            "known_hosts": lambda host, address, port: ([], [], []),
            "client_factory": lambda: _Client(
                known, name, refused, any_key=target.any_key and known.empty
            ),
            "preferred_auth": "publickey",
            "compression_algs": None,
            "config": None,
            "connect_timeout": seconds,
            "login_timeout": seconds,
            "keepalive_interval": target.alive[0],
            "keepalive_count_max": target.alive[1],
            "gss_host": None,
            **restricted,
        }
        if target.jump is None:
            async with self._startups.setdefault(
                (target.host, target.port), asyncio.Semaphore(STARTUPS)
            ):
                return await asyncssh.connect(
                    target.host, target.port, family=FAMILIES.get(target.family, 0), **given
                )
        async with self._tunnels.setdefault(target.jump, asyncio.Semaphore(TUNNELS)):
            tunnel = await self._tunnel(target.jump)
            return await asyncssh.connect(target.host, target.port, tunnel=tunnel, **given)

    async def _tunnel(self, jump: SshTarget) -> asyncssh.SSHClientConnection:
        """Return the connection to a jump host, which is shared and stays open to the end."""
        shared = self._open.get(jump)
        if shared is None:
            shared = self._open[jump] = _Connection()
            shared.users = 1
        async with shared.opening:
            if shared.lost:
                raise self._no_tunnel(jump, shared.lost)
            if shared.connection is None:
                try:
                    shared.connection = await self._connect(jump)
                except SessionError as problem:
                    shared.lost = str(problem)
                    raise self._no_tunnel(jump, shared.lost) from problem
        return shared.connection

    def _no_tunnel(self, jump: SshTarget, reason: str) -> SessionError:
        refused = self._refused[jump.host, jump.port]
        return SessionError(
            f"the jump host: {reason}", refused_by=f"{jump.host}:{jump.port}" if refused else ""
        )

    def _known_hosts(self, target: SshTarget) -> KnownHosts:
        if target.known_hosts not in self._known:
            self._known[target.known_hosts] = KnownHosts(target.known_hosts)
        return self._known[target.known_hosts]

    async def _identities(self, target: SshTarget) -> list[Any]:
        """Return the keys of the agent and in the files of the user. One that cannot be read, as for want of its passphrase, is left out."""
        place = (target.agent, *target.identity_files)
        if place not in self._keys:
            pairs: list[Any] = []
            if target.agent:
                with suppress(asyncssh.Error, OSError, ValueError):
                    pairs += await asyncssh.SSHAgentClient(target.agent).get_keys()
            for file in target.identity_files:
                with suppress(asyncssh.Error, OSError, ValueError):
                    pairs += asyncssh.load_keypairs([file])
            self._keys[place] = pairs
        if not self._keys[place]:
            raise SessionError("there is no key to log in with")
        return self._keys[place]


@dataclass
class _Connection:
    """One shared connection. `lost`: why there is none."""

    connection: asyncssh.SSHClientConnection | None = None
    lost: str = ""
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    channels: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHANNELS))

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class _KeyOrder:
    """The types of host keys to ask a server for: those that known_hosts has, without the types that were refused."""

    def __init__(self, known: KnownHosts, refused: list[str]) -> None:
        self._known, self._refused = known, refused

    def types(self) -> list[str]:
        """Return the types, the most frequent first."""
        return [kind for kind in self._known.key_types() if kind not in self._refused]

    def algorithms(self) -> list[str]:
        """Return the algorithms of these types that asyncssh has, and those of certificates before them."""
        named = [one for kind in self.types() for one in SIGNATURES.get(kind, [kind])]
        # Of a certificate, asyncssh shows only the authority's key: one of a host could be a revoked one.
        if self._known.has_authorities() and not self._refused and not self._known.revoked_keys():
            named = [*AUTHORITIES, *named]
        return [one for one in named if one in _ALL["hostkeyalgorithms"]]


def _supported(option: str, names: Iterable[str]) -> list[str]:
    """Return the algorithms of a restriction that asyncssh has. Raises SessionError if it has none."""
    both = [name for name in names if name in _ALL[option]]
    if not both:
        raise SessionError(f"none of the {option} that ssh is restricted to is known here")
    return both


def _names(algorithms: Iterable[bytes]) -> set[str]:
    return {name.decode() for name in algorithms}


_ALL = {
    "ciphers": _names(get_encryption_algs()),
    "hostkeyalgorithms": _names([*get_public_key_algs(), *get_certificate_algs()]),
    "kexalgorithms": _names(get_kex_algs()),
    "macs": _names(get_mac_algs()),
}


_DEFAULT_CIPHERS = [
    name.decode() for name in get_default_encryption_algs() if name.decode() not in FAST_CIPHERS
]


class _Client(asyncssh.SSHClient):
    """Validates the key of a server by known_hosts. `refused` gets the type of a key that is not there."""

    def __init__(self, known: KnownHosts, name: str, refused: list[str], *, any_key: bool) -> None:
        self._known, self._name, self._refused, self._any_key = known, name, refused, any_key

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        """Return whether a line has the key and the name."""
        if self._any_key or self._known.trusts(key.public_data, self._name):
            return True
        self._refused.append(key.get_algorithm())
        return False

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Return whether a line has the authority and the name."""
        if self._known.trusts(key.public_data, self._name, authority=True):
            return True
        self._refused.append("certificate")
        return False


class _Session(asyncssh.SSHClientSession[bytes]):
    """One command. `answer` is its result."""

    def __init__(self, become: Become | None) -> None:
        self.answer: asyncio.Future[SessionAnswer] = asyncio.get_running_loop().create_future()
        self._become, self._sent = become, False
        self._parts: tuple[list[bytes], list[bytes]] = ([], [])
        self._size, self._status = 0, -1
        self._channel: Any = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Keep the channel, to write a password."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Collect what the command prints."""
        self._parts[0 if datatype is None else 1].append(data)
        self._size += len(data)
        if self._size > LARGEST:
            self._end(SessionError(f"it printed more than {LARGEST} bytes"))
        elif self._become is not None:
            self._escalate(self._become)

    def _escalate(self, become: Become) -> None:
        printed = b"".join([*self._parts[0], *self._parts[1]])
        asked = printed.count(become.prompt.encode())
        if become.success.encode() in printed:
            self._become = None
            self._channel.write_eof()
        elif asked > 1:
            self._end(SessionError("become refused the password", wrong_password=True))
        elif asked and not self._sent:
            self._sent = True
            self._channel.write(become.password.encode() + b"\n")

    def _end(self, problem: SessionError) -> None:
        if not self.answer.done():
            self.answer.set_exception(problem)
        self._channel.abort()

    def exit_status_received(self, status: int) -> None:
        """Store the exit status."""
        self._status = status

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the answer. Without an exit status there is none."""
        if self.answer.done():
            return
        if self._status < 0:
            self.answer.set_exception(
                SessionError(f"the command has no exit status: {exc or 'it was killed'}")
            )
        else:
            stdout, stderr = (b"".join(parts) for parts in self._parts)
            self.answer.set_result(SessionAnswer(self._status, stdout, stderr))
