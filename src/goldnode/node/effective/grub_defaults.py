"""Settings of grub-mkconfig, which sources /etc/default/grub and then /etc/default/grub.d/*.cfg with sh.

Assignments, quotes, continued lines and expansions are followed as in POSIX sh, and each word has the file and
line that brought it. The output of commands is unknown, and it is unknown whether a conditional command runs.
grub-mkconfig copies the values into a script of GRUB, which has quotes, comments and variables of its own, and fails
if that script has a syntax error. tests/unit/node/effective/test_grub_defaults.py compares the result with that of
sh, and tests/e2e/test_effective_releases.py with that of grub-mkconfig.
"""

from __future__ import annotations

import re

from ..ground.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeAlias

    from ..ground.host import Host

MAIN, FOLDER = "/etc/default/grub", "/etc/default/grub.d"
_OPENS = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "{": "}"}
_EXPANDS = r"\{(\w+)(?:(:?[-+=])((?:[^{}\\]|\\.)*))?\}|(\w+)"  # compiled where it is used, as few files need it
# Of GRUB's script: a character behind a backslash, quoted text, a variable, blanks, the end of a command, a comment.
_SCRIPT = re.compile(
    r"""(?P<escaped>\\.)|(?P<single>'[^']*')|(?P<double>"(?:\\.|[^"\\])*")
    |(?P<variable>\$(?:[A-Za-z_]\w*|[\d?@*\#]|\{(?:[A-Za-z_]\w*|[\d?@*\#])\}))
    |(?P<blank>[ \t]+)|(?P<bad>;;|\{\}|[|&<>])|(?P<end>[\n;])|(?P<comment>(?<![^\s;])\#[^\n]*)|(?P<brace>[{}])|(?P<open>[$"'])|.""",
    re.DOTALL | re.VERBOSE,
)
_DOLLAR = r"(?s:\\.)|\$[A-Za-z_\d?@*#]|\$\{(?:\w+|[?@*#])\}|(\$)"
# The values that are copied, and how. Two quotes in two copies are a pair.
_COPIED = {
    "GRUB_CMDLINE_LINUX": "%s",
    "GRUB_CMDLINE_LINUX_DEFAULT": "%s",
    "GRUB_DEFAULT": '"%s"',
    "GRUB_TIMEOUT": "%s\n%s",
}


class GrubWord(NamedTuple):
    """A part of a value, and where it was assigned. `certain` is False if that depends on a command."""

    text: str
    file: str
    line: int
    certain: bool = True


_Value: TypeAlias = "List[GrubWord]"


class GrubSyntaxError(ValueError):
    """A file that sh cannot read: FILE:LINE: reason. update-grub fails with it."""


class Defaults(NamedTuple):
    """The values of all variables, the place of the last assignment of each, and why sh would stop, or None."""

    values: Dict[str, _Value]
    places: Dict[str, Tuple[str, int]]
    error: Optional[str]

    def text(self, name: str) -> str:
        """Return the value of a variable."""
        return "".join(part.text for part in self.values.get(name, ()))

    def words(self, *names: str) -> List[GrubWord]:
        """Return the words that variables add to a command of GRUB's script.

        The place of a word is that of its first letter.
        """
        parts: _Value = []
        for name in names:
            parts += [*self.values.get(name, ()), GrubWord(" ", "", 0)]
        return list(_words(parts))


def files(host: Host) -> List[str]:
    """Return the files in the order in which they are sourced."""
    drop_ins = [name for name in host.glob(FOLDER, "*.cfg") if not name.startswith(f"{FOLDER}/.")]
    return [name for name in (MAIN, *drop_ins) if host.exists(name)]


def read(host: Host, instead: Optional[Mapping[str, str]] = None) -> Defaults:
    """Return the settings in effect, with the texts `instead` of those of these files, there or not yet."""
    return of({**{name: host.text(name) or "" for name in files(host)}, **(instead or {})})


def of(texts: Mapping[str, str]) -> Defaults:
    """Return the settings of files by name."""
    defaults = Defaults({}, {}, None)
    for name in sorted(texts, key=lambda name: (name != MAIN, name)):
        try:
            _Shell(name, texts[name], defaults).run()
        except GrubSyntaxError as error:
            return defaults._replace(error=str(error))
    return defaults._replace(error=_unreadable(defaults))


def _unreadable(defaults: Defaults) -> Optional[str]:
    """Return why GRUB could not read the script with these values, or None. grub-mkconfig then writes no menu."""
    for name, form in _COPIED.items():
        value, (file, line) = defaults.values.get(name, []), defaults.places.get(name, ("", 0))
        bad = _bad(form.replace("%s", _joined(value)))
        if bad and all(part.certain for part in value):
            return f"{file}:{line}: {name} has a {bad} that GRUB cannot read: grub-mkconfig writes no menu"
    return None


def _bad(text: str) -> str:
    """Return the first character of a piece of GRUB's script that is a syntax error, or an empty text."""
    open_braces = 0
    for match in _SCRIPT.finditer(text):
        double = match["double"] or ""
        lone = [one for one in re.findall(_DOLLAR, double) if one] if "$" in double else []
        if match["bad"] or match["open"] or lone:
            return match["bad"] or match["open"] or lone[0]
        if match["brace"]:
            open_braces += 1 if match["brace"] == "{" else -1
        if open_braces < 0:
            return "}"
    return "{"[:open_braces]


def _words(parts: Sequence[GrubWord]) -> Iterator[GrubWord]:
    """Yield the words of the first command. What follows a newline, a semicolon or `#` is no part of it."""
    owners = [part for part in parts for _ in part.text]
    text, begun, word = "".join(part.text for part in parts), -1, ""
    for match in _SCRIPT.finditer(text):
        if match["blank"] or match["end"] or match["comment"]:
            if begun >= 0:
                used = owners[begun : match.start()]
                yield used[0]._replace(text=word, certain=all(one.certain for one in used))
            begun, word = -1, ""
            if not match["blank"]:
                return
            continue
        begun = match.start() if begun < 0 else begun
        word += _unquoted(match)


def _unquoted(match: re.Match[str]) -> str:
    """Return the text of a piece without its quotes. Variables of GRUB are left as they are."""
    if match["single"]:
        return match[0][1:-1]
    if match["double"]:
        return re.sub(r"\\([\\\"$])", r"\1", match[0][1:-1])
    return match[0][1:] if match["escaped"] else match[0]


class _Shell:
    """One file on its way through sh, as far as it sets variables."""

    def __init__(self, file: str, text: str, defaults: Defaults) -> None:
        self.file, self.text, self.defaults = file, text, defaults
        self.at, self.line = 0, 1
        self.blocks: List[str] = []  # the words that close the blocks around
        self.maybe = False  # the next command follows `&&` or `||`
        self.before: Optional[Tuple[Dict[str, _Value], Dict[str, Tuple[str, int]]]] = None

    def run(self) -> None:
        words: List[_Value] = []
        while self.at <= len(self.text):
            char = self.text[self.at : self.at + 1] or "\n"
            if char in " \t":
                self.skip(1)
            elif self.text.startswith("\\\n", self.at):
                self.skip(2)
            elif char == "#":
                self.at = (self.text + "\n").index("\n", self.at)
            elif char in "\n;&|()<>":
                self.operator(char, words)
            else:
                word = self.word()
                if not words and self.keyword(_joined(word)):
                    continue
                words.append(word)
                if all(map(_assigns, words)):
                    self.assign(word)  # at once: the next word of the command may expand it

    def operator(self, char: str, words: List[_Value]) -> None:
        self.command(words)
        words.clear()
        if char == "(":
            self.blocks.append(")")
        elif char == ")" and self.blocks[-1:] == [")"]:
            self.blocks.pop()
        self.maybe = self.text[self.at : self.at + 2] in ("&&", "||")
        self.skip(1 + self.maybe)

    def keyword(self, word: str) -> bool:
        """Enter or leave a block. Return whether the word was a keyword, after which a command begins."""
        if word in _OPENS:
            self.blocks.append(_OPENS[word])
            return word not in ("case", "for")
        if self.blocks[-1:] == [word]:
            self.blocks.pop()
            return True
        return word in ("then", "else", "elif", "do", "!")

    def skip(self, count: int) -> str:
        piece = self.text[self.at : self.at + count]
        self.line += piece.count("\n")
        self.at += count
        return piece

    def word(self) -> _Value:
        """Read one word: its parts, with what its variables have by now."""
        value: _Value = [self.part("")]
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;&|()<>":
            value += self.piece(False)
        return value

    def part(self, text: str, certain: bool = True) -> GrubWord:
        return GrubWord(text, self.file, self.line, certain)

    def piece(self, quoted: bool) -> _Value:
        """Read a quoted text, an expansion or one letter."""
        char = self.text[self.at]
        if char == "\\":
            after = self.text[self.at + 1 : self.at + 2]
            if after == "\n":
                self.skip(2)
                return []
            keeps = quoted and after not in ("$", "`", '"', "\\")
            return [self.part(self.skip(2)[0 if keeps else 1 :])]
        if char == "'" and not quoted:
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise self.error("a ' has no end")
            value = self.part(self.text[self.at + 1 : end])
            self.skip(end + 1 - self.at)
            return [value]
        if char == '"' and not quoted:
            return self.double()
        if char == "`" or self.text.startswith("$(", self.at):
            return self.output(char)
        if char == "$":
            return self.expansion()
        return [self.part(self.skip(1))]

    def double(self) -> _Value:
        begun, value = self.error('a " has no end'), []
        self.skip(1)
        while self.text[self.at : self.at + 1] != '"':
            if self.at >= len(self.text):
                raise begun
            value += self.piece(True)
        self.skip(1)
        return value

    def output(self, char: str) -> _Value:
        """Skip a command whose output is a part of the word."""
        begun, depth, unknown = self.error(f"a {char} has no end"), 0, [self.part("", False)]
        self.skip(1)
        while self.at < len(self.text):
            now = self.text[self.at]
            if now in "'\"" and char == "$":
                self.piece(False)
                continue
            self.skip(2 if now == "\\" else 1)
            depth += (now == "(") - (now == ")")
            if now == char or (char == "$" and not depth):
                return unknown
        raise begun

    def expansion(self) -> _Value:
        match = re.compile(_EXPANDS).match(self.text, self.at + 1)
        if not match:  # a $ that expands nothing, or a form that only some shells have
            return [self.part(self.skip(1), self.text[self.at : self.at + 1] != "{")]
        place = self.part("")
        self.skip(match.end() - self.at)
        have = self.defaults.values.get(match[1] or match[4])
        unset = have is None or ((match[2] or "")[:1] == ":" and not _joined(have))
        if match[2] and (match[2][-1] == "+") != unset:
            have = _Shell(self.file, match[3], self.defaults).inner(place)
        elif match[2] and unset:
            have = []
        return list(have or ())

    def inner(self, place: GrubWord) -> _Value:
        """Read the word inside of an expansion, whose quotes are those of its own."""
        self.line, value = place.line, []
        while self.at < len(self.text):
            value += self.piece(False)
        return value

    def command(self, words: List[_Value]) -> None:
        """Finish a command. Its assignments have no effect if it runs a program with them."""
        if words and _joined(words[0]) in ("export", "readonly"):
            for word in words[1:]:
                self.assign(word)
        elif self.before and not all(map(_assigns, words)):
            self.defaults.values.clear()
            self.defaults.values.update(self.before[0])
            self.defaults.places.clear()
            self.defaults.places.update(self.before[1])
        self.before = None

    def assign(self, word: _Value) -> None:
        """Set a variable. A subshell has its own ones."""
        name, equals, _ = _joined(word).partition("=")
        if ")" in self.blocks or not equals:
            return
        values, places, _ = self.defaults
        self.before = self.before or (dict(values), dict(places))
        value = _after(word, len(name) + 1)
        if self.maybe or self.blocks:
            value = [part._replace(certain=False) for part in value]
            value = [*values.get(name, ()), self.part(" "), *value]
        values[name], places[name] = value, (self.file, word[0].line)

    def error(self, reason: str) -> GrubSyntaxError:
        return GrubSyntaxError(f"{self.file}:{self.line}: {reason}")


def _joined(value: _Value) -> str:
    return "".join(part.text for part in value)


def _assigns(word: _Value) -> bool:
    """Return whether sh takes a word for an assignment."""
    name, sign, _ = _joined(word).partition("=")
    return bool(sign) and name.isidentifier()


def _after(value: _Value, letters: int) -> _Value:
    """Return a value without its first letters."""
    rest = []
    for part in value:
        rest.append(part._replace(text=part.text[letters:]))
        letters = max(0, letters - len(part.text))
    return rest
