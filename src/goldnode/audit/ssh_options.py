"""The configuration of OpenSSH for a host, read by OpenSSH itself, and whether the sessions of this package can follow it.

`ssh -G` prints every option that holds for a host, of all files and of the command line. An option that differs from
OpenSSH's default has to be in HONOURED or HARMLESS. Otherwise the host is asked in another way, and the option is the
reason. So an option that nobody here has heard of is never ignored.

One run of `ssh -G` serves all hosts that the `Host` lines of the configuration do not tell apart.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from goldnode.audit.known_hosts import matches_pattern

# Options that the sessions follow.
HONOURED = {
    "addressfamily",
    "ciphers",
    "connecttimeout",
    "globalknownhostsfile",
    "host",
    "hostkeyalgorithms",
    "hostkeyalias",
    "hostname",
    "identitiesonly",
    "identityagent",
    "identityfile",
    "kexalgorithms",
    "macs",
    "port",
    "proxyjump",
    "sendenv",
    "serveralivecountmax",
    "serveraliveinterval",
    "setenv",
    "stricthostkeychecking",
    "user",
    "userknownhostsfile",
}
# Options without which a command gives the same answer: of shared connections, of other ways to log in (a host that
# needs one refuses the keys, and is then asked by OpenSSH), of forwarding, and of what a person sees.
HARMLESS = {
    "addkeystoagent",
    "batchmode",
    "clearallforwardings",
    "compression",
    "controlmaster",
    "controlpath",
    "controlpersist",
    "escapechar",
    "exitonforwardfailure",
    "forwardagent",
    "forwardx11",
    "forwardx11timeout",
    "forwardx11trusted",
    "gssapiauthentication",
    "gssapidelegatecredentials",
    "gssapikeyexchange",
    "hashknownhosts",
    "hostbasedauthentication",
    "ipqos",
    "kbdinteractiveauthentication",
    "loglevel",
    "numberofpasswordprompts",
    "passwordauthentication",
    "preferredauthentications",
    "requesttty",
    "tcpkeepalive",
    "updatehostkeys",
    "visualhostkey",
    "warnweakcrypto",  # of OpenSSH 10.1: a warning before exchanges that are not safe from a quantum computer
    "xauthlocation",
}
# Options of the command line that are options of the configuration too, or that change nothing here.
FLAGS = {"-4", "-6", "-A", "-C", "-a", "-q", "-t", "-tt", "-v", "-vv", "-vvv", "-x"}
WITH_VALUE = {"-F", "-J", "-i", "-l", "-o", "-p"}
NONE = {"", "none"}
JUMPS = 4  # hosts in a row that a connection may pass


class UnsupportedError(Exception):
    """OpenSSH would do something that is not done here. The text names it, without a full stop."""


@dataclass(frozen=True)
class SshTarget:
    """One server and how it is reached. Equal targets share a connection.

    `identity_files`: the files with keys, in order. `agent`: the socket of the agent, empty for none. `algorithms`:
    what the user restricts, by option. `timeout` and `alive`: seconds, 0 for none. `jump`: the server before this one.
    """

    host: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    agent: str = ""
    known_hosts: tuple[str, ...] = ()
    any_key: bool = False
    host_key_alias: str = ""
    algorithms: tuple[tuple[str, tuple[str, ...]], ...] = ()
    family: str = "any"
    timeout: float = 0
    alive: tuple[float, int] = (0, 3)
    environment: tuple[tuple[str, str], ...] = ()
    jump: SshTarget | None = None


class SshConfiguration:
    """The configuration of OpenSSH of this user, asked for each kind of host once."""

    def __init__(self, program: str = "ssh") -> None:
        self._program = program
        self._printed: dict[tuple[str, ...], dict[str, list[str]]] = {}
        self._targets: dict[tuple[int, tuple[str, ...]], SshTarget] = {}

    def target(self, command: Sequence[str], host: str) -> SshTarget:
        """Return the server that `command`, an ssh command line without host, would reach for `host`.

        Raises UnsupportedError.
        """
        words, port, user = split(command)
        return self.reach(words, host, port, user)

    def reach(
        self, words: tuple[str, ...], host: str, port: int | None, user: str | None
    ) -> SshTarget:
        """Return the server for a command line that :func:`split` has taken apart. Raises UnsupportedError."""
        options = self._options(words, host)
        # OpenSSH reads the same file for a jump host, and none of the other words.
        file = _config_file(words)
        own = ("-F", file) if file is not None else ()
        key = (id(options), own)
        if key not in self._targets:
            self._targets[key] = self._target(options, host, port=None, user=None, own=own)
        alike = self._targets[key]
        name = options["hostname"][0]
        if name.lower() == options["host"][0].lower():
            # The run was for another host of this kind.
            name = host
        return replace(alike, host=name.lower(), port=port or alike.port, user=user or alike.user)

    def _options(self, words: tuple[str, ...], host: str) -> dict[str, list[str]]:
        """Return the options of `ssh -G` by name. Equal kinds of hosts share one run."""
        alone = (*words, "\0", "host", host)
        patterns = host_patterns(_config_file(words))
        if patterns is None or alone in self._printed:
            key = alone
        else:
            matched = (item for item in patterns if matches_pattern(item, host.lower()))
            key = (*words, "\0", *matched)
        if key not in self._printed:
            options = printed(self._program, words, host)
            if options["hostname"][0].lower() != host.lower():
                # It has a HostName of its own, or one with %h.
                key = alone
            self._printed[key] = options
        return self._printed[key]

    def _target(
        self,
        options: dict[str, list[str]],
        host: str,
        *,
        port: int | None,
        user: str | None,
        own: tuple[str, ...] = (),
        depth: int = 0,
    ) -> SshTarget:
        self._check(options)
        name = options["hostname"][0]
        if name.lower() == options["host"][0].lower():
            # The run was for another host of this kind.
            name = host
        strict = options["stricthostkeychecking"][0]
        files = [*_files(options["userknownhostsfile"]), *_files(options["globalknownhostsfile"])]
        target = SshTarget(
            host=name.lower(),
            port=port or int(options["port"][0]),
            user=user or options["user"][0],
            identity_files=tuple(
                path for path in _files(options.get("identityfile", [])) if Path(path).exists()
            ),
            agent=_agent(options),
            known_hosts=tuple(files),
            any_key=strict in ("false", "no", "off"),
            host_key_alias=options.get("hostkeyalias", [""])[0].lower(),
            algorithms=self._restricted(options),
            family=options["addressfamily"][0],
            timeout=_number(options["connecttimeout"][0]),
            alive=(
                _number(options["serveraliveinterval"][0]),
                int(options["serveralivecountmax"][0]),
            ),
            environment=_environment(options),
        )
        jump = options.get("proxyjump", [""])[0]
        if jump not in NONE:
            target = replace(target, jump=self._jump(jump, own, depth))
        return target

    def _jump(self, text: str, own: tuple[str, ...], depth: int) -> SshTarget:
        """Return the last of the hosts that ProxyJump names, which is reached by those before it."""
        if depth >= JUMPS:
            raise UnsupportedError(
                "ProxyJump passes more hosts than OpenSSH connections are followed through"
            )
        before, _, last = text.rpartition(",")
        parts = re.fullmatch(
            r"(?:ssh://)?(?:([^@\s]+)@)?(\[[^\]\s]+\]|[^:\s/]+)(?::(\d+))?/?", last
        )
        if parts is None:
            raise UnsupportedError(f"ProxyJump is {last}, which is no host")
        host = parts[2].strip("[]")
        options = self._options(own, host)
        port = int(parts[3]) if parts[3] else None
        target = self._target(options, host, port=port, user=parts[1], own=own, depth=depth + 1)
        if before:
            target = replace(target, jump=self._jump(before, own, depth + 1))
        return target

    def _check(self, options: dict[str, list[str]]) -> None:
        default = self._default()
        for name, values in options.items():
            if values != default.get(name) and name not in HONOURED | HARMLESS:
                raise UnsupportedError(f"ssh has the option {name} {values[0]}".rstrip())
        absent = default.keys() - options.keys() - HONOURED - HARMLESS
        if absent:
            raise UnsupportedError(f"ssh lacks the option {min(absent)}")
        if options.get("checkhostip", ["no"])[0] != "no":
            raise UnsupportedError("ssh checks addresses too (CheckHostIP)")
        wanted = options.get("preferredauthentications", ["publickey"])[0]
        if "publickey" not in wanted.split(","):
            raise UnsupportedError(
                f"ssh does not log in with a key (PreferredAuthentications {wanted})"
            )

    def _restricted(self, options: dict[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
        default = self._default()
        return tuple(
            (name, tuple(options[name][0].split(",")))
            for name in ("ciphers", "hostkeyalgorithms", "kexalgorithms", "macs")
            if options[name] != default[name]
        )

    def _default(self) -> dict[str, list[str]]:
        return defaults(self._program)


@cache
def defaults(program: str) -> dict[str, list[str]]:
    """Return the options of OpenSSH without any configuration."""
    return printed(program, ("-F", "none"), "host")


def printed(program: str, words: Sequence[str], host: str) -> dict[str, list[str]]:
    """Return what `ssh -G` prints for a host: the values of each option. Raises UnsupportedError."""
    done = subprocess.run(
        [program, *words, "-G", "--", host],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        options.setdefault(name.lower(), []).append(value)
    if done.returncode or "hostname" not in options:
        lines = done.stderr.strip().splitlines() or ["no reason was given"]
        raise UnsupportedError(f"ssh -G fails: {lines[-1]}")
    # Older OpenSSH prints no line `host`.
    options["host"] = [host]
    return options


def split(command: Sequence[str]) -> tuple[tuple[str, ...], int | None, str | None]:
    """Return an ssh command line without what differs from host to host, and its port and user.

    The program and the path of shared connections are left out too. Raises UnsupportedError for a flag that is not known.
    """
    words: list[str] = []
    port: int | None = None
    user: str | None = None
    rest = iter(command[1:])
    for word in rest:
        if word in FLAGS:
            words.append(word)
            continue
        flag, value = word, None
        if word[:2] in WITH_VALUE and len(word) > 2:
            flag, value = word[:2], word[2:]
        if flag not in WITH_VALUE:
            raise UnsupportedError(f"the ssh arguments have {word}")
        value = next(rest, "") if value is None else value
        option, setting = _setting(flag, value)
        # Of two, OpenSSH takes the first; Ansible's own are before those of the inventory.
        if option == "port":
            port = port or int(setting)
        elif option == "user":
            user = user or setting
        elif option not in ("controlpath", "controlmaster", "controlpersist"):
            words += [flag, value]
    return tuple(words), port, user


def _setting(flag: str, value: str) -> tuple[str, str]:
    """Return the option and value that a flag sets; empty if it is none of those that differ from host to host."""
    if flag == "-p":
        option, setting = "port", value
    elif flag == "-l":
        option, setting = "user", value
    elif flag == "-o":
        option, _, setting = re.sub(r"^\s*(\w+)\s*[=\s]\s*", r"\1=", value).partition("=")
        option = option.lower()
    else:
        return "", ""
    setting = setting.strip().strip('"')
    if option == "port" and not setting.isdecimal():
        raise UnsupportedError(f"the port of ssh is {setting}")
    return option, setting


# The configuration's files


def _config_file(words: Sequence[str]) -> str | None:
    files = [after for word, after in pairwise(words) if word == "-F"]
    return files[0] if files else None


@cache
def host_patterns(file: str | None) -> tuple[str, ...] | None:
    """Return the patterns of all `Host` lines of the configuration: hosts that match the same have the same options.

    None if something else than a `Host` line can tell hosts apart, so that each host needs a run of its own.
    """
    if file is not None and file.lower() == "none":
        return ()
    places = [Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")]
    if file is not None:
        places = [Path(file).expanduser()]
    patterns: list[str] = []
    for place in places:
        base = Path("/etc/ssh") if place.is_relative_to("/etc/ssh") else Path.home() / ".ssh"
        named = _patterns(place, base, 0)
        if named is None:
            return None
        patterns += named
    return tuple(dict.fromkeys(patterns))


def _patterns(file: Path, base: Path, depth: int) -> list[str] | None:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError:
        return None
    patterns: list[str] = []
    for keyword, words in _directives(lines):
        if keyword == "host":
            patterns += [word.removeprefix("!") for word in words]
        elif (keyword == "match" and [word.lower() for word in words] != ["all"]) or depth > 16:
            return None
        elif keyword == "include":
            for word in words:
                if "%" in word or "${" in word:
                    return None
                for path in sorted(glob.glob(str(base / Path(word).expanduser()))):  # noqa: PTH207 - absolute patterns
                    inner = _patterns(Path(path), base, depth + 1)
                    if inner is None:
                        return None
                    patterns += inner
    return patterns


def _directives(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        keyword, _, rest = re.sub(r"^(\S+?)\s*[=\s]\s*", r"\1=", text).partition("=")
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:
            words = rest.split()
        yield keyword.lower(), words


# Values


def _files(values: Iterable[str]) -> list[str]:
    """Return the paths of an option. Raises UnsupportedError for a token such as %h, which only OpenSSH knows."""
    paths = []
    for value in values:
        for word in shlex.split(value):
            if "%" in word or "${" in word:
                raise UnsupportedError(f"ssh takes a file from {word}")
            if word.lower() != "none":
                paths.append(str(Path(word).expanduser()))
    return paths


def _agent(options: dict[str, list[str]]) -> str:
    named = options.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    if options["identitiesonly"][0] == "yes" or named.lower() == "none":
        return ""
    if named == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if "%" in named or "$" in named:
        raise UnsupportedError(f"ssh takes the agent from {named}")
    return str(Path(named).expanduser())


def _environment(options: dict[str, list[str]]) -> tuple[tuple[str, str], ...]:
    """Return the variables that ssh sends, as SendEnv and SetEnv have it."""
    patterns = [word for value in options.get("sendenv", ()) for word in value.split()]
    if any(pattern.startswith("-") for pattern in patterns):
        raise UnsupportedError("ssh has SendEnv with a pattern that takes variables back")
    sent = {
        name: value
        for name, value in os.environ.items()
        if any(matches_pattern(pattern, name.lower()) for pattern in patterns)
    }
    for value in options.get("setenv", ()):
        for word in shlex.split(value):
            name, _, setting = word.partition("=")
            sent.setdefault(name, setting)
    return tuple(sorted(sent.items()))


def _number(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdecimal() else 0.0
