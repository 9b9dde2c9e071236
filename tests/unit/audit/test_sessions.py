"""Sessions to real ssh servers: shared connections, servers that drop some, keys, jump hosts, passwords of become."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.ssh_servers import ADDRESS, Behaviour, Servers, hashed, serving

from goldnode.audit import sessions
from goldnode.audit.sessions import Become, SessionAnswer, SessionError, Sessions
from goldnode.audit.ssh_options import SshTarget

BECOME = "sudo -H -S -p \"[sudo] password:\" -u root /bin/sh -c 'echo BECOME-SUCCESS-abc ; plan'"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with serving(tmp_path_factory.mktemp("ssh")) as place:
        yield place


def known(servers: Servers, *lines: str) -> str:
    file = servers.directory / f"known-{abs(hash(lines))}"
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(file)


def target(
    servers: Servers, behaviour: Behaviour, kinds: tuple[str, ...] = ("ssh-ed25519",)
) -> SshTarget:
    port, keys = servers.start(behaviour, kinds)
    lines = [f"[{ADDRESS}]:{port} {key}" for key in keys]
    return SshTarget(
        ADDRESS,
        port,
        "root",
        (str(servers.identity),),
        known_hosts=(known(servers, *lines),),
        timeout=10,
    )


def ask(
    *targets: SshTarget, command: str = "plan", become: Become | None = None
) -> list[SessionAnswer | SessionError]:
    async def one(open_sessions: Sessions, place: SshTarget) -> SessionAnswer | SessionError:
        try:
            return await open_sessions.ask(place, command, become)
        except SessionError as problem:
            return problem

    async def everything() -> list[SessionAnswer | SessionError]:
        async with Sessions() as open_sessions:
            return await asyncio.gather(*(one(open_sessions, place) for place in targets))

    return asyncio.run(everything())


def test_hosts_of_one_target_share_a_connection(servers: Servers) -> None:
    behaviour = Behaviour("hello\n", status=3)
    place = target(servers, behaviour)
    answers = ask(*[place] * 20)
    assert answers == [SessionAnswer(3, b"hello\n", b"")] * 20
    assert behaviour.logins == 1


def test_a_server_that_drops_connections_is_tried_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PAUSE", 0.01)
    behaviour = Behaviour("hello", drops=3)
    assert ask(target(servers, behaviour)) == [SessionAnswer(0, b"hello", b"")]
    behaviour = Behaviour("hello", drops=9)
    assert "closed" in str(ask(target(servers, behaviour))[0])


def test_a_server_that_shuts_an_address_out_for_failed_logins_is_given_time(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PAUSE", 0.01)
    monkeypatch.setattr(sessions, "PENALTY", 0.5)
    behaviour = Behaviour("hello", users=("root",), penalty=0.8)
    place = target(servers, behaviour)

    async def one_after_the_other() -> SessionAnswer:
        async with Sessions() as opened:
            with pytest.raises(SessionError, match="Permission denied"):
                await opened.ask(replace(place, user="nobody"), "plan")
            return await opened.ask(place, "plan")

    assert asyncio.run(one_after_the_other()) == SessionAnswer(0, b"hello", b"")
    monkeypatch.setattr(sessions, "LONGEST", 0.0)
    with pytest.raises(SessionError, match="after logins that failed there"):
        asyncio.run(one_after_the_other())


def test_only_a_key_of_known_hosts_is_accepted(servers: Servers) -> None:
    behaviour = Behaviour("hello")
    place = target(servers, behaviour)
    other = target(servers, Behaviour("hello"))
    [unknown] = ask(replace(place, known_hosts=(known(servers),)))
    [changed] = ask(replace(place, known_hosts=other.known_hosts))
    assert isinstance(unknown, SessionError)
    assert isinstance(changed, SessionError)
    assert behaviour.logins == 0
    # As with UserKnownHostsFile=/dev/null and StrictHostKeyChecking=no.
    assert ask(replace(place, known_hosts=(), any_key=True)) == [SessionAnswer(0, b"hello", b"")]
    # A key that is not known is written down by OpenSSH, which is asked for that.
    assert isinstance(
        ask(replace(place, known_hosts=other.known_hosts, any_key=True))[0], SessionError
    )


def test_a_hashed_name_and_the_type_of_key_that_is_known_are_found(servers: Servers) -> None:
    behaviour = Behaviour("hello")
    port, (first, second) = servers.start(behaviour, ("ssh-ed25519", "ecdsa-sha2-nistp256"))
    line = hashed(f"[{ADDRESS}]:{port} {second}", servers.directory)
    others = [f"other{number} {first.split()[0]} {first.split()[1]}" for number in range(3)]
    place = SshTarget(
        ADDRESS,
        port,
        "root",
        (str(servers.identity),),
        known_hosts=(known(servers, line, *others),),
    )
    assert "|1|" in line
    assert ask(place) == [SessionAnswer(0, b"hello", b"")]


def test_a_certificate_of_a_known_authority_is_accepted(servers: Servers) -> None:
    port, _ = servers.start(Behaviour("hello", certificate=True))
    authority = servers.authority.export_public_key().decode().strip()
    place = SshTarget(ADDRESS, port, "root", (str(servers.identity),))
    right = known(servers, f"@cert-authority [{ADDRESS}]:* {authority}")
    wrong = known(servers, f"@cert-authority elsewhere {authority}")
    assert ask(replace(place, known_hosts=(right,))) == [SessionAnswer(0, b"hello", b"")]
    assert isinstance(ask(replace(place, known_hosts=(wrong,)))[0], SessionError)


def test_hosts_behind_a_jump_host_share_its_connection(servers: Servers) -> None:
    gate = Behaviour()
    jump = target(servers, gate)
    inner = [target(servers, Behaviour(f"node{number}")) for number in range(6)]
    answers = ask(*(replace(place, jump=jump) for place in inner))
    assert answers == [SessionAnswer(0, f"node{number}".encode(), b"") for number in range(6)]
    assert gate.logins == 1
    assert sorted(gate.forwarded) == sorted(place.port for place in inner)


def test_a_jump_host_that_refuses_is_named(servers: Servers) -> None:
    jump = replace(target(servers, Behaviour(users=("admin",))), user="nobody")
    [problem] = ask(replace(target(servers, Behaviour()), jump=jump))
    assert str(problem).startswith("the jump host: ")


def test_the_password_of_become_is_given_once(servers: Servers) -> None:
    behaviour = Behaviour("hello\n", sudo="right")
    place = target(servers, behaviour)
    become = Become("[sudo] password:", "BECOME-SUCCESS-abc", "right")
    [answer] = ask(place, command=BECOME, become=become)
    assert answer == SessionAnswer(0, b"BECOME-SUCCESS-abc\nhello\n", b"[sudo] password:")
    [problem] = ask(place, command=BECOME, become=replace(become, password="wrong"))  # noqa: S106
    assert isinstance(problem, SessionError)
    assert problem.wrong_password
    # Where sudo asks for none, none is sent.
    place = target(servers, Behaviour("hello\n"))
    assert ask(place, command=BECOME, become=become) == [
        SessionAnswer(0, b"BECOME-SUCCESS-abc\nhello\n", b"")
    ]
    assert "right" not in repr(become)


def test_a_refused_login_a_closed_port_and_a_restriction_are_reasons(servers: Servers) -> None:
    place = target(servers, Behaviour(users=("admin",)))
    closed = replace(place, port=1)
    odd = replace(place, algorithms=(("kexalgorithms", ("sntrup761x25519-sha512@openssh.com",)),))
    texts = [str(one) for one in ask(place, closed, odd, replace(place, identity_files=()))]
    assert "Permission denied" in texts[0]
    assert "refused" in texts[1]
    assert "kexalgorithms" in texts[2]
    assert "no key" in texts[3]
    allowed = (("kexalgorithms", ("curve25519-sha256", "unheard-of")), ("ciphers", ("aes256-ctr",)))
    assert ask(replace(place, user="admin", algorithms=allowed)) == [SessionAnswer(0, b"", b"")]


def test_an_answer_without_end_is_cut_off(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LARGEST", 1000)
    [problem] = ask(target(servers, Behaviour("x" * 5000)))
    assert "more than 1000" in str(problem)
