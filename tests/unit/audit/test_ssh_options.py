"""What OpenSSH would do for a host, as the real `ssh -G` prints it: what is followed, and what makes a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from goldnode.audit import ssh_options
from goldnode.audit.ssh_options import SshConfiguration, SshTarget, UnsupportedError, split

ANSIBLE = "ssh -C -o ControlMaster=auto -o ControlPersist=60s -o Port=2222 -o KbdInteractiveAuthentication=no"
ANSIBLE += " -o PreferredAuthentications=gssapi-with-mic,gssapi-keyex,hostbased,publickey"
ANSIBLE += (
    ' -o PasswordAuthentication=no -o User="admin" -o ConnectTimeout=10 -o ControlPath="/x/y"'
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    ssh_options.host_patterns.cache_clear()


def target(tmp_path: Path, config: str, words: str = ANSIBLE, host: str = "gpu01") -> SshTarget:
    file = tmp_path / "config"
    file.write_text(config, encoding="utf-8")
    return SshConfiguration().target([*words.split(), "-F", str(file)], host)


def test_options_of_ansible_are_followed(tmp_path: Path) -> None:
    found = target(tmp_path, "")
    assert (found.host, found.port, found.user, found.timeout) == ("gpu01", 2222, "admin", 10)
    assert found.jump is None
    assert not found.any_key
    assert found.algorithms == ()


def test_the_configuration_of_a_host_is_followed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("", encoding="utf-8")
    config = f"""
        Host gpu*
          HostName %h.example
          IdentityFile {key}
          IdentitiesOnly yes
          UserKnownHostsFile {tmp_path}/a {tmp_path}/b
          StrictHostKeyChecking no
          HostKeyAlias alias
          KexAlgorithms curve25519-sha256
          ServerAliveInterval 7
        Host cpu*
          ProxyJump me@jump:2200
    """
    found = target(tmp_path, config, "ssh")
    assert found.host == "gpu01.example"
    assert found.identity_files == (str(key),)
    assert found.agent == ""
    assert found.known_hosts[:2] == (f"{tmp_path}/a", f"{tmp_path}/b")
    assert (found.any_key, found.host_key_alias) == (True, "alias")
    assert found.algorithms == (("kexalgorithms", ("curve25519-sha256",)),)
    assert found.alive[0] == 7
    jump = target(tmp_path, config, "ssh", "cpu01").jump
    assert jump is not None
    assert (jump.host, jump.port, jump.user) == ("jump", 2200, "me")


def test_several_jump_hosts_are_passed_in_their_order(tmp_path: Path) -> None:
    found = target(tmp_path, "", "ssh -J a,b@[::1]:23,c")
    hosts = []
    while found.jump is not None:
        found = found.jump
        hosts.append((found.host, found.port))
    assert hosts == [("c", 22), ("::1", 23), ("a", 22)]


@pytest.mark.parametrize(
    ("config", "words", "reason"),
    [
        ("ProxyCommand nc %h %p", "ssh", "proxycommand"),
        ("LocalForward 8080 localhost:80", "ssh", "localforward"),
        ("CheckHostIP yes", "ssh", "checkhostip"),
        ("KnownHostsCommand /bin/true", "ssh", "knownhostscommand"),
        ("RevokedHostKeys /etc/ssh/revoked", "ssh", "revokedhostkeys"),
        ("PubkeyAuthentication no", "ssh", "pubkeyauthentication"),
        ("CertificateFile /x", "ssh", "certificatefile"),
        ("IdentityFile ~/.ssh/%h", "ssh", "%h"),
        ("RemoteCommand true", "ssh", "remotecommand"),
        ("", "ssh -o PreferredAuthentications=password", "does not log in with a key"),
        ("", "ssh -W x:22", "-W"),
        ("", "ssh -o BindAddress=127.0.0.1", "bindaddress"),
        ("", "ssh -o NoSuchOption=1", "ssh -G fails"),
        ("", "ssh -p high", "port"),
    ],
)
def test_an_option_that_is_not_followed_is_a_reason(
    tmp_path: Path, config: str, words: str, reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        target(tmp_path, config, words)


def test_a_warning_of_openssh_10_is_no_reason(tmp_path: Path) -> None:
    # ssh of Debian 14 prints the option for each host; the one of this machine may not know it.
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *WarnWeakCrypto=no*) set -- -G -- host; value=no;; *) value=yes;; esac\n'
        'ssh "$@" && echo "warnweakcrypto $value"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    found = SshConfiguration(str(program)).target(["ssh", "-o", "WarnWeakCrypto=no"], "host")
    assert found.host == "host"


def test_hosts_that_the_configuration_does_not_tell_apart_share_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    real = ssh_options.printed

    def counted(program: str, words: tuple[str, ...], host: str) -> dict[str, list[str]]:
        runs.append(host)
        return real(program, words, host)

    ssh_options.defaults("ssh")
    monkeypatch.setattr(ssh_options, "printed", counted)
    file = tmp_path / "config"
    (tmp_path / "more").write_text("Host b*\n  Port 24\n", encoding="utf-8")
    file.write_text(
        f"Include {tmp_path}/more\nHost a*\n  Port 23\nHost named\n  HostName other\n",
        encoding="utf-8",
    )
    configuration = SshConfiguration()
    command = ["ssh", "-F", str(file), "-o", "User=x"]
    found = {
        name: configuration.target(command, name)
        for name in ("a1", "a2", "b1", "b2", "c1", "c2", "named", "named")
    }
    assert runs == ["a1", "b1", "c1", "named"]
    assert {name: one.port for name, one in found.items()} == {
        "a1": 23, "a2": 23, "b1": 24, "b2": 24, "c1": 22, "c2": 22, "named": 22,
    }  # fmt: skip
    assert [found[name].host for name in ("a2", "c2", "named")] == ["a2", "c2", "other"]


def test_a_match_line_gives_each_host_a_run_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text('Match exec "test %h = b"\n  Port 23\n', encoding="utf-8")
    configuration = SshConfiguration()
    ports = [configuration.target(["ssh", "-F", str(file)], name).port for name in ("a", "b", "c")]
    assert ports == [22, 23, 22]


def test_port_and_user_of_a_command_are_split_off() -> None:
    words, port, user = split([*ANSIBLE.split(), "-p", "23", "-oUser=other"])
    assert (port, user) == (2222, "admin")
    assert not any("Port" in word or "User=" in word or "Control" in word for word in words)
