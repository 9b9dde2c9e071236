"""The HTTP server of the lock service: uvicorn, with TLS and certificates of nodes."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from goldnode.core import secret_modes
from goldnode.core.errors import GoldnodeError
from goldnode.fleet.service.app import LockService, ServiceSettings
from goldnode.fleet.store import schema
from goldnode.fleet.store.database import StoreDatabase

LOGGER = logging.getLogger("goldnode.fleet")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_BACKLOG = 16_384  # connections that wait in the kernel
_ACCEPTED = 16  # connections that asyncio accepts before it looks at the others
_PATIENCE = 30.0  # seconds for the head of a request, and for a client to read an answer
_HEALTHY = (
    2.0  # seconds in which a client that is not slow gets its answer, also when many come at once
)
_FILES = 65_536  # open files that the service asks for
TICKS = 50  # of uvicorn, between two looks at the list of revoked certificates
_UNSENT = 64 << 20  # bytes of answers that clients have not read


@dataclass(frozen=True)
class Listen:
    """Address of a service, and its TLS files. `client_ca` verifies certificates of nodes."""

    host: str = "127.0.0.1"
    port: int = 9180
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    client_crl: Path | None = None  # certificates of nodes that are revoked
    plain: bool = False  # HTTP without TLS on another address than the loopback
    any_client: bool = False  # TLS without certificates of nodes there
    data: Path | None = None  # directory of captures; None: they are not accepted

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise GoldnodeError(
                "TLS needs a certificate and its key", remedy="give --tls-certificate and --tls-key"
            )
        if self.client_ca is not None and self.certificate is None:
            raise GoldnodeError(
                "certificates of nodes need TLS", remedy="give --tls-certificate and --tls-key too"
            )
        if self.client_crl is not None and self.client_ca is None:
            raise GoldnodeError(
                "a list of revoked certificates needs their authority",
                remedy="give --client-ca too",
            )
        if self.host in _LOOPBACK or self.client_ca is not None:
            return
        risk = f"any machine that reaches {self.host}:{self.port} can ask for any node"
        if self.certificate is None and not self.plain:
            raise GoldnodeError(
                f"without TLS, {risk}",
                remedy="give --tls-certificate, --tls-key and --client-ca, or --plain-http on a network that you trust",
            )
        if self.certificate is not None and not self.any_client:
            raise GoldnodeError(
                f"without certificates of nodes, {risk}",
                remedy="give --client-ca, or --any-client on a network that you trust",
            )


class _Protocol(H11Protocol):
    """HTTP connection with limits that uvicorn does not have.

    It passes the names in the client's certificate to the application, as `state.peer`. A client has
    :data:`_PATIENCE` seconds for the head of a request, and to read an answer. Of too many connections, the oldest
    one is closed, first of those whose request is incomplete.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head: asyncio.TimerHandle | None = (
            None  # runs while the head of a request is incomplete
        )
        self._began = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.app_state = {**self.app_state, "peer": names_of(tls.getpeercert() or {})}
        self._watch()
        if len(self.connections) > _most():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_PATIENCE, self._unsent, self.transport)
            unsent = {one: one.transport.get_write_buffer_size() for one in self.connections}
            if sum(unsent.values()) > _UNSENT:
                max(unsent, key=lambda one: unsent[one]).transport.abort()

    def send_400_response(self, msg: str) -> None:
        # An answer that has begun cannot be replaced by another one.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.abort()

    def _make_room(self) -> None:
        """Close the oldest slow connections, as many as there are too many. Without slow ones, uvicorn answers 503."""
        live = [
            one
            for one in self.connections
            if isinstance(one, _Protocol) and not one.transport.is_closing()
        ]
        slow = [one for one in live if one._began <= self._began - _HEALTHY]
        slow.sort(key=lambda one: (not one.waits(), one._began))
        for one in slow[: max(0, len(live) - _most())]:
            one.abort()

    def waits(self) -> bool:
        """Return whether no request of this connection is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        """Close the connection, whatever the client has not read."""
        self.transport.abort()

    def _watch(self) -> None:
        if not self.waits():
            self._unwatch()
        elif self._head is None:
            self._head = self.loop.call_later(_PATIENCE, self.abort)

    def _unwatch(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    @staticmethod
    def _unsent(transport: asyncio.Transport) -> None:
        if transport.get_write_buffer_size():
            transport.abort()


def _most() -> int:
    """Return how many connections leave enough open files for those on their way, the store and the inbox."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _FILES if soft == resource.RLIM_INFINITY else soft // 2


def names_of(certificate: dict[str, Any]) -> frozenset[str]:
    """Return the DNS names of a certificate, in the form of `ssl`; its common name only if there are none."""
    names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
    common = {
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    }
    return frozenset(names or common)


class _Server(uvicorn.Server):
    """A server with a long queue in the kernel, of which asyncio accepts a few at a time.

    asyncio has one number for both. Once open files run out, it would fail that often, with a
    traceback each time. It reads the list of revoked certificates again when the file has changed.
    """

    def __init__(self, config: uvicorn.Config, crl: Path | None = None) -> None:
        super().__init__(config)
        self._crl = crl
        self._read = None if crl is None else crl.stat().st_mtime_ns

    async def on_tick(self, counter: int) -> bool:
        """Look for a new list each five seconds, with what uvicorn does each tenth of a second."""
        if self._crl is not None and counter % TICKS == 0:
            self._reload(self._crl)
        return await super().on_tick(counter)

    def _reload(self, crl: Path) -> None:
        try:
            changed = crl.stat().st_mtime_ns
            if changed != self._read and self.config.ssl is not None:
                self._read = changed
                _revoke(self.config.ssl, crl)
                LOGGER.info("%s was read again", crl)
        except (OSError, GoldnodeError) as problem:
            # The list that was read before stays in force.
            LOGGER.warning("the list of revoked certificates was not read again: %s", problem)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_logged)
        listening = self.config.bind_socket()
        await super().startup([listening])
        if self.started:
            listening.listen(_BACKLOG)


def _logged(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what goes wrong outside a request. That open files ran out is a line; asyncio tries again after a second."""
    problem = context.get("exception")
    if isinstance(problem, OSError) and problem.errno in (errno.EMFILE, errno.ENFILE):
        LOGGER.warning(
            "no connection is accepted for a second: %s. Raise LimitNOFILE", problem.strerror
        )
        return
    loop.default_exception_handler(context)


def serve(store: StoreDatabase, listen: Listen, signing_key: Path | None = None) -> None:
    """Run the service until a signal ends it. Raises StoreError for a store that this code cannot write."""
    with store.read() as connection:
        schema.check(connection)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    server(store, listen, signing_key).run()


def server(store: StoreDatabase, listen: Listen, signing_key: Path | None = None) -> uvicorn.Server:
    """Return the server, not started."""
    settings = ServiceSettings(listen.client_ca is not None, signing_key, listen.data)
    config = uvicorn.Config(
        LockService(store, settings).app(),
        host=listen.host,
        port=listen.port,
        http=_Protocol,
        backlog=_ACCEPTED,
        limit_concurrency=_most() + _ACCEPTED,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
        log_config=_LOGGING,
        **_tls(listen),
    )
    if listen.client_crl is not None:
        config.load()
        if config.ssl is not None:  # always: a list requires TLS
            _revoke(config.ssl, listen.client_crl)
        return _Server(config, listen.client_crl)
    return _Server(config)


def _revoke(context: ssl.SSLContext, crl: Path) -> None:
    """Refuse certificates of nodes that a list names. Raise GoldnodeError for a file that is no list."""
    try:
        data = crl.read_text(encoding="ascii", errors="replace")
        if "BEGIN X509 CRL" not in data:
            raise ssl.SSLError("it has no list in PEM")
        context.load_verify_locations(str(crl))
    except (OSError, ssl.SSLError) as problem:
        raise GoldnodeError(
            f"the list of revoked certificates cannot be used: {problem}",
            file=crl,
            remedy="write it with `goldnode keys revoke NODE --authority DIR`",
        ) from problem
    # Without a list of the authority, no certificate is accepted then.
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _tls(listen: Listen) -> dict[str, Any]:
    """Return the TLS options of uvicorn. Raise GoldnodeError for files that cannot be used."""
    if listen.certificate is None:
        return {}
    if listen.key is not None:
        secret_modes.require(listen.key, secret_modes.TLS_KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(str(listen.certificate), str(listen.key))
        if listen.client_ca is not None:
            context.load_verify_locations(str(listen.client_ca))
    except (OSError, ssl.SSLError) as problem:
        raise GoldnodeError(
            f"the TLS files cannot be used: {problem}",
            file=listen.certificate,
            remedy="give PEM files that this user can read, with the key of this certificate",
        ) from problem
    options: dict[str, Any] = {
        "ssl_certfile": str(listen.certificate),
        "ssl_keyfile": str(listen.key),
    }
    if listen.client_ca is not None:
        options |= {"ssl_ca_certs": str(listen.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(levelname)s %(message)s"}},  # the journal adds the time
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {
        "goldnode": {"handlers": ["stderr"], "level": "INFO"},
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}
