"""Detection of the kernel that GRUB boots next, from ``grub.cfg`` and ``grubenv``.

Pure functions; runs no program.

``grub.cfg`` is a script. It is interpreted as far as the output of ``grub-mkconfig`` requires:
variables, ``if``, functions, ``load_env``, ``menuentry`` and ``submenu``. Values that come from the
firmware or from other files are *unknown*. If a condition depends on such a value, both branches are
evaluated. A choice that depends on one is reported as undetermined, never guessed. The selection rules
are those of GRUB 2.06: ``normal/menu.c`` (``get_entry_number``, ``menuentry_eq``,
``grub_menu_execute_entry``) and ``commands/test.c``.
"""

from __future__ import annotations

import re

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple, TypeAlias, Union


SIGNATURE = b"# GRUB Environment Block\n"
PREFIX = "/boot/grub"

_KERNELS = ("vmlinuz-", "vmlinux-")
_LINUX = ("linux", "linux16", "linuxefi")
_RESCUE = ("single", "recovery", "rescue", "emergency", "s", "S", "1")
# Set by the firmware, or by commands that are not interpreted.
_UNKNOWN = (
    "root",
    "cmdpath",
    "grub_platform",
    "grub_cpu",
    "lang",
    "locale_dir",
    "lockdown",
    "shim_lock",
    *"?@*#",
)
# Commands that read menus from other files, or boot before any menu is shown.
_BLIND = (
    *[
        "source",
        ".",
        "configfile",
        "normal",
        "blscfg",
        "legacy_source",
        "legacy_configfile",
        "syslinux_configfile",
        "boot",
        "exit",
        "return",
        "halt",
        "reboot",
        "chainloader",
    ],
    *_LINUX,
)


class GrubError(ValueError):
    """A syntax error in ``grub.cfg`` or ``grubenv``; the text gives location and reason."""


class GrubEntry(NamedTuple):
    """One bootable menu entry. Paths include submenus, in the format of GRUB_DEFAULT (``a>b``)."""

    release: Optional[
        str
    ]  # from /vmlinuz-RELEASE on its `linux` line; None if there is no such file
    id_path: str
    title_path: str
    index_path: str
    recovery: bool
    certain: bool  # False: defined under a condition that this file alone does not decide
    words: Tuple[str, ...] = ()  # the kernel's command line, as far as this file defines it

    @property
    def selector(self) -> str:
        """Return the value for GRUB_DEFAULT: the id path.

        An index replaces an id that GRUB would parse as a number.
        """
        pairs = zip(_split(self.id_path), self.index_path.split(">"))
        return ">".join(
            index if _number(name) is not None else _escape(name) for name, index in pairs
        )


class GrubChoice(NamedTuple):
    """The kernel that boots next, with `release` None if it is unknown.

    `via` is next_entry, saved_entry, default or first.
    """

    release: Optional[str]
    via: str
    wanted: Optional[str]  # the value of `default` that GRUB acts on; None: not set, or unknown
    entry: Optional[GrubEntry]
    fallback: bool  # True: `wanted` is not in the menu, so GRUB takes the first entry
    reason: str


def environment(grubenv: bytes) -> Dict[str, str]:
    """Return the variables of an environment block; an empty block (no file) has no variables.

    Raises GrubError if the signature is wrong.
    """
    if not grubenv:
        return {}
    if not grubenv.startswith(SIGNATURE):
        raise GrubError(
            "grubenv has no environment block signature, GRUB refuses it: run grub-editenv - create"
        )
    values: Dict[str, str] = {}
    text = grubenv[len(SIGNATURE) :].decode("utf-8", "surrogateescape")
    # A backslash escapes the next character of a value, even a newline.
    lines = (
        re.findall(r"((?:\\.|[^\\\n])+)(?:\n|$)", text, re.S) if "\\" in text else text.split("\n")
    )
    for line in lines:
        name, equal, value = line.partition("=")
        if equal and not name.startswith("#"):
            values[name] = re.sub(r"\\(.)", r"\1", value, flags=re.S) if "\\" in value else value
    return values


def entries(grub_cfg: str) -> List[GrubEntry]:
    """Return every menu entry in menu order, with the entries of submenus in place.

    Raises GrubError with the line number.
    """
    rows: List[GrubEntry] = []
    for node in _Script(grub_cfg, {}, False, None).menu:
        node.flatten(rows)
    return rows


def entry_for(grub_cfg: str, release: str) -> Optional[GrubEntry]:
    """Return the entry that boots `release` and is not a recovery entry, or None.

    GRUB's first "simple" entry always boots the newest kernel, so an entry whose id names
    the release is preferred.
    """
    able = [e for e in entries(grub_cfg) if e.release == release and not e.recovery]
    named = [e for e in able if release in _split(e.id_path)[-1]]
    return next(iter(named or able), None)


def next_boot(grub_cfg: str, grubenv: bytes, custom: Optional[str] = None) -> GrubChoice:
    """Return the release that boots next if no one uses the menu, and the reason.

    `grubenv` holds the bytes of /boot/grub/grubenv, empty if the file does not exist. `custom` is the text of
    /boot/grub/custom.cfg, or None. Never raises; `reason` explains a missing `release`.
    """
    note = ""
    try:
        values = environment(grubenv)
    except GrubError as error:
        values, note = {}, f"; {error}"
    try:
        script = _Script(grub_cfg, values, bool(grubenv), custom)
    except RecursionError:
        return GrubChoice(
            None,
            via="default",
            wanted=None,
            entry=None,
            fallback=False,
            reason="grub.cfg nests too deep" + note,
        )
    except GrubError as error:
        return GrubChoice(
            None, via="default", wanted=None, entry=None, fallback=False, reason=str(error) + note
        )
    wanted, via = script.env.get("default", ""), script.via
    if script.blind:
        return GrubChoice(
            None,
            via=via,
            wanted=wanted or None,
            entry=None,
            fallback=False,
            reason=script.blind + note,
        )
    if wanted is None:
        return GrubChoice(
            None,
            via=via,
            wanted=None,
            entry=None,
            fallback=False,
            reason="the default depends on what only the boot itself decides" + note,
        )
    if not script.menu:
        return GrubChoice(
            None,
            via=via,
            wanted=wanted or None,
            entry=None,
            fallback=False,
            reason="grub.cfg has no menu entry" + note,
        )
    if not wanted:
        reported = f"grubenv has no {via}" if via.endswith("_entry") else "grub.cfg sets no default"
        reported += ": the first entry boots"
    else:
        reported = f'grubenv has {via}="{wanted}"'
        if via == "default":
            reported = f'grub.cfg sets default "{wanted}"'
    entry, fallback = _walk(script.menu, wanted)
    if fallback:
        reported += ", which is not in the menu: GRUB falls back to the first entry"
    if entry is None:
        reported += ", which leads to no entry or to one that this file alone does not decide"
    elif entry.release is None:
        reported += f': entry "{entry.title_path}" names no kernel release'
    return GrubChoice(
        entry.release if entry else None,
        via=via,
        wanted=wanted or None,
        entry=entry,
        fallback=fallback,
        reason=reported + note,
    )


def _walk(menu: List["_Node"], wanted: str) -> Tuple[Optional[GrubEntry], bool]:
    """Return the entry that `wanted` selects, and whether GRUB had to fall back.

    Without an entry, the choice is undetermined or a submenu is empty.
    """
    fallback = False
    while menu:
        number = _number(wanted)
        name, _, rest = _cut(wanted)
        # An entry that may not exist shifts the index of later ones. By name, it only affects itself.
        doubtful = next((i for i, node in enumerate(menu) if not node.certain), len(menu))
        if number is None:
            hits = [i for i, node in enumerate(menu) if name in (node.title, node.id)]
            number = hits[0] if hits else len(menu)
            # Without the name GRUB boots the first entry.
            chosen = menu[number] if hits else menu[0]
            doubtful = len(menu) if chosen.certain else 0
        if number >= len(menu):
            # The rest of the path selects inside the submenu. An empty rest selects the first
            # entry without a fallback.
            fallback = fallback or wanted != ""
            number = 0
        if number >= doubtful:
            return None, fallback
        node = menu[number]
        if node.entry is not None:
            return node.entry, fallback
        menu, wanted = node.menu, rest
    return None, fallback


def _number(text: str) -> Optional[int]:
    """Parse a number like GRUB's strtoul(text, base 0).

    Leading digits count, so "2nd kernel" is 2. Numbers that are too large are out of range.
    """
    text = text.lstrip()
    if not "0" <= text[:1] <= "9":
        return None
    if text.startswith("0x"):
        digits = _leading(text[2:], "0123456789abcdefABCDEF")
        return int(digits, 16) if digits else None
    octal = _leading(text[1:], "01234567") if text.startswith("0") else ""
    return int(octal, 8) if octal else int(_leading(text, "0123456789"))


def _leading(text: str, letters: str) -> str:
    """Return the longest prefix of a text that consists of these letters."""
    return text[: len(text) - len(text.lstrip(letters))]


def _cut(path: str) -> Tuple[str, str, str]:
    """Split a path into first component (unescaped), separator, and rest.

    `>` is the separator, and `>>` is a `>` in a name.
    """
    at = path.find(">")
    while at >= 0 and path[at + 1 : at + 2] == ">":
        at = path.find(">", at + 2)
    first, separator, rest = (path, "", "") if at < 0 else (path[:at], ">", path[at + 1 :])
    return first.replace(">>", ">"), separator, rest


def _split(path: str) -> List[str]:
    parts: List[str] = []
    separator = ">"
    while separator:
        first, separator, path = _cut(path)
        parts.append(first)
    return parts


def _escape(name: str) -> str:
    return name.replace(">", ">>")


class _Node:
    """A menu entry (with `entry`) or a submenu (with `menu`)."""

    def __init__(self, title: str, name: str, certain: bool) -> None:
        self.title, self.id, self.certain = title, name, certain
        self.entry: Optional[GrubEntry] = None
        self.menu: List[_Node] = []

    def flatten(self, into: List[GrubEntry]) -> None:
        if self.entry is not None:
            into.append(self.entry)
        for node in self.menu:
            node.flatten(into)


# Syntax tree of the script. A word is a list of parts: (text, is a variable name, was quoted).
_Part: TypeAlias = "Tuple[str, bool, bool]"
_Word: TypeAlias = "List[_Part]"


class _Command(NamedTuple):
    line: int
    words: List[_Word]
    block: Optional[List["_Statement"]]


class _If(NamedTuple):
    branches: List[Tuple[List["_Statement"], List["_Statement"]]]
    otherwise: List["_Statement"]


class _Loop(NamedTuple):
    body: List["_Statement"]


_Statement: TypeAlias = "Union[_Command, _If, _Loop]"
_Item: TypeAlias = "Tuple[int, Optional[_Word]]"  # line and word; None ends a command


_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_NAME = _FIRST | frozenset("0123456789")


def _variable(text: str, at: int) -> Tuple[str, int]:
    """Return the variable name in `text` at `at` (``$name``, ``${name}``, ``$1``) and its end.

    The name is empty if there is no variable.
    """
    if text[at] != "$":
        return "", at
    first = text[at + 1 : at + 2]
    if first == "{":
        end = text.find("}", at)
        name = text[at + 2 : end] if end > 0 else ""
        return ("", at) if "\n" in name else (name, end + 1)
    end = at + 2
    if first in _FIRST:
        while text[end : end + 1] in _NAME:
            end += 1
    elif not first or first not in "0123456789?@*#":
        return "", at
    return text[at + 1 : end], end


def _lex(text: str) -> List[_Item]:
    tokens: List[_Item] = []
    line, at = 1, 0
    word: Optional[_Word] = None
    while at <= len(text):
        char = text[at] if at < len(text) else "\n"
        if char in " \t\r\n;" or (char == "#" and word is None):
            if word is not None:
                tokens.append((line, word))
                word = None
            if char == "#":
                at = text.find("\n", at) if "\n" in text[at:] else len(text)
                continue
            if char in "\n;":
                tokens.append((line, None))
                line += char == "\n"
            at += 1
            continue
        if text.startswith("\\\n", at):
            # Like a shell, GRUB joins a line that ends with a backslash with the next one.
            at, line = at + 2, line + 1
            continue
        word = [] if word is None else word
        if char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise GrubError(f"grub.cfg:{line}: a ' has no end")
            word.append((text[at + 1 : end], False, True))
            line += text.count("\n", at, end)
            at = end + 1
        elif char == '"':
            at, start, piece = at + 1, line, ""
            while at < len(text) and text[at] != '"':
                name, after = _variable(text, at)
                if name:
                    word += [(piece, False, True), (name, True, True)]
                    at, piece = after, ""
                    continue
                if text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$"):
                    at += 1
                piece += text[at]
                line += text[at] == "\n"
                at += 1
            if at >= len(text):
                raise GrubError(f'grub.cfg:{start}: a " has no end')
            word.append((piece, False, True))
            at += 1
        else:
            name, after = _variable(text, at)
            if name:
                word.append((name, True, False))
                at = after
            elif char == "\\":
                word.append((text[at + 1 : at + 2], False, True))
                at += 2
            else:
                word.append((char, False, False))
                at += 1
    return tokens


def _assigns(text: str) -> bool:
    """Return whether a text begins like an assignment."""
    name, equal, _ = text.partition("=")
    return bool(equal) and name[:1] in _FIRST and _NAME.issuperset(name)


def _literal(word: Optional[_Word]) -> Optional[str]:
    """Return the text of a word without quotes and variables.

    Only such a word can be a keyword or a brace.
    """
    if word is None or any(variable or quoted for _, variable, quoted in word):
        return None
    return "".join(text for text, _, _ in word)


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens, self.at = _lex(text), 0
        self.functions: Dict[str, List[_Statement]] = {}

    def statements(self, *ends: str) -> List[_Statement]:
        """Parse statements up to one of the keywords `ends`, or to the end of the file.

        The keyword is not consumed.
        """
        rows: List[_Statement] = []
        opened = self.tokens[min(self.at, len(self.tokens) - 1)][0] if self.tokens else 1
        while self.at < len(self.tokens):
            line, word = self.tokens[self.at]
            key = _literal(word)
            if word is None:
                self.at += 1
            elif key in ends:
                return rows
            elif key in ("then", "elif", "else", "fi", "do", "done", "}"):
                raise GrubError(f"grub.cfg:{line}: {key} has nothing to close here")
            else:
                rows.append(self.statement(line, key))
        if ends:
            raise GrubError(f"grub.cfg:{opened}: ends before its {' or '.join(ends)}")
        return rows

    def statement(self, line: int, key: Optional[str]) -> _Statement:
        if key == "if":
            branches: List[Tuple[List[_Statement], List[_Statement]]] = []
            otherwise: List[_Statement] = []
            while key in ("if", "elif"):
                self.at += 1
                condition = self.statements("then")
                self.at += 1
                branches.append((condition, self.statements("elif", "else", "fi")))
                key = _literal(self.tokens[self.at][1])
            if key == "else":
                self.at += 1
                otherwise = self.statements("fi")
            self.at += 1
            return _If(branches, otherwise)
        if key in ("while", "until", "for"):
            self.at += 1
            # Loop words are not evaluated, so parse and discard them.
            self.statements("do")
            self.at += 1
            body = self.statements("done")
            self.at += 1
            return _Loop(body)
        words: List[_Word] = []
        block: Optional[List[_Statement]] = None
        while self.at < len(self.tokens) and self.tokens[self.at][1] is not None:
            word = self.tokens[self.at][1] or []
            self.at += 1
            if _literal(word) == "{":
                block = self.statements("}")
                self.at += 1
                break
            if _literal(word) == "}":
                self.at -= 1
                break
            words.append(word)
        if key == "function" and block is not None and len(words) == 2:
            self.functions[_literal(words[1]) or ""] = block
            return _Loop([])
        if not words:
            raise GrubError(f"grub.cfg:{line}: a block that belongs to nothing")
        return _Command(line, words, block)


_last: List[Tuple[str, List[_Statement], Dict[str, List[_Statement]]]] = []


def _parsed(text: str) -> Tuple[List[_Statement], Dict[str, List[_Statement]]]:
    """Return the statements and functions of a script.

    The last result is cached, since callers ask for the next boot and for an entry of the same text.
    """
    if not _last or _last[0][0] != text:
        parser = _Parser(text)
        statements = parser.statements()
        _last[:] = [(text, statements, parser.functions)]
    return _last[0][1], _last[0][2]


class _Script:
    """Interpreter of grub.cfg.

    Results are `env` (None: unknown value), `menu`, `via`, and `blind`, the reason why the
    script cannot be followed.
    """

    def __init__(
        self, text: str, values: Dict[str, str], has_env: bool, custom: Optional[str]
    ) -> None:
        self.values, self.custom = values, custom
        self.files = {PREFIX + "/grubenv": has_env, PREFIX + "/custom.cfg": custom is not None}
        self.env: Dict[str, Optional[str]] = dict.fromkeys(_UNKNOWN)
        self.env.update(prefix=PREFIX, config_directory=PREFIX)
        self.menu: List[_Node] = []
        self.path: List[List[str]] = [
            [],
            [],
            [],
        ]  # ids, titles and indexes of the enclosing submenus
        self.via, self.blind, self.maybe, self.depth = "first", "", False, 0
        self.functions: Dict[str, List[_Statement]] = {}
        self.source(text)

    def source(self, text: str) -> None:
        statements, functions = _parsed(text)
        self.functions.update(functions)
        self.run(statements)

    def expand(self, word: _Word) -> Optional[str]:
        pieces = [self.value(text) if variable else text for text, variable, _ in word]
        return None if None in pieces else "".join(piece or "" for piece in pieces)

    def value(self, name: str) -> Optional[str]:
        # All menu-related feature_* variables exist since GRUB 2.00, which is older
        # than any supported system.
        return self.env.get(name, "y" if name.startswith("feature_") else "")

    def assign(self, name: str, value: Optional[str]) -> None:
        # After a branch that may not have run, a different value makes the variable unknown.
        self.env[name] = value if not self.maybe or self.value(name) == value else None

    def run(self, statements: List[_Statement], maybe: bool = False) -> Optional[bool]:
        """Run statements, and return the status of the last one; None is unknown.

        With `maybe`, it is unknown whether the statements run at all.
        """
        before, self.maybe, self.depth = self.maybe, self.maybe or maybe, self.depth + 1
        if self.depth > 40:
            raise GrubError("grub.cfg nests more than 40 deep or calls itself")
        status: Optional[bool] = True
        for statement in statements:
            if isinstance(statement, _Command):
                status = self.command(statement)
            elif isinstance(statement, _Loop):
                self.run(statement.body, True)
                status = None
            else:
                status = self.branch(statement)
        self.maybe, self.depth = before, self.depth - 1
        return status

    def branch(self, statement: _If) -> Optional[bool]:
        unknown = False
        for condition, body in statement.branches:
            # The branch runs, or its condition is unknown; then the following branches may run as well.
            met = self.run(condition, unknown)
            if met is not False:
                status = self.run(body, unknown or met is None)
                unknown = unknown or met is None
                if met:
                    return None if unknown else status
        status = self.run(statement.otherwise, unknown)
        return None if unknown else status

    def command(self, command: _Command) -> Optional[bool]:
        raw = command.words[1:] if _literal(command.words[0]) == "set" else command.words
        first = self.expand(command.words[0])
        if (
            raw
            and _assigns("".join(text for text, variable, _ in raw[0] if not variable))
            and not raw[0][0][1]
        ):
            name = "".join("=" if variable else piece for piece, variable, _ in raw[0]).partition(
                "="
            )[0]
            value = self.expand(raw[0])
            self.assign(name, None if value is None else value.partition("=")[2])
            if name == "default":
                used = [piece for piece, variable, _ in raw[0] if variable]
                self.via = (
                    used[0] if used and used[0] in ("next_entry", "saved_entry") else "default"
                )
            return True
        # An unquoted variable that is empty does not produce a word.
        words = [
            self.expand(word) for word in command.words if _quoted(word) or self.expand(word) != ""
        ]
        rest = words[1:]
        if first in ("[", "test"):
            return self.test(rest[:-1] if first == "[" else rest)
        if first in ("menuentry", "submenu"):
            self.define(command, rest, first == "submenu")
        elif first == "load_env":
            self.load(rest)
        elif first in self.functions:
            for number, word in enumerate(rest, 1):
                self.env[str(number)] = word
            return self.run(self.functions[first])
        elif (
            first in ("source", ".")
            and self.custom is not None
            and rest == [PREFIX + "/custom.cfg"]
        ):
            self.source(self.custom)
        elif first in _BLIND or first is None:
            self.blind = (
                self.blind
                or f"grub.cfg:{command.line}: {first} cannot be followed from this file alone"
            )
        elif first == "unset":
            for word in rest:
                self.assign(word or "", "")
        elif first in ("true", "false"):
            return first == "true"
        elif first == "read":
            self.env.update((word, None) for word in rest if word)
        else:
            self.env.update(
                (word[6:].split(":")[-1], None)
                for word in rest
                if word and word.startswith("--set=")
            )
        return None

    def load(self, rest: List[Optional[str]]) -> None:
        words = [word or "" for word in rest if word != "--skip-sig"]
        other = False
        while words[:1] and words[0].startswith("-"):
            option, _, path = words.pop(0).partition("=")
            path = path or (words.pop(0) if words else "")
            # Another environment file is not available here, so its variables become unknown.
            other = option in ("-f", "--file") and path != PREFIX + "/grubenv"
        for name in words or (
            ["default", "saved_entry", "next_entry"] if other else list(self.values)
        ):
            if other:
                self.env[name] = None
            elif name in self.values:
                self.assign(name, self.values[name])

    def define(self, command: _Command, rest: List[Optional[str]], submenu: bool) -> None:
        title: Optional[str] = ""
        name: Optional[str] = None
        named, titled, words = False, False, list(rest)
        while words:
            word = words.pop(0)
            option, equal, value = (word or "").partition("=")
            if word == "--unrestricted":
                continue
            if option in ("--id", "--class", "--users", "--hotkey", "--source"):
                given: Optional[str] = value
                if not equal:  # the value is the next word
                    given = words.pop(0) if words else ""
                if option == "--id":
                    name, named = given, True
            elif not titled:
                title, titled = word, True
        name = name if named else title
        certain = not self.maybe and title is not None and name is not None
        node = _Node(title or "", name or "", certain)
        up, place = self.path, str(len(self.menu))
        path = [up[0] + [_escape(node.id)], up[1] + [_escape(node.title)], up[2] + [place]]
        self.menu.append(node)
        body = command.block or []
        if submenu:
            # Evaluate the body now, in its own scope. GRUB does so when it enters the submenu.
            outer = self.menu, self.env, self.path, self.via, self.maybe
            self.menu, self.env, self.path, self.maybe = (
                node.menu,
                dict(self.env),
                path,
                not certain,
            )
            self.run(body)
            self.menu, self.env, self.path, self.via, self.maybe = outer
            return
        releases, recovery = set(), "-recovery-" in node.id
        line: List[str] = []
        for words_ in _linux_lines(body):
            expanded = [self.expand(word) or "" for word in words_[1:]]
            file = expanded[0].rpartition("/")[2] if expanded else ""
            releases.add(file[len(_KERNELS[0]) :] or None if file.startswith(_KERNELS) else None)
            line = [word for word in expanded[1:] if word]
            recovery = recovery or any(
                w in _RESCUE or w.startswith(("systemd.unit=rescue", "systemd.unit=emergency"))
                for w in expanded[1:]
            )
        joined = [">".join(parts) for parts in path]
        # Several `linux` lines may name different kernels; then the release is undetermined.
        release = releases.pop() if len(releases) == 1 else None
        node.entry = GrubEntry(
            release,
            id_path=joined[0],
            title_path=joined[1],
            index_path=joined[2],
            recovery=recovery,
            certain=certain,
            words=tuple(line),
        )

    def test(self, words: List[Optional[str]]) -> Optional[bool]:
        """Evaluate ``[ … ]`` with three values. Unknown operands (files, numbers, parentheses) yield None."""
        either: Optional[bool] = False
        both: Optional[bool] = True
        invert, words = False, list(words)
        while words:
            if words[0] == "-a":
                words.pop(0)
                continue
            if words[0] == "-o":
                either, both = _or(either, both), True
                words.pop(0)
                continue
            if words[0] == "!" and len(words) > 1 and words[1] not in ("=", "==", "!="):
                invert = not invert
                words.pop(0)
                continue
            if len(words) > 2 and words[1] in ("=", "==", "!="):
                left, operator, right = words[0], words[1], words[2]
                result = (
                    None if left is None or right is None else (left == right) == (operator != "!=")
                )
                del words[:3]
            elif len(words) > 1 and words[0] in ("-n", "-z"):
                result = None if words[1] is None else (words[1] == "") == (words[0] == "-z")
                del words[:2]
            elif len(words) > 1 and words[0] in ("-d", "-e", "-f", "-s"):
                result = self.files.get(words[1] or "")
                del words[:2]
            elif words[0] in ("(", ")") or (
                len(words) > 2 and re.match(r"[<>]=?$|-\w+$", words[1] or "")
            ):
                return None
            else:
                result = None if words[0] is None else words[0] != ""
                words.pop(0)
            result = (not result) if invert and result is not None else result
            both, invert = _not(_or(_not(both), _not(result))), False
        return _or(either, both)


def _not(value: Optional[bool]) -> Optional[bool]:
    return None if value is None else not value


def _or(left: Optional[bool], right: Optional[bool]) -> Optional[bool]:
    if left or right:
        return True
    return None if left is None or right is None else False


def _quoted(word: _Word) -> bool:
    return any(quoted for _, _, quoted in word)


def _linux_lines(statements: List[_Statement]) -> List[List[_Word]]:
    """Return the `linux` commands in the body of an entry, including those in conditions.

    They run only if the entry is chosen.
    """
    lines: List[List[_Word]] = []
    for statement in statements:
        if isinstance(statement, _Command):
            if _literal(statement.words[0]) in _LINUX:
                lines.append(statement.words)
        elif isinstance(statement, _Loop):
            lines += _linux_lines(statement.body)
        else:
            for _, body in statement.branches:
                lines += _linux_lines(body)
            lines += _linux_lines(statement.otherwise)
    return lines
